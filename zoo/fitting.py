"""Fitting a guide by stochastic variational inference: one loop, with checkpoints, that stops on NaN."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pyro
import torch
from pyro import poutine
from pyro.infer import SVI
from rich.progress import Progress
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from guides.autoguide import FlatGuide
from guides.storage import write_atomically
from zoo.errors import DivergenceError, UserError

SECONDS_BETWEEN_CHECKPOINTS = 10.0


@dataclass(frozen=True)
class FitSettings:
    """How long and how fast to fit.

    :ivar steps: optimiser steps
    :ivar lr: first learning rate of Adam; it falls to zero along a half cosine
    :ivar batch_size: rows of a minibatch; None takes all rows at each step
    :ivar seed: of the start, the noise and the minibatches
    """

    steps: int = 8000
    lr: float = 0.01
    batch_size: int | None = None
    seed: int = 0

    def learning_rate(self, step: int) -> float:
        return self.lr * 0.5 * (1 + math.cos(math.pi * step / self.steps))


class Fit:
    """One guide being fitted to one model on data ``x: [N, in]``, ``y: [N]``.

    :ivar losses: minus the ELBO estimate of every step so far, in nats of the whole data set
    :ivar seconds: time spent in steps so far
    """

    def __init__(self, guide: FlatGuide, model: Callable, x: Tensor, y: Tensor, settings: FitSettings):
        self.guide, self.model, self.x, self.y, self.settings = guide, model, x, y, settings
        self.optimizer = guide.optimizer(settings.lr)
        self.svi = SVI(model, guide, self.optimizer, guide.elbo())
        self.losses: list[float] = []
        self.seconds = 0.0

    def run(self, *, checkpoint: Path | None = None, progress: Progress | None = None, label: str = "fit") -> Fit:
        """Takes the remaining steps; with ``checkpoint``, goes on from that file and keeps it up to date.

        :raises DivergenceError: at the first loss that is not finite, with step, site and remedy
        :raises UserError: when the checkpoint is damaged or of other settings
        """
        with torch.random.fork_rng(devices=[]):
            pyro.set_rng_seed(self.settings.seed)
            if checkpoint is not None and checkpoint.exists():
                self._restore(checkpoint)
            else:
                self.guide.setup(*self._batch())
                self.optimizer.adopt(self.guide.parameters())
            task = progress.add_task(label, total=self.settings.steps, completed=len(self.losses)) if progress else None
            last_saved = time.monotonic()
            while len(self.losses) < self.settings.steps:
                self._step()
                if progress:
                    progress.advance(task)
                if checkpoint is not None and time.monotonic() - last_saved > SECONDS_BETWEEN_CHECKPOINTS:
                    self._save(checkpoint)
                    last_saved = time.monotonic()
            if checkpoint is not None:
                self._save(checkpoint)
        return self

    def elbo(self, num_samples: int = 200) -> tuple[float, float]:
        """The evidence lower bound in nats and its standard error, over networks drawn from the guide."""
        with torch.random.fork_rng(devices=[]), pyro.validation_enabled(False):
            pyro.set_rng_seed(self.settings.seed + 1)
            values = torch.tensor([-self.svi.evaluate_loss(self.x, self.y) for _ in range(num_samples)])
        return values.mean().item(), (values.std() / math.sqrt(num_samples)).item()

    def _batch(self) -> tuple:
        rows, size = len(self.x), self.settings.batch_size
        if size is None or size >= rows:
            return self.x, self.y
        keep = torch.randint(rows, (size,))
        return self.x[keep], self.y[keep], rows

    def _step(self) -> None:
        step = len(self.losses)
        self.optimizer.set_lr(self.settings.learning_rate(step))
        start = time.perf_counter()
        loss = self._loss()
        self.seconds += time.perf_counter() - start
        if not math.isfinite(loss):
            raise DivergenceError(self._diagnosis(step, loss))
        self.losses.append(loss)

    def _loss(self) -> float:
        try:
            return self.svi.step(*self._batch())
        except ValueError as error:  # Pyro's validation meets the NaN first
            if "nan" in str(error).lower():
                return math.nan
            raise

    def _diagnosis(self, step: int, loss: float) -> str:
        bad = [name for name, parts in self.guide._detached().items() if not all(p.isfinite().all() for p in parts)]
        where = f"site {bad[0]!r} is not finite" if bad else "the likelihood of 'y' overflowed"
        return f"step {step}: the loss is {loss}, {where}; lower the learning rate (now {self.settings.lr:g})"

    # ------------------------------------------------------------------------------------------------------
    # Checkpoints: guide, optimiser, random state and loss trace in one file

    def _save(self, path: Path) -> None:
        state = self.guide.state_dict()
        layout = state.pop("_extra_state")
        tensors = {f"guide.{name}": value for name, value in state.items()}
        for i, moments in self.optimizer.get_state()["state"].items():
            tensors |= {f"adam.{i}.{name}": torch.as_tensor(value) for name, value in moments.items()}
        tensors["losses"] = torch.tensor(self.losses, dtype=torch.float64)
        tensors["random_state"] = torch.get_rng_state()
        header = {"layout": layout, "settings": asdict(self.settings), "seconds": self.seconds}
        metadata = {"fit": json.dumps(header)}
        tensors = {name: value.contiguous() for name, value in tensors.items()}
        write_atomically(path, lambda target: save_file(tensors, target, metadata=metadata))

    def _restore(self, path: Path) -> None:
        header, tensors = read_checkpoint(path)
        if header["settings"] != asdict(self.settings):
            raise UserError(f"{path} belongs to a fit with other settings: choose another --out, or delete it")
        guide = {name.removeprefix("guide."): value for name, value in tensors.items() if name.startswith("guide.")}
        self.guide.load_state_dict({**guide, "_extra_state": header["layout"]})
        self.optimizer.adopt(self.guide.parameters())
        self._restore_adam(tensors)
        self.losses = tensors["losses"].tolist()
        self.seconds = header["seconds"]
        torch.set_rng_state(tensors["random_state"])

    def _restore_adam(self, tensors: Mapping[str, Tensor]) -> None:
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("adam."):
                _, i, key = name.split(".")
                moments.setdefault(int(i), {})[key] = value
        self.optimizer.set_state({**self.optimizer.get_state(), "state": moments})


def read_checkpoint(path: Path) -> tuple[dict, dict[str, Tensor]]:
    """Header and tensors of a fit; :raises UserError: naming a damaged file"""
    try:
        with safe_open(str(path), framework="pt") as file:
            header = json.loads((file.metadata() or {})["fit"])
            return header, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, KeyError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is truncated or no fit of this program ({error}): delete it and fit again") from error


def log_joint(model: Callable, draws: Mapping[str, Tensor], *args) -> Tensor:
    """``log p(y, theta)`` of the model at draws ``{name: [S, *site]}`` and its arguments, ``[S]``, in nats."""
    size = len(next(iter(draws.values())))
    values = []
    with torch.no_grad(), pyro.validation_enabled(False), poutine.block():
        for i in range(size):
            trace = poutine.trace(poutine.condition(model, {n: v[i] for n, v in draws.items()})).get_trace(*args)
            values.append(trace.log_prob_sum())
    return torch.stack(values)
