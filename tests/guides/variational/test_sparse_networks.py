"""Mean and median probability networks against draws, and exported networks against the dense ones."""

from __future__ import annotations

import copy
import math

import pyro
import pytest
import torch
import torch.nn.functional as F
from pyro import distributions as dist

from guides import (
    AutoConcreteDropout,
    AutoDropout,
    AutoGroupNormalJeffreys,
    AutoMeanField,
    AutoMNF,
    AutoSpikeSlab,
    AutoSpikeSlabMVN,
    SpikeSlab,
)
from guides.variational.sparse_networks import (
    SparseNetwork,
    active_paths,
    layers_of,
    mean_weights,
    median_probability_model,
    median_weights,
)

SIZES = (7, 9, 8, 3)


def network(prior):
    def model(x, y=None, size=None):
        hidden = x
        for i, (inputs, outputs) in enumerate(zip(SIZES[:-1], SIZES[1:], strict=True), start=1):
            weight = pyro.sample(f"w{i}", prior((outputs, inputs)))
            bias = pyro.sample(f"b{i}", dist.Normal(torch.zeros(outputs), 1.0).to_event(1))
            hidden = F.linear(F.relu(hidden) if i > 1 else hidden, weight, bias)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=hidden), obs=y)
        return hidden

    return model


SPIKES = network(lambda shape: SpikeSlab(torch.tensor(0.3), 0.0, 1.0).expand(shape).to_event(2))
NORMAL = network(lambda shape: dist.Normal(torch.zeros(shape), 1.0).to_event(2))


def ready(guide):
    """Set up, with parameters that are all over the place."""
    torch.manual_seed(1)
    guide.setup(torch.randn(5, SIZES[0]), torch.zeros(5, dtype=torch.long))
    with torch.no_grad():
        for name, parameter in guide.named_parameters():
            if name in ("loc", "log_scale", "logits", "rate_logits", "z_loc"):
                parameter.add_(0.5 * torch.randn_like(parameter))
    return guide


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("guide", "model"),
    [
        (AutoSpikeSlab, SPIKES),
        (AutoMNF, SPIKES),
        (AutoMNF, NORMAL),
        (AutoMeanField, NORMAL),
        (AutoDropout, NORMAL),
        (AutoConcreteDropout, NORMAL),
        (AutoGroupNormalJeffreys, NORMAL),
        (AutoSpikeSlabMVN, SPIKES),
    ],
)
def test_mean_weights_are_the_mean_of_many_draws(guide, model):
    fitted = ready(guide(model))
    means, draws = mean_weights(fitted), fitted.draws(4000, seed=3)
    assert list(means) == list(fitted.sites)
    for name, mean in means.items():
        assert mean.shape == draws[name].shape[1:]
        error = draws[name].std(0) / math.sqrt(4000)
        worst = ((draws[name].mean(0) - mean).abs() / (error + 1e-6)).max().item()
        assert worst < 6.5, name


@pytest.mark.parametrize("model", [SPIKES, NORMAL])
def test_mean_weights_behind_a_flow_have_the_mean_of_its_multipliers(model):
    guide = ready(AutoMNF(model))
    with torch.no_grad():
        for module in guide.multipliers:
            module.base[0] += torch.linspace(-0.8, 0.8, module.base.shape[1])
    means, draws = mean_weights(guide), guide.draws(4000, seed=3)
    for name in ("w1", "w2", "w3"):
        # of the draws, and of the 4096 multipliers behind the mean
        error = draws[name].std(0) * math.sqrt(2 / 4000)
        worst = ((draws[name].mean(0) - means[name]).abs() / (error + 1e-6)).max().item()
        assert worst < 6.5, name


def test_mean_of_a_constrained_site_is_in_its_own_space():
    def model(x, y=None):
        scale = pyro.sample("scale", dist.Gamma(torch.tensor(2.0), 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x, scale), obs=y)

    guide = AutoMeanField(model)
    guide.setup(torch.zeros(3), torch.zeros(3))
    with torch.no_grad():
        guide.loc.fill_(1.0)
        guide.log_scale.fill_(math.log(0.3))
    assert mean_weights(guide)["scale"].item() == pytest.approx(math.exp(1 + 0.045), rel=0.07)


