"""Tables without a target, whose density is to be modelled: training, validation and test rows.

Three kinds.  ``mixture-2`` and ``mixture-10`` are drawn here from laws that are known.  ``bsds300-patches``,
``sachs``, ``protein``, ``elevators`` and ``kin40k`` are made of files of a ZOO_DATA folder (protein: of its
original too).  ``power``, ``gas``, ``hepmass``, ``miniboone`` and ``bsds300`` are the five sets of
Papamakarios, Pavlakou and Murray (2017), with their preprocessing, quirks included; their archive is
downloaded, 800 MB, or read from the folder ``maf`` of ZOO_DATA.  What is checked of these is the number of
rows and columns that come out, for no digest of the archive is known to us.
"""

from __future__ import annotations

import gzip
import math
import shutil
import tarfile
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from data_loaders.catalogue.entries import Entry
from data_loaders.errors import DataError, nearest, short_reason
from data_loaders.loading import load
from data_loaders.originals.files import cache_folder, download, mirror_folder, read_arrays
from data_loaders.originals.parsing import UNREADABLE, parse_raw

ARCHIVE = "https://zenodo.org/record/1161203/files/data.tar.gz"
#: Of shuffles, and of the noise that makes discrete columns continuous: those of the published code.
SEED = 42
_SHA256: Mapping[str, str] = MappingProxyType(
    {
        "density/bsds300_patches_u8.npz": "93a8aa4b86cf96926c974b4f68de709d8d9f332ab9a96a15082f9c4df6f21552",
        "density/sachs_proteins.npz": "f872c49957ae237fa8bb6c6cdb007dfbccaa147f7d75caf8c4e2e7b046c39606",
        "large/elevators.npz": "7cb4d3cd710855baea05fc291c93ba9f054f531a515b6184c09b057efc176156",
        "large/kin40k.npz": "2f43b84b965b63cf9cbe38e23a7603e67b07d91f257ad4e0cbe3b75b18d8586f",
    }
)
#: A column with fewer values than this has no density to speak of.
FEWEST_VALUES = 50


@dataclass(frozen=True, eq=False)
class DensityData:
    """Rows ``train`` [n, d], ``validation`` [k, d] and ``test`` [m, d], float64, ready to be modelled.

    `law` is the true one where it is known.
    """

    name: str
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    columns: tuple[str, ...]
    oddities: tuple[str, ...] = ()
    law: GaussianMixture | None = None


@dataclass(frozen=True)
class DensityEntry:
    """What is known of a set without reading it; `rows` are those of training, validation and test.

    `file` is its place in a ZOO_DATA folder, None where nothing is needed.
    """

    name: str
    features: int
    rows: tuple[int, int, int]
    source: str
    licence: str
    make: Callable[[DensityEntry], DensityData]
    file: str | None = None
    oddities: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    """`weights` [k], `means` [k, d] and Cholesky factors of the covariances, `roots` [k, d, d]."""

    weights: np.ndarray
    means: np.ndarray
    roots: np.ndarray

    def draw(self, n: int, seed: int) -> np.ndarray:
        """n rows [n, d]; the same seed gives the same rows with every version of numpy."""
        if n < 1:
            raise DataError(f"cannot draw {n} rows of a mixture")
        stream = np.random.RandomState(seed)
        component = stream.choice(len(self.weights), n, p=self.weights)
        noise = stream.standard_normal((n, self.means.shape[1]))
        return self.means[component] + np.einsum("nij,nj->ni", self.roots[component], noise)

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """[n], nats, at x [n, d]."""
        terms = []
        for weight, mean, root in zip(self.weights, self.means, self.roots, strict=True):
            z = np.linalg.solve(root, (x - mean).T)
            scale = np.log(np.diag(root)).sum() + 0.5 * len(mean) * math.log(2 * math.pi)
            terms.append(math.log(weight) - scale - 0.5 * (z**2).sum(0))
        return np.logaddexp.reduce(terms, axis=0)


def two_gaussians(distance: float = 4.0, sd: float = 1.0) -> GaussianMixture:
    """Two round Gaussians in the plane, equally likely, so far apart along the first column.

    The law of figure 4.1 of Ott (2022), which does not print its means and sds.
    """
    means = np.array([[-distance / 2, 0.0], [distance / 2, 0.0]])
    return GaussianMixture(np.full(2, 0.5), means, np.stack([sd * np.eye(2)] * 2))


