"""Spikes and slabs whose joint law is learned: indicators one after another, slabs Gaussian given them.

The law is :class:`guides.variational.joint_law.JointLaw`.

**The gradient.**  Indicators have no pathwise gradient.  With ``S`` draws and
``f_s = log p(y, w_s) - log q(w_s, gamma_s)`` the bound's gradient is estimated by that of ::

    mean_s f_s + mean_s (f_s - mean_{t != s} f_t) log q(gamma_s),

the factor in brackets held fixed, slabs reparameterised: unbiased, and with little noise near the optimum,
where all ``f_s`` are the log evidence (leave-one-out: Salimans and Knowles 2014; Kool, van Hoof and Welling
2019).
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain, repeat
from pathlib import Path

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide.initialization import InitMessenger
from torch import Tensor, nn

from guides.core.arguments import FixedParameters, blaming_arguments, default_dtype, doubled
from guides.core.checks import check_counts, check_two
from guides.core.course import Course
from guides.core.distributions import SpikeSlab, base_prior
from guides.core.rng import kept_rng, seeded_rng
from guides.core.settling import UnsettledWarning, still_moving
from guides.core.sites import UnsupportedSiteError
from guides.core.starts import initial_value
from guides.core.svi import DivergenceError, shuffled_epochs
from guides.core.weight_sites import MAPS, WeightSites, scores
from guides.posterior.draws import Posterior
from guides.posterior.fitted_guide import FittedGuide
from guides.variational.joint_law import JointLaw
from guides.variational.modes import mode_and_precision

#: More numbers than these would make a step's Cholesky factors cost minutes.
MOST_NUMBERS = 300
#: Steps at both ends of a fit that are compared, as a share of all.
ENDS = 0.05
#: Draws behind inclusion probabilities.
INCLUSION_DRAWS = 4000


@dataclass(frozen=True)
class Settings:
    """All of :class:`JointSpikeSlab` but its model."""

    num_particles: int

    def __post_init__(self) -> None:
        check_two("every draw is measured by the others", num_particles=self.num_particles)


class JointSpikeSlab(FittedGuide):
    """Variable selection where columns are correlated: inclusion and weights with a joint law.

    For models of up to 300 latent numbers (a regression, not a network), any likelihood; other sites beside
    the spikes and slabs are Gaussian after the map of their support, correlated with the weights.  Of the
    20-column logistic simulation of Hubin and Storvik the bound is 0.3 nats below the evidence after 10,000
    steps, where independent spikes and slabs stop 2.5 nats below.  Works in float64; the law is
    :class:`guides.variational.joint_law.JointLaw`.

    :param model: a Pyro model with at least one :class:`~guides.SpikeSlab` site; ``torch.func.vmap`` runs it
        for all draws at once, in float64: its arguments and the numbers that it makes itself; a tensor that
        it made before must be of float64 already
    :param num_particles: draws of a step, 2 at least
    :raises ValueError: for arguments out of range

    :ivar losses: minus the estimated bound at every step, nats, for the whole data
    :ivar facts: of the fit: ``elbo`` (nats, and its standard error), ``seconds`` and the arguments of
        :meth:`fit`
    """

    def __init__(self, model: Callable, *, num_particles: int = 32):
        super().__init__(Settings(num_particles))
        self.__dict__["model"] = model  # a module's parameters are none of this guide's
        self._sites: WeightSites | None = None

    # ------------------------------------------------------------------------------------------------ fitting

    def fit(
        self,
        *args,
        steps: int = 6000,
        batch_size: int | None = None,
        lr: float = 0.06,
        seed: int = 0,
        on_step: Callable[[int, JointSpikeSlab], None] | None = None,
    ) -> JointSpikeSlab:
        """Starts afresh, at a mode with all weights in and the curvature there; where that has the smaller
        bound, as of a hierarchy whose density is unbounded at a scale of zero, at the mode given the prior
        medians of scales and rates.

        :param args: the model's arguments, with data
        :param batch_size: rows of a minibatch: the model is then called with rows of all arguments and the
            number of all rows (:func:`guides.core.svi.shuffled_epochs`); None: with ``args`` themselves
        :param lr: first learning rate, falling to zero as half a cosine
        :param seed: of everything random; torch's generators stay as they are
        :param on_step: called after every step with its number, from 1, and this object
        :returns: this object
        :warns UnsettledWarning: when the loss ended above that of the start, or still fell in the last tenth
            of the learning, beyond its noise (of few steps that hides much: compare ``facts["elbo"]``)
        :raises UnsupportedSiteError: no site has a spike, there are too many numbers, or a site's support has
            no map here
        :raises DivergenceError: a RuntimeError, at the first loss that is not finite, or where no mode is
            found to start from
        :raises ValueError: an argument that is not finite; a parameter without a prior that is not fixed
        :raises TypeError: a tensor that the model made before is of float32
        """
        course = Course(steps, lr, 0.0, seed, batch_size)
        begun, precision = time.perf_counter(), _precision(args)
        args = tuple(map(doubled, args))
        with default_dtype(torch.float64), seeded_rng(seed), pyro.validation_enabled(False):
            batches = repeat(args) if batch_size is None else shuffled_epochs(args, batch_size, seed)
            first = next(batches)
            with blaming_arguments(args), _blaming_precision():
                sites = WeightSites.of(self.model, first)
                self._start(sites, spikes_of(self.model, sites, first))
                self._start_at_the_best(args, first)

            def loss(batch: tuple, weight: float) -> Tensor:
                return self._loss(batch)

            self._follow(course.run(self.parameters(), chain([first], batches), loss), on_step)
        seconds = time.perf_counter() - begun
        elbo = self.elbo(*args, seed=seed)
        self.facts = {**asdict(course), "seconds": seconds, "elbo": elbo, "precision": precision}
        _warn_of_rise(self.losses)
        course.warn_unsettled(self.losses)
        return self

    def _start(self, sites: WeightSites, spikes: Tensor) -> None:
        if len(sites) > MOST_NUMBERS:
            raise UnsupportedSiteError(
                f"the model has {len(sites)} latent numbers, and this guide keeps the covariance of at most "
                f"{MOST_NUMBERS}: use AutoSpikeSlab"
            )
        if not spikes.any():
            raise UnsupportedSiteError("no site of the model has a spike and slab: use AutoMeanField")
        self._sites, size, count = sites, len(sites), int(spikes.sum())
        kind = {"dtype": torch.float64, "device": spikes.device}
        self.register_buffer("spikes", spikes)
        self.register_buffer("unit", torch.ones(size, **kind))  # root of P's diagonal at the start
        self.logits = nn.Parameter(torch.zeros(count, **kind))
        self.pulls = nn.Parameter(torch.zeros(count, count, **kind))
        self.log_diagonal = nn.Parameter(torch.zeros(size, **kind))
        self.below = nn.Parameter(torch.zeros(size, size, **kind))
        self.linear = nn.Parameter(torch.zeros(size, **kind))
        self.losses, self.facts = [], {}

    def _start_at_the_best(self, args: tuple, batch: tuple) -> None:
        """At the mode, or at that given the scales' medians, by the bound there."""
        start = 0.1 * torch.randn_like(self.linear)
        held = self._mapped()
        ways = [(start, torch.zeros_like(held))]
        if held.any():
            ways.append((torch.where(held, self._medians(batch), start), held))
        found, failed = [], None
        for way in ways:
            try:
                self._start_at_a_mode(args, *way)
            except DivergenceError as error:
                failed = error
                continue
            state = {name: value.detach().clone() for name, value in self._tensors()}
            found.append((self._loss_here(args) if len(ways) > 1 else 0.0, state))
        if not found:
            raise failed
        _, best = min(found, key=lambda pair: pair[0])
        with torch.no_grad():
            for name, value in self._tensors():
                value.copy_(best[name])

    def _tensors(self) -> list[tuple[str, Tensor]]:
        return [*self.named_parameters(), *self.named_buffers()]

    def _loss_here(self, args: tuple) -> float:
        """By draws that are the same for all starts; one that is not finite is the worst."""
        try:
            with torch.no_grad(), kept_rng():
                value = self._loss(args).item()
        except (ValueError, RuntimeError):  # no factor of a precision
            return math.inf
        return value if math.isfinite(value) else math.inf

    def _mapped(self) -> Tensor:
        """Which numbers are scales or rates, of a support other than the real numbers, ``[D]``."""
        parts = [
            torch.full((math.prod(shape),), support != "real") for _, shape, support in self._sites.sites
        ]
        return torch.cat(parts).to(self.spikes.device)

    def _medians(self, args: tuple) -> Tensor:
        """The vector of all sites at the start of Pyro's autoguides, ``[D]``."""
        with torch.no_grad(), kept_rng(), poutine.block(), FixedParameters():
            nodes = poutine.trace(InitMessenger(initial_value)(self.model)).get_trace(*args).nodes
        return torch.cat([
            MAPS[support].inv(nodes[name]["value"]).flatten().to(self.linear)
            for name, _, support in self._sites.sites
        ])  # fmt: skip

    def _start_at_a_mode(self, args: tuple, start: Tensor, held: Tensor) -> None:
        """With every weight in: the best fit there is, and the curvature around it.

        :param held: what stays at its start, ``[D]``
        """

        def log_joint(w: Tensor) -> Tensor:
            return self._log_joint(w.unsqueeze(0), args)[0]

        mode, precision = mode_and_precision(log_joint, start, held)
        with torch.no_grad():
            self.unit.copy_(precision.diagonal().sqrt())
            root = torch.linalg.cholesky(precision / self.unit.outer(self.unit))
            self.log_diagonal.copy_(root.diagonal().log())
            self.below.copy_(root.tril(-1))
            self.linear.copy_(precision @ mode / self.unit)

    @property
    def law(self) -> JointLaw:
        """With gradients to the parameters, whose units are those of the start."""
        root = self.below.tril(-1) + self.log_diagonal.exp().diag()
        return JointLaw(
            self.spikes, self.logits, self.pulls.tril(-1), self.unit[:, None] * root, self.unit * self.linear
        )

    def _loss(self, args: tuple) -> Tensor:
        """A surrogate with minus the bound's estimate for its value, and the bound's gradient."""
        law = self.law
        gamma = law.indicators(self.settings.num_particles)
        w, log_q = law.weights(gamma)
        log_gamma = law.log_prob_of_indicators(gamma)
        gains = self._log_joint(w, args) - log_q - log_gamma.detach()
        fixed = gains.detach()
        others = (fixed.sum() - fixed) / (len(fixed) - 1)
        score = ((fixed - others) * (log_gamma - log_gamma.detach())).mean()
        return -(gains.mean() + score)

    def _log_joint(self, w: Tensor, args: tuple) -> Tensor:
        """``log p(y, w)`` of draws ``[S, D]``, of the whole data: ``[S]``."""
        found = scores(self.model, self._sites, w, args)
        return found.log_prior + sum(scale * terms.sum(-1) for terms, scale in found.log_likelihoods)

    # ----------------------------------------------------------------------------------------------- as draws

    def draws(self, n: int, seed: int = 0) -> dict[str, Tensor]:
        """``{site: [n, *site]}``: independent draws of every latent site, exact zeros included."""
        return self.draws_with_log_prob(n, seed)[0]

    @torch.no_grad()
    def draws_with_log_prob(self, n: int, seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
        """:meth:`draws`, and the log density of each on the sites' supports, ``[n]``, nats."""
        check_counts(n=n)
        self._require_fit()
        with seeded_rng(seed):
            law = self.law
            gamma = law.indicators(n)
            w, log_q = law.weights(gamma)
        log_q = log_q + law.log_prob_of_indicators(gamma)
        stretched = torch.stack([self._sites.log_jacobian(row) for row in w])
        return self._sites.values(w), log_q - stretched

    def elbo(self, *args, num_samples: int = 4000, seed: int = 0) -> tuple[float, float]:
        """The bound on the log evidence, nats, and its standard error, for the model's arguments ``args``."""
        self._require_fit()
        args = tuple(map(doubled, args))
        double = default_dtype(torch.float64)
        with torch.no_grad(), double, seeded_rng(seed), pyro.validation_enabled(False):
            law = self.law
            gamma = law.indicators(num_samples)
            gains = -law.log_prob_of_indicators(gamma)
            w, log_q = law.weights(gamma)
            gains = gains - log_q + torch.cat([self._log_joint(part, args) for part in w.split(500)])
        return gains.mean().item(), (gains.std() / math.sqrt(num_samples)).item()

    @torch.no_grad()
    def inclusion_probabilities(self, seed: int = 0) -> dict[str, Tensor]:
        """``{site: [*site]}`` of the sites with spikes, averaged over the conditional probabilities of 4000
        draws of the indicators before: standard error below 0.008.
        """
        return self._by_site(self._conditional_probabilities(seed).mean(0), 1.0)

    @torch.no_grad()
    def inclusion_standard_errors(self, seed: int = 0) -> dict[str, Tensor]:
        """Of :meth:`inclusion_probabilities` by the same seed, ``{site: [*site]}``."""
        return self._by_site(self._conditional_probabilities(seed).std(0) / math.sqrt(INCLUSION_DRAWS), 0.0)

    def _conditional_probabilities(self, seed: int) -> Tensor:
        """Of every indicator given the draws of those before it, ``[n, k]``."""
        self._require_fit()
        with seeded_rng(seed):
            gamma = self.law.indicators(INCLUSION_DRAWS)
        return torch.sigmoid(self.law.conditional_logits(gamma))

    def _by_site(self, values: Tensor, others: float) -> dict[str, Tensor]:
        """A number a spike, ``[k]``, as the sites that have spikes; that of what is always in."""
        whole = values.new_full((len(self.spikes),), others)
        whole[self.spikes] = values
        parts, masks = (numbers.split(self._sites.sizes) for numbers in (whole, self.spikes))
        return {
            name: part.reshape(shape)
            for (name, shape, _), part, mask in zip(self._sites.sites, parts, masks, strict=True)
            if mask.any()
        }

    def posterior(self, n: int = 1000, seed: int = 0) -> Posterior:
        """``n`` independent draws as a :class:`~guides.posterior.draws.Posterior`, in the precision of the
        data that were fitted, in which the model is asked from then on.
        """
        draws = self.draws(n, seed)
        dtype = getattr(torch, self.facts["precision"])
        draws = {name: value.to(dtype) for name, value in draws.items()}
        return self._posterior(self.model, draws, "joint spike and slab", seed)

    # ---------------------------------------------------------------------------------------------- in a file

    @classmethod
    def load(cls, path: str | Path, model: Callable) -> JointSpikeSlab:
        """What :meth:`save` wrote; :raises ValueError: naming a damaged or foreign file"""
        return cls._load(path, model)

    def _make_room(self, state: dict[str, Tensor], layout: dict) -> None:
        self._start(WeightSites.from_json(layout["sites"]), state["spikes"])

    def get_extra_state(self) -> dict:
        sites = [] if self._sites is None else self._sites.sites
        return {**super().get_extra_state(), "sites": sites}


def spikes_of(model: Callable, sites: WeightSites, args: tuple) -> Tensor:
    """Which elements of the vector of all sites have a spike-and-slab prior, ``[D]``."""
    with torch.no_grad(), kept_rng(), poutine.block(), FixedParameters():
        trace = poutine.trace(model).get_trace(*args)
    nodes = [trace.nodes[name] for name, _, _ in sites.sites]
    return torch.cat([
        torch.full_like(node["value"].flatten(), isinstance(base_prior(node["fn"]), SpikeSlab), dtype=bool)
        for node in nodes
    ])  # fmt: skip


@contextmanager
def _blaming_precision() -> Iterator[None]:
    """:raises TypeError: in place of torch's words on two precisions, which name neither cause nor remedy"""
    try:
        yield
    except RuntimeError as error:
        said = str(error).partition("\n")[0]
        if "same dtype" not in said and "scalar type" not in said:
            raise
        raise TypeError(
            "JointSpikeSlab runs the model in float64, and a tensor that was made before is of another "
            "precision: make a network float64 by net.double() before the model is made of it, a tensor or "
            f"a prior outside of the model's function by dtype=torch.float64 ({said})"
        ) from error


def _precision(args: tuple) -> str:
    """``"float32"``, ``"float64"``: of the first argument with numbers of floating point."""
    kinds = [part.dtype for part in args if isinstance(part, Tensor) and part.is_floating_point()]
    return str(kinds[0] if kinds else torch.get_default_dtype()).removeprefix("torch.")


def _warn_of_rise(losses: Sequence[float]) -> None:
    """Where the loss of the last steps is above that of the first, beyond their noise; few do not tell."""
    width = round(ENDS * len(losses))
    if width < 2:
        return
    first, last = torch.tensor(losses[:width]).double(), torch.tensor(losses[-width:]).double()
    rise = (last.mean() - first.mean()).item()
    se = math.sqrt((first.var() + last.var()).item() / width)
    # the first steps fall from their start, which can only hide a rise
    if still_moving(rise, se):
        warnings.warn(
            f"the fit ended {rise:.3g} nats above its first steps: take a lower lr or more steps, or "
            "AutoSpikeSlab; scales of a hierarchy can be written non-centred, scale * Normal(0, 1)",
            UnsettledWarning,
            stacklevel=3,
        )
