"""Where pseudo-observations come from: their laws, and what is refused."""

from __future__ import annotations

import math
from functools import partial

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine

from guides import PosteriorBootstrap
from guides.bootstrap.base_measures import EmpiricalBase, GaussianBase, IsotropicBase, PredictiveBase
from guides.bootstrap.weighted_loss import WeightedLoss
from tests.guides.bootstrap.problems import (
    double,
    generator,
    linear,
    mean_alone,
    regression,
)

hurried = pytest.mark.filterwarnings("ignore::guides.core.settling.UnsettledWarning")


def test_gaussian_base_has_the_moments_of_the_rows():
    x, y = regression(rows=300)
    drawn = GaussianBase(x, y).draw(40_000, generator())
    assert [part.shape for part in drawn] == [(40_000, 2), (40_000,)]
    rows, found = torch.cat([x, y[:, None]], 1), torch.cat([drawn[0], drawn[1][:, None]], 1)
    error = rows.std(0) / 200
    assert ((found.mean(0) - rows.mean(0)).abs() < 4.5 * error).all()
    torch.testing.assert_close(torch.cov(found.T), torch.cov(rows.T), rtol=0.1, atol=0.05)
    few = rows[:5]  # which tells the sample's covariance from that of a law with these five atoms
    root = GaussianBase(few).root
    torch.testing.assert_close(root @ root.T, torch.cov(few.T))


