"""The one place that talks to ArviZ: labelled posteriors, netCDF files, convergence diagnostics.

ArviZ 0.23 keeps a fit in an ``InferenceData``.  The rest of the project uses ``idata["group"]``,
``idata.attrs`` and the functions below, and never imports arviz.  (ArviZ 1.x keeps another container, and
its ``psislw`` and effective sample sizes are other numbers: ``setup.cfg`` leaves it out.)

* :func:`to_arviz`, :func:`with_groups`, :func:`save_netcdf`, :func:`load_netcdf`: containers and files.
* :func:`rhat`, :func:`ess`, :func:`mcse`: diagnostics of plain arrays, array in, array out.

Reference of the diagnostics: Vehtari, Gelman, Simpson, Carpenter, Buerkner (2021), Bayesian Analysis 16(2).
"""

from __future__ import annotations

import functools
import json
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from guides.posterior.files import write_atomically

__all__ = [
    "arrays_of",
    "decode_attrs",
    "ess",
    "group_names",
    "load_netcdf",
    "mcse",
    "rhat",
    "save_netcdf",
    "to_arviz",
    "with_groups",
]

#: Groups whose arrays have no chains and draws.
_FIXED = ("observed_data", "constant_data")

#: Root attribute that lists which other attributes are JSON text (netCDF holds numbers and strings only).
_JSON_KEYS = "json_encoded_attrs"
#: In files for the slash of a site's name (``pyro.contrib.autoname.scope``), which no netCDF name may have.
_ESCAPES = {"%": "%25", "/": "%2F"}
_SAMPLE_DIMS = ("chain", "draw")
Arrays = Mapping[str, Any]


@functools.cache
def import_arviz() -> Any:
    """arviz, imported when first needed (seconds), without 0.23's announcement of its successor.

    It notes once a day in a file that it has made that.  Of processes that do so at once one may find the
    file gone that it was to move; the second time there is nothing to note.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*ArviZ is undergoing", category=FutureWarning)
        try:
            import arviz
        except FileNotFoundError:
            import arviz
    return arviz


# ------------------------------------------------------------------------------------------------- containers


def to_arviz(
    posterior: Arrays,
    *,
    sample_stats: Arrays | None = None,
    posterior_predictive: Arrays | None = None,
    log_likelihood: Arrays | None = None,
    prior: Arrays | None = None,
    prior_predictive: Arrays | None = None,
    observed_data: Arrays | None = None,
    constant_data: Arrays | None = None,
    attrs: Mapping[str, Any] | None = None,
    coords: Mapping[str, Any] | None = None,
    dims: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """Label draws the ArviZ way: an ``InferenceData``.

    :param posterior: site name -> array ``[chain, draw, *site]``.  A fit that is no MCMC has one chain: pass
        arrays ``[1, draw, *site]``; then the attribute ``is_mcmc = "false"`` is set unless ``attrs`` says
        otherwise.
    :param sample_stats: sampler statistics [chain, draw, ...], under ArviZ's names (``diverging``, ``lp``
        ...).
    :param posterior_predictive, log_likelihood, prior, prior_predictive: name -> array
        ``[chain, draw, *shape]``.
    :param observed_data, constant_data: name -> array ``[*shape]``, no sample dimensions.
    :param attrs: attributes of the whole fit; whatever netCDF cannot hold (dict, list, bool, None) is kept as
        JSON text, see :func:`decode_attrs`.
    :param coords: dimension name -> labels.
    :param dims: variable name -> names of its dimensions after [chain, draw]; default ``<variable>_dim_<i>``.
        A log-likelihood has the first of them: those of an observation, not those of an event.
    :raises ValueError: no posterior; a sampled array with fewer than two dimensions, or [chain, draw] that
        differ inside a group; a wrong number of names in ``dims``.
    """
    if not posterior:
        raise ValueError("to_arviz: the posterior holds no site")
    sampled = {"posterior": posterior, "posterior_predictive": posterior_predictive,
               "log_likelihood": log_likelihood, "sample_stats": sample_stats,
               "prior": prior, "prior_predictive": prior_predictive}  # fmt: skip
    fixed = {"observed_data": observed_data, "constant_data": constant_data}
    groups = {k: _dataset(k, v, _SAMPLE_DIMS, coords, dims) for k, v in sampled.items() if v}
    groups |= {k: _dataset(k, v, (), coords, dims) for k, v in fixed.items() if v}
    all_attrs = dict(attrs or {})
    if groups["posterior"].sizes["chain"] == 1:
        all_attrs.setdefault("is_mcmc", "false")
    return _container(groups, _encode_attrs(all_attrs))


def with_groups(idata: Any, groups: Mapping[str, Arrays], *, coords: Mapping[str, Any] | None = None) -> Any:
    """A container with more groups, ``{group: {name: array}}``; those of the same name are replaced.

    :param coords: dimension name -> labels
    :raises ValueError: as :func:`to_arviz`
    """
    new = {
        name: _dataset(name, arrays, () if name in _FIXED else _SAMPLE_DIMS, coords, None)
        for name, arrays in groups.items()
    }
    old = {name: idata[name] for name in group_names(idata)}
    return _container(old | new, dict(idata.attrs))


def group_names(idata: Any) -> list[str]:
    """The groups that a container has."""
    return list(idata.groups())


def _container(groups: dict[str, xr.Dataset], attrs: dict[str, Any]) -> Any:
    return import_arviz().InferenceData(attrs=attrs, **groups)


def _dataset(
    group: str, arrays: Arrays, sample_dims: tuple[str, ...], coords: Mapping | None, dims: Mapping | None
) -> xr.Dataset:
    """One group: every array gets named dimensions and integer coordinates where ``coords`` names none."""
    variables, labels, leading = {}, {}, None
    for name, value in arrays.items():
        array = np.asarray(value)
        lead = array.shape[: len(sample_dims)]
        if len(lead) < len(sample_dims) or leading not in (None, lead):
            raise ValueError(f"to_arviz: {group}/{name} of shape {array.shape} does not start with "
                             f"[{', '.join(sample_dims)}] = {leading or 'two dimensions'}")  # fmt: skip
        leading = lead
        rest = array.shape[len(sample_dims) :]
        names = tuple((dims or {}).get(name, [f"{name}_dim_{i}" for i in range(len(rest))]))
        if group == "log_likelihood":
            names = names[: len(rest)]
        if len(names) != len(rest):
            raise ValueError(
                f"to_arviz: dims names {len(names)} dimensions of {name!r}, its site shape is {rest}"
            )
        variables[name] = (sample_dims + names, array)
        for dim, size in zip(sample_dims + names, array.shape, strict=True):
            labels[dim] = (coords or {}).get(dim, np.arange(size))
    for name in variables.keys() & labels.keys():
        raise ValueError(
            f"to_arviz: site {name!r} has the name of a dimension: call the site otherwise, or a dimension "
            "that is not chain or draw by dims={site: [names]}"
        )
    return xr.Dataset(variables, coords=labels)


def _encode_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as netCDF holds them: text and numbers as they are, the rest as listed JSON text."""
    out: dict[str, Any] = {}
    as_json = []
    for key, value in attrs.items():
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
            out[key] = value
        else:
            out[key] = json.dumps(value)
            as_json.append(key)
    if as_json:
        out[_JSON_KEYS] = ",".join(as_json)
    return out


