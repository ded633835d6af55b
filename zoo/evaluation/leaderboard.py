"""Guides over several data sets: ranks by distance to the truth, beside prediction, uncertainty and cost; and
what that says about which guide to use when.  Everything is computed from the runs, the sentences too.

In every run (data set, split, seed) the guides are ranked by their W1 to the trusted posterior; a run without
one ranks nothing, a guide that fails or is refused is not ranked there.  Means and errors are those of
:mod:`zoo.evaluation.repeats`: over data sets where there are several.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from zoo.evaluation.estimates import Estimate
from zoo.evaluation.plots import REFERENCES
from zoo.evaluation.repeats import (
    CHANCE,
    Mean,
    Place,
    Run,
    average,
    mean_over,
    methods_of,
    over_these,
    paired,
)
from zoo.evaluation.scoreboard import LEGEND, format_figure
from zoo.evaluation.verdict import (
    CLEAR,
    LARGEST_MEAN_ERROR,
    LARGEST_SD_RATIO,
    RISE,
    SMALLEST_SD_RATIO,
    still_rising,
)
from zoo.files.tables import markdown_table

#: Figures of the scoreboard that mean the same on every data set.
FIGURES = ("ref_w1", "ref_mean_error", "ref_sd_ratio", "ref_log_likelihood")
#: Between two guides the truth's own likelihood cancels.
PAIRED_BY = {"ref_log_likelihood": "log_likelihood"}
#: Columns of ``leaderboard.csv``; figures, ranks and seconds are means, ``_se`` their standard errors;
#: ``bound_change`` is the largest of a run, ``unsettled`` counts the runs in which it was still rising.
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
    :ivar changes: of the bound (without one: minus the loss) in the last tenth of the steps, nats, of the
        guides that take steps and have one
    :ivar asked: runs for which it was asked, failed ones too
    :ivar note: what a reader of its figures must know
    """

    guide: str
    ranks: Mapping[Place, float]
    figures: Mapping[str, Mapping[Place, float]]
    seconds: Mapping[Place, float]
    changes: Mapping[Place, Estimate]
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
        return max((change.value for change in self.changes.values()), default=math.nan)

    @property
    def unsettled(self) -> int:
        """Runs in which the bound was still rising, as the verdict of a scoreboard has it."""
        return sum(still_rising(change) for change in self.changes.values())

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
    ranks = {run.place: _ranks(run) for run in runs}
    found = []
    for guide in methods_of(runs):
        if guide not in notes:
            continue
        mine = {run.place: row for run in runs for row in run.rows if row.method == guide}
        sound = {place: row for place, row in mine.items() if row.status == "ok"}
        figures = {
            name: {place: v for place, row in sound.items() if (v := getattr(row, name)) is not None}
            for name in FIGURES
        }
        own = {place: ranked[guide] for place, ranked in ranks.items() if guide in ranked}
        seconds = {run.place: run.cpu_seconds[guide] for run in runs if guide in run.cpu_seconds}
        changes = {place: v for place, row in sound.items() if (v := row.estimate("bound_change"))}
        failures = [row.status for row in mine.values() if row.status != "ok"]
        found.append(Standing(guide, own, figures, seconds, changes, len(mine), failures, notes[guide]))
    return sorted(found, key=lambda s: s.rank.value if s.ranks else math.inf)


def _ranks(run: Run) -> dict[str, float]:
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


# ---------------------------------------------------------------------------------------------- in sentences


class Gaps:
    """Differences between guides on the data sets of the runs, paired within them."""

    def __init__(self, runs: Sequence[Run]):
        names = dict.fromkeys(run.dataset for run in runs)
        self.runs = {name: [run for run in runs if run.dataset == name] for name in names}

    def larger(self, first: str, second: str, figure: str) -> bool:
        """Whether the second guide's figure is really larger, on the data sets that both have in the mean."""
        parts = [paired(runs, second, first, figure) for runs in self.runs.values()]
        gap = over_these([part for part in parts if part is not None])
        return gap is not None and gap.real and gap.value > 0


def words(found: Sequence[Standing], runs: Sequence[Run]) -> list[str]:
    """The verdict over all data sets, the guides whose fits have not settled, one sentence for each data set,
    and the references that cannot be trusted.
    """
    ranked = [standing for standing in found if standing.ranks]
    sentences = [_order(ranked, Gaps(runs))] if ranked else []
    sentences += _fields(runs)
    sentences += _unsettled(found)
    for dataset in dict.fromkeys(run.dataset for run in runs):
        sentences += _nearest(dataset, [run for run in runs if run.dataset == dataset])
    for run in runs:
        for row in run.rows:
            if row.method in REFERENCES and row.status != "ok":
                where = f"{run.dataset}, split {run.split}, seed {run.seed}"
                sentences.append(f"{where}: {row.method} {row.status}; no guide is ranked there.")
    return sentences


