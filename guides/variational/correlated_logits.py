r"""The laws of correlated inclusion: logits of a layer that follow a Gaussian, the spike and slab given a
draw of them, and the bound that this needs.

**The law.**  For every output unit, over its ``n`` weights::

    lambda ~ N(m, Sigma),  Sigma = diag(d) + V V',    gamma_i | lambda ~ Bernoulli(sigmoid(lambda_i)),
    w_i = gamma_i b_i,     b_i ~ N(mu_i, sigma_i^2).

The model has a prior for ``gamma`` and ``b`` but none for ``lambda``, and
``q(gamma) = integral q(gamma | lambda) q(lambda)`` has no closed form.

**The bound.**  Let ``r(lambda | gamma)`` be *any* normalised density.  Then ``p(y, gamma, b) r(lambda |
gamma)`` is a joint density with evidence ``p(y)``, so (Agakov and Barber 2004; Ranganath et al. 2016)::

    log p(y) >= E_q[log p(y | w) + log p(gamma) p(b) - log q(gamma | lambda) q(b)
                    - (log q(lambda) - log r(lambda | gamma))],

short of the bound with the true ``log q(gamma)`` by ``E KL(q(lambda | gamma) || r(lambda | gamma))``.  The
first line is what a spike and slab with logits ``lambda`` has: closed form, local reparameterization and all.
The published programs stop there.  That is the case ``r = q(lambda)``: an average of mean-field bounds over
``lambda``, hence below the best mean-field bound, and best where ``Sigma`` is zero.  Correlation can only
lower it; what it wins is the second line, on average ``I(lambda; gamma)`` with the best ``r``.

**The choice of r.**  With ``lambda = m + delta``, Bayes' rule makes ``q(lambda | gamma)`` proportional to
``N(delta; 0, Sigma) exp(gamma' delta - sum softplus(m + delta))``.  A parabola in place of the softplus, with
learnt slopes ``k`` and curvatures ``h > 0``, and a learnt pull ``B = diag(b)``, make it Gaussian::

    r(lambda | gamma) = N(delta; S g, S),    g = B (gamma - k),    S = (Sigma^-1 + diag(h))^-1,
    log q(lambda) - log r(lambda | gamma) = -g' delta + delta' diag(h) delta / 2
                                            - log det(I + Sigma diag(h)) / 2 + g' S g / 2.

It carries the correlations of ``q`` with three numbers a weight, and becomes exact as ``Sigma`` shrinks
(``b = 1``); at ``Sigma = 0`` the bound is that of mean field.  ``b`` well below 1 serves indicators that are
functions of ``lambda``, as for two columns of which exactly one is in: there the Gaussian ``r`` loses
``log(2 pi (1 - 2/pi)) / 2 - log(pi/2) / 2 = 0.187`` nats in approximating half a normal, of the ``log 2``
that the second mode can win.  Given ``lambda`` the expectation over ``gamma`` has a closed form
(``alpha = sigmoid(lambda)`` for ``gamma``, plus ``sum S_ii b_i^2 alpha_i (1 - alpha_i) / 2``): every gradient
is pathwise, and no indicator is drawn in training.

By the identities of Woodbury and Sylvester, with ``U = V / (1 + h d)`` and
``M = I + V' diag(h / (1 + h d)) V``::

    S = diag(d / (1 + h d)) + U M^-1 U',    log det(I + Sigma diag(h)) = sum log(1 + h d) + log det M,
    sum S_ii v_i = sum d_i v_i / (1 + h_i d_i) + tr(M^-1 U' diag(v) U),

``O(n r^2)`` for ``r`` columns of ``V``; a full covariance is ``d = 0`` with ``V`` its Cholesky factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import softplus

from guides.core.weight_laws import RandomTensorLaw, SpikeSlabLaw


def mean_sigmoid(mean: Tensor, variance: Tensor, rule: tuple[np.ndarray, np.ndarray]) -> Tensor:
    """``E sigmoid(lambda)`` of ``lambda ~ N(mean, variance)``, elementwise.

    :param rule: places of a standard normal, and their weights
    """
    places, weights = rule
    scale, shares = variance.sqrt(), (weights / weights.sum()).tolist()
    terms = zip(places.tolist(), shares, strict=True)
    return sum(share * torch.sigmoid(mean + place * scale) for place, share in terms).clamp(max=1.0)


#: Right to 1e-5 whatever the sd; and where it is wanted time and again in training: to 1e-3 of it up to an
#: sd of 3, and some hundredths beyond 10.
FINE = np.linspace(-9, 9, 400), np.exp(-(np.linspace(-9, 9, 400) ** 2) / 2)
QUICK = np.polynomial.hermite_e.hermegauss(20)


class WeightedGram(torch.autograd.Function):
    """``A diag(w) A'``, ``[*groups, r, r]``, of ``A [*groups, r, n]`` and ``w [*groups, n]``.  First
    derivatives only; both come from one product, where autograd takes two and adds.
    """

    @staticmethod
    def forward(ctx, rows: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weights)
        return (rows * weights.unsqueeze(-2)) @ rows.mT

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        rows, weights = ctx.saved_tensors
        product = (grad + grad.mT) @ rows
        by_weights = 0.5 * (rows * product).sum(-2)
        return product.mul_(weights.unsqueeze(-2)), by_weights


@dataclass(frozen=True)
class LogitGaussian:
    """``q(lambda)`` and ``r(lambda | gamma)`` of groups of ``n`` logits, as ``delta = lambda - m``.

    :ivar mean: ``m [*groups, n]``
    :ivar diagonal: ``d [*groups, n]``, not negative
    :ivar factor: ``V [*groups, n, rank]``
    :ivar slope: ``k [*groups, n]``
    :ivar curvature: ``h [*groups, n]``, positive
    :ivar pull: ``b [*groups, n]``
    """

    mean: Tensor
    diagonal: Tensor
    factor: Tensor
    slope: Tensor
    curvature: Tensor
    pull: Tensor

    @property
    def variance(self) -> Tensor:
        """Diagonal of ``Sigma``, ``[*groups, n]``."""
        return self.diagonal + self.factor.square().sum(-1)

    @property
    def covariance(self) -> Tensor:
        """``Sigma [*groups, n, n]``."""
        return torch.diag_embed(self.diagonal) + self.factor @ self.factor.mT

    def probs(self) -> Tensor:
        """``E sigmoid(lambda)``, ``[*groups, n]``."""
        return mean_sigmoid(self.mean, self.variance, FINE)

    def deviations(self, leading: tuple[int, ...] = (), generator: torch.Generator | None = None) -> Tensor:
        """Draws of ``delta``, ``[*leading, *groups, n]``, reparameterised."""
        own, shared = (
            torch.randn(
                (*leading, *shape), generator=generator, dtype=self.mean.dtype, device=self.mean.device
            )
            for shape in (self.diagonal.shape, self.factor.shape[:-2] + self.factor.shape[-1:])
        )
        return self.diagonal.sqrt() * own + (shared.unsqueeze(-2) @ self._rows).squeeze(-2)

    @staticmethod
    def _times(matrix: Tensor, vector: Tensor) -> Tensor:
        return (matrix @ vector.unsqueeze(-1)).squeeze(-1)

    @cached_property
    def _rows(self) -> Tensor:
        """``V' [*groups, rank, n]``, whose rows lie together in memory."""
        return self.factor.mT.contiguous()

    @cached_property
    def _damping(self) -> Tensor:
        """``1 / (1 + h d)``, ``[*groups, n]``."""
        return 1 / (1 + self.curvature * self.diagonal)

    @cached_property
    def _root(self) -> Tensor:
        """Cholesky factor of ``M``, ``[*groups, rank, rank]``."""
        inner = WeightedGram.apply(self._rows, self.curvature * self._damping)
        return torch.linalg.cholesky(torch.eye(inner.shape[-1]).to(inner) + inner)

    @cached_property
    def _log_det(self) -> Tensor:
        """``log det(I + Sigma diag(h))``, ``[*groups]``."""
        return 2 * self._root.diagonal(dim1=-2, dim2=-1).log().sum(-1) - self._damping.log().sum(-1)

    def log_ratio(self, gates: Tensor, deviation: Tensor, variance: Tensor | float = 0.0) -> Tensor:
        """``log q(lambda) - log r(lambda | gamma)``, ``[*leading, *groups]``; or its expectation over
        independent indicators with means ``gates [*leading, *groups, n]`` and variances ``[*groups, n]``.
        """
        damping, root = self._damping, self._root
        centred = self.pull * (gates - self.slope)
        variance = self.pull.square() * variance
        own = self.diagonal * damping * (centred.square() + variance)
        linear = (0.5 * self.curvature * deviation - centred) * deviation
        seen = (self._rows * (damping * centred).unsqueeze(-2)).sum(-1, keepdim=True)
        shared = torch.linalg.solve_triangular(root, seen, upper=False).square().sum((-2, -1))
        spread = WeightedGram.apply(self._rows, damping.square() * variance)
        shared = shared + torch.cholesky_solve(spread, root).diagonal(dim1=-2, dim2=-1).sum(-1)
        return (linear + 0.5 * own).sum(-1) + 0.5 * (shared - self._log_det)

    def log_gates(self, gates: Tensor, n: int) -> Tensor:
        """``log q(gamma)`` of indicators ``[*leading, *groups, n]``, estimated by draws from ``r``: the same
        ones at every call.
        """
        generator = torch.Generator().manual_seed(0)
        own = self.diagonal * self._damping
        # S = diag(own) + spread spread'
        spread = torch.linalg.solve_triangular(
            self._root, self._damping.unsqueeze(-2) * self._rows, upper=False
        ).mT
        centred = self.pull * (gates - self.slope)
        mean = own * centred + self._times(spread, self._times(spread.mT, centred))
        shape = (n, *mean.shape)
        inner = torch.randn((*shape[:-1], spread.shape[-1]), generator=generator).to(mean)
        deviation = mean + own.sqrt() * torch.randn(shape, generator=generator).to(mean)
        deviation = deviation + self._times(spread, inner)
        logits = self.mean + deviation
        given = (gates * logits - softplus(logits)).sum(-1)
        return torch.logsumexp(given + self.log_ratio(gates, deviation), 0) - math.log(n)


