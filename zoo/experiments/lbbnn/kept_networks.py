"""Fitted networks on disk, for experiments that look at the same ones.

The folder named by the environment variable ZOO_NETWORKS; without it nothing is kept.  A network is found
again by all that made it: the images, model, guide, training, versions, and the source of this package.  One
that was made by other code is never found.  A fit that was interrupted, there too, goes on from its last
minute.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from guides.core.flat_guide import FlatGuide
from guides.posterior.files import load_guide, save_guide, write_json
from zoo.errors import UserError
from zoo.fitting.checkpoints import read_checkpoint
from zoo.fitting.cluster_tasks import own_code
from zoo.fitting.epochs import History

VARIABLE = "ZOO_NETWORKS"


def place(**made_by: Any) -> Path | None:
    """Where a network belongs, a path without suffix; None when none are kept.

    :param made_by: all that decides what it is, JSON-safe
    :raises UserError: when the folder cannot be written
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"{VARIABLE} names {folder}, which cannot be written: {error.strerror}") from None
    code = own_code()
    words = json.dumps([made_by, code.versions, code.source], sort_keys=True)
    return Path(folder) / hashlib.sha256(words.encode()).hexdigest()[:32]


def keep(path: Path | None, guide: FlatGuide, history: History) -> None:
    """Keeps a network that has been fitted, and what happened meanwhile."""
    if path is None:
        return
    save_guide(guide, path.with_suffix(".safetensors"))
    write_json(path.with_suffix(".json"), asdict(history))  # its presence says that both are whole
    _checkpoint(path).unlink(missing_ok=True)


def unfinished(path: Path | None) -> Path | None:
    """The checkpoint of a network that is being fitted; an interrupted fit goes on from there.

    One that is damaged is removed, so that the fit begins again.
    """
    if path is None:
        return None
    checkpoint = _checkpoint(path)
    try:
        read_checkpoint(checkpoint)
    except UserError:  # or none
        checkpoint.unlink(missing_ok=True)
    return checkpoint


def _checkpoint(path: Path) -> Path:
    return path.with_suffix(".unfinished")


def find(path: Path | None, guide: FlatGuide) -> History | None:
    """Gives a fresh guide the parameters that were kept; None, and the guide as it was, where none were.

    The guide still is to be set up.
    """
    if path is None or not path.with_suffix(".json").exists():
        return None
    try:
        content: Mapping[str, list] = json.loads(path.with_suffix(".json").read_text())
        history = History(**content)
        load_guide(guide, path.with_suffix(".safetensors"))
    except (OSError, ValueError, TypeError):  # damaged: it is made again, and replaced whole
        return None
    return history
