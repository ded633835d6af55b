"""Sparsity by groups: the horseshoe as a prior for any Pyro model, and the group normal-Jeffreys guide.

The method called "BNN-HP-MF" and a horseshoe by Hubin and Storvik (2019) is the group normal-Jeffreys of
Louizos, Ullrich and Welling (2017): an improper log-uniform prior on one scale for each input.  A horseshoe
has half-Cauchy scales (Carvalho, Polson and Scott 2010).  Both are here under their own names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property

import pyro
import torch
from pyro import distributions as dist
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn
from torch.nn.functional import softplus

from guides.core.checks import check_numbers
from guides.core.distributions import base_prior
from guides.core.flat_guide import FlatGuide
from guides.core.laws import SiteLaw
from guides.core.sites import (
    Site,
    checked_names,
    input_axis,
    require_centred,
    require_known,
    require_whole_plates,
    shape_over_inputs,
)
from guides.core.starts import initial_value
from guides.core.weight_laws import GaussianLaw, RandomTensorLaw

#: Molchanov, Ashukha and Vetrov (2017): -KL(N(m, a m^2) || log-uniform) = k1 sigmoid(k2 + k3 log a)
#: - log(1 + 1/a) / 2 - k1, up to a constant.
K1, K2, K3 = 0.63576, 1.87320, 1.48695

#: Below this a multiplier's mean counts as this: at zero, where descent does arrive, the divergence is finite
#: and has no slope, and the logarithm of the mean has neither.
TINY_MEAN = 1e-15

#: Marks the factors of a horseshoe, which no other one takes.
FACTOR = "_horseshoe_factor"

#: Draws from which quantiles of products are estimated.
QUANTILE_DRAWS = 4000


def log_variance_to_mean(z_loc: Tensor, z_log_scale: Tensor) -> Tensor:
    """``log alpha = log(v^2 / m^2)`` of ``z ~ Normal(m, v^2)``, elementwise."""
    return 2 * (z_log_scale - z_loc.abs().clamp(min=TINY_MEAN).log())


class Horseshoe(Messenger):
    """Puts a horseshoe in the place of Normal priors, non-centred, in any Pyro model::

        sparse = Horseshoe(["w1", "w2"])(model)
        guide = AutoMeanField(sparse)

    A site ``w ~ Normal(0, s)`` of event shape ``[out, in, ...]`` becomes ``w = w_raw w_local w_global`` with
    ``w_raw ~ Normal(0, s)``, ``w_local ~ HalfCauchy(1)`` for each input (``[1, in, 1, ...]``; in a vector for
    each element) and ``w_global ~ HalfCauchy(global_scale)``.  ``w`` itself is deterministic; it stays in
    traces, and the guide's sites are the three factors.  :class:`~guides.AutoMeanField` gives the scales
    log-normal laws, and layers keep their local reparameterization.  Of vectorised particles and of
    ``Predictive(parallel=True)`` the product has the dimensions in front, ``[particles, 1, out, in]``, as
    under Pyro's own guides: ``F.linear`` cannot take it.

    :param sites: names of the weights; by default all Normal sites with at least two event dimensions
    :param global_scale: of every site's half-Cauchy
    :raises ValueError: when the model runs, for a site whose prior is no centred Normal, or that it has not,
        and when there is no site to take
    """

    def __init__(self, sites: Collection[str] | None = None, *, global_scale: float = 1.0):
        super().__init__()
        check_numbers(global_scale=global_scale)
        self.sites = checked_names(sites)
        self.global_scale = float(global_scale)
        self._met: list[str] = []
        self._took = False

    def __enter__(self) -> Horseshoe:
        self._met, self._took = [], False
        return super().__enter__()

    def __exit__(self, exc_type, exc_value, traceback) -> None:
        super().__exit__(exc_type, exc_value, traceback)
        if exc_type is not None:
            return
        if self.sites is not None:
            require_known(self.sites, self._met)
        elif not self._took:
            raise ValueError(
                "no site is a matrix of weights with a Normal prior (the sites are "
                f"{', '.join(self._met) or 'none'}); name those that the horseshoe is for: Horseshoe(['w'])"
            )

    def _pyro_sample(self, msg: dict) -> None:
        name, prior = msg["name"], msg["fn"]
        if msg["is_observed"] or site_is_subsample(msg) or msg["infer"].get(FACTOR):
            return
        self._met.append(name)
        if self.sites is not None and name not in self.sites:
            return
        base, event = base_prior(prior), prior.event_shape
        fits = isinstance(base, dist.Normal) and len(event) > 0
        if self.sites is None and not (fits and len(event) > 1):
            return
        if not fits:
            raise ValueError(
                f"site {name!r}: a horseshoe takes the place of a weight's Normal prior, and this one's is "
                f"{type(base).__name__}; leave it out of sites"
            )
        require_centred(name, prior)
        shape = event if len(event) == 1 else (1, event[1]) + (1,) * (len(event) - 2)
        one = torch.ones((), dtype=base.loc.dtype, device=base.loc.device)
        self._took = True
        laws = {
            "raw": prior,
            "local": dist.HalfCauchy(one).expand(shape).to_event(len(shape)),
            "global": dist.HalfCauchy(self.global_scale * one),
        }
        raw, local, shrink = (
            pyro.sample(f"{name}_{part}", law, infer={FACTOR: True}) for part, law in laws.items()
        )
        value = raw * (local * shrink.reshape(shrink.shape + (1,) * len(shape)))
        msg["fn"] = dist.Delta(value, event_dim=len(event), validate_args=False).mask(False)
        msg["value"], msg["is_observed"] = value, True
        msg["infer"] = {**msg["infer"], "_deterministic": True}


class GroupNormalJeffreysLaw(GaussianLaw):
    """``w = z w~``, ``w~ ~ Normal(loc, scale)``, given one draw of ``z`` for each input.

    :param z_loc: mean of ``z``, ``[*site]`` with 1 beside the inputs
    :param z_log_scale: log standard deviation of ``z``, of the same shape
    """

    def __init__(self, name, batch_shape, event_shape, loc, log_scale, z_loc, z_log_scale, **kwargs):
        super().__init__(name, batch_shape, event_shape, loc, log_scale, **kwargs)
        self.z_loc, self.z_log_scale = z_loc, z_log_scale
        self.z = self._multiplier(())

    def _multiplier(self, leading: tuple[int, ...]) -> Tensor:
        noise = torch.randn((*leading, *self.z_loc.shape), dtype=self.loc.dtype, device=self.loc.device)
        return self.z_loc + self.z_log_scale.exp() * noise

    @cached_property
    def moments_and_kl(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and variance given ``z``, and the divergence, up to the constant of the improper prior."""
        log_alpha = log_variance_to_mean(self.z_loc, self.z_log_scale)
        of_z = K1 - K1 * torch.sigmoid(K2 + K3 * log_alpha) + 0.5 * softplus(-log_alpha)
        # p(w | z) = Normal(0, z s): z drops out of this divergence
        loc, variance, of_w = super().moments_and_kl
        if of_w is None:
            ratio = self.log_scale - self.prior.scale.log()
            of_w = self._sum_own(0.5 * (torch.exp(2 * ratio) + (loc / self.prior.scale) ** 2 - 1) - ratio)
        return self.z * loc, self.z**2 * variance, self._sum_own(of_z) + of_w

    def _sum_own(self, elementwise: Tensor) -> Tensor:
        return elementwise.sum(tuple(range(-self.event_dim, 0)))

    @property
    def minus_entropy(self) -> Tensor:
        raise NotImplementedError(
            f"site {self.name!r}: its prior is improper, draws cannot be weighed by it (a loss that guesses "
            "max_plate_nesting weighs them: give it one)"
        )

    _log_density = RandomTensorLaw._log_density  # a mixture over z

    def _draw(self, operation: str) -> Tensor:
        z = self._multiplier(tuple(self.leading)) if self.leading else self.z
        return z * super()._draw(operation)


