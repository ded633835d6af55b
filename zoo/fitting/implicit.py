"""The guides of :mod:`guides.implicit` as methods of the zoo."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from guides.core.rng import seeded_rng
from guides.core.settling import UnsettledWarning
from guides.implicit import (
    AdversarialVariationalBayes,
    FunctionalBNN,
    GaussianProcess,
    SaturationWarning,
    SparseImplicitProcess,
    VariationalImplicitProcess,
)
from guides.posterior.fitted_guide import FittedGuide
from zoo.budgets import STEPS
from zoo.errors import FailedError
from zoo.fitting.methods import Fitted, Watch
from zoo.fitting.reach import half_cosine_change
from zoo.fitting.stored import Stored
from zoo.fitting.svi import fitting
from zoo.models.bnn import BNN
from zoo.models.implicit_process import BNNProcess, NeuralSampler, posterior_network

#: Inducing inputs of a sparse implicit process, for one column and for more.  Published: 50 and 100, but in
#: one dimension the covariance of 50 values has a rank of 7 to 26, and the two branches of ``bimodal`` are
#: found in 1000 steps with 20 (log likelihood -2.3 to -2.5), in more than 2000 with 50, each three times as
#: dear.
INDUCING, INDUCING_OF_MORE = 20, 50
#: Hidden units of the priors and networks of functions, as published.
WIDTHS = (50, 50)
#: Hidden units of the prior of a variational implicit process, and functions of it, as published.
VIP_WIDTHS, FUNCTIONS = (10, 10), 20
#: First learning rate times steps, at most this.  VIP: so far go the published 1000 steps with 0.01.  SIP, a
#: training row: 5000 epochs by batches of 10 with 1e-4 are published for the prior of networks.
VIP_REACH, NETWORK_REACH = 10.0, 0.05
#: The same for the neural sampler, and its dropout, the start of its noise (sd) and a rate of the noise's
#: own, for functions of several columns.  Without them it learns the rows of a small set by heart, until no
#: noise is left; stopped before that, the noise has not left its start.  Chosen on a fifth of the training
#: rows of the first split, held out, of boston, concrete, energy and yacht.
SAMPLER_REACH, SAMPLER_DROPOUT, SAMPLER_NOISE, SAMPLER_NOISE_RATE = 0.04, 0.2, 0.6, 5e-3
#: Its first learning rate, at most.
SAMPLER_RATE = 5e-3
#: So many rows it does not learn by heart, and dropout is in the way: log likelihood of held-out training
#: rows without and with it, after 4000 steps, 1.04 and 0.88 on kin8nm (5898 rows), -25 and -0.95 on wine_red
#: (1151); ``python benchmarks/neural_sampler_dropout.py --datasets kin8nm wine_red``.
SAMPLER_ROWS = 2000


@dataclass(frozen=True)
class ImplicitSettings:
    """:ivar lr: first learning rate, None for the method's own; :ivar batch_size: rows of a step"""

    steps: int
    lr: float | None
    batch_size: int
    seed: int


