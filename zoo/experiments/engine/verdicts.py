"""What a page makes of its numbers: marks behind them, verdicts under its tables, notes at its end."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zoo.experiments.engine.declaration import Combination, Experiment, Explanation, Place, matches
from zoo.experiments.engine.lines import FAR, Line

#: Comes first where ours is the work of another budget.
OTHER_WORK = (
    "- **other work**, all: less or more than that of the full budget, which the reasons below are of"
)
#: Numbers that a verdict names, the farthest of all.
MOST_NAMED = 12
#: Behind a number of one run, where others have several.
ONE_RUN = "†"
#: Behind a number of a fit whose objective still moved at its end.
MOVING = "‡"
#: Behind a number of a fit that, or one like it, was seen to go on in a longer run or by other steps.
UNARRIVED = "§"


@dataclass(frozen=True)
class Marks:
    """What stands behind numbers.

    :ivar one_run: behind those of one run; nothing where all are
    :ivar moving: combinations whose fits still moved at their end
    :ivar unarrived: the places of which fits like these were seen to go on
    :ivar changes: metrics that say so themselves, whose numbers need no mark
    """

    one_run: str
    moving: frozenset[Combination]
    unarrived: frozenset[Place]
    changes: frozenset[str]

    @classmethod
    def of(cls, experiment: Experiment, lines: Sequence[Line]) -> Marks:
        one_run = ONE_RUN if len({line.ours.n > 1 for line in lines if line.ours}) == 2 else ""
        moving = frozenset(line.combination for line in lines if _moved(experiment, line))
        unarrived = frozenset(line.place for line in lines if _goes_on(experiment, line))
        return cls(one_run, moving, unarrived, frozenset(experiment.settled))

    def behind(self, line: Line) -> str:
        one_run = self.one_run if line.ours and line.ours.n == 1 else ""
        return one_run + self.of_budget(line)

    def of_budget(self, line: Line) -> str:
        """Behind a number that a longer fit would not have."""
        if not line.ours or line.metric in self.changes:
            return ""
        if line.combination in self.moving:
            return MOVING
        return UNARRIVED if line.place in self.unarrived else ""

    def legend(self, lines: Sequence[Line]) -> str:
        seen = {self.of_budget(line) for line in lines}
        words = []
        if MOVING in seen:
            words.append(f"{MOVING} the fit had not settled (**Not settled**): a figure of this budget.")
        if UNARRIVED in seen:
            words.append(
                f"{UNARRIVED} this or a like fit was seen to go on, in a longer run or by other steps "
                "(**Notes**): a figure of this budget."
            )
        return " ".join(words)


def verdict(lines: Sequence[Line], marks: Marks) -> str:
    """How many numbers of a table are far from the print, and for how many of them we know why."""
    measured = [line for line in lines if line.z is not None]
    ranged = [line for line in lines if line.ranged]
    bare = [line for line in lines if line.compared and line.z is None and not line.ranged]
    words = []
    if measured:
        words.append(_count(f"|z| > {FAR:g}", measured, [line for line in measured if line.far], marks))
        chance = sum(line.by_chance for line in measured)
        words.append(f"Independent runs of one law would be so in {chance:.2g} on average.")
    if any(line.borrowed for line in measured):
        words.append("The z of one run takes the spread of the printed runs for its standard deviation.")
    redrawn = {line.published.redrawn.draws for line in measured if line.published.redrawn}
    if redrawn:
        words.append(
            "The printed runs share their data and ours drew others: z also counts the spread over "
            f"{min(redrawn)} draws of the data, of numbers without a model."
        )
    if ranged:
        outside = [line for line in ranged if line.outside]
        what = "Our median is outside the printed range (min / median / max)"
        words.append(_count(what, ranged, outside, marks))
    if bare:
        words.append(_without_z(bare))
    return " ".join(words)


def _without_z(lines: Sequence[Line]) -> str:
    """How near the print numbers are that have no z."""
    same = sum(line.has_printed_digits for line in lines)
    near = sum(line.has_printed_digits or line.is_near for line in lines)
    return (
        f"No z for {len(lines)}: a standard error, of ours or of the print, is missing or rounded to zero; "
        f"printed digits in {same}, within a tenth of the print in {near}."
    )


def settled(experiment: Experiment, lines: Sequence[Line]) -> Iterator[str]:
    """Which fits still moved at their end, by the metrics of a table that tell."""
    for metric, limit in experiment.settled.items():
        measured = [line for line in lines if line.metric == metric and line.ours]
        moving = [line for line in measured if _moved(experiment, line)]
        what = f"`{metric}` is beyond {limit:g}"
        if moving:
            names = ", ".join(f"{_words(line)} ({line.ours.mean:.4g})" for line in moving)
            yield f"**Not settled**, {what}, in {len(moving)} of {len(measured)}: {names}."
        elif measured:
            yield f"{what} in none of {len(measured)}: these runs have ended; longer ones may end elsewhere."


def _moved(experiment: Experiment, line: Line) -> bool:
    """Whether this is the change of a fit that still moved at its end."""
    return bool(line.ours) and abs(line.ours.mean) > experiment.settled.get(line.metric, math.inf)


def _goes_on(experiment: Experiment, line: Line) -> bool:
    """Whether fits like that of this number were seen to go on."""
    return bool(experiment.further(*line.place))


def _count(what: str, compared: Sequence[Line], far: Sequence[Line], marks: Marks) -> str:
    """``what in 3 of 32: 2 explained (another task 2), unexplained: naval pbp 50 (z 2.9).``"""
    words = f"{what} in {len(far)} of {len(compared)}"
    kinds = Counter(line.explanation.kind for line in far if line.explained)
    parts = []
    if kinds:
        listed = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
        parts.append(f"{kinds.total()} explained below ({listed})")
    unexplained = [line for line in far if not line.explained]
    if unexplained:
        unexplained.sort(key=lambda line: -abs(line.z or 0))
        named, more = unexplained[:MOST_NAMED], len(unexplained) - MOST_NAMED
        several = len({line.metric for line in compared}) > 1
        names = ", ".join(_name(line, several, marks) for line in named)
        rest = f", and {more} nearer ones" if more > 0 else ""
        parts.append(f"{len(unexplained)} unexplained: {names}{rest}")
    return f"{words}: {'; '.join(parts)}." if parts else f"{words}."


def _name(line: Line, metric: bool, marks: Marks) -> str:
    what = f"{_words(line)} {line.metric}" if metric else _words(line)
    return what + marks.of_budget(line) + ("" if line.z is None else f" (z {line.z:.1f})")


def _words(line: Line) -> str:
    return " ".join(name for name in line.combination if name != "default")


def explanations(experiment: Experiment, lines: Sequence[Line]) -> str:
    """Why numbers differ from the print, each reason once; and which it does not bring near."""
    used = [found for found in experiment.explained if any(line.explanation is found for line in lines)]
    if not used:
        return ""
    scopes: dict[tuple[str, str], list[str]] = {}
    for found in used:
        why = found.why + _not_enough(found, [line for line in lines if line.explanation is found])
        scopes.setdefault((found.kind, why), []).append(_scope(found.place))
    work = [] if all(line.comparable for line in lines) else [OTHER_WORK]
    return "\n".join(
        ["## Why ours and the print differ\n", *work]
        + [f"- **{kind}**, {'; '.join(places)}: {why}" for (kind, why), places in scopes.items()]
    )


def _not_enough(found: Explanation, lines: Sequence[Line]) -> str:
    """What stays far from a print that an explanation has corrected, and counts as unexplained."""
    far = [line for line in lines if line.corrected_z is not None and abs(line.corrected_z) > FAR]
    if found.factor == 1.0 or not far:
        return ""
    names = ", ".join(f"{_words(line)} {line.metric} (z {line.corrected_z:.1f})" for line in far)
    return f"; the print times {found.factor:g} leaves far, and unexplained: {names}"


def notes(experiment: Experiment, lines: Sequence[Line]) -> str:
    """What applies to numbers of the page, each note once; those of longer fits have their mark."""
    scopes: dict[str, list[str]] = {}
    for text in dict.fromkeys(experiment.unarrived.values()):
        if any(_goes_on(experiment, line) and text in experiment.further(*line.place) for line in lines):
            scopes[f"{UNARRIVED} {text}"] = ["all"]
    for place, text in experiment.notes.items():
        if any(matches(place, line.place) for line in lines):
            scopes.setdefault(text, []).append(_scope(place))
    used = [
        f"- {text}" if places == ["all"] else f"- {'; '.join(places)}: {text}"
        for text, places in scopes.items()
    ]
    return "\n".join(["## Notes\n", *used]) if used else ""


def _scope(pattern: Combination | Place) -> str:
    return " ".join(name for name in pattern if name != "*") or "all"
