"""What an experiment is: data, and one pure function that computes a cell.  Imports nothing that is slow."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from zoo.seeds import stable_seed

#: What a data set, a method or a setting may be called: it is typed between commas and names a folder.
NAME = re.compile(r"[^\s,/\\.*:\"'<>|?][^\s,/\\*:\"'<>|?]*")
#: The axes that have names; the fourth is the trial.
AXES = ("dataset", "method", "setting")

#: data set, method, setting
Combination = tuple[str, str, str]
#: data set, method, setting, metric
Place = tuple[str, str, str, str]


@dataclass(frozen=True)
class Source:
    """Where the numbers were published.

    :param paper: authors, year, title in short
    :param table: which table or figure
    :param page: of the paper
    """

    paper: str
    table: str
    page: str = "not available"

    def __str__(self) -> str:
        page = "" if self.page == "not available" else f", page {self.page}"
        return f"{self.paper}, {self.table}{page}"


#: Of an experiment of our own.
UNPUBLISHED = Source("this package", "not published")


@dataclass(frozen=True)
class Effort:
    """How much work a budget is.

    :param trials: repetitions of every combination unless ``--trials`` says otherwise
    :param cost: how long that takes, for people: ``"7 minutes on 2 cores"``
    :param options: what else the budget decides, JSON-safe: ``{"epochs": 40}``; a cell finds it in
        ``cell.options``
    """

    trials: int
    cost: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One point of the grid; all that a cell function may depend on.

    :param base_seed: ``--seed`` of the call
    :param options: of the budget
    :param folder: of this cell alone, where it may leave files (arrays of a curve, a model) for ``finish``
    """

    experiment: str
    dataset: str
    method: str
    setting: str
    trial: int
    base_seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def combination(self) -> Combination:
        return self.dataset, self.method, self.setting

    @property
    def name(self) -> str:
        """For messages: data set, method, setting, trial."""
        return f"{self.dataset} {self.method} {self.setting} trial {self.trial}"

    @property
    def seed(self) -> int:
        """Of this cell and no other; below 2^32."""
        return stable_seed("cell", self.base_seed, self.experiment, *self.combination, self.trial)

    @property
    def split_seed(self) -> int:
        """Of the data: one for all methods, settings and experiments of a data set and trial; below 2^32."""
        return stable_seed("split", self.base_seed, self.dataset, self.trial)


@dataclass(frozen=True)
class Record:
    """What became of a cell.

    :ivar status: "ok", or "failed: why"
    :ivar metrics: empty for a failed cell
    :ivar seconds: wall-clock time of the cell function
    :ivar folder: with the files that the cell left
    :ivar traceback: of a failed cell
    """

    cell: Cell
    status: str
    metrics: Mapping[str, float]
    seconds: float
    folder: Path
    traceback: str = field(default="", repr=False)

    @property
    def ok(self) -> bool:
        return self.status == "ok"


@dataclass(frozen=True)
class Redrawn:
    """How far a number spreads where the data alone are drawn anew.

    :param sd: its sample standard deviation
    :param draws: of data, which it was taken over
    """

    sd: float
    draws: int


@dataclass(frozen=True)
class Published:
    """A number in print, in the unit of the metric that it stands beside.

    :param value: mean or single number; the median where the print has a range
    :param se: standard error; None where none is printed, or one that is rounded to zero
    :param lines: of the files that it was copied from, ``table-3.3:7``
    :param runs: how many it is the mean of, where ``se`` tells how far single runs spread
    :param lowest: over the runs, where the print has a range; so is ``highest``
    :param printed: as printed, all digits kept; made of the numbers if left out
    :param remark: what the print, or its copy, says about this number alone
    :param redrawn: where all printed runs share their data, and ours have drawn others
    """

    value: float
    se: float | None = None
    lowest: float | None = None
    highest: float | None = None
    printed: str = ""
    remark: str = ""
    runs: int | None = None
    redrawn: Redrawn | None = None
    lines: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        if self.printed:
            return self.printed
        if self.lowest is not None:
            return f"{self.lowest:g} / {self.value:g} / {self.highest:g}"
        return f"{self.value:g}" if self.se is None else f"{self.value:g} ± {self.se:g}"


@dataclass(frozen=True)
class Explanation:
    """Why some numbers differ from the print.

    :param place: that it is about; ``"*"`` for any name
    :param kind: in few words: "another task", "another protocol", "misprint"
    :param why: with the evidence
    :param factor: what the print must be multiplied by if this is so; it then explains what this brings near
    """

    place: Place
    kind: str
    why: str
    factor: float = 1.0


#: Computes a cell: metric -> finite number.
CellFunction = Callable[[Cell], Mapping[str, float]]


@dataclass(frozen=True)
class Deferred:
    """A function of a module that is imported when the function is called: to declare it costs nothing.

    :param module: of ``zoo.experiments``
    """

    module: str
    name: str

    def __call__(self, *args: Any) -> Any:
        return getattr(importlib.import_module(f"zoo.experiments.{self.module}"), self.name)(*args)