def _order(ranked: Sequence[Standing], gaps: Gaps) -> str:
    """By mean rank, parted where a guide is really farther than the first of its part."""
    parts: list[list[Standing]] = []
    for standing in ranked:
        if parts and not gaps.larger(parts[-1][0].guide, standing.guide, "ref_w1"):
            parts[-1].append(standing)
        else:
            parts.append([standing])
    count = len({dataset for standing in ranked for dataset, *_ in standing.ranks})
    places = len({place for standing in ranked for place in standing.ranks})
    text = "; then ".join(", ".join(_ranked(standing, places) for standing in part) for part in parts)
    return (
        f"Mean rank by distance to the truth, {_plural(count, 'data set')} (behind a semicolon what is "
        "really farther, on these, than the first before it; behind a comma what is not): "
        f"{text}."
    )


def _fields(runs: Sequence[Run]) -> list[str]:
    """How many guides have a rank on each data set, where they are not equally many: a guide that is missing
    from the small fields has its ranks among more.
    """
    sizes: dict[int, list[str]] = {}
    for dataset in dict.fromkeys(run.dataset for run in runs):
        size = max(len(_ranks(run)) for run in runs if run.dataset == dataset)
        if size:
            sizes.setdefault(size, []).append(dataset)
    if len(sizes) < 2:
        return []
    fields = [f"{size} on {', '.join(names)}" for size, names in sorted(sizes.items(), reverse=True)]
    return [f"Guides that are ranked: {'; '.join(fields)}. A rank among few is a smaller number."]


def _ranked(standing: Standing, places: int) -> str:
    """With the share of the runs that its mean is of: what it missed may have been the hard ones."""
    missed = f" (in {len(standing.ranks)} of {places} runs)" if len(standing.ranks) < places else ""
    return f"{standing.name} {format_figure(Estimate(standing.rank.value, standing.rank.se))}{missed}"


def _unsettled(found: Sequence[Standing]) -> list[str]:
    """Which fits more steps would change."""
    rising = [
        f"{standing.name} {standing.largest_change:.2g} ({_rising_runs(standing)})"
        for standing in found
        if standing.unsettled
    ]
    if not rising:
        return []
    return [
        "Not settled, so that more steps may change the order: in the last tenth of the steps the bound "
        f"(without one: minus the loss) still rose, in nats at most, of {', '.join(rising)}."
    ]


def _rising_runs(standing: Standing) -> str:
    return f"{standing.unsettled} of {_plural(len(standing.changes), 'run')}"


def _nearest(dataset: str, runs: Sequence[Run]) -> list[str]:
    """The first group of a data set's own ranking, by differences that are paired; and which guides have
    failed in how many of its runs, for their means are of the others.
    """
    rows = [row for row in average(runs) if row.status == "ok" and row.ref_w1 is not None]
    if not rows:
        return []
    leader, *others = sorted(rows, key=lambda row: row.ref_w1)
    gaps = Gaps(runs)
    same = [row.method for row in others if not gaps.larger(leader.method, row.method, "ref_w1")]
    text = f"{dataset}: nearest is {leader.method} (W1 {format_figure(leader.estimate('ref_w1'))})"
    text += f", not told apart from it {', '.join(same)}" if same else ""
    lost = Counter(
        row.method for run in runs for row in run.rows if row.status != "ok" and row.method not in REFERENCES
    )
    if lost:
        counts = ", ".join(f"{guide} in {count}" for guide, count in lost.items())
        text += f"; failed fits do not count: {counts} of {_plural(len(runs), 'run')}"
    return [f"{text}."]


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"


