"""Fitted guides on disk: safetensors for the numbers, JSON for the layout, no pickle."""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

#: What the names of files end in that are not whole yet; nobody else calls a file so.
HALF = ".half"


def write_atomically(path: str | Path, write) -> None:
    """Calls ``write(temporary path)`` and renames: after a kill the old file or the new one stands, whole.

    A symbolic link stays, and the file that it leads to is written.  Until it is whole the file is called
    ``.NAME.xxxxxxxx.half``.

    :raises OSError: when it cannot be written, and for a pipe, a socket or a device
    """
    path = _place_of(Path(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _new_file_beside(path)
    try:
        mode = temporary.stat().st_mode
        write(str(temporary))
        temporary.chmod(mode)  # safetensors puts a file of its own there, for its owner alone
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, SafetensorError):  # of a full disk too
            raise OSError(errno.EIO, str(error), str(path)) from error
        raise


def _new_file_beside(path: Path) -> Path:
    """An empty file ``.NAME.xxxxxxxx.half``.  Who may read it the umask says, as of any file; one of
    ``tempfile`` would be for its owner alone.
    """
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{HALF}")
        try:
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:  # of another call
            continue
        return temporary


def _place_of(path: Path) -> Path:
    """Where the file itself is: to rename over a link, a pipe or a device would put a file in its place."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder: name a file in it", str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return Path(os.path.realpath(path))


def write_json(path: str | Path, content: dict) -> None:
    """A JSON file, whole or not at all."""
    write_atomically(path, lambda target: Path(target).write_text(json.dumps(content, indent=2) + "\n"))


def json_safe(values: Mapping[str, Any]) -> dict[str, Any]:
    """With lists for tuples, as JSON gives them back."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def read_safetensors(path: str | Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """``(header, tensors)`` of one file; :raises SafetensorError: for a damaged file"""
    with safe_open(str(path), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        return file.metadata() or {}, tensors


def part_of(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Those called ``<name>.<rest>``, by the rest."""
    start = f"{name}."
    return {full.removeprefix(start): value for full, value in tensors.items() if full.startswith(start)}


def save_guide(guide: nn.Module, path: str | Path) -> None:
    """Saves a guide's ``state_dict`` in one safetensors file, the layout of its sites in the header.

    :raises ValueError: when the guide has no parameters yet
    """
    state = guide.state_dict()
    if len(state) < 2:  # the layout alone
        raise ValueError("the guide has no parameters to save yet: fit it, or call guide.setup(*args)")
    layout = json.dumps(state.pop("_extra_state"))
    tensors = {name: value.contiguous() for name, value in state.items()}
    write_atomically(path, lambda target: save_file(tensors, target, metadata={"layout": layout}))


def load_guide(guide: nn.Module, path: str | Path) -> nn.Module:
    """Loads what :func:`save_guide` wrote into a fresh guide of the same class; returns it.

    :raises TypeError: for a guide that is none
    :raises ValueError: naming a damaged or foreign file, or the class that a file is of
    """
    if not isinstance(guide, nn.Module):
        raise TypeError(f"load_guide(guide, path) takes a guide first, not a {type(guide).__name__}")
    layout, state = read_guide(path)
    guide.load_state_dict({**state, "_extra_state": layout})
    return guide


def read_guide(path: str | Path) -> tuple[dict, dict[str, Tensor]]:
    """``(layout, state_dict)`` that :func:`save_guide` wrote; :raises ValueError: for a damaged file"""
    try:
        metadata, tensors = read_safetensors(path)
        return json.loads(metadata["layout"]), tensors
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is truncated or no saved guide ({error}): fit again") from error
