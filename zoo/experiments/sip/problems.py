"""The data of the experiments: rows that are fitted, and rows or a grid that are predicted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from data_loaders import LAWS, load
from zoo.experiments.splits import cut
from zoo.fitting.problem import Problem, prepare

#: Points of the grids, and seed of those that are drawn here.
GRID, GRID_SEED = 801, 1
#: Rows of the large sets that are held out, as published.
HELD_OUT = 10_000


def large(name: str, trial: int) -> Problem:
    """10,000 rows held out, or a fifth of them where they are fewer than 50,000."""
    whole = load(name, protocol="whole")
    rows = len(whole.y_train)
    order = np.random.RandomState(trial).permutation(rows)
    held = min(HELD_OUT, rows // 5)
    return prepare(cut(whole, order[held:], order[:held]))


def one_dimensional(name: str, trial: int) -> Problem:
    """All rows fitted; predicted are the released grid with its noise, fresh points of ``piecewise``, and of
    ``snelson``, whose grid has no targets, the test rows of a split.
    """
    if name == "snelson":
        return prepare(load(name, split=trial))
    whole = load(name, protocol="whole")
    if name == "piecewise":
        x, y = LAWS[name].draw(GRID, GRID_SEED)
    else:
        x, y = whole.extras["x_grid"][:, 0], whole.extras["y_grid"]
    if name == "heteroscedastic":  # the noise vanishes at 0, where the true density is unbounded
        x, y = x[np.abs(x) > 1e-9], y[np.abs(x) > 1e-9]
    return prepare(replace(whole, x_test=x[:, None], y_test=y))
