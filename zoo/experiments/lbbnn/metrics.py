"""What is measured of latent binary networks and of variable selection, and of which methods."""

from __future__ import annotations

METHODS = (
    "lrt", "mnf", "concrete", "gaussian", "concrete-dropout", "group-normal-jeffreys", "mlp", "mc-dropout",
    "deep-ensemble",
)  # fmt: skip
#: Those whose weights have indicators.
INCLUDING = ("lrt", "mnf", "concrete")
#: With correlated indicators, and the prior that it is fitted under: none can be learned.
CORRELATED, CORRELATED_SETTING = "mvn", "pi0.1-sd1"

#: Those whose priors can be learned, and all that have a law for every weight; points and dropout have rates
#: of their own.
LEARNING = (*INCLUDING, "gaussian", CORRELATED)
POSTERIORS = (*LEARNING, "group-normal-jeffreys")
POINT_METHODS = tuple(method for method in METHODS if method not in POSTERIORS)

SCORES = {
    "accuracy": "share of test images that the ensemble of drawn networks gets right; higher is better",
    "nll": "mean negative log probability that this ensemble gives to the label, nats, 15.94 at most of an "
    "image; lower is better",
    "ece": "calibration error of this ensemble, 15 bins; lower is better",
}
DENSITIES = {
    "density_mean": "mean inclusion probability of the weights, biases not counted",
    "density_half": "share of weights with inclusion probability above one half",
}
SETTLING = {
    "bound": "evidence lower bound of drawn networks, nats a training image, whatever the divergence counted "
    "in training; higher is better",
    "bound_trained": "what training took the bound for in its last epoch, with Gaussian noise in layers "
    "or relaxed indicators in place of drawn weights; above `bound` it promises more than networks have",
    "bound_charge": "what the learned numbers of the prior would take from the bound at half the logarithm "
    "of the number of weights behind each, nats a training image; not taken from it",
    "bound_change": "how much the bound that was climbed (or minus the loss) rose in the last tenth of the "
    "training, counted in learning rates, nats a training image; of `concrete`, whose bound falls with the "
    "temperature, at the last one; near 0 the run has ended",
}
TABLE = {
    **SCORES,
    "accuracy_one": "mean accuracy of one drawn network",
    "accuracy_mean": "accuracy of the posterior mean network",
    "nll_mean": "its negative log likelihood, nats",
    "ece_mean": "its calibration error",
    "accuracy_median": "accuracy of the median probability network: the means of the slabs whose inclusion "
    "is above one half",
    "nll_median": "its negative log likelihood, nats",
    "ece_median": "its calibration error",
    **DENSITIES,
    "density_paths": "share of weights that the median probability network keeps and that lie on a path from "
    "an input to an output",
    **SETTLING,
}
#: What the printed recipe calls an ensemble beside networks really drawn.
VARIANCE = {
    "accuracy_mean": "accuracy of the posterior mean network",
    "accuracy_lrt": "accuracy of averaged passes in which every row has noise of its own",
    "nll_lrt": "their negative log likelihood, nats",
    "ece_lrt": "their calibration error",
    **SCORES,
    **DENSITIES,
    **{name: SETTLING[name] for name in ("bound", "bound_trained", "bound_change")},
}
PRINTED_QUESTIONS = {
    "The posterior mean network": ("accuracy_mean",),
    "Averaged passes as in training, which the thesis calls an ensemble": (
        "accuracy_lrt", "nll_lrt", "ece_lrt",
    ),
    "Ten networks drawn from the posterior": ("accuracy", "nll", "ece"),
    "How many weights are needed": ("density_mean", "density_half"),
    "Where the bound stands": ("bound", "bound_trained", "bound_change"),
}  # fmt: skip
SELECTION = {
    "rmse": "root mean squared difference to the exact inclusion probabilities; lower is better",
    "worst": "largest difference to them",
    "tpr": "share of the nine columns with a coefficient that are selected: inclusion above 0.5",
    "fpr": "share of the other eleven that are selected",
    "wrongly_in": "columns selected that the exact posterior leaves out",
    "wrongly_out": "columns left out that the exact posterior selects",
}
#: Titles of the tables of a network's figures.
QUESTIONS = {
    "Ten networks drawn from the posterior": ("accuracy", "nll", "ece", "accuracy_one"),
    "The posterior mean network": ("accuracy_mean", "nll_mean", "ece_mean"),
    "The median probability network": ("accuracy_median", "nll_median", "ece_median"),
    "How many weights are needed": ("density_mean", "density_half", "density_paths"),
    "Where the bound stands": tuple(SETTLING),
}
CONVOLUTIONAL_QUESTIONS = {**QUESTIONS, "How many weights are needed": ("density_mean", "density_half")}
#: Of the median probability network as a program without its zeros.
EXPORT = {
    "density_half": DENSITIES["density_half"],
    "density_paths": TABLE["density_paths"],
    "kilobytes_dense": "of the network with its zeros",
    "kilobytes_sparse": "with weights as compressed sparse rows",
    "kilobytes_small": "without the units and inputs that nothing depends on",
    "milliseconds_dense": "for 1000 images, one thread; lower is better",
    "milliseconds_sparse": "the same, compressed sparse rows",
    "milliseconds_small": "the same, without dead units",
    "difference_sparse": "largest difference of an output, relative to the largest output",
    "difference_small": "the same, without dead units",
    "units_small": "hidden units that are left of 1000",
    "inputs_small": "inputs that are left of 784",
    "bound_change": SETTLING["bound_change"],
}
EXPORT_QUESTIONS = {
    "What is left": ("density_half", "density_paths", "units_small", "inputs_small"),
    "Size, kilobytes": ("kilobytes_dense", "kilobytes_sparse", "kilobytes_small"),
    "Milliseconds for 1000 images": (
        "milliseconds_dense",
        "milliseconds_sparse",
        "milliseconds_small",
    ),
    "Whether it is the same function": ("difference_sparse", "difference_small"),
    "Where the bound stands": ("bound_change",),
}
