"""The posterior bootstrap against closed forms, brute force and large samples."""

from __future__ import annotations

import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from torch.distributions import constraints

from guides import PosteriorBootstrap
from guides.bootstrap.base_measures import EmpiricalBase
from guides.bootstrap.posterior_bootstrap import _adam
from guides.bootstrap.weighted_loss import WeightedLoss
from guides.bootstrap.weights import dirichlet_weights
from guides.core.rng import stream_seed
from guides.core.settling import UnsettledWarning
from guides.posterior.draws import Posterior
from tests.guides.bootstrap.problems import (
    double,
    gaussian,
    generator,
    linear,
    mean_alone,
    numbers,
    regression,
    two_plates,
)

hurried = pytest.mark.filterwarnings("ignore::guides.core.settling.UnsettledWarning")
SETTLED = {"steps": 400, "lr": 0.1}


def weighted_least_squares(x, y, weights, ridge=0.0):
    """``[B, p]`` for weights ``[B, n]``, each by a solve of its own."""
    gram = torch.einsum("bn,ni,nj->bij", weights, x, x) + ridge * torch.eye(x.shape[1], dtype=x.dtype)
    return torch.linalg.solve(gram, torch.einsum("bn,ni,n->bi", weights, x, y))


# ------------------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize(("rows", "num_pseudo", "concentration"), [(20, 0, 0.0), (20, 50, 10.0)])
def test_weights_have_the_moments_of_the_process(rows, num_pseudo, concentration):
    draws, total = 20_000, rows + concentration
    weights = dirichlet_weights(draws, rows, num_pseudo, concentration, generator())
    assert weights.dtype == torch.float64
    torch.testing.assert_close(weights.sum(-1), torch.ones(draws, dtype=torch.float64))
    shapes = torch.ones(rows + num_pseudo, dtype=torch.float64)
    shapes[rows:] = concentration / max(num_pseudo, 1)
    mean = shapes / total
    variance = mean * (1 - mean) / (total + 1)
    assert ((weights.mean(0) - mean).abs() < 4.5 * (variance / draws).sqrt()).all()
    spread = (weights - mean).square()
    assert ((spread.mean(0) - variance).abs() < 4.5 * spread.std(0) / draws**0.5).all()
    if concentration:  # the pseudo-observations' share is Beta(a, n)
        share = weights[:, rows:].sum(-1)
        law = torch.distributions.Beta(double(concentration), double(rows))
        assert abs(share.mean() - law.mean) < 4.5 * law.stddev / draws**0.5
        spread = (share - law.mean).square()
        assert abs(spread.mean() - law.variance) < 4.5 * spread.std() / draws**0.5


# --------------------------------------------------------------------------------------------- closed forms


def weights_of(rows: int, num_draws: int, seed: int) -> torch.Tensor:
    return dirichlet_weights(num_draws, rows, 0, 0.0, generator(seed))


@pytest.mark.slow
def test_weighted_likelihood_bootstrap_of_a_gaussian_is_its_closed_form():
    y = numbers()
    posterior = PosteriorBootstrap(gaussian).fit(y, num_draws=30, seed=4, steps=800, lr=0.3)
    weights = weights_of(len(y), 30, 4)
    loc = weights @ y
    scale = (weights * (y - loc[:, None]) ** 2).sum(-1).sqrt()
    found = posterior.draws()
    torch.testing.assert_close(found["loc"], loc, rtol=0, atol=1e-3)
    torch.testing.assert_close(found["scale"], scale, rtol=1e-3, atol=0)
    assert max(map(abs, posterior.info["last_tenth"])) < 1e-4


@pytest.mark.one_in(3)
@pytest.mark.parametrize("loss", ["mle", "map", "own"])
def test_linear_regression_is_weighted_least_squares(loss):
    x, y = regression()

    def square(theta, x, y):
        return 0.5 * (y - x @ theta["w"]) ** 2

    bootstrap = PosteriorBootstrap(linear, loss=square if loss == "own" else loss)
    found = bootstrap.fit(x, y, num_draws=20, seed=5, **SETTLED).draws()["w"]
    ridge = 1 / len(x) if loss == "map" else 0.0
    expected = weighted_least_squares(x, y, weights_of(len(x), 20, 5), ridge)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@hurried
