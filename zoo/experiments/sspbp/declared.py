"""Ott and Williamson (2022): spike-and-slab probabilistic backpropagation, chapter 3 of the dissertation.

Every table is here, and its numbers beside it (``published/``).  A fit gives RMSE and log likelihood at once,
and its seed depends on the fit, not on the table: A.3 has the fits of 3.3, A.6 those of 3.4, A.2 those of A.1
and A.5 those of A.4, and each shows both figures beside both prints.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.experiments.engine.declaration import Cell, Deferred, Effort, Experiment, Place, Published
from zoo.experiments.engine.published import (
    PrintedRow,
    explanations,
    published_numbers,
    read_table,
    source_of,
    with_usual_error,
)

if TYPE_CHECKING:
    from zoo.experiments.engine.declaration import Record

PAPER, UNKNOWN = "sspbp", "not available"
#: Means of X and W, both of variance one.
PAIRS = {"X0-W0": (0, 0), "X1-W3": (1, 3), "X1-W-3": (1, -3), "X3-W3": (3, 3), "X3-W-3": (3, -3)}
DATASETS = ("boston", "concrete", "energy", "kin8nm", "naval", "power_plant", "wine_red", "yacht")
METHODS = ("pbp", "sspbp")
#: :data:`zoo.experiments.sspbp.replay.ZERO_COLUMN`
ZERO_COLUMN = "pbp-zero-column"
EPOCHS = 40
#: Of the print; what a page says of their standard errors.
RUNS, USUAL = 5, "; z and CSV have the usual one, which divides by one less"
#: The network of which Table A.3 is damaged, and what a page says of it.
LOST = "10x10"
CUT_OFF = "no print beside it: the row is cut off in both copies of Table A.3 at hand"
SHARED = (
    "splits, starts and orders are the print's, so that ours and the print vary together and z is small: a "
    "description, no test"
)
FIGURES = {
    "rmse": "root mean squared error on the test rows, unit of the target; lower is better",
    "log_likelihood": "mean log predictive density of the test rows, nats, target in its own unit; "
    "higher is better",
}
#: The published evaluation of networks without biases, kept for comparison only.
PUBLISHED_FIGURES = {
    "rmse_published": "as rmse, but of the slab's mean: the published evaluation leaves out the spike",
    "log_likelihood_published": "as log_likelihood, but with the spike at 0 in the unit of the target, as "
    "published, instead of at the mean of the training targets",
}


# max(X W, 0): Figure 3.1 and Table 3.1


def compare_product(cell: Cell) -> Mapping[str, float]:
    """Squared MMD between ``max(X W, 0)`` and a message; ``same`` is a second sample of the law itself."""
    import numpy as np

    from zoo.experiments.sspbp import relu_product

    pair, draws = relu_product.Pair(*PAIRS[cell.dataset]), cell.options["draws"]
    law = relu_product.draw_law(pair, draws, np.random.default_rng(cell.split_seed))
    rng = np.random.default_rng(cell.seed)
    if cell.method == "same":
        other, population = relu_product.draw_law(pair, draws, rng), 0.0
    else:
        message = relu_product.message(pair, cell.method)
        other = relu_product.draw_mixture(message, draws, rng)
        population = relu_product.population_mmd2(pair, message)
    return {"mmd2": relu_product.biased_mmd2(law, other), "mmd2_population": population}


def describe_product(cell: Cell) -> Mapping[str, float]:
    """Slab probability and the slab's moments of ``max(X W, 0)`` or of a message; leaves its density."""
    import numpy as np

    from zoo.experiments.sspbp import relu_product

    pair = relu_product.Pair(*PAIRS[cell.dataset])
    law = relu_product.law_moments(pair)
    end = law.mean + 3 * law.variance**0.5
    if cell.method == "exact":
        t, mixture = np.linspace(0, end, cell.options["points"] + 1)[1:], law
        density = relu_product.density_of_law(pair, t)
    else:
        mixture = relu_product.message(pair, cell.method)
        # a Gaussian message reaches below zero, where T cannot be
        t = np.linspace(min(0.0, mixture.mean - 3 * mixture.variance**0.5), end, cell.options["points"])
        density = relu_product.density_of_mixture(mixture, t)
    np.save(cell.folder / "density.npy", np.stack([t, density]))
    return {"zeros": 1 - mixture.slab, **mixture._asdict()}


