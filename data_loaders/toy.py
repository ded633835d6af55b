"""One-dimensional problems: their laws, generators, and the published files.

The laws of the bimodal and the heteroscedastic problem are those that the released files follow (checked
against them); the text of the paper and the generator that it cites differ in the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from data_loaders.errors import DataError
from data_loaders.originals.parsing import Arrays
from data_loaders.records import Dataset, Whole

_PIECEWISE_ROWS = 1000
_PIECEWISE_SEED = 0
_LOG_2_PI = math.log(2.0 * math.pi)


@dataclass(frozen=True)
class ToyLaw:
    """A known law of y given x: x is uniform on [`low`, `high`] and y a mixture of normals.

    `branches` maps x [n] to the means [n, B] of the equally likely branches, `noise` maps x to the sd [n] of
    the noise that they share.
    """

    name: str
    low: float
    high: float
    branches: Callable[[np.ndarray], np.ndarray]
    noise: Callable[[np.ndarray], np.ndarray]

    def mean(self, x: np.ndarray) -> np.ndarray:
        """Conditional mean of y at x [n]; [n]."""
        return self.branches(np.asarray(x, dtype=np.float64)).mean(axis=1)

    def sd(self, x: np.ndarray) -> np.ndarray:
        """Conditional sd of y at x [n], the spread of the branches included; [n]."""
        x = np.asarray(x, dtype=np.float64)
        return np.sqrt(self.noise(x) ** 2 + self.branches(x).var(axis=1))

    def log_density(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """log p(y | x) in nats for x [n], y [n]; [n]. Infinite where the noise is 0 and y hits the mean."""
        x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        centres, noise = self.branches(x), self.noise(x)[:, None]
        off = y[:, None] - centres
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = -0.5 * ((off / noise) ** 2 + _LOG_2_PI) - np.log(noise)
        terms = np.where(noise > 0, terms, np.where(off == 0, np.inf, -np.inf))
        return np.logaddexp.reduce(terms, axis=1) - math.log(centres.shape[1])

    def draw(self, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """n points (x [n], y [n]); the same seed gives the same points with every version of numpy."""
        if n < 1:
            raise DataError(f"{self.name}: cannot draw {n} points")
        stream = np.random.RandomState(seed)
        x = stream.uniform(self.low, self.high, n)
        centres = self.branches(x)
        branch = stream.randint(centres.shape[1], size=n)
        return x, centres[np.arange(n), branch] + self.noise(x) * stream.standard_normal(n)


def _two_waves(x: np.ndarray) -> np.ndarray:
    return np.stack([10.0 * np.cos(x - 0.5), 10.0 * np.sin(x - 0.5)], axis=1)


def _flat_then_sine(x: np.ndarray) -> np.ndarray:
    return np.where(x < 0, 10.0, 10.0 * (1.0 + np.sin(x)))[:, None]


LAWS: Mapping[str, ToyLaw] = MappingProxyType(
    {
        "bimodal": ToyLaw("bimodal", -4.0, 4.0, _two_waves, np.ones_like),
        "heteroscedastic": ToyLaw(
            "heteroscedastic",
            -4.0,
            4.0,
            lambda x: (7.0 * np.sin(x) + 10.0)[:, None],
            lambda x: 2.0 * np.abs(np.sin(x)),
        ),
        "piecewise": ToyLaw("piecewise", -4.0, 5.0, _flat_then_sine, lambda x: np.full_like(x, 2.0)),
    }
)


def generate_bimodal(n: int, seed: int = 0) -> Dataset:
    """n fresh points: y = 10 cos(x - 0.5) + e or 10 sin(x - 0.5) + e, each with probability 1/2.

    x ~ U(-4, 4), e ~ N(0, 1). All n rows train; extras['true_mean_train'] and ['true_sd_train'] [n] are the
    moments of y given x (over both branches). For the density see `LAWS['bimodal'].log_density`.
    """
    return _generated(LAWS["bimodal"], n, seed)


def generate_heteroscedastic(n: int, seed: int = 0) -> Dataset:
    """n fresh points: y = 7 sin x + e sin x + 10 with e of sd 2, x ~ U(-4, 4).

    All n rows train; extras['true_mean_train'] and ['true_sd_train'] [n] are the moments of y given x.
    """
    return _generated(LAWS["heteroscedastic"], n, seed)


def generate_piecewise(n: int, seed: int = 0) -> Dataset:
    """n fresh points: y = 10 + e for x < 0 and 10 (1 + sin x) + e for x >= 0, x ~ U(-4, 5), e of sd 2.

    All n rows train; extras['true_mean_train'] and ['true_sd_train'] [n] are the moments of y given x.
    """
    return _generated(LAWS["piecewise"], n, seed)


def _generated(law: ToyLaw, n: int, seed: int) -> Dataset:
    x, y = law.draw(n, seed)
    return Dataset(
        name=law.name,
        task="regression",
        x_train=x[:, None],
        y_train=y,
        x_test=np.empty((0, 1)),
        y_test=np.empty(0),
        feature_names=("x",),
        target_name="y",
        protocol="whole",
        oddities=(f"synthetic: {n} points drawn with seed {seed}",),
        extras={"true_mean_train": law.mean(x), "true_sd_train": law.sd(x), "seed": seed},
    )


def piecewise() -> Whole:
    """The 1000 points of the set `piecewise`: always the same draw."""
    x, y = LAWS["piecewise"].draw(_PIECEWISE_ROWS, _PIECEWISE_SEED)
    return _whole("piecewise", x, y, {"seed": _PIECEWISE_SEED})


def assemble(name: str, arrays: Arrays) -> Whole:
    """The whole of a published toy set from the arrays of its file."""
    if name == "snelson":
        grid = arrays["x_test"].astype(np.float64)[:, None]
        return _whole(name, arrays["x_train"], arrays["y_train"], {"x_grid": grid})
    train, grid = arrays["train"], arrays["test"]
    law = LAWS[name]
    extras = {
        "x_grid": grid[:, :1].copy(),
        "y_grid": grid[:, 1].copy(),
        "true_mean_grid": law.mean(grid[:, 0]),
        "true_sd_grid": law.sd(grid[:, 0]),
    }
    return _whole(name, train[:, 0], train[:, 1], extras)


def _whole(name: str, x: np.ndarray, y: np.ndarray, extras: dict[str, Any]) -> Whole:
    law = LAWS.get(name)
    per_row = {} if law is None else {"true_mean": law.mean(x), "true_sd": law.sd(x)}
    return Whole(
        x.astype(np.float64)[:, None],
        y.astype(np.float64),
        ("x",),
        "y",
        per_row=per_row,
        extras=extras,
    )
