"""A data set made ready for a model: standardised arguments, and the way back to original units."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from data_loaders import DataError, Dataset, Standardizer, TableOptions, list_datasets, load, load_table
from zoo.errors import UserError, unknown
from zoo.models.entries import DataShape

#: Largest standardised number: its square is far from the limit of float32, 3e38.
LARGEST = 1e15
#: Share of the rows that is held out -> protocol of the split.
HOLDOUTS: Mapping[float, str] = {0.0: "whole", 0.1: "standard", 0.2: "80/20"}


@dataclass(frozen=True)
class Problem:
    """A data set as a model takes it.

    :ivar train: what the model is called with, ``(x [n, in], y [n])``, standardised, labels int64
    :ivar test: the same of the rows that are held out; may have none
    :ivar scale: maps predictions back to original units
    """

    dataset: Dataset
    scale: Standardizer
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    @property
    def task(self) -> str:
        return self.dataset.task

    @property
    def shape(self) -> DataShape:
        """What a model has to know of it."""
        return DataShape(self.task, self.dataset.num_features, self.dataset.num_classes)

    @property
    def size(self) -> int:
        """Number of training rows."""
        return len(self.train[0])

    @property
    def x(self) -> Tensor:
        """Training rows ``[n, in]``."""
        return self.train[0]

    @property
    def y(self) -> Tensor:
        """Training target ``[n]``."""
        return self.train[1]

    @property
    def x_test(self) -> Tensor:
        """``[m, in]``"""
        return self.test[0]

    @property
    def y_test(self) -> Tensor:
        """``[m]``"""
        return self.test[1]

    @property
    def evaluation_points(self) -> Tensor:
        """Where functions are compared, ``[N, in]``: the test inputs, or the training inputs of a set that is
        used whole.
        """
        return self.x_test if len(self.x_test) else self.x

    def inputs(self, x: np.ndarray) -> Tensor:
        """Standardised inputs ``[N, in]`` from raw ones."""
        return torch.as_tensor(self.scale.transform_x(x), dtype=self.x.dtype)

    def fingerprint(self) -> str:
        """Tells this training and test data from any other."""
        digest = hashlib.sha256()
        for tensor in (*self.train, *self.test):
            digest.update(str(tuple(tensor.shape)).encode() + tensor.numpy().tobytes())
        return digest.hexdigest()[:16]


def load_problem(
    data: str,
    *,
    split: int = 0,
    target: str | None = None,
    task: str | None = None,
    holdout: float | None = None,
    table: TableOptions | None = None,
    dtype: torch.dtype = torch.float32,
) -> Problem:
    """From the name of a data set, or a CSV file.

    :param target: target column of a CSV file, the last by default
    :param task: of a CSV file; by default ``regression`` of numbers, ``binary`` or ``multiclass`` of texts
    :param holdout: share of the rows that is held out, one of :data:`HOLDOUTS`; as ever by default
    :param table: of a CSV file, what is to be done with its columns
    :param dtype: of rows and target: the model's
    :raises UserError: for a name that is neither
    :raises DataError: for data that cannot be used, saying where and why
    """
    protocol = _protocol(holdout)
    if data in list_datasets():
        for option, value in (("target", target), ("task", task)):
            if value is not None:
                raise UserError(f"--{option} is for CSV files; the {option} of {data} is fixed")
        if table not in (None, TableOptions()):
            raise UserError(
                f"--drop, --categories and --missing are for CSV files; {data} is complete numbers"
            )
        dataset = load(data, split=split, protocol=protocol)
    elif data.endswith(".csv") or Path(data).exists():
        options = table or TableOptions()
        dataset = load_table(data, target, task=task, split=split, protocol=protocol, options=options)
    else:
        raise unknown("data set", data, list_datasets())
    return prepare(dataset, dtype)


def _protocol(holdout: float | None) -> str:
    if holdout is not None and holdout not in HOLDOUTS:
        raise UserError(f"--holdout takes {', '.join(f'{share:g}' for share in HOLDOUTS)}, not {holdout:g}")
    return HOLDOUTS[0.1 if holdout is None else holdout]


def prepare(
    dataset: Dataset,
    dtype: torch.dtype = torch.float32,
    scale_of: Callable[[Dataset], Standardizer] = Standardizer.of,
) -> Problem:
    """Rows and their target, standardised with the training rows."""
    try:
        scale = scale_of(dataset)
    except DataError as error:
        raise DataError(f"{dataset.name}: {error}") from error
    kind = dtype if dataset.task != "multiclass" else torch.int64

    def targets(y: np.ndarray) -> Tensor:
        return torch.as_tensor(scale.transform_y(y)).to(kind)

    def features(x: np.ndarray) -> Tensor:
        return torch.as_tensor(scale.transform_x(x), dtype=dtype)

    x, y = features(dataset.x_train), targets(dataset.y_train)
    x_test, y_test = features(dataset.x_test), targets(dataset.y_test)
    for part in (x, x_test):
        _check_range(part, dataset.feature_names, dataset.name)
    for part in (y, y_test):
        _check_range(part[:, None], (dataset.target_name,), dataset.name)
    return Problem(dataset, scale, (x, y), (x_test, y_test))


def _check_range(values: Tensor, names: Sequence[str], data: str) -> None:
    """:raises DataError: for a number in ``values: [N, columns]`` too large for a network's arithmetic"""
    far = (values.abs() > LARGEST).any(0)
    if far.any():
        name = names[int(far.nonzero()[0])]
        raise DataError(f"{data}: column {name!r} holds a number too large, far away from the training rows")