def six_gaussians(features: int = 10) -> GaussianMixture:
    """Six equally likely Gaussians with means N(0, 4) and random correlations, sds about 0.6 to 1.2."""
    stream = np.random.RandomState(7)
    means = 2.0 * stream.standard_normal((6, features))
    factors = stream.standard_normal((6, features, features)) * math.sqrt(0.5 / features)
    covariances = factors @ factors.transpose(0, 2, 1) + 0.3 * np.eye(features)
    return GaussianMixture(np.full(6, 1 / 6), means, np.linalg.cholesky(covariances))


def load_density(name: str) -> DensityData:
    """The set `name`; DataError for an unknown one, or a file that is missing or not the right one."""
    if name not in DENSITIES:
        raise DataError(
            f"unknown density set {name!r}{nearest(name, DENSITIES)}; all names: {', '.join(DENSITIES)}"
        )
    entry = DENSITIES[name]
    try:
        data = entry.make(entry)
        found = (tuple(map(len, (data.train, data.validation, data.test))), data.train.shape[1])
    except DataError:
        raise
    except (OSError, *UNREADABLE) as error:
        known = getattr(error, "errno", None)  # of the disk: no permission, say
        damage = "" if known else ": cut short, or another file; put the right one in its place"
        raise DataError(f"{name}: cannot read {_path(entry)} ({short_reason(error)}){damage}") from None
    if found != (entry.rows, entry.features):
        raise DataError(
            f"{name}: {found[0]} rows of {found[1]} columns came out where {entry.rows} of {entry.features} "
            "are published: the file is another one"
        )
    return data


# --------------------------------------------------------------------------------------------- known laws


def _drawn(law: Callable[[], GaussianMixture]) -> Callable[[DensityEntry], DensityData]:
    def make(entry: DensityEntry) -> DensityData:
        known = law()
        parts = (known.draw(n, seed) for seed, n in enumerate(entry.rows))
        return DensityData(entry.name, *parts, _names(entry.features), entry.oddities, known)

    return make


# ---------------------------------------------------------------------------------------------- stand-ins


def _stored(entry: DensityEntry) -> Mapping[str, np.ndarray]:
    """The arrays of its file."""
    return read_arrays(_catalogued(entry, entry.source), parse_raw)[0]


def _catalogued(entry: DensityEntry, source: str) -> Entry:
    """The set in the form of the catalogue, by which files are read and downloaded."""
    return Entry(
        entry.name, "density", "regression", sum(entry.rows), entry.features, "", entry.licence, source,
        file=entry.file, sha256=_SHA256.get(entry.file, ""),
    )  # fmt: skip


def _patches(entry: DensityEntry) -> DensityData:
    """Grey patches: uniform noise on the levels, the mean taken off, the last pixel left out."""
    arrays, stream = _stored(entry), np.random.RandomState(SEED)
    parts = []
    for key in ("train", "val", "test"):
        grey = (arrays[key] + stream.uniform(size=arrays[key].shape)) / 256
        parts.append((grey - grey.mean(1, keepdims=True))[:, :-1])
    return DensityData(entry.name, *parts, _names(entry.features), entry.oddities)


def _sachs(entry: DensityEntry) -> DensityData:
    arrays = _stored(entry)
    rest, test = np.log(arrays["train"]), np.log(arrays["val"])
    cut = len(rest) - len(rest) // 10
    return _standardised(entry, rest[:cut], rest[cut:], test, tuple(map(str, arrays["names"])))


def _protein(entry: DensityEntry) -> DensityData:
    whole = load("protein", protocol="whole")
    table = np.column_stack([whole.x_train, whole.y_train])
    return _shuffled(entry, table, (*whole.feature_names, whole.target_name))


def _table(entry: DensityEntry) -> DensityData:
    """Features and target of a regression; columns of few values left out, the others' grids blurred."""
    arrays, stream = _stored(entry), np.random.RandomState(SEED)
    table = np.column_stack([arrays["X"], arrays["y"]]).astype(np.float64)
    names, kept = [], []
    for i, column in enumerate(table.T):
        values = np.unique(column)
        if len(values) >= FEWEST_VALUES:
            step = np.median(np.diff(values)) if len(values) < len(column) / 10 else 0.0
            kept.append(column + step * stream.uniform(-0.5, 0.5, len(column)))
            names.append("y" if i == table.shape[1] - 1 else f"x{i + 1}")
    return _shuffled(entry, np.column_stack(kept), tuple(names))


def _shuffled(entry: DensityEntry, table: np.ndarray, columns: tuple[str, ...]) -> DensityData:
    table = table[np.random.RandomState(SEED).permutation(len(table))]
    return _standardised(entry, *_tails(table), columns)


# ------------------------------------------------------------------------------------- the published suite


def _path(entry: DensityEntry) -> Path:
    """Where its file is or would be: in ZOO_DATA, or in the cache."""
    if (folder := mirror_folder()) is not None and (folder / entry.file).is_file():
        return folder / entry.file
    return cache_folder() / entry.file


