"""Files written by others, sealed: a JSON file beside them says that they are whole, and what they are about.

The seal is written last.  A file without one is half a fit; one whose bytes differ from the seal is damaged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from guides.posterior.files import write_json
from zoo.errors import UserError


def seal_of(path: Path) -> Path:
    """Where the seal of a file is: ``fit.safetensors`` -> ``fit.json``."""
    return path.with_suffix(".json")


def write_seal(path: Path, about: Mapping) -> None:
    """Seals a finished file; ``about`` is JSON-safe."""
    write_json(seal_of(path), {"about": about, "sha256": _checksum(path, about)})


def read_seal(path: Path) -> dict:
    """What a sealed file is about; :raises UserError: when the file or its seal is damaged, or not there"""
    try:
        seal = json.loads(seal_of(path).read_text("utf-8"))
        about, checksum = seal["about"], seal["sha256"]
    except FileNotFoundError as error:
        raise UserError(
            f"{seal_of(path)} is missing, without which {path.name} may be half a fit: fit again"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{seal_of(path)} is truncated or damaged: delete it and fit again") from error
    if not path.exists() or checksum != _checksum(path, about):
        raise UserError(
            f"{path} fails its checksum, it was altered: delete it and {seal_of(path).name}, and fit again"
        )
    return about


def is_finished(path: Path, about: Mapping) -> bool:
    """Whether an earlier call has left this fit, whole; :raises UserError: when it has left another one"""
    if not seal_of(path).exists():
        return False
    if read_seal(path) != about:
        raise UserError(f"{path} belongs to another fit: choose another --out, or delete it")
    return True


def file_checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _checksum(path: Path, about: Mapping) -> str:
    """Of the file and of what it is said to be about."""
    text = json.dumps(about, sort_keys=True)
    return hashlib.sha256((text + file_checksum(path)).encode()).hexdigest()
