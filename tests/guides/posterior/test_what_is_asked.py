"""Events, plates, names and small probabilities: what the answers of a posterior must hold to."""

import math

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine

from guides.posterior import Posterior, mixture, observed_laws
from guides.posterior.drawn_anew import check_unknown

DRAWS = 400


def draws(*shape: int) -> torch.Tensor:
    return torch.randn(DRAWS, *shape, generator=torch.Generator().manual_seed(0))


def two_outputs(law):
    """Both outputs of a row share a weight."""

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", law(torch.stack((w * x, -w * x), -1)).to_event(1), obs=y)

    return Posterior.from_draws(model, {"w": draws()})


LAWS = {
    "Normal": lambda f: dist.Normal(f, 0.3),
    "Bernoulli": lambda f: dist.Bernoulli(logits=f),
    "StudentT": lambda f: dist.StudentT(4.0, f, 0.3),
}


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_outputs_of_a_row_stay_together(law):
    posterior, x = two_outputs(law), torch.tensor([0.5, 1.0, 3.0])
    y = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    predictive = posterior.predictive(x)
    assert (predictive.batch_shape, predictive.event_shape) == ((3,), (2,))
    each = posterior.log_likelihood(x, observed_data={"y": y})["y"]
    torch.testing.assert_close(predictive.log_prob(y), each.logsumexp(0) - math.log(DRAWS))
    torch.testing.assert_close(predictive.mean, law(posterior.function(x)).mean.mean(0))
    assert predictive.sample((5,)).shape == (5, 3, 2)


def test_classes_of_several_outputs_stay_together():
    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample(
                "y", dist.Categorical(logits=(x[:, None, None] * w).expand(-1, 2, -1)).to_event(1), obs=y
            )

    posterior, x, y = (
        Posterior.from_draws(model, {"w": draws(3)}),
        torch.ones(2),
        torch.tensor([[0, 0], [2, 1]]),
    )
    each = posterior.log_likelihood(x, observed_data={"y": y})["y"]
    torch.testing.assert_close(posterior.predictive(x).log_prob(y), each.logsumexp(0) - math.log(DRAWS))


def test_rows_that_are_one_event_are_taken_apart():
    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(w * x, 0.3).to_event(1), obs=y)

    predictive = Posterior.from_draws(model, {"w": draws()}).predictive(torch.ones(4))
    assert (predictive.batch_shape, predictive.event_shape) == ((4,), ())


@pytest.mark.parametrize("family", [torch.distributions.Bernoulli, torch.distributions.Categorical])
def test_laws_of_torch_and_of_probabilities_are_mixed_as_well(family):
    """The smallest numbers of the first are below the resolution of a logit."""
    probs = torch.tensor([[1e-10, 0.3], [1e-12, 0.5]])
    if family is torch.distributions.Categorical:
        probs = torch.stack((1 - probs, probs), -1)
    found = mixture(family(probs=probs))
    assert isinstance(found, family)
    torch.testing.assert_close(found.probs, probs.mean(0), rtol=1e-6, atol=0)


def test_what_is_impossible_stays_so():
    certain = mixture(dist.Bernoulli(logits=torch.tensor([[-math.inf, math.inf]] * 3)))
    torch.testing.assert_close(certain.log_prob(torch.tensor([0.0, 1.0])), torch.zeros(2))
    assert (certain.log_prob(torch.tensor([1.0, 0.0])) < -1e30).all()
    assert certain.entropy().eq(0).all()


@pytest.mark.parametrize("family", [dist.Bernoulli, dist.Categorical])
def test_a_probability_next_to_nothing_keeps_its_size(family):
    """In single precision, where 1 - p is 1 from 1e-8 on."""
    logits = torch.tensor([40.0, 45.0])
    if family is dist.Categorical:
        logits = torch.stack((torch.zeros(2), logits), -1)
    found = mixture(family(logits=logits.unsqueeze(1))).log_prob(torch.zeros(1))
    assert found.item() == pytest.approx(math.log((math.exp(-40) + math.exp(-45)) / 2), rel=1e-6)


def subsampled(size):
    """``size(x)`` of 20 rows in a plate."""

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 20, subsample_size=size(x)) as rows:
            at = x if len(x) != 20 else x[rows]
            pyro.sample("y", dist.Normal(w * at, 1.0), obs=None if y is None else y[rows])

    return Posterior.from_draws(model, {"w": draws()})


