"""Noise from a table, so that the runs of a guide can be compared number for number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import pyro
import torch
from scipy.linalg import hadamard
from torch import Tensor


def repeats(n: int) -> Iterator[int]:
    """``range(n)``, with Pyro's validation, a third of a step's time, in the first round only."""
    for i in range(n):
        with pyro.validation_enabled(i == 0):
            yield i


class Noise:
    """Tables in place of torch's generator: one row of numbers for each particle.

    Run ``i`` of one particle reads row ``i``, and so does particle ``i`` of a vectorised run: their losses
    are the same numbers, with no Monte Carlo error in which a mistake could hide.

    :param normal: ``[particles, numbers]``, for ``torch.randn`` in the order of the calls
    :param uniform: ``[particles, numbers]``, for ``torch.rand``
    """

    def __init__(self, normal: Tensor, uniform: Tensor | None = None):
        self.normal = normal
        self.uniform = normal[:, :0] if uniform is None else uniform

    @classmethod
    def random(cls, particles: int = 5, numbers: int = 500, seed: int = 5) -> Noise:
        generator = torch.Generator().manual_seed(seed)
        tables = (f((particles, numbers), generator=generator) for f in (torch.randn, torch.rand))
        return cls(*tables)

    @classmethod
    def two_level(cls, runs: int) -> Noise:
        """Plus and minus one, in ``runs - 1`` columns that are orthogonal and add up to zero: the mean over
        the runs is the expectation of everything that is quadratic in as many normal numbers.
        """
        return cls(torch.as_tensor(hadamard(runs)[:, 1:], dtype=torch.get_default_dtype()))

    def __len__(self) -> int:
        return len(self.normal)

    @contextmanager
    def of(self, run: int | slice = slice(None)) -> Iterator[None]:
        """The noise of one run, by default of one with all particles vectorised."""
        rows = slice(run, run + 1) if isinstance(run, int) else run
        normal, uniform = _Table(self.normal[rows], torch.randn), _Table(self.uniform[rows], torch.rand)
        with mock.patch.multiple(
            torch, randn=normal, randn_like=normal.like, rand=uniform, rand_like=uniform.like
        ):
            yield

    def each(self, run: Callable):
        """What ``run()`` returns for every particle alone."""
        for i in repeats(len(self)):
            with self.of(i):
                yield run()


class _Table:
    def __init__(self, rows: Tensor, generated: Callable):
        self.rows, self.generated, self.used = rows, generated, 0

    def __call__(self, *shape, generator=None, out: Tensor | None = None, dtype=None, **_) -> Tensor:
        shape = torch.Size(shape if shape and isinstance(shape[0], int) else shape[0])
        if generator is not None:  # a caller with a seed of its own
            return self.generated(shape, generator=generator, dtype=dtype)
        particles = len(self.rows)
        assert particles == 1 or shape[0] == particles, f"{tuple(shape)} has no number for each particle"
        start, self.used = self.used, self.used + shape.numel() // particles
        assert self.used <= self.rows.shape[1], "the table has too few numbers"
        numbers = self.rows[:, start : self.used].reshape(shape)
        return numbers.to(dtype or torch.get_default_dtype()) if out is None else out.copy_(numbers)

    def like(self, tensor: Tensor) -> Tensor:
        return self(tensor.shape, dtype=tensor.dtype)
