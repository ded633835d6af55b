"""Regressions of posteriordb with their reference draws, laid out so that x @ coefficients is the mean of y.

Column j of x belongs to parameter j of the draws and the last parameter is the noise sd, whatever the Stan
model calls them; an intercept gets a column of ones. Source: the Stan programs of
github.com/stan-dev/posteriordb.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from data_loaders.originals.parsing import Arrays
from data_loaders.records import Whole

_Design = tuple[list[tuple[str, np.ndarray]], np.ndarray]


def assemble(name: str, target: str, arrays: Arrays) -> Whole:
    """The whole of a posteriordb set: x [n, P - 1], y [n]; extras has draws, param_names and the data_*
    arrays.
    """
    data = {key.removeprefix("data_"): value for key, value in arrays.items() if key.startswith("data_")}
    columns, y = _DESIGNS[name.removeprefix("posteriordb_")](data)
    extras: dict[str, object] = {key: value for key, value in arrays.items() if key.startswith("data_")}
    extras["draws"] = arrays["draws"]
    extras["param_names"] = tuple(str(parameter) for parameter in arrays["param_names"])
    return Whole(
        np.column_stack([np.asarray(values, dtype=np.float64) for _, values in columns]),
        np.asarray(y, dtype=np.float64),
        tuple(label for label, _ in columns),
        target,
        extras=extras,
    )


def _plain(data: Mapping[str, np.ndarray]) -> _Design:
    x = data["X"]
    return [(f"x{j + 1}", x[:, j]) for j in range(x.shape[1])], data["y"]


def _diamonds(data: Mapping[str, np.ndarray]) -> _Design:
    # Column 1 of the stored design is the intercept; the model drops it, centres the rest and puts a separate
    # intercept behind them.
    x = data["X"][:, 1:]
    centred = x - x.mean(axis=0)
    columns = [(f"X{j + 2}_centred", centred[:, j]) for j in range(centred.shape[1])]
    return [*columns, _ones(len(x))], data["Y"]


def _kidiq(data: Mapping[str, np.ndarray]) -> _Design:
    school, iq = data["mom_hs"], data["mom_iq"]
    columns = [("mom_hs", school), ("mom_iq", iq), ("mom_hs:mom_iq", school * iq)]
    return [_ones(len(iq)), *columns], data["kid_score"]


def _logmesquite(data: Mapping[str, np.ndarray]) -> _Design:
    logged = ("diam1", "diam2", "canopy_height", "total_height", "density")
    columns = [(f"log_{key}", np.log(data[key])) for key in logged]
    return [_ones(len(data["group"])), *columns, ("group", data["group"])], np.log(data["weight"])


def _logearn(data: Mapping[str, np.ndarray]) -> _Design:
    height, male = data["height"], data["male"]
    z = (height - height.mean()) / height.std(ddof=1)
    columns = [("z_height", z), ("male", male), ("z_height:male", z * male)]
    return [_ones(len(z)), *columns], np.log(data["earn"])


def _nes(data: Mapping[str, np.ndarray]) -> _Design:
    age = data["age_discrete"]
    ages = [("age30_44", age == 2), ("age45_64", age == 3), ("age65up", age == 4)]
    before = [(key, data[key]) for key in ("real_ideo", "race_adj")]
    after = [(key, data[key]) for key in ("educ1", "gender", "income")]
    return [_ones(len(age)), *before, *ages, *after], data["partyid7"]


def _ones(n: int) -> tuple[str, np.ndarray]:
    return "intercept", np.ones(n)


_DESIGNS: Mapping[str, Callable[[Mapping[str, np.ndarray]], _Design]] = {
    "sblrc": _plain,
    "sblri": _plain,
    "diamonds": _diamonds,
    "kidiq_interaction": _kidiq,
    "logmesquite": _logmesquite,
    "logearn_interaction": _logearn,
    "nes2000": _nes,
}