@dataclass(frozen=True)
class Experiment:
    """A table or figure as a grid of data sets, methods, settings and trials.

    ``run`` is a function of a module (it is sent to other processes by name) that depends on nothing but its
    cell; a :class:`Deferred` one where the module is slow to import.  The runner sets every global random
    number generator to ``cell.seed`` before.  What it raises becomes a failed row; ``UserError`` and
    ``DataError`` end the call.

    :param name: ``paper/table``
    :param summary: one sentence
    :param run: the cell function
    :param metrics: name -> what it is, its unit, which direction is better; a cell returns some of them
    :param datasets: names, in the order of the table; so are ``methods`` and ``settings``
    :param settings: what varies beside data set and method, widths for instance
    :param quick: for a look
    :param full: as published, or as near to it as a table that anybody can rerun allows
    :param published: ``(data set, method, setting, metric)`` -> what is in print
    :param published_error: how the published standard errors were computed
    :param beside: heads the column of the published numbers
    :param explained: why some of our numbers differ from the print
    :param notes: ``(data set, method, setting, metric)``, ``"*"`` for any -> what a reader must know
    :param exists: whether a combination is part of the grid; all are by default
    :param finish: makes pictures and the like from the finished cells, after the tables: called with the
        output folder and the records; reads results only, and may meet a partial grid
    :param questions: title -> metrics that answer it, a table each in ``table.md``; a table a metric if left
        out
    :param settled: metric that says how far an objective still moved at the end of a fit, or how well chains
        have mixed -> how far it is from zero at most, where the fit has settled
    :param unarrived: ``(data set, method, setting, metric)``, ``"*"`` for any -> how far fits were seen to
        go on, in longer runs or by other steps, though their runs had ended; such numbers are marked, at
        every budget
    :param check: raises ``UserError`` for options that no cell could be computed with
    :param revision: to be raised when the same cell gives other numbers than before
    :param together: how many trials of a combination, 0 to ``together - 1`` and so on, one process computes
        one after another: where the first of them does the work of all
    :raises ValueError: for a name that cannot be one, a published number or note outside the grid, or no
        trials together
    """

    name: str
    summary: str
    source: Source
    run: CellFunction
    metrics: Mapping[str, str]
    datasets: Sequence[str]
    methods: Sequence[str]
    quick: Effort
    full: Effort
    settings: Sequence[str] = ("default",)
    published: Mapping[Place, Published] = field(default_factory=dict)
    published_error: str = "not available"
    beside: str = "printed"
    explained: Sequence[Explanation] = ()
    notes: Mapping[Place, str] = field(default_factory=dict)
    exists: Callable[[str, str, str], bool] | None = None
    finish: Callable[[Path, Sequence[Record]], None] | None = None
    questions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    settled: Mapping[str, float] = field(default_factory=dict)
    unarrived: Mapping[Place, str] = field(default_factory=dict)
    check: Callable[[Mapping[str, Any]], None] | None = None
    revision: int = 1
    together: int = 1

    def __post_init__(self) -> None:
        if not self.metrics:
            raise ValueError(f"{self.name}: an experiment measures something")
        if self.together < 1:
            raise ValueError(f"{self.name}: {self.together} trials together are no piece of work")
        for axis in AXES:
            names = self.axis(axis)
            wrong = [name for name in names if not NAME.fullmatch(name)]
            if wrong or not names:
                raise ValueError(f"{self.name}: {wrong or 'nothing'} cannot name a {axis}")
            if len({name.lower() for name in names}) < len(names):
                raise ValueError(f"{self.name}: two of {', '.join(names)} are one {axis}")
        for place in self.published:
            self._check_place(place)
        for place in (*self.notes, *self.unarrived, *(found.place for found in self.explained)):
            self._check_place(place, "*")
        asked = [metric for metrics in self.questions.values() for metric in metrics]
        if self.questions and sorted(asked) != sorted(self.metrics):
            raise ValueError(f"{self.name}: the questions ask for every metric once")
        unknown = self.settled.keys() - self.metrics.keys()
        if unknown:
            raise ValueError(f"{self.name}: {sorted(unknown)[0]} is no metric that could have settled")

    def _check_place(self, place: Place, *also: str) -> None:
        axes = (*(self.axis(axis) for axis in AXES), tuple(self.metrics))
        for name, known in zip(place, axes, strict=True):
            if name not in (*known, *also):
                raise ValueError(f"{self.name}: {name!r} of {place} is nowhere in the grid")

    def axis(self, name: str) -> Sequence[str]:
        """The names on the axis ``dataset``, ``method`` or ``setting``."""
        return getattr(self, f"{name}s")

    @property
    def efforts(self) -> dict[str, Effort]:
        return {"quick": self.quick, "full": self.full}

    def combinations(self) -> Iterator[Combination]:
        """All that are part of the grid, in the order of the table."""
        for combination in product(self.datasets, self.methods, self.settings):
            if self.exists is None or self.exists(*combination):
                yield combination

    def note(self, *place: str) -> str:
        """All notes that apply to ``(data set, method, setting, metric)``."""
        return _texts(self.notes, place)

    def further(self, *place: str) -> str:
        """How far fits of ``(data set, method, setting, metric)`` were seen to go on."""
        return _texts(self.unarrived, place)

    def explanation(self, *place: str) -> Explanation | None:
        """The first that applies to ``(data set, method, setting, metric)``."""
        return next((found for found in self.explained if matches(found.place, place)), None)


def _texts(of: Mapping[Place, str], place: Sequence[str]) -> str:
    """Those whose pattern applies to a place, one after the other."""
    return "; ".join(text for pattern, text in of.items() if matches(pattern, place))


def matches(pattern: Sequence[str], place: Sequence[str]) -> bool:
    """Whether a note or an explanation for ``pattern``, ``"*"`` for any name, applies to ``place``."""
    return all(name in ("*", found) for name, found in zip(pattern, place, strict=True))
