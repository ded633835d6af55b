"""A torch network of one's own, trained or not, as a Pyro model that every guide can be put on."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import pyro
from pyro import distributions as dist
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from guides.core.checks import check_numbers
from zoo.errors import UserError, unknown
from zoo.models.likelihoods import observe
from zoo.models.traits import Likelihood, Traits
from zoo.models.weights import GaussianWeights, Scale, WeightPrior, sd_of_layer

#: Layers whose weights are not ``[outputs, inputs, ...]``.
UNSUITED = (nn.Embedding, nn.EmbeddingBag, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LIKELIHOODS: tuple[Likelihood, ...] = ("normal", "bernoulli", "categorical")


class ModuleModel:
    """A network whose weights are sites, named as in its ``state_dict`` (``"0.weight": [out, in]``).

    Sampled are the parameters of the chosen layers; what is not sampled keeps its numbers, and so do layers
    whose parameters are vectors alone (normalisations).  The network is copied and evaluates as in ``eval``:
    dropout is off, batch normalisation uses its running moments.

    :ivar layers: names of the layers that are sampled, in the order of the network
    :ivar shapes: of the sites, ``{name: shape}``
    """

    def __init__(
        self,
        net: nn.Module,
        prior: WeightPrior,
        likelihood: Likelihood,
        noise_scale: float | None,
        bias_scale: Scale,
        layers: Sequence[str],
    ):
        self.net = copy.deepcopy(net).eval().requires_grad_(False)
        self.prior, self.likelihood, self.noise_scale, self.bias_scale = (
            prior, likelihood, noise_scale, bias_scale,
        )  # fmt: skip
        self.layers = tuple(layers)
        modules = dict(self.net.named_modules())
        self._places = {
            f"{layer}.{name}" if layer else name: (modules[layer], name, number)
            for number, layer in enumerate(self.layers)
            for name, _ in modules[layer].named_parameters(recurse=False)
        }
        self.shapes = {site: tuple(self._number(site).shape) for site in self._places}

    @property
    def traits(self) -> Traits:
        return Traits(self.prior.kind, self.likelihood)

    def __call__(self, x: Tensor, y: Tensor | None = None, size: int | None = None) -> Tensor:
        """The Pyro model.

        :param x: what the network takes, ``[N, ...]``
        :param size: rows of the whole data set, when ``x`` and ``y`` are a minibatch of it
        :returns: the network's output, ``[N]`` or ``[N, classes]``
        """
        values = {site: pyro.sample(site, self._law(site)) for site in self._places}
        with self._holding(values):
            output = self.net(x)
        if self.likelihood != "categorical":
            if output.dim() > 1 and output.shape[-1] == 1:
                output = output.squeeze(-1)
            elif output.shape != (len(x),):
                raise UserError(
                    f"a {self.likelihood} likelihood needs a network with one output a row, this one gives "
                    f"{list(output.shape)} for {len(x)} rows"
                )
        observe(self.likelihood, output, y, len(x), size, self.noise_scale)
        return output

    def start(self, site: dict) -> Tensor:
        """The network's own weights, as ``init_loc_fn`` of a guide: a fit that begins where training ended.
        Other sites start as they do without.
        """
        from guides.core.starts import initial_value

        if site["name"] not in self._places:
            return initial_value(site)
        return self._number(site["name"]).expand(site["fn"].shape()).clone()

    def _number(self, site: str) -> Tensor:
        module, name, _ = self._places[site]
        return module._parameters[name]

    def _law(self, site: str) -> dist.TorchDistribution:
        """Matrices and filters have the prior's law, vectors a Gaussian of sd ``bias_scale``."""
        module, _, layer = self._places[site]
        own, shape = self._number(site), self.shapes[site]
        if len(shape) > 1:
            return self.prior.pyro(shape, own, layer)
        weight = next(p for p in module._parameters.values() if p is not None and p.dim() > 1)
        scale = own.new_tensor(sd_of_layer(self.bias_scale, layer, tuple(weight.shape)))
        return dist.Normal(own.new_zeros(()), scale).expand(shape).to_event(len(shape))

    @contextmanager
    def _holding(self, values: dict[str, Tensor]) -> Iterator[None]:
        """The network with these in place of its parameters: an attribute of the instance hides a parameter
        of the same name, and may be a random tensor, which ``torch.func.functional_call`` would refuse.
        """
        try:
            for site, (module, name, _) in self._places.items():
                module.__dict__[name] = values[site]
            yield
        finally:
            for module, name, _ in self._places.values():
                module.__dict__.pop(name, None)


