"""How far fits of latent binary networks were seen to go on beyond the budgets of the pages."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from zoo.experiments.engine.declaration import Place
from zoo.experiments.lbbnn.metrics import LEARNING

CONVOLUTIONS_GO_ON = (
    "of lrt with a prior learned by layer on MNIST 20 epochs end at -0.149 nats, at half the rate and a "
    "quarter of the reach (--set rate=0.005 --set reach=1) 20 and 80 at -0.197 and -0.137; of lrt with slabs "
    "N(0, 1) and inclusion 0.1 on KMNIST 20 at -1.02, so 20, 60 and 180 at -1.32, -1.03 and -0.86; the "
    "others by analogy"
)
LEARNED_GO_ON = (
    "where the weights of a layer also move as one (lbbnn/common), lrt with priors by layer ends in as many "
    "steps on MNIST at -0.22 nats in place of -0.23, less accurate, on Fashion-MNIST at -0.45 in place of "
    "-0.48, 0.2 points less accurate (three runs each); on KMNIST nine times as many at half the rate (--set "
    "epochs=180 --set rate=0.005 --set reach=1) end at -1.03 in place of -1.11, with rates at "
    "-0.91 in place of -0.96 (one run each); the other learned priors by analogy"
)
COLD_GOES_ON = (
    "of cold-mnf with inclusion 0.02 and a weight of 0.1 three times as many epochs (three runs each, --set "
    "epochs=60) end on MNIST at a bound of -1.45 in place of -1.98 nats, with 3.3 in place of 4.3 % of the "
    "weights and the calibration error of before, on Fashion-MNIST at -1.72 in place of -2.09, calibrated no "
    "better (0.012 for 0.009), and nine times as many (one run) on KMNIST's 8000 rows at -2.82 in place of "
    "-5.07 (0.038 for 0.023); other cold posteriors by analogy"
)
#: What a longer fit leaves as it is: what is learned is counted, or says itself how a fit ended.
UNMOVED = ("bound_charge", "bound_change")


def going_on(
    why: str, settings: Sequence[str], methods: Sequence[str], metrics: Collection[str]
) -> dict[Place, str]:
    """``why`` for these numbers on every data set."""
    return {
        ("*", method, setting, metric): why
        for method in methods
        for setting in settings
        for metric in metrics
        if metric not in UNMOVED
    }


def learned(
    metrics: Collection[str],
    settings: Sequence[str] = ("default", "rates"),
    methods: Sequence[str] = LEARNING,
) -> dict[Place, str]:
    """Of the methods that learn priors; what has no prior to learn is called ``default`` too."""
    return going_on(LEARNED_GO_ON, settings, methods, metrics)


def cold(metrics: Collection[str], *methods: str) -> dict[Place, str]:
    """Of posteriors in whose training the divergence counts less than whole."""
    return going_on(COLD_GOES_ON, ("*",), methods or ("cold-mnf",), metrics)