@pytest.mark.parametrize(
    "base", [GaussianBase, lambda x: EmpiricalBase((x,)), lambda x: IsotropicBase(x[0], 0.5)]
)
def test_a_base_measure_draws_by_its_generator_alone(base):
    x, before = torch.randn(9, 2), torch.get_rng_state()
    first, again, other = (base(x).draw(5, torch.Generator().manual_seed(seed))[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_rows_of_an_empirical_base_stay_together():
    """With replacement, and all of them in the end."""
    x = torch.arange(8.0)
    first, second = EmpiricalBase((x, 10 * x)).draw(200, generator())
    assert torch.equal(second, 10 * first)
    assert set(first.tolist()) == set(x.tolist())


@hurried
def test_predictive_base_draws_targets_from_a_model():
    x, _ = regression()
    base = PredictiveBase(linear, (x,), "y")
    first, again = base.draw(500, generator(1)), base.draw(500, generator(1))
    assert torch.equal(first[1], again[1])
    assert first[0].shape == (500, 2)
    posterior = PosteriorBootstrap(linear, 10.0, base, 50).fit(*regression(), num_draws=5, steps=20)
    assert posterior.info["num_pseudo"] == 50
    with pytest.raises(ValueError, match="no site 'z'"):
        PredictiveBase(linear, (x,), "z").draw(3, generator())


@pytest.mark.parametrize(("together", "count"), [(True, 4000), (False, 300)])
def test_rows_of_the_prior_predictive_have_latent_values_of_their_own(together, count):
    """``loc ~ N(0, 9)`` and noise of one: the sd of rows is the root of ten, not one."""

    calls = []

    def prior(x, y=None):
        calls.append(len(x))
        loc = pyro.sample("loc", dist.Normal(double(0.0), 3.0))
        assert together or loc.item() < 1e6
        precision = pyro.sample("precision", dist.Gamma(double(1e6), 1e6))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(loc + x[:, 0], precision**-0.5), obs=y)

    x = torch.tensor([[0.0], [100.0]], dtype=torch.float64)
    inputs, targets = PredictiveBase(prior, (x,), "y").draw(count, generator())
    apart = targets - inputs[:, 0]
    assert apart.shape == (count,)
    assert len(calls) == (1 if together else count + 1)
    assert abs(apart.std() - 10**0.5) < 4.5 * 10**0.5 / (2 * count) ** 0.5
    assert abs(apart.mean()) < 4.5 * (10 / count) ** 0.5


@hurried
def test_pseudo_observations_that_the_likelihood_cannot_have():
    x, y = regression()
    labels = (y > 0).double()

    def classifier(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=torch.float64), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    def scaled(y):
        scale = pyro.sample("scale", dist.LogNormal(double(0.0), 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Exponential(1 / scale), obs=y)

    with pytest.raises(ValueError, match=r"law of site 'y' cannot be, -?[\d.]+ for one: use EmpiricalBase"):
        PosteriorBootstrap(classifier, 5.0).fit(x, labels)
    with pytest.raises(ValueError, match="law of site 'y' cannot be"):
        PosteriorBootstrap(scaled, 5.0).fit(y.abs())
    with pytest.raises(ValueError, match="part 1 is of whole numbers"):
        PosteriorBootstrap(classifier, 5.0).fit(x, labels.long())
    for base in (PredictiveBase(classifier, (x,), "y"), EmpiricalBase((x, labels))):
        PosteriorBootstrap(classifier, 5.0, base, 20).fit(x, labels, num_draws=2, steps=2)


@hurried
@pytest.mark.parametrize("loss", ["mle", lambda theta, y: (y - theta["rate"]).square()])
def test_parts_of_counts_are_refused_and_not_cut(loss):
    """Of rows of an integer type; as those of floating point are."""
    counts = torch.tensor([97, 103, 100, 95])

    def model(y):
        rate = pyro.sample("rate", dist.Gamma(2.0, 0.02))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Poisson(rate), obs=y.float())

    def fit(base):
        return PosteriorBootstrap(model, 4.0, base, 5, loss).fit(counts, num_draws=2, steps=2)

    for base in (IsotropicBase(torch.tensor(100.0), 10.0), EmpiricalBase((torch.tensor([99.0, 100.9]),))):
        with pytest.raises(ValueError, match="data are of whole numbers: pass them in floating point, or"):
            fit(base)
    fit(EmpiricalBase((torch.tensor([99.0, 101.0]),)))
    fit(EmpiricalBase((counts,)))


def test_base_measures_that_do_not_fit():
    x, y = regression()
    with pytest.raises(ValueError, match=r"rows of shape \(3,\) where the data have \(2,\)"):
        PosteriorBootstrap(linear, 1.0, EmpiricalBase((torch.zeros(5, 3), torch.zeros(5)))).fit(x, y)
    with pytest.raises(ValueError, match="draws 1 tensors, the model has 2"):
        PosteriorBootstrap(linear, 1.0, EmpiricalBase((torch.zeros(5, 2),))).fit(x, y)
    with pytest.raises(ValueError, match="column 2 of the rows is constant"):
        PosteriorBootstrap(linear, 1.0).fit(x, torch.zeros(60))
    with pytest.raises(ValueError, match="at least two rows"):
        GaussianBase(torch.zeros(1, 3))
    for base in (lambda rows: GaussianBase(torch.zeros(4), rows), lambda rows: EmpiricalBase((x[:4], rows))):
        with pytest.raises(ValueError, match="rows are not finite: part 1, row 2"):
            base(torch.tensor([0.0, 1.0, math.inf, 3.0]))
    for sd in (-1.0, 0.0, math.nan):
        with pytest.raises(ValueError, match="sd must be positive and finite"):
            IsotropicBase(torch.zeros(2), sd)
    with pytest.raises(ValueError, match=r"rows that belong together, got \[5, 4\]"):
        EmpiricalBase((torch.zeros(5, 2), torch.zeros(4)))
    with pytest.raises(ValueError, match="no argument of the model has a row a datum"):
        PosteriorBootstrap(lambda: mean_alone(y), 1.0).fit()


def test_a_round_base_has_its_centre_and_its_sd():
    """``N(centre, sd^2 I)``: mean, sds and correlation of 20,000 draws, each within 4.5 standard errors."""
    centre, n = torch.tensor([3.0, -1.0]), 20_000
    (drawn,) = IsotropicBase(centre, 4.0).draw(n, generator())
    assert drawn.dtype == centre.dtype
    assert ((drawn.mean(0) - centre).abs() < 4.5 * 4 / n**0.5).all()
    assert ((drawn.std(0) - 4).abs() < 4.5 * 4 / (2 * n) ** 0.5).all()
    assert abs(torch.corrcoef(drawn.T)[0, 1]) < 4.5 / n**0.5


def test_a_round_base_around_whole_numbers_draws_their_parts():
    """They were cut, and lay half a unit nearer to zero."""
    (rows,) = IsotropicBase(torch.tensor([10, -3]), 2.0).draw(4000, generator())
    assert rows.dtype == torch.get_default_dtype()
    assert ((rows.mean(0) - torch.tensor([10.0, -3.0])).abs() < 4.5 * 2 / 4000**0.5).all()


def test_a_gaussian_base_of_fewer_rows_than_columns_keeps_their_covariance():
    """Singular, in columns of very different units: what makes it a covariance is a tiny share of each."""
    units = torch.tensor([1e-4, 1.0, 1e4, 1.0, 1.0], dtype=torch.float64)
    rows = torch.randn(3, 5, generator=generator(), dtype=torch.float64) * units
    root, wanted = GaussianBase(rows).root, torch.cov(rows.T)
    scale = rows.std(0)
    torch.testing.assert_close(
        (root @ root.T) / torch.outer(scale, scale), wanted / torch.outer(scale, scale), rtol=0, atol=1e-6
    )


def test_inputs_of_the_prior_predictive_are_drawn_with_replacement():
    x = torch.arange(1000.0, dtype=torch.float64)[:, None].expand(-1, 2)
    inputs, _ = PredictiveBase(linear, (x,), "y").draw(1000, generator())
    shown = len(set(inputs[:, 0].tolist()))
    assert abs(shown - 1000 * (1 - math.exp(-1))) < 5 * 10  # the sd of that number is some ten


def test_a_predictive_base_leaves_values_that_are_given():
    """Of a model that replays a latent value: every target lies within six sds of it."""

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x[:, 0] * w, 1e-3), obs=y)

    x = torch.ones(5, 1)
    given = poutine.trace(poutine.block(model, expose=["w"])).get_trace(x)
    base = PredictiveBase(poutine.replay(model, trace=given), (x,), "y")
    _, y = base.draw(20, torch.Generator().manual_seed(0))
    assert (y - given.nodes["w"]["value"]).abs().max() < 6e-3
    assert y.unique().numel() == 20


