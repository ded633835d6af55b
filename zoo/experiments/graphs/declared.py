"""Ott (2022), dissertation, chapter 5: growing graphs, and the process that grades their model.

Tables 5.1, 5.3 and 5.4 and Figures 5.2 to 5.4; Table 5.2 holds the scales of the kernels
(:data:`zoo.evaluation.graphs.SCALES`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.experiments.engine.declaration import Deferred, Effort, Experiment, Place, Source
from zoo.experiments.engine.published import Row, explanations, published_numbers, read_table, source_of

if TYPE_CHECKING:
    from zoo.experiments.engine.declaration import Record

PAPER = "graphs"
SYNTHETIC = ("ba", "cycles", "dnnd", "ladders")
REAL = ("dblp", "facebook", "highschool", "infectious", "mit", "tumblr")
PROPERTIES = {
    "graphs": "number of graphs; of the synthetic sets training and validation",
    "avg_nodes": "mean number of nodes",
    "avg_edges": "mean number of edges; of doubled contacts lines of the file",
    "avg_repeated_edges": "mean number of edges less that of pairs of nodes that are joined",
}
HOLLYWOOD_OPTIONS = {"graphs": 500, "lowest": 50, "highest": 500, "epochs": 15, "lr": 5e-3}
HOLLYWOOD_LOOK = {"graphs": 100, "lowest": 10, "highest": 40, "epochs": 15, "lr": 5e-3}


def _kind(dataset: str) -> bool:
    return dataset in REAL


def _as_printed(row: Row) -> Place:
    """The print's counts are of doubled contacts."""
    return row.dataset, "doubled" if _kind(row.dataset) else "once", "default", row.metric


def draw_senders(out: Path, records: Sequence[Record]) -> None:
    """``figure-5.2.png``"""
    from zoo.experiments.graphs.plots import plot_senders

    plot_senders(out / "figure-5.2.png", records)


def draw_growth(out: Path, records: Sequence[Record]) -> None:
    """``figure-5.3.png``"""
    from zoo.experiments.graphs.plots import plot_growth

    plot_growth(out / "figure-5.3.png", records)


def _figure(number: str) -> Source:
    return replace(source_of(PAPER, "table-5.3")[0], table=f"Figure {number}")


EXPERIMENTS = (
    Experiment(
        name="graphs/table-5.1",
        summary="Properties of the sets of graphs, every contact doubled as in the files and in the print, "
        "and once.",
        source=source_of(PAPER, "table-5.1")[0],
        run=Deferred("graphs.sets", "describe_set"),
        metrics=PROPERTIES,
        datasets=(*SYNTHETIC, *REAL),
        methods=("doubled", "once"),
        quick=Effort(trials=1, cost="10 seconds", options={"graphs": 200}),
        full=Effort(trials=1, cost="20 seconds", options={"graphs": 1000}),
        published=published_numbers(read_table(PAPER, "table-5.1"), _as_printed),
        published_error=source_of(PAPER, "table-5.1")[1],
        explained=explanations(PAPER, "table-5.1"),
        exists=lambda dataset, method, setting: _kind(dataset) or method == "once",
    ),
    Experiment(
        name="graphs/figure-5.2",
        summary="The edge model on graphs of the Hollywood process, alpha = 1, sigma = 0.7, whose exact "
        "likelihood and sender probabilities it is graded against; drawn in figure-5.2.png.",
        source=_figure("5.2"),
        run=Deferred("graphs.hollywood", "grade_senders"),
        metrics={
            "gap": "minus log-likelihood of test graphs less that of the process, nats an edge; 0 is best",
            "exact": "minus log-likelihood of the process on the test graphs, nats an edge",
            "senders": "total variation distance to the exact law of the next sender, mean over all edges of "
            "test graphs; lower is better",
            "gradient": "largest norm of a gradient in training, before clipping",
        },
        datasets=("hollywood",),
        methods=("ours_no_time", "ours_time"),
        quick=Effort(trials=1, cost="2 minutes", options=HOLLYWOOD_LOOK),
        full=Effort(trials=1, cost="2 hours", options=HOLLYWOOD_OPTIONS),
        finish=draw_senders,
    ),
    Experiment(
        name="graphs/figure-5.3",
        summary="Nodes against edges: exact mean, graphs of the Hollywood process and of the edge model "
        "trained on them; drawn in figure-5.3.png.",
        source=_figure("5.3"),
        run=Deferred("graphs.hollywood", "grade_growth"),
        metrics={
            "nodes": "mean number of nodes of the longest graphs over the exact mean; 1 is right",
            "worst": "largest distance of mean nodes to the exact mean along the growth, over the latter",
        },
        datasets=("hollywood",),
        methods=("process", "ours_no_time"),
        quick=Effort(trials=1, cost="2 minutes", options=HOLLYWOOD_LOOK),
        full=Effort(trials=1, cost="1 hour", options=HOLLYWOOD_OPTIONS),
        finish=draw_growth,
    ),
)