def from_module(
    net: nn.Module,
    *,
    prior: WeightPrior | None = None,
    likelihood: Likelihood = "normal",
    noise_scale: float | None = None,
    bias_scale: Scale = 1.0,
    layers: Literal["all", "last"] | Sequence[str] = "all",
) -> ModuleModel:
    """A Pyro model of a torch network, in one line::

        model = from_module(net, layers="last", noise_scale=0.1)
        guide = AutoMeanField(model, init_loc_fn=model.start)

    :param net: any network of layers with weights; it is copied
    :param prior: of weight matrices and filters: ``GaussianWeights()`` by default, or ``SpikeSlabWeights()``
    :param likelihood: ``normal`` (one output; noise precision ``~ Gamma(6, 6)`` unless ``noise_scale`` says
        otherwise), ``bernoulli`` (one output, a logit) or ``categorical`` (logits)
    :param noise_scale: sd of a normal likelihood, in the units of ``y``
    :param bias_scale: sd of the biases
    :param layers: which are random: all, the last one (the others are features then), or some by name
    :raises UserError: for a network without weights, with tied or derived ones, a name that is none, an
        unknown likelihood; when the model runs, for a network with several outputs where one is needed
    """
    if not isinstance(net, nn.Module):
        given = f"the class {net.__name__}" if isinstance(net, type) else f"a {type(net).__name__}"
        raise UserError(f"net must be a torch network (nn.Module), not {given}")
    if prior is not None and (isinstance(prior, type) or not hasattr(prior, "pyro")):
        raise UserError(f"prior must be GaussianWeights(scale) or SpikeSlabWeights(inclusion), not {prior!r}")
    if likelihood not in LIKELIHOODS:
        raise unknown("likelihood", likelihood, LIKELIHOODS)
    if noise_scale is not None:
        check_numbers(noise_scale=noise_scale)
    _check_network(net)
    chosen = _chosen(net, layers)
    return ModuleModel(net, prior or GaussianWeights(), likelihood, noise_scale, bias_scale, chosen)


def _check_network(net: nn.Module) -> None:
    """:raises UserError: for a network whose weights are not numbers of one layer each"""
    for name, parameter in net.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise UserError(f"parameter {name!r} has no shape yet: call the network with data first")
    for name, module in net.named_modules():
        if parametrize.is_parametrized(module) or hasattr(module, "weight_g"):
            raise UserError(
                f"layer {name!r} computes its weight from other numbers (weight_norm or its like): put a "
                "plain weight there first, as torch.nn.utils.parametrize.remove_parametrizations does"
            )
        if prune.is_pruned(module) and not any(module.children()):
            raise UserError(f"layer {name!r} is pruned: call torch.nn.utils.prune.remove first")
    names = [name for name, _ in net.named_parameters(remove_duplicate=False)]
    if len(names) > len(list(net.parameters())):
        raise UserError("the network uses one parameter in two places: two sites would not be tied")


def _chosen(net: nn.Module, layers: Literal["all", "last"] | Sequence[str]) -> list[str]:
    """The layers that are random, in the order of the network."""
    there = _layers(net)
    if not there:
        raise UserError("the network has no layer with a matrix of weights")
    if isinstance(layers, str):
        chosen = {"all": there, "last": there[-1:]}.get(layers)
        if chosen is None:
            raise UserError(f"layers must be 'all', 'last' or a list of names, not {layers!r}")
    else:
        for layer in layers:
            if layer not in there:
                raise unknown("layer", layer, there)
        chosen = [layer for layer in there if layer in set(layers)]
        if not chosen:
            raise UserError("layers is empty: nothing would be random")
    for layer in chosen:
        if isinstance(net.get_submodule(layer), UNSUITED):
            kind = type(net.get_submodule(layer)).__name__
            raise UserError(f"layer {layer!r}, {kind}, has no inputs to scale a prior by: name the others")
    return chosen


def _layers(net: nn.Module) -> list[str]:
    """Modules with a matrix, or filters, of their own."""
    return [
        name
        for name, module in net.named_modules()
        if any(parameter.dim() > 1 for parameter in module.parameters(recurse=False))
    ]
