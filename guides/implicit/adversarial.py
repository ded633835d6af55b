"""Implicit posteriors of a model's weights: adversarial variational Bayes and alpha divergences (AADM)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, repeat
from pathlib import Path

import pyro
import torch
from torch import Tensor

from guides.core.checks import check_counts, check_two
from guides.core.course import Course
from guides.core.rng import seeded_rng
from guides.core.svi import shuffled_epochs
from guides.core.weight_sites import WeightSites, scores
from guides.implicit.discriminator import DiscriminatorKL, warn_of_saturation
from guides.implicit.energy import check_alpha, power_mean
from guides.implicit.generator import Generator
from guides.implicit.moments import Correlated, Diagonal, contrast_law
from guides.posterior.draws import Posterior
from guides.posterior.fitted_guide import FittedGuide


@dataclass(frozen=True)
class Settings:
    """All of :class:`AdversarialVariationalBayes` but its model."""

    alpha: float
    num_particles: int
    hidden: tuple[int, ...]
    noise_features: int

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        check_counts(noise_features=self.noise_features)
        check_two("a classifier cannot judge a single draw", num_particles=self.num_particles)


class AdversarialVariationalBayes(FittedGuide):
    """Any Pyro model with a posterior of its latent sites that is noise pushed through a network.

    ``KL(q || p)`` by adaptive contrast (Mescheder, Nowozin and Geiger 2017, "Adversarial Variational Bayes",
    ICML): a Gaussian ``r`` with the moments of ``q`` (its correlations too where there are five draws a
    weight) is compared with the prior, whose density the model has, and a classifier compares ``q`` with
    ``r``.  With ``alpha`` above 0 the likelihood enters as an alpha energy (Rodriguez Santana and Hernandez-
    Lobato 2022, "Adversarial alpha-divergence minimization for Bayesian approximate inference",
    Neurocomputing: AADM).

    The objective cannot be believed where there are fewer than

    - as many units in every hidden layer of the generator and dimensions of noise as there are weights: ``q``
      lives on a surface of as many dimensions as the narrowest of them has, and has no density;
    - five draws a weight: the classifier has to find the correlations, hardly ever errs (``saturated``) and
      counts the divergence too little.

    In linear models whose posterior and evidence are known (``python benchmarks/adversarial_contrast.py``,
    two seeds) with 40 weights 100 draws take the objective above the log evidence by 1 to 3 nats, and the
    function's mean 0.08 to 0.17 sds off, its sd to 0.9 of what it should be; 200 leave it 3 to 4 nats below,
    and the mean 0.01 to 0.02 off.  With 100 weights and 500 draws (one seed) layers of 50 units end 2000 nats
    below and the mean 7 sds off, layers of 200 units 8 nats below and 0.02 off.  On a network of hundreds of
    weights the defaults meet neither: the divergence is a penalty, and only a comparison with NUTS tells how
    good the fit is.

    :param model: a Pyro model; latent sites are real, positive or in the unit interval.  Sites of other
        supports are refused when it is fitted
    :param alpha: 0 for the evidence bound of variational Bayes, 1 for the log of the predictive density of
        every observation.  An observation is one number of an observed site (one event): what belongs to one
        row must be one event (``to_event(1)``), or with alpha above 0 it counts as if it came from rows of
        its own, as do the numbers of two observed sites
    :param num_particles: draws of a step; from five a weight on ``r`` has correlations
    :param hidden: units of the generator's and of the classifier's hidden layers
    :param noise_features: noise dimensions of the generator
    :raises ValueError: for arguments out of range

    :ivar losses: minus the objective at every step, nats, for the whole data
    :ivar facts: of the fit: ``classifier_loss`` (nats; log 2 cannot tell q from r) and whether it is
        ``saturated``, ``seconds``, and the arguments of :meth:`fit`
    """

    def __init__(
        self,
        model: Callable,
        *,
        alpha: float = 0.0,
        num_particles: int = 100,
        hidden: Sequence[int] = (50, 50),
        noise_features: int = 100,
    ):
        super().__init__(Settings(alpha, num_particles, tuple(hidden), noise_features))
        self.__dict__["model"] = model  # a module's parameters are none of this guide's
        self._sites: WeightSites | None = None

    # ------------------------------------------------------------------------------------------------ fitting

    def fit(
        self,
        *args,
        steps: int = 2000,
        batch_size: int | None = None,
        lr: float = 5e-3,
        classifier_lr: float | None = None,
        warm_up: float = 0.1,
        seed: int = 0,
        on_step: Callable[[int, AdversarialVariationalBayes], None] | None = None,
    ) -> AdversarialVariationalBayes:
        """Starts afresh.

        :param args: the model's arguments, with data
        :param batch_size: rows of a minibatch: the model is then called with rows of all arguments and the
            number of all rows (:func:`guides.core.svi.shuffled_epochs`); None: with ``args`` themselves
        :param lr: first learning rate, falling to zero as half a cosine
        :param classifier_lr: learning rate of the classifier, which does not fall; None: ``lr``.  Below
            ``lr`` it lags behind what it judges
        :param warm_up: share of the steps in which the weight of the KL divergence grows from 0 to 1
        :param seed: of everything random; torch's generators stay as they are
        :param on_step: called after every step with its number, from 1, and this object
        :returns: this object; warns (:class:`~guides.implicit.SaturationWarning`) where the classifier
            ended ``saturated``, and (:class:`~guides.core.settling.UnsettledWarning`) where the loss still
            fell by half a nat in the last tenth of the learning, beyond its noise.  That of minibatches
            of many rows is hundreds of nats, and hides a fall that leaves sds several times too wide; a
            classifier that lags behind hides it too, so that silence after few steps says nothing
        :raises UnsupportedSiteError: a latent site that no network's output can stand for
        :raises ValueError: a parameter without a prior that is not fixed
        :raises DivergenceError: a RuntimeError, at the first loss that is not finite
        """
        course = Course(steps, lr, warm_up, seed, batch_size)
        classifier_lr = lr if classifier_lr is None else classifier_lr
        begun = time.perf_counter()
        with seeded_rng(seed), pyro.validation_enabled(False):
            batches = repeat(args) if batch_size is None else shuffled_epochs(args, batch_size, seed)
            first = next(batches)
            self._start(WeightSites.of(self.model, first), _like(args))
            contrast = Contrast(DiscriminatorKL(self.settings.hidden, lr=classifier_lr))

            def loss(batch: tuple, weight: float) -> Tensor:
                return self._loss(contrast, batch, weight)

            self._follow(course.run(self.parameters(), chain([first], batches), loss), on_step)
        self.facts = {
            **asdict(course), "classifier_lr": classifier_lr, "seconds": time.perf_counter() - begun,
            "classifier_loss": contrast.classifier.classifier_loss,
            "saturated": contrast.classifier.saturated,
        }  # fmt: skip
        warn_of_saturation(contrast.classifier)
        course.warn_unsettled(self.losses)
        return self

    def _start(self, sites: WeightSites, like: Tensor) -> None:
        """:param like: has the dtype and the device of the draws"""
        self._sites = sites
        settings = self.settings
        generator = Generator(len(sites), settings.noise_features, settings.hidden, dtype=like.dtype)
        self.generator = generator.to(like.device)
        self.losses, self.facts = [], {}

    def _loss(self, contrast: Contrast, batch: tuple, weight: float) -> Tensor:
        """Minus the objective, after a step of the classifier on the same draws."""
        w = self.generator(self.settings.num_particles)
        contrast.step(w)
        found = scores(self.model, self._sites, w, batch)
        energy = sum(
            scale * power_mean(terms.double(), self.settings.alpha).sum()
            for terms, scale in found.log_likelihoods
        )
        return weight * (contrast.log_density(w) - found.log_prior).mean() - energy

    # ----------------------------------------------------------------------------------------------- as draws

    def draws(self, n: int, seed: int = 0) -> dict[str, Tensor]:
        """``{site: [n, *site]}``: independent draws of every latent site."""
        check_counts(n=n)
        self._require_fit()
        with torch.no_grad(), seeded_rng(seed):
            return self._sites.values(self.generator(n))

    def posterior(self, n: int = 1000, seed: int = 0) -> Posterior:
        """``n`` independent draws as a :class:`~guides.posterior.draws.Posterior`."""
        method = "adversarial variational Bayes" if self.settings.alpha == 0 else "AADM"
        return self._posterior(self.model, self.draws(n, seed), method, seed)

    # ---------------------------------------------------------------------------------------------- in a file

    @classmethod
    def load(cls, path: str | Path, model: Callable) -> AdversarialVariationalBayes:
        """What :meth:`save` wrote; :raises ValueError: naming a damaged or foreign file"""
        return cls._load(path, model)

    def _make_room(self, state: dict[str, Tensor], layout: dict) -> None:
        self._start(WeightSites.from_json(layout["sites"]), state["generator.noise_mean"])

    def get_extra_state(self) -> dict:
        return super().get_extra_state() | {"sites": self._sites.sites}


class Contrast:
    """``log q`` of draws, by adaptive contrast: that of the Gaussian with their moments, and what a
    classifier of whitened draws adds.
    """

    def __init__(self, classifier: DiscriminatorKL):
        self.classifier = classifier
        self._law: Diagonal | Correlated | None = None

    def step(self, w: Tensor) -> None:
        """Follows ``q`` by one step, on its draws ``w: [S, D]``.

        :raises ValueError: for draws that are not finite
        """
        if not w.isfinite().all():
            raise ValueError("draws of the posterior must be finite")
        # of this very batch: moments that lag behind q would push it on the way that it goes
        self._law = contrast_law(w).of(w.detach())
        white = self._law.whiten(w)
        self.classifier.step(white, torch.randn_like(white))

    def log_density(self, w: Tensor) -> Tensor:
        """``[S, D] -> [S]``, nats, with its gradient to the draws alone."""
        return self.classifier.log_ratio(self._law.whiten(w)) + self._law.log_prob(w)


def AADM(
    model: Callable,
    alpha: float = 0.5,
    *,
    num_particles: int = 100,
    hidden: Sequence[int] = (50, 50),
    noise_features: int = 100,
) -> AdversarialVariationalBayes:
    """Adversarial alpha divergence minimisation: :class:`AdversarialVariationalBayes`, alpha above 0.

    What belongs to one row of the data must be one event of one site (see ``alpha`` there).
    """
    return AdversarialVariationalBayes(
        model, alpha=alpha, num_particles=num_particles, hidden=hidden, noise_features=noise_features
    )


def _like(args: tuple) -> Tensor:
    """The first argument of floating point; of none, an empty tensor where the first tensor is."""
    tensors = [part for part in args if isinstance(part, Tensor)]
    device = tensors[0].device if tensors else "cpu"
    return next((part for part in tensors if part.is_floating_point()), torch.empty(0, device=device))
