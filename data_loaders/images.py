"""Sets of small grey images: four files each in the IDX format, packed by gzip.

Looked for in the folder `images` of ZOO_DATA (the name of the set, a hyphen and the original name), then in
the cache, then at the mirrors. What is checked is the md5 of the *unpacked* bytes, because mirrors pack the
same bytes in different ways. Nothing is trusted on the way there: sizes are bounded before anything is
unpacked.

KMNIST's training images may be missing beside its test images in a ZOO_DATA folder. Then the 10,000 test
images are split instead, and the set says so.
"""

from __future__ import annotations

import hashlib
import io
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from gzip import GzipFile
from pathlib import Path
from types import MappingProxyType

import numpy as np

from data_loaders.catalogue.entries import Entry
from data_loaders.errors import DataError, short_reason
from data_loaders.originals.files import cache_folder, download, mirror_folder
from data_loaders.originals.parsing import RawError
from data_loaders.records import Dataset

TRAIN_ROWS, TEST_ROWS = 60_000, 10_000
_SIDE, _CLASSES = 28, 10
#: Without the training images of KMNIST: rows of the test file that train, and the seed that chooses them.
STAND_IN_ROWS, STAND_IN_SEED = 8_000, 8020

# The four files of a set: rows, and whether they are images.
_PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


@dataclass(frozen=True)
class _Md5:
    """Digest of the unpacked bytes, or of the packed ones where the former is not known to us."""

    digest: str
    packed: bool = False


# Confirmed against the bytes, or (KMNIST's training images) against two independent public listings.
MD5: Mapping[tuple[str, str], _Md5] = MappingProxyType(
    {
        ("mnist", "train-images-idx3"): _Md5("6bbc9ace898e44ae57da46a324031adb"),
        ("mnist", "train-labels-idx1"): _Md5("a25bea736e30d166cdddb491f175f624"),
        ("mnist", "t10k-images-idx3"): _Md5("2646ac647ad5339dbf082846283269ea"),
        ("mnist", "t10k-labels-idx1"): _Md5("27ae3e4e09519cfbb04c329615203637"),
        ("fashion_mnist", "train-images-idx3"): _Md5("f4a8712d7a061bf5bd6d2ca38dc4d50a"),
        ("fashion_mnist", "train-labels-idx1"): _Md5("9018921c3c673c538a1fc5bad174d6f9"),
        ("fashion_mnist", "t10k-images-idx3"): _Md5("8181f5470baa50b63fa0f6fddb340f0a"),
        ("fashion_mnist", "t10k-labels-idx1"): _Md5("15d484375f8d13e6eb1aabb0c3f46965"),
        ("kmnist", "train-images-idx3"): _Md5("bdb82020997e1d708af4cf47b453dcf7", packed=True),
        ("kmnist", "train-labels-idx1"): _Md5("949e75301f8813e0dc5800dcc320fc52"),
        ("kmnist", "t10k-images-idx3"): _Md5("bf305b8cd328700fbc17f5acbc2856d2"),
        ("kmnist", "t10k-labels-idx1"): _Md5("9f55f451c0988b028eccdf7d5cc265ab"),
    }
)


def load_images(entry: Entry, split: int, protocol: str) -> Dataset:
    """The set with its official split ("standard"), or all images as training rows ("whole").

    `x` is float32 in [0, 1], pixels row by row; see `Dataset.prescaled`. Row numbers run over the training
    file and on over the test file.
    """
    files, oddities = _files(entry), entry.oddities
    if "train-images-idx3" in files:
        halves = [_pair(entry, half, files) for half in ("train", "t10k")]
        x, y = (np.concatenate(arrays) for arrays in zip(*halves, strict=True))
        train, test = np.split(np.arange(len(y)), [TRAIN_ROWS])
    else:
        x, y = _pair(entry, "t10k", files)
        order = np.random.RandomState(STAND_IN_SEED).permutation(TEST_ROWS)
        train, test = order[:STAND_IN_ROWS], order[STAND_IN_ROWS:]
        oddities += (
            f"here the training images are missing: {len(train)} of the {TEST_ROWS} test images train, "
            f"{len(test)} test; do not compare with published figures",
        )
    if protocol == "whole":
        train, test = np.arange(len(y)), np.arange(0)
    return Dataset(
        name=entry.name,
        task=entry.task,
        x_train=_scaled(x[train]),
        y_train=y[train].astype(np.int64),
        x_test=_scaled(x[test]),
        y_test=y[test].astype(np.int64),
        feature_names=tuple(f"pixel_{i}_{j}" for i in range(_SIDE) for j in range(_SIDE)),
        target_name=entry.target,
        split=split,
        protocol=protocol,
        oddities=oddities + _copies(x[train], x[test]),
        extras={"rows_train": train.astype(np.int64), "rows_test": test.astype(np.int64)},
        image_shape=entry.image_shape,
        prescaled=True,
    )


def fetch_images(entry: Entry) -> Path:
    """Make sure that all four files are at hand and sound, KMNIST's training images too; a folder of theirs.

    Raises DataError as `load_images` does, and where those training images cannot be had.
    """
    files = _files(entry, complete=True)
    for part in files:
        _read(entry, part, files[part])
    return files["train-images-idx3"].parent


# -------------------------------------------------------------------------------------------------- the files


