"""Fitting a guide by stochastic variational inference on rows of data, with checkpoints."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from pyro.infer import SVI
from rich.progress import Progress
from torch import Tensor

from guides.core.flat_guide import FlatGuide
from guides.core.rng import seeded_rng
from guides.core.svi import DivergenceError, Schedule, half_cosine, random_rows, svi_steps, unwatched
from zoo.errors import FailedError, UserError
from zoo.evaluation.estimates import Estimate
from zoo.fitting.checkpoints import read_checkpoint, resume, saving, start, write_checkpoint
from zoo.fitting.devices import device_of
from zoo.fitting.memory import keep_freed_memory
from zoo.fitting.reach import last_change, own_rates
from zoo.seeds import stable_seed

SECONDS_BETWEEN_CHECKPOINTS = 10.0
#: How far the sum of all steps goes (half of ``lr`` times their number), where the highest rate allows it.
REACH, HIGHEST_RATE = 50.0, 0.05
#: The ELBO of a fit: networks drawn for it, fewer (not below the least) where rows times parameters times
#: networks would exceed the work.
ELBO_DRAWS, FEWEST_ELBO_DRAWS, ELBO_WORK = 1000, 25, 2 * 10**10


@dataclass(frozen=True)
class FitSettings:
    """How long and how fast to fit.

    :ivar steps: optimiser steps
    :ivar lr: first learning rate of Adam; it falls to zero along a half cosine.  Of few steps, kinds of
        parameters that have far to go take higher ones (:func:`zoo.fitting.reach.own_rates`)
    :ivar batch_size: rows of a minibatch; None takes all rows at each step
    :ivar seed: of the start, the noise and the minibatches
    """

    steps: int = 8000
    lr: float = 0.01
    batch_size: int | None = None
    seed: int = 0

    def learning_rate(self, step: int) -> float:
        return half_cosine(self.lr, step, self.steps)

    def progress(self, step: int) -> float:
        """From 0 at the first step to 1 at the last, for schedules of the guide's own."""
        return step / max(1, self.steps - 1)

    def last_change(self, final_losses: Sequence[float]) -> Estimate:
        """See :func:`zoo.fitting.reach.last_change`."""
        return last_change(final_losses, [self.learning_rate(step) for step in range(len(final_losses))])

    def schedule(self) -> Schedule:
        return Schedule(self.steps, self.learning_rate, self.progress)


def default_learning_rate(steps: int) -> float:
    """So high, between 0.01 and 0.05, that Adam can move a parameter by 50 in that many steps: in 2000 steps
    of 0.01 ``spike-slab`` does not reach the coefficients of ``mjmcmc_sim_logistic`` (bound -249 nats, with
    0.05 -190); on diabetes, boston, us_crime and gallstone the bounds of 2000 steps were as good or better.
    """
    return min(max(2 * REACH / steps, FitSettings.lr), HIGHEST_RATE)


def default_batch_size(rows: int) -> int | None:
    """All rows where they are few; else minibatches, whose cost no longer grows with the data, and whose
    noise helps indicators out of bad optima: with all 2000 rows of ``mjmcmc_sim_logistic`` at each of 10,000
    steps the bound of ``spike-slab`` ends 8 nats lower.
    """
    return None if rows <= 1000 else 500


