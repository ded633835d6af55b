"""Normalizing flows whose log-determinant is exact: gated couplings (RealNVP) and gated MADE (IAF).

Both move a coordinate by ``y = g z + (1 - g) t`` with a gate ``g = sigmoid(s)``, where shift ``t`` and ``s``
are functions of *other* coordinates, so that the Jacobian is triangular with ``g`` on its diagonal and
``log|det| = sum log g`` over the coordinates that move (Louizos and Welling 2017, equation 6; Kingma et al.
2016).  The published codes that follow equation 3.7 of Skaaret-Lund (2022) add ``(1 - g) t`` to the kept
coordinates too: their sum of log gates is then no determinant (the map need not even be invertible), and
training exploits the difference.

Their networks have tanh units, as the program of Louizos and Welling has, and not the leaky ReLUs of the
thesis: shift and gate are bounded, so that a flow, forwards, moves a coordinate far out by no more than its
distance.  Leaky ReLUs go on in straight lines there, each step along those of the one before.  A flow that
reads another's draws, as the auxiliary density of multipliers does, then gives a rare draw far out a density
of practically zero, and one gradient can throw a fit off (``zoo reproduce lbbnn/simulation``: none of a
hundred; with leaky ReLUs six).  The price: fits by few and long steps stop farther from their optimum.

A flow starts near the identity around ``centre``, which is a fixed point of every step.
"""

from __future__ import annotations

import itertools

import torch
from pyro.distributions.torch_transform import ComposeTransformModule, TransformModule
from torch import Tensor, nn
from torch.distributions import constraints
from torch.nn import functional as F

from guides.flows.fused import Step

FLOWS = ("rnvp", "iaf")
#: Start of the gates' logits: a step moves a coordinate by a tenth of its distance from the centre.
OPEN_GATE = 2.0
#: Start of the last layer's weights, as a share of torch's own.
QUIET = 0.1