@pytest.mark.parametrize("kind", [AutoSpikeSlab, AutoMNF])
def test_median_probability_model_keeps_what_is_above_one_half(kind):
    guide = ready(kind(SPIKES, init_inclusion="mild"))
    before = {name: value.clone() for name, value in guide.state_dict().items() if name != "_extra_state"}
    median = median_probability_model(guide)
    draws, mean = median.draws(50, seed=0), mean_weights(median)
    for name, probs in guide.inclusion_probabilities().items():
        kept = probs > 0.5
        assert 0 < kept.sum() < kept.numel()
        assert (draws[name][:, ~kept] == 0).all()
        assert (draws[name][:, kept] != 0).all()
        assert (mean[name][~kept] == 0).all()
        if kind is AutoSpikeSlab:  # the slab's mean, not the mean of spike and slab
            torch.testing.assert_close(mean[name][kept], guide._detached()[name][0][kept])
    assert all(
        torch.equal(before[name], value) for name, value in guide.state_dict().items() if name in before
    )


@pytest.mark.parametrize("kind", [AutoSpikeSlab, AutoMNF])
def test_a_copy_of_a_copy_is_one_more_guide(kind):
    guide = ready(kind(SPIKES))
    twice = median_probability_model(median_probability_model(guide))
    once = mean_weights(median_probability_model(guide))
    assert all(torch.equal(value, once[name]) for name, value in mean_weights(twice).items())
    again = copy.deepcopy(copy.deepcopy(guide))
    x, y = torch.randn(5, SIZES[0]), torch.zeros(5, dtype=torch.long)
    torch.manual_seed(0)
    expected = guide.elbo().loss(SPIKES, guide, x, y)
    torch.manual_seed(0)
    assert again.elbo().loss(SPIKES, again, x, y) == expected


@pytest.mark.parametrize("kind", [AutoSpikeSlab, AutoMNF, AutoSpikeSlabMVN])
def test_median_weights_are_the_slabs_means_above_one_half(kind):
    """Also where inclusions are drawn themselves: then the probability is that over their law."""
    guide = ready(kind(SPIKES, init_inclusion="mild"))
    weights = median_weights(guide)
    inclusion, mean = guide.inclusion_probabilities(), mean_weights(guide)
    assert weights.keys() == guide.sites.keys() > inclusion.keys()
    for name, value in weights.items():
        if name not in inclusion:
            torch.testing.assert_close(value, mean[name])
            continue
        kept = inclusion[name] > 0.5
        assert 0 < kept.sum() < kept.numel()
        assert (value[~kept] == 0).all()
        # the mean of a spike and slab is its inclusion probability times the slab's mean
        torch.testing.assert_close(value[kept] * inclusion[name][kept], mean[name][kept])


def test_median_probability_model_needs_inclusions():
    with pytest.raises(ValueError, match="AutoMeanField has no inclusion"):
        median_probability_model(ready(AutoMeanField(NORMAL)))
    with pytest.raises(NotImplementedError, match="AutoSpikeSlabMVN draws.*median_weights"):
        median_probability_model(ready(AutoSpikeSlabMVN(SPIKES)))


# ------------------------------------------------------------------------------------------------- export


def sparse_weights(share: float, seed: int, sizes=SIZES) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for i, (inputs, outputs) in enumerate(zip(sizes[:-1], sizes[1:], strict=True), start=1):
        weight = torch.randn(outputs, inputs, generator=generator)
        weights[f"w{i}"] = weight * (torch.rand(outputs, inputs, generator=generator) < share)
        weights[f"b{i}"] = torch.randn(outputs, generator=generator)
    return weights


def dense(weights, x, activation=F.relu):
    for i, (weight, bias) in enumerate(layers_of(weights)):
        x = F.linear(activation(x) if i else x, weight, bias)
    return x


