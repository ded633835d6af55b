"""Ott (2022), dissertation, chapter 5: growing graphs, and the process that grades their model.

Tables 5.1, 5.3 and 5.4 and Figures 5.2 to 5.4; Table 5.2 holds the scales of the kernels
(:data:`zoo.evaluation.graphs.SCALES`).
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

from zoo.experiments.engine.declaration import (
    Deferred,
    Effort,
    Experiment,
    Place,
    Published,
    Redrawn,
    Source,
)
from zoo.experiments.engine.published import (
    Placed,
    PrintedRow,
    explanations,
    published_numbers,
    read_table,
    source_of,
    with_usual_error,
)

PAPER = "graphs"
SYNTHETIC = ("ba", "cycles", "dnnd", "ladders")
REAL = ("dblp", "facebook", "highschool", "infectious", "mit", "tumblr")
PROPERTIES = {
    "graphs": "number of graphs; of the synthetic sets training and validation",
    "avg_nodes": "mean number of nodes",
    "avg_edges": "mean number of edges; of doubled contacts lines of the file",
    "avg_repeated_edges": "mean number of edges less that of pairs of nodes that are joined",
}
HOLLYWOOD_OPTIONS = {"graphs": 500, "lowest": 50, "highest": 500, "epochs": 15, "lr": 5e-3, "batch": 16}
HOLLYWOOD_LOOK = {"graphs": 100, "lowest": 10, "highest": 40, "epochs": 15, "lr": 5e-3, "batch": 8}
SETTLED = (
    "nats an edge that validation graphs changed by over the last tenth of the epochs that were run; the "
    "learning rate ends at zero unless training stops early: far from 0 it has not settled, near 0 more "
    "epochs may still help"
)
#: Nats an edge, either way, of a training that has ended; chosen, not derived.
ENDED = {"change": 0.01}
MEAN = "messages are a mean, not times log(1 + number): it does not tell how often a node was picked"


def _is_real(dataset: str) -> bool:
    return dataset in REAL


def _as_printed(row: PrintedRow) -> Place:
    """The print's counts are of doubled contacts."""
    return row.dataset, "doubled" if _is_real(row.dataset) else "once", "default", row.metric


#: What generated graphs are compared by; of the print.
AS_PRINTED = {
    "mmd_degree": "MMD of degree histograms, kernel exp(-tv^2 / 2), root of the biased estimate, which "
    "meets the print; lower is better",
    "mmd_cluster": "MMD of local clustering, 100 bins, kernel exp(-tv^2 / 0.02); lower is better",
    "mmd_spectral": "MMD of the normalised Laplacian's spectrum, 200 bins, kernel exp(-tv^2 / 2); lower is "
    "better",
    "ks_density": "Kolmogorov-Smirnov distance of densities; lower is better",
}
COMPARED = {
    **AS_PRINTED,
    **{f"even_{name}": f"{name} of as many drawn graphs as test graphs" for name in AS_PRINTED},
    "nats": "minus log-likelihood of a test graph and its order; of deepgmg of one sequence of choices "
    "that builds the simple graph, given its number of nodes; a cycle cannot have less than 3.434 where "
    "the end is not seen",
    "unique": "share of different graphs, up to isomorphism",
    "novel": "share of graphs that are isomorphic to no training graph",
    "valid": "share of cycles, or of ladders; other sets have none",
    "gradient": "largest norm of a gradient in training, before clipping",
    "skipped": "steps that were not taken, for their gradient was not finite; after the first gradients are "
    "scaled down where they would grow",
    "epoch": "whose parameters were kept",
    "change": SETTLED,
}
QUESTIONS = {
    "As printed: many drawn graphs against the test graphs": tuple(AS_PRINTED),
    "As many drawn graphs as test graphs": tuple(f"even_{name}" for name in AS_PRINTED),
    "Likelihood": ("nats",),
    "Shares of generated graphs": ("unique", "novel", "valid"),
    "Training": ("gradient", "skipped", "epoch", "change"),
}
MODELS = ("perfect", "ours_time", "ours_no_time", "ours_end", "deepgmg")
#: How messages are passed on real sets: their mean times the log of their number, once a contact; their mean;
#: their sum; as the first along the last 50 edges; and as the first of contacts that stand twice.
PASSED = ("log", "mean", "sum", "window", "doubled")
FLOOR = (
    "graphs of the same law, no model: the floor of every score; of real sets a sample of training graphs, "
    "fewer than the models draw, so that floors of mmd are a few percent high (even_ ones are not)"
)
NOTES = {("*", "perfect", "*", "*"): FLOOR}
NOTES_OF_TABLES = NOTES | {
    ("*", "ours_end", "*", "*"): "ours without time that sees how many edges are left: not in the print",
}
LOOK = {"graphs": 60, "epochs": 3, "lr": 5e-3, "window": 50, "batch": 8, "drawn": 60}
#: Without time 40 epochs of batches of 8 reach 3.54 nats a cycle, and 60 of batches of 32 3.63.
RUN = {"graphs": 1000, "epochs": 40, "lr": 3e-3, "window": 50, "batch": 8, "drawn": 1000}


def _beside(row: PrintedRow) -> Place:
    return row.dataset, row.method, "default", row.metric


