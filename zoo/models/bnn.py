"""Bayesian neural networks: the plain one, and the one of probabilistic backpropagation.

Each model is one object: call it as a Pyro model, ask it for its NumPyro ``twin`` (same sites, same shapes,
same density) to run NUTS.  Inputs ``x: [N, in]``, data ``y: [N]`` (labels for classes).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pyro
import torch
import torch.nn.functional as F
from pyro import distributions as dist
from torch import Tensor

from guides.core.perceptron import SLOPE
from zoo.models.defaults import ACTIVATION, WIDTHS
from zoo.models.likelihoods import observe, observe_numpyro
from zoo.models.traits import Activation, Likelihood, Traits
from zoo.models.weights import GaussianWeights, Scale, WeightPrior, check_scale, sd_of_layer


def _leaky_relu(x: Tensor) -> Tensor:
    return F.leaky_relu(x, SLOPE)


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "leaky-relu": _leaky_relu,
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class BNN:
    """A fully connected network; weights ``N(0, 1/fan_in)``, biases ``N(0, 1)`` unless these say otherwise.

    :param in_features: columns of ``x``
    :param widths: hidden units of each layer
    :param outputs: 1, or the number of classes of a categorical likelihood
    :param likelihood: ``normal`` (noise precision ``~ Gamma(6, 6)``), ``bernoulli`` or ``categorical``
    :param noise_scale: fixes the noise of a normal likelihood, in the units of ``y``
    :param activation: ``relu``, ``leaky-relu`` (slope 0.2) or ``tanh``
    :param weights: the law of the weights
    :param bias_scale: sd of the biases

    Sites: ``w1: [h, in]``, ``b1: [h]``, ..., ``noise_precision: []``; observed ``y: [N]``.
    """

    in_features: int
    widths: tuple[int, ...] = WIDTHS
    outputs: int = 1
    likelihood: Likelihood = "normal"
    noise_scale: float | None = None
    activation: str = ACTIVATION
    weights: WeightPrior = field(default_factory=GaussianWeights)
    bias_scale: Scale = 1.0

    def __post_init__(self) -> None:
        for scale in (self.weights.scale, self.bias_scale):
            check_scale(scale, len(self.layers))
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation {self.activation!r} is not one of {', '.join(ACTIVATIONS)}")
        if self.likelihood != "categorical" and self.outputs != 1:
            raise ValueError(f"a {self.likelihood} likelihood has one output, not {self.outputs}")

    @property
    def traits(self) -> Traits:
        return Traits(self.weights.kind, self.likelihood, activation=self.activation)

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Shapes ``(out, in)`` of the weight matrices."""
        sizes = (self.in_features, *self.widths, self.outputs)
        return list(zip(sizes[1:], sizes[:-1], strict=True))

    def __call__(self, x: Tensor, y: Tensor | None = None, size: int | None = None) -> Tensor:
        """The Pyro model.

        :param size: rows of the whole data set, when ``x`` and ``y`` are a minibatch of it
        :returns: the noiseless function, ``[N]`` or ``[N, outputs]``
        """
        hidden = x
        for i, shape in enumerate(self.layers, start=1):
            weight = pyro.sample(f"w{i}", self.weights.pyro(shape, x, i - 1))
            biases = dist.Normal(x.new_zeros(()), sd_of_layer(self.bias_scale, i - 1, shape))
            bias = pyro.sample(f"b{i}", biases.expand(shape[:1]).to_event(1))
            hidden = F.linear(hidden, weight, bias)
            if i < len(self.layers):
                hidden = ACTIVATIONS[self.activation](hidden)
        output = hidden if self.likelihood == "categorical" else hidden.squeeze(-1)
        observe(self.likelihood, output, y, len(x), size, self.noise_scale)
        return output

    def twin(self, x, y=None):
        """The same model in NumPyro."""
        import jax
        import jax.numpy as jnp
        import numpyro
        import numpyro.distributions as ndist

        activation = {
            "relu": jax.nn.relu,
            "leaky-relu": lambda h: jax.nn.leaky_relu(h, SLOPE),
            "tanh": jnp.tanh,
        }[self.activation]
        hidden = x
        for i, shape in enumerate(self.layers, start=1):
            weight = numpyro.sample(f"w{i}", self.weights.numpyro(shape, i - 1))
            biases = ndist.Normal(0.0, sd_of_layer(self.bias_scale, i - 1, shape))
            bias = numpyro.sample(f"b{i}", biases.expand(shape[:1]).to_event(1))
            hidden = hidden @ weight.T + bias
            if i < len(self.layers):
                hidden = activation(hidden)
        output = hidden if self.likelihood == "categorical" else hidden.squeeze(-1)
        return observe_numpyro(self.likelihood, output, y, self.noise_scale)