@pytest.mark.parametrize("form", ["sparse", "small"])
@pytest.mark.parametrize("share", [0.0, 0.08, 0.15, 0.3, 1.0])
@pytest.mark.parametrize("activation", [F.relu, torch.tanh])
def test_exported_networks_compute_the_same(form, share, activation):
    x = torch.randn(20, SIZES[0], generator=torch.Generator().manual_seed(0))
    for seed in range(6):
        weights = sparse_weights(share, seed)
        program = SparseNetwork(weights, form, activation)
        torch.testing.assert_close(program(x), dense(weights, x, activation), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["sparse", "small"])
def test_numbers_of_an_exported_network_are_buffers(form, tmp_path):
    """They are cast, saved and loaded like those of any module."""
    weights, x = sparse_weights(0.15, 0), torch.randn(9, SIZES[0])
    program = SparseNetwork(weights, form)
    torch.save(program.state_dict(), tmp_path / "state.pt")
    other = SparseNetwork({name: 2 * value for name, value in weights.items()}, form)
    assert not torch.allclose(other(x), program(x))
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(other(x), program(x))
    expected, size = dense(weights, x), program.nbytes
    torch.testing.assert_close(program.double()(x.double()), expected.double(), rtol=1e-5, atol=1e-5)
    assert program.nbytes > size


def test_small_network_has_only_units_on_a_path():
    """By hand: unit 0 is alive; 1 has no input; 2 has no output; 3 reaches only a unit without output."""
    weights = {
        "w1": torch.tensor([[1.0, 0, 0], [0, 0, 0], [1, 1, 0], [0, 1, 0]]),
        "b1": torch.tensor([0.1, 2.0, 0.3, 0.4]),
        "w2": torch.tensor([[3.0, 5, 0, 0], [0, 0, 0, 7]]),
        "b2": torch.tensor([0.5, 0.6]),
        "w3": torch.tensor([[2.0, 0]]),
        "b3": torch.tensor([0.7]),
    }
    program = SparseNetwork(weights, "small")
    assert program.widths == (1, 1, 1, 1)
    assert program.inputs.tolist() == [0]
    assert program.layers[1][1].item() == pytest.approx(0.5 + 5 * 2.0)  # the constant of unit 1 moved here
    assert active_paths(weights) == pytest.approx(3 / (12 + 8 + 2))
    x = torch.randn(9, 3)
    torch.testing.assert_close(program(x), dense(weights, x))
    assert program.nbytes == 4 * (3 + 3) + 8


def test_sizes_shrink_with_the_density():
    weights = sparse_weights(0.02, 0, (200, 300, 250, 10))
    full = sum(4 * value.numel() for value in weights.values())
    sparse, small = SparseNetwork(weights, "sparse"), SparseNetwork(weights, "small")
    kept = sum((value != 0).sum().item() for name, value in weights.items() if name[0] == "w")
    rows = sum(len(value) + 1 for name, value in weights.items() if name[0] == "w")
    assert sparse.nbytes == 12 * kept + 8 * rows + 4 * (300 + 250 + 10)
    assert sparse.nbytes < 0.1 * full
    assert small.nbytes < full
    assert sparse.widths == (200, 300, 250, 10)


def test_export_does_not_share_memory_with_its_source():
    weights = sparse_weights(1.0, 0)
    program, x = SparseNetwork(weights, "small"), torch.ones(2, SIZES[0])
    before = program(x)
    for value in weights.values():
        value.zero_()
    torch.testing.assert_close(program(x), before)


def test_wrong_networks_are_refused():
    weights = sparse_weights(1.0, 0)
    with pytest.raises(ValueError, match="form must be"):
        SparseNetwork(weights, "tiny")
    with pytest.raises(ValueError, match="w1, b1"):
        SparseNetwork({"w1": weights["w1"], "bias": weights["b1"]})
    with pytest.raises(ValueError, match="do not fit"):
        SparseNetwork({**weights, "w2": torch.zeros(8, 4)})
    with pytest.raises(ValueError, match="not a stack"):
        SparseNetwork({name: value.unsqueeze(0) for name, value in weights.items()})