def test_deterministic_sites_are_no_data():
    """Pyro writes them as observations, in the data's plate or outside of it."""

    def named(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=torch.float64), 1.0).to_event(1))
        pyro.deterministic("both", torch.stack([w.sum(), w.prod(), w[0]]))
        with pyro.plate("data", len(x)):
            loc = pyro.deterministic("loc", x @ w)
            return pyro.sample("y", dist.Normal(loc, 1.0), obs=y)

    x, y = regression()
    for process in ({}, {"concentration": 20.0, "num_pseudo": 30}):
        found, plain = (
            PosteriorBootstrap(model, loss="map", **process).fit(x, y, num_draws=3, steps=15)
            for model in (named, linear)
        )
        assert torch.equal(found.draws()["w"], plain.draws()["w"])
        assert torch.equal(found.predictive(x).mean, plain.predictive(x).mean)


@pytest.mark.parametrize("total", [1.0, 60.0])
def test_weights_of_any_sum_have_the_same_minimum(total):
    """One, as in algorithms 1 to 3, or the number of rows, as in algorithm 5."""
    x, y = regression()
    weights = weights_of(60, 1, 9)
    target = WeightedLoss.of(linear, (x, y), "mle")
    w = weighted_least_squares(x, y, weights)[0].requires_grad_()
    (gradient,) = torch.autograd.grad(target({"w": w}, total * weights[0]), w)
    assert gradient.abs().max() < 1e-10 * total


def test_scales_and_masks_of_the_model_count():
    x, y = regression()
    seen = torch.arange(60) % 3 > 0

    def partly(x, y=None):
        with poutine.scale(scale=2.0), poutine.mask(mask=seen):
            return linear(x, y)

    weights, w = weights_of(60, 1, 9)[0], {"w": torch.ones(2, dtype=torch.float64)}
    found = WeightedLoss.of(partly, (x, y), "mle")(w, weights)
    expected = 2 * WeightedLoss.of(linear, (x, y), "mle")(w, weights * seen)
    torch.testing.assert_close(found, expected)


@pytest.mark.slow
def test_large_samples_have_the_sandwich_covariance():
    """Not that of the likelihood, which believes in one noise for all rows."""
    x, y = regression(rows=2000)
    draws = weighted_least_squares(x, y, weights_of(2000, 2000, 6))
    some = PosteriorBootstrap(linear).fit(x, y, num_draws=200, seed=6, steps=120, lr=0.2).draws()["w"]
    best = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    bread = torch.linalg.inv(x.T @ x)
    meat = (x * (y - x @ best)[:, None] ** 2).T @ x
    sandwich = bread @ meat @ bread
    for found in (draws, some):
        centred = found - found.mean(0)
        products = torch.einsum("bi,bj->bij", centred, centred)
        error = products.std(0) / len(found) ** 0.5
        # 1/n beside the Monte Carlo error: the expansion's own
        assert ((products.mean(0) - sandwich).abs() < 4.5 * error + 0.05 * sandwich.abs().max()).all()
    assert sandwich[0, 0] > 1.5 * bread[0, 0]


def test_the_prior_counts_as_one_row_of_the_data_whatever_the_pseudo_observations():
    """Of ``mean ~ N(0, s^2)``: ``theta = sum_i W_i x_i / (1 + 1 / (n s^2))``, here a half of the sum."""
    y, base, m = numbers(rows=16), EmpiricalBase((torch.tensor([2.0, 5.0], dtype=torch.float64),)), 40
    scale = len(y) ** -0.5

    def shrunk(y):
        loc = pyro.sample("loc", dist.Normal(double(0.0), scale))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(loc, 1.0), obs=y)

    bootstrap = PosteriorBootstrap(shrunk, 8.0, base, m, loss="map")
    found = bootstrap.fit(y, num_draws=6, seed=5, steps=250, lr=0.1).draws()["loc"]
    source = generator(5)
    weights = dirichlet_weights(6, len(y), m, 8.0, source)
    rows = torch.stack([torch.cat([y, base.draw(m, source)[0]]) for _ in range(6)])
    torch.testing.assert_close(found, (weights * rows).sum(1) / 2, rtol=0, atol=1e-3)


def test_every_draw_has_pseudo_observations_of_its_own():
    """Never one pool for all."""
    x, y = regression()
    target = WeightedLoss.of(linear, (x, y), "mle")
    for pseudo in PosteriorBootstrap(linear, 5.0, num_pseudo=4)._pseudo(target, 3, generator()):
        assert pseudo.shape[:2] == (3, 4)
        for one, other in ((0, 1), (0, 2), (1, 2)):
            assert (pseudo[one] != pseudo[other]).all()


