"""Spike and slab with correlated inclusion: the logits of a layer follow a Gaussian (the LBBNN with a
multivariate normal on the inclusion of Hubin and Storvik 2019).

The laws, and the bound that they need, are those of :mod:`guides.variational.correlated_logits`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from guides.core.checks import check_numbers
from guides.core.distributions import SpikeSlab
from guides.core.fused import pieces
from guides.core.laws import SiteLaw
from guides.core.sites import Site, require_whole_plates, site_views
from guides.core.starts import initial_value
from guides.variational.correlated_logits import CorrelatedSpikeSlabLaw, Layout, LogitGaussian
from guides.variational.spike_slab import AutoSpikeSlab

#: Draws from ``r`` with which ``log q`` of drawn indicators is estimated.
IMPORTANCE_DRAWS = 200


class AutoSpikeSlabMVN(AutoSpikeSlab):
    """:class:`~guides.AutoSpikeSlab` with correlated inclusion: for each output unit the inclusion logits of
    its weights follow a Gaussian, ``Normal(m, diag(d) + V V')`` or one with a full covariance.

    Where columns of the data are strongly correlated the posterior includes one of them *or* another; mean
    field has to settle for one.  The bound is a proper one, with the density of the logits in it: see the
    head of :mod:`guides.variational.correlated_logits`.  Only inclusion is correlated; slabs stay
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
