"""Implicit processes: their draws are those of the Pyro models that they are."""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro import poutine

from guides.core.perceptron import perceptron
from guides.implicit import FunctionSite
from zoo.models import BNNProcess, NeuralSampler
from zoo.models.implicit_process import LearnedNetwork, posterior_network

X = torch.tensor([[0.3, -1.0], [1.0, 0.5], [-2.0, 0.1]])
PROCESSES = {
    "network": lambda: BNNProcess(2, (4, 3)),
    "network, shared parameters": lambda: BNNProcess(2, (4, 3), sharing="layer"),
    "network, fixed biases": lambda: BNNProcess(2, (4,), bias_scale=0.0),
    "neural sampler": lambda: NeuralSampler(2, (5, 4), noise_features=3),
}


@pytest.fixture(params=PROCESSES)
def process(request):
    return PROCESSES[request.param]()


def test_functions_have_the_law_of_the_pyro_model(process):
    many = process.draw(100_000)(X).detach().double()
    few = FunctionSite(process).draw(5000)(X).detach().double()
    spread = many.std(0)
    assert ((few.mean(0) - many.mean(0)).abs() < 5 * spread / 5000**0.5).all()
    torch.testing.assert_close(few.std(0), spread, rtol=0.15, atol=0)
    torch.testing.assert_close(few.T.corrcoef(), many.T.corrcoef(), rtol=0, atol=0.1)


def test_functions_keep_their_random_numbers(process):
    functions = process.draw(7)
    values = functions(X)
    assert values.shape == (7, 3)
    torch.testing.assert_close(functions(X[1:]), values[:, 1:])
    assert values[:, 0].unique().numel() == 7


def test_gradients_reach_every_parameter_and_the_inputs(process):
    x = X.clone().requires_grad_()
    process.draw(50)(x).square().sum().backward()
    assert x.grad.abs().sum() > 0
    for name, parameter in process.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_sites_of_the_pyro_model():
    nodes = poutine.trace(BNNProcess(2, (4,))).get_trace(X).nodes
    shapes = {name: tuple(nodes[name]["value"].shape) for name in ("w1", "b1", "w2", "b2", "f")}
    assert shapes == {"w1": (4, 2), "b1": (4,), "w2": (1, 4), "b2": (1,), "f": (3,)}
    assert "b1" not in poutine.trace(BNNProcess(2, (4,), bias_scale=0.0)).get_trace(X).nodes
    nodes = poutine.trace(NeuralSampler(2, noise_features=3)).get_trace(X).nodes
    assert tuple(nodes["e"]["value"].shape) == (3,)


def test_values_at_given_weights():
    """By hand: one hidden unit, leaky ReLU of slope 0.2."""
    weights = {name: torch.tensor(value) for name, value in {
        "w1": [[1.0, 2.0]], "b1": [0.5], "w2": [[3.0]], "b2": [-1.0],
    }.items()}  # fmt: skip
    found = poutine.condition(BNNProcess(2, (1,)), weights)(X)
    hidden = X @ torch.tensor([1.0, 2.0]) + 0.5
    torch.testing.assert_close(found, 3 * torch.where(hidden > 0, hidden, 0.2 * hidden) - 1)


def test_parameters_by_weight_and_by_layer():
    count = sum(p.numel() for p in BNNProcess(2, (4,)).parameters())
    assert count == 2 * (2 * 4 + 4 + 4 + 1)
    assert sum(p.numel() for p in BNNProcess(2, (4,), sharing="layer").parameters()) == 2 * 4
    fixed = BNNProcess(2, (4,), sharing="layer", bias_scale=0.0)
    assert sum(p.numel() for p in fixed.parameters()) == 2 * 2 + 4 + 1


@pytest.mark.slow
def test_the_start_is_the_fan_in_prior():
    process = BNNProcess(400, (100,), sharing="layer", bias_scale=0.5, dtype=torch.float64)
    weight, bias = process.layers[0].draw(300)
    assert weight.std().item() == pytest.approx(400**-0.5, rel=0.01)
    assert bias.std().item() == pytest.approx(0.5, rel=0.02)
    assert weight.dtype == process.draw(2)(torch.zeros(1, 400)).dtype == torch.float64


@pytest.mark.parametrize("sharing", ["weight", "layer"])
def test_sds_start_at_the_fan_in_and_at_one(sharing):
    for layer, inputs in zip(BNNProcess(9, (4,), sharing=sharing).layers, (9, 4), strict=True):
        weight, bias = layer.weight_log_sd.exp(), layer.bias_log_sd.exp()
        torch.testing.assert_close(weight, torch.full_like(weight, inputs**-0.5))
        torch.testing.assert_close(bias, torch.ones_like(bias))
    for layer in BNNProcess(9, (4,), sharing=sharing, scale=0.3, bias_scale=0.7).layers:
        weight, bias = layer.weight_log_sd.exp(), layer.bias_log_sd.exp()
        torch.testing.assert_close(weight, torch.full_like(weight, 0.3))
        torch.testing.assert_close(bias, torch.full_like(bias, 0.7))


def test_means_start_near_zero_and_not_at_it():
    """Sd of 0.05, to five standard errors."""
    mean = BNNProcess(100, (50,)).layers[0].weight_mean
    assert mean.std().item() == pytest.approx(0.05, rel=5 / (2 * 5000) ** 0.5)


