"""A data set made ready for a model: standardised tensors, and the way back to original units."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from data_loaders import DataError, Dataset, Standardizer, list_datasets, load, load_csv
from zoo.errors import UserError, unknown

#: Largest standardised number: its square is far from the limit of float32, 3e38.
LARGEST = 1e15


@dataclass(frozen=True)
class Problem:
    """Standardised training and test data (float32; labels int64).

    :ivar x: ``[n, in]``, :ivar y: ``[n]``, :ivar x_test: ``[m, in]``, :ivar y_test: ``[m]``
    :ivar scale: maps predictions back to original units
    """

    dataset: Dataset
    scale: Standardizer
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    @property
    def task(self) -> str:
        return self.dataset.task

    @property
    def evaluation_points(self) -> Tensor:
        """Where functions are compared, ``[N, in]``: the test inputs, or the training inputs of a set that is
        used whole.
        """
        return self.x_test if len(self.x_test) else self.x

    def inputs(self, x: np.ndarray) -> Tensor:
        """Standardised inputs ``[N, in]`` from raw ones."""
        return torch.as_tensor(self.scale.transform_x(x), dtype=torch.float32)

    def fingerprint(self) -> str:
        """Tells this training and test data from any other."""
        digest = hashlib.sha256()
        for tensor in (self.x, self.y, self.x_test, self.y_test):
            digest.update(str(tuple(tensor.shape)).encode() + tensor.numpy().tobytes())
        return digest.hexdigest()[:16]


def load_problem(data: str, *, split: int = 0, target: str | None = None, task: str | None = None) -> Problem:
    """From the name of a data set, or a CSV file.

    :param target: target column of a CSV file, the last by default
    :param task: of a CSV file, ``regression`` by default
    :raises UserError: for a name that is neither
    :raises DataError: for data that cannot be used, saying where and why
    """
    if data in list_datasets():
        for option, value in (("target", target), ("task", task)):
            if value is not None:
                raise UserError(f"--{option} is for CSV files; the {option} of {data} is fixed")
        dataset = load(data, split=split)
    elif data.endswith(".csv") or Path(data).exists():
        dataset = load_csv(data, target=target, split=split, task=task or "regression")
    else:
        raise unknown("data set", data, list_datasets())
    return prepare(dataset)


def prepare(dataset: Dataset) -> Problem:
    """Standardises with the training rows."""
    try:
        scale = Standardizer.of(dataset)
    except DataError as error:
        raise DataError(f"{dataset.name}: {error}") from error
    kind = torch.float32 if dataset.task != "multiclass" else torch.int64

    def targets(y: np.ndarray) -> Tensor:
        return torch.as_tensor(scale.transform_y(y)).to(kind)

    def features(x: np.ndarray) -> Tensor:
        return torch.as_tensor(scale.transform_x(x), dtype=torch.float32)

    x, y = features(dataset.x_train), targets(dataset.y_train)
    x_test, y_test = features(dataset.x_test), targets(dataset.y_test)
    for part in (x, x_test):
        _check_range(part, dataset.feature_names, dataset.name)
    for part in (y, y_test):
        _check_range(part[:, None], (dataset.target_name,), dataset.name)
    return Problem(dataset, scale, x, y, x_test, y_test)


def _check_range(values: Tensor, names: Sequence[str], data: str) -> None:
    """:raises DataError: for a number in ``values: [N, columns]`` too large for a network's arithmetic"""
    far = (values.abs() > LARGEST).any(0)
    if far.any():
        name = names[int(far.nonzero()[0])]
        raise DataError(f"{data}: column {name!r} holds a number too large, far away from the training rows")
