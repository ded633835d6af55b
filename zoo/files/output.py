"""Output folders: made only for work that can start, owned by one configuration, nothing lost in them."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

from guides.posterior.files import HALF, write_json
from zoo.errors import FailedError, UserError, enough_memory

CONFIG = "config.json"
#: Keys of a configuration that do not make it another one: data are known by their fingerprint, and what a
#: grid is made of may grow.
REMARKS = ("data", "grid", "versions")
#: How often a folder is removed in which something is written meanwhile.
ATTEMPTS = 10
#: Name of half a file, as :func:`guides.posterior.files.write_atomically` calls it until it is whole.
HALVES = re.compile(rf"\..+\.[0-9a-f]{{8}}{re.escape(HALF)}")
#: Characters of a setting that a message shows.
SHOWN = 40
#: Settings that a message shows of those that differ.
MOST_SHOWN = 4


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    names = ("posterior-zoo", "torch", "pyro-ppl", "numpyro", "jax", "numpy", "arviz")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def folder_versions(folder: str | Path) -> dict[str, str]:
    """:func:`versions` of all that has worked in a folder, in the order in which they came: ``2.11.0,
    2.13.0+cpu``; those of this process are among them.

    :raises UserError: when the configuration of the folder is damaged
    """
    kept = kept_config(folder).get("versions")
    earlier = kept if isinstance(kept, dict) else {}
    return {
        name: ", ".join(dict.fromkeys([*filter(None, str(earlier.get(name, "")).split(", ")), number]))
        for name, number in versions().items()
    }


def read_config(folder: str | Path) -> dict:
    """The configuration of a folder; :raises UserError: when there is none, or it is damaged"""
    path = Path(folder) / CONFIG
    try:
        config = json.loads(path.read_text("utf-8"))
        if not isinstance(config, dict):
            raise ValueError("no object")
    except (FileNotFoundError, NotADirectoryError) as error:
        if not Path(folder).is_dir():
            raise UserError(f"{folder} is no folder: give the --out of the command that made it") from error
        raise UserError(f"{folder} holds no {CONFIG}: it is not the output of this program") from error
    except (OSError, ValueError) as error:  # neither UTF-8 nor JSON are ValueErrors
        raise UserError(
            f"{path} is truncated or damaged ({error}): delete {folder} and start again"
        ) from error
    return config


def kept_config(folder: str | Path) -> dict:
    """The configuration of a folder, empty where there is none; :raises UserError: when it is damaged"""
    return read_config(folder) if (Path(folder) / CONFIG).is_file() else {}


@contextlib.contextmanager
def output_folder(folder: str | Path, config: dict) -> Iterator[Path]:
    """Opens a folder for one configuration; a second call with the same one goes on with what is there.

    Work that is refused or diverges takes away again what was made for it, and nothing else; any other end,
    an interruption among them, leaves what is finished.

    :param config: JSON-safe; written to ``config.json`` with :func:`folder_versions`
    :raises UserError: when the folder cannot be written, holds something else, or belongs to another
        configuration
    """
    folder, made, new = Path(folder), None, False
    found: set[Path] = set()
    try:
        made = _first_missing(folder)
        if made is None:
            _check_ours(folder, config)
            found = set(folder.iterdir())
        new = made is not None or _is_empty(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / CONFIG, {**config, "versions": folder_versions(folder)})
        with enough_memory():
            yield folder
    except OSError as error:
        if not (folder / CONFIG).exists():
            _remove_empty(folder, made)
        raise UserError(f"cannot write to {error.filename or folder}: {error.strerror or error}") from error
    except (UserError, FailedError):
        if new:
            _remove_all_but(found, folder, made)
        raise


@contextlib.contextmanager
def sole_folder(folder: str | Path) -> Iterator[None]:
    """A folder in which no other call works meanwhile; made if it is not there, and taken away again if it is
    left empty.  The end of the process, a kill too, gives it free; what a killed call was writing is removed.

    :raises UserError: when the folder cannot be made, or another call is at work there
    """
    folder = Path(folder)
    made = _first_missing(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileExistsError as error:
        raise UserError(f"{folder} is a file, not a folder: choose another --out") from error
    except OSError as error:
        raise UserError(f"cannot write to {error.filename or folder}: {error.strerror or error}") from error
    try:
        if _lock(handle, folder):
            _remove_halves(folder)
        yield
    finally:
        _remove_empty(folder, made)
        os.close(handle)


@contextlib.contextmanager
def grid_folder(folder: str | Path, config: dict, last: str) -> Iterator[Path]:
    """:func:`output_folder` of one call alone, for a grid that may grow.

    :param last: the file that stands where the grid is finished: one of another grid is taken away, so that
        what an earlier call has found does not pass for what this one looks for
    """
    with sole_folder(folder):
        kept = kept_config(folder)
        if not differences(kept, config) and kept.get("grid") != config["grid"]:
            with contextlib.suppress(OSError):  # who cannot write here hears of it next
                (Path(folder) / last).unlink(missing_ok=True)
        with output_folder(folder, config) as opened:
            yield opened


def _remove_empty(folder: Path, top: Path | None) -> None:
    """Removes the folders from ``folder`` up to ``top`` as far as there is nothing in them; none for None."""
    if top is None:
        return
    with contextlib.suppress(OSError):
        for path in (folder, *folder.parents):
            if path.exists():
                path.rmdir()
            if path == top:
                return


def _lock(handle: int, folder: Path) -> bool:
    """Whether the folder is locked now; :raises UserError: when another process has it"""
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(
            f"another call is at work in {folder}: wait for its end, or choose another --out"
        ) from None
    except OSError:  # a file system without locks
        return False
    return True


def _remove_halves(folder: Path) -> None:
    """Removes half files, where the folder is one of ours: whoever has begun them is gone."""
    with contextlib.suppress(OSError):  # who cannot write here hears of it next
        if (folder / CONFIG).exists():
            for path in folder.iterdir():
                if HALVES.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                    path.unlink(missing_ok=True)


def _first_missing(folder: Path) -> Path | None:
    """The topmost folder that has to be made for this one; None when it exists."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    return missing[-1] if missing else None