def when(found: Sequence[Standing], runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Which guide when: a question and its answer each, from the figures alone; only of guides that are
    ranked in every run in which any guide is.
    """
    places = {place for standing in found for place in standing.ranks}
    complete = [standing for standing in found if standing.ranks and set(standing.ranks) == places]
    if not complete:
        return []
    gaps = Gaps(runs)
    answers = [("nearest to the posterior", _leaders(complete, gaps, "ref_w1", least=True))]
    own = [standing for standing in complete if not standing.note]
    if own:
        title = f"nearest, of those without {MARK}"
        answers.append((title, _leaders(own, gaps, "ref_w1", least=True)))
    answers.append(("best predictions", _leaders(complete, gaps, "ref_log_likelihood", least=False)))
    safe = [standing.name for standing in complete if standing.trusted]
    limits = (
        f"mean off by at most {LARGEST_MEAN_ERROR:g} sd and sd ratio from {SMALLEST_SD_RATIO:g} to "
        f"{LARGEST_SD_RATIO:g} in every run"
    )
    answers.append((f"an uncertainty to rely on ({limits})", ", ".join(safe) or "none of them"))
    answers.append(("little time: nothing else is both cheaper and nearer", _frontier(complete)))
    return answers


def _leaders(found: Sequence[Standing], gaps: Gaps, figure: str, *, least: bool) -> str:
    """The best in a figure, and those that are not told apart from it."""
    sign = 1 if least else -1
    having = [standing for standing in found if standing.figures[figure]]
    if not having:
        return "no figure"
    best, *others = sorted(having, key=lambda standing: sign * standing.mean(figure).value)
    pairing = PAIRED_BY.get(figure, figure)
    same = []
    for other in others:
        pair = (best.guide, other.guide) if least else (other.guide, best.guide)
        if not gaps.larger(*pair, pairing):
            same.append(other.name)
    text = f"{best.name} ({_figure(best, figure)})"
    return f"{text}; not told apart from it: {', '.join(same)}" if same else text


def _figure(standing: Standing, figure: str) -> str:
    mean = standing.mean(figure)
    return f"{LEGEND[figure].heading} {format_figure(Estimate(mean.value, mean.se))}"


def _frontier(found: Iterable[Standing]) -> str:
    """From the cheapest on, whatever is nearer than all that is cheaper."""
    text, least = [], math.inf
    for standing in sorted((s for s in found if not math.isnan(s.cost)), key=lambda s: s.cost):
        distance = standing.mean("ref_w1").value
        if distance < least:
            least = distance
            text.append(f"{standing.name} ({standing.cost:.2g} CPU s, W1 {distance:.2g})")
    return ", ".join(text)


# ----------------------------------------------------------------------------------------------- for people


def page(
    found: Sequence[Standing],
    runs: Sequence[Run],
    refusals: Sequence[Refusal],
    command: str,
    work: str,
) -> str:
    """``leaderboard.md``.

    :param command: that made it
    :param work: what a fit and a reference were, in words
    """
    table = leaderboard_frame(found, [])
    names = {standing.guide: standing.name for standing in found}
    cells = pd.DataFrame({"guide": [names[guide] for guide in table["guide"]]})
    for heading, name in HEADINGS.items():
        cells[heading] = [_cell(value, table.get(f"{name}_se"), i) for i, value in enumerate(table[name])]
    cells["settled"] = [_settled(standing) for standing in found]
    sides = "l" + "r" * (len(cells.columns) - 1)
    datasets = list(dict.fromkeys(run.dataset for run in runs))
    parts = [
        "# Leaderboard",
        f"`{command}`",
        f"{_plural(len(runs), 'run')} on {', '.join(datasets)}; {work}.",
        "## Which guide when",
        "\n".join(f"- **{title}**: {answer}" for title, answer in when(found, runs)),
        "## Table",
        markdown_table(cells, sides),
        _LEGEND,
        "## Verdict",
        *words(found, runs),
    ]
    marked = [f"- {standing.guide}: {standing.note}" for standing in found if standing.note]
    if marked:
        parts += [f"## {MARK} What a figure of these means", "\n".join(marked)]
    lost = [
        f"- {standing.guide}: {len(standing.failures)} of {standing.asked}, {standing.failures[0]}"
        for standing in found
        if standing.failures
    ]
    if lost:
        parts += ["## Failed fits", "\n".join(lost)]
    if refusals:
        parts += ["## Not fitted", "\n".join(_refused(refusals))]
    return "\n\n".join(parts) + "\n"


HEADINGS = {
    "rank": "rank",
    "W1": "ref_w1",
    "mean error": "ref_mean_error",
    "sd ratio": "ref_sd_ratio",
    "vs truth": "ref_log_likelihood",
    "CPU s": "cpu_seconds",
    "data sets": "datasets",
    "failed": "failed",
}
_LEGEND = (
    "Means ± standard error, over data sets where there are several (else over splits, else over seeds). "
    "**rank**: among the guides of a run, by W1. **W1**, **mean error**, **sd ratio**: of the function, in "
    "sds of the trusted posterior; 0, 0 and 1 are right. **vs truth**: log likelihood of a test point minus "
    "that of the trusted posterior, nats. **CPU s**: of one fit. **settled**: largest change of the bound "
    "(without one: minus the loss) in the last tenth of the steps, nats, and in how many runs it rose by "
    f"more than {RISE:g} beyond {CLEAR:g} standard errors; empty where a guide keeps no such figure. "
    f"**{MARK}**: the guide fits another model or aims at another law than the model's posterior, or has no "
    "bound; see its note. "
    f"Differences are paired within a run; a real one is beyond Student's t at {CHANCE:.0%}, no allowance "
    "being made for looking at many pairs. `leaderboard.csv` holds all digits, `runs.csv` every run, "
    "`differences.csv` every pair of guides on every data set."
)


def _cell(value: object, errors: pd.Series | None, i: int) -> str:
    if pd.isna(value):
        return ""
    se = None if errors is None or pd.isna(errors[i]) else float(errors[i])
    return str(value) if isinstance(value, int) else format_figure(Estimate(float(value), se))


def _settled(standing: Standing) -> str:
    """``yes (0.2)``, or ``no (9.8; 4 of 4 runs)``"""
    if not standing.changes:
        return ""
    change = f"{standing.largest_change:.2g}"
    return f"no ({change}; {_rising_runs(standing)})" if standing.unsettled else f"yes ({change})"


def _refused(refusals: Sequence[Refusal]) -> list[str]:
    """A line for every guide and reason."""
    where: dict[tuple[str, str], list[str]] = {}
    for refusal in refusals:
        where.setdefault((refusal.guide, refusal.reason), []).append(refusal.dataset)
    return [f"- {guide} ({', '.join(datasets)}): {reason}" for (guide, reason), datasets in where.items()]
