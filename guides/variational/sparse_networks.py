"""What one makes of a fitted sparse network: its mean, its median probability model, and a smaller network.

A guide with inclusion probabilities ``alpha`` over the weights of a network yields, besides the networks
that it draws: the posterior mean of every weight (:func:`mean_weights`); the median probability model
(Barbieri and Berger 2004), which keeps the weights with ``alpha > 1/2`` (:func:`median_probability_model`);
and, from the numbers of any one network with exact zeros in it, a program that does not carry the zeros
(:class:`SparseNetwork`).
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from guides.core.flat_guide import FlatGuide
from guides.variational.spike_slab import AutoSpikeSlab

#: Draws behind a mean that has no closed form.
SITE_DRAWS = 200

Layer = tuple[Tensor, Tensor]


@torch.no_grad()
def mean_weights(guide: FlatGuide) -> dict[str, Tensor]:
    """The posterior mean of every latent site, ``{name: [*site]}``.

    It is ``guide.mean_of_site``; where that has no closed form (a constrained support, say), the mean of 200
    draws (seed 0).
    """
    result, draws = {}, None
    for name in guide.sites:
        try:
            result[name] = guide.mean_of_site(name)
        except NotImplementedError:
            draws = draws or guide.draws(SITE_DRAWS, seed=0)
            result[name] = draws[name].mean(0)
    return result


@torch.no_grad()
def median_probability_model(guide: AutoSpikeSlab) -> AutoSpikeSlab:
    """A copy of the guide whose weights are surely in where their inclusion probability is above one half,
    and surely out elsewhere; slabs stay as they are.

    Its :func:`mean_weights` are the median probability network, its ``draws`` networks on the kept weights.
    It cannot be trained on: its inclusion logits are infinite.

    :raises ValueError: when the guide has no inclusion probabilities
    :raises NotImplementedError: for inclusions that are drawn themselves
    """
    logits = getattr(guide, "logits", None)
    if not isinstance(guide, AutoSpikeSlab) or logits is None:
        kind = type(guide).__name__
        raise ValueError(f"{kind} has no inclusion probabilities here: there is no median probability model")
    if guide.draws_inclusion:
        raise NotImplementedError(
            f"{type(guide).__name__} draws its inclusion probabilities and cannot hold them at 0 or 1; "
            "median_weights(guide) has the median probability network's weights"
        )
    result = copy.deepcopy(guide)
    result.logits.copy_(torch.where(logits > 0, math.inf, -math.inf))
    return result


@torch.no_grad()
def median_weights(guide: AutoSpikeSlab) -> dict[str, Tensor]:
    """The weights of the median probability network, ``{name: [*site]}``: the slabs' means where the
    inclusion probability is above one half, else 0; other sites have their mean.

    :raises ValueError: when the guide has no inclusion probabilities
    """
    if not (isinstance(guide, AutoSpikeSlab) and guide.draws_inclusion):
        return mean_weights(median_probability_model(guide))
    weights = mean_weights(guide)
    for name, probs in guide.inclusion_probabilities().items():
        loc = guide.site_distribution(name).loc
        weights[name] = torch.where(probs > 0.5, loc, torch.zeros_like(loc))
    return weights


def layers_of(weights: Mapping[str, Tensor]) -> list[Layer]:
    """``[(w1, b1), (w2, b2), ...]`` from sites named so, ``w: [out, in]`` and ``b: [out]``.

    :raises ValueError: when the sites are not those of a fully connected network
    """
    count = len(weights) // 2
    names = [(f"w{i}", f"b{i}") for i in range(1, count + 1)]
    if set(weights) != {name for pair in names for name in pair} or not count:
        raise ValueError(f"sites {', '.join(weights)}: a fully connected network has w1, b1, w2, b2, ...")
    layers = [(weights[w], weights[b]) for w, b in names]
    shapes = [weight.shape for weight, _ in layers]
    single = all(len(shape) == 2 for shape in shapes)
    if not single or any(a[0] != b[1] for a, b in zip(shapes[:-1], shapes[1:], strict=True)):
        raise ValueError("the layers do not fit together: one network is asked for, not a stack of draws")
    return layers


def active_paths(weights: Mapping[str, Tensor]) -> float:
    """Share of all weights that are not zero and lie on a path from an input to an output."""
    layers = layers_of(weights)
    into, onto = _live_units(layers)
    active = sum(
        ((weight != 0) & onto[i + 1][:, None] & into[i]).sum().item() for i, (weight, _) in enumerate(layers)
    )
    return active / sum(weight.numel() for weight, _ in layers)


def _live_units(layers: list[Layer]) -> tuple[list[Tensor], list[Tensor]]:
    """Of every layer of units, inputs first: whether an input reaches it, whether it reaches an output."""
    into = [torch.ones(layers[0][0].shape[1], dtype=torch.bool, device=layers[0][0].device)]
    for weight, _ in layers:
        into.append(((weight != 0) & into[-1]).any(1))
    onto = [torch.ones_like(layers[-1][1], dtype=torch.bool)]
    for weight, _ in reversed(layers):
        onto.insert(0, ((weight != 0) & onto[0][:, None]).any(0))
    return into, onto


def without_dead_units(
    layers: list[Layer], activation: Callable[[Tensor], Tensor]
) -> tuple[list[Layer], Tensor]:
    """The same function with fewer units: ``(layers, numbers of the inputs that are still used)``.

    A unit without a path to an output goes.  A unit that no input reaches is a constant, ``activation`` of
    its own bias and what other constants add to it: it moves into the biases of the next layer.
    """
    into, onto = _live_units(layers)
    keep = [a & b for a, b in zip(into, onto, strict=True)]
    keep[-1] = torch.ones_like(keep[-1])  # an output without inputs is still one
    constants = torch.zeros_like(layers[0][0][0])
    result = []
    for i, (weight, bias) in enumerate(layers):
        bias = bias + weight[:, ~into[i]] @ constants[~into[i]]
        result.append((weight[keep[i + 1]][:, keep[i]], bias[keep[i + 1]]))
        constants = activation(bias)
    return result, keep[0].nonzero().squeeze(1)


class SparseNetwork(nn.Module):
    """One fully connected network with exact zeros, as a program that makes use of them.

    ``form="sparse"``: weights as compressed sparse rows.  ``form="small"``: ordinary matrices without the
    units that no input reaches or that reach no output, and without inputs that nothing looks at.  Both
    compute the same function up to rounding.  All numbers are buffers (``weight1``, ``bias1``, ...), so that
    ``to``, ``double`` and ``state_dict`` work; a state fits a program with zeros in the same places.

    :param weights: sites ``w1: [h, in]``, ``b1: [h]``, ... of **one** network
    :param activation: between the layers
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        form: Literal["sparse", "small"] = "sparse",
        activation: Callable[[Tensor], Tensor] = F.relu,
    ):
        super().__init__()
        if form not in ("sparse", "small"):
            raise ValueError(f"form must be 'sparse' or 'small', got {form!r}")
        layers = [(weight.detach().clone(), bias.detach().clone()) for weight, bias in layers_of(weights)]
        self.form, self.activation, self.depth = form, activation, len(layers)
        inputs = None
        if form == "small":
            count = layers[0][0].shape[1]
            layers, kept = without_dead_units(layers, activation)
            inputs = kept if len(kept) < count else None
        else:
            layers = [(_compressed(weight), bias) for weight, bias in layers]
        self.register_buffer("inputs", inputs)
        for i, (weight, bias) in enumerate(layers, start=1):
            self.register_buffer(f"weight{i}", weight)
            self.register_buffer(f"bias{i}", bias)

    @property
    def layers(self) -> list[Layer]:
        """``[(weight, bias), ...]``, inputs first."""
        return [(self._buffers[f"weight{i}"], self._buffers[f"bias{i}"]) for i in range(1, self.depth + 1)]

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """``[N, in] -> [N, outputs]``."""
        hidden = x if self.inputs is None else x[:, self.inputs]
        for i, (weight, bias) in enumerate(self.layers):
            if i:
                hidden = self.activation(hidden)
            if weight.layout == torch.sparse_csr:
                hidden = (weight @ hidden.T).T + bias
            else:
                hidden = F.linear(hidden, weight, bias)
        return hidden

    @property
    def widths(self) -> tuple[int, ...]:
        """Inputs, hidden units of every layer, outputs."""
        return (self.layers[0][0].shape[1], *(weight.shape[0] for weight, _ in self.layers))

    @property
    def nbytes(self) -> int:
        """Bytes of all numbers and indices."""
        tensors = [] if self.inputs is None else [self.inputs]
        for weight, bias in self.layers:
            parts = (weight,)
            if weight.layout == torch.sparse_csr:
                parts = (weight.crow_indices(), weight.col_indices(), weight.values())
            tensors += [*parts, bias]
        return sum(tensor.nbytes for tensor in tensors)


def _compressed(weight: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse (CSR|invariant)", category=UserWarning)
        return weight.to_sparse_csr()
