"""Latent binary Bayesian networks: Hubin and Storvik (2019), Skaaret-Lund (2022), Hubin et al. (2022).

The published programs differ from what they print, and several are wrong (guides.variational.spike_slab and
guides.variational.multiplicative_flow say how); the thesis's accuracies were obtained with a wrong variance.
``published/`` holds what is in print.
Networks, priors, starts and learning rates are those of zoo.experiments.lbbnn.networks; two experiments on
one data set with as many epochs look at the same networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zoo.experiments.engine.declaration import UNPUBLISHED, Deferred, Effort, Experiment, Place, Source
from zoo.experiments.engine.published import explanations, source_of
from zoo.experiments.lbbnn import declared_selection, printed
from zoo.experiments.lbbnn.going_on import (
    ALL_ROWS_GO_ON,
    CONVOLUTIONS_GO_ON,
    DENSE_GO_ON,
    FEW_ROWS_GO_ON,
    LEARNING,
    cold,
    digits,
    fixed,
    going_on,
    learned,
    promised,
)
from zoo.experiments.lbbnn.metrics import (
    CONVOLUTIONAL_QUESTIONS,
    CORRELATED,
    CORRELATED_SETTING,
    DENSITIES,
    EXPORT,
    EXPORT_QUESTIONS,
    INCLUDING,
    METHODS,
    PRINTED_QUESTIONS,
    QUESTIONS,
    SCORES,
    SETTLING,
    TABLE,
    VARIANCE,
)
from zoo.experiments.lbbnn.options import (
    COST,
    FAST,
    FULL,
    FULL_CONVOLUTIONAL,
    FULL_DIGITS,
    QUICK,
    QUICK_CONVOLUTIONAL,
    check_options,
)
from zoo.experiments.lbbnn.printed import FOLDER

PAPER = "Skaaret-Lund 2022, latent binary Bayesian neural networks (thesis); Hubin and Storvik 2019"
#: Of the frontier; learned: inclusion and scales by empirical Bayes, rates: inclusion by output and input.
FRONTIER_PRIORS = ("learned", "rates", "fixed", "pi0.1-sd1")
KL_WEIGHTS = ("1", "0.3", "0.1", "0.05", "0.03")
FRONTIER = {
    **SCORES,
    **{f"{name}_validation": f"{name} on the images held out to choose by" for name in SCORES},
    **DENSITIES,
    "density_paths": TABLE["density_paths"],
    **SETTLING,
}
#: Of the tables of dense networks: what ``lbbnn/frontier`` found to be sparse, sharp and calibrated.
COLD_SETTING = "fixed-kl0.1"
COLD_NOTE = "a cold posterior, of data that count 1/kl times: sharper than the posterior, and not it"
KMNIST = (
    "where the training images cannot be had, 8000 of the test images train and 2000 test, and an epoch is "
    "four passes (one under the thesis's recipe): such numbers do not compare with published ones"
)
#: Nats an image that a bound still rises by in the last tenth of a training that has ended; chosen, not
#: derived.
ENDED = 0.05


#: Methods whose priors are learned in the dense tables of small sets.
DENSE_LEARNING = (*LEARNING, CORRELATED)


def _of_this_kind(**declared: Any) -> Experiment:
    """An experiment of this family: all check their options alike, and say alike what has not settled."""
    settled = {"bound_change": ENDED} if "bound_change" in declared["metrics"] else {}
    return Experiment(check=check_options, settled=settled, **declared)


DECISIONS = {
    "decided": "share of test images that are decided",
    "accuracy_decided": "accuracy among them; higher is better",
    "accuracy_all": "accuracy among all",
    "decided_outside": "share of images of another data set that are decided; lower is better",
}


def _dense(
    name: str,
    what: str,
    quick: Effort,
    full: Effort,
    notes: Mapping,
    thesis: str = "",
    slides: str = "",
    revision: int = 5,
    unarrived: Mapping[Place, str] | None = None,
) -> Experiment:
    """A dense network by every method; ``thesis`` and ``slides`` are the tables that are in print."""
    source, errors = source_of(FOLDER, thesis) if thesis else (UNPUBLISHED, "none")
    return _of_this_kind(
        name=f"lbbnn/{name}",
        revision=revision,
        summary=f"{what}, network with hidden layers of 400 and 600: accuracy, calibration and density; "
        "prior inclusion and scales learned by layer (empirical Bayes), unless the setting names them; "
        "rates: inclusion by output and input; fixed: nothing is learned.",
        source=source,
        run=Deferred("lbbnn.images", "table"),
        metrics=TABLE,
        datasets=(name,),
        methods=(*METHODS, CORRELATED, "cold-mnf"),
        settings=("default", "rates", CORRELATED_SETTING, "pi0.25-sd1", COLD_SETTING),
        quick=quick,
        full=full,
        published=printed.dense(thesis, slides),
        published_error=errors,
        explained=explanations(FOLDER, name),
        exists=_has_row,
        notes=notes | {("*", "cold-mnf", "*", "*"): COLD_NOTE},
        unarrived=learned(TABLE, "default", "rates") if unarrived is None else unarrived,
        questions=QUESTIONS,
    )


def _has_row(dataset: str, method: str, setting: str) -> bool:
    """What is cold is called so; there is one prior without indicators.  Fits of correlated ones take three
    times as long: they learn a prior where images are small or few.
    """
    if method == "cold-mnf" or setting == COLD_SETTING:
        return (method, setting) == ("cold-mnf", COLD_SETTING)
    if method == CORRELATED:
        return setting == CORRELATED_SETTING or (setting == "default" and dataset in ("digits", "kmnist"))
    return setting == "default" or method in INCLUDING


def _has_convolutions(dataset: str, method: str, setting: str) -> bool:
    """The same of convolutions; without inclusions the first two fixed priors are one."""
    if method == "cold-mnf" or setting == COLD_SETTING:
        return (method, setting) == ("cold-mnf", COLD_SETTING)
    if method == "gaussian":
        return setting != "pi0.25-sd1"
    return setting == "default" or method in INCLUDING


EXPERIMENTS = (
    *declared_selection.EXPERIMENTS,
    _dense(
        "digits",
        "digits (8 x 8 images, embedded)",
        Effort(trials=1, cost="4 minutes", options={**QUICK, "epochs": 4}),
        Effort(trials=3, cost="2 hours on 2 cores", options=FULL_DIGITS),
        {("*", "*", "*", "*"): "an epoch stands for 20 passes over the 1617 rows"},
        revision=6,  # bounds from more networks
        unarrived=learned(TABLE, "default", "rates", methods=DENSE_LEARNING) | cold(TABLE) | digits(TABLE),
    ),
    _dense(
        "mnist",
        "MNIST",
        Effort(trials=1, cost="3 minutes", options=QUICK),
        Effort(trials=3, cost="2 hours on 2 cores", options=FULL),
        {},
        thesis="thesis-table-2",
        slides="slides-mnist",
        unarrived=learned(TABLE, "default", "rates") | fixed("mnist", TABLE),
    ),
    _dense(
        "fmnist",
        "Fashion-MNIST",
        Effort(trials=1, cost="3 minutes", options=QUICK),
        Effort(trials=3, cost="2 hours on 2 cores", options=FULL),
        {},
        thesis="thesis-table-3",
        slides="slides-fmnist",
        unarrived=learned(TABLE, "default", "rates") | fixed("fmnist", TABLE),
    ),
    _dense(
        "kmnist",
        "KMNIST",
        Effort(trials=1, cost="3 minutes", options=QUICK),
        Effort(trials=3, cost="70 minutes on 2 cores (2 hours with the training images)", options=FULL),
        {("kmnist", "*", "*", "*"): KMNIST},
        thesis="thesis-table-1",
        revision=6,
        unarrived=going_on(FEW_ROWS_GO_ON, ("*",), (*DENSE_LEARNING, "group-normal-jeffreys"), TABLE)
        | cold(TABLE)
        | promised("kmnist", TABLE),
    ),
    _of_this_kind(
        name="lbbnn/dense",
        summary="The networks of lbbnn/mnist, fmnist and kmnist in as many steps at twice the "
        "learning rate, with inclusion logits and log-sds that can go four times as far: posteriors end at "
        "higher bounds, and most are calibrated better; prior inclusion and scales learned by layer "
        "(empirical Bayes), unless the setting names them; rates: inclusion by output and input; fixed: "
        "nothing is learned.",
        source=replace(source_of(FOLDER, "thesis-table-1")[0], table="Tables 1 (KMNIST), 2 (MNIST) and 3"),
        run=Deferred("lbbnn.images", "table"),
        metrics=TABLE,
        datasets=("mnist", "fmnist", "kmnist"),
        methods=(*METHODS, CORRELATED, "cold-mnf"),
        settings=("default", "rates", CORRELATED_SETTING, "pi0.25-sd1", COLD_SETTING),
        quick=Effort(trials=1, cost="10 minutes", options={**QUICK, **FAST}),
        full=Effort(trials=3, cost="8 hours on 2 cores", options={**FULL, **FAST}),
        published=printed.dense("thesis-table-1", "")
        | printed.dense("thesis-table-2", "slides-mnist")
        | printed.dense("thesis-table-3", "slides-fmnist"),
        published_error=source_of(FOLDER, "thesis-table-1")[1],
        explained=explanations(FOLDER, "dense"),
        exists=_has_row,
        notes={("kmnist", "*", "*", "*"): KMNIST, ("*", "cold-mnf", "*", "*"): COLD_NOTE},
        questions=QUESTIONS,
    ),
    _of_this_kind(
        name="lbbnn/thesis",
        revision=2,
        summary="The thesis's tables, its own recipe beside the right one: lrt-thesis has the printed "
        "variance, and its ensemble averages passes with noise of a row's own; the others have the right "
        "variance and networks really drawn, and mnf tanh units in its flows; prior inclusion 0.05, slab "
        "N(0, 1), logits from U(0, 1), 250 epochs.",
        source=replace(source_of(FOLDER, "thesis-table-1")[0], table="Tables 1 (KMNIST), 2 (MNIST) and 3"),
        run=Deferred("lbbnn.images", "variance_table"),
        metrics=VARIANCE,
        datasets=("kmnist", "mnist", "fmnist"),
        methods=("lrt-thesis", *INCLUDING),
        settings=("thesis",),
        quick=Effort(trials=1, cost="15 minutes", options=QUICK),
        full=Effort(trials=10, cost="days on 2 cores", options={**FULL, "epochs": 250}),
        published=printed.thesis_recipe(),
        published_error=source_of(FOLDER, "thesis-table-1")[1],
        explained=explanations(FOLDER, "thesis"),
        notes={("kmnist", "*", "*", "*"): KMNIST},
        questions=PRINTED_QUESTIONS,
    ),
    _of_this_kind(
        name="lbbnn/cnn",
        revision=5,
        summary="LeNet-like convolutional networks under several priors; a setting names the prior inclusion "
        "probability and the sd of the slab; fixed: nothing is learned.",
        source=replace(source_of(FOLDER, "slides-cnn-mnist")[0], table="tables of the convolutional network"),
        run=Deferred("lbbnn.images", "convolutional_table"),
        metrics={name: text for name, text in TABLE.items() if name != "density_paths"},
        datasets=("mnist", "fmnist", "kmnist"),
        methods=("lrt", "mnf", "gaussian", "mlp", "cold-mnf"),
        settings=("default", "pi0.1-sd1", "pi0.25-sd1", "pi0.1-sd0.1", COLD_SETTING),
        quick=Effort(trials=1, cost="20 minutes on 2 cores", options=QUICK_CONVOLUTIONAL),
        full=Effort(trials=1, cost="3 hours on 2 cores", options=FULL_CONVOLUTIONAL),
        exists=_has_convolutions,
        published=printed.convolutional(),
        published_error=source_of(FOLDER, "slides-cnn-mnist")[1],
        explained=explanations(FOLDER, "cnn"),
        notes={("kmnist", "*", "*", "*"): KMNIST, ("*", "cold-mnf", "*", "*"): COLD_NOTE},
        unarrived=going_on(
            CONVOLUTIONS_GO_ON,
            ("default",),
            ("lrt", "mnf", "gaussian"),
            [name for name in TABLE if name != "density_paths"],
        )
        | cold([name for name in TABLE if name != "density_paths"]),
        questions=CONVOLUTIONAL_QUESTIONS,
    ),
    _of_this_kind(
        name="lbbnn/frontier",
        revision=4,
        summary="What prior, guide and weight of the divergence (kl) make of accuracy, calibration, density "
        "and bound; the last 15 % of the training images are held out to choose by. Weights below 1 are cold "
        "posteriors.",
        source=UNPUBLISHED,
        run=Deferred("lbbnn.images", "frontier"),
        metrics=FRONTIER,
        datasets=("mnist", "fmnist", "kmnist"),
        methods=("lrt", "mnf", "cold-lrt", "cold-mnf"),
        settings=tuple(f"{prior}-kl{weight}" for prior in FRONTIER_PRIORS for weight in KL_WEIGHTS),
        quick=Effort(trials=1, cost="1 hour on 2 cores", options={**QUICK, "held_out": 0.15}),
        full=Effort(trials=3, cost="days on 2 cores", options={**FULL, "held_out": 0.15}),
        exists=lambda dataset, method, setting: method.startswith("cold-") != setting.endswith("-kl1"),
        notes={("*", method, "*", "*"): COLD_NOTE for method in ("cold-lrt", "cold-mnf")}
        | {("kmnist", "*", "*", "*"): KMNIST},
        unarrived=learned(FRONTIER, "learned-kl1", "rates-kl1", methods=("lrt", "mnf"))
        | going_on(ALL_ROWS_GO_ON, ("pi0.1-sd1-kl1",), ("lrt", "mnf"), FRONTIER)
        | cold(FRONTIER, "cold-lrt", "cold-mnf"),
        finish=Deferred("lbbnn.plots", "plot_frontier"),
        questions={
            "Ten drawn networks on the test images": tuple(SCORES),
            "The same on the images to choose by": tuple(f"{name}_validation" for name in SCORES),
            "How many weights are needed": ("density_mean", "density_half", "density_paths"),
            "Where the bound stands": tuple(SETTLING),
        },
    ),
    _of_this_kind(
        name="lbbnn/common",
        summary="A learned prior follows the weights and they the prior, by small steps each. With -common "
        "the inclusion logits and log-sds of a layer also move as one, by the sum of their gradients, in as "
        "many steps of the same fit; rates: inclusion by output and input.",
        source=UNPUBLISHED,
        run=Deferred("lbbnn.images", "table"),
        metrics=TABLE,
        datasets=("mnist", "fmnist", "kmnist"),
        methods=("lrt", "mnf"),
        settings=("default", "default-common", "rates", "rates-common"),
        quick=Effort(trials=1, cost="10 minutes", options=QUICK),
        full=Effort(trials=3, cost="3 hours on 2 cores", options=FULL),
        notes={("kmnist", "*", "*", "*"): KMNIST},
        unarrived=going_on(DENSE_GO_ON, ("*",), ("*",), TABLE),
        questions=QUESTIONS,
    ),
    _of_this_kind(
        name="lbbnn/variance",
        summary="What the variance printed in the thesis does: passes as in training beside networks really "
        "drawn; prior inclusion 0.05, slab N(0, 1), inclusion logits from U(0, 1), 4 epochs.",
        source=source_of(FOLDER, "independent-program")[0],
        run=Deferred("lbbnn.images", "variance_table"),
        metrics=VARIANCE,
        datasets=("mnist",),
        methods=("lrt", "lrt-thesis"),
        settings=("thesis",),
        quick=Effort(trials=1, cost="1 minute", options=QUICK),
        full=Effort(trials=1, cost="3 minutes", options={**FULL, "epochs": 4}),
        published=printed.independent_program(),
        beside="other program",
        published_error=source_of(FOLDER, "independent-program")[1],
        explained=explanations(FOLDER, "variance"),
        questions=PRINTED_QUESTIONS,
    ),
    _of_this_kind(
        name="lbbnn/decisions",
        revision=4,
        summary="Decide only where the ensemble gives its class a probability of 0.95 or more; the "
        "probabilities are averages of proper softmax outputs.",
        source=source_of(FOLDER, "slides-decisions")[0],
        run=Deferred("lbbnn.images", "decisions"),
        metrics={
            **DECISIONS,
            "bound_change": SETTLING["bound_change"],
        },
        datasets=("mnist", "fmnist", "kmnist"),
        methods=(*INCLUDING, "gaussian", "concrete-dropout", "group-normal-jeffreys", "mlp", "deep-ensemble"),
        quick=Effort(trials=1, cost="5 minutes", options=QUICK),
        full=Effort(trials=1, cost="60 minutes on 2 cores", options=FULL),
        published=printed.decisions(),
        published_error=source_of(FOLDER, "slides-decisions")[1],
        explained=explanations(FOLDER, "decisions"),
        notes={("kmnist", "*", "*", "*"): KMNIST},
        unarrived=learned(DECISIONS)
        | going_on(ALL_ROWS_GO_ON, ("default",), ("group-normal-jeffreys",), DECISIONS),
        questions={
            "What is decided, and how well": ("decided", "accuracy_decided", "accuracy_all"),
            "What is decided that should not be": ("decided_outside",),
            "Where the bound stands": ("bound_change",),
        },
    ),
    _of_this_kind(
        name="lbbnn/entropy",
        revision=4,
        summary="Entropy of the ensemble's predictions on its own test images and on those of another data "
        "set; mnf-early is the same network stopped early, on purpose less accurate.",
        source=Source(PAPER, "figures of in- and out-of-domain entropy"),
        run=Deferred("lbbnn.images", "entropies"),
        metrics={
            "accuracy": SCORES["accuracy"],
            "entropy_inside": "mean entropy on the test images, nats",
            "entropy_outside": "mean entropy on images of another set (fmnist for mnist, else mnist; "
            "shuffled pixels for digits), nats",
            "auroc": "how well the entropy tells the two sets apart, 0.5 to 1; higher is better",
            "bound_change": SETTLING["bound_change"],
        },
        datasets=("digits", "mnist", "fmnist", "kmnist"),
        methods=("lrt", "mnf", "mnf-early", "mlp", "deep-ensemble"),
        quick=Effort(trials=1, cost="5 minutes", options=QUICK),
        full=Effort(trials=1, cost="35 minutes on 2 cores", options=FULL),
        notes={("kmnist", "*", "*", "*"): KMNIST},
        finish=Deferred("lbbnn.plots", "plot_entropies"),
        unarrived=learned(("accuracy", "entropy_inside", "entropy_outside", "auroc"), methods=("lrt", "mnf")),
        questions={
            "How sure the ensemble is": ("accuracy", "entropy_inside", "entropy_outside", "auroc"),
            "Where the bound stands": ("bound_change",),
        },
    ),
    _of_this_kind(
        name="lbbnn/training",
        revision=4,
        summary="Negative log likelihood against epochs, drawn in training-<data set>.png.",
        source=Source(PAPER, "figures of the training loss"),
        run=Deferred("lbbnn.images", "training_curve"),
        metrics={
            "nll_ensemble_test": "of the ensemble on the test images after the last epoch, nats",
            "nll_ensemble_train": "the same on as many training images",
            "nll_mean_test": "of the posterior mean network on the test images",
            "nll_mean_train": "the same on as many training images",
            "nll_best": "smallest nll_ensemble_test after any epoch",
        },
        datasets=("digits", "mnist"),
        methods=("lrt", "mnf", "concrete", "gaussian", "mlp"),
        quick=Effort(trials=1, cost="5 minutes", options={**QUICK, "epochs": 2}),
        full=Effort(trials=1, cost="20 minutes on 2 cores", options=FULL),
        finish=Deferred("lbbnn.plots", "plot_training"),
        unarrived=learned(["nll_ensemble_test", "nll_ensemble_train", "nll_mean_test", "nll_mean_train"]),
        questions={
            "Ten drawn networks": ("nll_ensemble_test", "nll_ensemble_train", "nll_best"),
            "The posterior mean network": ("nll_mean_test", "nll_mean_train"),
        },
    ),
    _of_this_kind(
        name="lbbnn/pictures",
        revision=4,
        summary="The test images of lowest and highest entropy in every class, drawn in "
        "<data set>-<method>.png.",
        source=Source(PAPER, "figures of images of low and high entropy"),
        run=Deferred("lbbnn.images", "pictures"),
        metrics={
            "entropy_low": "mean entropy of the five images a class where it is lowest, nats",
            "wrong_low": "share of them that are classified wrongly",
            "entropy_high": "mean entropy of the five images a class where it is highest, nats",
            "wrong_high": "share of them that are classified wrongly",
        },
        datasets=("mnist", "fmnist", "kmnist"),
        methods=("lrt", "mnf"),
        quick=Effort(trials=1, cost="3 minutes", options=QUICK),
        full=Effort(trials=1, cost="15 minutes on 2 cores", options=FULL),
        finish=Deferred("lbbnn.plots", "plot_pictures"),
        unarrived=learned(["entropy_low", "wrong_low", "entropy_high", "wrong_high"], methods=("*",)),
        questions={
            "Images of lowest entropy": ("entropy_low", "wrong_low"),
            "Images of highest entropy": ("entropy_high", "wrong_high"),
        },
    ),
    _of_this_kind(
        name="lbbnn/export",
        revision=4,
        summary="The median probability network as a program without its zeros: size and speed.",
        source=UNPUBLISHED,
        run=Deferred("lbbnn.images", "export"),
        metrics=EXPORT,
        datasets=("mnist",),
        methods=("lrt", "mnf", "concrete"),
        quick=Effort(trials=1, cost="1 minute", options=QUICK),
        full=Effort(trials=1, cost="10 minutes on 2 cores", options=FULL),
        unarrived=learned(["density_half"], methods=("*",)),
        questions=EXPORT_QUESTIONS,
    ),
    _of_this_kind(
        name="lbbnn/cost",
        revision=2,
        summary="Seconds of an epoch, and relative to a deterministic network of the same shape whose steps "
        "are taken in turn with the method's.",
        source=source_of(FOLDER, "thesis-section-5.3")[0],
        run=Deferred("lbbnn.images", "cost"),
        metrics={
            "seconds": "an epoch on this machine, one thread",
            "seconds_plain": "the same of the deterministic network with torch's Adam",
            "relative": "their ratio; lower is better",
            "parameters": "numbers that are trained",
        },
        datasets=("mnist",),
        methods=tuple(method for method in METHODS if method != "deep-ensemble"),
        quick=Effort(trials=1, cost="1 minute", options={**COST, "steps": 20}),
        full=Effort(
            trials=3, cost="8 minutes, on an idle machine with --jobs 1", options={**COST, "steps": 150}
        ),
        published=printed.seconds(),
        published_error=source_of(FOLDER, "thesis-section-5.3")[1],
        explained=explanations(FOLDER, "cost"),
        notes={("*", "mlp", "*", "*"): "the same guide as the others, with points for laws"},
        questions={"What an epoch costs": ("seconds", "seconds_plain", "relative", "parameters")},
    ),
)
