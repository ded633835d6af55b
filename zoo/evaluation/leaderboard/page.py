"""The leaderboard as a page of Markdown."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from guides.core.settling import CLEAR, RISE
from zoo.evaluation.estimates import Estimate
from zoo.evaluation.leaderboard.standings import MARK, Refusal, Standing, leaderboard_frame
from zoo.evaluation.leaderboard.words import moving_runs, plural, when, words
from zoo.evaluation.repeats import CHANCE, Run, average
from zoo.evaluation.scoreboard import format_figure
from zoo.files.tables import markdown_table


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
        f"{plural(len(runs), 'run')} on {', '.join(datasets)}; {work}.",
        "## Which guide when",
        "\n".join(f"- **{title}**: {answer}" for title, answer in when(found, runs)),
        "## Table",
        markdown_table(cells, sides),
        _LEGEND,
        *_without_test_rows(runs),
        *_by_dataset(found, runs, datasets),
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


def _without_test_rows(runs: Sequence[Run]) -> list[str]:
    """Data sets that the column of predictions is not over."""
    names = dict.fromkeys(run.dataset for run in runs)
    having = {run.dataset for run in runs for row in run.rows if row.ref_log_likelihood is not None}
    without = [name for name in names if name not in having]
    if not (having and without):
        return []
    return [f"**vs truth** is over {', '.join(name for name in names if name in having)}: there is none of "
            f"{', '.join(without)}, which is fitted whole or has no posterior to trust."]  # fmt: skip


def _by_dataset(found: Sequence[Standing], runs: Sequence[Run], datasets: Sequence[str]) -> list[str]:
    """The W1 of every guide on each of several data sets, with the errors that it has there."""
    if len(datasets) < 2:
        return []
    cells = pd.DataFrame({"guide": [standing.name for standing in found]})
    for dataset in datasets:
        rows = {row.method: row for row in average([run for run in runs if run.dataset == dataset])}
        mine = (rows.get(standing.guide) for standing in found)
        figures = (row.estimate("ref_w1") if row and row.status == "ok" else None for row in mine)
        cells[dataset] = ["" if figure is None else format_figure(figure) for figure in figures]
    return [
        "## W1 on each data set",
        markdown_table(cells, "l" + "r" * len(datasets)),
        "± standard error over splits, else over seeds; of a single run that of its draws.",
    ]


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
    "(without one: minus the loss) in the last tenth of the learning, nats, and in how many runs it moved by "
    f"more than {RISE:g} beyond {CLEAR:g} standard errors; empty where a guide keeps no such figure. "
    f"**{MARK}**: the guide fits another model or aims at another law than the model's posterior, or has no "
    "bound; see its note. "
    f"Differences are paired within a run; a real one is beyond Student's t at {CHANCE:.0%}, no allowance "
    "being made for looking at many pairs. It is one of these fits on these data sets, by the errors of test "
    "rows and draws, and of seeds where there are several; the ± of the table is over data sets. The folder "
    "of the command also holds `leaderboard.csv` with all digits, `runs.csv` with every run and "
    "`differences.csv` with every pair of guides on every data set."
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
    return f"no ({change}; {moving_runs(standing)})" if standing.unsettled else f"yes ({change})"


def _refused(refusals: Sequence[Refusal]) -> list[str]:
    """A line for every guide and reason."""
    where: dict[tuple[str, str], list[str]] = {}
    for refusal in refusals:
        where.setdefault((refusal.guide, refusal.reason), []).append(refusal.dataset)
    return [f"- {guide} ({', '.join(datasets)}): {reason}" for (guide, reason), datasets in where.items()]