@dataclass(frozen=True)
class Implicit(Stored):
    """A guide that ``fit`` fills.

    :ivar make: ``(model, rows) -> guide``, for a fit; :ivar reopen: ``(file, model) -> guide``
    :ivar batch_size: unless another is wished
    :ivar lr: ``model, rows, steps -> first learning rate``, unless another is wished
    :ivar of_functions: whether its law is one of functions, with a model of its own and a predictive
        distribution in closed form; else its draws are of the model's sites
    :ivar fit_options: ``model -> further arguments of fit``
    :ivar whole_loss: whether the losses of a fit are of all that it minimises: those of a functional BNN are
        minus the log likelihood alone
    """

    make: Callable[[Callable, int], FittedGuide]
    reopen: Callable[[Path, Callable], FittedGuide]
    batch_size: int = 100
    lr: Callable[[Callable, int, int], float] = lambda model, rows, steps: 5e-3
    of_functions: bool = True
    fit_options: Callable[[Callable], Mapping[str, float]] = lambda model: {}
    whole_loss: bool = True
    takes: Sequence[str] = ("steps", "lr", "batch-size")

    def settings(
        self,
        rows: int,
        seed: int,
        *,
        steps: int = STEPS,
        lr: float | None = None,
        batch_size: int | None = None,
    ) -> ImplicitSettings:
        return ImplicitSettings(steps, lr, min(rows, batch_size or self.batch_size), seed)

    def run(self, model: Callable, data: tuple, settings: ImplicitSettings, watch: Watch) -> FittedGuide:
        advance = watch.start(settings.steps)
        # the seed: of where a prior starts
        with seeded_rng(settings.seed), fitting(SaturationWarning, UnsettledWarning):
            try:
                rows = len(data[0])
                options = self.options_of_fit(model, rows, settings)
                return self.make(model, rows).fit(*data, on_step=lambda step, guide: advance(), **options)
            except ValueError as error:  # of data that a function cannot be learned from
                raise FailedError(str(error)) from error

    def options_of_fit(self, model: Callable, rows: int, settings: ImplicitSettings) -> dict[str, Any]:
        """What ``fit`` is called with, the data excepted."""
        return {
            "steps": settings.steps,
            "batch_size": settings.batch_size,
            "lr": settings.lr or self.lr(model, rows, settings.steps),
            "seed": settings.seed,
            **self.fit_options(model),
        }

    def read(self, path: Path, model: Callable) -> FittedGuide:
        return self.reopen(path, model)

    def fitted(self, model: Callable, found: FittedGuide) -> Fitted:
        facts, change = found.facts, half_cosine_change(found.losses)
        gained = "nats" if self.whole_loss else "nats of likelihood"
        return Fitted(
            found.posterior(2).model if self.of_functions else model,
            draws=lambda n, seed: found.posterior(n, seed).draws(),
            num_parameters=sum(p.numel() for p in found.parameters() if p.requires_grad),
            seconds=facts["seconds"],
            summary=f"{facts['steps']} steps in {facts['seconds']:.1f} s, {change.value:+.2g} {gained} "
            f"gained in the last tenth{_judged(facts)}",
            losses=found.losses,
            bound_change=change if self.whole_loss else None,
            closed_form=found if self.of_functions else None,
        )


def _judged(facts: Mapping[str, Any]) -> str:
    """What the classifier of a fit makes of its divergence."""
    if "classifier_loss" not in facts:
        return ""
    saturated = ": it hardly errs, and the divergence counts too little" if facts["saturated"] else ""
    return f", classifier's loss {facts['classifier_loss']:.2g}{saturated}"


def alpha_for(model: Callable) -> float:
    """As published: 1 for functions of one column, which learns branches too, 1/2 for more."""
    return 1.0 if model.in_features == 1 else 0.5


def network_rate(model: Callable, rows: int, steps: int) -> float:
    """5e-3 for functions of one column; for more 1e-2, or what goes no farther than the published program."""
    return 5e-3 if model.in_features == 1 else min(1e-2, NETWORK_REACH * rows / steps)


def sampler_rate(model: Callable, rows: int, steps: int) -> float:
    """For functions of several columns no farther than what was chosen."""
    return SAMPLER_RATE if model.in_features == 1 else min(SAMPLER_RATE, SAMPLER_REACH * rows / steps)