@dataclass(frozen=True)
class PBPNetwork:
    """The hierarchical network of probabilistic backpropagation (Hernandez-Lobato and Adams 2015).

    ``w ~ N(0, 1/lambda)`` with ``lambda ~ Gamma(6, 6)`` shared by all layers; every layer computes
    ``W [z; 1] / sqrt(fan_in + 1)``: the bias is the weight of an extra unit.  ReLU, one output, noise
    precision ``gamma ~ Gamma(6, 6)``.

    :param in_features: columns of ``x``
    :param widths: hidden units of each layer
    :param noise_scale: fixes the noise, in the units of ``y``
    :param bias: without it there is no extra unit, and a layer computes ``W z / sqrt(fan_in)`` (Ott and
        Williamson 2022)

    Sites: ``weight_precision: []`` (lambda), ``noise_precision: []`` (gamma), ``w1: [h, in + 1]``, ...
    (``w1: [h, in]``, ... without bias); observed ``y: [N]``.
    """

    in_features: int
    widths: tuple[int, ...] = WIDTHS
    noise_scale: float | None = None
    bias: bool = True

    @property
    def traits(self) -> Traits:
        return Traits("hierarchical", "normal", activation="relu")

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Shapes of the weight matrices: ``(out, in + 1)``, without bias ``(out, in)``."""
        sizes = (self.in_features, *self.widths, 1)
        return [(out, fan_in + self.bias) for out, fan_in in zip(sizes[1:], sizes[:-1], strict=True)]

    def __call__(self, x: Tensor, y: Tensor | None = None, size: int | None = None) -> Tensor:
        """The Pyro model; arguments as for :class:`BNN`, returns the noiseless function ``[N]``."""
        precision = pyro.sample("weight_precision", dist.Gamma(x.new_tensor(6.0), x.new_tensor(6.0)))
        scale = precision.rsqrt()[..., None, None]  # room for [out, in] to the right of particles
        hidden = x
        for i, shape in enumerate(self.layers, start=1):
            prior = dist.Normal(torch.zeros_like(scale), scale).expand(scale.shape[:-2] + shape)
            weight = pyro.sample(f"w{i}", prior.to_event(2))
            inputs = F.pad(hidden, (0, 1), value=1.0) if self.bias else hidden
            hidden = F.linear(inputs, weight) / math.sqrt(shape[1])
            if i < len(self.layers):
                hidden = F.relu(hidden)
        output = hidden.squeeze(-1)
        observe("normal", output, y, len(x), size, self.noise_scale)
        return output

    def twin(self, x, y=None):
        """The same model in NumPyro."""
        import jax
        import jax.numpy as jnp
        import numpyro
        import numpyro.distributions as ndist

        precision = numpyro.sample("weight_precision", ndist.Gamma(6.0, 6.0))
        hidden = x
        for i, shape in enumerate(self.layers, start=1):
            weight = numpyro.sample(f"w{i}", ndist.Normal(0.0, precision**-0.5).expand(shape).to_event(2))
            inputs = jnp.pad(hidden, ((0, 0), (0, 1)), constant_values=1.0) if self.bias else hidden
            hidden = inputs @ weight.T / math.sqrt(shape[1])
            if i < len(self.layers):
                hidden = jax.nn.relu(hidden)
        return observe_numpyro("normal", hidden.squeeze(-1), y, self.noise_scale)
