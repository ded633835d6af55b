"""One result a cell: a folder that appears whole or not at all, and is used again only if it is unaltered.

``cells/<data set>/<method>/<setting>/<trial>/result.json`` and the files that the cell left beside it.  A
cell works in a hidden folder that is renamed at the end: a kill leaves no half of a result, and of two
processes that compute the same cell the first one wins.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from guides.posterior.files import write_json
from zoo.experiments.engine.declaration import Cell, Experiment, Record

CELLS = "cells"
RESULT = "result.json"


def cell_folder(out: Path, cell: Cell) -> Path:
    return out / CELLS / cell.dataset / cell.method / cell.setting / str(cell.trial)


def read_record(out: Path, cell: Cell) -> Record | None:
    """The result of a cell; None when there is none, or it is damaged, altered or of another cell."""
    folder = cell_folder(out, cell)
    try:
        content = json.loads((folder / RESULT).read_text("utf-8"))
        if content.pop("sha256") != _checksum(content) or content["cell"] != _identity(cell):
            return None
        if any(_digest(folder / name) != digest for name, digest in content["files"].items()):
            return None
        return Record(
            cell,
            content["status"],
            {name: float(value) for name, value in content["metrics"].items()},
            float(content["seconds"]),
            folder,
            content["traceback"],
        )
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, AttributeError):  # neither UTF-8 nor JSON, or other JSON
        return None


def read_all(out: Path, experiment: Experiment, base_seed: int, options: Mapping) -> list[Record]:
    """Every sound result in the folder, whichever calls have left them, in the order of the grid."""
    records = []
    for combination in experiment.combinations():
        anywhere = Cell(experiment.name, *combination, trial=0, base_seed=base_seed, options=options)
        names = [path.name for path in cell_folder(out, anywhere).parent.glob("*")]
        for trial in sorted({int(name) for name in names if name.isdecimal()}):
            record = read_record(out, replace(anywhere, trial=trial))
            if record is not None:
                records.append(record)
    return records


@contextlib.contextmanager
def workplace(out: Path) -> Iterator[Path]:
    """A hidden folder for a cell that is being computed; gone afterwards unless :func:`publish` took it.

    :raises FileNotFoundError: where ``out`` is gone: the call that this worker works for has ended
    """
    (out / CELLS).mkdir(exist_ok=True)
    prefix = f"{_hidden()}{os.getpid()}-"
    with tempfile.TemporaryDirectory(dir=out / CELLS, prefix=prefix, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def publish(out: Path, record: Record) -> Record:
    """Writes the record beside the cell's files, and gives the folder its name; returns it where it is then.

    A failure or a damaged result that stands there is replaced; a sound one stays, whoever computed it.

    :raises FileNotFoundError: where ``out`` is gone: the call that this worker works for has ended
    """
    content = {
        "cell": _identity(record.cell),
        "status": record.status,
        "metrics": dict(record.metrics),
        "seconds": record.seconds,
        "traceback": record.traceback,
        "files": _files(record.folder),
    }
    os.chmod(record.folder, 0o755)  # a temporary folder is its owner's alone
    write_json(record.folder / RESULT, {**content, "sha256": _checksum(content)})
    target = cell_folder(out, record.cell)
    _make_below(out / CELLS, target.parent)
    while True:  # another process may put one there at any moment
        known = read_record(out, record.cell)
        if known is not None and known.ok:
            return known
        with workplace(out) as rubbish, contextlib.suppress(FileNotFoundError):
            os.rename(target, rubbish / "old")
        try:
            os.rename(record.folder, target)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        else:
            return replace(record, folder=target)


def _make_below(folder: Path, last: Path) -> None:
    """The folders from below ``folder``, which is not made, to ``last``."""
    for part in last.relative_to(folder).parts:
        folder /= part
        folder.mkdir(exist_ok=True)


def sweep(out: Path, *, own: bool = False) -> None:
    """Removes what killed processes of this machine left; the folders of those that live stay.

    :param own: those of this process too, whose cells have ended; Ctrl-C while one was removed leaves it
    """
    for path in (out / CELLS).glob(f"{_hidden()}*"):
        process = int(path.name.split("-")[-2])
        if not _alive(process) or (own and process == os.getpid()):
            shutil.rmtree(path, ignore_errors=True)


def _hidden() -> str:
    return f".running-{socket.gethostname()}-"


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # somebody else's
    return True


def _identity(cell: Cell) -> dict:
    """All that the numbers of a cell depend on, as JSON gives it back."""
    identity = {key: value for key, value in asdict(cell).items() if key != "folder"}
    return json.loads(json.dumps({**identity, "seed": cell.seed, "split_seed": cell.split_seed}))


def _files(folder: Path) -> dict[str, str]:
    """What a cell has left beside its result: SHA-256 by name, of files in folders of its own too."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path != folder / RESULT)
    return {str(path.relative_to(folder)): _digest(path) for path in paths}


def _digest(path: Path) -> str:
    """Nothing of a file that cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _checksum(content: Mapping) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
