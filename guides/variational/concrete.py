"""Spike-and-slab mean field through relaxed indicators: LBBNN-GP-MF (Hubin and Storvik 2019), with the
concrete distribution of Maddison, Mnih and Teh (2017) and Jang, Gu and Poole (2017).

Wherever :class:`~guides.AutoSpikeSlab` has to refuse (a weight used twice, rows that meet in one term of the
likelihood) this guide still has a gradient, at the price of a bias that the temperature controls.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from pyro import distributions as dist
from torch import Tensor, nn

from guides.core.checks import check_counts
from guides.core.flat_parameters import elementwise_law
from guides.core.fused import ConcreteSite
from guides.core.laws import SiteLaw
from guides.core.random_tensors import PathwiseGradientError
from guides.core.sites import Site
from guides.core.starts import initial_value
from guides.core.weight_laws import RandomTensorLaw, SpikeSlabLaw
from guides.variational.hyper_priors import (
    published_log_inclusion,
    published_log_normal_gamma,
    published_log_posterior,
)
from guides.variational.spike_slab import AutoSpikeSlab

#: Nodes of the midpoint rule for a relaxed indicator's moments; the integrand is smooth at any temperature.
NODES = 500


def relaxed_moments(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """``(E[g], E[g^2])`` of the relaxed indicator ``g = sigmoid((lambda + L) / T)``, ``L`` logistic.

    ``sigmoid(z / T)`` is the probability that a logistic variable lies below ``z / T``, so
    ``E[g] = E sigmoid(lambda - T logit U)`` and ``E[g^2] = E[2 U sigmoid(lambda - T logit U)]`` with ``U``
    uniform.  For small ``T``, with ``alpha = sigmoid(lambda)``:

    ``E[g] = alpha + T^2 (pi^2 / 6) alpha (1 - alpha) (1 - 2 alpha) + O(T^4)``,
    ``E[g^2] = alpha - T alpha (1 - alpha) + O(T^2)``.
    """
    first, second = torch.zeros_like(logits), torch.zeros_like(logits)
    for u in ((torch.arange(NODES, dtype=logits.dtype, device=logits.device) + 0.5) / NODES).unbind():
        share = torch.sigmoid(logits - temperature * torch.logit(u)) / NODES
        first, second = first + share, second + 2 * u * share
    return first, second


class ConcreteLaw(SpikeSlabLaw):
    """A spike and slab that draws relaxed weights while gradients are wanted, and real ones otherwise.

    :param temperature: of the relaxed indicators
    """

    #: whether nothing but the weights and the divergence sees the indicators, which then need no gradient
    gates_are_hidden = True

    def __init__(self, *args, temperature: float, **kwargs):
        kwargs["by_moments"] = kwargs["uses"].recording  # the set-up run needs no draws
        super().__init__(*args, **kwargs)
        self.temperature = temperature

    _per_shape = SpikeSlabLaw._per_shape | {"gate", "_fused_kl"}

    def rsample(self, sample_shape=torch.Size()) -> Tensor:  # noqa: B008
        if self.leading or not self.uses.wants_grad:
            return super().rsample(sample_shape)  # a random tensor knows where particles go
        return self.draw("sample")

    @property
    def kl(self) -> Tensor:
        fused = self.__dict__.get("_fused_kl")
        return super().kl if fused is None else fused

    def _refuse_gradient(self, operation: str) -> None:
        if self.uses.wants_grad_of_draws and not self.uses.is_over:
            raise PathwiseGradientError(
                f"site {self.name!r}: `{operation}` under a loss that weighs draws by their density, which "
                "relaxed indicators have none of; train with Trace_ELBO or TraceMeanField_ELBO"
            )

    def _draw(self, operation: str) -> Tensor:
        if self.uses.scores_draws:
            self._refuse_gradient(operation)
        prior = self.shared_prior
        relaxed = torch.is_grad_enabled() and self.uses.wants_grad and not self.uses.is_over
        if relaxed and self.gates_are_hidden and prior is not None and not self.leading:
            parameters = self.logits, self.loc, self.log_scale
            value, self.gate, self._fused_kl = ConcreteSite.apply(*parameters, self.temperature, *prior)
            return value
        shape, like = self.leading + self.loc.shape, {"dtype": self.loc.dtype, "device": self.loc.device}
        slab = torch.addcmul(self.loc, torch.exp(self.log_scale), torch.randn(shape, **like))
        uniform = torch.rand(shape, **like)
        if relaxed:
            # logit(alpha) - logit(nu) of the paper; nu = 0 gives 1, with gradient zero
            self.gate = torch.sigmoid((self.logits - torch.logit(uniform)) / self.temperature)
        else:
            self.gate = (uniform < torch.sigmoid(self.logits)).to(slab.dtype)
        return slab * self.gate


class PublishedConcreteLaw(ConcreteLaw):
    """Scored by the published programs' terms at the drawn weights instead of the KL divergence; see
    :mod:`guides.variational.hyper_priors`.  The prior of the model is not used.

    :param hyper: logarithms of ``pa``, ``pb`` (inclusion) and ``a``, ``b`` (precision), ``[4]``
    """

    gates_are_hidden = False  # the terms are differentiated through them

    def __init__(self, name, batch_shape, event_shape, loc, log_scale, logits, hyper, **kwargs):
        super().__init__(name, batch_shape, event_shape, loc, log_scale, logits, **kwargs)
        self.hyper = hyper

    _log_density = RandomTensorLaw._log_density

    @property
    def kl(self) -> Tensor:
        """``log q - log p`` as published, ``[*batch]``; no divergence."""
        value, (pa, pb, a, b) = self.draw("log_prob"), self.hyper.exp()
        # The site's own precision of this step, from its prior.
        precision = dist.Gamma(a, b, validate_args=False).rsample()
        log_q = published_log_posterior(value, self.gate, self.logits, self.loc, self.log_scale.exp())
        log_p = published_log_normal_gamma(value, self.gate, precision, a, b)
        return self._sum_events(log_q - log_p - published_log_inclusion(self.gate, pa, pb))


class AutoConcrete(AutoSpikeSlab):
    """A spike-and-slab law for every site with a :class:`~guides.SpikeSlab` prior, trained through relaxed
    indicators, on any Pyro model and any use of the weights.

    While gradients are wanted a weight is ``g (loc + scale eps)`` with the relaxed indicator
    ``g = sigmoid((logit alpha - logit nu) / temperature)``, ``nu`` uniform: numbers, the same wherever the
    weight is used.  The KL divergence is the exact one of indicators and slabs
    (:func:`guides.core.moments.spike_slab_kl`).  Without gradients (``Predictive``, ``draws``,
    ``svi.evaluate_loss``) the indicators are 0 or 1: real networks with exact zeros.

    **Bias.**  The loss in training is no bound on the evidence: its likelihood sees the relaxed weight, whose
    moments are ``E[g] = alpha + O(T^2)`` and ``E[g^2] = alpha - T alpha (1 - alpha) + O(T^2)``
    (:func:`relaxed_moments`).  To first order in the temperature ``T`` it thus understates the variance that
    an undecided indicator causes, and costs a Gaussian likelihood of precision ``tau`` too little by
    ``T tau/2 x^2 alpha (1 - alpha) (mu^2 + sigma^2)``.  ``svi.evaluate_loss`` draws real indicators: a bound.
    The gradient's variance grows as ``1 / T``.  The temperature starts high and falls with the training
    runs of the model (vectorized particles are one), to its last value in ``anneal_runs`` of them.  Who
    knows how long the training will last says so by :meth:`anneal`, and nothing else changes it any more::

        for step, (x, y) in enumerate(batches):
            guide.anneal(step / steps)
            svi.step(x, y)

    The published programs hold it at 0.001, where one weight in 300 has a gradient in a step.

    :param model: a Pyro model
    :param temperature: ``(first, last)`` of the schedule, or one number for no schedule
    :param anneal_runs: training runs of the model until the last temperature is reached
    :param objective: ``"elbo"``, or ``"published"``: log densities at the drawn weights as the programs of
        Hubin and Storvik have them, errors included (:mod:`guides.variational.hyper_priors`), with their
        Beta and Gamma hyper-parameters learnt by site in place of the model's prior.  That loss has no
        minimum in the hyper-parameters: it **runs away** as long as they are trained.  The programs give
        them a learning rate of 1e-5 and freeze them after 20 epochs, which this class leaves to you
        (``guide.log_hyper.requires_grad_(False)``).  For looking at that loss only.
    :ivar temperature: the one in use; may be set

    Other arguments as for :class:`~guides.AutoSpikeSlab`; sites with Normal priors are treated as by
    :class:`~guides.AutoMeanField`.  Beta and Gamma hyper-priors: :mod:`guides.variational.hyper_priors`.
    """

    def __init__(
        self,
        model: Callable,
        *,
        temperature: tuple[float, float] | float = (1.0, 0.1),
        anneal_runs: int = 1000,
        objective: Literal["elbo", "published"] = "elbo",
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
        schedule = temperature if isinstance(temperature, (tuple, list)) else (temperature, temperature)
        if len(schedule) != 2 or not all(0 < number < math.inf for number in schedule):
            raise ValueError(f"temperature must be a positive number, or a pair of them; got {temperature}")
        first, last = schedule
        check_counts(anneal_runs=anneal_runs)
        if objective not in ("elbo", "published"):
            raise ValueError(f"objective must be 'elbo' or 'published', got {objective!r}")
        self.schedule, self.objective = (float(first), float(last)), objective
        self.temperature = float(first)
        self.anneal_runs, self._runs = anneal_runs, 0  # None: left to `anneal`

    def __call__(self, *args, **kwargs) -> dict[str, Tensor]:
        if torch.is_grad_enabled() and self._runs is not None:
            self._set_temperature(min(1.0, self._runs / self.anneal_runs))
            self._runs += 1
        return super().__call__(*args, **kwargs)

    def anneal(self, progress: float) -> float:
        """Sets the temperature ``first^(1 - progress) last^progress``; returns it.

        :param progress: share of the training that is done, 0 to 1
        """
        if not 0 <= progress <= 1:
            raise ValueError(f"progress must lie in [0, 1], got {progress}")
        self._runs = None
        return self._set_temperature(progress)

    def _set_temperature(self, progress: float) -> float:
        first, last = self.schedule
        self.temperature = first ** (1 - progress) * last**progress
        return self.temperature

    # ------------------------------------------------------------------------------------------------------

    def _needs_moments(self, site: Site) -> bool:
        return False

    def _allows_moments(self, site: Site) -> bool:
        return not self._has_logits(site)

    def _law(self, site: Site) -> Callable[..., SiteLaw]:
        if not self._has_logits(site):
            return super()._law(site)
        law = ConcreteLaw if self.objective == "elbo" else PublishedConcreteLaw
        return partial(law, temperature=self.temperature)

    def _make_parameters(self, latent) -> None:
        super()._make_parameters(latent)
        if self.objective == "published":
            count = sum(self._has_logits(site) for site, _ in latent)
            self.log_hyper = nn.Parameter(torch.empty(count, 4).to(self.loc).uniform_(1.0, 1.1).log_())

    def _views(self, loc, log_scale, logits=None, log_hyper=None) -> dict[str, tuple]:
        views = super()._views(loc, log_scale, logits)
        if log_hyper is not None:
            for site, hyper in zip(self._spike_slab_sites(), log_hyper.unbind(), strict=True):
                views[site.name] += (hyper,)
        return views

    def site_distribution(self, name: str) -> dist.TorchDistribution:
        """The fitted law of one site, with indicators that are 0 or 1, as of :class:`AutoSpikeSlab`."""
        return elementwise_law(*self._detached()[name][:3])

    def get_extra_state(self) -> dict:
        return {**super().get_extra_state(), "temperature": self.temperature, "runs": self._runs}

    def _take_layout(self, layout: dict) -> None:
        super()._take_layout(layout)
        self.temperature, self._runs = layout["temperature"], layout["runs"]