def draw_product(out: Path, records: Sequence[Record]) -> None:
    """``figure-3.1.png``: one panel a pair."""
    from zoo.experiments.sspbp.plots import plot_densities

    plot_densities(out / "figure-3.1.png", records, PAIRS)


# networks: Tables 3.2 to 3.4, A.1 to A.6


#: Of one network each: hidden units, a layer after the other.
_MAIN, _OTHER = ("50", "10x10"), ("10", "100")
#: The tables that print RMSE and log likelihood of the same fits: biases, networks, and their names.
_FITS = (
    (True, _MAIN, {"rmse": "table-3.3", "log_likelihood": "table-a3"}),
    (False, _MAIN, {"rmse": "table-3.4", "log_likelihood": "table-a6"}),
    (True, _OTHER, {"rmse": "table-a1", "log_likelihood": "table-a2"}),
    (False, _OTHER, {"rmse": "table-a4", "log_likelihood": "table-a5"}),
)


def _network_table(figure: str, bias: bool, settings: Sequence[str], tables: Mapping[str, str]) -> Experiment:
    """RMSE and log likelihood of PBP and SSPBP on the eight sets; ``figure`` is the table's own.

    Without biases the print is of the published evaluation and stands beside ours of that kind.
    """
    figures, suffix = (FIGURES, "") if bias else (PUBLISHED_FIGURES | FIGURES, "_published")
    own_first = sorted(figures, key=lambda name: not name.startswith(figure))
    source, errors = source_of(PAPER, tables[figure])
    (other,) = tables.keys() - {figure}

    def place(row: PrintedRow) -> Place:
        return row.dataset, row.method, row.setting, row.metric + suffix

    words = {"rmse": "RMSE", "log_likelihood": "log likelihood"}
    return Experiment(
        name=f"sspbp/{tables[figure]}",
        summary=f"Test {words[figure]} of PBP and SSPBP {'with' if bias else 'without'} biases, hidden units "
        f"{' and '.join(settings)}, random 80/20 splits; the {words[other]} of the same fits beside "
        f"{source_of(PAPER, tables[other])[0].table}.",
        source=source,
        run=Deferred("sspbp.networks", "with_bias" if bias else "without_bias"),
        metrics={name: figures[name] for name in own_first},
        datasets=DATASETS,
        methods=METHODS,
        settings=settings,
        quick=Effort(trials=1, cost="1 minute on 2 cores", options={"epochs": 2}),
        full=Effort(trials=20, cost="10 minutes on 2 cores", options={"epochs": EPOCHS}),
        published=_with_usual_error(
            {
                where: number
                for table in tables.values()
                for where, number in published_numbers(read_table(PAPER, table), place).items()
            }
        ),
        published_error=errors + USUAL,
        explained=explanations(PAPER, tables[figure]),
        notes={("yacht", "*", LOST, "log_likelihood"): CUT_OFF} if bias and LOST in settings else {},
    )


#: Networks of all eight tables, with biases and without.
_NETWORKS = tuple(f"{kind}-{units}" for kind in ("bias", "free") for units in (*_MAIN, *_OTHER))


def _with_usual_error(numbers: Mapping[Place, Published]) -> dict[Place, Published]:
    return {place: with_usual_error(number, RUNS) for place, number in numbers.items()}


def _replayed_print() -> dict[Place, Published]:
    """All eight tables, energy left out: its task is another one here."""

    def place(row: PrintedRow, kind: str) -> Place | None:
        if row.dataset == "energy":
            return None
        return row.dataset, row.method, f"{kind}-{row.setting}", row.metric

    found = {
        where: number
        for bias, _, tables in _FITS
        for table in tables.values()
        for where, number in published_numbers(
            read_table(PAPER, table), functools.partial(place, kind="bias" if bias else "free")
        ).items()
    }
    beside = {
        (dataset, ZERO_COLUMN, *place): number
        for (dataset, method, *place), number in found.items()
        if (dataset, method) == ("naval", "pbp")
    }
    return _with_usual_error(found | beside)


#: What of the print a fit has: its splits alone, its starting means and orders of rows alone, nothing.
_PARTS = ("splits", "starts", "neither")


APART = ("boston", "concrete", "naval", "wine_red", "yacht")


def _in_reach(dataset: str, setting: str) -> bool:
    """Sets whose fits take seconds, and of naval the networks of two layers."""
    return dataset in APART and (dataset != "naval" or setting.endswith("10x10"))


