"""Spike-and-slab mean field with local reparameterization: LBBNN-LRT (Hubin and Storvik 2019; Skaaret-Lund
2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from guides.core.flat_guide import FlatGuide
from guides.core.laws import SiteLaw
from guides.core.sites import Site, site_views
from guides.core.starts import initial_value
from guides.core.weight_laws import ThesisSpikeSlabLaw

INITIAL_LOGITS = {"mild": (-3.0, 3.0), "polarised": (-10.0, 10.0), "dense": (1.5, 2.5)}


def initial_bounds(start: str | Sequence[float]) -> tuple[float, float]:
    """Bounds of the inclusion logits at the start; see :class:`AutoSpikeSlab` for the names.

    :raises ValueError: for another name, and for anything that is no pair of finite ``low <= high``
    """
    if isinstance(start, str):
        pair = INITIAL_LOGITS.get(start, ())
    else:
        pair = tuple(start) if isinstance(start, Sequence) else ()
    if len(pair) != 2 or not (all(map(math.isfinite, pair)) and pair[0] <= pair[1]):
        names = ", ".join(INITIAL_LOGITS)
        raise ValueError(
            f"init_inclusion must be one of {names} or a pair (low, high) of logits, got {start!r}"
        )
    return pair


class AutoSpikeSlab(FlatGuide):
    """A spike-and-slab law for every site with a :class:`~guides.SpikeSlab` prior, on any Pyro model.

    Each such weight is zero with probability ``1 - probs`` and else ``Normal(loc, scale)``, and enters one
    linear or convolutional layer, whose output is drawn with the exact mean ``probs loc`` and variance
    ``probs (scale^2 + (1 - probs) loc^2)``.  That output is Gaussian only in the limit of many inputs;
    where a few weights carry much and are out at times the loss of training may promise more than drawn
    networks have, whose bound is that of ``svi.evaluate_loss``.
    Every row of the input gets noise of its own, so each likelihood term must see one row (set-up finds out
    by experiment).  Positions of an image in a convolution see the same filters: there a row sees
    Gaussian filters with the matched moments, where the papers draw noise for every position.  Any other
    use of such a weight is refused by name.  Sites with other priors are treated as
    by :class:`~guides.AutoMeanField`.

    :param model: a Pyro model
    :param init_loc_fn: start of the slab means; by default :func:`guides.core.starts.initial_value`, a draw
    :param init_scale: start of the slab standard deviations, as a share of the prior's
    :param init_inclusion: start of the inclusion logits: ``"mild"`` U(-3, 3), ``"polarised"`` U(-10, 10),
        ``"dense"`` U(1.5, 2.5), or a pair of bounds.  Adam moves a logit by about the learning rate a step,
        so a network of many weights that must mostly go is better started polarised.
    :param variance: ``"exact"``, or ``"thesis"`` for the variance ``probs^2 scale^2`` that Skaaret-Lund
        (2022) prints and uses.  **That one is wrong**: it leaves out the variance of the indicator, nominal
        90 % intervals of an activation cover 15 % of drawn networks at starting values, and what is trained
        is not the law that :meth:`draws` draws from.  It has no use but to
        show that (``zoo reproduce lbbnn/variance``).
    :param empirical_bayes: inclusion and sd of every spike-and-slab prior that the weights of a site share,
        and the sd of such Normal priors (biases), are chosen by the data: those that make the bound largest
        (:mod:`guides.core.learned_priors`; ``learned_priors.numbers`` has what was found).  The model's own
        numbers are where that starts, and stay those of its ``log_prob``: what weighs draws by it
        (``Importance``, ``RenyiELBO``) has them still.  ``"rates"``: the inclusion has a
        factor for every output and every input of a layer, so many numbers that the bound flatters them
        (``learned_priors.charge``)
    :raises PathwiseGradientError: at the first call, when a weight is used in a way that has no gradient
    """

    spike_slab_sites = True
    #: whether a draw draws its inclusion probabilities first
    draws_inclusion = False

    def __init__(
        self,
        model: Callable,
        *,
        init_loc_fn: Callable[[dict], Tensor] = initial_value,
        init_scale: float = 0.1,
        init_inclusion: str | tuple[float, float] = "dense",
        variance: str = "exact",
        empirical_bayes: bool | Literal["rates"] = False,
    ):
        super().__init__(
            model, init_loc_fn=init_loc_fn, init_scale=init_scale, empirical_bayes=empirical_bayes
        )
        if variance not in ("exact", "thesis"):
            raise ValueError(f"variance must be 'exact' or 'thesis', got {variance!r}")
        self.variance = variance
        initial_bounds(init_inclusion)  # complains now, not at set-up
        self.init_inclusion = init_inclusion

    def _law(self, site: Site) -> Callable[..., SiteLaw]:
        if self.variance == "thesis" and self._has_logits(site):
            return ThesisSpikeSlabLaw
        return super()._law(site)

    def _make_parameters(self, latent) -> None:
        super()._make_parameters(latent)
        count = sum(site.numel for site, _ in latent if self._has_logits(site))
        if count:
            bounds = initial_bounds(self.init_inclusion)
            self.logits = nn.Parameter(torch.empty(count).to(self.loc).uniform_(*bounds))

    def _spike_slab_sites(self) -> list[Site]:
        return [site for site in self.sites.values() if self._has_logits(site)]

    def _views(
        self, loc: Tensor, log_scale: Tensor, logits: Tensor | None = None
    ) -> dict[str, tuple[Tensor, ...]]:
        """``(loc, log_scale)`` of every site, and ``(loc, log_scale, logits)`` of spike and slab."""
        views = super()._views(loc, log_scale)
        if logits is None:
            return views
        spikes = self._spike_slab_sites()
        for site, piece in zip(spikes, site_views(spikes, logits), strict=True):
            views[site.name] += (piece,)
        return views

    def inclusion_probabilities(self) -> dict[str, Tensor]:
        """Posterior inclusion probability of every weight, ``{name: [*site]}``."""
        return {name: torch.sigmoid(parts[2]) for name, parts in self._detached().items() if len(parts) > 2}

    def density(self) -> tuple[float, float]:
        """Mean inclusion probability over all weights, and the share of weights above one half.

        :raises ValueError: when the model has no spike-and-slab site
        """
        probs = [p.flatten() for p in self.inclusion_probabilities().values()]
        if not probs:
            raise ValueError("the model has no spike-and-slab site, so there is no inclusion to average")
        return torch.cat(probs).mean().item(), (torch.cat(probs) > 0.5).double().mean().item()
