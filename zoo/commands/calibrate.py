"""Simulation-based calibration of guides and samplers: runs the simulations, writes what their ranks say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd

from zoo.commands.calibration import SAMPLERS, Calibration
from zoo.commands.simulation import BOUND_CHANGE, CONVERGED, simulate
from zoo.errors import Interrupted, UserError
from zoo.evaluation.calibration import LEVEL, judge
from zoo.evaluation.calibration_plot import plot_ranks
from zoo.experiments.engine.declaration import Record
from zoo.experiments.engine.progress import OnProgress
from zoo.experiments.engine.records import CELLS, read_record, sweep
from zoo.experiments.engine.workers import compute
from zoo.files.output import output_folder
from zoo.files.tables import markdown_table, write_csv, write_text
from zoo.fitting.side_by_side import ALONE, CallEndedError, Workers
from zoo.registry.guides import GUIDES

#: Simulations below which uniform ranks say nothing: the spread of 20 is known to a sixth.
FEWEST = 20

Ranks = dict[str, dict[str, np.ndarray]]


def run(
    calibration: Calibration,
    out: str | Path,
    *,
    workers: Workers = ALONE,
    on_progress: OnProgress | None = None,
) -> pd.DataFrame:
    """Computes the simulations that have no result yet, and writes the folder from all that are there.

    Writes ``calibration.csv`` (a row a method and quantity: the columns of :func:`summary`), ``ranks.csv`` (a
    row a simulation), ``calibration.md``, ``calibration.png`` and ``config.json``.

    :param workers: who computes (:func:`zoo.fitting.clusters.workers`)
    :returns: what ``calibration.csv`` holds
    :raises UserError: when the folder cannot be written or belongs to another request
    :raises CallEndedError: when a process died; what is finished is kept
    :raises Interrupted: at Ctrl-C, with what is kept
    """
    with output_folder(out, calibration.config()) as folder:
        sweep(folder)
        known = [read_record(folder, cell) for cell in calibration.cells()]
        done = [record for record in known if record is not None]
        try:
            compute(simulate, calibration.metrics, calibration.cells(), done, folder, workers, on_progress)
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted; {out} keeps {_kept(calibration, folder)} of {len(calibration.cells())} "
                "simulations, and the same command goes on from there"
            ) from None
        except (UserError, CallEndedError) as error:
            if not _kept(calibration, folder):
                raise
            ended = error  # raised below, where it takes no folder away
        else:
            return write(calibration, folder)
        finally:
            sweep(folder, own=True)
    raise ended


def _kept(calibration: Calibration, folder: Path) -> int:
    return sum(read_record(folder, cell) is not None for cell in calibration.cells())


# ------------------------------------------------------------------------------------------------ the results


def sentences(calibration: Calibration, folder: Path, table: pd.DataFrame) -> list[str]:
    """What the ranks of every method in a folder say, a paragraph each."""
    return [_sentence(method, found, table) for method, found in _read_all(calibration, folder).items()]


def write(calibration: Calibration, folder: Path) -> pd.DataFrame:
    """The files of results, from every simulation in the folder, whichever calls have left them."""
    records = _read_all(calibration, folder)
    draws, quantities = calibration.options["draws"], calibration.quantities
    ranks = {method: _ranks(found, quantities) for method, found in records.items()}
    table = summary(records, ranks, draws)
    write_csv(_rank_table(records, quantities), folder / "ranks.csv")
    write_csv(table, folder / "calibration.csv")
    plot_ranks(ranks, draws, folder / "calibration.png", calibration.entry.name)
    write_text(folder / "calibration.md", _page(calibration, records, table))
    return table


def _read_all(calibration: Calibration, folder: Path) -> dict[str, list[Record]]:
    """Method -> its records, in the order of their numbers; samplers first, then guides as registered."""
    there = {path.name for path in (folder / CELLS / calibration.entry.name).glob("[!.]*")}
    order = (*SAMPLERS, *GUIDES)
    found = {}
    for method in sorted(there & set(order), key=order.index):
        below = folder / CELLS / calibration.entry.name / method / "default"
        names = [path.name for path in below.glob("*")]
        trials = sorted(int(name) for name in names if name.isdecimal())
        cells = [calibration.cell(method, trial) for trial in trials]
        records = [read_record(folder, cell) for cell in cells]
        found[method] = [record for record in records if record is not None]
    return {method: records for method, records in found.items() if records}


def _ranks(records: Sequence[Record], quantities: Sequence[str]) -> dict[str, np.ndarray]:
    """Quantity -> its ranks in the simulations that did not fail."""
    sound = [record.metrics for record in records if record.ok]
    return {
        name: np.array([round(metrics[name]) for metrics in sound])
        for name in quantities
        if sound and all(name in metrics for metrics in sound)
    }


def summary(records: dict[str, list[Record]], ranks: Ranks, draws: int) -> pd.DataFrame:
    """A row a method and quantity: ``method``, ``quantity``, ``simulations``, ``failed``, ``p``, ``verdict``,
    ``shift``, ``shift_se``, ``spread``, ``spread_se`` (:class:`zoo.evaluation.calibration.Verdict`).
    A method all of whose fits failed has one row without a quantity.
    """
    lines = []
    for method, found in records.items():
        failed = sum(not record.ok for record in found)
        for name, values in ranks[method].items():
            verdict = asdict(judge(values, draws, len(ranks[method])))
            words = verdict.pop("words")
            lines.append({"method": method, "quantity": name, "failed": failed, "verdict": words, **verdict})
        if not ranks[method]:
            lines.append({"method": method, "quantity": "", "failed": failed, "verdict": "every fit failed"})
    first = ["method", "quantity", "simulations", "failed", "p", "verdict"]
    columns = [*first, "shift", "shift_se", "spread", "spread_se"]
    table = pd.DataFrame(lines).reindex(columns=columns)
    return table.assign(simulations=table["simulations"].fillna(0).astype(int))


def _rank_table(records: dict[str, list[Record]], quantities: Sequence[str]) -> pd.DataFrame:
    """A row a simulation: its status, and the rank of every quantity."""
    columns = ["method", "simulation", "status", *quantities]
    lines = [
        {"method": method, "simulation": record.cell.trial, "status": record.status, **record.metrics}
        for method, found in records.items()
        for record in found
    ]
    table = pd.DataFrame(lines).reindex(columns=columns)
    return table.astype(dict.fromkeys(quantities, "Int64"))


# --------------------------------------------------------------------------------------------------- the page

EXPLAINED = """\
Every simulation draws parameters from the model's own prior and a target from them, fits the method to that
target, and counts how many of its draws lie below the true value. If the posterior is right, all ranks are
equally likely. Fixed inputs; all methods see the same truths and targets. `f[k]` is the noiseless function
at the k-th test point, `log_likelihood` that of the simulated target.

