"""What the experiments on images share: how options are checked, when a fit has settled, and notes."""

from __future__ import annotations

from typing import Any

from zoo.experiments.engine.declaration import Experiment
from zoo.experiments.lbbnn.metrics import POINT_METHODS
from zoo.experiments.lbbnn.options import COLD_RATES, POINT_RATE, check_options

PAPER = "Skaaret-Lund 2022, latent binary Bayesian neural networks (thesis); Hubin and Storvik 2019"
#: Of the tables of networks: what ``lbbnn/frontier`` found to be sparse, sharp and calibrated.
COLD_SETTING = "fixed-kl0.1"
COLD_NOTE = (
    "a cold posterior, of data that count 1/kl times: sharper than the posterior, and not it; its first rate "
    f"is {COLD_RATES['rate']:g} and its reach {COLD_RATES['reach']:g}, whatever the options say"
)
POINT_NOTE = f"its first rate is {POINT_RATE:g}, whatever the options say"
KMNIST = (
    "where the training images cannot be had, 8000 of the test images train and 2000 test, and an epoch is "
    "four passes (one under the thesis's recipe): such numbers do not compare with published ones"
)
#: Nats an image that a bound still rises by in the last tenth of a training that has ended; chosen, not
#: derived.
ENDED = 0.05


def of_images(**declared: Any) -> Experiment:
    """An experiment of this family: all check their options alike, and say alike what has not settled, and
    which methods have a rate of their own.
    """
    settled = {"bound_change": ENDED} if "bound_change" in declared["metrics"] else {}
    own_rate = POINT_METHODS if "rate" in declared["full"].options else ()
    notes = {("*", method, "*", "*"): POINT_NOTE for method in own_rate if method in declared["methods"]}
    notes |= declared.pop("notes", {})
    return Experiment(check=check_options, settled=settled, notes=notes, **declared)
