"""Sparse implicit processes: a posterior over functions that no family of densities bounds."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyro
import torch
from pyro import distributions as dist
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from guides.core.checks import check_counts, check_numbers, check_numbers_given, check_two
from guides.core.course import Course
from guides.core.modes import evaluating, fitting
from guides.core.rng import kept_rng, seeded_rng
from guides.core.svi import shuffled_epochs
from guides.implicit.conditional import Conditional, InducingMoments
from guides.implicit.discriminator import DiscriminatorKL, warn_of_saturation
from guides.implicit.energy import check_alpha, gaussian_log_power, power_mean
from guides.implicit.fitted import (
    RegressionGuide,
    check_inputs,
    check_regression,
    remembered,
    warn_unsettled,
)
from guides.implicit.generator import Generator
from guides.implicit.processes import DrawnLaw, Functions, ImplicitProcess, as_process, check_process
from guides.posterior.draws import Posterior
from guides.posterior.predictive import mixture

#: Sd of the noise at the start, of a target of variance 1.  Small: with ``alpha = 1`` the functions then
#: divide the data among themselves, where much noise lets all of them fit the mean.
START_NOISE = math.exp(-2.5)
#: Rows that the drawn functions are evaluated at, at a time.
ROWS_AT_ONCE = 500
#: Distance between inducing inputs that start at the same row.
SPREAD = 1e-2


@dataclass(frozen=True)
class Settings:
    """All of :class:`SparseImplicitProcess` but its prior."""

    num_inducing: int
    alpha: float
    num_functions: int
    num_particles: int
    hidden: tuple[int, ...]
    noise_features: int
    jitter: float
    adaptive_contrast: bool
    symmetrised: bool
    noise_scale: float | None
    init_noise_scale: float

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        check_counts(
            num_inducing=self.num_inducing,
            num_functions=self.num_functions,
            noise_features=self.noise_features,
        )
        check_numbers(jitter=self.jitter, init_noise_scale=self.init_noise_scale)
        check_two("a classifier cannot judge a single draw", num_particles=self.num_particles)
        check_numbers_given(noise_scale=self.noise_scale)
        if self.num_functions <= self.num_inducing + 1:
            raise ValueError(
                f"num_functions={self.num_functions} draws of the prior cannot tell the covariance of "
                f"{self.num_inducing} inducing values: more than {self.num_inducing + 1} are needed, five "
                "times as many are good"
            )


class SparseImplicitProcess(RegressionGuide):
    """Regression with an implicit prior of functions and an implicit posterior at inducing inputs.

    ``q(f, u) = p(f | u) q(u)``: the values ``u`` of the function at ``M`` inducing inputs, which move, come
    from a :class:`~guides.implicit.generator.Generator`; elsewhere the function follows the Gaussian process
    with the moments of ``num_functions`` draws from the prior, the same number in training and prediction.
    Maximised are the alpha energy of the data minus ``(KL(q || p) + KL(p || q)) / 2`` of ``u`` by a
    classifier (:class:`DiscriminatorKL`), over everything at once: the generator, the inducing inputs, the
    noise and the parameters of the prior (Rodriguez Santana, Zaldivar and Hernandez-Lobato 2022, "Function-
    space Inference with Sparse Implicit Processes", ICML).

    **No bound and no NUTS.**  The objective is no lower bound of the evidence; for ``alpha = 1`` it learns
    the predictive density, also one that the model's Gaussian noise alone could not have: then it does not
    approximate the posterior that NUTS samples.  The classifier saturates in most fits: its KL divergence is
    a penalty, not a distance (see ``facts``).  A penalty may leave sds far too small, and does
    so, without a ``saturated`` classifier, where there are more inducing inputs than the prior's functions
    have dimensions (straight lines have two): their values then obey equations that nothing enforces.

    :param prior: an implicit process, or a Pyro model ``prior(x)`` with a ``pyro.deterministic`` site of its
        function's values ``[N]`` (see :class:`~guides.implicit.processes.FunctionSite`).  A torch module is
        trained along, but for parameters without ``requires_grad``
    :param num_inducing: M
    :param alpha: 1 for the log of the predictive density, 0 for the expected log likelihood
    :param num_functions: draws of the prior behind ``p(f | u)``, more than ``M + 1``; 5 M by default
    :param num_particles: draws of ``q(u)`` in a training step
    :param hidden: units of the generator's and of the classifier's hidden layers
    :param noise_features: noise dimensions of the generator; few learn several modes sooner than the
        published 100
    :param jitter: variance added to the inducing values
    :param adaptive_contrast: see :class:`DiscriminatorKL`
    :param symmetrised: False for ``KL(q || p)`` alone: with ``alpha = 0`` and a classifier that errs as it
        should this is the variational bound, but the prior does not follow the data
    :param noise_scale: sd of the noise, in the units of ``y``; learned by default
    :param init_noise_scale: where a learned one starts.  From little noise the functions learn the rows
        first, as several branches need (``alpha = 1``); from much they learn what many rows share
    :param site: the Pyro model's function
    :raises ValueError: for arguments out of range

    :ivar losses: minus the objective at every step, nats, for the whole data
    :ivar facts: of the fit: ``classifier_loss`` (nats; log 2 cannot tell q from p) and whether it is
        ``saturated``, ``retained_variance`` (the share of the prior's variance at training rows that the
        inducing values leave open), ``noise_variance``, ``seconds``, and the arguments of :meth:`fit`
    """

    #: The components of a predictive mixture stand on the same drawn functions of the prior.
    components_share = True

    def __init__(
        self,
        prior: ImplicitProcess | Callable,
        num_inducing: int = 50,
        *,
        alpha: float = 0.5,
        num_functions: int | None = None,
        num_particles: int = 100,
        hidden: Sequence[int] = (50, 50),
        noise_features: int = 10,
        jitter: float = 1e-5,
        adaptive_contrast: bool = False,
        symmetrised: bool = True,
        noise_scale: float | None = None,
        init_noise_scale: float = START_NOISE,
        site: str = "f",
    ):
        functions = 5 * num_inducing if num_functions is None else num_functions
        settings = Settings(
            num_inducing, alpha, functions, num_particles, tuple(hidden), noise_features, jitter,
            adaptive_contrast, symmetrised, noise_scale, init_noise_scale,
        )  # fmt: skip
        super().__init__(settings)
        self.prior = as_process(prior, site)
        self._classifier: DiscriminatorKL | None = None

    # ------------------------------------------------------------------------------------------------ fitting

    def fit(
        self,
        x: Tensor,
        y: Tensor,
        *,
        steps: int = 5000,
        batch_size: int = 100,
        lr: float = 5e-3,
        noise_lr: float | None = None,
        classifier_lr: float = 1e-3,
        warm_up: float = 0.2,
        seed: int = 0,
        on_start: Callable[[SparseImplicitProcess], None] | None = None,
        on_step: Callable[[int, SparseImplicitProcess], None] | None = None,
    ) -> SparseImplicitProcess:
        """Fits to data whose columns and target have means near 0 and sds near 1.

        The prior goes on from the parameters it has; all else starts afresh, the inducing inputs at random
        rows (where there are fewer rows than inducing inputs, at copies 0.01 apart).

        :param x: ``[N, d]``
        :param y: ``[N]``
        :param steps: one of the classifier and one of the rest each, on the same draws
        :param batch_size: rows of a step
        :param lr: first learning rate, falling to zero as half a cosine
        :param noise_lr: the same of the noise's log variance, ``lr`` by default; where that is low the noise
            may have farther to go
        :param classifier_lr: learning rate of the classifier, which does not fall; above ``lr`` its KL
            divergence is followed closely, below it stays a loose penalty, as in all figures of the zoo
        :param warm_up: share of the steps in which the weight of the KL divergence grows from 0 to 1
        :param seed: of everything random; torch's generators stay as they are
        :param on_start: called with this object before the first step, to start inducing inputs elsewhere, or
            to keep parameters where they are (``requires_grad_(False)``)
        :param on_step: called after every step with its number, from 1, and this object
        :returns: this object; warns (:class:`~guides.implicit.SaturationWarning`) where the classifier
            ended ``saturated``, (:class:`~guides.core.settling.UnsettledWarning`) where the loss fell by
            0.02 nats a row or more in the last tenth of the learning, and where the sd of ``y`` is far from 1
        :raises ValueError: for data of other shapes, not finite or constant, or arguments out of range
        :raises DivergenceError: a RuntimeError, at the first loss that is not finite, or when the last step
            leaves nothing to predict from
        """
        course = Course(steps, lr, warm_up, seed, batch_size)
        noise_lr = lr if noise_lr is None else noise_lr
        check_numbers(noise_lr=noise_lr)
        check_regression(x, y)
        check_process(self.prior, x)
        begun = time.perf_counter()
        with seeded_rng(seed):
            self._start(x)
            classifier = DiscriminatorKL(
                self.settings.hidden, self.settings.adaptive_contrast, lr=classifier_lr
            )
            self._classifier = classifier
            if on_start is not None:
                on_start(self)

            def loss(batch: tuple, weight: float) -> Tensor:
                return self._loss(classifier, *batch, weight)

            batches = shuffled_epochs((x, y), batch_size, seed)
            own = {} if noise_lr == lr else {self.log_noise: noise_lr}
            with fitting(self):  # a prior may have dropout
                self._follow(course.run(self.parameters(), batches, loss, own_rates=own), on_step)
        self.facts = {
            **asdict(course), "noise_lr": noise_lr, "classifier_lr": classifier_lr, "rows": len(x),
            "seconds": time.perf_counter() - begun, "noise_variance": self.noise_variance,
            "classifier_loss": classifier.classifier_loss, "saturated": classifier.saturated,
            "retained_variance": self._retained(x[:: math.ceil(len(x) / ROWS_AT_ONCE)], course),
        }  # fmt: skip
        warn_of_saturation(classifier)
        warn_unsettled(self.losses, course, len(x))
        return self

    def _start(self, x: Tensor) -> None:
        wanted, rows = self.settings.num_inducing, len(x)
        if wanted <= rows:
            inducing = x[torch.randperm(rows)[:wanted]].clone()
        else:
            copies = x[torch.randint(rows, (wanted,))]
            inducing = copies + SPREAD * torch.randn_like(copies)
        self._make_parameters(inducing)
        self.losses, self.facts = [], {}

    def _make_parameters(self, inducing: Tensor) -> None:
        self.inducing = nn.Parameter(inducing)
        self._make_noise(2 * math.log(self.settings.init_noise_scale), inducing.dtype, inducing.device)
        generator = Generator(
            len(inducing), self.settings.noise_features, self.settings.hidden, dtype=inducing.dtype
        )
        self.generator = generator.to(inducing.device)

    def _loss(self, classifier: DiscriminatorKL, x: Tensor, y: Tensor, rows: int, weight: float) -> Tensor:
        """Minus the objective, after a step of the classifier on the same draws.

        :param rows: of the whole data
        :param weight: of the KL divergence
        """
        u, drawn, conditional = self._drawn(x)
        classifier.step(u, drawn)
        energy = rows / len(x) * self._energy(conditional, u.double(), y.double())
        return weight * self._divergence(classifier, u, drawn) - energy

    def _drawn(self, x: Tensor) -> tuple[Tensor, Tensor, Conditional]:
        """Draws at the inducing inputs of the posterior and of the prior, ``[S, M]``, and ``p(f | u)`` at
        ``x`` by the latter.
        """
        inducing = len(self.inducing)
        values = self.prior.draw(self.settings.num_functions)(torch.cat((self.inducing, x)))
        drawn, u = values[:, :inducing].to(self.inducing.dtype), self.generator(self.settings.num_particles)
        return u, drawn, InducingMoments.of(drawn, self.settings.jitter).conditional(values[:, inducing:])

    def _divergence(self, classifier: DiscriminatorKL, u: Tensor, drawn: Tensor) -> Tensor:
        if self.settings.symmetrised:
            return classifier.symmetrised(u, drawn)
        return classifier.log_ratio(u).mean()

    def terms(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """What the objective is made of: the alpha energy of rows ``x: [N, d]``, ``y: [N]``, and the KL term,
        ``[]`` each, with gradients; by torch's global random numbers and the classifier of the fit.

        :raises RuntimeError: without a fit; a file has no classifier
        """
        if self._classifier is None:
            raise RuntimeError("no classifier: call fit")
        u, drawn, conditional = self._drawn(x)
        energy = self._energy(conditional, u.double(), y.double())
        return energy, self._divergence(self._classifier, u, drawn)

    def _energy(self, conditional: Conditional, u: Tensor, y: Tensor) -> Tensor:
        """Sum over the rows; the function given ``u`` is integrated out."""
        alpha, noise = self.settings.alpha, self.log_noise.double().exp()
        terms = gaussian_log_power(y, conditional.mean(u), conditional.variance, noise, alpha)
        return power_mean(terms, alpha).sum()

    # -------------------------------------------------------------------------------------------- predictions

    def predictive(
        self, x: Tensor, noise: bool = True, *, num_samples: int = 500, seed: int = 0
    ) -> Distribution:
        """The posterior predictive at ``x: [m, d]``: a mixture of Normals, batch shape ``[m]``, float64.

        One component a draw of ``q(u)``; the function given ``u`` and the noise are integrated out.

        :param noise: of ``y``; if not, of the function
        :param num_samples: draws of ``q(u)``
        :param seed: of these and, by random numbers of their own, of the prior's functions, the same for all
            inputs
        :raises ValueError: for inputs of other columns than the fit's
        """
        check_counts(num_samples=num_samples)
        self._require_fit()
        check_inputs(x, self.inducing.shape[1])
        u = self.draws(num_samples, seed)["u"].double()
        functions, moments = self._prior_functions(seed)
        added = self._added_variance(noise)
        means, scales = [], []
        with torch.no_grad(), evaluating(self), kept_rng():  # a model may draw more than its function
            for part in x.split(ROWS_AT_ONCE):
                conditional = moments.conditional(functions(part))
                means.append(conditional.mean(u))
                scales.append((conditional.variance + added).sqrt().expand_as(means[-1]))
        return mixture(Normal(torch.cat(means, 1), torch.cat(scales, 1)))

    @torch.no_grad()
    def _prior_functions(self, seed: int) -> tuple[Functions, InducingMoments]:
        """Functions of the prior, and their moments at the inducing inputs; by other random numbers than
        those that the same seed gives to draws of ``u``.
        """
        self._require_fit()
        seed_of_functions, _ = _further_seeds(seed)
        with seeded_rng(seed_of_functions), evaluating(self):
            functions = self.prior.draw(self.settings.num_functions)
            drawn = functions(self.inducing)
        return functions, InducingMoments.of(drawn, self.settings.jitter)

    @torch.no_grad()
    def _retained(self, x: Tensor, course: Course) -> float:
        try:
            functions, moments = self._prior_functions(0)
        except ValueError as error:  # after steps with a covariance that was none
            raise course.lost() from error
        with kept_rng():
            return moments.conditional(functions(x)).retained.item()

    # ----------------------------------------------------------------------------------------------- as draws

    def draws(self, n: int, seed: int = 0) -> dict[str, Tensor]:
        """``{"u": [n, M]}``: independent draws of the function's values at the inducing inputs."""
        check_counts(n=n)
        self._require_fit()
        with torch.no_grad(), seeded_rng(seed):
            return {"u": self.generator(n)}

    def posterior(self, n: int = 500, seed: int = 0) -> Posterior:
        """``n`` draws of functions as a :class:`~guides.posterior.draws.Posterior`.

        Its model has the site ``u`` with the prior's draws for a law, which has no density, the standard
        normal ``epsilon: [S_prior + M]``, which is what ``f`` given ``u`` is made of, and a Gaussian ``y``
        around ``f``.  Means over the draws tend to the mixture of :meth:`predictive`.  All draws share the
        functions of the prior that the seed gives; those of another seed move them together.
        """
        functions, moments = self._prior_functions(seed)
        noise_scale = math.sqrt(self.noise_variance)
        size = self.settings.num_inducing
        law = DrawnLaw(lambda count: self.prior.draw(count)(self.inducing.detach()).double(), size)
        standard = dist.Normal(torch.zeros(self.settings.num_functions + size).double(), 1.0).to_event(1)

        @remembered
        def given(x: Tensor) -> tuple[Conditional, Tensor]:
            with evaluating(self):
                f = functions(x)
            conditional = moments.conditional(f)
            return conditional, moments.remainder(f, conditional.weights)

        def model(x: Tensor, y: Tensor | None = None) -> Tensor:
            u, epsilon = pyro.sample("u", law), pyro.sample("epsilon", standard)
            conditional, remainder = given(x)
            f = conditional.offset + u @ conditional.weights + epsilon @ remainder
            with pyro.plate("data", len(x)):
                pyro.sample("y", dist.Normal(f, noise_scale), obs=y)
            return f

        u = self.draws(n, seed)["u"].double()
        _, seed_of_epsilon = _further_seeds(seed)
        with seeded_rng(seed_of_epsilon):
            draws = {"u": u, "epsilon": standard.sample((n,))}
        return self._posterior(model, draws, "sparse implicit process", seed)

    # ---------------------------------------------------------------------------------------------- in a file

    @classmethod
    def load(
        cls, path: str | Path, prior: ImplicitProcess | Callable, *, site: str = "f"
    ) -> SparseImplicitProcess:
        """What :meth:`save` wrote.

        :param prior: as when it was fitted; a module is given the parameters in the file
        :raises ValueError: naming a damaged or foreign file, or one of another prior
        """
        return cls._load(path, prior, site=site)

    def _make_room(self, state: dict[str, Tensor], layout: dict) -> None:
        if "inducing" in state:
            self._make_parameters(state["inducing"])


def _further_seeds(seed: int) -> list[int]:
    """Two seeds of other random numbers than ``seed`` itself gives, which draws of ``u`` are made of."""
    return torch.randint(2**31, (2,), generator=torch.Generator().manual_seed(seed)).tolist()
