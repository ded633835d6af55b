"""Guides inside Pyro's ``AutoGuideList``, and on models whose data are elsewhere."""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoGuideList, AutoNormal

from guides import AutoConcrete, AutoMeanField, AutoSpikeSlab, PathwiseGradientError, SpikeSlab

ROWS, NOISE = 40, 0.5


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 3, generator=generator)
    return x, x @ torch.tensor([1.0, -1.0, 0.5]) + NOISE * torch.randn(ROWS, generator=generator)


def averaged(prior):
    """Every datum sees the mean over rows: ``y ~ N(A (x w), noise^2)`` with ``A = 1/N`` everywhere."""

    def model(x, y=None):
        w = pyro.sample("w", prior)
        mean = (x @ w).mean().expand(len(x))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, NOISE), obs=y)

    return model


def rowwise(prior, returns):
    def model(x, y=None):
        w = pyro.sample("w", prior)
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        mean = x @ w + b
        if y is not None:
            with pyro.plate("data", len(x)):
                pyro.sample("y", dist.Normal(mean, NOISE), obs=y)
        return returns(mean)

    return model


def normal():
    return dist.Normal(torch.zeros(3), 1.0).to_event(1)


def spike_slab():
    return SpikeSlab(0.5).expand([3]).to_event(1)


def in_list(model, make):
    guide = AutoGuideList(model)
    ours = make(poutine.block(model, expose=["w"]))
    guide.append(ours)
    return guide, ours


def test_rows_that_meet_are_seen_through_a_block():
    x, y = data()
    guide, ours = in_list(averaged(normal()), AutoMeanField)
    guide(x, y)
    assert not ours.sites["w"].by_moments


@pytest.mark.slow
def test_rows_that_meet_have_the_best_mean_field_behind_a_block():
    """The best mean field has the variances 1 / diag(precision): with noise of its own for every row the sd
    would be two to three times as large.
    """
    x, y = data()
    model = averaged(normal())
    guide, ours = in_list(model, AutoMeanField)
    svi = SVI(
        model, guide, pyro.optim.Adam({"lr": 0.02}), Trace_ELBO(num_particles=4, vectorize_particles=False)
    )
    for _ in range(400):
        svi.step(x, y)
    column = x.mean(0)
    best = (1 + ROWS * column**2 / NOISE**2) ** -0.5
    torch.testing.assert_close(ours.site_distribution("w").scale, best, rtol=0.15, atol=0)
    assert not ours.sites["w"].by_moments


def test_spikes_whose_rows_meet_are_refused_in_a_list():
    x, y = data()
    model = averaged(spike_slab())
    with pytest.raises(PathwiseGradientError, match="site 'w'.*rows of its layer's output meet"):
        in_list(model, AutoSpikeSlab)[0](x, y)
    in_list(model, AutoConcrete)[0](x, y)


@pytest.mark.parametrize("elbo", [Trace_ELBO, TraceMeanField_ELBO])
def test_rows_apart_keep_local_reparameterization_in_a_list(elbo):
    x, y = data()
    model = rowwise(spike_slab(), lambda mean: None)
    guide, ours = in_list(model, AutoSpikeSlab)
    guide.append(AutoNormal(poutine.block(model, hide=["w"])))
    SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), elbo()).step(x, y)
    assert ours.sites["w"].by_moments


def test_block_within_blocks():
    x, y = data()
    blocked = poutine.block(poutine.scale(poutine.block(averaged(normal()), hide=["y"]), 2.0), hide=["none"])
    guide = AutoMeanField(blocked)
    guide.setup(x, y)
    assert not guide.sites["w"].by_moments


@pytest.mark.parametrize(
    ("returns", "by_moments"),
    [
        pytest.param(lambda mean: mean, True, id="rows"),
        pytest.param(lambda mean: {"logits": (mean,)}, True, id="nested"),
        pytest.param(lambda mean: mean - mean.mean(), False, id="centred"),
        pytest.param(lambda mean: None, False, id="nothing"),
        pytest.param(lambda mean: mean > 0, False, id="no numbers"),
    ],
)
def test_without_data_the_return_value_tells(returns, by_moments):
    x, _ = data()
    guide = AutoMeanField(rowwise(normal(), returns))
    guide.setup(x)
    assert guide.sites["w"].by_moments == by_moments


