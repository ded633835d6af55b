"""Rows of a data set that are fitted and rows that are predicted, where no protocol has the split."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from data_loaders import Dataset, load
from data_loaders.splits import split_80_20
from zoo.fitting.problem import Problem, prepare


def random_80_20(name: str, trial: int, dtype: torch.dtype = torch.float32) -> Problem:
    """A random 80/20 split: the five of the ``80/20`` protocol, and on by its rule."""
    whole = load(name, protocol="whole")
    return prepare(cut(whole, *split_80_20(len(whole.y_train), trial)), dtype)


def cut(whole: Dataset, train: np.ndarray, test: np.ndarray) -> Dataset:
    """A set that is loaded whole, of it the rows ``train`` to fit and ``test`` to predict."""
    x, y = whole.x_train, whole.y_train
    return replace(whole, x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])