def sparse_implicit_process(
    make_prior: Callable[[BNN, int], torch.nn.Module],
    lr: Callable[[Callable, int, int], float],
    *,
    options: Callable[[BNN], Mapping[str, float]] = lambda model: {},
    fit_options: Callable[[BNN], Mapping[str, float]] = lambda model: {},
) -> Implicit:
    """With the prior that a model of the zoo is given in place of its own, for so many rows.

    :param options: further ones of :class:`SparseImplicitProcess`; ``fit_options`` those of its ``fit``
    """

    def make(model: BNN, rows: int) -> SparseImplicitProcess:
        return SparseImplicitProcess(
            make_prior(model, rows),
            INDUCING if model.in_features == 1 else INDUCING_OF_MORE,
            alpha=alpha_for(model),
            noise_scale=model.noise_scale,
            **options(model),
        )

    def reopen(path: Path, model: BNN) -> SparseImplicitProcess:
        return SparseImplicitProcess.load(path, make_prior(model, 0))

    return Implicit(make, reopen, lr=lr, fit_options=fit_options)


def bnn_prior(model: BNN, rows: int) -> BNNProcess:
    return BNNProcess(model.in_features, WIDTHS)


def neural_sampler(model: BNN, rows: int) -> NeuralSampler:
    dropout = SAMPLER_DROPOUT if rows < SAMPLER_ROWS else 0.0
    return NeuralSampler(model.in_features, WIDTHS, **_of_more(model, dropout=dropout))


def _of_more(model: BNN, **options: float) -> dict[str, float]:
    """For functions of several columns only: in one the defaults find branches."""
    return {} if model.in_features == 1 else options


def shared_prior(model: BNN) -> BNNProcess:
    """A mean and an sd for all weights of a layer."""
    return BNNProcess(model.in_features, WIDTHS, sharing="layer")


def gaussian_process(model: BNN) -> GaussianProcess:
    return GaussianProcess(model.in_features)


def small_prior(model: BNN) -> BNNProcess:
    """Weights have parameters of their own: with those of a layer twenty functions can learn little."""
    return BNNProcess(model.in_features, VIP_WIDTHS)


def variational_implicit_process() -> Implicit:
    def make(model: BNN, rows: int) -> VariationalImplicitProcess:
        return VariationalImplicitProcess(
            small_prior(model), FUNCTIONS, alpha=alpha_for(model), noise_scale=model.noise_scale
        )

    def lr(model: BNN, rows: int, steps: int) -> float:
        return min(5e-3, VIP_REACH / steps)

    return Implicit(
        make, lambda path, model: VariationalImplicitProcess.load(path, small_prior(model)), lr=lr
    )


def functional_bnn(make_prior: Callable[[BNN], torch.nn.Module]) -> Implicit:
    def network(model: BNN) -> BNNProcess:
        return posterior_network(model.in_features, WIDTHS)

    def make(model: BNN, rows: int) -> FunctionalBNN:
        return FunctionalBNN(network(model), make_prior(model), noise_scale=model.noise_scale)

    def reopen(path: Path, model: BNN) -> FunctionalBNN:
        return FunctionalBNN.load(path, network(model), make_prior(model))

    return Implicit(make, reopen, batch_size=20, whole_loss=False)


def adversarial(alpha: Callable[[Callable], float]) -> Implicit:
    def make(model: Callable, rows: int) -> AdversarialVariationalBayes:
        return AdversarialVariationalBayes(model, alpha=alpha(model))

    return Implicit(make, AdversarialVariationalBayes.load, of_functions=False)


METHODS: dict[str, Callable[[], Implicit]] = {
    "sip-bnn": lambda: sparse_implicit_process(bnn_prior, network_rate),
    "sip-ns": lambda: sparse_implicit_process(
        neural_sampler,
        sampler_rate,
        options=functools.partial(_of_more, init_noise_scale=SAMPLER_NOISE),
        fit_options=functools.partial(_of_more, noise_lr=SAMPLER_NOISE_RATE),
    ),
    "vip": variational_implicit_process,
    "fbnn-bnn": lambda: functional_bnn(shared_prior),
    "fbnn-gp": lambda: functional_bnn(gaussian_process),
    "avb": lambda: adversarial(lambda model: 0.0),
    "aadm": lambda: adversarial(alpha_for),
}