def test_a_plate_of_other_rows_in_every_draw_is_refused():
    x = torch.linspace(0, 1, 20)
    posterior = subsampled(lambda x: 5)
    for ask in (posterior.predictive, posterior.function):
        with pytest.raises(ValueError, match="'rows' takes rows at random.*site 'y'"):
            ask(x)
    with pytest.raises(ValueError, match="'rows' takes rows at random"):
        posterior.log_likelihood(x, observed_data={"y": x})


def test_rows_that_are_like_their_neighbours_are_refused_too():
    treated = torch.tensor([0.0] * 10 + [1.0] * 10)
    with pytest.raises(ValueError, match="'rows' takes rows at random"):
        subsampled(lambda x: 5).function(treated)


def test_a_plate_of_another_site_is_no_obstacle():
    def model(x, y=None, z=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("all", len(x)):
            pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)
        with pyro.plate("some", len(x), subsample_size=5) as rows:
            pyro.sample("z", dist.Normal(w * x[rows], 1.0), obs=z)

    posterior, x = Posterior.from_draws(model, {"w": draws()}), torch.linspace(0, 1, 20)
    torch.testing.assert_close(posterior.function(x, site="y"), draws()[:, None] * x)
    with pytest.raises(ValueError, match="plate 'some'.*site 'z'"):
        posterior.function(x, site="z")


def test_rows_that_are_sites_of_their_own_are_refused_by_name():
    def model(x):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        for i in pyro.plate("rows", len(x), subsample_size=3):
            pyro.sample(f"y_{i}", dist.Normal(w * x[i], 1.0))

    posterior, x = Posterior.from_draws(model, {"w": draws()}), torch.linspace(0, 1, 20)
    for i in range(20):
        with pytest.raises(ValueError, match="'rows' takes rows at random|the model has no site"):
            posterior.function(x, site=f"y_{i}")


def test_a_plate_that_weighs_the_minibatch_it_is_given_is_not():
    x = torch.linspace(0, 1, 5)
    found = subsampled(len).function(x)
    torch.testing.assert_close(found, draws()[:, None] * x)
    whole = torch.linspace(0, 1, 20)
    torch.testing.assert_close(subsampled(len).function(whole), draws()[:, None] * whole)


def test_draws_of_another_model_are_refused():
    def model(x, y=None):
        weights = pyro.sample("weights", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(weights * x, 1.0), obs=y)

    x, posterior = torch.ones(3), Posterior.from_draws(model, {"w": draws()})
    with pytest.raises(ValueError, match="draws are of 'w'.*'weights', 'y'"):
        posterior.predictive(x, site="y")
    with pytest.raises(ValueError, match="draws are of 'w'"):
        posterior.to_arviz(x, observed_data={"y": x})