def _files(entry: Entry, complete: bool = False) -> dict[str, Path]:
    """Where the four files are, downloaded where needed.

    The training images of KMNIST are left out when a ZOO_DATA folder has the test images but not these, nor
    has the cache: such a folder is meant for work without a network. `complete` downloads them even then.
    """
    found = {part: path for part in _PARTS if (path := _at_hand(entry, part)) is not None}
    missing = [part for part in _PARTS if part not in found]
    offline = missing == ["train-images-idx3"] and _mirror(entry, "t10k-images-idx3") is not None
    if entry.name == "kmnist" and offline and not complete:
        return found
    return found | {part: _download(entry, part) for part in missing}


def _mirror(entry: Entry, part: str) -> Path | None:
    folder = mirror_folder()
    if folder is None:
        return None
    short = entry.name.removesuffix("_mnist")
    path = folder / "images" / f"{short}-{part}-ubyte.gz"
    return path if path.is_file() else None


def _at_hand(entry: Entry, part: str) -> Path | None:
    """The file in ZOO_DATA, or a sound one in the cache (a damaged one there is left to be had anew)."""
    path = _mirror(entry, part) or _cached(entry, part)
    if path.is_file() and path == _cached(entry, part):
        try:
            _parse(entry, part, path)
        except RawError:
            return None
    return path if path.is_file() else None


def _cached(entry: Entry, part: str) -> Path:
    return cache_folder() / entry.name / f"{part}-ubyte.gz"


def _download(entry: Entry, part: str) -> Path:
    """From the first mirror that sends the right bytes; otherwise DataError about the first mirror."""
    path, failure = _cached(entry, part), None
    for folder in entry.addresses:
        try:
            download(entry, f"{folder}{path.name}", path)
            _parse(entry, part, path)
            return path
        except DataError as error:
            failure = failure or error
        except RawError as error:
            path.unlink(missing_ok=True)
            failure = failure or DataError(
                f"{entry.name}: what {folder}{path.name} sent fails its checksum ({error}); try again, or "
                f"set ZOO_DATA to a folder that holds {entry.file}"
            )
    raise failure or DataError(f"{entry.name}: no address of it is known")


# ---------------------------------------------------------------------------------------------------- reading


def _pair(entry: Entry, half: str, files: Mapping[str, Path]) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 784] and labels [n], uint8, of the half "train" or "t10k"."""
    images, labels = (
        _read(entry, part, files[part]) for part in (f"{half}-images-idx3", f"{half}-labels-idx1")
    )
    return images.reshape(len(images), -1), labels


def _read(entry: Entry, part: str, path: Path) -> np.ndarray:
    """As `_parse`; DataError names the file, what is wrong with it, and the remedy."""
    try:
        return _parse(entry, part, path)
    except RawError as error:
        raise DataError(
            f"{entry.name}: {path} fails its checksum ({error}); copy it anew, or remove it to download it"
        ) from None


def _parse(entry: Entry, part: str, path: Path) -> np.ndarray:
    """The array of one file, uint8; RawError with what is wrong."""
    rows = TRAIN_ROWS if part.startswith("train") else TEST_ROWS
    shape = (rows, _SIDE, _SIDE) if "images" in part else (rows,)
    try:
        return read_idx(path.read_bytes(), shape, MD5[entry.name, part])
    except RawError:
        raise
    except (OSError, EOFError, zlib.error) as error:
        raise RawError(f"it cannot be unpacked: {short_reason(error, limit=80)}") from None


def read_idx(packed: bytes, shape: tuple[int, ...], md5: _Md5) -> np.ndarray:
    """The uint8 array of `shape` in a gzipped IDX file.

    The format: two zero bytes, the type (8: unsigned bytes), the number of dimensions, every dimension as a
    big-endian 4-byte number, then the bytes. Raises RawError with the reason, or what `gzip` raises; reads
    no further than the expected size.
    """
    if md5.packed and hashlib.md5(packed, usedforsecurity=False).hexdigest() != md5.digest:
        raise RawError("the md5 of the file is not the published one")
    head, size = 4 + 4 * len(shape), math.prod(shape)
    with GzipFile(fileobj=io.BytesIO(packed)) as stream:
        raw = stream.read(head + size + 1)
    magic = bytes([0, 0, 8, len(shape)])
    if raw[:4] != magic:
        raise RawError(f"it begins with {raw[:4].hex() or 'nothing'} where {magic.hex()} marks an IDX file")
    found = tuple(int(n) for n in np.frombuffer(raw[4:head].ljust(4 * len(shape), b"\0"), dtype=">u4"))
    if found != shape:
        raise RawError(f"it says that its shape is {list(found)}, not {list(shape)}")
    if len(raw) != head + size:
        raise RawError(f"it is {'cut short' if len(raw) < head + size else 'longer than it says'}")
    if not md5.packed and hashlib.md5(raw, usedforsecurity=False).hexdigest() != md5.digest:
        raise RawError("the md5 of its unpacked bytes is not the published one")
    values = np.frombuffer(raw, dtype=np.uint8, offset=head).reshape(shape)
    if len(shape) == 1 and values.max() >= _CLASSES:
        raise RawError(f"it holds the label {values.max()}")
    return values


def _scaled(pixels: np.ndarray) -> np.ndarray:
    """float32 in [0, 1]."""
    return np.divide(pixels, 255, dtype=np.float32)


def _copies(train: np.ndarray, test: np.ndarray) -> tuple[str, ...]:
    """A sentence that counts the test images which are exact copies of training images."""
    if not len(test):
        return ()
    known = {row.tobytes() for row in train}
    copies = sum(row.tobytes() in known for row in test)
    return (f"{copies} of {len(test)} test images are exact copies of training images",) if copies else ()
