"""What the variational guides of this package share: any Pyro model in, one law per latent site out.

The guide is a :class:`~pyro.poutine.guide.GuideMessenger`: it runs the model once, answers its latent sites
with random tensors, and hands Pyro's ELBO both traces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Literal

import pyro
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import TraceMeanField_ELBO
from pyro.infer.autoguide import AutoGuide
from pyro.infer.autoguide.initialization import InitMessenger
from pyro.poutine.block_messenger import BlockMessenger
from pyro.poutine.guide import GuideMessenger
from pyro.poutine.trace_messenger import TraceMessenger
from pyro.poutine.util import prune_subsample_sites, site_is_subsample
from torch import Tensor, nn
from torch.distributions import biject_to

from guides.core.arguments import blaming_arguments, check_observed
from guides.core.checks import check_numbers
from guides.core.distributions import base_prior
from guides.core.flat_parameters import FlatParameters
from guides.core.laws import ClosedFormPrior, SiteLaw, TransformedLaw
from guides.core.learned_priors import LearnedPriors
from guides.core.masked_sites import masked_in_part, require_nothing_looks_behind
from guides.core.model_terms import Watched
from guides.core.optim import Common, FusedAdam
from guides.core.pathwise import check_pathwise
from guides.core.probing import kept_statistics, moved
from guides.core.purpose import Purpose, draws_in_parallel, purpose_of_run
from guides.core.pyro_traces import (
    check_particles,
    first_messenger,
    hide_other_sites,
    share_minibatch,
    sites_of_others,
    two_traces,
)
from guides.core.rng import kept_rng, seeded_rng
from guides.core.row_mixing import Asked, data_of, where_rows_meet
from guides.core.same_model import check_trained_model
from guides.core.sites import (
    Site,
    UnsupportedSiteError,
    drawn_in_part,
    full_batch_shape,
    repeat_to_full,
    require_data_at_set_up,
    require_same_plates,
    require_same_sites,
    site_family,
)
from guides.core.starts import initial_value
from guides.core.store_names import is_in_store, put_into_store
from guides.core.uses import Probe, Uses
from guides.core.weight_laws import GaussianLaw, RandomTensorLaw, SpikeSlabLaw


class _MessengerAndModule(type(GuideMessenger), type(AutoGuide)):
    """Of a class that is both."""


class FlatGuide(GuideMessenger, FlatParameters, AutoGuide, metaclass=_MessengerAndModule):
    """Base of the mean-field guides; ``AutoMeanField`` explains the arguments.

    An ``AutoGuide`` where Pyro expects one (``AutoGuideList``), whose attributes are those of an ordinary
    torch module: a ``PyroModule`` would make a ``pyro.param`` statement of every look at a parameter.
    """

    __setattr__, __getattr__, __delattr__ = (
        nn.Module.__setattr__,
        nn.Module.__getattr__,
        nn.Module.__delattr__,
    )

    #: whether sites with a spike-and-slab prior get a spike-and-slab law; if not, a Gaussian
    spike_slab_sites = False
    #: whether its laws have an entropy that counts; points have none
    has_entropy = True

    def __init__(
        self,
        model: Callable,
        *,
        init_loc_fn: Callable[[dict], Tensor] = initial_value,
        init_scale: float = 0.1,
        empirical_bayes: bool | Literal["rates"] = False,
    ):
        if empirical_bayes not in (False, True, "rates"):
            raise ValueError(f"empirical_bayes must be True, False or 'rates', got {empirical_bayes!r}")
        check_numbers(init_scale=init_scale)
        AutoGuide.__init__(self, model)
        FlatParameters.__init__(self)
        GuideMessenger.__init__(self, model)
        self.init_loc_fn = init_loc_fn
        self.init_scale = float(init_scale)
        #: What the KL divergence counts in training, where a small weight early on leads out of bad optima;
        #: ``svi.evaluate_loss`` is minus the bound all the same.  To leave it below 1 fits a cold posterior.
        self.kl_weight = 1.0
        self.learned_priors = LearnedPriors(empirical_bayes == "rates") if empirical_bayes else None
        self._is_set_up = False
        self._recording = False
        self._probe: Probe | None = None
        self._watched: Watched | None = None
        self._prefix: str | None = None
        self._asked = Asked()
        self._mixed: dict[str, str] = {}
        self._compared: list | None = []
        # Of the run in progress, or the last one:
        self._purpose = Purpose.EXPECTATIONS
        self._tensors: dict[str, tuple[Tensor, ...]] = {}
        self._uses: dict[str, Uses] = {}
        self._masked: frozenset[str] = frozenset()  # of which masks have been looked at

    def __prepare_scriptable__(self) -> None:
        raise NotImplementedError(
            f"TorchScript cannot export {type(self).__name__}, which runs a Pyro model in Python; export a "
            "network with the numbers of guide.draws(...) or guide.median()"
        )

    def __getstate__(self) -> dict:
        # A copy is between runs; without a trace of its own it could not be copied again.
        for parameter in self.parameters():
            parameter.__dict__.pop("unconstrained", None)  # Pyro's weak reference cannot be pickled
        own = {"trace": None, "_tensors": {}, "_uses": {}, "_prefix": None, "master": None, "_compared": None}
        return {**GuideMessenger.__getstate__(self), **own}

    # ------------------------------------------------------------------------------------------------------
    # Set-up

    def setup(self, *args, **kwargs) -> None:
        """Makes the parameters from one run of the model, and looks in a second run how weights are used.

        Called by itself on first use.  Parameters that exist already, from ``load_state_dict`` or an earlier
        set-up, stay as they are.  So does torch's random state then: with the same seed a loaded fit predicts
        what the saved one did.

        :raises UnsupportedSiteError: a latent site has no law here
        :raises PathwiseGradientError: a spike-and-slab site is used in a way that has no gradient
        :raises ValueError: the parameters that exist belong to another model, or data are NaN
        """
        with kept_rng() if self.has_parameters else nullcontext():
            self._set_up(args, kwargs)

    def _set_up(self, args: tuple, kwargs: dict) -> None:
        with torch.no_grad(), poutine.block(), kept_statistics(), blaming_arguments(args, kwargs):
            trace = poutine.trace(InitMessenger(self.init_loc_fn)(self.model)).get_trace(*args, **kwargs)
        nodes = {n: v for n, v in trace.nodes.items() if v["type"] == "sample" and not site_is_subsample(v)}
        check_observed(nodes)
        latent = [
            (self._make_site(name, node), node)
            for name, node in nodes.items()
            if not node["is_observed"] and name not in self.observed
        ]
        if self.has_parameters:
            require_data_at_set_up(self.observed, self.sites, nodes)
            require_same_sites(self.sites.values(), [site for site, _ in latent])
        else:
            self.observed = [name for name, node in nodes.items() if node["is_observed"]]
            # Spike-and-slab sites first: their logits then belong to the head of the flat vectors.
            latent.sort(key=lambda pair: not self._has_logits(pair[0]))
            self.sites = {site.name: site for site, _ in latent}
            self._make_parameters(latent)
        self._is_set_up = True
        try:
            self._check_masks(masked_in_part((site.name, node) for site, node in latent), args, kwargs)
            with kept_statistics():
                self._record_uses(*args, **kwargs)
        except BaseException:
            self._is_set_up = False
            raise

    def _check_masks(self, masked: frozenset[str], args: tuple, kwargs: dict) -> None:
        """Of sites that have not been masked before."""
        if self.has_entropy:
            with kept_statistics():
                model = InitMessenger(self.init_loc_fn)(self.model)
                require_nothing_looks_behind(model, masked - self._masked, args, kwargs)
            self._masked |= masked

    def _make_site(self, name: str, node: dict) -> Site:
        prior, frames = node["fn"], node["cond_indep_stack"]
        family = site_family(name, prior)
        if node["mask"] is False and self.has_entropy:
            raise UnsupportedSiteError(
                f"site {name!r} is masked out (poutine.mask(mask=False)): neither its prior nor the law that "
                "the guide gives it would count; for a flat prior mask that alone (prior.mask(False))"
            )
        for frame in frames:
            if not frame.vectorized:
                raise UnsupportedSiteError(
                    f"site {name!r} lies in a sequential plate; vectorise {frame.name!r}"
                )
        event = prior.event_shape
        if family in ("lognormal", "transformed"):
            self._transforms[name] = biject_to(prior.support)
            event = self._transforms[name].inverse_shape(event)
        batch = full_batch_shape(prior.batch_shape, frames)
        return Site(name, family, tuple(batch), tuple(batch + event))

    def _has_logits(self, site: Site) -> bool:
        return self.spike_slab_sites and site.family == "spike_slab"

    def _make_parameters(self, latent: list[tuple[Site, dict]]) -> None:
        locs, scales = [], []
        for site, node in latent:
            value = node["value"].detach()
            if site.is_transformed:
                value = self._transforms[site.name].inv(value)
                scale = torch.full_like(value, self.init_scale)
            else:
                scale = self.init_scale * base_prior(node["fn"]).scale.expand(value.shape)
            for flat, tensor in ((locs, value), (scales, scale)):
                flat.append(repeat_to_full(tensor, site, node["cond_indep_stack"]).reshape(-1))
        kinds = {(t.dtype, t.device) for t in locs}
        if len(kinds) > 1:
            raise UnsupportedSiteError(f"latent sites mix dtypes or devices: {sorted(map(str, kinds))}")
        self.loc = nn.Parameter(torch.cat(locs) if locs else torch.zeros(0))
        self.log_scale = nn.Parameter(torch.cat(scales).log() if scales else torch.zeros(0))

    def _record_uses(self, *args, **kwargs) -> None:
        """Decides for each site whether linear layers may use its moments.

        They may when the site enters one product and nothing else, and no likelihood term sees two rows of
        the layer's output.
        """

        def run(watched: Watched, probe: Probe) -> None:
            # one seed: runs differ in what is moved on purpose and in nothing else
            with seeded_rng(0), pyro.validation_enabled(False):
                self._run_recorded(watched, probe, args, kwargs)

        watched = Watched(self.model, sites_of_others(self, args, kwargs))
        self._run_recorded(watched, None, args, kwargs)
        nodes = self.trace.nodes.items()
        data, numbers = data_of(self.trace)
        uses = {name: self._uses.get(name, Uses(name)) for name in self.sites}
        usable = {n for n, site in self.sites.items() if uses[n].used_once and self._allows_moments(site)}
        own = f"{self._prefix}."
        trained = [v["value"] for n, v in nodes if v["type"] == "param" and not n.startswith(own)]
        with moved(trained):
            # for good: a call that is known is not asked about again, whatever came between
            self._mixed |= where_rows_meet(run, watched, usable)
        for name, site in self.sites.items():
            if self._needs_moments(site):
                check_pathwise(uses[name], self._mixed.get(name))
            self.sites[name] = replace(site, by_moments=name in usable and name not in self._mixed)
        used = [uses[name].rows for name, site in self.sites.items() if site.by_moments]
        self._asked.note(data, max((use.rows for use in uses.values()), default=0), used, numbers)

    def _run_recorded(self, watched: Watched, probe: Probe | None, args: tuple, kwargs: dict) -> None:
        """One run that counts the uses of every site."""
        self._recording, self._probe, self._watched = True, probe, watched
        try:
            with torch.no_grad(), poutine.block():
                self(*args, **kwargs)
        finally:
            self._recording, self._probe, self._watched = False, None, None

    def _allows_moments(self, site: Site) -> bool:
        return True

    def _needs_moments(self, site: Site) -> bool:
        """Whether a draw of the site has no pathwise gradient, so that other uses must be refused."""
        return self._has_logits(site)

    def _law(self, site: Site) -> Callable[..., SiteLaw]:
        """Makes the law of a weight site; called as :class:`~guides.core.weight_laws.RandomTensorLaw`."""
        return SpikeSlabLaw if self._has_logits(site) else GaussianLaw

    # ------------------------------------------------------------------------------------------------------
    # Running the model

    def __call__(self, *args, **kwargs) -> dict[str, Tensor]:
        """Runs the model on this guide's laws.

        :returns: the latent sites' values, by name: random tensors while gradients are wanted
        """
        if torch.jit.is_tracing():
            raise NotImplementedError(
                f"{type(self).__name__} cannot be compiled by torch.jit (JitTrace_ELBO and its like): its "
                "gradients are written by hand; train with Trace_ELBO or guide.elbo()"
            )
        if self.master is not None and (self.learned_priors is not None or self.kl_weight != 1.0):
            raise NotImplementedError(
                f"{type(self).__name__}: in an AutoGuideList, Pyro's loss scores sites by the model's own "
                "priors, with weight 1: leave empirical_bayes and kl_weight out, or fit this guide alone"
            )
        if not self._is_set_up:
            self.setup(*args, **kwargs)
        self._uses = {}
        self._purpose = Purpose.EXPECTATIONS if self._recording else purpose_of_run()
        self._follow_store()
        with self:
            # Inside the messenger, or Trace_ELBO sees no parameter.
            self._tensors = self._views(**{name: self._param(name) for name in self._parameters})
            self._announce_modules()
            (self._watched or self.model)(*args, **kwargs)
        for uses in self._uses.values():
            uses.is_over = True
        if torch.is_grad_enabled() and not self._recording:  # a first minibatch may have had no padding
            new = [name for name in self.sites if name in self.trace and name not in self._masked]
            self._check_masks(masked_in_part((n, self.trace.nodes[n]) for n in new), args, kwargs)
        used = [use.rows for name, use in self._uses.items() if self.sites[name].by_moments]
        if used and not self._recording and not self._asked.covers(*data_of(self.trace), used):
            # data that the set-up run had not, rows where that had one, more or fewer rows for each number of
            # the data: ask again whether rows meet
            shown = *data_of(self.trace), used
            hide_other_sites(self.trace, (), parallel=False)  # a list's trace has seen this run
            with kept_statistics():
                self._record_uses(*args, **kwargs)
            self._asked.note_cause(*shown)
            return self(*args, **kwargs)
        self._learn_priors()
        parallel = self._purpose is Purpose.DRAWS and draws_in_parallel()
        hide_other_sites(self.trace, self.sites, parallel)
        return {name: node["value"] for name, node in self.trace.nodes.items() if name in self.sites}

    def _learn_priors(self) -> None:
        """Where priors are learned they follow once this run's loss is differentiated: a run of which no
        gradient is taken trains nothing, and changes nothing.
        """
        if self.learned_priors is None or not torch.is_grad_enabled():
            return
        if self._recording or self._purpose is not Purpose.EXPECTATIONS:
            return
        laws = {name: self.trace.nodes[name]["fn"] for name in self.sites if name in self.trace.nodes}
        laws = {name: law for name, law in laws.items() if isinstance(law, RandomTensorLaw)}
        # Not a law's loc: multiplied by a draw it may be in no graph that leads to the loss.
        parts = (part for name in laws for part in reversed(self._tensors[name]))
        first = next((part for part in parts if isinstance(part, Tensor) and part.requires_grad), None)
        if first is not None:
            learned, weight = self.learned_priors, self.kl_weight
            sites = learned.numbers_of(laws)  # a hook that knew the laws would keep the run's graph for ever
            first.register_hook(lambda grad: learned.after_run(sites, weight))

    def _announce_modules(self) -> None:
        """A ``pyro.param`` statement for every parameter of a submodule: SVI trains what it has seen."""
        for name, parameter in self.named_parameters() if self._modules else ():  # slow where there are none
            if "." in name and parameter.requires_grad:
                self._param(name)

    def _param(self, name: str) -> Tensor:
        """A ``pyro.param`` statement for a parameter of this module."""
        return pyro.param(f"{self._prefix}.{name}")

    def _follow_store(self) -> None:
        """Takes what was loaded into Pyro's store, and puts there what it has lost."""
        if self._prefix is None or not is_in_store(self, self._prefix):
            layout = repr([(s.name, s.family, tuple(s.shape)) for s in self.sites.values()])
            self._prefix = put_into_store(self, self._prefix, layout)

    def _detached(self) -> dict[str, tuple[Tensor, ...]]:
        if self.has_parameters and self._prefix is not None:
            self._follow_store()
        return super()._detached()

    def _pyro_sample(self, msg: dict) -> None:
        site = self.sites.get(msg["name"])
        # sites that poutine.block hides are in it, of which an enumeration around a list knows nothing
        msg["infer"].pop("_markov_scope", None)
        if site_is_subsample(msg):
            share_minibatch(msg, self)
        if site is None or msg["is_observed"]:
            return  # data, plates, and what the guide was told to leave alone
        prior = msg["fn"]
        known = prior if self.learned_priors is None else self.learned_priors.prior(msg["name"], prior)
        law = self.get_posterior(msg["name"], known, msg["cond_indep_stack"])
        if law.batch_shape != prior.batch_shape:
            require_same_plates(site, prior, msg["cond_indep_stack"])
            law = law.expand(prior.batch_shape)
        msg["infer"]["prior"] = prior
        msg["fn"] = law

    def _pyro_post_sample(self, msg: dict) -> None:
        prior, law = msg["infer"].get("prior"), msg["fn"]
        if prior is not None and isinstance(law, SiteLaw):
            if law.exact and self._purpose is Purpose.EXPECTATIONS:
                msg["infer"]["prior"] = ClosedFormPrior(prior, law)
            elif prior.batch_shape != law.batch_shape:  # plates outside the guide
                msg["infer"]["prior"] = prior.expand(law.batch_shape)
        TraceMessenger._pyro_post_sample(self, msg)

    def get_posterior(self, name: str, prior: dist.TorchDistribution, frames=()) -> SiteLaw:
        """The law of one site in this execution, for the data rows that its plates ``frames`` have drawn."""
        site, tensors = self.sites[name], self._tensors[name]
        for frame in frames:
            if drawn_in_part(frame):
                rows = self._subsample(site, frame)
                tensors = tuple(t.index_select(frame.dim - site.event_dim, rows) for t in tensors)
        shape = tensors[0].shape
        batch, event = shape[: len(site.batch_shape)], shape[len(site.batch_shape) :]
        if site.is_transformed:
            if self._recording and self._support_has_moved(site, prior):
                self._moving_supports.add(name)
            exact = site.family == "lognormal" and self._purpose is Purpose.EXPECTATIONS
            return TransformedLaw(name, batch, prior.event_shape, *tensors, prior=prior, exact=exact)
        uses = self._uses.get(name)
        if uses is None:
            uses = Uses(name, self._recording, torch.is_grad_enabled(), self._probe, self._purpose)
            self._uses[name] = uses
        by_moments = self._recording or site.by_moments and uses.wants_grad
        return self._law(site)(name, batch, event, *tensors, prior=prior, by_moments=by_moments, uses=uses)

    def _support_has_moved(self, site: Site, prior: dist.TorchDistribution) -> bool:
        """Whether the support is another than in the model's first run: then no fixed map leads to it."""
        if site.name not in self._transforms:
            return False
        unconstrained = torch.full(site.shape[len(site.batch_shape) :], 0.3).to(self.loc)
        then, now = self._transforms[site.name](unconstrained), biject_to(prior.support)(unconstrained)
        return then.shape != now.shape or not torch.allclose(then, now)

    def _subsample(self, site: Site, frame) -> Tensor:
        """The rows of a plate that are in this minibatch."""
        if frame.name not in self.trace:
            raise UnsupportedSiteError(
                f"site {site.name!r}: poutine.block hides from the guide which rows of plate "
                f"{frame.name!r} are in the minibatch; expose the plate too"
            )
        return torch.as_tensor(self.trace.nodes[frame.name]["value"], device=self.loc.device)

    def get_traces(self) -> tuple[poutine.Trace, poutine.Trace]:
        """``(model_trace, guide_trace)`` of the last run; Pyro's ELBO asks for them.

        :raises ValueError: when the loss was given another model than the guide was built on, data are
            missing or were so at set-up, or vectorized particles meet
        :raises UnsupportedSiteError: for a latent site that the model did not have at set-up
        """
        model_trace = prune_subsample_sites(self.trace)
        missing = [n for n in self.observed if n in model_trace and not model_trace.nodes[n]["is_observed"]]
        if missing:
            raise ValueError(
                f"site {missing[0]!r} was observed when the guide was set up: pass its data again"
            )
        require_data_at_set_up(self.observed, self.sites, model_trace.nodes)
        nodes = model_trace.nodes.items()
        latent = [n for n, node in nodes if node["type"] == "sample" and not node["is_observed"]]
        new = [name for name in latent if name not in self.sites]
        if new:
            raise UnsupportedSiteError(
                f"site {new[0]!r} was not there when the guide was set up, so that it has no law: make the "
                "first call, or guide.setup(...), with arguments for which the model has all its sites; "
                "sites that come and go by chance it cannot have"
            )
        if not self.observed and isinstance(first_messenger(self.model), BlockMessenger):
            raise ValueError(
                "the guide was built on a model whose poutine.block hides the data: use hide=[...]"
            )
        self._compared = check_trained_model(self.model, model_trace, self._compared)
        check_particles(model_trace)
        weight = self.kl_weight if torch.is_grad_enabled() else 1.0
        return two_traces(model_trace, self.sites, weight)

    # ------------------------------------------------------------------------------------------------------
    # Fitting

    def elbo(self, num_particles: int = 1, **kwargs) -> TraceMeanField_ELBO:
        """The loss we recommend: closed-form KL, Monte Carlo likelihood.  Works before the first call.

        ``Trace_ELBO`` and ``TraceGraph_ELBO`` have the same expectation.
        """
        return TraceMeanField_ELBO(num_particles=num_particles, **kwargs)

    def optimizer(
        self,
        lr: float = 0.01,
        *,
        factors: Mapping[str, float] | None = None,
        common: Mapping[str, float] | None = None,
        **kwargs,
    ) -> FusedAdam:
        """Adam in one fused step over the flat parameters (and those of the model, if it has any).

        :param factors: parameters whose rate is so many times ``lr``, by name: ``{"logits": 8.0,
            "log_scale": 4.0}``; names that this guide has not are for others.  Inclusion logits and the
            logarithms of sds have several units to go, means a small part of one.
        :param common: of these flat parameters all elements of a site also move as one, by the sum of their
            gradients and at so many times ``lr``.  With ``empirical_bayes`` a prior follows the weights and
            the weights the prior, by small steps each: weights of which the data say little then go
            together, ``{"logits": 5.0, "log_scale": 5.0}``, and sooner.  Where priors are learned, none moves
            so before the first is: while the divergence counts less than it will, all weights would go
        :raises ValueError: for a factor that is no positive number, and for other names in ``common``
        """
        factors, common = dict(factors or {}), dict(common or {})
        check_numbers(**{f"factor of {name}": factor for name, factor in factors.items()})
        check_numbers(**{f"common factor of {name}": factor for name, factor in common.items()})
        unknown = common.keys() - {"loc", "log_scale", "logits"}
        if unknown:
            names = ", ".join(sorted(map(str, unknown)))
            raise ValueError(f"common is of loc, log_scale and logits, not of {names}")

        def factor_of(parameter: Tensor) -> float:
            names = [name for name, own in self.named_parameters() if own is parameter]
            return factors.get(names[0].rpartition(".")[2], 1.0) if names else 1.0

        def common_of(parameter: Tensor) -> Common | None:
            name = next((name for name in common if self._parameters.get(name) is parameter), None)
            if name is None:
                return None
            sites = [site for site in self.sites.values() if name != "logits" or self._has_logits(site)]
            return Common([site.numel for site in sites], common[name], self._follows_its_priors)

        return FusedAdam(lr=lr, factor_of=factor_of, common_of=common_of, **kwargs)

    def _follows_its_priors(self) -> bool:
        """Whether the priors are fixed, or those that are learned have begun to be."""
        return self.learned_priors is None or self.learned_priors.runs > 0

    def get_extra_state(self) -> dict:
        learned = None if self.learned_priors is None else self.learned_priors.state()
        return {**super().get_extra_state(), **({"learned_priors": learned} if learned else {})}

    def _take_layout(self, layout: dict) -> None:
        super()._take_layout(layout)
        if "learned_priors" in layout:
            self.learned_priors = LearnedPriors(**layout["learned_priors"])

    def quantiles(self, quantiles: list[float] | Tensor, *args, **kwargs) -> dict[str, Tensor]:
        """See :meth:`FlatParameters.quantiles`; ``args`` set the guide up if it has not been called yet."""
        if not self.has_parameters:
            self.setup(*args, **kwargs)
        return super().quantiles(quantiles)