def test_spikes_without_data_or_return_value_are_refused():
    x, _ = data()
    with pytest.raises(PathwiseGradientError, match="site 'w'.*no data and no return value.*AutoConcrete"):
        AutoSpikeSlab(rowwise(spike_slab(), lambda mean: None)).setup(x)


def fitted_list():
    x, y = data()
    model = rowwise(spike_slab(), lambda mean: None)
    guide, ours = in_list(model, AutoSpikeSlab)
    other = AutoNormal(poutine.block(model, hide=["w"]))
    guide.append(other)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    for _ in range(20):
        svi.step(x, y)
    return guide, ours, other


def test_list_knows_medians_and_quantiles_of_all_its_parts():
    guide, ours, other = fitted_list()
    assert guide[0] is ours
    median, quantiles = guide.median(), guide.quantiles([0.1, 0.5, 0.9])
    assert set(median) == set(quantiles) == {"w", "b"}
    torch.testing.assert_close(median["w"], ours.median()["w"])
    torch.testing.assert_close(median["b"], other.median()["b"])
    torch.testing.assert_close(torch.as_tensor(quantiles["w"]), ours.quantiles([0.1, 0.5, 0.9])["w"])


def test_call_gives_a_tuple_in_the_order_of_names():
    x, y = data()
    guide = AutoMeanField(rowwise(normal(), lambda mean: None))
    values = guide(x, y)
    with torch.no_grad():
        found = guide.call(x, y)
    assert [value.shape for value in found] == [values[name].shape for name in sorted(values)]


def test_draws_of_a_list_by_predictive():
    guide, ours, other = fitted_list()
    x, _ = data()
    draws = Predictive(rowwise(spike_slab(), lambda mean: None), guide=guide, num_samples=40)(x, None)
    assert draws["w"].shape == (40, 3)
    assert draws["b"].shape == (40,)


# ------------------------------------------------------------------------------- what set-up did not see


def test_data_that_come_later_are_asked_about():
    """Set up on the net alone, whose return value keeps rows apart; the likelihood joins them."""
    x, y = data()

    def joined(x, y=None):
        w = pyro.sample("w", normal())
        mean = x @ w
        if y is not None:
            with pyro.plate("data", len(x)):
                pyro.sample("y", dist.Normal(mean.mean().expand(len(x)), NOISE), obs=y)
        return mean

    guide = AutoMeanField(joined)
    guide(x)
    assert guide.sites["w"].by_moments
    guide(x, y)
    assert not guide.sites["w"].by_moments


def test_one_row_says_nothing_about_two():
    x, y = data()
    guide = AutoMeanField(averaged(normal()))
    guide(x[:1], y[:1])
    guide(x, y)
    assert not guide.sites["w"].by_moments
    spikes = AutoSpikeSlab(averaged(spike_slab()))
    spikes(x[:1], y[:1])
    with pytest.raises(PathwiseGradientError, match="rows of its layer's output meet"):
        spikes(x, y)


def test_an_observation_elsewhere_does_not_hide_the_return_value():
    x, _ = data()

    def regularised(x):
        w = pyro.sample("w", normal())
        pyro.sample("other", dist.Normal(0.0, 1.0), obs=torch.tensor(0.3))
        return (x @ w).mean().expand(len(x))

    guide = AutoMeanField(regularised)
    guide(x)
    assert not guide.sites["w"].by_moments


def test_rows_that_meet_behind_a_rectifier_are_seen_whatever_the_start():
    """A unit that is dead in one direction is alive in the other."""
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(7))

    def summed(x, y=None):
        w = pyro.sample("w", normal())
        total = torch.relu(x @ w).sum()
        pyro.sample("y", dist.Normal(total, NOISE), obs=y)

    for seed in range(20):
        pyro.set_rng_seed(seed)
        guide = AutoMeanField(summed)
        guide(x, torch.tensor(1.0))
        assert not guide.sites["w"].by_moments
