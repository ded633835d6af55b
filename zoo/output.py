"""Output folders: made only for work that can start, owned by one configuration, nothing lost in them."""

from __future__ import annotations

import contextlib
import json
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from guides.storage import write_json
from zoo.errors import DivergenceError, UserError

CONFIG = "config.json"


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    names = ("posterior-zoo", "torch", "pyro-ppl", "numpyro", "jax", "numpy", "arviz")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def read_config(folder: str | Path) -> dict:
    """The configuration of a folder; :raises UserError: when there is none, or it is damaged"""
    path = Path(folder) / CONFIG
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise UserError(f"{folder} holds no {CONFIG}: it is not the output of this program") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path} is truncated or damaged ({error}): delete {folder} and start again") from error


@contextlib.contextmanager
def output_folder(folder: str | Path, config: dict) -> Iterator[Path]:
    """Opens a folder for one configuration; a second call with the same one goes on with what is there.

    :raises UserError: when the folder cannot be written, holds something else, or belongs to another
        configuration
    """
    folder = Path(folder)
    existed = folder.exists()
    config = {**config, "versions": versions()}
    if existed and folder.is_dir() and any(folder.iterdir()):
        _check_same(folder, config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / CONFIG, config)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}") from error
    try:
        yield folder
    except (UserError, DivergenceError):
        if not existed:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _check_same(folder: Path, config: dict) -> None:
    if not (folder / CONFIG).exists():
        raise UserError(f"{folder} is not empty and holds no {CONFIG}: choose another --out")
    found = read_config(folder)
    # What was added to the file later (results) is not part of the question.
    different = [key for key in config if key != "versions" and found.get(key) != json.loads(json.dumps(config[key]))]
    if different:
        raise UserError(
            f"{folder} belongs to another run ({', '.join(different)} differ): choose another --out, or delete it"
        )
