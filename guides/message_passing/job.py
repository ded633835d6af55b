"""One fit, or several in one loop, as arrays: from model and data to the compiled loop and what it finds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from guides.core.checks import check_counts
from guides.message_passing.fitted import MessagePassingFit, Structure
from guides.message_passing.program import Forward
from guides.message_passing.recorder import Recording, analyse, record
from guides.message_passing.schedule import as_rows, in_batches, orders, start_means

# Up to so many visited rows a fit is one compiled call (well below a second); beyond, one call an epoch, so
# that Ctrl-C finds the state of the last full epoch.
ROWS_IN_ONE_CALL = 50_000


@dataclass
class Job:
    """A fit that is ready to run: everything as arrays.  With ``trials`` all of them have a leading
    dimension.

    :ivar start: of the clock
    :ivar links: which weight sites share which precision
    :ivar state: a :class:`~guides.message_passing.compiled.State`
    :ivar rows: what the model takes from ``x``, ``{name: [N, ...]}``
    :ivar y: ``[N]``
    :ivar orders: in which rows are visited, ``[epochs, N]`` or ``[epochs, batches, batch]``
    :ivar structures: one for each trial
    :ivar facts: of what was done before, one for each trial
    """

    start: float
    forward: Forward
    links: Any
    state: Any
    rows: Mapping[str, np.ndarray]
    y: np.ndarray
    orders: np.ndarray
    structures: Sequence[Structure]
    facts: Sequence[Mapping[str, Any]]
    trials: bool = False

    @classmethod
    def prepare(
        cls,
        model: Callable,
        messages: str,
        dtype: torch.dtype,
        x: Any,
        y: Any,
        *,
        epochs: int,
        seed: int,
        order: Any,
        init_means: Mapping[str, Any] | None,
        batch_size: int,
    ) -> Job:
        """A fit from the start; :class:`guides.ProbabilisticBackpropagation` says what the arguments are."""
        start = time.perf_counter()
        x, y = as_rows(x, y)
        recording = analyse(model, x, y)
        rng = np.random.default_rng(seed)
        means = start_means(recording, rng, init_means)
        order = orders(len(x), epochs, rng, order, batch_size)
        state, links = _initial_state(recording, means, dtype)
        facts = {
            "epochs": 0,
            "rows_seen": 0,
            "seconds": 0.0,
            "seed": int(seed),
            "batch_size": int(batch_size),
        }
        return cls(
            start,
            Forward(recording.program, messages),
            links,
            state,
            _rows(recording, dtype),
            recording.y,
            order,
            [Structure.of(recording)],
            [facts],
        )

    @classmethod
    def resume(
        cls,
        fitted: MessagePassingFit,
        model: Callable,
        messages: str,
        dtype: torch.dtype,
        x: Any,
        y: Any,
        *,
        batch_size: int,
    ) -> Job:
        """One more pass over these rows, in their order, from where a fit has come to.

        :raises ValueError: also when the model does something else with them
        """
        start = time.perf_counter()
        x, y = as_rows(x, y)
        recording = record(model, x, y)
        fitted.structure.check(recording)
        check_counts(batch_size=batch_size)
        return cls(
            start,
            Forward(recording.program, messages),
            fitted.structure.links,
            fitted.state,
            _rows(recording, dtype),
            recording.y,
            in_batches(np.arange(len(x))[None], batch_size),
            [fitted.structure],
            [fitted.facts],
        )

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
        facts = [own for j in jobs for own in j.facts]
        return cls(first.start, first.forward, first.links, *stacked, structures, facts, trials=True)

    def run(self, *, each_epoch: bool, refine: bool = True) -> Iterator[tuple[int, list[MessagePassingFit]]]:
        """Runs all epochs; gives the number of those done, from 1, and what they have found, one a trial.

        :param each_epoch: stop after every epoch; if not, a short fit is one call and stops at its end only
        :param refine: the prior after every epoch; if not, there has to be a single epoch
        """
        from guides.message_passing import compiled

        axis = int(self.trials)  # of the epochs
        epochs, rows = self.orders.shape[axis], self.y.shape[-1]
        at_once = not each_epoch and epochs * rows * len(self.structures) <= ROWS_IN_ONE_CALL
        pieces = [self.orders] if at_once else np.split(self.orders, epochs, axis)
        state = self.state
        for i, piece in enumerate(pieces):
            if refine:
                state = compiled.run_epochs(
                    self.forward, self.links, state, self.rows, self.y, piece, trials=self.trials
                )
            else:
                one_pass = compiled.run_epoch if piece.ndim == 2 else compiled.run_minibatches
                state = one_pass(self.forward, state, self.rows, self.y, piece[0])
            done = epochs if at_once else i + 1
            yield done, self._found(state, done, rows)

    def _found(self, state: Any, epochs: int, rows: int) -> list[MessagePassingFit]:
        """What each trial has come to after so many epochs."""
        import jax

        state = jax.tree.map(np.asarray, state)
        seconds = (time.perf_counter() - self.start) / len(self.structures)
        found = []
        for i, (structure, facts) in enumerate(zip(self.structures, self.facts, strict=True)):
            more = {
                "epochs": facts["epochs"] + epochs,
                "rows_seen": facts["rows_seen"] + epochs * rows,
                "seconds": facts["seconds"] + seconds,
            }
            part = jax.tree.map(lambda array, i=i: array[i], state) if self.trials else state
            found.append(MessagePassingFit(structure, part, facts | more))
        return found


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