class Fit:
    """One guide being fitted to one model.

    :param data: the model's arguments, tensors ``[N, ...]`` or lists of ``N``, whose rows belong together;
        the model also takes ``N`` after them where the settings ask for minibatches
    :ivar losses: minus the ELBO estimate of every step so far, in nats of the whole data set
    :ivar final_losses: of the same steps (:class:`guides.core.svi.Step`)
    :ivar seconds: time spent in steps so far
    """

    def __init__(
        self, guide: FlatGuide, model: Callable, data: Sequence[Tensor | Sequence], settings: FitSettings
    ):
        self.guide, self.model, self.data, self.settings = guide, model, tuple(data), settings
        self.optimizer = guide.optimizer(settings.lr, factors=own_rates(settings.lr, settings.steps))
        self.svi = SVI(model, guide, self.optimizer, guide.elbo())
        self.batches = random_rows(self.data, settings.batch_size)
        self.device = device_of(self.data)
        self.losses: list[float] = []
        self.final_losses: list[float] = []
        self.seconds = 0.0

    def run(
        self,
        *,
        checkpoint: Path | None = None,
        about: Mapping | None = None,
        progress: Progress | None = None,
        label: str = "fit",
    ) -> Fit:
        """Takes the remaining steps; with ``checkpoint``, goes on from that file and keeps it up to date.

        :param about: what is being fitted, JSON-safe; a checkpoint about something else is refused
        :raises FailedError: at the first loss that is not finite, with step, site and remedy
        :raises UserError: when the checkpoint is damaged, or of another fit
        """
        about = json.loads(json.dumps(about or {}))
        with seeded_rng(stable_seed("steps", self.settings.seed)):
            if checkpoint is not None and checkpoint.exists():
                self._restore(checkpoint, about)
            else:
                start(self.guide, self.optimizer, self._set_up)
            done, steps = len(self.losses), self.settings.steps
            task = progress.add_task(label, total=steps, completed=done) if progress else None
            save = None if checkpoint is None else partial(self._save, checkpoint, about)
            with fitting(), saving(save, SECONDS_BETWEEN_CHECKPOINTS) as step_taken:
                for step in svi_steps(self.svi, self.batches, self.settings.schedule(), done=done):
                    self.losses.append(step.loss)
                    self.final_losses.append(step.final_loss)
                    self.seconds += step.seconds
                    if progress:
                        progress.advance(task)
                    step_taken()
            if save is not None:
                save()
        return self

    def last_change(self) -> Estimate:
        """How much the bound rose in the last tenth of a finished fit, nats."""
        return self.settings.last_change(self.final_losses)

    def elbo(self, num_samples: int | None = None) -> tuple[float, float]:
        """The evidence lower bound in nats and its standard error, over networks drawn from the guide; their
        number is chosen by the size of the problem if it is not given.
        """
        if num_samples is None:
            work = len(self.data[0]) * sum(parameter.numel() for parameter in self.guide.parameters())
            num_samples = max(FEWEST_ELBO_DRAWS, min(ELBO_DRAWS, ELBO_WORK // max(1, work)))
        with seeded_rng(stable_seed("bound", self.settings.seed)), unwatched():
            values = torch.tensor([-self.svi.evaluate_loss(*self.data) for _ in range(num_samples)])
        return values.mean().item(), (values.std() / math.sqrt(num_samples)).item()

    def _set_up(self) -> None:
        self.guide.setup(*next(self.batches))

    def _save(self, path: Path, about: dict) -> None:
        header = {
            "settings": asdict(self.settings),
            "seconds": self.seconds,
            "about": about,
            "arguments": [_case(part) for part in self.data],
        }
        losses = self.losses, self.final_losses
        write_checkpoint(path, self.guide, self.optimizer, *losses, header, self.device)

    def _restore(self, path: Path, about: dict) -> None:
        header, tensors = read_checkpoint(path)
        if header["settings"] != asdict(self.settings) or header["about"] != about:
            raise UserError(f"{path} belongs to another fit: choose another --out, or delete it")
        found = resume(self.guide, self.optimizer, header, tensors, self._set_up, self.device)
        self.losses, self.final_losses = found
        self.seconds = header["seconds"]


@contextmanager
def fitting(*told: type[Warning]) -> Iterator[None]:
    """Around the steps of a fit: they go unwatched, keep the memory that they free, and one that diverges
    ends as an error of the zoo.

    :param told: warnings of what a summary or a figure of the fit says
    """
    keep_freed_memory()
    try:
        with unwatched():
            for warning in told:
                warnings.simplefilter("ignore", warning)
            yield
    except DivergenceError as error:
        raise FailedError(str(error)) from error


def made_up_data(header: dict) -> list:
    """Arguments like those of the fit in a checkpoint: two rows of zeros, empty lists."""
    return [
        [] if case is None else torch.zeros(2, *case["shape"], dtype=getattr(torch, case["dtype"]))
        for case in header["arguments"]
    ]


def _case(part: Tensor | Sequence) -> dict | None:
    """One row of an argument, JSON-safe; nothing is known of what a list holds."""
    if not isinstance(part, Tensor):
        return None
    return {"shape": list(part.shape[1:]), "dtype": str(part.dtype).removeprefix("torch.")}
