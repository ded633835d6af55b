"""Records: a data set, its description, and a whole set before it is split."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from data_loaders.tables.recipe import Recipe

Task = Literal["regression", "binary", "multiclass"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """One data set with its split.

    `x_train` is [n, d] and `x_test` [m, d], both float64 (sets of images: float32) and in raw units (see
    `Standardizer`). `y_train` is [n] and `y_test` [m]: float64 for regression, int64 labels 0..K-1 for
    classes. A set that is used whole has m = 0. `split` is the number of the split within `protocol`
    ("standard", "80/20", "whole" or "predict"). `oddities` are sentences a reader of results should know.
    `extras` holds what else is stored about the set: `rows_train` and `rows_test` (int64 row numbers of the
    file), true means and sds where the law is known, grids, exact inclusion probabilities, reference draws.

    Sets of images: `image_shape` is (height, width), and a row of `x` holds the pixels row by row, so that
    `x.reshape(-1, *image_shape)` are the images. `prescaled` says that the inputs shall be used as they
    are (`Standardizer.of` then changes nothing): images, float32 in [0, 1], are usually not centred, and
    counts are counts.

    `recipe` says how a table of categories, dates and missing values became numbers; None where it was one
    of numbers.
    """

    name: str
    task: Task
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    feature_names: tuple[str, ...]
    target_name: str
    split: int = 0
    protocol: str = "standard"
    oddities: tuple[str, ...] = ()
    extras: dict[str, Any] = field(default_factory=dict)
    image_shape: tuple[int, int] | None = None
    prescaled: bool = False
    recipe: Recipe | None = None

    @property
    def num_features(self) -> int:
        """d, the number of columns of x."""
        return self.x_train.shape[1]

    @property
    def num_classes(self) -> int:
        """K for classes, 0 for regression; counted over training and test labels together."""
        if self.task == "regression":
            return 0
        return int(max(y.max() for y in (self.y_train, self.y_test) if y.size)) + 1


@dataclass(frozen=True)
class Description:
    """What can be said about a set without reading it: the numbers are constants of the catalogue.

    `rows` counts all rows that are split (train and test together) and `splits` the splits of the standard
    protocol; `source` is the address or the place of origin, `file` the name inside a folder named by
    ZOO_DATA (None where no file is needed), and `downloadable` says whether the set can be fetched without
    such a folder. `image_shape` is (height, width) for images, else None; a set that is `whole` has no test
    rows, whatever the protocol.
    """

    name: str
    task: Task
    rows: int
    features: int
    target: str
    splits: int
    protocols: tuple[str, ...]
    source: str
    licence: str
    file: str | None
    downloadable: bool
    oddities: tuple[str, ...]
    image_shape: tuple[int, int] | None = None
    whole: bool = False


@dataclass(frozen=True, eq=False)
class Whole:
    """All rows of a set before splitting: `x` [n, d], `y` [n].

    `per_row` holds arrays whose first axis runs over the rows, so that they are split along with them;
    `extras` holds what belongs to the set as a whole.
    """

    x: np.ndarray
    y: np.ndarray
    feature_names: tuple[str, ...]
    target_name: str
    per_row: dict[str, np.ndarray] = field(default_factory=dict)
    extras: dict[str, Any] = field(default_factory=dict)
