"""Variable selection by latent binary models: the published simulation, and its design with mixed columns.

What is computed is in :mod:`zoo.experiments.lbbnn.selection`.
"""

from __future__ import annotations

from zoo.experiments.engine.declaration import Deferred, Effort, Experiment, Source
from zoo.experiments.engine.published import explanations, source_of
from zoo.experiments.lbbnn import printed
from zoo.experiments.lbbnn.metrics import SELECTION
from zoo.experiments.lbbnn.options import check_options
from zoo.experiments.lbbnn.printed import FOLDER

SELECTORS = ("spike-slab", "mnf", "concrete", "varbvs")
COLUMNS = range(1, 21)

EXPERIMENTS = (
    Experiment(
        check=check_options,
        name="lbbnn/simulation",
        revision=4,
        summary="Variable selection in the published logistic simulation: inclusion probabilities against "
        "the exact ones, and the share of runs that select each column.",
        source=source_of(FOLDER, "thesis-section-5.2")[0],
        run=Deferred("lbbnn.selection", "simulation"),
        metrics={
            **SELECTION,
            "elbo": "evidence lower bound, nats; the log evidence is -186.95",
            "bound_change": "how much it rose in the last tenth of the fit, counted in learning rates, nats; "
            "of `concrete` at its last temperature; of twenty trials fitted side by side, their mean",
            **{
                f"selected_{i}": f"column {i} is selected: over runs its true (or false) positive rate"
                for i in COLUMNS
            },
            **{f"inclusion_{i}": f"inclusion probability of column {i}" for i in COLUMNS},
        },
        datasets=("mjmcmc_sim_logistic",),
        methods=("exact", *SELECTORS),
        quick=Effort(trials=1, cost="1 minute", options={"steps": 2500}),
        full=Effort(trials=100, cost="40 minutes, 25 with --jobs 2", options={"steps": 10_000}),
        settled={"bound_change": 0.5},
        together=20,  # they are fitted side by side (zoo.experiments.lbbnn.selection)
        notes={
            ("*", "*", "*", "tpr"): "the exact posterior itself selects 7 of 9, not columns 1 and 3",
            ("*", "*", "*", "rmse"): "the published 'true' probabilities are of another design and model",
            ("*", "varbvs", "*", "elbo"): "of its own, looser bound on the likelihood",
            ("*", "exact", "*", "rmse"): "against those of another program, which the others are graded by",
            ("*", "exact", "*", "elbo"): "the log evidence itself, by Laplace's approximation of every model",
        },
        published=printed.selections(),
        published_error=source_of(FOLDER, "thesis-section-5.2")[1],
        explained=explanations(FOLDER, "simulation"),
        questions={
            "How near the inclusion probabilities are to the exact ones": ("rmse", "worst"),
            "Where the bound stands": ("elbo", "bound_change"),
            "What is selected": ("tpr", "fpr", "wrongly_in", "wrongly_out"),
            "How often each column is selected": tuple(f"selected_{i}" for i in COLUMNS),
            "Inclusion probability of each column": tuple(f"inclusion_{i}" for i in COLUMNS),
        },
    ),
    Experiment(
        check=check_options,
        name="lbbnn/correlations",
        revision=3,
        summary="The simulation's design with columns mixed in blocks of four, "
        "X_k <- j X_k + (1 - j) X_{k-1}: inclusion probabilities against those of the Gibbs "
        "sampler on the same data; setting j.",
        source=Source(
            "Skaaret-Lund, Storvik and Hubin 2023, the authors' program", "the study of mixed columns"
        ),
        run=Deferred("lbbnn.selection", "correlations"),
        metrics={
            **SELECTION,
            "elbo": "evidence lower bound of these labels, nats",
            "bound_change": "how much it rose in the last tenth of the fit, counted in learning rates, nats; "
            "of `concrete` at its last temperature",
        },
        datasets=("mjmcmc_sim_logistic",),
        methods=("exact", *SELECTORS),
        settings=("0.1", "0.4", "0.7", "1"),
        quick=Effort(trials=1, cost="5 minutes", options={"steps": 2500, "draws": 1000, "noise": 0.1}),
        full=Effort(
            trials=5, cost="40 minutes on 2 cores", options={"steps": 10_000, "draws": 2000, "noise": 0.1}
        ),
        notes={
            ("*", "*", "*", "*"): "that standardised columns are mixed, all blocks at once, is our choice; "
            "every trial draws labels of its own",
            ("*", "exact", "*", "rmse"): "the reference itself",
            ("*", "varbvs", "*", "elbo"): "of its own, looser bound on the likelihood",
        },
        settled={"bound_change": 0.5},
        questions={
            "How near the inclusion probabilities are to the exact ones": ("rmse", "worst"),
            "Where the bound stands": ("elbo", "bound_change"),
            "What is selected": ("tpr", "fpr", "wrongly_in", "wrongly_out"),
        },
        finish=Deferred("lbbnn.plots", "plot_correlations"),
    ),
)
