"""Base measures of the Dirichlet process: where pseudo-observations come from.

A base measure is anything with ``draw(count, generator) -> rows``: a tuple of tensors ``[count, ...]``, one
for each argument of the model that has a row a datum (``(x, y)`` for a regression).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyro
import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.func import vmap

from guides.core.arguments import row_not_finite
from guides.core.checks import check_numbers
from guides.core.rng import seeded_rng

Rows = tuple[Tensor, ...]


class BaseMeasure(Protocol):
    def draw(self, count: int, generator: torch.Generator) -> Rows:
        """``count`` pseudo-observations."""


@dataclass(frozen=True)
class EmpiricalBase:
    """Rows drawn with replacement: of historical data, of another study.

    :param rows: tensors ``[K, ...]`` whose rows belong together
    :raises ValueError: for no rows, parts of unequal length, or rows that are not finite
    """

    rows: Rows

    def __post_init__(self) -> None:
        lengths = [len(part) for part in self.rows]
        if not lengths or len(set(lengths)) > 1 or not lengths[0]:
            raise ValueError(
                f"an empirical base measure needs rows that belong together, got {lengths} of them"
            )
        _check_finite(self.rows)

    def draw(self, count: int, generator: torch.Generator) -> Rows:
        keep = torch.randint(len(self.rows[0]), (count,), generator=generator)
        return tuple(part[keep] for part in self.rows)


@dataclass(frozen=True)
class IsotropicBase:
    """A round Gaussian.

    :param centre: ``[d]``, or ``[]`` for rows that are numbers
    :param sd: of every column
    :raises ValueError: for an sd that is not positive and finite
    """

    centre: Tensor
    sd: float

    def __post_init__(self) -> None:
        check_numbers(sd=self.sd)

    def draw(self, count: int, generator: torch.Generator) -> Rows:
        noise = torch.randn(count, *self.centre.shape, generator=generator, dtype=torch.float64)
        # of a centre of whole numbers the rows are none
        kind = self.centre.dtype if self.centre.is_floating_point() else torch.get_default_dtype()
        return ((self.centre + self.sd * noise).to(kind),)


class GaussianBase:
    """The Gaussian with the mean and the covariance of rows, over all their columns together.

    :param rows: tensors ``[K, ...]`` whose rows belong together
    :raises ValueError: for fewer than two rows, whole numbers, rows that are not finite, or a column without
        variance, naming it
    """

    def __init__(self, *rows: Tensor):
        for i, part in enumerate(rows):
            if not part.is_floating_point():
                raise ValueError(
                    f"the rows' part {i} is of whole numbers, which a Gaussian does not draw: use "
                    "EmpiricalBase or PredictiveBase"
                )
        _check_finite(rows)
        flat = torch.cat([part.reshape(len(part), -1).double() for part in rows], dim=1)
        if len(flat) < 2:
            raise ValueError(f"a Gaussian base measure needs at least two rows, got {len(flat)}")
        constant = [i for i, sd in enumerate(flat.std(0).tolist()) if not sd > 0]
        if constant:
            raise ValueError(
                f"column {constant[0]} of the rows is constant: leave it out, or use EmpiricalBase"
            )
        # of the rows' own precision: normals of float32 take a fifth of the time
        self.dtype = functools.reduce(torch.promote_types, [part.dtype for part in rows], torch.float32)
        self.mean = flat.mean(0)
        covariance = torch.atleast_2d(torch.cov(flat.T))
        # fewer rows than columns: the smallest multiple of the diagonal that lets Cholesky pass
        self.root, self._kinds = _root(covariance), [(part.shape[1:], part.dtype) for part in rows]

    def draw(self, count: int, generator: torch.Generator) -> Rows:
        noise = torch.randn(count, len(self.mean), generator=generator, dtype=self.dtype)
        flat, parts = self.mean.to(noise) + noise @ self.root.T.to(noise), []
        for shape, dtype in self._kinds:
            columns, flat = flat[:, : shape.numel()], flat[:, shape.numel() :]
            parts.append(columns.reshape(count, *shape).to(dtype))
        return tuple(parts)


@dataclass(frozen=True)
class PredictiveBase:
    """Inputs drawn with replacement, and targets from the prior predictive law of a Pyro model.

    Every row has latent values of its own, so that rows are independent: with one value for all of them they
    would be as far apart as the noise, and together as far off as the prior is wide.

    :param model: called as ``model(*inputs)`` with one row and without data
    :param inputs: tensors ``[K, ...]``
    :param site: the observed site that is the target
    """

    model: Callable
    inputs: Rows
    site: str

    def draw(self, count: int, generator: torch.Generator) -> Rows:
        keep = torch.randint(len(self.inputs[0]), (count,), generator=generator)
        chosen = tuple(part[keep] for part in self.inputs)
        seed = int(torch.randint(2**31, (), generator=generator))
        with seeded_rng(seed), poutine.block(), torch.no_grad(), pyro.validation_enabled(False):
            return (*chosen, self._targets(chosen))

    def _targets(self, inputs: Rows) -> Tensor:
        """Together where the model allows it, else one after the other."""
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="There is a performance drop", category=UserWarning)
                return vmap(self._target, randomness="different")(*inputs)
        except RuntimeError:  # vmap's refusal; an error of the model's own comes again from the loop
            return torch.stack([self._target(*row) for row in zip(*inputs, strict=True)])

    def _target(self, *row: Tensor) -> Tensor:
        trace = poutine.trace(_Plainly()(self.model)).get_trace(*(part[None] for part in row))
        if self.site not in trace:
            raise ValueError(f"the base measure's model has no site {self.site!r}")
        return trace.nodes[self.site]["value"][0]


class _Plainly(poutine.messenger.Messenger):
    """Draws by ``sample``: ``torch.func.vmap`` refuses the numbers that ``rsample`` fills in place."""

    def _pyro_sample(self, msg: dict) -> None:
        if not (msg["done"] or msg["is_observed"] or site_is_subsample(msg)):
            msg["value"], msg["done"] = msg["fn"].sample(), True


def base_for(base: BaseMeasure | None, rows: Rows) -> BaseMeasure:
    """A base measure for rows of data, that fitted to them by default.

    :raises ValueError: when there are no rows, or what it draws is no row like these
    """
    check_rows(rows)
    base = base or GaussianBase(*rows)
    drawn = base.draw(1, torch.Generator())
    for part, own in zip(drawn, rows, strict=False):
        if part.shape[1:] != own.shape[1:]:
            raise ValueError(
                f"the base measure draws rows of shape {tuple(part.shape[1:])} where the data have "
                f"{tuple(own.shape[1:])}"
            )
    if len(drawn) != len(rows):
        raise ValueError(
            f"the base measure draws {len(drawn)} tensors, the model has {len(rows)} arguments with rows"
        )
    return base


def check_rows(rows: Rows) -> None:
    """:raises ValueError: when no argument has a row a datum"""
    if not rows:
        raise ValueError(
            "no argument of the model has a row a datum: pass its data as arguments, so that "
            "pseudo-observations can stand beside them"
        )


def _check_finite(rows: Rows) -> None:
    for i, part in enumerate(rows):
        if (row := row_not_finite(part)) is not None:
            raise ValueError(f"the base measure's rows are not finite: part {i}, row {row}")


def _root(covariance: Tensor) -> Tensor:
    diagonal = covariance.diagonal().diag()
    for ridge in (0.0, 1e-10, 1e-8, 1e-6, 1e-4):
        root, failed = torch.linalg.cholesky_ex(covariance + ridge * diagonal)
        if not failed:
            return root
    raise ValueError("the covariance of the rows is singular: use EmpiricalBase")