@hurried
@pytest.mark.parametrize("loss", ["mle", "map"])
def test_an_argument_of_as_many_places_without_rows_is_told(loss):
    """Pseudo-observations behind it change what the model makes of the data, or of its prior."""

    def model(y, scales):
        loc = pyro.sample("loc", dist.Normal(scales.sum() if loss == "map" else double(0.0), 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(loc, 1.0 if loss == "map" else scales.sum()), obs=y)

    y, scales = torch.randn(12, generator=generator(), dtype=torch.float64), torch.arange(1.0, 13.0).double()
    bootstrap = PosteriorBootstrap(model, 5.0, loss=loss)
    site = "loc" if loss == "map" else "y"
    with pytest.warns(UserWarning, match=rf"site '{site}' has another density .*functools.partial"):
        bootstrap.fit(y, scales, num_draws=3, steps=2)
    PosteriorBootstrap(partial(model, scales=scales), 5.0, loss=loss).fit(y, num_draws=3, steps=2)


def test_a_model_that_draws_in_its_rows_is_no_such_model():
    def model(y):
        loc = pyro.sample("loc", dist.Normal(double(0.0), 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(loc + 0.1 * torch.randn(len(y)), 1.0), obs=y)

    target = WeightedLoss.of(model, (torch.randn(12).double(),), "mle")
    target.warn_of_other_densities(GaussianBase(torch.randn(12).double()))


@hurried
def test_a_likelihood_in_factors_takes_pseudo_observations():
    """It has no value that the base measure could miss the support of; the draws are those of the mean."""

    def factors(y):
        loc = pyro.sample("loc", dist.Normal(double(0.0), 2.0))
        with pyro.plate("data", len(y)):
            pyro.factor("term", dist.Normal(loc, 1.0).log_prob(y))

    y = torch.randn(12, generator=generator(), dtype=torch.float64)
    found = [
        PosteriorBootstrap(f, 5.0).fit(y, num_draws=5, steps=50).draws()["loc"] for f in (factors, mean_alone)
    ]
    torch.testing.assert_close(*found)


def test_an_isotropic_base_of_rows_that_are_numbers():
    (drawn,) = IsotropicBase(double(3.0), 2.0).draw(4000, generator())
    assert drawn.shape == (4000,)
    assert abs(drawn.mean() - 3) < 4 * 2 / math.sqrt(4000)


def test_every_call_of_the_prior_predictive_draws_other_targets():
    base, one = PredictiveBase(linear, (torch.ones(1, 2, dtype=torch.float64),), "y"), generator()
    (_, first), (_, second) = base.draw(5, one), base.draw(5, one)
    assert len(set(torch.cat((first, second)).tolist())) == 10
    assert torch.equal(base.draw(5, generator())[1], first)


def test_a_site_that_not_every_run_has_is_refused():
    def model(y):
        loc = pyro.sample("loc", dist.Normal(double(0.0), 1.0))
        more = pyro.sample("more", dist.Normal(double(0.0), 1.0)) if len(y) == 12 else 0.0
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(loc + more, 1.0), obs=y)

    with pytest.raises(ValueError, match="'more' is not in every run"):
        PosteriorBootstrap(model, 5.0).fit(torch.randn(12).double(), num_draws=3)


def test_a_gaussian_base_of_mixed_precisions_draws_each_part_in_its_own():
    """And none with the digits of another, whichever comes first."""
    single, whole = torch.randn(20), torch.randn(20, dtype=torch.float64)
    for rows in ((single, whole), (whole, single)):
        drawn = GaussianBase(*rows).draw(50, generator())
        assert [part.dtype for part in drawn] == [part.dtype for part in rows]
        (fine,) = (part for part in drawn if part.dtype == torch.float64)
        assert (fine != fine.float()).any()


def test_targets_of_the_prior_predictive_have_no_gradient_and_show_in_no_trace():
    """Also where the model computes them."""
    slope = double(2.0).requires_grad_()

    def model(x, y=None):
        loc = pyro.sample("loc", dist.Normal(double(0.0), 1.0))
        with pyro.plate("data", len(x)):
            pyro.deterministic("y", loc + slope * x[:, 0])

    base = PredictiveBase(model, (torch.ones(3, 1, dtype=torch.float64),), "y")
    trace = poutine.trace(lambda: base.draw(4, generator())).get_trace()
    _, targets = trace.nodes["_RETURN"]["value"]
    assert targets.unique().numel() == 4
    assert not targets.requires_grad
    assert set(trace.nodes) == {"_INPUT", "_RETURN"}
