"""Nonparametric posteriors: chapter 4 and appendix B of Ott's dissertation (2022), and regressions.

The five sets of the flow papers are downloaded; the sets of the same kind beside them need a ZOO_DATA folder
or nothing.
"""

from __future__ import annotations

from dataclasses import replace

from zoo.experiments.engine.declaration import Deferred, Effort, Experiment, Place, Source
from zoo.experiments.engine.published import (
    PrintedRow,
    explanations,
    published_numbers,
    read_table,
    source_of,
)

PAPER, UNKNOWN = "npl", "not available"
#: Sets that need no download, and the published ones in order of their columns.
STAND_INS = ("mixture-10", "sachs", "bsds300-patches", "protein", "elevators", "kin40k")
PUBLISHED_SETS = ("power", "gas", "hepmass", "miniboone", "bsds300")
FIGURES = {
    "log_likelihood": "mean log density of the test rows, nats, averaged over the draws of the posterior; "
    "higher is better",
    "mixture": "the same of the mixture of all draws, which is the predictive density; never lower",
    "median": "median over the test rows in place of their mean: a mean may depend on a few rows",
    "below_100": "share of the test rows with a log density below -100",
    "points_se": "standard error of log_likelihood over the test rows",
    "draws_sd": "sd of log_likelihood over the draws of the posterior",
    "steps": "steps of the training, of many trainings their mean; fewer than the budget's steps: it ended "
    "because the score of validation rows had not risen for so many steps as patience says, which a noisy "
    "score of few rows may do early",
}
#: Sharing and refitting apart: which flow is trained, and whether the latent mean is fitted or zero.
APART = {
    "ml": "one flow, mean zero",
    "ml_mean": "one flow, its mean fitted",
    "wlb_naive": "a flow a draw, mean zero",
    "wlb_naive_mean": "a flow a draw, its mean fitted",
    "wlb_zero": "one flow trained with fresh weights a step, mean zero: one draw",
    "wlb_shared": "the same with a mean a draw",
    "npl_gaussian": "and pseudo-observations of the Gaussian fitted to the training rows",
    "npl_empirical": "or of unused training rows",
}
_TRAINED = {
    "alpha": 100.0, "pseudo": 500, "hidden": 100, "lr": 1e-3, "patience": 30, "steps": 6000,
    "draws": 100, "validation": 2000,
}  # fmt: skip

#: Nats a row that the last tenth of the learning takes of a bootstrap that has ended; chosen, not derived.
ENDED = {"last_tenth": 0.01}
_REGRESSION = {
    "width": 20, "draws": 200, "steps": 2000, "lr": 0.03, "elbo_steps": 5000, "alpha": 0.1, "pseudo": 100,
    "warmup": 500, "nuts": 500,
}  # fmt: skip
_LOGISTIC = {
    "draws": 500, "steps": 1500, "lr": 0.05, "elbo_steps": 5000, "warmup": 1000, "nuts": 2000,
}  # fmt: skip


def _is_compared(row: PrintedRow) -> Place | None:
    return row.dataset, row.method, "1000", "log_likelihood"


def _variants() -> tuple[str, ...]:
    """Blocks, batch normalisation, start at the identity; mean alone or covariance."""
    return tuple(
        f"{blocks}{norm}{start}{base}"
        for blocks in (1, 5)
        for norm in (("",) if blocks == 1 else ("", "-bn"))
        for start in ("", "-id")
        for base in ("", "-cov")
    )


def _of(figure: str) -> Source:
    return replace(source_of(PAPER, "table-4.2")[0], table=figure, page=UNKNOWN)


