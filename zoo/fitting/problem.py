"""A data set made ready for a model: standardised arguments, and the way back to original units."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from data_loaders import DataError, Dataset, Standardizer, list_datasets, load, load_csv
from zoo.errors import UserError, unknown
from zoo.models.entries import DataShape

#: Largest standardised number: its square is far from the limit of float32, 3e38.
LARGEST = 1e15


@dataclass(frozen=True)
class Problem:
    """A data set as a model takes it.

    :ivar train: what the model is called with, one entry a case in each argument: rows and their target
        ``(x [n, in], y [n])``, or rows alone ``(x [n, in],)`` where their density is modelled; an argument
        may also be a list, of graphs say.  Standardised, labels int64
    :ivar test: the same of the cases that are held out; may have none
    :ivar scale: maps predictions back to original units
    """

    dataset: Dataset
    scale: Standardizer
    train: tuple[Tensor | Sequence, ...]
    test: tuple[Tensor | Sequence, ...]

    @property
    def task(self) -> str:
        return self.dataset.task

    @property
    def shape(self) -> DataShape:
        """What a model has to know of it."""
        return DataShape(self.task, self.dataset.num_features, self.dataset.num_classes)

    @property
    def size(self) -> int:
        """Number of training cases."""
        return len(self.train[0])

    @property
    def x(self) -> Tensor:
        """Training rows ``[n, in]``."""
        return self.train[0]

    @property
    def y(self) -> Tensor:
        """Training target ``[n]``, where there is one."""
        return self.train[1]

    @property
    def x_test(self) -> Tensor:
        """``[m, in]``"""
        return self.test[0]

    @property
    def y_test(self) -> Tensor:
        """``[m]``, where there is a target."""
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
        for tensor in _tensors((self.train, self.test)):
            digest.update(str(tuple(tensor.shape)).encode() + tensor.numpy().tobytes())
        return digest.hexdigest()[:16]


def _tensors(arguments: Iterable) -> Iterator[Tensor]:
    """All of them in order, those of lists and tuples too."""
    for value in arguments:
        if isinstance(value, Tensor):
            yield value
        else:
            yield from _tensors(value)


def load_problem(
    data: str,
    *,
    split: int = 0,
    target: str | None = None,
    task: str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Problem:
    """From the name of a data set, or a CSV file.

    :param target: target column of a CSV file, the last by default
    :param task: of a CSV file, ``regression`` by default
    :param dtype: of rows and target: the model's
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
    return prepare(dataset, dtype)


def prepare(dataset: Dataset, dtype: torch.dtype = torch.float32) -> Problem:
    """Rows and their target, standardised with the training rows."""
    try:
        scale = Standardizer.of(dataset)
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