@pytest.mark.parametrize("concentration", [5.0, pytest.param(80.0, marks=pytest.mark.slow)])
def test_pseudo_observations_weigh_as_much_as_the_concentration(concentration):
    """Of a mean: ``E = (n mean + a E_pi) / (n + a)``, and the variance of the mixture over ``n + a + 1``."""
    y = numbers(rows=30)
    base = EmpiricalBase((torch.tensor([6.0, 8.0], dtype=torch.float64),))
    bootstrap = PosteriorBootstrap(mean_alone, concentration, base, num_pseudo=300)
    loc = bootstrap.fit(y, num_draws=600, seed=7, steps=250, lr=0.3).draws()["loc"]
    total = len(y) + concentration
    mean = (y.sum() + concentration * 7.0) / total
    second = ((y**2).sum() + concentration * 50.0) / total
    variance = (second - mean**2) / (total + 1)
    # of the truncation: the drawn base measure has a mean of its own
    variance = variance + (concentration / total) ** 2 * 1.0 / 300 * (1 - 1 / (total + 1))
    assert abs(loc.mean() - mean) < 4.5 * (variance / 600).sqrt()
    spread = (loc - mean).square()
    assert abs(spread.mean() - variance) < 4.5 * spread.std() / 600**0.5


@hurried
def test_draws_together_are_draws_one_by_one():
    x, y = regression()

    def reads_a_value(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(2, dtype=torch.float64), 1.0).to_event(1))
        assert w[0].item() < 1e6  # which torch.func.vmap forbids
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    settings = {"num_draws": 3, "seed": 8, "steps": 15}
    base = {"concentration": 20.0, "num_pseudo": 30}
    together = PosteriorBootstrap(linear, **base).fit(x, y, **settings)
    alone = PosteriorBootstrap(reads_a_value, **base).fit(x, y, **settings)
    torch.testing.assert_close(together.draws()["w"], alone.draws()["w"])
    assert together.info["losses"] == pytest.approx(alone.info["losses"])


@hurried
@pytest.mark.slow
def test_draws_in_processes_are_draws_one_by_one():
    y = numbers()

    def reads_a_value(y=None):
        loc = pyro.sample("loc", dist.Normal(double(0.0), 2.0))
        assert loc.item() < 1e6
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(loc, 1.0), obs=y)

    runs = [PosteriorBootstrap(reads_a_value).fit(y, num_draws=3, steps=9, jobs=jobs) for jobs in (1, 2)]
    assert torch.equal(runs[0].draws()["loc"], runs[1].draws()["loc"])


@hurried
def test_same_seed_same_draws_and_nothing_else_moves():
    x, y = regression()
    pyro.param("mine", torch.tensor(1.0))
    torch.manual_seed(3)
    before = torch.get_rng_state()
    runs = [
        PosteriorBootstrap(linear).fit(x, y, num_draws=3, seed=s, steps=5).draws()["w"] for s in (1, 1, 2)
    ]
    assert torch.equal(torch.get_rng_state(), before)
    assert list(pyro.get_param_store()) == ["mine"]
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@hurried
def test_a_posterior_like_every_other(tmp_path):
    x, y = regression()
    posterior = PosteriorBootstrap(linear).fit(x, y, num_draws=50, steps=30)
    assert isinstance(posterior, Posterior)
    assert posterior.predictive(x).mean.shape == (60,)
    posterior.save(tmp_path / "fit.nc", x, observed_data={"y": y})
    loaded = Posterior.load(tmp_path / "fit.nc", linear)
    assert torch.equal(loaded.draws()["w"], posterior.draws()["w"])
    assert loaded.info["method"] == "posterior-bootstrap"


# ---------------------------------------------------------------------------------- plates, supports, steps


