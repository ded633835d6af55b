"""Results of a comparison on disk, as later calls may use them: whole, unaltered and of these versions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from guides.posterior.draws import Posterior
from zoo.files.output import versions

#: What a saved result must still say when it is read again.
SEALED = ("method", "figures", "inclusion", "mcse", "note", "status", "settings", "versions", "state")


def seal_posterior(posterior: Posterior) -> None:
    """Puts the versions and a checksum into the ``info`` of a posterior that is to be saved."""
    posterior.info["versions"] = versions()
    posterior.info["sha256"] = _checksum(posterior)


def load_kept(path: Path, model: Callable) -> Posterior | None:
    """What an earlier call has saved; None when it is not there, damaged, altered, or of other versions.

    Such a file is of no use: the work is done again, and the file replaced whole.
    """
    if not path.exists():
        return None
    try:
        posterior = Posterior.load(path, model)
        info = posterior.info
        if info["sha256"] != _checksum(posterior) or info["versions"] != versions():
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return posterior


def _checksum(posterior: Posterior) -> str:
    """Of the draws and the figures: netCDF has none of its own for the latter."""
    info = {key: value for key, value in posterior.info.items() if key in SEALED}
    digest = hashlib.sha256(json.dumps(info, sort_keys=True).encode())
    for name, value in sorted(posterior.sites.items()):
        digest.update(f"{name} {list(value.shape)}".encode() + value.numpy().tobytes())
    return digest.hexdigest()