def _member(entry: DensityEntry) -> Path:
    """Its file: of ZOO_DATA, of the cache, or taken out of the archive."""
    kept = _path(entry)
    if kept.is_file():
        return kept
    if entry.name == "gas":
        raise DataError(
            "gas: the archive holds it as a pickle, which is not opened here; save the numbers of "
            f"gas/ethylene_CO.pickle (columns Time, Meth, Eth first) with numpy.save as {kept}"
        )
    archive = cache_folder() / "maf" / "data.tar.gz"
    if not archive.is_file():
        download(_catalogued(entry, ARCHIVE), ARCHIVE, archive)
    wanted = entry.file.removeprefix("maf/")
    try:
        found = _unpack(archive, wanted, kept)
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise DataError(
            f"{entry.name}: {archive} is cut short or altered ({short_reason(error)}): delete it, and the "
            "same call gets it anew"
        ) from None
    except OSError as error:
        raise DataError(f"{entry.name}: cannot unpack {archive} to {kept} ({short_reason(error)})") from None
    if not found:
        raise DataError(f"{entry.name}: {archive} holds no {wanted}: delete it, it is another archive")
    return kept


def _unpack(archive: Path, wanted: str, kept: Path) -> bool:
    """Takes a file out, if it is there; the whole archive is read, for a checksum is at its end."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    part = kept.with_suffix(".part")
    with archive.open("rb") as file:
        opened = gzip.open if file.read(2) == b"\x1f\x8b" else open  # a browser may have unpacked it
    try:
        with opened(archive, "rb") as stream, tarfile.open(fileobj=stream, mode="r:") as packed:
            files = (member for member in packed if member.isfile())
            found = next((m for m in files if m.name.removeprefix("./").endswith(wanted)), None)
            if found:
                with packed.extractfile(found) as source, part.open("wb") as target:
                    shutil.copyfileobj(source, target)
            while stream.read(2**20):
                pass
        if found:
            part.replace(kept)
    finally:
        part.unlink(missing_ok=True)
    return found is not None


def _numbers(entry: DensityEntry) -> np.ndarray:
    return np.load(_member(entry), allow_pickle=False).astype(np.float64)


def _text(entry: DensityEntry) -> np.ndarray:
    path = _member(entry)
    try:
        with warnings.catch_warnings(action="error", category=UserWarning):  # of a file without rows
            return np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
    except (ValueError, UserWarning) as error:
        raise ValueError(f"{path.name}: {error}") from None  # one of two


def _power(entry: DensityEntry) -> DensityData:
    """Time and date are columns already; reactive power and intensity go, and meters' steps are blurred."""
    stream, table = np.random.RandomState(SEED), _numbers(entry)
    stream.shuffle(table)
    table = np.delete(np.delete(table, 3, axis=1), 1, axis=1)
    n = len(table)
    voltage, active = 0.01 * stream.rand(n, 1), 0.001 * stream.rand(n, 1)
    table += np.hstack((active, voltage, stream.rand(n, 3), np.zeros((n, 1))))
    names = ("active_power", "voltage", "meter_1", "meter_2", "meter_3", "time")
    return _standardised(entry, *_tails(table), names)


def _gas(entry: DensityEntry) -> DensityData:
    """Sensors alone; of every two with correlation above 0.98 the first goes; all rows standardise."""
    table = _numbers(entry)[:, 3:]
    while (crowded := np.flatnonzero((np.corrcoef(table.T) > 0.98).sum(1) > 1)).size:
        table = np.delete(table, crowded[0], axis=1)
    table = (table - table.mean(0)) / table.std(0)
    return DensityData(entry.name, *_tails(table), _names(table.shape[1]), entry.oddities)


def _hepmass(entry: DensityEntry) -> DensityData:
    """Signal alone, standardised by training rows, without columns of repeated smallest values."""
    second = replace(entry, file=entry.file.replace("train", "test"))
    train, test = _text(entry), _text(second)
    train, test = (part[part[:, 0] == 1][:, 1:] for part in (train, test))
    test = test[:, : train.shape[1]]  # a stray column
    train, test = ((part - train.mean(0)) / train.std(0) for part in (train, test))
    keep = _without_ties(train)
    train, test = train[:, keep], test[:, keep]
    cut = len(train) - int(0.1 * len(train))
    return DensityData(entry.name, train[:cut], train[cut:], test, _names(train.shape[1]), entry.oddities)


def _miniboone(entry: DensityEntry) -> DensityData:
    table = _numbers(entry)
    table = table[table[:, 0] >= -100]
    table = table[:, _without_ties(table)]
    return _standardised(entry, *_tails(table), _names(table.shape[1]))


