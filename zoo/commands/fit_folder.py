"""The folder of ``zoo fit``: one call at a time works in it, a longer fit starts again, Ctrl-C is told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from zoo.errors import Interrupted, UserError
from zoo.evaluation.loss_plot import plot_loss
from zoo.files.output import CONFIG, kept_config, outgrow, read_config, sole_folder
from zoo.files.tables import write_csv

FIT = "fit.safetensors"
#: What a fit leaves beside its configuration; some methods seal their file.
RESULTS = (FIT, "fit.json", "losses.csv", "loss.png")
#: Why a fit whose learning rate depends on the number of all steps cannot go on: at the last it is zero.
FALLING = "the learning rate falls to zero over all steps"


@contextlib.contextmanager
def sole_fit(out: str | Path, kept: str) -> Iterator[None]:
    """:func:`zoo.files.output.sole_folder`; Ctrl-C in the block says whether the same call goes on.

    :param kept: name of the file that it goes on from, or of the seal of a finished fit
    """
    with sole_folder(out):
        try:
            yield
        except KeyboardInterrupt:
            if (Path(out) / kept).exists():
                words = f"{out} keeps the fit so far, and the same command goes on from there"
            else:
                words = "nothing is kept yet: the same command starts again"
            raise Interrupted(f"interrupted; {words}") from None


def start_again(
    out: str | Path,
    config: Mapping,
    settings: tuple[str, str],
    with_steps: Callable[[int], dict],
    results: Iterable[str],
    tell: Callable[[str], None],
    why: str = FALLING,
) -> None:
    """Clears away a fit of fewer steps, which cannot be continued.

    :param settings: keys in the configuration, of the settings and in them of the number of steps
    :param with_steps: the configuration with another number of steps
    :param results: names of the files that such a fit leaves
    :param why: it cannot be continued, for the user
    """
    group, name = settings
    kept, asked = kept_config(out).get(group), config[group][name]
    steps = kept.get(name) if isinstance(kept, dict) else None
    if not isinstance(steps, int) or not 0 < steps < asked:
        return
    if outgrow(out, with_steps(steps), config, results):
        tell(f"{out} held a fit of {steps} steps; {why}, so that one of {asked} starts again")


def write_losses(losses: Sequence[float], folder: Path, title: str) -> None:
    """The loss of every step as ``losses.csv``, and as ``loss.png`` under a title."""
    write_csv(pd.DataFrame({"step": range(len(losses)), "loss": losses}), folder / "losses.csv")
    plot_loss(np.array(losses), folder / "loss.png", title=title)


def check_output(
    out: str | Path, folder: str | Path, beginnings: Sequence[str], table: str | Path | None = None
) -> None:
    """Lets the file to write replace what an earlier call has written, and nothing else.

    Drawn rows have the header of the table that was fitted, which may have moved since: what has its name is
    not replaced by them.

    :param beginnings: how a file of the same kind begins, one of which a file that is replaced must have
    :param table: the input
    :raises UserError: when the file is a folder, the input, what was fitted, a part of the fit, or holds
        something else
    """
    out, folder = Path(out), Path(folder)
    if not out.exists():
        return
    if out.is_dir():
        raise UserError(f"cannot write to {out}: it is a folder, and --out names a file")
    if table is not None and out.samefile(table):
        raise UserError(f"--out {out} is the --input itself: choose another file")
    if any(path.exists() and path.samefile(out) for path in (folder / name for name in (CONFIG, *RESULTS))):
        raise UserError(f"--out {out} is part of the fit in {folder}: choose another file")
    fitted = Path(str(read_config(folder).get("data", "")))
    if fitted.is_file() and out.samefile(fitted) or table is None and out.name == fitted.name:
        raise UserError(f"--out {out} is, or is called as, the table that was fitted: choose another file")
    begins = _beginning(out, max(map(len, beginnings)))
    if begins and not begins.startswith(tuple(beginnings)):
        raise UserError(
            f"--out {out} is there and holds something else, for it does not begin with "
            f"{beginnings[0].strip()}: choose another file, or delete it"
        )


def _beginning(path: Path, length: int) -> str:
    """So many characters of a file at most; none of a pipe or a device, which are refused in the writing."""
    if not path.is_file():
        return ""
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            return file.read(length)
    except OSError as error:
        raise UserError(f"cannot write to {path}: {error.strerror or error}") from error


def check_config(folder: Path, config: Mapping, about: Mapping) -> None:
    """:raises UserError: where a configuration does not say what the fit beside it is about"""
    different = [key for key in about if config.get(key) != about[key]]
    if different:
        raise UserError(
            f"{folder / CONFIG} was altered: it lacks {different[0]!r}, or differs there from {folder / FIT}"
        )
