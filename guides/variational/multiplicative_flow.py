"""Multiplicative normalizing flows: LBBNN-MNF / FLOW (Skaaret-Lund 2022; Hubin et al. 2022) and, on Gaussian
weights, MNF (Louizos and Welling 2017).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributions import Transform

from guides.core.checks import check_counts
from guides.core.flat_parameters import elementwise_law
from guides.core.laws import SiteLaw
from guides.core.rng import stream_seed
from guides.core.sites import Site, UnsupportedSiteError, drawn_in_part
from guides.core.starts import initial_value
from guides.variational.multiplied_laws import MultipliedGaussianLaw, MultipliedSpikeSlabLaw, along
from guides.variational.multipliers import Multipliers
from guides.variational.spike_slab import AutoSpikeSlab

HIDDEN = (50,)
# Quantiles: nodes for the multipliers' law, draws they (and means) are made from, halvings of the bracket.
NODES, NODE_DRAWS, HALVINGS = 64, 4096, 40
#: Numbers that a piece of the quantiles' work may hold.
PIECE = 4_000_000


class AutoMNF(AutoSpikeSlab):
    """Multiplicative normalizing flows over the weights of layers, on any Pyro model.

    The weights of a layer share latent multipliers ``z`` with a normalizing flow for their law: one for each
    input of a linear layer, one for each filter of a convolution.  Given ``z``, weights are independent::

        q(w_ij | z) = spike and slab with slab Normal(z_i loc_ij, scale_ij)      SpikeSlab prior
        q(w_ij | z) = Normal(z_i loc_ij, scale_ij)                               Normal prior

    and together they are dependent, with marginals that are no Gaussians.  It applies to every such site that
    multiplies the input of a layer (its columns or rows are told apart by how the model uses it); biases and
    all other sites get the laws of :class:`~guides.AutoMeanField`, and sites inside a subsampled plate too.
    What :class:`~guides.AutoSpikeSlab` says about layers, local reparameterization and refusals holds here.

    The loss is ``E[-log p(y | w) + KL(q(w | z) || p) + log q(z) - log r(z | w)]``, an upper bound on minus
    the log evidence, with an auxiliary density ``r``; see :mod:`guides.variational.multipliers`.  In training
    layers and ``r`` see Gaussian activations, in ``svi.evaluate_loss`` networks that are drawn: what that one
    reports is a bound.  One draw of ``z`` in a step serves the layer, its KL and ``r``.
    Against the published versions: the networks of the flows have tanh units, not leaky ReLUs (see
    :mod:`guides.flows.gated`); ``r`` is the density of the whole vector (they index its last scalar,
    ``z_b[-1]``, or evaluate it at another draw); the flows' log-determinants are exact (theirs is not that of
    equation 3.7; see :mod:`guides.flows.gated`); ``z`` is drawn once (they draw it twice or more); the
    variance is ``alpha (sigma^2 + (1 - alpha) mu^2 z^2)`` (the thesis prints ``alpha^2 sigma^2``); and ``z``
    starts around 1, where it is neutral.

    :param model: a Pyro model
    :param flow: ``"rnvp"`` (gated couplings) or ``"iaf"`` (gated MADE: its inverse, which only
        :meth:`log_prob` needs, is slow)
    :param num_flows: steps of the flow, and of the auxiliary density's
    :param hidden: widths of the hidden layers in each step
    :param init_loc_fn: start of the slab means; by default :func:`guides.core.starts.initial_value`, a draw
    :param init_scale: start of the slab standard deviations, as a share of the prior's
    :param init_inclusion: start of the inclusion logits, as for :class:`~guides.AutoSpikeSlab`
    :param init_z: start of the means of ``z``
    :param init_z_scale: start of its standard deviations; independent weights are a stationary point of the
        loss, which narrow multipliers seldom leave: take some 0.6 where few weights are strongly correlated
    :param empirical_bayes: as for :class:`~guides.AutoSpikeSlab`
    :raises PathwiseGradientError: at the first call, when a weight is used in a way that has no gradient
    """

    def __init__(
        self,
        model: Callable,
        *,
        flow: str = "rnvp",
        num_flows: int = 2,
        hidden: Collection[int] = HIDDEN,
        init_loc_fn: Callable[[dict], Tensor] = initial_value,
        init_scale: float = 0.1,
        init_inclusion: str | tuple[float, float] = "dense",
        init_z: float = 1.0,
        init_z_scale: float = 0.1,
        empirical_bayes: bool | Literal["rates"] = False,
    ):
        super().__init__(
            model,
            init_loc_fn=init_loc_fn,
            init_scale=init_scale,
            init_inclusion=init_inclusion,
            empirical_bayes=empirical_bayes,
        )
        if not (init_z_scale > 0 and math.isfinite(init_z)):
            raise ValueError(
                f"init_z must be finite and init_z_scale positive, got {init_z} and {init_z_scale}"
            )
        if not isinstance(hidden, Collection):
            raise ValueError(f"hidden must be a collection of widths, got {hidden}; write hidden=({hidden},)")
        self._flow_options = (flow, num_flows, tuple(hidden))
        Multipliers(2, *self._flow_options, 1.0, 1.0)  # complains about wrong options now, not at set-up
        self.init_z, self.init_z_scale = float(init_z), float(init_z_scale)
        self.multipliers = nn.ModuleList()
        self._multipliers_names: list[str] = []
        self._subsampled: set[str] = set()

    # ------------------------------------------------------------------------------------------------------
    # Set-up

    def _make_site(self, name: str, node: dict) -> Site:
        if any(map(drawn_in_part, node["cond_indep_stack"])):
            self._subsampled.add(name)
        return super()._make_site(name, node)

    def _record_uses(self, *args, **kwargs) -> None:
        super()._record_uses(*args, **kwargs)
        if len(self.multipliers):  # loaded, or set up before
            return
        for name, site in self.sites.items():
            uses = self._uses.get(name)
            if not site.shape or not site.numel:  # a single number has no inputs, nor has an empty layer
                continue
            if uses is not None and uses.is_weight and name not in self._subsampled:
                axis = len(site.shape) - 1 if uses.axis is None else uses.axis
                self.sites[name] = replace(site, multiplied=axis)
        self._make_multipliers()

    def _multiplied_sites(self) -> list[Site]:
        return [site for site in self.sites.values() if site.multiplied is not None]

    def _make_multipliers(self) -> None:
        start = self.init_z, self.init_z_scale
        like = self.loc if "loc" in self._parameters else torch.zeros(())
        self.multipliers = nn.ModuleList(
            Multipliers(site.shape[site.multiplied], *self._flow_options, *start).to(like)
            for site in self._multiplied_sites()
        )
        # Asked in every step, and slow to ask: a module has a dozen parts.
        self._multipliers_names = [f"multipliers.{name}" for name, _ in self.multipliers.named_parameters()]

    def _multipliers_of(self, name: str) -> Multipliers:
        return self.multipliers[[site.name for site in self._multiplied_sites()].index(name)]

    def _announce_modules(self) -> None:
        for name in self._multipliers_names:
            self._param(name)

    def _law(self, site: Site) -> Callable[..., SiteLaw]:
        if site.multiplied is None or not len(self.multipliers):
            return super()._law(site)
        law = MultipliedSpikeSlabLaw if self._has_logits(site) else MultipliedGaussianLaw
        return partial(law, multipliers=self._multipliers_of(site.name), axis=site.multiplied)

    def _subsample(self, site: Site, frame) -> Tensor:
        if site.multiplied is not None:
            raise UnsupportedSiteError(
                f"site {site.name!r}: plate {frame.name!r} is subsampled now and was not when the guide was "
                "set up; set it up with a call that subsamples"
            )
        return super()._subsample(site, frame)

    # ------------------------------------------------------------------------------------------------------
    # Looking at the fit

    @property
    def flows(self) -> dict[str, Transform]:
        """The flow of every layer's multipliers, ``{site: torch Transform}``, from ``z0`` to ``z``."""
        return {site.name: self._multipliers_of(site.name).flow for site in self._multiplied_sites()}

    @torch.no_grad()
    def draws(self, n: int, *, seed: int | None = None) -> dict[str, Tensor]:
        """Independent networks, ``{name: [n, *site]}``: each has multipliers of its own, then
        indicators and weights; exact zeros included.

        :param seed: makes the draws repeatable without touching torch's global generator
        """
        return self._networks(n, seed)[0]

    @torch.no_grad()
    def draws_with_log_prob(self, n: int, *, seed: int | None = None) -> tuple[dict[str, Tensor], Tensor]:
        """:meth:`draws`, and ``log q(w, z) - log r(z | w)`` of each, ``[n]``, at the ``z`` that
        the network was drawn with.

        Given ``w``, the mean of ``r(z | w) / q(w, z)`` is ``1 / q(w)``: importance weights
        ``p(y, w) r(z | w) / q(w, z)`` are unbiased for the evidence, and the mean of their logarithm is the
        ELBO.  Pareto k of these weights grades guide and auxiliary density together.
        """
        draws, multipliers = self._networks(n, seed)
        total: Tensor | float = 0.0
        for name, value in draws.items():
            if name in multipliers:
                z, log_density = multipliers[name]
                module = self._multipliers_of(name)
                guess = module.log_auxiliary(z, self._activations(name, value))
                total = total + log_density + self._log_prob_given(name, value, z) - guess
            else:
                total = total + self._log_prob_of_site(name, value)
        return draws, total

    def _networks(self, n: int, seed: int | None) -> tuple[dict, dict]:
        """``(draws, {site: (z [n, d], log q(z) [n])})``."""
        check_counts(n=n)
        parameters, generator = self._detached(), self._generator(seed)
        multipliers = {}
        for site in self._multiplied_sites():
            loc, *others = parameters[site.name]
            multipliers[site.name] = self._draw_multipliers(site.name, n, generator)
            z = along(multipliers[site.name][0], site.multiplied, len(site.shape))
            parameters[site.name] = (loc * z, *others)
        return self._draw(parameters, n, generator), multipliers

    def _draw_multipliers(self, name: str, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """``z [count, d]`` and ``log q(z) [count]`` of a layer with ``d`` multipliers."""
        module = self._multipliers_of(name)
        like = {"dtype": self.loc.dtype, "device": self.loc.device}
        return module(torch.randn((count, len(module.contraction)), generator=generator, **like))

    def _activations(self, name: str, value: Tensor) -> Tensor:
        """What the auxiliary density sees of drawn weights ``[n, *site]``, ``[n, outputs]``."""
        contraction = self._multipliers_of(name).contraction
        axis = 1 + self.sites[name].multiplied
        return torch.tensordot(value, contraction, ([axis], [0])).reshape(len(value), -1)

    def _log_prob_given(self, name: str, value: Tensor, z: Tensor) -> Tensor:
        """``log q(w | z)`` of draws ``[n, *site]``, ``[n]``."""
        loc, *others = self._detached()[name]
        law = elementwise_law(loc * along(z, self.sites[name].multiplied, loc.dim()), *others)
        return law.log_prob(value).reshape(len(value), -1).sum(-1)

    @torch.no_grad()
    def log_prob(
        self, draws: dict[str, Tensor], *, num_multipliers: int = 100, seed: int | None = 0
    ) -> Tensor:
        """An estimate of ``log q(w)`` of draws ``{name: [n, *site]}``, shape ``[n]``.

        ``log q(w) = log E[q(w, z) / r(z | w)]`` under ``r(z | w)``, by the logarithm of a mean over
        ``num_multipliers`` guesses: random, below the truth in expectation, and equal to it in the limit.
        In importance ratios use :meth:`draws_with_log_prob`, which is unbiased there.
        """
        # by the random numbers of draws with the same seed, guesses would be those draws' own multipliers
        generator = self._generator(None if seed is None else stream_seed("guessed multipliers", seed))
        total: Tensor | float = 0.0
        multiplied = {site.name for site in self._multiplied_sites()}
        for name in self.sites:
            if name in multiplied:
                estimates = [self._guessed(name, draws[name], generator) for _ in range(num_multipliers)]
                total = total + torch.stack(estimates).logsumexp(0) - math.log(num_multipliers)
            else:
                total = total + self._log_prob_of_site(name, draws[name])
        return total

    def _guessed(self, name: str, value: Tensor, generator: torch.Generator) -> Tensor:
        """``log [q(w, z) / r(z | w)]`` of draws ``[n, *site]`` at a guess of ``z``, ``[n]``."""
        module, seen = self._multipliers_of(name), self._activations(name, value)
        like = {"generator": generator, "dtype": value.dtype, "device": value.device}
        z = module.guess(torch.randn((len(value), len(module.contraction)), **like), seen)
        return module.log_prob(z) + self._log_prob_given(name, value, z) - module.log_auxiliary(z, seen)

    def site_distribution(self, name: str):
        """As for every guide; :raises NotImplementedError: for weights that share multipliers."""
        if self.sites[name].multiplied is not None:
            raise NotImplementedError(
                f"site {name!r}: its weights share multipliers, so their law is no distribution of "
                "independent elements; use draws, quantiles, inclusion_probabilities or draws_with_log_prob"
            )
        return super().site_distribution(name)

    @torch.no_grad()
    def mean_of_site(self, name: str) -> Tensor:
        """As for every guide; of weights with multipliers ``alpha mu E[z]``, with the mean of 4096 draws of
        ``z`` (seed 0).
        """
        axis = self.sites[name].multiplied
        if axis is None:
            return super().mean_of_site(name)
        loc, _, *logits = self._detached()[name]
        z = self._draw_multipliers(name, NODE_DRAWS, self._generator(0))[0].mean(0)
        return loc * along(z, axis, loc.dim()) * (torch.sigmoid(logits[0]) if logits else 1.0)

    @torch.no_grad()
    def _quantiles_of_site(self, name: str, levels: Tensor) -> Tensor:
        """Of the marginal law of every weight, a mixture over its multiplier, which stands for
        ``NODES`` equally likely values.
        """
        site = self.sites[name]
        if site.multiplied is None:
            return super()._quantiles_of_site(name, levels)
        loc, log_scale, *inclusion = (t.movedim(site.multiplied, -1) for t in self._detached()[name])
        z = self._draw_multipliers(name, NODE_DRAWS, self._generator(0))[0].sort(0).values
        nodes = z.reshape(NODES, -1, z.shape[-1]).mean(1)
        columns = torch.arange(loc.shape[-1], device=loc.device).expand(loc.shape).flatten()
        flat = loc.flatten(), log_scale.exp().flatten(), columns
        probs = torch.sigmoid(inclusion[0]).flatten() if inclusion else torch.ones_like(flat[0])
        rows = [_mixture_quantile(level, nodes, *flat, probs) for level in levels]
        return torch.stack(rows).reshape(len(levels), *loc.shape).movedim(-1, 1 + site.multiplied)

    # ------------------------------------------------------------------------------------------------------
    # Saving

    def get_extra_state(self) -> dict:
        flow, num_flows, hidden = self._flow_options
        options = {"flow": flow, "num_flows": num_flows, "hidden": list(hidden)}
        return {**super().get_extra_state(), "multipliers": options}

    def _take_layout(self, layout: dict) -> None:
        super()._take_layout(layout)
        options = layout["multipliers"]
        options = options["flow"], options["num_flows"], tuple(options["hidden"])
        kept = [module.contraction.numel() for module in self.multipliers]
        if options != self._flow_options or kept != [s.shape[s.multiplied] for s in self._multiplied_sites()]:
            self._flow_options = options
            self._make_multipliers()


def _mixture_quantile(
    level: Tensor, nodes: Tensor, loc: Tensor, scale: Tensor, columns: Tensor, probs: Tensor
) -> Tensor:
    """One quantile of every element, ``[e]``: zero with probability ``1 - probs``, else the equal mixture of
    ``Normal(nodes[:, columns] loc, scale)``, by bisection.
    """
    result = torch.zeros_like(loc)
    size = max(1, PIECE // len(nodes))
    for piece in torch.arange(len(loc), device=loc.device).split(size):
        centres = nodes[:, columns[piece]] * loc[piece]
        width, share = scale[piece], probs[piece]

        def slab_cdf(value: Tensor, centres: Tensor = centres, width: Tensor = width) -> Tensor:
            return torch.special.ndtr((value - centres) / width).mean(0)

        below = share * slab_cdf(torch.zeros_like(width))  # mass left of the spike
        right = level > below + 1 - share
        target = torch.where(right, 1 - (1 - level) / share, level / share)
        low, high = centres.min(0).values - 8 * width, centres.max(0).values + 8 * width
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            above = slab_cdf(middle) > target
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        on = right | (level < below)
        result[piece] = torch.where(on, 0.5 * (low + high), torch.zeros_like(low))
    return result