#: What a page says of the printed standard errors.
USUAL = "; z and CSV have the usual one, which divides by one less"


def _trainings(table: str, place: Placed) -> dict[Place, Published]:
    """Means over so many trainings, with the usual standard error, so that one training of ours can be held
    against it.
    """
    rows = read_table(PAPER, table)
    numbers = published_numbers(rows, place)
    runs = {found: int(row.n) for row in rows if (found := place(row)) is not None}
    return {found: with_usual_error(number, runs[found]) for found, number in numbers.items()}


def _of_other_graphs() -> dict[Place, Published]:
    """Table 5.3, whose trainings share their graphs.  ``redrawn.csv`` has the spread of scores where graphs
    alone are drawn anew: ``zoo reproduce graphs/table-5.3 --methods perfect --trials 12``.
    """
    with (Path(__file__).parent / "redrawn.csv").open(newline="", encoding="utf-8") as file:
        spread = {
            (line["dataset"], line["metric"]): Redrawn(float(line["sd"]), int(line["draws"]))
            for line in csv.DictReader(file)
        }
    found = _trainings("table-5.3", _beside)
    return {place: replace(number, redrawn=spread[place[0], place[3]]) for place, number in found.items()}


def _beside_all() -> dict[Place, Published]:
    """Table 5.4: the numbers of its edge models stand beside all settings of ours."""
    found = {}
    for setting in PASSED:

        def place(row: PrintedRow, setting: str = setting) -> Place | None:
            return (row.dataset, row.method, setting, row.metric) if _passes(row.method, setting) else None

        found |= _trainings("table-5.4", place)
    return found


def _passes(method: str, setting: str) -> bool:
    return method in ("ours_time", "ours_no_time") or setting == PASSED[0]


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
        exists=lambda dataset, method, setting: _is_real(dataset) or method == "once",
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
            "change": SETTLED,
        },
        settled=ENDED,
        datasets=("hollywood",),
        methods=("ours_no_time", "ours_time", "ours_mean"),
        quick=Effort(trials=1, cost="2 minutes", options=HOLLYWOOD_LOOK),
        full=Effort(trials=1, cost="2 hours on 2 cores", options=HOLLYWOOD_OPTIONS),
        notes={("*", "ours_mean", "*", "*"): MEAN},
        finish=Deferred("graphs.plots", "plot_senders"),
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
            "change": SETTLED,
        },
        settled=ENDED,
        datasets=("hollywood",),
        methods=("process", "ours_no_time"),
        quick=Effort(trials=1, cost="2 minutes", options=HOLLYWOOD_LOOK),
        full=Effort(trials=1, cost="1 hour", options=HOLLYWOOD_OPTIONS),
        finish=Deferred("graphs.plots", "plot_growth"),
    ),
    Experiment(
        name="graphs/figure-5.4",
        summary="Graphs of the synthetic sets, and graphs that models drew, side by side in figure-5.4.png.",
        source=_figure("5.4"),
        run=Deferred("graphs.models", "draw"),
        metrics={name: COMPARED[name] for name in ("unique", "novel", "valid")},
        datasets=SYNTHETIC,
        methods=("perfect", "deepgmg", "ours_no_time"),
        quick=Effort(trials=1, cost="3 minutes", options=LOOK),
        full=Effort(trials=1, cost="1 hour on 2 cores", options=RUN),
        notes=NOTES,
        finish=Deferred("graphs.plots", "plot_examples"),
    ),
    Experiment(
        name="graphs/table-5.3",
        summary="Synthetic sets: 1000 graphs that models drew against 100 test graphs, as in the print, and "
        "as many against as many; the row perfect is the floor of both.",
        source=source_of(PAPER, "table-5.3")[0],
        run=Deferred("graphs.models", "compare"),
        metrics=COMPARED,
        settled=ENDED,
        datasets=SYNTHETIC,
        methods=MODELS,
        quick=Effort(trials=1, cost="4 minutes", options=LOOK),
        full=Effort(trials=4, cost="5 hours on 2 cores", options=RUN),
        published=_of_other_graphs(),
        published_error=source_of(PAPER, "table-5.3")[1] + USUAL,
        explained=explanations(PAPER, "table-5.3"),
        notes=NOTES_OF_TABLES,
        questions=QUESTIONS,
    ),
    Experiment(
        name="graphs/table-5.4",
        summary="Real sets: as table 5.3, with messages as means times log of their number, as means, as "
        "sums, along a window, and of contacts that stand twice, as in the print.",
        source=source_of(PAPER, "table-5.4")[0],
        run=Deferred("graphs.models", "compare"),
        metrics=COMPARED,
        settled=ENDED,
        datasets=REAL,
        methods=MODELS,
        settings=PASSED,
        quick=Effort(trials=1, cost="20 minutes on 2 cores", options=LOOK),
        full=Effort(trials=4, cost="3 days on 2 cores", options=RUN),
        published=_beside_all(),
        published_error=source_of(PAPER, "table-5.4")[1] + USUAL,
        explained=explanations(PAPER, "table-5.4"),
        exists=lambda dataset, method, setting: _passes(method, setting),
        notes=NOTES_OF_TABLES,
        questions=QUESTIONS,
    ),
)
