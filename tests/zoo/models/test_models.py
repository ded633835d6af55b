"""Every model has one density in two languages, and predicts minibatches of a larger set without bias."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
import torch
from numpyro.infer.util import log_density
from pyro import poutine
from pyro.infer import Predictive

from guides import AutoSpikeSlab
from zoo.models.bnn import BNN, PBPNetwork
from zoo.models.latent_binary import SpikeSlabLinear, SpikeSlabLogistic
from zoo.models.lenet import LeNet
from zoo.models.weights import FanIn, GaussianWeights, SpikeSlabWeights, numpyro_spike_slab

MODELS = {
    "bnn": BNN(3, widths=(5,)),
    "bnn-deep-tanh": BNN(3, widths=(5, 4), activation="tanh"),
    "bnn-leaky": BNN(3, widths=(5,), activation="leaky-relu"),
    "bnn-fixed-noise": BNN(3, widths=(5,), noise_scale=0.3),
    "bnn-bernoulli": BNN(3, widths=(5,), likelihood="bernoulli"),
    "bnn-categorical": BNN(3, widths=(5,), likelihood="categorical", outputs=4),
    "pbp-bnn": PBPNetwork(3, widths=(5,)),
    "pbp-bnn-deep": PBPNetwork(3, widths=(5, 4)),
    "pbp-bnn-fixed-noise": PBPNetwork(3, widths=(5,), noise_scale=0.3),
    "pbp-bnn-no-bias": PBPNetwork(3, widths=(5, 4), bias=False),
    "pbp-bnn-no-bias-fixed-noise": PBPNetwork(3, widths=(5,), noise_scale=0.3, bias=False),
    "spike-slab-bnn": BNN(3, widths=(5,), weights=SpikeSlabWeights(0.3)),
    "bnn-scaled": BNN(3, widths=(5,), weights=GaussianWeights(scale=0.7)),
    "spike-slab-bnn-scaled": BNN(3, widths=(5,), weights=SpikeSlabWeights(0.3, scale=0.7)),
    "spike-slab-bnn-by-layer": BNN(
        3, widths=(5,), weights=SpikeSlabWeights(0.3, FanIn((2.0, 0.5))), bias_scale=FanIn(0.3)
    ),
    "bnn-biases-by-layer": BNN(3, widths=(5,), bias_scale=(0.5, 2.0)),
    "spike-slab-linear": SpikeSlabLinear(3, inclusion=0.3),
    "spike-slab-logistic": SpikeSlabLogistic(3, inclusion=0.3),
}


@pytest.fixture
def inputs() -> torch.Tensor:
    return torch.randn(7, 3, dtype=torch.float64)


@pytest.fixture
def double_precision():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", MODELS)
def test_pyro_model_and_numpyro_twin_have_the_same_density(name, inputs, double_precision):
    model = MODELS[name]

    @jax.jit  # one program: the same operations one by one are compiled one by one
    def twin_density(x, y, values):
        return log_density(model.twin, (x, y), {}, values)[0]

    for _ in range(5):
        trace = poutine.trace(model).get_trace(inputs)
        ours = trace.log_prob_sum().item()
        values = {
            node: jnp.asarray(site["value"].numpy())
            for node, site in trace.nodes.items()
            if site["type"] == "sample" and node not in ("data", "y")
        }
        y = jnp.asarray(trace.nodes["y"]["value"].numpy())
        theirs = twin_density(jnp.asarray(inputs.numpy()), y, values)
        assert np.isclose(ours, float(theirs), rtol=0, atol=1e-8)


#: One of each kind: that the others' outputs agree is seen by their densities.
DRAWN = (
    "bnn-deep-tanh", "bnn-categorical", "pbp-bnn", "pbp-bnn-no-bias", "spike-slab-bnn-by-layer",
    "spike-slab-linear", "spike-slab-logistic",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_twin_draws_from_the_same_prior(name, inputs):
    """The mean of the log mean square output at prior draws agrees, to five standard errors."""
    from numpyro.infer import Predictive

    model, draws = MODELS[name], 400
    torch_values = torch.stack([model(inputs.float()).double().square().mean() for _ in range(draws)]).log()

    def twin(x):
        import numpyro

        numpyro.deterministic("f", model.twin(x))

    outputs = Predictive(twin, num_samples=draws)(jax.random.PRNGKey(1), jnp.asarray(inputs.float().numpy()))[
        "f"
    ]
    squares = np.square(np.asarray(outputs, dtype=np.float64)).reshape(draws, -1).mean(1)
    if (
        squares == 0
    ).any() or torch_values.isinf().any():  # a sparse draw may be zero everywhere: compare its share
        a, b = (squares == 0).mean(), torch_values.isinf().double().mean().item()
        assert abs(a - b) < 5 * np.sqrt((a * (1 - a) + b * (1 - b)) / draws + 1 / draws**2)
        squares, torch_values = squares[squares > 0], torch_values[torch_values.isfinite()]
    jax_values = np.log(squares)
    se = np.sqrt(torch_values.var().item() / len(torch_values) + jax_values.var() / len(jax_values))
    assert abs(torch_values.mean().item() - jax_values.mean()) < 5 * se


def test_fixed_noise_has_no_noise_site(inputs):
    sites = poutine.trace(MODELS["bnn-fixed-noise"]).get_trace(inputs).nodes
    assert "noise_precision" not in sites


@pytest.mark.parametrize(
    "name",
    ["bnn", "pbp-bnn", "pbp-bnn-no-bias", "spike-slab-linear", "spike-slab-logistic", "bnn-categorical"],
)
def test_log_likelihood_of_minibatches_averages_to_the_whole(name, inputs):
    """All 7 minibatches of one row: the prior counts once, the likelihood is scaled by N / batch."""
    model = MODELS[name]
    trace = poutine.trace(model).get_trace(inputs)
    y = trace.nodes["y"]["value"]
    values = {
        k: v["value"] for k, v in trace.nodes.items() if v["type"] == "sample" and k not in ("data", "y")
    }
    conditioned = poutine.condition(model, values)
    whole = poutine.trace(conditioned).get_trace(inputs, y).log_prob_sum()
    parts = [
        poutine.trace(conditioned).get_trace(inputs[i : i + 1], y[i : i + 1], len(y)).log_prob_sum()
        for i in range(len(y))
    ]
    assert torch.isclose(torch.stack(parts).mean(), whole, rtol=1e-10)


@pytest.mark.parametrize("model", [BNN(3, widths=(5,), bias_scale=(0.5, 2.0)), LeNet(64, bias_scale=(
    0.5, 2.0, 3.0, 4.0, 5.0))])  # fmt: skip
def test_biases_have_the_sds_of_their_layers(model):
    nodes = poutine.trace(model).get_trace(torch.rand(2, model.in_features)).nodes
    scales = [nodes[f"b{i}"]["fn"].base_dist.scale.unique().item() for i in range(1, len(model.layers) + 1)]
    assert scales == list(model.bias_scale)


def test_draws_of_the_spike_in_numpyro_are_as_many_as_it_says():
    """A share of 4000, to 4.5 standard errors; the slab has its sd."""
    law = numpyro_spike_slab()(0.2, 0.0, 3.0)
    drawn = np.asarray(jax.jit(lambda key: law.sample(key, (4000,)))(jax.random.PRNGKey(0)))
    included = drawn[drawn != 0]
    assert abs(len(included) / 4000 - 0.2) < 4.5 * (0.2 * 0.8 / 4000) ** 0.5
    assert abs(included.std() / 3 - 1) < 4.5 / (2 * len(included)) ** 0.5


def test_network_without_bias_has_no_extra_unit(inputs):
    """Layers are ``W z / sqrt(fan_in)``, and the function of inputs that are all zero is zero."""
    trace = poutine.trace(MODELS["pbp-bnn-no-bias"]).get_trace(inputs)
    w1, w2, w3 = (trace.nodes[name]["value"] for name in ("w1", "w2", "w3"))
    assert [tuple(w.shape) for w in (w1, w2, w3)] == [(5, 3), (4, 5), (1, 4)]
    hidden = torch.relu(inputs @ w1.T / 3**0.5)
    expected = torch.relu(hidden @ w2.T / 5**0.5) @ w3.T / 2
    torch.testing.assert_close(trace.nodes["_RETURN"]["value"], expected.squeeze(-1))
    assert (MODELS["pbp-bnn-no-bias"](torch.zeros(2, 3)) == 0).all()
    assert (MODELS["pbp-bnn-deep"](torch.zeros(2, 3)) != 0).all()


def test_unknown_activation_and_wrong_outputs_are_refused():
    with pytest.raises(ValueError, match="activation 'relo'"):
        BNN(3, activation="relo")
    with pytest.raises(ValueError, match="one output, not 3"):
        BNN(3, outputs=3)


def test_logistic_regression_is_what_it_says(inputs):
    trace = poutine.trace(SpikeSlabLogistic(3)).get_trace(inputs)
    w, b = trace.nodes["w"]["value"], trace.nodes["b"]["value"]
    prior = trace.nodes["w"]["fn"].base_dist
    assert (w.shape, b.shape) == ((3,), ())
    assert torch.equal(prior.probs.double(), torch.full((3,), 0.25, dtype=torch.float64))
    assert torch.equal(prior.scale, torch.ones(3, dtype=prior.scale.dtype))
    torch.testing.assert_close(trace.nodes["_RETURN"]["value"], inputs @ w + b)
    torch.testing.assert_close(trace.nodes["y"]["fn"].logits, inputs @ w + b)


# ------------------------------------------------------------------------------------------------ LeNet


@pytest.mark.parametrize(("pixels", "flat"), [(784, 768), (64, 192), (256, 48), (225, 432)])
def test_lenet_has_the_published_layers(pixels, flat):
    """28 x 28: 24, 12, 8, 4; 16 x 16: 12, 6, 2, 1; framed 8 x 8: 8, 4, 4, 2; 15 x 15: 15, 7, 7, 3."""
    model = LeNet(pixels)
    shapes = [(32, 1, 5, 5), (48, 32, 5, 5), (256, flat), (84, 256), (10, 84)]
    assert model.layers == shapes
    trace = poutine.trace(model).get_trace(torch.rand(3, pixels))
    assert [tuple(trace.nodes[f"w{i}"]["value"].shape) for i in range(1, 6)] == shapes
    assert [len(trace.nodes[f"b{i}"]["value"]) for i in range(1, 6)] == [32, 48, 256, 84, 10]
    assert trace.nodes["_RETURN"]["value"].shape == (3, 10)


@pytest.mark.parametrize("pixels", [784, 64])
def test_lenet_computes_what_torch_layers_compute(pixels):
    side, pad = round(pixels**0.5), 0 if pixels == 784 else 2
    x = torch.rand(2, pixels)
    trace = poutine.trace(LeNet(pixels)).get_trace(x)
    w, b = ([trace.nodes[f"{kind}{i}"]["value"] for i in range(1, 6)] for kind in "wb")
    layers = []
    for i in range(2):
        layer = torch.nn.Conv2d(*w[i].shape[1::-1], 5, padding=pad)
        layer.weight.data, layer.bias.data = w[i], b[i]
        layers += [layer, torch.nn.ReLU(), torch.nn.AvgPool2d(2)]
    layers.append(torch.nn.Flatten())
    for i in range(2, 5):
        layer = torch.nn.Linear(*w[i].shape[::-1])
        layer.weight.data, layer.bias.data = w[i], b[i]
        layers += [layer, torch.nn.ReLU()]
    expected = torch.nn.Sequential(*layers[:-1])(x.view(2, 1, side, side))
    torch.testing.assert_close(trace.nodes["_RETURN"]["value"], expected)
    torch.testing.assert_close(trace.nodes["y"]["fn"].logits, expected.log_softmax(-1))


def test_lenet_takes_all_draws_of_its_weights_at_once():
    x, y = torch.rand(2, 64), torch.tensor([3, 8])
    model = LeNet(64, weights=SpikeSlabWeights(0.3))
    guide = AutoSpikeSlab(model)
    guide.setup(x, y)
    sites = [*guide.sites, "_RETURN"]
    draws = Predictive(model, guide=guide, num_samples=3, parallel=True, return_sites=sites)(x)
    logits = draws.pop("_RETURN")
    for i in range(3):
        weights = {name: value[i].reshape(guide.sites[name].shape) for name, value in draws.items()}
        torch.testing.assert_close(logits[i].reshape(2, 10), poutine.condition(model, weights)(x))
    loss = guide.elbo(num_particles=3, vectorize_particles=True).loss_and_grads(model, guide, x, y)
    assert math.isfinite(loss)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", MODELS)
def test_particles_at_once_have_the_loss_of_one_after_the_other(name):
    """Of a guide that hardly varies, so that the losses are equal and not only their means."""
    model, x = MODELS[name], torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).to(torch.long if "categorical" in name else x.dtype)
    guide = AutoSpikeSlab(model)
    guide.setup(x, y)
    with torch.no_grad():
        for kind, parameter in guide.named_parameters():
            parameter.fill_({"log_scale": -15.0, "logits": 15.0}.get(kind, 0.3))
    one = guide.elbo().loss(model, guide, x, y)
    assert guide.elbo(num_particles=4, vectorize_particles=True).loss(model, guide, x, y) == pytest.approx(
        one, rel=1e-4
    )
    drawn = Predictive(model, guide=guide, num_samples=4, parallel=True)(x)
    assert drawn["y"].reshape(4, -1).shape == (4, 7)


@pytest.mark.parametrize("weights", [GaussianWeights(), SpikeSlabWeights(0.3)])
def test_filters_have_the_scale_of_their_inputs(weights):
    trace = poutine.trace(LeNet(64, weights=weights)).get_trace(torch.rand(2, 64))
    for name, inputs in (("w1", 25), ("w2", 800), ("w3", 192), ("w4", 256), ("w5", 84)):
        law = trace.nodes[name]["fn"]
        assert law.base_dist.scale.unique().item() == pytest.approx(inputs**-0.5)
        assert law.batch_shape == ()
    zeros = (trace.nodes["w3"]["value"] == 0).double().mean().item()
    assert zeros == pytest.approx(0.7, abs=0.02) if isinstance(weights, SpikeSlabWeights) else zeros == 0


def test_likelihood_of_a_minibatch_of_images_is_scaled_up():
    trace = poutine.trace(LeNet(64)).get_trace(torch.rand(2, 64), torch.tensor([3, 8]), 14)
    assert trace.nodes["y"]["scale"] == 7


def test_images_that_lenet_cannot_see_are_refused():
    with pytest.raises(ValueError, match="60 pixels are no square"):
        LeNet(60)
    with pytest.raises(ValueError, match="3 x 3 pixels is too small"):
        LeNet(9)


@pytest.mark.parametrize("weights", [GaussianWeights, partial(SpikeSlabWeights, 0.5)])
@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
def test_weights_have_a_positive_scale(weights, scale):
    with pytest.raises(ValueError, match=r"must be positive, got (0|-1|nan).*None is 1/sqrt\(inputs\)"):
        weights(scale=scale)


def test_a_leaky_relu_has_the_slope_of_the_published_networks():
    """0.2 in both languages, where torch's and JAX's own is 0.01."""
    model, minus = BNN(1, widths=(1,), activation="leaky-relu"), torch.tensor([[-1.0]])
    weights = {name: torch.ones(shape) for name, shape in (("w1", (1, 1)), ("w2", (1, 1)))}
    weights |= {name: torch.zeros(1) for name in ("b1", "b2")}
    assert poutine.condition(model, weights)(minus).item() == pytest.approx(-0.2)
    arrays = {name: jnp.array(value.numpy()) for name, value in weights.items()}
    with numpyro.handlers.seed(rng_seed=0), numpyro.handlers.substitute(data=arrays):
        trace = numpyro.handlers.trace(model.twin).get_trace(jnp.array([[-1.0]]))
    assert trace["y"]["fn"].mean.item() == pytest.approx(-0.2)