@pytest.mark.parametrize("plate", [None, "out"])
def test_of_two_plates_that_of_the_rows_has_the_weights(plate):
    """More outputs than rows: rows are what the first argument has, unless another plate is named."""
    y = numbers(8 * 12).reshape(8, 12)
    y = y + torch.arange(8.0)[:, None]
    found = PosteriorBootstrap(two_plates, plate=plate).fit(y, num_draws=5, seed=3, steps=200, lr=0.3)
    means = y.mean(1) if plate is None else y.mean(0)
    expected = weights_of(len(means), 5, 3) @ means
    torch.testing.assert_close(found.draws()["loc"], expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("model", [mean_alone, gaussian])
def test_data_far_from_the_start_are_a_warning(model):
    """With a scale to widen, the loss is nearly flat all the way."""
    with pytest.warns(UnsettledWarning, match="3 of 3 draws are not at their minimum.*standardise"):
        PosteriorBootstrap(model).fit(numbers() + 1000, num_draws=3, steps=60)


@pytest.mark.slow
def test_supports_are_kept():
    def positive(y=None):
        rate = pyro.sample("rate", dist.Gamma(double(2.0), 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Exponential(rate), obs=y)

    y = numbers().abs()
    rate = PosteriorBootstrap(positive).fit(y, num_draws=20, seed=3, **SETTLED).draws()["rate"]
    assert constraints.positive.check(rate).all()
    torch.testing.assert_close(rate, 1 / (weights_of(len(y), 20, 3) @ y), rtol=1e-3, atol=0)


def test_pseudo_observations_by_default_are_the_published_truncation():
    """500 of a draw (Fong, Lyddon and Holmes 2019); none without concentration."""
    assert PosteriorBootstrap(linear, 1.0).num_pseudo == 500
    assert PosteriorBootstrap(linear).num_pseudo == 0


def test_seeds_of_a_stream_are_spread_over_all_that_a_generator_tells_apart():
    """Of two million seeds below 2^32 some hundreds coincide; of 70,000 below 2^16 all but 65,536 would."""
    seeds = [stream_seed("draws", seed) for seed in range(2000)]
    assert len(set(seeds)) == 2000
    assert max(seeds) > 2**31
    assert max(seeds) < 2**32


@hurried
def test_what_the_last_tenth_took_is_positive_where_the_loss_falls():
    """Its sign tells a fit on its way from one that has arrived: the zoo reads it as a rising bound."""
    posterior = PosteriorBootstrap(mean_alone).fit(numbers() + 5, num_draws=4, steps=30)
    assert min(posterior.info["last_tenth"]) > 0


@hurried
def test_losses_are_those_of_the_draws():
    """Where they ended, nats a row, though a step before they were others."""
    y = numbers()
    posterior = PosteriorBootstrap(mean_alone).fit(y, num_draws=3, seed=5, steps=20)
    weights, away = dirichlet_weights(3, len(y), 0, 0.0, generator(5)), y - posterior.draws()["loc"][:, None]
    expected = (weights * 0.5 * (math.log(2 * math.pi) + away**2)).sum(1)
    torch.testing.assert_close(double(posterior.info["losses"]), expected)
    assert max(posterior.info["last_tenth"]) > 1e-3


@hurried
def test_the_rate_is_that_of_the_step(monkeypatch):
    """One that is zero all along leaves draws at their starts."""
    asked = []
    monkeypatch.setattr(
        "guides.bootstrap.posterior_bootstrap.half_cosine", lambda *step: asked.append(step) or 0.0
    )
    start = PosteriorBootstrap(mean_alone, init_loc_fn=lambda site: double(0.7))
    with pytest.warns(UserWarning, match="^1 of 1 numbers of site 'loc' are where they started"):
        found = start.fit(numbers(), num_draws=3, steps=5, lr=0.2)
    assert (found.draws()["loc"] == 0.7).all()
    assert asked[:5] == [(0.2, step, 5) for step in range(5)]


def test_the_last_tenth_of_the_learning_is_counted_in_learning_rates():
    """From step 30 of 50 on, where the rates have used up nine tenths of their sum, to the end."""
    seen = []

    def losses(parameters, weights):
        seen.append((weights * parameters["a"].square().sum(1)).detach())
        return weights * parameters["a"].square().sum(1)

    end = _adam(losses, {"a": torch.tensor([[1.0], [5.0]])}, torch.tensor([1.0, 2.0]), (), 50, 0.1)
    torch.testing.assert_close(end.losses, seen[50])
    torch.testing.assert_close(end.change, seen[30] - seen[50])
    assert (end.change > 2 * (seen[45] - seen[50])).all()  # the last tenth of the steps does much less


def test_of_several_plates_the_rows_are_those_of_the_first_argument():
    """Though another argument has as many places as another plate."""

    def table(x, z, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x), dim=-2), pyro.plate("columns", len(z), dim=-1):
            pyro.sample("y", dist.Normal(w * x[:, None] * z, 1.0), obs=y)

    def turned(z, x, y):
        table(x, z, y)

    x, z, y = torch.randn(6), torch.randn(4), torch.randn(6, 4)
    assert WeightedLoss.of(table, (x, z, y), "mle").plate.name == "rows"
    assert WeightedLoss.of(turned, (z, x, y), "mle").plate.name == "columns"
