"""What the variational guides of this package share: any Pyro model in, one law per latent site out.

The guide is a :class:`~pyro.poutine.guide.GuideMessenger`: it runs the model once, answers its latent sites
with random tensors, and hands Pyro's ELBO both traces.  All parameters live in flat vectors (one optimiser
step for the whole guide), as ordinary ``nn.Parameter`` of the guide: Pyro's global parameter store is never
used, so several fits of one model live side by side and ``state_dict`` holds exactly one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import pyro
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.distributions.score_parts import ScoreParts
from pyro.distributions.util import scale_and_mask
from pyro.infer import TraceMeanField_ELBO
from pyro.infer.autoguide.initialization import InitMessenger, init_to_median
from pyro.ops.tensor_utils import periodic_repeat
from pyro.poutine.block_messenger import BlockMessenger
from pyro.poutine.guide import GuideMessenger
from pyro.poutine.runtime import _PYRO_STACK, effectful
from pyro.poutine.trace_messenger import TraceMessenger
from pyro.poutine.util import prune_subsample_sites, site_is_subsample
from torch import Tensor, nn
from torch.distributions import biject_to, constraints

from guides.distributions import SpikeSlab
from guides.laws import (
    REMEDY,
    ClosedFormPrior,
    GaussianLaw,
    SiteLaw,
    SpikeSlabLaw,
    TransformedLaw,
    Uses,
    base_prior,
)
from guides.optim import FusedAdam
from guides.random_tensors import PathwiseGradientError


class UnsupportedSiteError(ValueError):
    """A guide cannot answer a latent site of the model."""


@dataclass(frozen=True)
class Site:
    """One latent site of the model, as the guide parametrises it.

    :ivar family: ``normal`` (Gaussian prior), ``spike_slab``, ``lognormal`` (Gamma prior) or ``transformed``
    :ivar batch_shape: plates around the site, at their full size
    :ivar shape: the unconstrained parameters, ``[*batch, *event]``
    :ivar by_moments: whether the site enters exactly one linear layer, so that the LRT is right
    """

    name: str
    family: str
    batch_shape: tuple[int, ...]
    shape: tuple[int, ...]
    by_moments: bool = False

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def site_family(name: str, prior: dist.TorchDistribution) -> str:
    """Which family a prior asks for; :raises UnsupportedSiteError: for a discrete site."""
    base = base_prior(prior)
    if isinstance(base, SpikeSlab):
        return "spike_slab"
    if isinstance(base, dist.Normal):
        return "normal"
    if isinstance(base, dist.Gamma):
        return "lognormal"
    if prior.support.is_discrete:
        raise UnsupportedSiteError(
            f"site {name!r} is discrete ({type(base).__name__}): marginalise it in the model, or hide it "
            "with poutine.block and give it a guide of its own"
        )
    return "transformed"


def initial_value(site: dict) -> Tensor:
    """Default start: a draw from the prior for weights, which tells hidden units apart (for a spike and slab
    a draw from the slab), and the prior's median for every other site.
    """
    base = base_prior(site["fn"])
    if isinstance(base, (dist.Normal, SpikeSlab)):
        return torch.normal(base.loc, base.scale).expand(site["fn"].shape())
    return init_to_median(site)


class FlatGuide(GuideMessenger, nn.Module):
    """Base of the mean-field guides; see :class:`~guides.mean_field.AutoMeanField` for the arguments."""

    #: families of sites that get a law of their own; the others are Gaussian
    spike_slab_sites = False

    def __init__(
        self,
        model: Callable,
        *,
        init_loc_fn: Callable[[dict], Tensor] = initial_value,
        init_scale: float = 0.1,
    ):
        if not init_scale > 0:
            raise ValueError(f"init_scale must be positive, got {init_scale}")
        nn.Module.__init__(self)
        GuideMessenger.__init__(self, model)
        self.init_loc_fn = init_loc_fn
        self.init_scale = float(init_scale)
        self.sites: dict[str, Site] = {}
        self.observed: list[str] = []
        self._transforms: dict[str, torch.distributions.Transform] = {}
        self._laws: dict[str, tuple[Tensor, ...]] = {}
        self._uses: dict[str, Uses] = {}
        self._recording = False

    # ------------------------------------------------------------------------------------------------------
    # Set-up

    def setup(self, *args, **kwargs) -> None:
        """Makes the parameters from one run of the model, and looks in a second run how weights are used.

        Called by itself on first use.

        :raises UnsupportedSiteError: a latent site has no law here
        :raises PathwiseGradientError: a spike-and-slab site is used in a way that has no gradient
        """
        with torch.no_grad(), poutine.block():
            trace = poutine.trace(InitMessenger(self.init_loc_fn)(self.model)).get_trace(*args, **kwargs)
        latent, self.observed = [], []
        for name, node in trace.nodes.items():
            if node["type"] == "sample" and not site_is_subsample(node):
                if node["is_observed"]:
                    self.observed.append(name)
                else:
                    latent.append((self._make_site(name, node), node))
        # Spike-and-slab sites first: their logits then belong to the head of the flat vectors.
        latent.sort(key=lambda pair: not self._has_logits(pair[0]))
        self._make_parameters(latent)
        self.sites = {site.name: site for site, _ in latent}
        self._record_uses(*args, **kwargs)

    def _make_site(self, name: str, node: dict) -> Site:
        family = site_family(name, node["fn"])
        for frame in node["cond_indep_stack"]:
            if not frame.vectorized:
                raise UnsupportedSiteError(f"site {name!r} lies in a sequential plate; vectorise {frame.name!r}")
        if family in ("lognormal", "transformed"):
            self._transforms[name] = biject_to(node["fn"].support)
        batch = torch.Size(_full_shape(node["fn"].batch_shape, node["cond_indep_stack"]))
        return Site(name, family, tuple(batch), tuple(batch + self._unconstrained_event(name, node)))

    def _unconstrained_event(self, name: str, node: dict) -> torch.Size:
        event = node["fn"].event_shape
        return self._transforms[name].inverse_shape(event) if name in self._transforms else event

    def _has_logits(self, site: Site) -> bool:
        return self.spike_slab_sites and site.family == "spike_slab"

    def _make_parameters(self, latent: list[tuple[Site, dict]]) -> None:
        if not latent:
            self.loc = self.log_scale = nn.Parameter(torch.zeros(0))
            return
        locs, scales = [], []
        for site, node in latent:
            value = node["value"].detach()
            if site.name in self._transforms:
                value = self._transforms[site.name].inv(value)
            scale = torch.full_like(value, self.init_scale)
            base = base_prior(node["fn"])
            if site.family in ("normal", "spike_slab"):
                scale = self.init_scale * base.scale.expand(value.shape)
            for flat, tensor in ((locs, value), (scales, scale)):
                flat.append(_repeat_to(tensor, site, node["cond_indep_stack"]).reshape(-1))
        kinds = {(t.dtype, t.device) for t in locs}
        if len(kinds) > 1:
            raise UnsupportedSiteError(f"latent sites mix dtypes or devices: {sorted(map(str, kinds))}")
        self.loc = nn.Parameter(torch.cat(locs).clone())
        self.log_scale = nn.Parameter(torch.cat(scales).log())

    def _record_uses(self, *args, **kwargs) -> None:
        self._recording = True
        try:
            with torch.no_grad(), poutine.block():
                self(*args, **kwargs)
        finally:
            self._recording = False
        for name, site in self.sites.items():
            uses = self._uses.get(name)
            used_once = uses is not None and uses.used_once
            if self._has_logits(site) and not used_once:
                raise PathwiseGradientError(
                    f"site {name!r} (spike and slab) enters {uses.describe() if uses else 'nothing at all'}: its "
                    f"inclusion has no pathwise gradient there; {REMEDY}"
                )
            self.sites[name] = Site(**{**asdict(site), "by_moments": used_once and self._allows_moments(site)})

    def _allows_moments(self, site: Site) -> bool:
        return True

    # ------------------------------------------------------------------------------------------------------
    # Running the model

    def __call__(self, *args, **kwargs) -> dict[str, Tensor]:
        """Runs the model on this guide's laws.

        :returns: the latent sites' values, by name: random tensors while gradients are wanted
        """
        if not self.sites and not self._recording:
            self.setup(*args, **kwargs)
        self._uses = {}
        with self:
            self._laws = self._read_parameters()  # inside the messenger, or Trace_ELBO sees no parameter
            self.model(*args, **kwargs)
        for uses in self._uses.values():
            uses.recording = True  # looking at a value after the run disturbs nothing
        self._hide_other_sites()
        return {name: node["value"] for name, node in self.trace.nodes.items() if name in self.sites}

    def _hide_other_sites(self) -> None:
        """A guide's trace shows its own latent sites only, though running the model also met the others."""
        for name, node in self.trace.nodes.items():
            if node["type"] == "sample" and name not in self.sites and not site_is_subsample(node):
                for handler in _PYRO_STACK:
                    if isinstance(handler, TraceMessenger) and name in handler.trace:
                        handler.trace.remove_node(name)

    def _read_parameters(self) -> dict[str, tuple[Tensor, ...]]:
        """Per site ``(loc, log_scale, variance)``, views of the flat parameters, each ``[*batch, *event]``."""
        loc, log_scale = self._param("loc"), self._param("log_scale")
        return site_views(self.sites.values(), loc, log_scale, torch.exp(2 * log_scale))

    def _param(self, name: str) -> Tensor:
        """A ``pyro.param`` statement for a parameter of this module, past the global store."""
        parameter = getattr(self, name)

        def value(parameter: Tensor, **_) -> Tensor:
            value = parameter.view_as(parameter)
            value.unconstrained = lambda: parameter  # SVI asks each value for what to optimise
            return value

        statement = effectful(value, type="param")
        return statement(parameter, name=f"{type(self).__name__}_{id(self):x}.{name}", event_dim=None)

    def _pyro_sample(self, msg: dict) -> None:
        site = self.sites.get(msg["name"])
        if site is None or msg["is_observed"]:
            return  # data, plates, and what the guide was told to leave alone
        prior = msg["fn"]
        law = self.get_posterior(msg["name"], prior, msg["cond_indep_stack"])
        if law.batch_shape != prior.batch_shape:
            law = law.expand(prior.batch_shape)
        msg["infer"]["prior"] = prior
        msg["fn"] = law

    def _pyro_post_sample(self, msg: dict) -> None:
        prior, law = msg["infer"].get("prior"), msg["fn"]
        if prior is not None and isinstance(law, SiteLaw):
            if isinstance(law, TransformedLaw) and not law.exact:
                msg["infer"]["prior"] = prior.expand(law.batch_shape)
            else:
                msg["infer"]["prior"] = ClosedFormPrior(prior, law)
        TraceMessenger._pyro_post_sample(self, msg)

    def get_posterior(self, name: str, prior: dist.TorchDistribution, frames=()) -> SiteLaw:
        """The law of one site in this execution, for the data rows that its plates ``frames`` have drawn."""
        site, tensors = self.sites[name], self._laws[name]
        for frame in frames:
            if frame.full_size is not None and frame.full_size != frame.size and frame.name in self.trace:
                event_dim = len(site.shape) - len(site.batch_shape)
                rows = self.trace.nodes[frame.name]["value"]
                tensors = tuple(t.index_select(frame.dim - event_dim, rows) for t in tensors)
        loc, log_scale, variance, *inclusion = tensors
        batch, event = loc.shape[: len(site.batch_shape)], loc.shape[len(site.batch_shape) :]
        if site.family in ("lognormal", "transformed"):
            transform = biject_to(prior.support)
            exact = site.family == "lognormal"
            return TransformedLaw(name, batch, prior.event_shape, loc, log_scale, transform, exact)
        uses = self._uses.setdefault(name, Uses(self._recording))
        by_moments = self._recording or site.by_moments and torch.is_grad_enabled()
        arguments = (name, batch, event, loc, log_scale, variance, by_moments, uses)
        if not inclusion:
            return GaussianLaw(*arguments)
        logits, probs, mean, total = inclusion
        return SpikeSlabLaw(*arguments, logits=logits, probs=probs, mean=mean, total_variance=total)

    def get_traces(self) -> tuple[poutine.Trace, poutine.Trace]:
        """``(model_trace, guide_trace)`` of the last run; Pyro's ELBO asks for them.

        Latent sites that the guide leaves alone (hidden by ``poutine.block``) keep their prior as their law.
        """
        model_trace = prune_subsample_sites(self.trace)
        missing = [n for n in self.observed if n in model_trace and not model_trace.nodes[n]["is_observed"]]
        if missing:
            raise ValueError(f"site {missing[0]!r} was observed when the guide was set up: pass its data again")
        if not self.observed and isinstance(_first_messenger(self.model), BlockMessenger):
            raise ValueError("the guide was built on a model whose poutine.block hides the data: use hide=[...]")
        guide_trace = model_trace.copy()
        for name, node in list(model_trace.nodes.items()):
            if node["type"] != "sample" or node["is_observed"]:
                if node["type"] == "sample":
                    del guide_trace.nodes[name]
                continue
            if name in self.sites:
                prior = node["infer"]["prior"]
                scores = _closed_form_scores(node, prior) if isinstance(prior, ClosedFormPrior) else ({}, {})
                model_trace.nodes[name] = {**node, "fn": prior, **scores[0]}
                guide_trace.nodes[name] = {**node, **scores[1]}
        return model_trace, guide_trace

    # ------------------------------------------------------------------------------------------------------
    # Fitting

    def elbo(self, num_particles: int = 1, **kwargs) -> TraceMeanField_ELBO:
        """The loss we recommend: closed-form KL, Monte Carlo likelihood.  Works before the first call."""
        return TraceMeanField_ELBO(num_particles=num_particles, **kwargs)

    def optimizer(self, lr: float = 0.01, **kwargs) -> FusedAdam:
        """Adam in one fused step over the flat parameters (and those of the model, if it has any)."""
        return FusedAdam(lr=lr, **kwargs)

    def guide_parameters(self) -> dict[str, nn.Parameter]:
        return dict(self.named_parameters())

    # ------------------------------------------------------------------------------------------------------
    # Looking at the fit

    def _require_setup(self) -> None:
        if not self.sites:
            raise RuntimeError("the guide has no parameters yet: call guide.setup(*args) with the model's arguments")

    def _detached(self) -> dict[str, tuple[Tensor, ...]]:
        self._require_setup()
        with torch.no_grad(), poutine.block():
            return self._read_parameters()

    def _constrain(self, name: str, unconstrained: Tensor) -> Tensor:
        site = self.sites[name]
        if site.family == "lognormal":
            return unconstrained.exp()
        if site.family == "transformed":
            if name not in self._transforms:
                raise RuntimeError(f"site {name!r}: call guide.setup(*args) after load_state_dict to learn its support")
            return self._transforms[name](unconstrained)
        return unconstrained

    def draws(self, num_samples: int, *, seed: int | None = None) -> dict[str, Tensor]:
        """Independent draws of every latent site, ``{name: [num_samples, *site]}``, exact zeros included.

        :param seed: makes the draws repeatable without touching torch's global generator
        """
        generator = torch.Generator(self.loc.device)
        generator.manual_seed(int(torch.randint(2**62, ())) if seed is None else seed)
        result = {}
        for name, (loc, log_scale, _, *inclusion) in self._detached().items():
            shape = (num_samples, *loc.shape)
            noise = torch.randn(shape, generator=generator, dtype=loc.dtype, device=loc.device)
            value = loc + log_scale.exp() * noise
            if inclusion:
                uniform = torch.rand(shape, generator=generator, dtype=loc.dtype, device=loc.device)
                value = torch.where(uniform < inclusion[1], value, torch.zeros_like(value))
            result[name] = self._constrain(name, value)
        return result

    def site_distribution(self, name: str) -> dist.TorchDistribution:
        """The fitted law of one site as an ordinary distribution with batch shape ``[*batch, *event]``."""
        loc, log_scale, _, *inclusion = self._detached()[name]
        if inclusion:
            return SpikeSlab(logits=inclusion[0], loc=loc, scale=log_scale.exp(), validate_args=False)
        return dist.Normal(loc, log_scale.exp(), validate_args=False)

    def log_prob(self, draws: dict[str, Tensor]) -> Tensor:
        """``log q`` of draws ``{name: [n, *site]}``, shape ``[n]``."""
        total: Tensor | float = 0.0
        for name, site in self.sites.items():
            value, jacobian = draws[name], 0.0
            if site.family in ("lognormal", "transformed"):
                transform = self._transforms.get(name, biject_to(constraints.positive))
                constrained, value = value, transform.inv(value)
                jacobian = transform.log_abs_det_jacobian(value, constrained).reshape(len(value), -1).sum(-1)
            total = total + self.site_distribution(name).log_prob(value).reshape(len(value), -1).sum(-1) - jacobian
        return total

    def median(self, *args, **kwargs) -> dict[str, Tensor]:
        """The median of every latent site, ``{name: [*site]}``."""
        return {name: values[0] for name, values in self.quantiles([0.5], *args, **kwargs).items()}

    def quantiles(self, quantiles: list[float] | Tensor, *args, **kwargs) -> dict[str, Tensor]:
        """Quantiles of every latent site, ``{name: [len(quantiles), *site]}``."""
        if not self.sites:
            self.setup(*args, **kwargs)
        levels = torch.as_tensor(quantiles, dtype=self.loc.dtype, device=self.loc.device)
        result = {}
        for name in self.sites:
            law = self.site_distribution(name)
            value = law.icdf(levels.reshape(-1, *(1,) * len(law.batch_shape)))
            result[name] = self._constrain(name, value)
        return result

    # ------------------------------------------------------------------------------------------------------
    # Saving: the layout travels with the parameters, so that a fresh guide can load them

    def get_extra_state(self) -> dict:
        return {"sites": [asdict(site) for site in self.sites.values()], "observed": list(self.observed)}

    def set_extra_state(self, state: dict) -> None:
        pass  # taken in _load_from_state_dict, before the parameters

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        layout = state_dict.get(prefix + "_extra_state")
        if layout is not None:
            sites = [Site(**{k: tuple(v) if isinstance(v, list) else v for k, v in s.items()}) for s in layout["sites"]]
            self.sites = {site.name: site for site in sites}
            self.observed = list(layout["observed"])
            for name, value in state_dict.items():
                if name.startswith(prefix) and isinstance(value, Tensor):
                    setattr(self, name[len(prefix) :], nn.Parameter(torch.empty_like(value)))
        nn.Module._load_from_state_dict(self, state_dict, prefix, *args)