def decode_attrs(idata: Any) -> dict[str, Any]:
    """The attributes of a container (or of anything with ``.attrs``), those kept as JSON text parsed back."""
    attrs = dict(idata.attrs)
    for key in filter(None, str(attrs.pop(_JSON_KEYS, "")).split(",")):
        attrs[key] = json.loads(attrs[key])
    return {k: v.item() if isinstance(v, np.generic) else v for k, v in attrs.items()}


def arrays_of(idata: Any, group: str) -> dict[str, np.ndarray]:
    """The variables of one group, name -> array; none if there is no such group."""
    if group not in group_names(idata):
        return {}
    return {str(name): np.asarray(value) for name, value in idata[group].data_vars.items()}


# ------------------------------------------------------------------------------------------------------ files


def save_netcdf(idata: Any, path: str | os.PathLike) -> Path:
    """Write ``idata`` to ``path`` (netCDF4 through h5netcdf) and return the path.

    The file appears under its name only when complete: a process killed while saving leaves an older file of
    that name as it was.
    """
    write_atomically(path, lambda target: _write(idata, Path(target)))
    return Path(path)


def _write(idata: Any, filename: Path) -> None:
    xr.Dataset(attrs=dict(idata.attrs)).to_netcdf(filename, mode="w", engine="h5netcdf")
    for group in group_names(idata):
        data = _renamed(idata[group], _escaped)
        packed = {"zlib": True, "complevel": 4}  # zlib's checksum also catches flipped bits on reading
        encoding = {
            k: packed for k, v in data.variables.items() if v.size and v.ndim and v.dtype.kind in "biuf"
        }
        data.to_netcdf(filename, mode="a", group=group, engine="h5netcdf", encoding=encoding)


def _renamed(data: xr.Dataset, rename: Callable[[str], str]) -> xr.Dataset:
    """With other names for variables and dimensions."""
    names = {str(name) for name in (*data.variables, *data.dims)}
    others = {name: rename(name) for name in names if rename(name) != name}
    return data.rename(others) if others else data


