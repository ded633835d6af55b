"""What is in print of latent binary networks (``published/``), and beside which number of ours it stands."""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import replace

from zoo.experiments.engine.declaration import Place, Published
from zoo.experiments.engine.published import PrintedRow, published_numbers, read_table
from zoo.experiments.lbbnn.metrics import CORRELATED, CORRELATED_SETTING, INCLUDING, METHODS

FOLDER = "lbbnn"
#: Printed prediction mode and figure -> ours.
PRINTED = {
    ("posterior_mean", "accuracy"): "accuracy_mean",
    ("ensemble_10", "accuracy"): "accuracy",
    ("ensemble", "accuracy"): "accuracy",
    ("", "density"): "density_mean",
}
PRINTED_METHODS = {"concrete_dropout": "concrete-dropout", "horseshoe": "group-normal-jeffreys"}
#: Factors from the printed units to shares.
SHARES = {"accuracy": "0.01", "decisions": "0.0001"}


def _network_figure(row: PrintedRow, setting: str, methods: Collection[str]) -> Place | None:
    """Of a table of networks: accuracies by prediction mode, and the density of those with inclusions."""
    method = PRINTED_METHODS.get(row.method, row.method)
    figure = PRINTED.get((row.setting.partition(" ")[2], row.metric))
    no_indicators = method not in (*INCLUDING, CORRELATED)
    if figure is None or method not in methods or (figure == "density_mean" and no_indicators):
        return None
    return row.dataset, method, setting, figure


def dense(thesis: str, slides: str) -> dict[Place, Published]:
    """The thesis's numbers, and for the methods that it does not have those of the slides."""
    found = {}
    for table, setting, methods in (
        (thesis, "default", INCLUDING),
        (slides, "default", set(METHODS) - set(INCLUDING)),
        (slides, CORRELATED_SETTING, (CORRELATED,)),
    ):
        if table:
            rows = read_table(FOLDER, table)
            place = functools.partial(_network_figure, setting=setting, methods=methods)
            found |= published_numbers(rows, place, SHARES)
    return found


def thesis_recipe() -> dict[Place, Published]:
    """The thesis's numbers beside its own recipe, and beside the right one."""
    rows = [row for number in (1, 2, 3) for row in read_table(FOLDER, f"thesis-table-{number}")]
    place = functools.partial(_network_figure, setting="thesis", methods=INCLUDING)
    found = published_numbers(rows, place, SHARES)
    for (dataset, method, setting, figure), number in list(found.items()):
        if method == "lrt":
            passes = "accuracy_lrt" if figure == "accuracy" else figure
            found[dataset, "lrt-thesis", setting, passes] = number
    return found


def convolutional() -> dict[Place, Published]:
    """The slides say neither what the prior is nor whether their mean field is relaxed or trained by local
    reparametrisation.
    """

    def place(row: PrintedRow) -> Place | None:
        printed = replace(row, method="lrt" if row.method == "concrete" else row.method)
        return _network_figure(printed, setting="default", methods=("lrt", "mnf"))

    rows = [row for name in ("mnist", "fmnist") for row in read_table(FOLDER, f"slides-cnn-{name}")]
    return published_numbers(rows, place, SHARES)


def decisions() -> dict[Place, Published]:
    """Of the slides: how many images are decided, and how many of them rightly."""

    def place(row: PrintedRow) -> Place | None:
        method = PRINTED_METHODS.get(row.method, row.method)
        figure = {"decisions": "decided", "accuracy": "accuracy_decided"}[row.metric]
        return (row.dataset, method, "default", figure) if method in METHODS else None

    return published_numbers(read_table(FOLDER, "slides-decisions"), place, SHARES)


def selections() -> dict[Place, Published]:
    """Rates of single columns are the share of runs that select them, whichever rate the print calls it."""

    def place(row: PrintedRow) -> Place:
        kind, _, column = row.setting.partition("_")
        figure = row.metric if kind == "all" else f"selected_{column}"
        return "mjmcmc_sim_logistic", row.method, "default", figure

    return published_numbers(read_table(FOLDER, "thesis-section-5.2"), place)


def seconds() -> dict[Place, Published]:
    """Of an epoch."""

    def place(row: PrintedRow) -> Place | None:
        return ("mnist", row.method, "default", "seconds") if row.metric == "seconds_per_epoch" else None

    return published_numbers(read_table(FOLDER, "thesis-section-5.3"), place)


def independent_program() -> dict[Place, Published]:
    """Of a program that somebody else has written, with the printed variance and the right one."""
    rows = read_table(FOLDER, "independent-program")
    return published_numbers(rows, lambda row: row.place)