def _is_empty(folder: Path) -> bool:
    """But for what begins with a dot: it may be half a file of a call that was killed."""
    return not any(not path.name.startswith(".") for path in folder.iterdir())


def _remove_all_but(found: Collection[Path], folder: Path, top: Path | None) -> None:
    """What is in the folder and was not found there, then the folders up to ``top`` that are empty; a worker
    elsewhere may write there until they are gone.
    """
    for _ in range(ATTEMPTS):
        with contextlib.suppress(OSError):  # why the call is refused is what has to be heard
            for path in set(folder.iterdir()).difference(found):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        _remove_empty(folder, top)


def _check_ours(folder: Path, config: dict) -> None:
    """:raises UserError: when a folder that exists is not one for this configuration"""
    if not folder.is_dir():
        raise UserError(f"{folder} is a file, not a folder: choose another --out")
    if _is_empty(folder):
        return
    if not (folder / CONFIG).exists():
        raise UserError(f"{folder} is not empty and holds no {CONFIG}: choose another --out")
    different = differences(read_config(folder), config)
    if different:
        more = [f"and {len(different) - MOST_SHOWN} more"] if len(different) > MOST_SHOWN else []
        told = "; ".join([*different[:MOST_SHOWN], *more])
        raise UserError(
            f"{folder} belongs to another run ({told}): choose another --out, or call with what is there"
        )


def differences(there: Mapping, asked: Mapping) -> list[str]:
    """What sets the configuration that is asked for apart from the one that is there: ``seed is 3 there, 4
    here``; a setting within another, as ``budget steps``, has the names of both.
    """
    asked = json.loads(json.dumps(asked))  # as a file gives it back
    found = []
    # what is set there alone first: a message shows the first few
    for name in dict.fromkeys(("command", *(name for name in there if name not in asked), *asked)):
        if name not in REMARKS:
            found += _differences(name, there.get(name), asked.get(name))
        if name == "command" and found:
            return found  # nothing else compares
    return found


def _differences(name: str, there: object, here: object) -> list[str]:
    if there == here:
        return []
    if isinstance(there, dict) and isinstance(here, dict):
        keys = dict.fromkeys((*there, *here))
        return [line for key in keys for line in _differences(f"{name} {key}", there.get(key), here.get(key))]
    if any(isinstance(value, list) and not _is_plain(value) for value in (there, here)):
        return [f"{name}: not the same"]  # too much to show
    return [f"{name} is {_shown(there)} there, {_shown(here)} here"]


def _is_plain(value: list) -> bool:
    return not any(isinstance(part, list | dict) for part in value)


def _shown(value: object) -> str:
    if isinstance(value, list):
        text = ",".join(map(_shown, value)) or "none"
    else:
        text = value if isinstance(value, str) else "not set" if value is None else json.dumps(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def outgrow(folder: str | Path, shorter: Mapping, config: Mapping, results: Iterable[str]) -> bool:
    """Makes a folder that of a longer run, if it is that of a shorter one; whether it was.

    What the shorter run has left is removed: nothing of it can be used.

    :param shorter: ``config`` with less work
    :param results: names of the files that such a run leaves
    :raises UserError: when the folder cannot be written, or its configuration is damaged
    """
    folder = Path(folder)
    if differences(kept_config(folder), shorter):
        return False
    try:
        for name in results:
            (folder / name).unlink(missing_ok=True)
        # last: until then it says what may still be there
        write_json(folder / CONFIG, {**config, "versions": versions()})
    except OSError as error:
        raise UserError(f"cannot write to {error.filename or folder}: {error.strerror or error}") from error
    return True