def test_neural_samplers_span_as_many_dimensions_as_noise():
    values = NeuralSampler(2, noise_features=3, dtype=torch.float64).draw(100)(torch.randn(40, 2))
    assert torch.linalg.matrix_rank(values, rtol=1e-8) == 3


def test_biases_of_a_neural_sampler_start_at_a_tenth_and_those_of_a_classifier_at_zero():
    sampler = NeuralSampler(2, (2000,))
    for first in (sampler.of_inputs[0], sampler.of_noise[0]):
        assert first.bias.std().item() == pytest.approx(0.1, rel=5 / (2 * 2000) ** 0.5)  # 5 standard errors
    assert (perceptron((2, 3, 1))[0].bias == 0).all()


def test_dropout_of_a_neural_sampler_is_for_training():
    sampler = NeuralSampler(2, (30,), dropout=0.3)
    functions = sampler.draw(4)
    assert torch.equal(functions(X), functions(X))
    assert not torch.equal(sampler.train().draw(4)(X), sampler.draw(4)(X))
    functions = sampler.draw(4)
    sampler.of_inputs.eval()  # the network of the noise has dropout of its own, anew at every call too
    assert not torch.equal(functions(X), functions(X))
    sampler.train()
    first, (dropout, _), _ = sampler.of_inputs
    left_out = (dropout(first(X.repeat(400, 1))) == 0).double().mean().item()
    assert left_out == pytest.approx(0.3, abs=5 * (0.3 * 0.7 / (400 * 3 * 30)) ** 0.5)  # 5 standard errors


def test_float64_inputs():
    for process in (BNNProcess(2), NeuralSampler(2)):
        assert process.draw(2)(X.double()).dtype == torch.float32


def test_refusals():
    for make in (BNNProcess, NeuralSampler):
        with pytest.raises(ValueError, match=r"widths\[1\] must be a positive whole number, got 0"):
            make(1, (3, 0))
        with pytest.raises(ValueError, match=r"process of 2 column\(s\) needs x \[N, 2\], got \[5, 1\]"):
            make(2).draw(3)(torch.zeros(5, 1))
        with pytest.raises(ValueError, match=r"needs x \[N, 2\], got \[2\]"):
            make(2).draw(3)(torch.zeros(2))
    with pytest.raises(ValueError, match="sharing"):
        BNNProcess(2, sharing="none")
    with pytest.raises(ValueError, match="bias_scale"):
        BNNProcess(2, bias_scale=-1.0)
    with pytest.raises(ValueError, match="scale must be positive"):
        BNNProcess(2, scale=0.0)
    with pytest.raises(ValueError, match="noise_features"):
        NeuralSampler(2, noise_features=0)
    with pytest.raises(ValueError, match=r"dropout must lie in \[0, 1\), got 1"):
        NeuralSampler(2, dropout=1)


def test_a_second_draw_is_another():
    pyro.set_rng_seed(3)
    process = BNNProcess(2)
    assert not torch.equal(process.draw(3)(X), process.draw(3)(X))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("options", [{}, {"sharing": "layer"}, {"bias_scale": 0.0}])
@pytest.mark.parametrize("noise_scale", [None, 0.3])
def test_a_learned_network_and_its_twin_have_the_same_density(options, noise_scale):
    import jax
    import jax.numpy as jnp
    from numpyro.infer.util import log_density

    model = LearnedNetwork(BNNProcess(2, (4, 3), dtype=torch.float64, **options), noise_scale)
    assert not any(p.requires_grad for p in model.parameters())
    x = X.double()
    trace = poutine.trace(model).get_trace(x)
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        values = {
            name: jnp.asarray(site["value"].numpy())
            for name, site in trace.nodes.items()
            if site["type"] == "sample" and name not in ("data", "y", "f")
        }
        y = jnp.asarray(trace.nodes["y"]["value"].numpy())
        # one program: the same operations one by one are compiled one by one
        density = jax.jit(lambda x, y, values: log_density(model.twin, (x, y), {}, values)[0])
        theirs = density(jnp.asarray(x.numpy()), y, values)
    finally:
        jax.config.update("jax_enable_x64", before)
    assert trace.log_prob_sum().item() == pytest.approx(float(theirs), abs=1e-8)


def test_likelihood_of_a_minibatch_is_scaled_up_under_a_learned_prior():
    model = LearnedNetwork(BNNProcess(2, (4,)))
    assert poutine.trace(model).get_trace(X, torch.zeros(3), 12).nodes["y"]["scale"] == 4


def test_a_posterior_starts_at_one_network():
    network = posterior_network(3, (6,))
    f = network.draw(2000)(torch.randn(5, 3))
    assert (f.std(0) < 0.6).all()
    assert f.mean(0).abs().max() > f.std(0).max() / 2000**0.5
    assert network.layers[0].weight_mean.std().item() == pytest.approx(3**-0.5, rel=0.6)


def test_means_of_a_posterior_start_by_the_fan_in_and_all_sds_at_a_tenth():
    """To 4.5 standard errors."""
    for layer, inputs in zip(posterior_network(100, (400, 25)).layers, (100, 400, 25), strict=True):
        count = layer.weight_mean.numel()
        assert abs(layer.weight_mean.std() * inputs**0.5 - 1) < 4.5 / (2 * count) ** 0.5
        for log_sd in (layer.weight_log_sd, layer.bias_log_sd):
            torch.testing.assert_close(log_sd.exp(), torch.full_like(log_sd, 0.1))
