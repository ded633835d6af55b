"""Put features and target on the scale of the training rows, and predictions back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_loaders.errors import DataError
from data_loaders.records import Dataset

# A column whose sd is below this share of its magnitude is constant up to rounding: the mean of n equal
# float64 numbers is off by a few n-dependent units of 2e-16, which must not be blown up to unit variance.
_RELATIVE_ZERO = 1e-12
# Such a column keeps its units, in which what rounding left of it must be next to nothing.
NEXT_TO_NOTHING = 1e-6


@dataclass(frozen=True, eq=False)
class Standardizer:
    """Means and sds of the training rows: `x_mean`, `x_sd` [d], and `y_mean`, `y_sd` (0 and 1 for class
    labels).

    `y_mean` and `y_sd` are Python floats, so the methods for predictions also take tensors of other
    libraries.
    """

    x_mean: np.ndarray
    x_sd: np.ndarray
    y_mean: float
    y_sd: float

    @classmethod
    def fit(
        cls,
        x_train: np.ndarray,
        y_train: np.ndarray | None = None,
        *,
        task: str = "regression",
        names: Sequence[str] | None = None,
    ) -> Standardizer:
        """Population means and sds (divisor n) of `x_train` [n, d] and, for regression, of `y_train` [n].

        `names` [d] are what an error calls the columns; without them it counts them. A constant column keeps
        its units (sd taken as 1) and becomes zero. Raises DataError for no rows, for numbers that are not
        finite or too large to be squared, for large numbers whose spread may be rounding, and for a constant
        regression target.
        """
        x = np.asarray(x_train, dtype=np.float64)
        if x.ndim != 2 or x.shape[0] == 0:
            raise DataError(
                f"standardising needs training features of shape [n, d] with n >= 1, not {list(x.shape)}"
            )
        places = [f"column {i + 1} of {x.shape[1]}" for i in range(x.shape[1])]
        columns = places if names is None else [f"column {name!r}" for name in names]
        x_mean, x_sd = _moments(x, "the training features", columns)
        x_sd = np.where(_is_constant(x, x_mean, x_sd, columns), 1.0, x_sd)
        if y_train is None or task != "regression":
            return cls(x_mean, x_sd, 0.0, 1.0)
        y = np.asarray(y_train, dtype=np.float64)
        if y.shape != (x.shape[0],):
            raise DataError(f"the training target must have shape [{x.shape[0]}], not {list(y.shape)}")
        y_mean, y_sd = _moments(y[:, None], "the training target", ["the training target"])
        if _is_constant(y[:, None], y_mean, y_sd, ["the training target"]).item():
            raise DataError(
                f"the training target is constant ({y[0]:g}): there is nothing to learn or to standardise"
            )
        return cls(x_mean, x_sd, float(y_mean.item()), float(y_sd.item()))

    @classmethod
    def of(cls, dataset: Dataset) -> Standardizer:
        """The one to use for `dataset`: fitted to its training rows, or for one whose inputs are `prescaled`
        one that changes nothing. Raises DataError as `fit` does.
        """
        if not dataset.prescaled:
            names = dataset.feature_names
            return cls.fit(dataset.x_train, dataset.y_train, task=dataset.task, names=names)
        if dataset.task == "regression":
            raise DataError(f"{dataset.name}: a regression target cannot do without standardisation")
        return cls(np.zeros(dataset.num_features), np.ones(dataset.num_features), 0.0, 1.0)

    def transform_x(self, x: np.ndarray) -> np.ndarray:
        """Standardised copy of `x` [m, d] in float64; DataError when the number of columns is not the one
        fitted. Where there is nothing to do the copy keeps the type of `x`: images stay float32.
        """
        x = np.asarray(x)
        if x.dtype != np.float32 or self.x_mean.any() or (self.x_sd != 1).any():
            x = x.astype(np.float64)
        if x.ndim != 2 or x.shape[1] != self.x_mean.shape[0]:
            raise DataError(f"features must have shape [m, {self.x_mean.shape[0]}], not {list(x.shape)}")
        if x.dtype == np.float32:
            return x.copy()
        return (x - self.x_mean) / self.x_sd

    def transform_y(self, y: np.ndarray) -> np.ndarray:
        """Standardised target of any shape; class labels come back unchanged in value."""
        return (y - self.y_mean) / self.y_sd

    def inverse_mean(self, mean: np.ndarray) -> np.ndarray:
        """Predictive means (or draws) of any shape in the units of the target."""
        return mean * self.y_sd + self.y_mean

    def inverse_sd(self, sd: np.ndarray) -> np.ndarray:
        """Predictive sds of any shape in the units of the target."""
        return sd * self.y_sd

    def inverse_variance(self, variance: np.ndarray) -> np.ndarray:
        """Predictive variances of any shape in the squared units of the target."""
        return variance * self.y_sd**2

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and floats; JSON keeps them exactly."""
        return {
            "x_mean": self.x_mean.tolist(),
            "x_sd": self.x_sd.tolist(),
            "y_mean": self.y_mean,
            "y_sd": self.y_sd,
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Standardizer:
        """The inverse of `to_dict`; DataError says which entry is missing or impossible."""
        try:
            x_mean, x_sd = (np.asarray(saved[key], dtype=np.float64) for key in ("x_mean", "x_sd"))
            y_mean, y_sd = (float(saved[key]) for key in ("y_mean", "y_sd"))
        except KeyError as error:
            raise DataError(f"the saved standardisation lacks {error.args[0]!r}") from None
        except (TypeError, ValueError):
            raise DataError("the saved standardisation holds something that is not a number") from None
        if x_mean.ndim != 1 or x_mean.shape != x_sd.shape:
            raise DataError("the saved standardisation has x_mean and x_sd of different or wrong shapes")
        numbers = np.concatenate([x_mean, x_sd, [y_mean, y_sd]])
        if not np.isfinite(numbers).all() or (x_sd <= 0).any() or y_sd <= 0:
            raise DataError(
                "the saved standardisation has an sd that is not positive or a number that is not finite"
            )
        return cls(x_mean, x_sd, y_mean, y_sd)


def _moments(columns: np.ndarray, what: str, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and population sd [d] of [n, d], refusing what would give NaN or infinity; `names` [d] of the
    columns.
    """
    if not np.isfinite(columns).all():
        raise DataError(f"{what} hold a missing value or an infinity: they cannot be standardised")
    with np.errstate(over="ignore", invalid="ignore"):
        mean, sd = columns.mean(axis=0), columns.std(axis=0)
    if not np.isfinite(sd).all():
        name = names[int(np.argmin(np.isfinite(sd)))]
        raise DataError(
            f"{name} holds numbers too large to be squared and cannot be standardised: rescale it, or leave "
            "those rows out"
        )
    return mean, sd


def constant_up_to_rounding(columns: np.ndarray, mean: np.ndarray, sd: np.ndarray) -> np.ndarray:
    """Which columns of [n, d], with these means and sds, keep their units; bool [d]."""
    return (np.ptp(columns, axis=0) == 0) | (sd <= _RELATIVE_ZERO * np.abs(mean))


def _is_constant(columns: np.ndarray, mean: np.ndarray, sd: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Which columns of [n, d] are constant, exactly or up to rounding; bool [d].  Refuses those of which
    nobody can say: times in nanoseconds, ids of 18 digits.
    """
    constant = constant_up_to_rounding(columns, mean, sd)
    unclear = constant & (np.ptp(columns, axis=0) > NEXT_TO_NOTHING)
    if unclear.any():
        j = int(np.argmax(unclear))
        low, high = columns[:, j].min(), columns[:, j].max()
        raise DataError(
            f"{names[j]} goes from {low:.17g} to {high:.17g}, numbers so large that rounding could have "
            f"spread them: subtract {low:.17g} from them, or leave them out"
        )
    return constant
