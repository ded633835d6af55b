"""How far fits of latent binary networks were seen to go on beyond the budgets of the pages."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from zoo.experiments.engine.declaration import Place
from zoo.experiments.lbbnn.metrics import INCLUDING

CONVOLUTIONS_GO_ON = (
    "of lrt on MNIST 5, 10, 20 and 80 epochs end at -0.269, -0.230, -0.197 and -0.137 nats, with 1.9, 1.6, "
    "1.5 and 0.7 % of the weights more likely in than out (--set epochs=5, 10, 80); the other learned priors "
    "and sets by analogy"
)
DENSE_GO_ON = (
    "of lrt on MNIST with priors by layer the bound is higher after twice as many epochs (--set epochs=40), "
    "with common moves and without; the others by analogy"
)
LEARNED = (
    "a prior that is learned follows its weights and they the prior, by small steps: where the weights of a "
    "layer also move as one, lrt and mnf on MNIST, Fashion-MNIST and KMNIST end in as many steps at better "
    "bounds, other densities and lower accuracies (lbbnn/common); the other methods by analogy"
)
FEW_ROWS_GO_ON = (
    "on the 8000 rows at hand three and nine times as many epochs (one run each, --set epochs=60, 180) end "
    "at other bounds, and most at other densities and accuracies; mvn was not run, nor mnf with rates for 180"
)
#: What a longer fit leaves as it is: what is learned is counted, or says itself how a fit ended.
UNMOVED = ("bound_charge", "bound_change")
#: Methods whose priors can be learned.
LEARNING = (*INCLUDING, "gaussian")


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


def learned(metrics: Collection[str], *settings: str, methods: Sequence[str] = LEARNING) -> dict[Place, str]:
    """Of the methods that learn priors; what has no prior to learn is called ``default`` too."""
    return going_on(LEARNED, settings or ("default",), methods, metrics)
