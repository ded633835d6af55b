r"""Spike and slab with correlated inclusion: the logits of a layer follow a Gaussian (the LBBNN with a
multivariate normal on the inclusion of Hubin and Storvik 2019), with the bound that this needs.

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
from functools import cached_property, partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import logsigmoid, softplus

from guides.core.checks import check_numbers
from guides.core.distributions import SpikeSlab
from guides.core.fused import pieces
from guides.core.laws import SiteLaw
from guides.core.sites import Site, require_whole_plates, site_views
from guides.core.starts import initial_value
from guides.core.weight_laws import RandomTensorLaw, SpikeSlabLaw
from guides.variational.spike_slab import AutoSpikeSlab

#: Draws from ``r`` with which ``log q`` of drawn indicators is estimated.
IMPORTANCE_DRAWS = 200


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


class AutoSpikeSlabMVN(AutoSpikeSlab):
    """:class:`~guides.AutoSpikeSlab` with correlated inclusion: for each output unit the inclusion logits of
    its weights follow a Gaussian, ``Normal(m, diag(d) + V V')`` or one with a full covariance.

    Where columns of the data are strongly correlated the posterior includes one of them *or* another; mean
    field has to settle for one.  The bound is a proper one, with the density of the logits in it: see the
    head of :mod:`guides.variational.correlated_inclusion`.  Only inclusion is correlated; slabs stay
    independent. A vector of weights is one group, of a matrix or a filter bank every output unit has a group
    of its own, and so has every element of a plate.

    :param model: a Pyro model
    :param rank: columns of ``V``; None for a full covariance through its Cholesky factor, ``n (n + 1) / 2``
        parameters an output unit
    :param init_spread: start of the logits' standard deviations.  Wide ones let a few columns find both of
        two modes; in a network of many weights they cost more than training gets back, and 0.5 is better

    Other arguments, and the limits on how weights may be used, as for :class:`~guides.AutoSpikeSlab`; with
    ``empirical_bayes`` the inclusion probabilities that a prior follows are averages over the logits.

    :raises UnsupportedSiteError: at the first call, for a spike-and-slab site in a subsampled plate
    """

    draws_inclusion = True

    def __init__(
        self,
        model: Callable,
        *,
        rank: int | None = 4,
        init_spread: float = 2.0,
        init_loc_fn: Callable[[dict], Tensor] = initial_value,
        init_scale: float = 0.1,
        init_inclusion: str | tuple[float, float] = "dense",
        empirical_bayes: bool | Literal["rates"] = False,
    ):
        super().__init__(
            model,
            init_loc_fn=init_loc_fn,
            init_scale=init_scale,
            init_inclusion=init_inclusion,
            empirical_bayes=empirical_bayes,
        )
        if rank is not None and not (isinstance(rank, int) and rank > 0):
            raise ValueError(f"rank must be a positive int, or None for a full covariance; got {rank!r}")
        check_numbers(init_spread=init_spread)
        self.rank, self.init_spread = rank, float(init_spread)
        self._unit_dims: dict[str, int] = {}
        self._drawn: dict[str, Tensor] = {}

    # ------------------------------------------------------------------------------------------------------
    # Parameters: slope and curvature are counted from those of the softplus at m, so that zero is Laplace's r

    def _make_site(self, name: str, node: dict) -> Site:
        site = super()._make_site(name, node)
        if self._has_logits(site):
            require_whole_plates(name, node, "AutoSpikeSlab")
        return site

    def _make_parameters(self, latent) -> None:
        super()._make_parameters(latent)
        if "logits" not in self._parameters:
            return
        like = self.logits
        self.slope = nn.Parameter(torch.zeros_like(like))
        self.log_curvature = nn.Parameter(torch.zeros_like(like))
        self.pull = nn.Parameter(torch.ones_like(like))
        self.factor = nn.Parameter(self._initial_factor())
        if self.rank is not None:
            self.log_diagonal = nn.Parameter(torch.full_like(like, math.log(0.5 * self.init_spread**2)))

    def _initial_factor(self) -> Tensor:
        factors = []
        for site in self._spike_slab_sites():
            *groups, n = self._grouped_shape(site)
            if self.rank is None:
                rows, columns = torch.tril_indices(n, n)
                below = 0.1 * self.init_spread * torch.randn(*groups, len(rows))
                packed = torch.where(rows == columns, math.log(self.init_spread), below)
            else:
                each = self.init_spread * (2 * self.rank) ** -0.5  # half of the variance
                packed = each * torch.randn(*groups, n, self.rank)
            factors.append(packed.flatten())
        return torch.cat(factors).to(self.loc)

    def _layout(self, site: Site) -> Layout:
        return Layout(tuple(site.shape[len(site.batch_shape) :]), self._unit_dims.get(site.name, 0))

    def _grouped_shape(self, site: Site) -> torch.Size:
        return self._layout(site).to_groups(torch.empty(site.shape, device="meta")).shape

    def _views(self, loc, log_scale, logits=None, **of_inclusion) -> dict[str, tuple]:
        """``(loc, log_scale)`` of every site; of spike and slab ``(loc, log_scale, m, LogitGaussian)``."""
        views = super()._views(loc, log_scale, logits)
        if logits is None:
            return views
        sites = self._spike_slab_sites()
        means = [self._layout(site).to_groups(views[site.name][2]) for site in sites]
        shapes = [torch.Size((*groups, self._packed_width(n))) for *groups, n in (m.shape for m in means)]
        packed = pieces(of_inclusion.pop("factor"), shapes)
        elementwise = {name: site_views(sites, flat) for name, flat in of_inclusion.items()}
        for i, site in enumerate(sites):
            parts = {name: self._layout(site).to_groups(cut[i]) for name, cut in elementwise.items()}
            views[site.name] += (self._gaussian(means[i], packed[i], **parts),)
        return views

    def _packed_width(self, n: int) -> int:
        """Numbers of ``V`` in a group of ``n`` weights."""
        return n * (n + 1) // 2 if self.rank is None else n * self.rank

    def _gaussian(self, mean, packed, slope, log_curvature, pull, log_diagonal=None) -> LogitGaussian:
        n = mean.shape[-1]
        if self.rank is None:
            rows, columns = torch.tril_indices(n, n, device=mean.device)
            entries = torch.where(rows == columns, packed.exp(), packed)
            square = entries.new_zeros(*mean.shape[:-1], n * n).index_copy(-1, rows * n + columns, entries)
            factor, diagonal = square.unflatten(-1, (n, n)), torch.zeros_like(mean)
        else:
            factor, diagonal = packed.unflatten(-1, (n, self.rank)), log_diagonal.exp()
        curvature = torch.exp(logsigmoid(mean) + logsigmoid(-mean) + log_curvature)
        return LogitGaussian(mean, diagonal, factor, torch.sigmoid(mean + slope), curvature, pull)

    def get_extra_state(self) -> dict:
        return {**super().get_extra_state(), "rank": self.rank, "unit_dims": self._unit_dims}

    def _take_layout(self, layout: dict) -> None:
        super()._take_layout(layout)
        self.rank, self._unit_dims = layout["rank"], dict(layout["unit_dims"])

    def _record_uses(self, *args, **kwargs) -> None:
        super()._record_uses(*args, **kwargs)
        if self._unit_dims:  # loaded, or set up before
            return
        for site in self._spike_slab_sites():
            axis, plates = self._uses[site.name].axis, len(site.batch_shape)
            over_inputs = axis == plates
            self._unit_dims[site.name] = int(site.event_dim == 2 and over_inputs)
        if self.rank is None and any(self._unit_dims.values()):
            self.factor = nn.Parameter(self._initial_factor())  # as many groups as units

    def _law(self, site: Site) -> Callable[..., SiteLaw]:
        if not self._has_logits(site):
            return super()._law(site)
        return partial(CorrelatedSpikeSlabLaw, layout=self._layout(site))

    # ------------------------------------------------------------------------------------------------------
    # Looking at the fit

    def logit_covariance(self, name: str) -> Tensor:
        """``Sigma`` of a site's logits, ``[*groups, n, n]``: a group for every output unit."""
        return self._detached()[name][3].covariance

    def inclusion_probabilities(self) -> dict[str, Tensor]:
        """Posterior inclusion probability of every weight, ``E sigmoid(lambda)``, ``{name: [*site]}``."""
        sites = {site.name: site for site in self._spike_slab_sites()}
        parts = self._detached()
        return {name: self._layout(site).from_groups(parts[name][3].probs()) for name, site in sites.items()}

    def site_distribution(self, name: str):
        """The fitted law of every single element; spike-and-slab elements are not independent."""
        site, parts = self.sites[name], self._detached()[name]
        if not self._has_logits(site):
            return super().site_distribution(name)
        probs = self._layout(site).from_groups(parts[3].probs())
        return SpikeSlab(probs=probs, loc=parts[0], scale=parts[1].exp(), validate_args=False)

    def _inclusion_of_draws(self, name, inclusion, n, generator) -> Tensor:
        gaussian = inclusion[1]
        self._drawn[name] = deviation = gaussian.deviations((n,), generator)
        return torch.sigmoid(self._layout(self.sites[name]).from_groups(gaussian.mean + deviation))

    def draws_with_log_prob(self, n: int, *, seed: int | None = None):
        """Draws, and for each ``log q(w, lambda) - log r(lambda | gamma)`` with the logits it came from,
        ``[n]``: importance weights with this are unbiased.
        """
        draws, total = self.draws(n, seed=seed), 0.0
        for name, site in self.sites.items():
            if not self._has_logits(site):
                total = total + self._log_prob_of_site(name, draws[name])
                continue
            loc, log_scale, _, gaussian = self._detached()[name]
            gates = (draws[name] != 0).to(loc.dtype)
            slab = gates * torch.distributions.Normal(loc, log_scale.exp()).log_prob(draws[name])
            groups, deviation = self._layout(site).to_groups(gates), self._drawn[name]
            logits = gaussian.mean + deviation
            given = (groups * logits - softplus(logits)).sum(-1) + gaussian.log_ratio(groups, deviation)
            slab, given = (part.reshape(n, -1).sum(-1) for part in (slab, given))
            total = total + slab + given
        return draws, total

    def _log_prob_of_site(self, name: str, value: Tensor) -> Tensor:
        """``log q`` of a site's draws ``[n, *site]``; of correlated indicators an estimate, by importance
        sampling, biased downwards.
        """
        site = self.sites[name]
        if not self._has_logits(site):
            return super()._log_prob_of_site(name, value)
        loc, log_scale, _, gaussian = self._detached()[name]
        gates = (value != 0).to(value.dtype)
        slab = gates * torch.distributions.Normal(loc, log_scale.exp()).log_prob(value)
        log_gates = gaussian.log_gates(self._layout(site).to_groups(gates), IMPORTANCE_DRAWS)
        return sum(part.reshape(len(value), -1).sum(-1) for part in (slab, log_gates))
