"""Where every guide stands over several data sets: its ranks by distance to the truth, and its figures.

In every run (data set, split, seed) the guides are ranked by their W1 to the trusted posterior; a run without
one ranks nothing, a guide that fails or is refused is not ranked there.  Means and errors are those of
:mod:`zoo.evaluation.repeats`: over data sets where there are several.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from zoo.evaluation.estimates import Estimate
from zoo.evaluation.repeats import Mean, Run, RunKey, mean_over, methods_of
from zoo.evaluation.verdict import LARGEST_MEAN_ERROR, LARGEST_SD_RATIO, SMALLEST_SD_RATIO, unsettled

#: Figures of the scoreboard that mean the same on every data set.
FIGURES = ("ref_w1", "ref_mean_error", "ref_sd_ratio", "ref_log_likelihood")
#: Between two guides the truth's own likelihood cancels.
PAIRED_BY = {"ref_log_likelihood": "log_likelihood"}
#: Columns of ``leaderboard.csv``; figures, ranks and seconds are means, ``_se`` their standard errors;
#: ``bound_change`` is the largest of a run, ``unsettled`` counts the runs in which it still moved.
COLUMNS = (
    "guide", "status", "rank", "rank_se", "datasets", "runs", "failed",
    *(f"{name}{ending}" for name in FIGURES for ending in ("", "_se")), "cpu_seconds",
    "bound_change", "unsettled", "note",
)  # fmt: skip
#: Stands behind the name of a guide that has a note.
MARK = "†"


@dataclass(frozen=True)
class Refusal:
    """A guide that is not fitted to a data set.

    :ivar reason: in a line
    """

    guide: str
    dataset: str
    reason: str


@dataclass(frozen=True)
class Standing:
    """One guide over all runs.

    :ivar ranks: by run in which it is ranked; so are ``figures`` by column of the scoreboard
    :ivar changes: of the bound (without one: minus the loss) in the last tenth of the learning, nats, of the
        guides that take steps and have one
    :ivar asked: runs for which it was asked, failed ones too
    :ivar note: what a reader of its figures must know
    """

    guide: str
    ranks: Mapping[RunKey, float]
    figures: Mapping[str, Mapping[RunKey, float]]
    seconds: Mapping[RunKey, float]
    changes: Mapping[RunKey, Estimate]
    asked: int
    failures: Sequence[str]
    note: str

    @property
    def rank(self) -> Mean:
        return mean_over(self.ranks)

    def mean(self, figure: str) -> Mean | None:
        values = self.figures[figure]
        return mean_over(values) if values else None

    @property
    def cost(self) -> float:
        """CPU seconds of a fit."""
        return mean_over(self.seconds).value if self.seconds else math.nan

    @property
    def largest_change(self) -> float:
        return max((change.value for change in self.changes.values()), key=abs, default=math.nan)

    @property
    def unsettled(self) -> int:
        """Runs in which the bound still moved, as the verdict of a scoreboard has it."""
        return sum(unsettled(change) for change in self.changes.values())

    @property
    def name(self) -> str:
        """With the mark of a note."""
        return f"{self.guide}{MARK}" if self.note else self.guide

    @property
    def trusted(self) -> bool:
        """Whether no run warns of its mean or its sd."""
        errors, ratios = self.figures["ref_mean_error"].values(), self.figures["ref_sd_ratio"].values()
        return (
            not self.failures
            and all(error <= LARGEST_MEAN_ERROR for error in errors)
            and all(SMALLEST_SD_RATIO <= ratio <= LARGEST_SD_RATIO for ratio in ratios)
        )


def standings(runs: Sequence[Run], notes: Mapping[str, str]) -> list[Standing]:
    """Of all guides in the runs, best mean rank first; those without a rank last.

    :param notes: by guide
    """
    ranks = {run.key: ranks_of(run) for run in runs}
    found = []
    for guide in methods_of(runs):
        if guide not in notes:
            continue
        mine = {run.key: row for run in runs for row in run.rows if row.method == guide}
        sound = {place: row for place, row in mine.items() if row.status == "ok"}
        figures = {
            name: {place: v for place, row in sound.items() if (v := getattr(row, name)) is not None}
            for name in FIGURES
        }
        own = {place: ranked[guide] for place, ranked in ranks.items() if guide in ranked}
        seconds = {run.key: run.cpu_seconds[guide] for run in runs if guide in run.cpu_seconds}
        changes = {place: v for place, row in sound.items() if (v := row.estimate("bound_change"))}
        failures = [row.status for row in mine.values() if row.status != "ok"]
        found.append(Standing(guide, own, figures, seconds, changes, len(mine), failures, notes[guide]))
    return sorted(found, key=lambda s: s.rank.value if s.ranks else math.inf)


def ranks_of(run: Run) -> dict[str, float]:
    """By W1, from 1; equal ones share the mean of their ranks."""
    values = {row.method: row.ref_w1 for row in run.rows if row.status == "ok" and row.ref_w1 is not None}
    return pd.Series(values, dtype=float).rank().to_dict()


def leaderboard_frame(found: Sequence[Standing], refusals: Sequence[Refusal]) -> pd.DataFrame:
    """The columns of ``leaderboard.csv``: a row a guide, those that are refused everywhere last."""
    lines = [_line(standing) for standing in found]
    seen = {standing.guide for standing in found}
    for refusal in refusals:
        if refusal.guide not in seen:
            seen.add(refusal.guide)
            lines.append({"guide": refusal.guide, "status": f"refused: {refusal.reason}"})
    table = pd.DataFrame(lines, columns=list(COLUMNS))
    texts = ("guide", "status", "note")
    counts = ("datasets", "runs", "failed", "unsettled")
    table = table.astype({name: "float64" for name in COLUMNS if name not in (*texts, *counts)})
    return table.astype({name: "Int64" for name in counts})


def _line(standing: Standing) -> dict[str, object]:
    line: dict[str, object] = {
        "guide": standing.guide,
        "status": "ok" if standing.asked > len(standing.failures) else standing.failures[0],
        "datasets": len({dataset for dataset, *_ in standing.ranks}),
        "runs": standing.asked,
        "failed": len(standing.failures),
        "cpu_seconds": standing.cost,
        "bound_change": standing.largest_change,
        "unsettled": standing.unsettled if standing.changes else None,
        "note": standing.note,
    }
    if standing.ranks:
        line |= {"rank": standing.rank.value, "rank_se": standing.rank.se}
    for name in FIGURES:
        mean = standing.mean(name)
        if mean is not None:
            line |= {name: mean.value, f"{name}_se": mean.se}
    return line