class GatedTransform(TransformModule):
    """One step; a subclass says which coordinates are moved by what."""

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True
    sign = +1

    def with_log_det(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """``z [..., d] -> (y [..., d], log|det dy/dz| [...])``, at the price of one evaluation."""
        raise NotImplementedError

    def step(self) -> Step:
        """What the compiled form needs."""
        raise NotImplementedError

    def _call(self, z: Tensor) -> Tensor:
        return self.with_log_det(z)[0]

    def log_abs_det_jacobian(self, z: Tensor, y: Tensor) -> Tensor:
        return self.with_log_det(z)[1]


class GatedCoupling(GatedTransform):
    """RealNVP step: ``moved`` coordinates by a network of the others, which stay as they are.

    :param moved: bool ``[d]``
    :param hidden: widths of the network's hidden layers
    :param centre: a fixed point of the step at its start
    """

    def __init__(self, moved: Tensor, hidden: tuple[int, ...], centre: float = 1.0):
        super().__init__()
        self.register_buffer("moved", moved.nonzero().squeeze(-1))
        self.register_buffer("kept", (~moved).nonzero().squeeze(-1))
        # A single coordinate has no others: its shift and gate are constants.
        widths = (max(1, len(self.kept)), *hidden, 2 * len(self.moved))
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        _start_near_identity(self.layers[-1], centre)

    def step(self) -> Step:
        weights = (tensor for layer in self.layers for tensor in (layer.weight, layer.bias))
        return Step(len(self.kept) + len(self.moved), self.kept, self.moved, tuple(weights))

    def _shift_and_log_gate(self, z: Tensor) -> tuple[Tensor, Tensor]:
        kept = z[..., self.kept] if len(self.kept) else torch.ones_like(z)
        *inner, last = self.layers
        for layer in inner:
            kept = torch.tanh(layer(kept))
        shift, logits = last(kept).chunk(2, -1)
        return shift, F.logsigmoid(logits)

    def with_log_det(self, z: Tensor) -> tuple[Tensor, Tensor]:
        shift, log_gate = self._shift_and_log_gate(z)
        moved = torch.lerp(shift, z[..., self.moved], log_gate.exp())
        return z.index_copy(-1, self.moved, moved), log_gate.sum(-1)

    def _inverse(self, y: Tensor) -> Tensor:
        shift, log_gate = self._shift_and_log_gate(y)
        moved = shift + (y[..., self.moved] - shift) * (-log_gate).exp()
        return y.index_copy(-1, self.moved, moved)


class GatedAutoregressive(GatedTransform):
    """IAF step: every coordinate by a masked network (MADE) of those before it in ``order``.

    Pyro's ``AffineAutoregressive(stable=True)`` is the same map, but its network refuses hidden layers
    narrower than the input, which layers of a network need.  The inverse takes ``d`` evaluations.

    :param order: a permutation, int ``[d]``: place of each coordinate
    :param hidden: widths of the network's hidden layers
    :param centre: a fixed point of the step at its start
    """

    def __init__(self, order: Tensor, hidden: tuple[int, ...], centre: float = 1.0):
        super().__init__()
        self.register_buffer("order", order)
        self.register_buffer("every", torch.arange(len(order)), persistent=False)
        dim = len(order)
        degrees, layers, masks = order + 1, [], []
        for width in hidden:
            # Degrees 1 .. d-1 spread evenly: a unit of degree k sees the first k coordinates.
            unit = 1 + (torch.arange(width) * (dim - 1)) // width if dim > 1 else torch.ones(width).long()
            layers.append(nn.Linear(len(degrees), width))
            masks.append(unit[:, None] >= degrees)
            degrees = unit
        layers.append(nn.Linear(len(degrees), 2 * dim))
        masks.append((order[:, None] >= degrees).repeat(2, 1))
        self.layers = nn.ModuleList(layers)
        for number, mask in enumerate(masks):
            self.register_buffer(f"mask{number}", mask.to(layers[0].weight.dtype))
        _start_near_identity(self.layers[-1], centre)

    def step(self) -> Step:
        weights = ((self._masked(number), layer.bias) for number, layer in enumerate(self.layers))
        return Step(len(self.every), self.every, self.every, tuple(itertools.chain(*weights)))

    def _masked(self, number: int) -> Tensor:
        return self.layers[number].weight * getattr(self, f"mask{number}")

    def _shift_and_log_gate(self, z: Tensor) -> tuple[Tensor, Tensor]:
        for number, layer in enumerate(self.layers):
            z = torch.tanh(z) if number else z
            z = F.linear(z, self._masked(number), layer.bias)
        shift, logits = z.chunk(2, -1)
        return shift, F.logsigmoid(logits)

    def with_log_det(self, z: Tensor) -> tuple[Tensor, Tensor]:
        shift, log_gate = self._shift_and_log_gate(z)
        return torch.lerp(shift, z, log_gate.exp()), log_gate.sum(-1)

    def _inverse(self, y: Tensor) -> Tensor:
        z = torch.zeros_like(y)
        for index in self.order.argsort():
            shift, log_gate = (t[..., index] for t in self._shift_and_log_gate(z))
            value = shift + (y[..., index] - shift) * (-log_gate).exp()
            z = z.index_copy(-1, index.reshape(1), value.unsqueeze(-1))
        return z


class Flow(ComposeTransformModule):
    """Several steps in a row, a torch ``Transform`` and a module."""

    def with_log_det(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """``z [..., d] -> (y [..., d], log|det dy/dz| [...])``."""
        total = z.new_zeros(z.shape[:-1])
        for part in self.parts:
            z, log_det = part.with_log_det(z)
            total = total + log_det
        return z, total

    def steps(self) -> list[Step]:
        return [part.step() for part in self.parts]


def make_flow(kind: str, dim: int, steps: int, hidden: tuple[int, ...], centre: float = 1.0) -> Flow:
    """A flow of ``steps`` steps on ``dim`` coordinates, near the identity around ``centre``.

    Couplings move a random half of the coordinates and then the other half; autoregressive steps go through
    a random order and then backwards.  Both are drawn once and saved with the parameters: masks drawn anew in
    each call, as published, make the density a mixture over masks, of which the code knows one term.

    :param kind: ``"rnvp"`` or ``"iaf"``
    :param hidden: widths of the networks; without any, shifts are linear and far draws may go anywhere
    :raises ValueError: for another kind, or no steps
    """
    if kind not in FLOWS:
        raise ValueError(f"flow must be one of {', '.join(FLOWS)}, got {kind!r}")
    if steps < 1 or not all(width > 0 for width in hidden):
        raise ValueError(f"a flow needs at least one step and positive widths, got {steps} and {hidden}")
    parts: list[GatedTransform] = []
    for step in range(steps):
        if step % 2 == 0:
            order = torch.randperm(dim)
        if kind == "iaf" and dim > 1:
            parts.append(GatedAutoregressive(order if step % 2 == 0 else dim - 1 - order, hidden, centre))
        else:
            moved = (order < (dim + 1) // 2) if step % 2 == 0 or dim == 1 else order >= (dim + 1) // 2
            parts.append(GatedCoupling(moved, hidden, centre))
    return Flow(parts)


def _start_near_identity(last: nn.Linear, centre: float) -> None:
    """Shifts near ``centre``, gates nearly open."""
    with torch.no_grad():
        last.weight *= QUIET
        shift, logits = last.bias.chunk(2)
        shift.fill_(centre)
        logits.fill_(OPEN_GATE)
