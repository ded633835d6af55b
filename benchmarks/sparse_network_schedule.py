r"""What learning rates and ramp of the divergence make of a sparse network in a given number of epochs.

The choice of ``RATES`` in :mod:`zoo.experiments.lbbnn.options` and of ``RAMP`` in :mod:`zoo.fitting.epochs`:
15 % of the training images are held out, test images are not looked at.

    python benchmarks/sparse_network_schedule.py --rates 0.001 0.005 0.01 --reaches 1
    python benchmarks/sparse_network_schedule.py --rates 0.005 0.01 0.02 --reaches 1 4 8 --setting default
    python benchmarks/sparse_network_schedule.py --rates 0.005 --reaches 1 --ramps 0.05 0.15 0.2 0.3
    python benchmarks/sparse_network_schedule.py --methods cold-mnf --setting fixed-kl0.1 --rates 0.005 \
        --reaches 1
    python benchmarks/sparse_network_schedule.py --network lenet --setting default --epochs 10 \
        --rates 0.005 --reaches 1 --ramps 0.15 0.3 0.5

A dense network takes three to six minutes in 20 epochs, LeNet seven.  Needs ``ZOO_DATA``, or the download
of MNIST.
"""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import replace

import torch

from guides import AutoSpikeSlab
from zoo.evaluation.metrics import accuracy
from zoo.experiments.engine.declaration import Cell
from zoo.experiments.lbbnn.networks import (
    FittedNetworks,
    images,
    make_guide,
    make_model,
    training_of,
    validation,
)
from zoo.experiments.lbbnn.options import RATES
from zoo.fitting.epochs import RAMP, bound, classes, train
from zoo.fitting.reach import own_rates

HELD_OUT, MEMBERS, SEED = 0.15, 10, 7
#: Hidden units; none for the convolutional network.
WIDTHS: dict[str, tuple[int, ...]] = {"dense": (400, 600), "lenet": ()}
METHODS = ("lrt", "mnf", "concrete", "gaussian", "cold-lrt", "cold-mnf")
SETTINGS = ("default", "rates", "fixed", "pi0.1-sd1", "fixed-kl0.1")


def fit(place: Cell, network: str, rate: float, reach: float, ramp: float) -> FittedNetworks:
    """A network of the tables with other rates and another ramp."""
    data = images(place.dataset, held_out=HELD_OUT)
    plan = training_of(place, len(data.x), SEED)
    steps = plan.epochs * plan.steps_an_epoch(len(data.x))
    plan = replace(plan, lr=rate, ramp=ramp, factors=own_rates(rate, steps, reach))
    torch.manual_seed(SEED)
    model = make_model(place.method, place.setting, data, WIDTHS[network])
    guide = make_guide(place.method, model, place.setting)
    return FittedNetworks(model, [guide], data, train(guide.model, guide, (data.x, data.y), plan), SEED)


def line(place: Cell, network: str, rate: float, reach: float, ramp: float) -> str:
    """A row of the table."""
    begun = time.process_time()
    fitted = fit(place, network, rate, reach, ramp)
    seconds = time.process_time() - begun
    guide, data = fitted.guides[0], fitted.data
    x, y = validation(place.dataset, None, "cpu", HELD_OUT)
    right = accuracy(classes(fitted.ensemble(x, MEMBERS)), y)
    risen = fitted.history.change / len(data.x)
    stands = bound(guide, (data.x, data.y), seed=SEED)
    half = f"{guide.density()[1]:9.4f}" if isinstance(guide, AutoSpikeSlab) else " " * 9
    return (
        f"{place.method:9} {place.setting:10} {rate:<7g} {reach:<5g} {ramp:<5g} "
        f"{stands.value:8.4f} {stands.se:7.4f} {risen:7.4f} {right.value:9.4f} {half} {seconds:8.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", choices=("mnist", "fmnist", "kmnist"), default="mnist")
    parser.add_argument("--network", choices=WIDTHS, default="dense", help="(default: %(default)s)")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["lrt"])
    parser.add_argument("--setting", choices=SETTINGS, default="rates", help="prior (default: %(default)s)")
    parser.add_argument(
        "--rates", nargs="+", type=float, default=[RATES["rate"]], help="first learning rates"
    )
    parser.add_argument(
        "--reaches",
        nargs="+",
        type=float,
        default=[RATES["reach"]],
        help="times that logits and log-sds can go as far",
    )
    parser.add_argument("--ramps", nargs="+", type=float, default=[RAMP], help="shares of the training")
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{options.dataset}, {options.network}, {options.epochs} epochs, seed {SEED}; nats an image")
    print("method    setting    rate    reach ramp     bound      se  change  held out   density  CPU sec")
    tried = itertools.product(options.methods, options.rates, options.reaches, options.ramps)
    for method, *schedule in tried:
        place = Cell(
            "", options.dataset, method, options.setting, 0, options={"epochs": options.epochs, **RATES}
        )
        print(line(place, options.network, *schedule), flush=True)


if __name__ == "__main__":
    main()
