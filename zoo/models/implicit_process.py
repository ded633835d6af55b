"""Implicit processes: priors of functions with parameters to train, and no density.

Each is a torch module.  ``draw(n)`` gives ``n`` functions that share their random numbers over all inputs,
``x: [N, in] -> [n, N]``; called with ``x`` it is a Pyro model with the function's values ``[N]`` at the site
``f``.  ``requires_grad_(False)`` fixes its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import pyro
import torch
import torch.nn.functional as F
from pyro import distributions as dist
from torch import Tensor, nn

from guides.core.checks import check_counts, check_numbers
from guides.core.perceptron import SLOPE, perceptron
from zoo.models.likelihoods import observe, observe_numpyro
from zoo.models.weights import sd_of_layer

#: Sd of the prior's means at the start: not zero, or all hidden units would be trained alike.
START_SD = 0.05
#: Sd of a posterior's weights at the start.
POSTERIOR_SD = 0.1
#: Sd of a neural sampler's biases at the start.
SAMPLER_BIAS_SD = 0.1

Sharing = Literal["weight", "layer"]
#: Weights ``[n, out, in]`` and biases ``[n, out]`` of ``n`` networks, layer after layer.
Layers = list[tuple[Tensor, Tensor]]


class GaussianLayer(nn.Module):
    """Independent Gaussian weights ``[out, in]`` and biases ``[out]``.

    :param sharing: a mean and a log sd for every number, or one pair for all weights, one for all biases
    :param scale: sd of the weights at the start
    :param bias_scale: sd of the biases at the start; 0 for biases that are numbers
    """

    def __init__(
        self, shape: tuple[int, int], sharing: Sharing, scale: float, bias_scale: float, dtype: torch.dtype
    ):
        super().__init__()
        self.shapes = {"weight": shape, "bias": shape[:1]}
        for name, full, sd in (("weight", shape, scale), ("bias", shape[:1], bias_scale)):
            kept = full if sharing == "weight" or sd == 0 else ()
            start = START_SD * torch.randn(kept, dtype=dtype) if kept else torch.zeros((), dtype=dtype)
            self.register_parameter(f"{name}_mean", nn.Parameter(start))
            log_sd = nn.Parameter(torch.full(kept, sd, dtype=dtype).log()) if sd else None
            self.register_parameter(f"{name}_log_sd", log_sd)

    def draw(self, n: int) -> tuple[Tensor, Tensor]:
        return self._numbers("weight", n), self._numbers("bias", n)

    def _numbers(self, name: str, n: int) -> Tensor:
        mean, log_sd = getattr(self, f"{name}_mean"), getattr(self, f"{name}_log_sd")
        shape = (n, *self.shapes[name])
        if log_sd is None:
            return mean.expand(shape)
        # float32 draws normals several times faster than float64 does, and noise needs no more digits
        noise = torch.randn(shape, dtype=torch.float32, device=mean.device).to(mean.dtype)
        return torch.addcmul(mean, log_sd.exp(), noise)

    def sample(self, number: int) -> tuple[Tensor, Tensor]:
        """The same as Pyro sites ``w1``, ``b1``, ...: one network."""
        return self._sampled("weight", f"w{number}"), self._sampled("bias", f"b{number}")

    def _sampled(self, name: str, site: str) -> Tensor:
        mean, log_sd = getattr(self, f"{name}_mean"), getattr(self, f"{name}_log_sd")
        shape = self.shapes[name]
        if log_sd is None:
            return mean.expand(shape)
        return pyro.sample(site, dist.Normal(mean, log_sd.exp()).expand(shape).to_event(len(shape)))


class BNNProcess(nn.Module):
    """The functions of a network with independent Gaussian weights whose means and sds are trained.

    :param in_features: columns of ``x``
    :param widths: hidden units of each layer
    :param sharing: ``weight``: every weight has a mean and an sd of its own; ``layer``: all weights of a
        layer share them (as do its biases), far fewer numbers that can overfit
    :param scale: sd of the weights at the start; ``1/sqrt(fan_in)`` by default
    :param bias_scale: sd of the biases at the start; 0 for biases that are trained numbers
    :param dtype: of its arithmetic, whatever that of ``x``

    Leaky ReLU of slope 0.2.  Sites: ``w1: [h, in]``, ``b1: [h]``, ..., deterministic ``f: [N]``.
    """

    def __init__(
        self,
        in_features: int,
        widths: Sequence[int] = (50, 50),
        *,
        sharing: Sharing = "weight",
        scale: float | None = None,
        bias_scale: float = 1.0,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        if sharing not in ("weight", "layer"):
            raise ValueError(f"sharing must be 'weight' or 'layer', got {sharing!r}")
        check_counts(in_features=in_features, **_units(widths))
        if scale is not None:
            check_numbers(scale=scale)
        if not bias_scale >= 0:
            raise ValueError(f"bias_scale must not be negative, got {bias_scale}")
        sizes = (in_features, *widths, 1)
        self.layers = nn.ModuleList(
            GaussianLayer(shape, sharing, sd_of_layer(scale, layer, shape), bias_scale, dtype)
            for layer, shape in enumerate(zip(sizes[1:], sizes[:-1], strict=True))
        )

    def draw(self, n: int) -> Callable[[Tensor], Tensor]:
        """``n`` networks: ``x: [N, in] -> [n, N]``, differentiable in the parameters and in ``x``."""
        layers = [layer.draw(n) for layer in self.layers]
        return lambda x: network_values(layers, x)

    def forward(self, x: Tensor) -> Tensor:
        """The Pyro model of one function, ``[N]``."""
        layers = [layer.sample(number) for number, layer in enumerate(self.layers, start=1)]
        stacked = [(weight.unsqueeze(0), bias.unsqueeze(0)) for weight, bias in layers]
        return pyro.deterministic("f", network_values(stacked, x).squeeze(0))


def posterior_network(in_features: int, widths: Sequence[int] = (50, 50)) -> BNNProcess:
    """A network whose weights' means and sds are a posterior to be fitted: it starts at one random network,
    means ``N(0, 1/fan_in)`` and all sds 0.1.
    """
    network = BNNProcess(in_features, widths, scale=POSTERIOR_SD, bias_scale=POSTERIOR_SD)
    for layer in network.layers:
        nn.init.normal_(layer.weight_mean, std=layer.shapes["weight"][1] ** -0.5)
    return network


def network_values(layers: Layers, x: Tensor) -> Tensor:
    """What ``n`` networks compute at the same ``x: [N, in]``: ``[n, N]``."""
    (weight, bias), *others = layers
    _check_columns(x, weight.shape[-1])
    # the inputs are those of all networks: one product, and not one a network
    hidden = weight.flatten(0, 1) @ x.to(weight.dtype).mT + bias.reshape(-1, 1)
    for weight, bias in others:
        # in place, for new memory of megabytes takes longer than what is done to it
        active = F.leaky_relu(hidden, SLOPE, inplace=True).reshape(len(bias), -1, len(x))
        hidden = torch.baddbmm(bias.unsqueeze(-1), weight, active)
    return hidden.reshape(len(bias), len(x))


class NeuralSampler(nn.Module):
    """``f(x) = a(x)' v(e)`` with ``e ~ N(0, I)``: a network of the inputs times one of noise.

    Its functions span ``noise_features`` dimensions, however many inputs they are seen at: laws at more
    inputs than that have no density, and a classifier can always tell them from another.

    :param in_features: columns of ``x``
    :param widths: hidden units of each layer, of both networks
    :param noise_features: dimensions of ``e``, ``a`` and ``v``
    :param dropout: probability that a hidden unit is left out, anew for every input and every draw, while a
        guide trains it; a sampler is made in evaluation mode
    :param dtype: of its arithmetic, whatever that of ``x``

    Leaky ReLU of slope 0.2; both networks start with weights ``N(0, 1/fan_in)`` and
    biases ``N(0, 0.1^2)``.  Sites: ``e: [noise]``,
    deterministic ``f: [N]``.
    """

    def __init__(
        self,
        in_features: int,
        widths: Sequence[int] = (50, 50),
        *,
        noise_features: int = 10,
        dropout: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__()
        check_counts(in_features=in_features, noise_features=noise_features, **_units(widths))
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
        start = {"bias_scale": SAMPLER_BIAS_SD, "dropout": dropout, "dtype": dtype}
        self.of_inputs = perceptron((in_features, *widths, noise_features), **start)
        self.of_noise = perceptron((noise_features, *widths, noise_features), **start)
        self.noise_features, self.dtype = noise_features, dtype
        self.eval()  # a function has the same values whenever it is asked

    def draw(self, n: int) -> Callable[[Tensor], Tensor]:
        """``n`` functions: ``x: [N, in] -> [n, N]``, differentiable in the parameters and in ``x``."""
        device = next(self.parameters()).device
        noise = torch.randn(n, self.noise_features, dtype=torch.float32, device=device)
        # at every call, for dropout of this network too is anew then
        return lambda x: self.of_noise(noise.to(self.dtype)) @ self._of_inputs(x).mT

    def forward(self, x: Tensor) -> Tensor:
        """The Pyro model of one function, ``[N]``."""
        zeros = torch.zeros(self.noise_features, dtype=self.dtype, device=x.device)
        noise = pyro.sample("e", dist.Normal(zeros, 1.0).to_event(1))
        return pyro.deterministic("f", self._of_inputs(x) @ self.of_noise(noise))

    def _of_inputs(self, x: Tensor) -> Tensor:
        _check_columns(x, self.of_inputs[0].in_features)
        return self.of_inputs(x.to(self.dtype))


def _units(widths: Sequence[int]) -> dict[str, int]:
    """Hidden units with the names that a refusal gives them."""
    return {f"widths[{layer}]": units for layer, units in enumerate(widths)}


def _check_columns(x: Tensor, columns: int) -> None:
    if x.dim() != 2 or x.shape[1] != columns:
        raise ValueError(f"a process of {columns} column(s) needs x [N, {columns}], got {list(x.shape)}")


class LearnedNetwork(nn.Module):
    """The regression whose function has the law of a process, the parameters of which stay as they are: what
    NUTS samples under a prior that was learned elsewhere.

    :param process: its weights' means and sds
    :param noise_scale: fixes the noise, in the units of ``y``; else its precision ``~ Gamma(6, 6)``

    Sites: those of the process, ``noise_precision: []``; observed ``y: [N]``.
    """

    def __init__(self, process: BNNProcess, noise_scale: float | None = None):
        super().__init__()
        self.process, self.noise_scale = process.requires_grad_(False), noise_scale

    def forward(self, x: Tensor, y: Tensor | None = None, size: int | None = None) -> Tensor:
        """The Pyro model, ``[N]``."""
        output = self.process(x)
        observe("normal", output, y, len(x), size, self.noise_scale)
        return output

    def twin(self, x, y=None):
        """The same model in NumPyro."""
        import jax.numpy as jnp
        import numpyro
        import numpyro.distributions as ndist

        def numbers(layer: GaussianLayer, name: str, site: str):
            mean, log_sd = getattr(layer, f"{name}_mean"), getattr(layer, f"{name}_log_sd")
            shape = layer.shapes[name]
            loc = jnp.broadcast_to(jnp.asarray(mean.detach().numpy()), shape)
            if log_sd is None:
                return loc
            scale = jnp.broadcast_to(jnp.exp(jnp.asarray(log_sd.detach().numpy())), shape)
            return numpyro.sample(site, ndist.Normal(loc, scale).to_event(len(shape)))

        hidden = x
        for number, layer in enumerate(self.process.layers, start=1):
            inputs = hidden if number == 1 else jnp.where(hidden > 0, hidden, SLOPE * hidden)
            weight = numbers(layer, "weight", f"w{number}")
            hidden = inputs @ weight.T + numbers(layer, "bias", f"b{number}")
        return observe_numpyro("normal", hidden.squeeze(-1), y, self.noise_scale)
