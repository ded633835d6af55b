"""Where the files of a set are: a ZOO_DATA folder, the cache, or the original address, in this order.

A file of a ZOO_DATA folder is checked by the sha256 of its bytes at every load. For the original files the
digest of the bytes is not known to us (they were never downloaded on the machine where this was written), so
what is checked is the sha256 of the numbers parsed from them; it is as strict about the data and indifferent
to line ends. No address has been tried from here either: they are those that public code uses.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import unquote, urlparse

import numpy as np

from data_loaders.catalogue.entries import Entry
from data_loaders.errors import DataError, short_reason
from data_loaders.originals.parsing import Arrays, RawError

Parse = Callable[[Entry, Sequence[bytes]], Arrays]

_SECONDS = 30


def cache_folder() -> Path:
    """The cache: the folder named by ZOO_CACHE, else the one customary for the operating system."""
    import pooch  # slow to import

    return Path(os.environ.get("ZOO_CACHE") or pooch.os_cache("posterior-zoo"))


def mirror_folder() -> Path | None:
    """The ZOO_DATA folder, None where the variable is not set; DataError when it names something else."""
    named = os.environ.get("ZOO_DATA")
    if not named:
        return None
    if not Path(named).is_dir():
        raise DataError(f"ZOO_DATA names {named}, which is not a folder; correct or unset it")
    return Path(named)


def mirror_file(entry: Entry) -> Path | None:
    """The file of `entry` in the ZOO_DATA folder, None where there is no such folder or file."""
    if entry.file is None or (folder := mirror_folder()) is None:
        return None
    path = folder / entry.file
    return path if path.is_file() else None


def read_arrays(entry: Entry, parse: Parse) -> tuple[Arrays, Path]:
    """The arrays of `entry` and where they were read: a file of ZOO_DATA, or its folder in the cache.

    Raises DataError, on one line with the remedy, when a file is damaged or nowhere to be had.
    """
    path = mirror_file(entry)
    if path is not None:
        return _read_npz(entry, path), path
    if not entry.addresses:
        raise DataError(
            f"{entry.name}: no address of a plain-text original is known, so it cannot be downloaded "
            f"(source: {entry.source}); set ZOO_DATA to a folder that holds {entry.file}"
        )
    folder = cache_folder() / entry.name
    files = [folder / _file_name(address) for address in entry.addresses]
    if all(file.is_file() for file in files):
        try:
            return _parsed(entry, parse, files), folder
        except RawError:
            # A damaged file in the cache: get it anew, once.
            pass
    for address, file in zip(entry.addresses, files, strict=True):
        download(entry, address, file)
    try:
        return _parsed(entry, parse, files), folder
    except RawError as error:
        for file in files:
            file.unlink(missing_ok=True)
        raise DataError(
            f"{entry.name}: what {' and '.join(entry.addresses)} sent fails its checksum ({error}); try "
            f"again, or set ZOO_DATA to a folder that holds {entry.file}"
        ) from None


def content_digest(arrays: Arrays, keys: Sequence[str]) -> str:
    """sha256 of the named arrays, one after the other, as little-endian float64 in C order."""
    digest = hashlib.sha256()
    for key in keys:
        digest.update(np.ascontiguousarray(arrays[key], dtype="<f8").tobytes())
    return digest.hexdigest()


def content_keys(arrays: Arrays) -> list[str]:
    """The arrays of a set that come from its original files, in the order in which they are digested."""
    tables = ["X", "y"], ["train", "test"], ["x_train", "y_train", "x_test"]
    for keys in (*tables, ["src", "dst", "time", "edge_ptr"]):
        if all(key in arrays for key in keys):
            return keys
    return [*sorted(key for key in arrays if key.startswith("data_")), "draws"]


def _read_npz(entry: Entry, path: Path) -> Arrays:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{entry.name}: cannot read {path}: {short_reason(error)}") from None
    if hashlib.sha256(raw).hexdigest() != entry.sha256:
        remedy = "copy it anew" + (", or unset ZOO_DATA to download the original" if entry.addresses else "")
        raise DataError(f"{entry.name}: {path} fails its checksum (cut short or altered); {remedy}")
    with np.load(io.BytesIO(raw), allow_pickle=False) as stored:
        return {key: stored[key] for key in stored.files}


def _parsed(entry: Entry, parse: Parse, files: Sequence[Path]) -> Arrays:
    """Parse and check; RawError, be it unreadable, malformed or altered."""
    try:
        arrays = parse(entry, [file.read_bytes() for file in files])
        sound = content_digest(arrays, content_keys(arrays)) == entry.content
    except RawError:
        raise
    except (OSError, TypeError, ValueError) as error:
        raise RawError(short_reason(error)) from None
    if not sound:
        raise RawError("the numbers differ from the published ones")
    return arrays


def _file_name(address: str) -> str:
    return Path(unquote(urlparse(address).path)).name


def download(entry: Entry, address: str, file: Path) -> None:
    """Fetch `address` to `file`, which appears there whole or not at all."""
    import pooch

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=file.parent))
    except OSError as error:
        raise DataError(
            f"{entry.name}: cannot write to {file.parent} ({short_reason(error, limit=80)}); set ZOO_CACHE "
            f"to a folder of yours, or ZOO_DATA to one that holds {entry.file}"
        ) from None
    try:
        pooch.HTTPDownloader(timeout=_SECONDS)(address, str(work / file.name), None)
        os.replace(work / file.name, file)
    except OSError as error:
        # requests' errors are OSErrors too, so this covers the network and a full disk. A refusal (404, say)
        # brings its connection along, which pooch leaves open.
        if (response := getattr(error, "response", None)) is not None:
            response.close()
        raise DataError(
            f"{entry.name}: cannot get {address} ({short_reason(error, limit=80)}); connect to the network, "
            f"or set ZOO_DATA to a folder that holds {entry.file}"
        ) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