EXPERIMENTS = (
    Experiment(
        name="npl/figure-4.1",
        summary="Samples of flows fitted to 100 rows of two Gaussians, drawn in figure-4.1.png: maximum "
        "likelihood, and alpha 0, 1, 100 with a narrow and a wide round Gaussian as base measure; the print "
        "gives neither the law's parameters nor the base measures' (here sds 1 and 4).",
        source=_of("Figure 4.1"),
        run=Deferred("npl.flows", "cloud"),
        metrics={
            "log_likelihood": FIGURES["log_likelihood"],
            "below_truth": "that of the law itself minus log_likelihood, nats; lower is better",
            "spread": "root mean square distance of the samples from the origin",
            "steps": FIGURES["steps"],
        },
        datasets=("mixture-2",),
        methods=("ml", "narrow", "wide"),
        settings=("0", "1", "100"),
        exists=lambda dataset, method, setting: method != "ml" or setting == "0",
        notes={
            ("*", "narrow", "0", "*"): "as wide 0: no base measure; another seed"
        },
        quick=Effort(trials=1, cost="1 minute", options={**_TRAINED, "restarts": 1, "steps": 300}),
        full=Effort(trials=4, cost="5 minutes on 2 cores", options={**_TRAINED, "restarts": 5}),
        finish=Deferred("npl.plots", "plot_clouds"),
    ),
    Experiment(
        name="npl/figure-4.2",
        summary="Test log likelihood of flows over the number of training rows: maximum likelihood, shared "
        "weighted likelihood bootstrap, and alpha = 100 with a Gaussian and an empirical base measure, drawn "
        "in figure-4.2.png; the print has no numbers.",
        source=_of("Figure 4.2"),
        run=Deferred("npl.flows", "trained"),
        metrics=FIGURES,
        datasets=(*STAND_INS, *PUBLISHED_SETS),
        methods=("ml", "wlb_shared", "npl_gaussian", "npl_empirical"),
        settings=("500", "1000", "5000", "10000"),
        exists=lambda dataset, method, setting: (dataset, setting) not in (
            ("sachs", "10000"), ("mixture-10", "10000"),
        ),
        quick=Effort(trials=1, cost="20 minutes a set", options={**_TRAINED, "restarts": 1, "naive": 0}),
        full=Effort(
            trials=4, cost="10 hours a set on 2 cores", options={**_TRAINED, "restarts": 5, "naive": 0}
        ),
        notes={
            ("protein", "*", "*", "log_likelihood"): "heavy tails: read the median and the share below -100"
        },
        finish=Deferred("npl.plots", "plot_curves"),
    ),
    Experiment(
        name="npl/table-4.2",
        summary="Test log likelihood of flows on 1000 rows; the print changes two things at once between its "
        "first and its last rows, sharing the flow and fitting the latent mean, and here they are apart: "
        + "; ".join(f"{name}: {what}" for name, what in APART.items()) + ".",
        source=source_of(PAPER, "table-4.2")[0],
        run=Deferred("npl.flows", "trained"),
        metrics=FIGURES,
        datasets=("mixture-10", "sachs", "bsds300-patches", "miniboone"),
        methods=tuple(APART),
        settings=("1000",),
        quick=Effort(
            trials=4, cost="20 minutes a set on 2 cores", options={**_TRAINED, "restarts": 1, "naive": 10}
        ),
        full=Effort(
            trials=4, cost="10 hours a set on 2 cores", options={**_TRAINED, "restarts": 5, "naive": 100}
        ),
        published=published_numbers(read_table(PAPER, "table-4.2"), _is_compared),
        published_error=source_of(PAPER, "table-4.2")[1],
        explained=explanations(PAPER, "table-4.2"),
    ),
    Experiment(
        name="npl/figure-b2",
        summary="Test log likelihood of flows of 1 or 5 blocks, with batch normalisation (bn) and a start at "
        "the identity (id), a latent mean a draw or a covariance too (cov), drawn in figure-b2.png; the "
        "print is of gas and has no numbers.",
        source=_of("Figure B.2"),
        run=Deferred("npl.flows", "variant"),
        metrics=FIGURES,
        datasets=("kin40k", "sachs", "gas"),
        methods=("ml", "wlb_shared", "npl_gaussian", "npl_empirical"),
        settings=_variants(),
        quick=Effort(
            trials=1, cost="15 minutes a set", options={**_TRAINED, "restarts": 1, "naive": 0, "rows": 1000}
        ),
        full=Effort(
            trials=4, cost="8 hours a set on 2 cores",
            options={**_TRAINED, "restarts": 10, "naive": 0, "rows": 1000},
        ),
        exists=lambda dataset, method, setting: method != "ml" or not setting.endswith("-cov"),
        finish=Deferred("npl.plots", "plot_variants"),
    ),
    Experiment(
        name="npl/regression",
        summary="The posterior bootstrap of a network with one hidden layer beside NUTS on the usual splits: "
        "weighted maximum likelihood (mle), weighted modes (map), and modes with pseudo-observations of the "
        "prior predictive, each of a network of its own, that weigh a tenth of the rows (prior). It is "
        "another posterior: the distances say how far.",
        source=Source("Fong, Lyddon and Holmes 2019", "no table: the method on our networks"),
        run=Deferred("npl.regressions", "network"),
        metrics={
            "rmse": "root mean squared error on the test rows, unit of the target; lower is better",
            "log_likelihood": "mean log predictive density of the test rows, nats, target in its own unit",
            "crps": "continuous ranked probability score, unit of the target; lower is better",
            "coverage_90": "share of the test rows in the 90 % interval",
            "ref_mean_error": "root mean squared error of the function's mean, in the sd of NUTS",
            "ref_sd_ratio": "median sd of the function over that of NUTS; 1 is right",
            "ref_w1": "Wasserstein-1 distance of the function from NUTS, in the sd of NUTS",
            "last_tenth": "nats a row that the last tenth of the learning took: whether a minimum is settled",
        },
        settled=ENDED,
        datasets=("snelson", "boston"),
        methods=("nuts", "mean-field", "bootstrap-mle", "bootstrap-map", "bootstrap-prior"),
        quick=Effort(trials=1, cost="10 minutes on 2 cores", options=_REGRESSION),
        full=Effort(
            trials=5, cost="2 hours on 2 cores",
            options={**_REGRESSION, "steps": 3000, "warmup": 600, "nuts": 600, "width": 50},
        ),
    ),
    Experiment(
        name="npl/logistic",
        summary="Logistic regression with heavy tails, the setting of Fong, Lyddon and Holmes (2019), "
        "on real data at random 80/20 splits; the print's sets are others.",
        source=Source("Fong, Lyddon and Holmes 2019", "the setting of section 4.2, other data"),
        run=Deferred("npl.regressions", "logistic"),
        metrics={
            "log_likelihood": "mean log predictive probability of the test labels, nats; higher is better",
            "accuracy": "share of the test labels that are right",
            "near_zero": "share of coefficients whose posterior mean is below 0.1, standardised",
            "sd": "median posterior sd of the coefficients",
            "last_tenth": "nats a row that the last tenth of the learning took: whether a minimum is settled",
        },
        settled=ENDED,
        datasets=("raisin", "breast_cancer", "gallstone"),
        methods=("nuts", "mean-field", "bootstrap-mle", "bootstrap-map"),
        quick=Effort(trials=1, cost="2 minutes on 2 cores", options=_LOGISTIC),
        full=Effort(trials=5, cost="10 minutes on 2 cores", options=_LOGISTIC),
        notes={
            ("breast_cancer", "bootstrap-mle", "*", "*"): "the classes can be separated: the maximum is at "
            "infinity, and where the optimiser stops decides: a small last_tenth says that it is slow, not "
            "there",
            ("gallstone", "bootstrap-mle", "*", "*"): "weights of a draw often let the classes be separated: "
            "the maximum is at infinity then, and where the optimiser stops decides: a small last_tenth says "
            "that it is slow, not there",
        },
    ),
)  # fmt: skip