def _print_of_parts() -> dict[Place, Published]:
    """That of PBP, beside each of the parts."""
    return {
        (dataset, part, setting, metric): number
        for (dataset, method, setting, metric), number in _replayed_print().items()
        for part in _PARTS
        if method == "pbp" and _in_reach(dataset, setting)
    }


def _of_slabs(row: PrintedRow) -> Place:
    """Table 3.2 numbers the linear layers, but calls the last one by what it gives."""
    layers = row.setting.count("x") + 2
    layer = layers if row.metric.endswith("output") else row.metric.rpartition("_")[2]
    return row.dataset, row.method, row.setting, f"slab_layer_{layer}"


def _of_products(row: PrintedRow) -> Place | None:
    """Table 3.1 without the shares of zeros."""
    return (row.dataset, row.method, "default", "mmd2") if row.metric == "mmd" else None


def _of_zeros(row: PrintedRow) -> Place | None:
    """The shares of zeros in Table 3.1, counted in draws from the law itself."""
    return (row.dataset, "exact", "default", "zeros") if row.metric == "percent_zero" else None


EXPERIMENTS = (
    Experiment(
        name="sspbp/figure-3.1",
        summary="Densities of max(X W, 0) and of both messages, drawn in figure-3.1.png; "
        "the pairs are those of Table 3.1, which of them the published figure shows is not known.",
        source=replace(source_of(PAPER, "table-3.1")[0], table="Figure 3.1", page=UNKNOWN),
        run=describe_product,
        metrics={
            "zeros": "probability of being exactly 0; printed in Table 3.1, of draws",
            "slab": "probability of not being exactly 0",
            "mean": "mean of the slab; for pbp, of the whole",
            "variance": "variance of the slab; for pbp, of the whole",
        },
        datasets=tuple(PAIRS),
        methods=("exact", "pbp", "sspbp"),
        quick=Effort(trials=1, cost="10 seconds", options={"points": 200}),
        full=Effort(trials=1, cost="10 seconds", options={"points": 1000}),
        published=published_numbers(read_table(PAPER, "table-3.1"), _of_zeros, {"percent_zero": "0.01"}),
        published_error=source_of(PAPER, "table-3.1")[1],
        finish=draw_product,
    ),
    Experiment(
        name="sspbp/table-3.1",
        summary="Squared MMD between max(X W, 0) and each message; in row Xa-Wb X ~ N(a, 1), W ~ N(b, 1); "
        "what is published as MMD is its square.",
        source=source_of(PAPER, "table-3.1")[0],
        run=compare_product,
        metrics={
            "mmd2": "biased estimate of the squared MMD, kernel exp(-(s - t)^2), from draws; lower is better",
            "mmd2_population": "squared MMD of the laws, by quadrature; lower is better",
        },
        datasets=tuple(PAIRS),
        methods=("pbp", "sspbp", "same"),
        quick=Effort(trials=1, cost="20 seconds", options={"draws": 1000}),
        full=Effort(trials=5, cost="1 minute on 2 cores", options={"draws": 10_000}),
        published=published_numbers(read_table(PAPER, "table-3.1"), _of_products),
        published_error=source_of(PAPER, "table-3.1")[1],
        explained=explanations(PAPER, "table-3.1"),
        notes={
            ("*", "same", "*", "mmd2"): "no distance at all: the bias and noise of the estimate",
            (
                "X3-W3",
                "*",
                "*",
                "*",
            ): "the spike gets more mass than P(X W <= 0) has, because X W is not normal",
        },
    ),
    Experiment(
        name="sspbp/table-3.2",
        summary="Mean slab probability of each linear layer over the test rows of boston, without biases; "
        "all runs count.",
        source=source_of(PAPER, "table-3.2")[0],
        run=Deferred("sspbp.networks", "mean_slabs"),
        metrics={
            f"slab_layer_{layer}": f"mean over test rows of the slab probability of linear layer {layer}"
            + (", 1 by construction" if layer == 1 else "")
            for layer in range(1, 5)
        },
        datasets=("boston",),
        methods=("sspbp",),
        settings=("5", "50", "5x5", "50x50", "5x5x5", "50x50x50"),
        quick=Effort(trials=2, cost="30 seconds on 2 cores", options={"epochs": 4}),
        full=Effort(trials=30, cost="1 minute on 2 cores", options={"epochs": EPOCHS}),
        published=published_numbers(read_table(PAPER, "table-3.2"), _of_slabs),
        published_error=source_of(PAPER, "table-3.2")[1],
        explained=explanations(PAPER, "table-3.2"),
        questions={"By linear layer": tuple(f"slab_layer_{layer}" for layer in range(1, 5))},
    ),
    *sorted((_network_table(figure, *fits) for fits in _FITS for figure in FIGURES), key=lambda e: e.name),
    Experiment(
        name="sspbp/replay",
        summary="The printed repetitions themselves: splits, starting means and orders of rows drawn from "
        "the published program's seed, and its standardisation; bias-50 is the column 50 of Table 3.3, "
        f"free-50 that of Table 3.4.  {ZERO_COLUMN} leaves naval's constant columns at zero, where the "
        "program has a column of ones.",
        source=replace(source_of(PAPER, "table-3.3")[0], table="Tables 3.3, 3.4, A.1 to A.6", page=UNKNOWN),
        run=Deferred("sspbp.replay", "replayed"),
        metrics=FIGURES,
        datasets=tuple(name for name in DATASETS if name != "energy"),
        methods=(*METHODS, ZERO_COLUMN),
        settings=_NETWORKS,
        exists=lambda dataset, method, _setting: method != ZERO_COLUMN or dataset == "naval",
        quick=Effort(trials=1, cost="3 minutes", options={"epochs": 2}),
        full=Effort(trials=5, cost="30 minutes on 2 cores", options={"epochs": EPOCHS}),
        published=_replayed_print(),
        published_error=source_of(PAPER, "table-3.3")[1] + USUAL,
        explained=explanations(PAPER, "replay"),
        notes={
            ("*", "pbp", "*", "*"): SHARED,
            ("*", "sspbp", "*", "*"): SHARED,
            ("yacht", "*", f"bias-{LOST}", "log_likelihood"): CUT_OFF,
        },
    ),
    Experiment(
        name="sspbp/apart",
        summary="What makes ours differ from the print: PBP on the printed splits from other starts, on "
        "other splits from the printed starts and orders, and with neither; with both it is the replay.",
        source=replace(source_of(PAPER, "table-3.3")[0], table="Tables 3.3, 3.4, A.1 to A.6", page=UNKNOWN),
        run=Deferred("sspbp.replay", "taken_apart"),
        metrics=FIGURES,
        datasets=APART,
        methods=_PARTS,
        settings=_NETWORKS,
        exists=lambda dataset, _method, setting: _in_reach(dataset, setting),
        quick=Effort(trials=1, cost="1 minute", options={"epochs": 2}),
        full=Effort(trials=20, cost="10 minutes on 2 cores", options={"epochs": EPOCHS}),
        notes={
            ("yacht", "*", f"bias-{LOST}", "log_likelihood"): CUT_OFF,
            (
                "*",
                "splits",
                "*",
                "*",
            ): "five splits, four other starts on each: its error takes the twenty fits "
            "for independent ones, and ours and the print share their splits, so that its z is no test",
        },
        published=_print_of_parts(),
        published_error=source_of(PAPER, "table-3.3")[1] + USUAL,
        explained=explanations(PAPER, "apart"),
    ),
    Experiment(
        name="sspbp/reference-program",
        summary="PBP with biases, one layer of 50, beside what the published C program reaches, on random "
        "80/20 splits and on the usual 90/10 splits 0 to 4.",
        source=source_of(PAPER, "reference-program")[0],
        run=Deferred("sspbp.networks", "reference_figures"),
        metrics=FIGURES,
        datasets=("boston", "concrete", "energy", "wine_red", "yacht"),
        methods=("pbp",),
        settings=("80-20", "90-10"),
        quick=Effort(trials=1, cost="30 seconds", options={"epochs": 4}),
        full=Effort(trials=5, cost="1 minute on 2 cores", options={"epochs": EPOCHS}),
        published=_with_usual_error(
            published_numbers(read_table(PAPER, "reference-program"), lambda row: row.place)
        ),
        published_error=source_of(PAPER, "reference-program")[1] + USUAL,
        beside="C program",
        explained=explanations(PAPER, "reference-program"),
        exists=lambda dataset, method, setting: (dataset, setting) != ("energy", "80-20"),
    ),
)