def site_views(sites: Iterable[Site], *flat: Tensor) -> dict[str, tuple[Tensor, ...]]:
    """Cuts flat vectors into one tensor per site."""
    sites = list(sites)
    sizes = [site.numel for site in sites]
    pieces = zip(*(tensor.split(sizes) for tensor in flat), strict=True)
    return {
        site.name: tuple(piece.view(site.shape) for piece in row) for site, row in zip(sites, pieces, strict=True)
    }


def _closed_form_scores(node: dict, prior: ClosedFormPrior) -> tuple[dict, dict]:
    """What Pyro's traces would compute, for the model's side and the guide's: minus the KL, and zero."""
    kl = prior.kl
    scaled = scale_and_mask(-kl, node["scale"], node["mask"])
    zero = torch.zeros_like(kl)
    model = {"unscaled_log_prob": -kl, "log_prob": scaled, "log_prob_sum": scaled.sum()}
    guide = {"unscaled_log_prob": zero, "log_prob": zero, "log_prob_sum": zero.sum()}
    return model, {**guide, "score_parts": ScoreParts(zero, 0, zero)}


def _full_shape(shape: torch.Size, frames) -> list[int]:
    full = list(shape)
    for frame in frames:
        if frame.full_size is not None and full[frame.dim] == frame.size:
            full[frame.dim] = frame.full_size
    return full


def _repeat_to(tensor: Tensor, site: Site, frames) -> Tensor:
    """Initial values for a whole plate from those of the subsample that the set-up run happened to see."""
    event_dim = len(site.shape) - len(site.batch_shape)
    for frame in frames:
        dim = frame.dim - event_dim
        if frame.full_size is not None and frame.full_size != frame.size and tensor.dim() >= -dim:
            tensor = periodic_repeat(tensor, frame.full_size, dim)
    return tensor.expand(site.shape)


def _first_messenger(model: Callable) -> object | None:
    """The Pyro handler that wraps a model, if one does."""
    handler = getattr(model, "func", None)
    arguments = getattr(handler, "args", None) or getattr(model, "args", ())
    return next((a for a in arguments or () if isinstance(a, pyro.poutine.messenger.Messenger)), None)
