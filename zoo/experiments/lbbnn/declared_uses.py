"""What networks on images are good for: decisions, entropy, pictures, programs; how they train; the cost."""

from __future__ import annotations

from zoo.experiments.engine.declaration import UNPUBLISHED, Deferred, Effort, Source
from zoo.experiments.engine.published import explanations, source_of
from zoo.experiments.lbbnn import printed
from zoo.experiments.lbbnn.family import KMNIST, PAPER, of_images
from zoo.experiments.lbbnn.going_on import learned
from zoo.experiments.lbbnn.metrics import EXPORT, EXPORT_QUESTIONS, INCLUDING, METHODS, SCORES, SETTLING
from zoo.experiments.lbbnn.options import COST, FULL, QUICK
from zoo.experiments.lbbnn.printed import FOLDER

DECISIONS = {
    "decided": "share of test images that are decided",
    "accuracy_decided": "accuracy among them; higher is better",
    "accuracy_all": "accuracy among all",
    "decided_outside": "share of images of another data set that are decided; lower is better",
}

EXPERIMENTS = (
    of_images(
        name="lbbnn/decisions",
        revision=5,
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
        unarrived=learned(DECISIONS, ("default",), (*INCLUDING, "gaussian")),
        questions={
            "What is decided, and how well": ("decided", "accuracy_decided", "accuracy_all"),
            "What is decided that should not be": ("decided_outside",),
            "Where the bound stands": ("bound_change",),
        },
    ),
    of_images(
        name="lbbnn/entropy",
        revision=5,
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
        unarrived=learned(
            ("accuracy", "entropy_inside", "entropy_outside", "auroc"), ("default",), ("lrt", "mnf")
        ),
        questions={
            "How sure the ensemble is": ("accuracy", "entropy_inside", "entropy_outside", "auroc"),
            "Where the bound stands": ("bound_change",),
        },
    ),
    of_images(
        name="lbbnn/training",
        revision=5,
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
        unarrived=learned(
            ("nll_ensemble_test", "nll_ensemble_train", "nll_mean_test", "nll_mean_train"),
            ("default",),
            (*INCLUDING, "gaussian"),
        ),
        questions={
            "Ten drawn networks": ("nll_ensemble_test", "nll_ensemble_train", "nll_best"),
            "The posterior mean network": ("nll_mean_test", "nll_mean_train"),
        },
    ),
    of_images(
        name="lbbnn/pictures",
        revision=5,
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
        unarrived=learned(
            ("entropy_low", "wrong_low", "entropy_high", "wrong_high"), ("default",), ("lrt", "mnf")
        ),
        questions={
            "Images of lowest entropy": ("entropy_low", "wrong_low"),
            "Images of highest entropy": ("entropy_high", "wrong_high"),
        },
    ),
    of_images(
        name="lbbnn/export",
        revision=5,
        summary="The median probability network as a program without its zeros: size and speed.",
        source=UNPUBLISHED,
        run=Deferred("lbbnn.images", "export"),
        metrics=EXPORT,
        datasets=("mnist",),
        methods=("lrt", "mnf", "concrete"),
        quick=Effort(trials=1, cost="1 minute", options=QUICK),
        full=Effort(trials=1, cost="10 minutes on 2 cores", options=FULL),
        unarrived=learned(("density_half",), ("default",), INCLUDING),
        questions=EXPORT_QUESTIONS,
    ),
    of_images(
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