def test_draws_that_are_left_over_are_no_obstacle():
    """As of a model that was fitted in other coordinates, or has a site only beside data."""

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        noise = 1.0 if y is None else pyro.sample("noise", dist.Gamma(1.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(w * x, noise), obs=y)

    both = {"w": draws(), "w_decentered": draws(), "noise": draws().exp()}
    x = torch.ones(3)
    torch.testing.assert_close(Posterior.from_draws(model, both).function(x), draws()[:, None] * x)


def test_names_with_a_slash_come_back_from_a_file(tmp_path):
    def model(x, y=None):
        w = pyro.sample("encoder/w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)

    posterior = Posterior.from_draws(model, {"encoder/w": draws(2), "a%2Fb": draws()})
    posterior.save(tmp_path / "p.nc", torch.ones(3, 2), observed_data={"y": torch.ones(3)})
    loaded = Posterior.load(tmp_path / "p.nc", model)
    assert loaded.sites.keys() == posterior.sites.keys()
    assert torch.equal(loaded.sites["encoder/w"], posterior.sites["encoder/w"])
    assert torch.equal(
        observed_laws(model, loaded.draws(), torch.ones(3, 2)).loc, posterior.function(torch.ones(3, 2))
    )


def test_points_are_looked_at_as_laws_are():
    def model(x):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("some", 20, subsample_size=5) as rows:
            pyro.deterministic("few", w * x[rows])
        pyro.deterministic("all", w * x)

    x = torch.linspace(0, 1, 20)
    with pytest.raises(ValueError, match="draws are of 'weight'"):
        Posterior.from_draws(model, {"weight": draws()}).function(x, site="all")
    posterior = Posterior.from_draws(model, {"w": draws()})
    with pytest.raises(ValueError, match="plate 'some'.*site 'few'"):
        posterior.function(x, site="few")
    torch.testing.assert_close(posterior.function(x, site="all"), draws()[:, None] * x)


def test_a_point_in_a_plate_is_not_repeated():
    def model(x):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.deterministic("f", w * x)

    found = Posterior.from_draws(model, {"w": draws()}).function(torch.ones(5), site="f")
    torch.testing.assert_close(found, draws()[:, None].expand(-1, 5))


def test_numbers_that_are_equal_and_not_as_many_are_others():
    """Of a model whose rows are as many as the draw of a site that is not given."""

    def run(draw, rows, seed):
        return poutine.trace(lambda: pyro.deterministic("m", torch.zeros(1 + seed % 2))).get_trace()

    with pytest.raises(ValueError, match="the draws are of 'old'.*'new'"):
        check_unknown(run, 1, ["m"], ["old"], ["new"])
    check_unknown(lambda *numbers: run(0, 0, 0), 1, ["m"], ["old"], ["new"])


def test_what_is_no_number_in_every_run_has_not_changed():
    def run(draw, rows, seed):
        return poutine.trace(lambda: pyro.deterministic("m", torch.tensor([math.nan, 1.0]))).get_trace()

    check_unknown(run, 1, ["m"], ["old"], ["new"])


def test_a_spike_in_the_first_draw_hides_nothing():
    spikes = draws() * (torch.arange(DRAWS) % 2 > 0)
    plain = subsampled(lambda x: 5)
    with pytest.raises(ValueError, match="'rows' takes rows at random"):
        Posterior.from_draws(plain.model, {"w": spikes}).function(torch.linspace(0, 1, 20))

    def gated(x, y=None):
        gate = pyro.sample("gate", dist.Bernoulli(0.1))
        slab = pyro.sample("slab", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(gate * slab * x, 1.0), obs=y)

    on = (torch.arange(DRAWS) % 2 > 0).float()
    for known in ({"gate": on, "slope": draws()}, {"slab": draws(), "gamma": on}):
        with pytest.raises(ValueError, match="draws are of"):
            Posterior.from_draws(gated, known).function(torch.ones(3), site="y")


def test_draws_from_all_over_are_looked_at():
    """Of a chain whose first half has the spike alone, in which rows do not show."""
    late = draws() * (torch.arange(DRAWS) >= DRAWS // 2)
    posterior = Posterior.from_draws(subsampled(lambda x: 5).model, {"w": late})
    with pytest.raises(ValueError, match="'rows' takes rows at random"):
        posterior.function(torch.linspace(0, 1, 20))


def test_rows_that_the_model_gives_its_plate_are_no_accident():
    """Nor where it gives their number too."""

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x), subsample_size=5, subsample=torch.arange(5)) as rows:
            pyro.sample("y", dist.Normal(w * x[rows], 1.0), obs=y)

    x = torch.linspace(0, 1, 20)
    found = Posterior.from_draws(model, {"w": draws()}).function(x)
    torch.testing.assert_close(found, draws()[:, None] * x[:5])


def test_random_numbers_that_are_not_torchs_are_not_taken_for_rows():
    """They change from run to run, whichever rows the plate takes."""
    rng, x = np.random.default_rng(0), torch.linspace(0, 1, 5)

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 20, subsample_size=len(x)):
            pyro.sample("y", dist.Normal(w * x + 0.1 * rng.uniform(), 1.0), obs=y)

    found = Posterior.from_draws(model, {"w": draws()}).function(x)
    assert ((found - draws()[:, None] * x).abs() <= 0.1 + 1e-6).all()


def test_left_over_draws_are_no_obstacle_where_data_hang_on_each_other():
    def model(x, a=None, b=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            a = pyro.sample("a", dist.Normal(w * x, 1.0), obs=a)
            pyro.sample("b", dist.Normal(a * w, 1.0), obs=b)

    x, data = torch.ones(3), {"a": torch.zeros(3), "b": torch.ones(3)}
    both = Posterior.from_draws(model, {"w": draws(), "w_decentered": draws()})
    plain = Posterior.from_draws(model, {"w": draws()})
    found, expected = (p.log_likelihood(x, observed_data=data)["b"] for p in (both, plain))
    torch.testing.assert_close(found, expected)


def test_outputs_that_are_impossible_stay_so():
    logits = torch.tensor([[[math.inf, -math.inf]]] * 3)
    found = mixture(torch.distributions.Independent(dist.Bernoulli(logits=logits), 1))
    assert found.log_prob(torch.tensor([[1.0, 0.0]])).item() == pytest.approx(0)