def _bsds300(entry: DensityEntry) -> DensityData:
    import h5py

    with h5py.File(_member(entry)) as file:
        parts = [np.asarray(file[key], dtype=np.float64) for key in ("train", "validation", "test")]
    return DensityData(entry.name, *parts, _names(entry.features), entry.oddities)


def _without_ties(table: np.ndarray) -> np.ndarray:
    """Columns whose smallest value occurs at most five times.

    The published code means the most frequent value, and looks at the smallest.
    """
    ties = (table == table.min(0)).sum(0)
    return np.flatnonzero(ties <= 5)


def _tails(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The last tenth tests, the last tenth of the rest validates."""
    rest = len(table) - int(0.1 * len(table))
    cut = rest - int(0.1 * rest)
    return table[:cut], table[cut:rest], table[rest:]


def _standardised(
    entry: DensityEntry,
    train: np.ndarray,
    validation: np.ndarray,
    test: np.ndarray,
    columns: tuple[str, ...],
) -> DensityData:
    """By the means and sds of training and validation rows."""
    both = np.vstack([train, validation])
    mean, sd = both.mean(0), both.std(0)
    parts = ((part - mean) / sd for part in (train, validation, test))
    return DensityData(entry.name, *parts, columns, entry.oddities)


def _names(features: int) -> tuple[str, ...]:
    return tuple(f"x{i}" for i in range(1, features + 1))


_MAF = "Zenodo 1161203, the archive of Papamakarios, Pavlakou and Murray (2017)"
_UCI = "CC BY 4.0 (UCI)"
_GRID = "protein's, elevators' and kin40k's targets are columns like the others here"

DENSITIES: Mapping[str, DensityEntry] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            DensityEntry(
                "mixture-2", 2, (100, 100, 5000), "generated here", "this project's", _drawn(two_gaussians),
                oddities=("two round Gaussians, equally likely, 4 sds apart; the true density is known",),
            ),
            DensityEntry(
                "mixture-10", 10, (10_000, 1000, 10_000), "generated here", "this project's",
                _drawn(six_gaussians), oddities=("six Gaussians; the true density is known",),
            ),
            DensityEntry(
                "bsds300-patches", 63, (45_000, 5000, 10_000),
                "github.com/BIDS/BSDS500: 8x8 patches drawn of the 300 images of BSDS300",
                "non-commercial research (Berkeley)", _patches, "density/bsds300_patches_u8.npz",
                ("the construction of bsds300, and not its rows", "not standardised, as published"),
            ),
            DensityEntry(
                "sachs", 11, (9000, 1000, 1672),
                "Sachs et al. (2005), of github.com/AWehenkel/Graphical-Normalizing-Flows", "CC BY 4.0",
                _sachs, "density/sachs_proteins.npz", ("logarithms of the measured amounts",),
            ),
            DensityEntry(
                "protein", 10, (37_042, 4115, 4573), "the regression set protein", _UCI, _protein,
                "uci/protein.npz",
                ("heavy tails: a few rows can decide a mean",
                 "285 test rows are copies of training or validation rows", _GRID),
            ),
            DensityEntry(
                "elevators", 9, (13_446, 1494, 1659), "github.com/treforevans/uci_datasets", "MIT",
                _table, "large/elevators.npz",
                (f"no column of fewer than {FEWEST_VALUES} values; grids are blurred by a step", _GRID),
            ),
            DensityEntry(
                "kin40k", 9, (32_400, 3600, 4000), "github.com/treforevans/uci_datasets", "MIT", _table,
                "large/kin40k.npz", ("synthetic: inputs are uniform and independent", _GRID),
            ),
            DensityEntry(
                "power", 6, (1_659_917, 184_435, 204_928), _MAF, _UCI, _power, "maf/power/data.npy",
            ),
            DensityEntry(
                "gas", 8, (852_174, 94_685, 105_206), _MAF, _UCI, _gas, "maf/gas/ethylene_CO.npy",
                ("all rows standardise, test rows too, as published", "a series in time, not shuffled"),
            ),
            DensityEntry(
                "hepmass", 21, (315_123, 35_013, 174_987), _MAF, _UCI, _hepmass,
                "maf/hepmass/1000_train.csv",
            ),
            DensityEntry(
                "miniboone", 43, (29_556, 3284, 3648), _MAF, _UCI, _miniboone, "maf/miniboone/data.npy",
            ),
            DensityEntry(
                "bsds300", 63, (1_000_000, 50_000, 250_000), _MAF, "non-commercial research (Berkeley)",
                _bsds300, "maf/BSDS300/BSDS300.hdf5",
            ),
        )
    }
)  # fmt: skip
