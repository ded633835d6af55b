"""Networks on images by every method: dense ones, the thesis's recipe, LeNet, and the frontier of priors.

Networks, priors and starts are those of zoo.experiments.lbbnn.networks; two experiments on one data set
with as many epochs and the same rates look at the same networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zoo.experiments.engine.declaration import UNPUBLISHED, Deferred, Effort, Experiment, Place
from zoo.experiments.engine.published import explanations, source_of
from zoo.experiments.lbbnn import printed
from zoo.experiments.lbbnn.family import COLD_NOTE, COLD_SETTING, KMNIST, of_images
from zoo.experiments.lbbnn.going_on import (
    CONVOLUTIONS_GO_ON,
    cold,
    going_on,
    learned,
)
from zoo.experiments.lbbnn.metrics import (
    CONVOLUTIONAL_QUESTIONS,
    CORRELATED,
    CORRELATED_SETTING,
    DENSITIES,
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
    FULL,
    FULL_CONVOLUTIONAL,
    FULL_DIGITS,
    FULL_RECIPE,
    QUICK,
    QUICK_CONVOLUTIONAL,
    QUICK_RECIPE,
)
from zoo.experiments.lbbnn.printed import FOLDER

CONVOLUTIONAL = {name: text for name, text in TABLE.items() if name != "density_paths"}
FALL_APART = (
    "one of three runs of lrt and one of mnf fell apart: drawn networks have bounds of -0.98 and -0.95, "
    "those of the other runs -0.60 to -0.62, and training took them all for -0.55 to -0.58"
)
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


def _dense(
    name: str,
    what: str,
    quick: Effort,
    full: Effort,
    *,
    thesis: str = "",
    slides: str = "",
    notes: Mapping[Place, str] | None = None,
    **others: Any,
) -> Experiment:
    """A dense network by every method; ``thesis`` and ``slides`` are the tables that are in print."""
    source, errors = source_of(FOLDER, thesis) if thesis else (UNPUBLISHED, "none")
    return of_images(
        name=f"lbbnn/{name}",
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
        notes={("*", "cold-mnf", "*", "*"): COLD_NOTE, **(notes or {})},
        questions=QUESTIONS,
        **others,
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
    _dense(
        "digits",
        "digits (8 x 8 images, embedded)",
        Effort(trials=1, cost="4 minutes", options={**QUICK, "epochs": 4}),
        Effort(trials=3, cost="2 hours on 2 cores", options=FULL_DIGITS),
        notes={("*", "*", "*", "*"): "an epoch stands for 20 passes over the 1617 rows"},
        revision=7,  # other rates
        unarrived=learned(TABLE) | cold(TABLE),
    ),
    _dense(
        "mnist",
        "MNIST",
        Effort(trials=1, cost="3 minutes", options=QUICK),
        Effort(trials=3, cost="2 hours on 2 cores", options=FULL),
        thesis="thesis-table-2",
        slides="slides-mnist",
        revision=7,  # other rates
        unarrived=learned(TABLE) | cold(TABLE),
    ),
    _dense(
        "fmnist",
        "Fashion-MNIST",
        Effort(trials=1, cost="3 minutes", options=QUICK),
        Effort(trials=3, cost="2 hours on 2 cores", options=FULL),
        thesis="thesis-table-3",
        slides="slides-fmnist",
        notes={("fmnist", method, "pi0.25-sd1", "*"): FALL_APART for method in ("lrt", "mnf")},
        revision=7,  # other rates
        unarrived=learned(TABLE) | cold(TABLE),
    ),
    _dense(
        "kmnist",
        "KMNIST",
        Effort(trials=1, cost="3 minutes", options=QUICK),
        Effort(trials=3, cost="70 minutes on 2 cores (2 hours with the training images)", options=FULL),
        thesis="thesis-table-1",
        notes={("kmnist", "*", "*", "*"): KMNIST},
        revision=7,  # other rates
        unarrived=learned(TABLE) | cold(TABLE),
    ),
    of_images(
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
        quick=Effort(trials=1, cost="15 minutes", options=QUICK_RECIPE),
        full=Effort(trials=10, cost="days on 2 cores", options={**FULL_RECIPE, "epochs": 250}),
        published=printed.thesis_recipe(),
        published_error=source_of(FOLDER, "thesis-table-1")[1],
        explained=explanations(FOLDER, "thesis"),
        notes={("kmnist", "*", "*", "*"): KMNIST},
        questions=PRINTED_QUESTIONS,
    ),
    of_images(
        name="lbbnn/cnn",
        revision=6,  # other rates
        summary="LeNet-like convolutional networks under several priors; a setting names the prior inclusion "
        "probability and the sd of the slab; fixed: nothing is learned.",
        source=replace(source_of(FOLDER, "slides-cnn-mnist")[0], table="tables of the convolutional network"),
        run=Deferred("lbbnn.images", "convolutional_table"),
        metrics=CONVOLUTIONAL,
        datasets=("mnist", "fmnist", "kmnist"),
        methods=("lrt", "mnf", "gaussian", "mlp", "cold-mnf"),
        settings=("default", "pi0.1-sd1", "pi0.25-sd1", "pi0.1-sd0.1", COLD_SETTING),
        quick=Effort(trials=1, cost="20 minutes on 2 cores", options=QUICK_CONVOLUTIONAL),
        full=Effort(trials=1, cost="4 hours on 2 cores", options=FULL_CONVOLUTIONAL),
        exists=_has_convolutions,
        published=printed.convolutional(),
        published_error=source_of(FOLDER, "slides-cnn-mnist")[1],
        explained=explanations(FOLDER, "cnn"),
        notes={("kmnist", "*", "*", "*"): KMNIST, ("*", "cold-mnf", "*", "*"): COLD_NOTE},
        unarrived=cold(CONVOLUTIONAL)
        | going_on(CONVOLUTIONS_GO_ON, ("*",), ("lrt", "mnf", "gaussian"), CONVOLUTIONAL),
        questions=CONVOLUTIONAL_QUESTIONS,
    ),
    of_images(
        name="lbbnn/frontier",
        revision=5,  # other rates
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
        unarrived=learned(FRONTIER, ("learned-kl1", "rates-kl1"), ("lrt", "mnf"))
        | cold(FRONTIER, "cold-lrt", "cold-mnf"),
        finish=Deferred("lbbnn.plots", "plot_frontier"),
        questions={
            "Ten drawn networks on the test images": tuple(SCORES),
            "The same on the images to choose by": tuple(f"{name}_validation" for name in SCORES),
            "How many weights are needed": ("density_mean", "density_half", "density_paths"),
            "Where the bound stands": tuple(SETTLING),
        },
    ),
    of_images(
        name="lbbnn/common",
        revision=2,  # other rates
        summary="A learned prior follows the weights and they the prior, by small steps each. Here the "
        "inclusion logits and log-sds of a layer also move as one, by the sum of their gradients; default "
        "and rates (inclusion by output and input) without that, in as many steps, are on lbbnn/mnist, "
        "fmnist and kmnist.",
        source=UNPUBLISHED,
        run=Deferred("lbbnn.images", "table"),
        metrics=TABLE,
        datasets=("mnist", "fmnist", "kmnist"),
        methods=("lrt", "mnf"),
        settings=("default-common", "rates-common"),
        quick=Effort(trials=1, cost="10 minutes", options=QUICK),
        full=Effort(trials=3, cost="80 minutes on 2 cores", options=FULL),
        notes={("kmnist", "*", "*", "*"): KMNIST},
        questions=QUESTIONS,
    ),
    of_images(
        name="lbbnn/variance",
        summary="What the variance printed in the thesis does: passes as in training beside networks really "
        "drawn; prior inclusion 0.05, slab N(0, 1), inclusion logits from U(0, 1), 4 epochs.",
        source=source_of(FOLDER, "independent-program")[0],
        run=Deferred("lbbnn.images", "variance_table"),
        metrics=VARIANCE,
        datasets=("mnist",),
        methods=("lrt", "lrt-thesis"),
        settings=("thesis",),
        quick=Effort(trials=1, cost="1 minute", options=QUICK_RECIPE),
        full=Effort(trials=1, cost="3 minutes", options={**FULL_RECIPE, "epochs": 4}),
        published=printed.independent_program(),
        beside="other program",
        published_error=source_of(FOLDER, "independent-program")[1],
        explained=explanations(FOLDER, "variance"),
        questions=PRINTED_QUESTIONS,
    ),
)
