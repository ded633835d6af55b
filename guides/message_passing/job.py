"""One fit, or several in one loop, as arrays: from model and data to the compiled loop and back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from guides.message_passing.fitted import Fitted, Structure
from guides.message_passing.program import Forward
from guides.message_passing.recorder import Recording, analyse, record
from guides.message_passing.schedule import as_rows, in_batches, orders, start_means

if TYPE_CHECKING:
    from guides.message_passing.backpropagation import ProbabilisticBackpropagation

# Up to so many visited rows a fit is one compiled call (well below a second); beyond, one call an epoch, so
# that Ctrl-C finds the state of the last full epoch.
ROWS_IN_ONE_CALL = 50_000


class Job:
    """A fit that is ready to run: everything as arrays.  With ``trials`` all of them have a leading
    dimension.

    :ivar structures: one for each trial
    """

    def __init__(self, forward, links, state, rows, y, orders, structures, facts, trials=False):
        self.forward, self.links, self.state = forward, links, state
        self.rows, self.y, self.orders = rows, y, orders
        self.structures, self.facts, self.trials = structures, facts, trials
        self.start = time.perf_counter()

    @classmethod
    def prepare(cls, guide, x, y, epochs, seed, order, init_means, batch_size) -> Job:
        start = time.perf_counter()
        x, y = as_rows(x, y)
        recording = analyse(guide.model, x, y)
        rng = np.random.default_rng(seed)
        means = start_means(recording, rng, init_means)
        order = orders(len(x), epochs, rng, order, batch_size)
        state, links = _initial_state(recording, means, guide.dtype)
        facts = {
            "epochs": 0,
            "rows_seen": 0,
            "seconds": 0.0,
            "seed": int(seed),
            "batch_size": int(batch_size),
        }
        job = cls(
            Forward(recording.program, guide.messages),
            links,
            state,
            _rows(recording, guide.dtype),
            recording.y,
            order,
            [Structure.of(recording)],
            facts,
        )
        job.start = start
        return job

    @classmethod
    def resume(cls, guide, x, y, batch_size) -> Job:
        """One more pass, without refinement, from where the guide is."""
        start = time.perf_counter()
        fitted = guide._fit()
        x, y = as_rows(x, y)
        recording = record(guide.model, x, y)
        if recording.program.digest != fitted.structure.digest:
            raise ValueError("the model does something else with these rows than with those it was fitted to")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        job = cls(
            Forward(recording.program, guide.messages),
            fitted.structure.links,
            fitted.state,
            _rows(recording, guide.dtype),
            recording.y,
            in_batches(np.arange(len(x))[None], batch_size),
            [fitted.structure],
            fitted.facts,
        )
        job.start = start
        return job

    @classmethod
    def together(cls, jobs: Sequence[Job]) -> Job:
        """Several fits as one, over a leading dimension."""
        import jax

        first = jobs[0]
        if any(j.forward != first.forward or j.links != first.links for j in jobs):
            raise ValueError("fit_together needs models of one structure and one kind of messages")
        if len({len(j.y) for j in jobs}) > 1:
            raise ValueError(
                f"fit_together needs data sets of one length, got {sorted({len(j.y) for j in jobs})}"
            )
        kinds = {(jax.tree.structure(j.state), str(jax.tree.leaves(j.state)[0].dtype)) for j in jobs}
        if len(kinds) > 1:
            raise ValueError("fit_together needs models with the same kind of noise and one dtype")
        stacked = jax.tree.map(
            lambda *arrays: np.stack(arrays), *((j.state, j.rows, j.y, j.orders) for j in jobs)
        )
        structures = [structure for j in jobs for structure in j.structures]
        job = cls(first.forward, first.links, *stacked, structures, [j.facts for j in jobs], trials=True)
        job.start = first.start
        return job

    def run(
        self,
        guides: Sequence[ProbabilisticBackpropagation],
        on_epoch: Callable[[int], None] | None = None,
        refine: bool = True,
    ) -> None:
        """Runs all epochs; the guides have the state of the last full one whatever happens."""
        from guides.message_passing import compiled

        axis = int(self.trials)  # of the epochs
        epochs, rows = self.orders.shape[axis], self.y.shape[-1]
        at_once = on_epoch is None and epochs * rows * len(guides) <= ROWS_IN_ONE_CALL
        pieces = [self.orders] if at_once else np.split(self.orders, epochs, axis)
        facts, state = self.facts, self.state
        for i, piece in enumerate(pieces):
            if refine:
                state = compiled.run_epochs(
                    self.forward, self.links, state, self.rows, self.y, piece, trials=self.trials
                )
            else:
                one_pass = compiled.run_epoch if piece.ndim == 2 else compiled.run_minibatches
                state = one_pass(self.forward, state, self.rows, self.y, piece[0])
            done = epochs if at_once else i + 1
            self._hand_over(guides, state, facts, done, rows)
            if on_epoch is not None:
                on_epoch(done)

    def _hand_over(self, guides, state, facts, epochs: int, rows: int) -> None:
        import jax

        state = jax.tree.map(np.asarray, state)
        seconds = time.perf_counter() - self.start
        finished = []
        for i, structure in enumerate(self.structures):
            own = facts[i] if self.trials else facts
            own = own | {
                "epochs": own["epochs"] + epochs,
                "rows_seen": own["rows_seen"] + epochs * rows,
                "seconds": own["seconds"] + seconds / len(guides),
            }
            part = jax.tree.map(lambda array, i=i: array[i], state) if self.trials else state
            finished.append(Fitted(structure, part, own))
        for guide, fitted in zip(guides, finished, strict=True):
            guide._fitted = fitted


def _initial_state(
    recording: Recording, means: dict[str, np.ndarray], dtype: torch.dtype
) -> tuple[Any, tuple]:
    """The start of a fit as numpy arrays; :raises ValueError: a precision without an expected variance."""
    import jax

    from guides.message_passing import compiled

    for name, prior in recording.gammas.items():
        if not (prior.concentration > 1 and prior.rate > 0):
            raise ValueError(
                f"site {name!r}: message passing starts from the expected variance 1 / precision, which "
                "needs a Gamma "
                f"prior with a concentration above 1, not Gamma({prior.concentration:g}, {prior.rate:g})"
            )
    scale = recording.noise_scale
    if recording.noise_precision is None:
        noise: Any = scale**2
    else:
        prior = recording.gammas[recording.noise_precision]
        noise = (prior.concentration, prior.rate * scale**2)
    used = {n: p for n, p in recording.weights.items() if p.precision is not None}
    precisions = {p.precision: recording.gammas[p.precision] for p in used.values()}
    state, links = compiled.initial_state(
        means,
        {n: p.factor**2 for n, p in recording.weights.items() if n not in used},
        noise,
        {name: (gamma.concentration, gamma.rate) for name, gamma in precisions.items()},
        {name: (p.precision, p.loc, p.factor) for name, p in used.items()},
        _numpy_dtype(dtype),
    )
    return jax.tree.map(np.asarray, state), links


def _rows(recording: Recording, dtype: torch.dtype) -> dict[str, np.ndarray]:
    for value in recording.rows.values():
        if not np.isfinite(value).all():
            raise ValueError("what the model computes from x has values that are NaN or infinite")
    return {name: value.astype(_numpy_dtype(dtype)) for name, value in recording.rows.items()}


def _numpy_dtype(dtype: torch.dtype) -> type:
    return np.float64 if dtype == torch.float64 else np.float32