@dataclass(frozen=True)
class Layout:
    """How a site's weights fall into groups with correlated inclusion: one group for each output unit.

    :ivar event: the site's event shape
    :ivar unit_dim: the event dimension that counts output units, if there are several
    """

    event: tuple[int, ...]
    unit_dim: int = 0

    def to_groups(self, tensor: Tensor) -> Tensor:
        """``[..., *event] -> [..., n]`` or, with several event dimensions, ``[..., units, n]``."""
        if len(self.event) < 2:
            return tensor if self.event else tensor.unsqueeze(-1)
        units_first = tensor.movedim(self._unit_dim, -len(self.event))
        return units_first.flatten(1 - len(self.event))

    def from_groups(self, grouped: Tensor) -> Tensor:
        """The inverse of :meth:`to_groups`."""
        if len(self.event) < 2:
            return grouped if self.event else grouped.squeeze(-1)
        others = list(self.event)
        others.pop(self._unit_dim)
        return grouped.unflatten(-1, others).movedim(-len(self.event), self._unit_dim)

    @property
    def _unit_dim(self) -> int:
        return self.unit_dim - len(self.event)


class CorrelatedSpikeSlabLaw(SpikeSlabLaw):
    """A spike and slab given one draw of its logits, scored with ``log q(lambda) / r(lambda | gamma)`` too.

    Vectorized particles share the draw while the moments are used, and have draws of their own otherwise.

    :param gaussian: of the logits, in the groups of ``layout``
    """

    def __init__(self, name, batch_shape, event_shape, loc, log_scale, _, gaussian, *, layout, **kwargs):
        self.gaussian, self.layout = gaussian, layout
        self.deviation = gaussian.deviations()
        logits = layout.from_groups(gaussian.mean + self.deviation)
        super().__init__(name, batch_shape, event_shape, loc, log_scale, logits, **kwargs)

    def mean_logits(self) -> Callable[[], Tensor]:
        gaussian, layout = self.gaussian, self.layout
        mean, diagonal, factor = (t.detach() for t in (gaussian.mean, gaussian.diagonal, gaussian.factor))
        limits = torch.finfo(mean.dtype)

        def logits() -> Tensor:  # of which few runs ask
            variance = diagonal + factor.square().sum(-1)
            probs = mean_sigmoid(mean, variance, QUICK).clamp(limits.tiny, 1 - limits.eps)
            return layout.from_groups(probs).logit()

        return logits

    def _draw(self, operation: str) -> Tensor:
        drawn = super()._draw(operation)
        if not self.leading:
            return drawn
        logits = self.gaussian.mean + self.gaussian.deviations(tuple(self.leading))
        slab = RandomTensorLaw._draw(self, operation)
        on = torch.rand_like(slab) < torch.sigmoid(self.layout.from_groups(logits))
        return torch.where(on, slab, torch.zeros_like(slab))

    _log_density = RandomTensorLaw._log_density  # a mixture over the logits

    @cached_property
    def correction(self) -> Tensor:
        """``E[log q(lambda) - log r(lambda | gamma)]`` given the drawn logits, for each element of plates
        around the site.
        """
        probs = self.layout.to_groups(torch.sigmoid(self.logits))
        ratio = self.gaussian.log_ratio(probs, self.deviation, probs * (1 - probs))
        return ratio.flatten(self.plate_dims).sum(-1) if ratio.dim() > self.plate_dims else ratio

    @cached_property
    def moments_and_kl(self) -> tuple[Tensor, Tensor, Tensor | None]:
        mean, variance, kl = super().moments_and_kl
        return mean, variance, None if kl is None else kl + self.correction

    @cached_property
    def minus_entropy(self) -> Tensor:
        return super().minus_entropy + self.correction
