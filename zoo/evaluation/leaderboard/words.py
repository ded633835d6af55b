"""What the standings say, in sentences computed from the runs: an order, and which guide to use when."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence

from zoo.budgets import REFERENCES
from zoo.evaluation.estimates import Estimate
from zoo.evaluation.leaderboard.standings import MARK, PAIRED_BY, Standing, ranks_of
from zoo.evaluation.repeats import Run, average, over_these, paired
from zoo.evaluation.scoreboard import LEGEND, format_figure
from zoo.evaluation.verdict import LARGEST_MEAN_ERROR, LARGEST_SD_RATIO, SMALLEST_SD_RATIO


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

    def larger_elsewhere(self, first: str, second: str, figure: str) -> bool:
        """Whether it can be expected to be larger on other data sets: by how these differ among themselves.

        With a single data set there is no telling, and nothing to say.
        """
        if len(self.runs) == 1:
            return True
        gap = paired(list(itertools.chain(*self.runs.values())), second, first, figure)
        return gap is not None and gap.over == "dataset" and gap.real and gap.value > 0


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
        f"Mean rank by distance to the truth, {plural(count, 'data set')} (behind a semicolon what is "
        "really farther, on these, than the first before it; behind a comma what is not): "
        f"{text}."
    )


def _fields(runs: Sequence[Run]) -> list[str]:
    """How many guides have a rank on each data set, where they are not equally many: a guide that is missing
    from the small fields has its ranks among more.
    """
    sizes: dict[int, list[str]] = {}
    for dataset in dict.fromkeys(run.dataset for run in runs):
        size = max(len(ranks_of(run)) for run in runs if run.dataset == dataset)
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
    moving = [
        f"{standing.name} {standing.largest_change:.2g} ({moving_runs(standing)})"
        for standing in found
        if standing.unsettled
    ]
    if not moving:
        return []
    return [
        "Not settled, so that more steps may change the order: in the last tenth of the learning the bound "
        f"(without one: minus the loss) still moved, by nats at most, of {', '.join(moving)}; where it has a "
        "minus it fell."
    ]


def moving_runs(standing: Standing) -> str:
    return f"{standing.unsettled} of {plural(len(standing.changes), 'run')}"


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
        text += f"; failed fits do not count: {counts} of {plural(len(runs), 'run')}"
    return [f"{text}."]


def plural(count: int, word: str) -> str:
    return f"{count} {word}{'s' * (count != 1)}"


def when(found: Sequence[Standing], runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Which guide when: a question and its answer each, from the figures alone.

    Only of guides that have the figure in every run in which any guide has it, for means of other runs are no
    answer; those that are left out are named.
    """
    places = {place for standing in found for place in standing.ranks}
    complete = [standing for standing in found if standing.ranks and set(standing.ranks) == places]
    if not complete:
        reason = "no guide is ranked in every run" if places else "no run ranks any guide"
        return [("no answer", f"{reason}; the table has what there is")]
    gaps = Gaps(runs)
    answers = [("nearest to the posterior", _leaders(complete, gaps, "ref_w1", least=True))]
    own = [standing for standing in complete if not standing.note]
    if own:
        title = f"nearest, of those without {MARK}"
        answers.append((title, _leaders(own, gaps, "ref_w1", least=True)))
    predicting = _in_all(found, "ref_log_likelihood")
    where = {dataset for standing in predicting for dataset, *_ in standing.figures["ref_log_likelihood"]}
    unasked = [name for name in gaps.runs if name not in where]
    title = (
        f"best predictions (of {', '.join(sorted(where))} alone)" if where and unasked else "best predictions"
    )
    answers.append((title, _leaders(predicting, gaps, "ref_log_likelihood", least=False)))
    safe = [standing.name for standing in complete if standing.trusted]
    limits = (
        f"mean off by at most {LARGEST_MEAN_ERROR:g} sd and sd ratio from {SMALLEST_SD_RATIO:g} to "
        f"{LARGEST_SD_RATIO:g} in every run"
    )
    answers.append((f"an uncertainty to rely on ({limits})", ", ".join(safe) or "none of them"))
    answers.append(("little time: none of these guides is both cheaper and nearer", _frontier(complete)))
    partly = [standing for standing in found if standing.ranks and standing not in complete]
    if partly:
        title = f"left out of these answers, for they are not ranked in all {len(places)} runs"
        counted = {s.guide: f"{s.name} ({len(s.ranks)} of {len(places)}" for s in partly}
        apart = {standing.guide for standing in predicting}
        names = (
            f"{text}{'; compared by predictions' * (guide in apart)})" for guide, text in counted.items()
        )
        answers.append((title, ", ".join(names)))
    mute = [s.name for s in complete if predicting and s not in predicting]
    if mute:
        answers.append(("left out of predictions, of which they have none in some run", ", ".join(mute)))
    return answers


def _in_all(found: Sequence[Standing], figure: str) -> list[Standing]:
    """The guides that have a figure in every run in which any guide has it."""
    places = {place for standing in found for place in standing.figures[figure]}
    return [standing for standing in found if places and set(standing.figures[figure]) == places]


def _leaders(found: Sequence[Standing], gaps: Gaps, figure: str, *, least: bool) -> str:
    """The best in a figure; those that are not told apart from it; and those that are on these data sets, but
    by no more than data sets differ.
    """
    sign = 1 if least else -1
    having = [standing for standing in found if standing.figures[figure]]
    if not having:
        return "no figure"
    best, *others = sorted(having, key=lambda standing: sign * standing.mean(figure).value)
    pairing = PAIRED_BY.get(figure, figure)
    same, here = [], []
    for other in others:
        pair = (best.guide, other.guide) if least else (other.guide, best.guide)
        if not gaps.larger(*pair, pairing):
            same.append(other.name)
        elif not gaps.larger_elsewhere(*pair, pairing):
            here.append(other.name)
    parts = [f"{best.name} ({_figure(best, figure)})"]
    parts += [f"not told apart from it: {', '.join(same)}"] if same else []
    parts += (
        [f"behind it on these data sets, which may be chance on others: {', '.join(here)}"] if here else []
    )
    return "; ".join(parts)


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