- **verdict**: *uniform*, where the distribution function of the ranks stays inside a simultaneous band; the
  family-wise error over all quantities of a method is {level:g} (Bonferroni), so that one right method in
  {right:.0f} is found guilty. Else what is wrong with the draws: *too narrow* or *too wide* beside the truth,
  *shifted right* (draws above the truth) or *left*, or *of another shape*.
- **p**: of a worst place of the distribution function as bad as this one, before Bonferroni
- **spread**: sd of the draws over that of the truth about their mean, from a Gaussian fitted to the ranks; 1
  is right, its error says what so many simulations can see, and it has none where all ranks are at the ends
- **shift**: of the draws against the truth, in sds of the draws
"""


def _page(calibration: Calibration, records: dict[str, list[Record]], table: pd.DataFrame) -> str:
    options = calibration.options
    model = ", ".join(f"{name} {_shown(value)}" for name, value in options["options"].items())
    facts = [
        f"- model: {calibration.entry.name} ({options['task']}{', ' if model else ''}{model})",
        f"- data: {options['rows']} rows of {options['columns']} columns, correlation "
        f"{options['correlation']:g}; {options['points']} test points",
        f"- {options['draws']} draws a simulation, {options['steps']} optimiser steps, "
        f"seed {calibration.seed}",
    ]
    parts = [f"# Calibration of {calibration.entry.name}", "\n".join(facts)]
    parts += [_sentence(method, records[method], table) for method in records]
    explained = EXPLAINED.format(level=LEVEL, right=1 / LEVEL)
    parts += ["![ranks](calibration.png)", _markdown(table), explained.strip()]
    return "\n\n".join(parts) + "\n"


def _shown(value: object) -> str:
    return (",".join(map(str, value)) or "none") if isinstance(value, list) else str(value)


def _sentence(method: str, records: Sequence[Record], table: pd.DataFrame) -> str:
    """What the ranks of a method say, in words."""
    rows = table[(table["method"] == method) & (table["quantity"] != "")]
    sound = [record for record in records if record.ok]
    parts = [_in_words(method, rows, len(sound))] if sound else [f"**{method}**: every fit failed."]
    if len(sound) < len(records):
        reason = next(record.status for record in records if not record.ok)
        parts.append(
            f"{len(records) - len(sound)} of {len(records)} fits failed and have no rank ({reason})."
        )
    unmixed = sum(record.metrics.get(CONVERGED, 1.0) == 0.0 for record in sound)
    if unmixed:
        parts.append(f"The chains of {unmixed} simulations did not mix well enough; they are counted.")
    changes = [record.metrics[BOUND_CHANGE] for record in sound if BOUND_CHANGE in record.metrics]
    if len(changes) > 1:
        mean, se = np.mean(changes), np.std(changes, ddof=1) / len(changes) ** 0.5
        parts.append(f"Its loss fell by {mean:.2f} ± {se:.2f} nats in the last tenth of a fit.")
    note = GUIDES[method].note if method in GUIDES else ""
    return " ".join([*parts, f"({note})"] if note else parts)


def _in_words(method: str, rows: pd.DataFrame, simulations: int) -> str:
    wrong = rows[rows["verdict"] != "uniform"]
    if not len(wrong) and simulations < FEWEST:
        return f"**{method}**: {simulations} simulations are too few to tell; take {FEWEST} or more."
    if not len(wrong):
        return f"**{method}** passes: {simulations} simulations, {len(rows)} quantities."
    by_words = wrong.groupby("verdict", sort=False)["quantity"].agg(list)
    found = "; ".join(f"{words} in {', '.join(names)}" for words, names in by_words.items())
    return f"**{method}** fails: {found} ({len(wrong)} of {len(rows)} quantities, {simulations} simulations)."


def _markdown(table: pd.DataFrame) -> str:
    def pair(row: pd.Series, name: str) -> str:
        value, se = row[name], row[f"{name}_se"]
        error = "" if pd.isna(se) else f" ± {se:.2f}"
        return "" if pd.isna(value) else f"{value:.2f}{error}"

    lines = pd.DataFrame(
        {
            "method": table["method"],
            "quantity": table["quantity"],
            "simulations": table["simulations"].astype(str),
            "failed": table["failed"].astype(str),
            "p": ["" if pd.isna(p) else f"{p:.2g}" for p in table["p"]],
            "verdict": table["verdict"],
            "spread": [pair(row, "spread") for _, row in table.iterrows()],
            "shift": [pair(row, "shift") for _, row in table.iterrows()],
        }
    )
    return markdown_table(lines, "llrrrlrr")
