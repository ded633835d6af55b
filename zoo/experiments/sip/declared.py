"""Rodriguez Santana, Zaldivar and Hernandez-Lobato (2022): sparse implicit processes and their rivals.

The printed numbers are in ``published/``; of the pictures the paper prints no numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.experiments.engine.declaration import Deferred, Effort, Experiment, Place, Published
from zoo.experiments.engine.published import (
    PrintedRow,
    explanations,
    published_numbers,
    read_table,
    source_of,
)

if TYPE_CHECKING:
    from zoo.experiments.engine.declaration import Published, Record

PAPER, DEFAULT = "sip", "default"
DATASETS = ("boston", "concrete", "energy", "kin8nm", "naval", "power_plant", "wine_red", "yacht")
#: Name in print -> ours, in the order of the printed table.
METHODS = {
    "bbb": "mean-field",
    "avb": "avb",
    "aadm": "aadm",
    "fbnn_bnn": "fbnn-bnn",
    "vip": "vip",
    "sip_ns": "sip-ns",
    "sip_bnn": "sip-bnn",
}
FIGURES = {
    "rmse": "root mean squared error on the test rows, unit of the target; lower is better",
    "log_likelihood": "mean log predictive density of the test rows, nats, target in its own unit; "
    "higher is better",
    "crps": "mean continuous ranked probability score, exact, unit of the target; lower is better",
}
CHANGE = {
    "bound_change": "how much the bound that was climbed (or minus the loss) rose in the last tenth of the "
    "training, counted in learning rates, nats a row; near 0 the run has ended; of fBNN that of the expected "
    "log likelihood alone, as its divergence has a gradient and no value",
}
#: Of the print.
SPLITS = 20
#: A fit that has ended moves by less, nats a row either way; chosen, not derived.
ENDED = {"bound_change": 0.02}
SECONDS = {"cpu_seconds": "CPU time of the fit; lower is better"}
ORACLES = ("true-law", "best-gaussian")
TOY_METHODS = (
    *("sip-bnn", "sip-ns", "vip", "fbnn-bnn", "fbnn-gp", "avb", "aadm", "mean-field"),
    *("nuts", "nuts-sip-prior", *ORACLES),
)


def _of_the_table(row: PrintedRow) -> Place | None:
    """Rows of averages are no place of the grid."""
    if row.dataset not in DATASETS:
        return None
    return row.dataset, METHODS[row.method], DEFAULT, row.metric


def _printed() -> dict[Place, Published]:
    """What stands behind the printed +- is the spread over the splits, by all that can be checked."""
    found: dict[Place, Published] = {}
    for table in ("table-a1", "table-a2", "table-a3"):
        found |= published_numbers(read_table(PAPER, table), _of_the_table)
    return {
        place: replace(number, se=number.se and number.se / SPLITS**0.5, runs=SPLITS)
        for place, number in found.items()
    }


def _printed_ranks() -> dict[str, dict[str, Published]]:
    """Metric -> method -> its average rank."""

    def place(row: PrintedRow) -> Place:
        return row.dataset, METHODS[row.method], DEFAULT, row.metric.removeprefix("avg_rank_")

    found: dict[str, dict[str, Published]] = {metric: {} for metric in FIGURES}
    for (_, method, _, metric), number in published_numbers(read_table(PAPER, "table-1"), place).items():
        found[metric][method] = number
    return found


def rank(out: Path, records: Sequence[Record]) -> None:
    """``ranks.md`` and ``ranks.png``: the published table 1."""
    from zoo.experiments.sip.ranks import write_ranks

    write_ranks(out, records, tuple(METHODS.values()), _printed_ranks(), ENDED["bound_change"])


def _in_pictures(which: str) -> tuple:
    return replace(source_of(PAPER, "table-1")[0], table=which)


EXPERIMENTS = (
    Experiment(
        name="sip/toy",
        revision=5,  # the rivals' slope
        summary="Functions of one column: predictive draws and learned priors of all methods, NUTS under the "
        "model's prior and under the one that SIP learned, and what the law itself would score.",
        source=_in_pictures("Figure 1, supplement figures 2, 4 and 5"),
        run=Deferred("sip.cells", "one_dimensional"),
        metrics={
            **FIGURES,
            **CHANGE,
            "max_rhat": "largest split R-hat of the function; only NUTS has one, below 1.01 is trusted",
            **SECONDS,
        },
        settled={**ENDED, "max_rhat": 1.01},
        questions={
            "Test figures": tuple(FIGURES),
            "How far to trust them": ("bound_change", "max_rhat", *SECONDS),
        },
        datasets=("bimodal", "heteroscedastic", "piecewise", "snelson"),
        methods=TOY_METHODS,
        quick=Effort(
            trials=1, cost="45 minutes on 2 cores", options={"steps": 2000, "warmup": 300, "draws": 300}
        ),
        full=Effort(
            trials=1, cost="2 hours on 2 cores", options={"steps": 6000, "warmup": 500, "draws": 500}
        ),
        exists=lambda dataset, method, setting: (dataset, method) not in {("snelson", o) for o in ORACLES},
        notes={
            ("bimodal", "*", "*", "log_likelihood"): "no predictive that is Gaussian at every x passes "
            "best-gaussian, and NUTS under a Gaussian noise stays near -3.10: what is above uses both "
            "branches, and does not approximate that posterior",
            ("heteroscedastic", "*", "*", "log_likelihood"): "one noise for all x reaches about -1.74",
            ("*", "nuts-sip-prior", "*", "*"): "as published, but of standardised weights and with "
            "an adapted step; one run, which may not have mixed: see max_rhat",
        },
        finish=Deferred("sip.plots", "plot_functions"),
    ),
    Experiment(
        name="sip/inducing",
        revision=4,
        summary="Where inducing inputs go: 15 that start at one place while the posterior stays nearly "
        "a point (frozen), 50 that start at random rows (free).",
        source=_in_pictures("Figure 2, supplement figure 6"),
        run=Deferred("sip.cells", "inducing"),
        metrics={
            **FIGURES,
            "spread_at_first": "sd of the inducing inputs at the start, unit of x",
            "spread_at_last": "and at the end",
            "moved": "mean distance that they moved, unit of x",
            "retained_variance": "share of the prior's variance at training rows that they leave open",
            **CHANGE,
        },
        settled=ENDED,
        questions={
            "Test figures": tuple(FIGURES),
            "Inducing inputs": ("spread_at_first", "spread_at_last", "moved", "retained_variance"),
            "Whether the fits have settled": ("bound_change",),
        },
        datasets=("snelson", "piecewise"),
        methods=("sip-bnn",),
        settings=("frozen", "free"),
        quick=Effort(
            trials=1, cost="5 minutes on 2 cores", options={"steps": 2000, "every": 20, "alpha": 1.0}
        ),
        full=Effort(
            trials=3, cost="45 minutes on 2 cores", options={"steps": 6000, "every": 50, "alpha": 1.0}
        ),
        exists=lambda dataset, method, setting: (dataset, setting) != ("piecewise", "frozen"),
        finish=Deferred("sip.plots", "plot_inducing"),
    ),
    Experiment(
        name="sip/uci",
        revision=6,  # the rivals' slope
        summary="Eight data sets, seven methods, random 80/20 splits; average ranks in ranks.md (the "
        "published table 1).  mean-field is the published BBB (VI); SIP with 50 inducing inputs, "
        "batches of 100 (fBNN: 20), and what else the scoreboard takes.",
        source=_in_pictures("Table 1; supplement, Tables 1 to 3"),
        run=Deferred("sip.cells", "table"),
        metrics={**FIGURES, **CHANGE, **SECONDS},
        settled=ENDED,
        questions={
            "RMSE": ("rmse",),
            "Log likelihood": ("log_likelihood",),
            "CRPS": ("crps",),
            "Whether the fits have settled": ("bound_change", *SECONDS),
        },
        datasets=DATASETS,
        methods=tuple(METHODS.values()),
        quick=Effort(trials=1, cost="45 minutes on 2 cores", options={"steps": 2000}),
        full=Effort(
            trials=1,
            cost="3 CPU hours for one of the 20 published splits (--trials 20)",
            options={"steps": 10_000},
        ),
        published=_printed(),
        published_error=source_of(PAPER, "table-a1")[1] + "; z and CSV have that over the root of 20",
        explained=explanations(PAPER, "uci"),
        finish=rank,
    ),
    Experiment(
        name="sip/large",
        revision=6,  # the rivals' slope
        summary="Test figures against training time where data are many: batches of 100 (fBNN: 20), so that "
        "memory and the time of a step do not grow with the rows.",
        source=_in_pictures("Figure 3"),
        run=Deferred("sip.cells", "large"),
        metrics={**FIGURES, **CHANGE, **SECONDS},
        settled=ENDED,
        questions={"At the end": tuple(FIGURES), "Cost": ("bound_change", *SECONDS)},
        datasets=("power_plant", "protein", "kin40k", "airlines"),
        methods=("sip-bnn", "sip-ns", "vip", "fbnn-bnn", "fbnn-gp", "aadm"),
        quick=Effort(trials=1, cost="30 minutes on 2 cores", options={"steps": 2000, "looks": 6}),
        full=Effort(trials=1, cost="1.5 CPU hours", options={"steps": 10_000, "looks": 12}),
        finish=Deferred("sip.plots", "plot_large"),
    ),
    Experiment(
        name="sip/gradients",
        summary="Gradients of the data term and of the KL term with respect to the prior's parameters and "
        "to the inducing inputs, at the end of a fit; the latter also by finite differences.",
        source=_in_pictures("supplement figure 1"),
        run=Deferred("sip.cells", "gradients"),
        metrics={
            "data": "root mean square of the data term's gradient, nats a unit",
            "divergence": "the same of the KL term's, along the draws of the prior",
            "largest_divergence": "largest size of the latter; the paper's claim: below 1 for theta",
            "ratio": "data over divergence; the paper's claim: above 10",
            "by_differences": "largest distance of the KL term's gradient from central differences",
        },
        datasets=("bimodal",),
        methods=("theta", "inducing"),
        quick=Effort(trials=1, cost="5 minutes", options={"steps": 2000, "differences": 10}),
        full=Effort(trials=3, cost="20 minutes on 2 cores", options={"steps": 4000, "differences": 30}),
        finish=Deferred("sip.plots", "plot_gradients"),
    ),
)