class AutoGroupNormalJeffreys(FlatGuide):
    """Group normal-Jeffreys (Louizos, Ullrich and Welling 2017, "Bayesian compression"; the "BNN-HP-MF" of
    Hubin and Storvik).

    For every site with a Normal(0, s) prior and at least two event dimensions the prior is **replaced** by
    ``w = z w~``, ``w~ ~ Normal(0, s)``, ``p(z_i) ~ 1/|z_i|`` with one ``z`` for each input.  The law has
    ``z_i ~ Normal(m_i, v_i^2)`` and ``w~`` Gaussian; ``log alpha_i = log v_i^2/m_i^2`` large means that the
    input may go (:meth:`log_alpha`).  One ``z`` serves all rows of a step (the paper draws one for each
    row); given ``z``, layers use local reparameterization.  The divergence of ``z`` is the fitted
    approximation of Molchanov et al. (2017), defined up to a constant because the prior is improper:
    **losses are no evidence bounds**. Other sites are treated as by :class:`~guides.AutoMeanField`.

    :param model: a Pyro model
    :param init_z_scale: start of the standard deviations of ``z``, whose means start at 1

    Other arguments as for :class:`~guides.AutoMeanField`.

    :raises UnsupportedSiteError: at the first call, when such a prior is not centred at zero, or lies in a
        subsampled plate
    :raises ValueError: at the first call, when no site has such a prior
    """

    def __init__(
        self,
        model: Callable,
        *,
        init_z_scale: float = 0.05,
        init_loc_fn: Callable[[dict], Tensor] = initial_value,
        init_scale: float = 0.1,
    ):
        super().__init__(model, init_loc_fn=init_loc_fn, init_scale=init_scale)
        check_numbers(init_z_scale=init_z_scale)
        self.init_z_scale = float(init_z_scale)
        self._axes: dict[str, int] = {}

    def _make_site(self, name: str, node: dict) -> Site:
        site = super()._make_site(name, node)
        if self._has_groups(site):
            require_whole_plates(name, node, "AutoMeanField")
            require_centred(name, node["fn"])
        return site

    @staticmethod
    def _has_groups(site: Site) -> bool:
        return site.family == "normal" and site.event_dim >= 2

    def _grouped(self) -> list[tuple[Site, list[int]]]:
        """Sites with multipliers, and the shape of those."""
        grouped = list(filter(self._has_groups, self.sites.values()))
        axes = [self._axes.get(site.name, input_axis(site, None)) for site in grouped]
        return [(site, shape_over_inputs(site, axis)) for site, axis in zip(grouped, axes, strict=True)]

    def _make_parameters(self, latent) -> None:
        if not any(map(self._has_groups, self.sites.values())):
            raise ValueError(
                f"AutoGroupNormalJeffreys: no site of the model ({', '.join(self.sites)}) has a Normal prior "
                "and two event dimensions; use AutoMeanField"
            )
        super()._make_parameters(latent)
        self._make_multipliers()

    def _make_multipliers(self) -> None:
        count = sum(torch.Size(shape).numel() for _, shape in self._grouped())
        self.z_loc = nn.Parameter(torch.ones(count).to(self.loc))
        self.z_log_scale = nn.Parameter(torch.full_like(self.z_loc, self.init_z_scale).log())

    def _record_uses(self, *args, **kwargs) -> None:
        super()._record_uses(*args, **kwargs)
        if not self._axes:
            grouped = [site for site, _ in self._grouped()]
            self._axes = {site.name: input_axis(site, self._uses[site.name].axis) for site in grouped}
            if any(self._axes[site.name] != input_axis(site, None) for site in grouped):
                self._make_multipliers()

    def _views(self, loc, log_scale, z_loc, z_log_scale) -> dict[str, tuple[Tensor, ...]]:
        views = super()._views(loc, log_scale)
        grouped = self._grouped()
        sizes = [torch.Size(shape).numel() for _, shape in grouped]
        for (site, shape), *pieces in zip(grouped, z_loc.split(sizes), z_log_scale.split(sizes), strict=True):
            views[site.name] += tuple(piece.view(shape) for piece in pieces)
        return views

    def _law(self, site: Site) -> Callable[..., SiteLaw]:
        return GroupNormalJeffreysLaw if self._has_groups(site) else super()._law(site)

    def log_alpha(self) -> dict[str, Tensor]:
        """``log(variance / mean^2)`` of the multipliers, by site ``[*plates, in]``; above 3 or so an input is
        noise (the paper prunes there).
        """
        return {
            name: log_variance_to_mean(p[2], p[3]).flatten(len(self.sites[name].batch_shape))
            for name, p in self._detached().items()
            if len(p) > 2
        }

    def _draw(self, parameters: dict, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        result = super()._draw({name: p[:2] for name, p in parameters.items()}, n, generator)
        for name, p in parameters.items():
            if len(p) > 2:
                like = {"generator": generator, "dtype": p[2].dtype, "device": p[2].device}
                result[name] = result[name] * (p[2] + p[3].exp() * torch.randn((n, *p[2].shape), **like))
        return result

    def site_distribution(self, name: str) -> dist.TorchDistribution:
        """As for other guides; :raises NotImplementedError: for a weight with multipliers."""
        if self._has_groups(self.sites[name]):
            raise NotImplementedError(f"site {name!r}: a product of Gaussians has no simple law; use draws()")
        return super().site_distribution(name)

    @torch.no_grad()
    def mean_of_site(self, name: str) -> Tensor:
        """As for every guide; ``E[w~] E[z]`` of a weight with multipliers."""
        loc, _, *multiplier = self._detached()[name]
        return loc * multiplier[0] if multiplier else super().mean_of_site(name)

    def _quantiles_of_site(self, name: str, levels: Tensor) -> Tensor:
        if not self._has_groups(self.sites[name]):
            return super()._quantiles_of_site(name, levels)
        return torch.quantile(self.draws(QUANTILE_DRAWS, seed=0)[name], levels, dim=0)

    def get_extra_state(self) -> dict:
        return {**super().get_extra_state(), "axes": self._axes}

    def _take_layout(self, layout: dict) -> None:
        super()._take_layout(layout)
        self._axes = dict(layout["axes"])