def _escaped(name: str) -> str:
    for plain, escape in _ESCAPES.items():
        name = name.replace(plain, escape)
    return name


def _unescaped(name: str) -> str:
    for plain, escape in reversed(_ESCAPES.items()):
        name = name.replace(escape, plain)
    return name


def load_netcdf(path: str | os.PathLike) -> Any:
    """Read a file of :func:`save_netcdf` into memory (the file is closed again) as ArviZ's container.

    :raises FileNotFoundError: no such file.
    :raises ValueError: truncated, not netCDF, or no group "posterior" in it; one line that names the file.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        groups = {k.strip("/"): v.load() for k, v in xr.open_groups(path, engine="h5netcdf").items()}
    # of bad bytes h5py and xarray raise OSError, ValueError, KeyError, RuntimeError ...
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path}: not a readable netCDF file of posterior draws ({reason})") from error
    for data in groups.values():
        data.close()  # all is in memory: let go of the file, so that it can be replaced on every system
    if "posterior" not in groups:
        raise ValueError(
            f"{path}: a netCDF file without the group 'posterior', so not a file of posterior draws"
        )
    attrs = dict(groups.pop("").attrs)
    return _container({name: _renamed(data, _unescaped) for name, data in groups.items()}, attrs)


# ------------------------------------------------------------------------------------------------ diagnostics


def rhat(draws: np.ndarray) -> np.ndarray:
    """Rank-normalised split R-hat (larger of bulk and folded): ``[chain, draw, *shape]`` -> ``[*shape]``.

    Values that never move have no R-hat: ``nan``.  Values that do not move inside the chains yet differ
    between them: ``inf``, the chains disagree for certain.  Not-finite draws: ``nan``.

    :raises ValueError: fewer than 2 chains or 4 draws.
    """
    return _per_quantity(draws, "rhat", "rank", stuck=math.inf)


def ess(draws: np.ndarray, method: str = "bulk") -> np.ndarray:
    """Effective sample size of ``draws`` ``[chain, draw, *shape]`` -> ``[*shape]``.

    :param method: "bulk", "tail", "mean" or "sd" (Vehtari et al. 2021).  Values that never move: ``nan``;
        constant inside the chains and different between them: 0 would be the truth, and 0 is given.
    """
    return _per_quantity(draws, "ess", method, stuck=0.0)


def mcse(draws: np.ndarray, method: str = "mean") -> np.ndarray:
    """Monte Carlo standard error of the mean or sd (``method``): ``[chain, draw, *shape]`` -> ``[*shape]``.

    A quantity that never moves has error 0; one that is stuck at different values has error ``inf``.  That of
    the sd is the delta method on E[(x - mean)^2], right for any law (ArviZ's assumes a normal one).
    """
    draws = np.asarray(draws, dtype=float)
    if method not in ("mean", "sd"):
        raise ValueError(f"mcse: method must be 'mean' or 'sd', got {method!r}")
    overall, inside = _ranges(draws)
    if method == "mean":
        error = _per_quantity(draws, "mcse", "mean", stuck=math.nan)
    else:
        with np.errstate(invalid="ignore", divide="ignore"):
            squares = (draws - draws.mean((0, 1))) ** 2
            error = _per_quantity(squares, "mcse", "mean", stuck=math.nan) / (2 * draws.std((0, 1)))
    return np.where(overall == 0, 0.0, np.where((inside == 0) & (overall > 0), math.inf, error))


def _ranges(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(overall range, largest range inside a chain): ``[chain, draw, *shape]`` -> 2 x ``[*shape]``."""
    with np.errstate(invalid="ignore"):
        return np.ptp(draws, axis=(0, 1)), np.ptp(draws, axis=1).max(axis=0)


def _per_quantity(draws: np.ndarray, name: str, method: str, stuck: float) -> np.ndarray:
    draws = np.asarray(draws, dtype=float)
    if draws.ndim < 2 or draws.shape[0] < 2 or draws.shape[1] < 4:
        raise ValueError(f"{name} needs [chain >= 2, draw >= 4, ...], got shape {draws.shape}")
    shape = draws.shape[2:]
    flat = draws.reshape(*draws.shape[:2], -1)
    overall, inside = _ranges(flat)
    moves = np.isfinite(overall) & (inside > 0)
    out = np.where(np.isfinite(overall) & (overall > 0), stuck, np.nan)
    if moves.any():
        out[moves] = _arviz_statistic(flat[..., moves], name, method)
    return out.reshape(shape)


def _arviz_statistic(draws: np.ndarray, name: str, method: str) -> np.ndarray:
    """ArviZ's own number for [chain, draw, K] -> [K], every column moving."""
    data = xr.Dataset({"x": (("chain", "draw", "k"), draws)})
    return getattr(import_arviz(), name)(data, method=method)["x"].values
