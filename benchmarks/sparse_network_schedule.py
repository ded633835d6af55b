"""What learning rate and ramp of the divergence make of a sparse network in a given number of epochs.

The choice of ``RATE_OF_LAWS`` in :mod:`zoo.experiments.lbbnn.networks` and of ``RAMP`` in
:mod:`zoo.fitting.epochs`: 15 % of the training images are held out, test images are not looked at.

    python benchmarks/sparse_network_schedule.py --rates 0.001,0.003,0.005 --ramps 0.05,0.1,0.3

A network takes four to six minutes in 20 epochs.  Needs ``ZOO_DATA``, or the download of MNIST.
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
    Fitted,
    images,
    make_guide,
    make_model,
    training_of,
    validation,
)
from zoo.fitting.epochs import bound, classes, train
from zoo.fitting.reach import own_rates

DATASET, HELD_OUT, WIDTHS, SEED = "mnist", 0.15, (400, 600), 7


def fit(method: str, setting: str, epochs: int, rate: float, ramp: float) -> Fitted:
    """A network of the tables with another rate and ramp."""
    cell = Cell("lbbnn/mnist", DATASET, method, setting, 0, options={"epochs": epochs})
    data = images(DATASET, held_out=HELD_OUT)
    plan = training_of(cell, len(data.x), SEED)
    steps = epochs * plan.steps_an_epoch(len(data.x))
    plan = replace(plan, lr=rate, ramp=ramp, factors=own_rates(rate, steps))
    torch.manual_seed(SEED)
    model = make_model(method, setting, data, WIDTHS)
    guide = make_guide(method, model, setting)
    return Fitted(model, [guide], data, train(guide.model, guide, (data.x, data.y), plan), SEED)


def line(method: str, setting: str, epochs: int, rate: float, ramp: float) -> str:
    """A row of the table."""
    begun = time.process_time()
    fitted = fit(method, setting, epochs, rate, ramp)
    seconds = time.process_time() - begun
    guide, data = fitted.guides[0], fitted.data
    assert isinstance(guide, AutoSpikeSlab)
    x, y = validation(DATASET, None, "cpu", HELD_OUT)
    right = accuracy(classes(fitted.ensemble(x, 10)), y)
    climbed = fitted.history.change / len(data.x)
    stands = bound(guide, (data.x, data.y), seed=SEED)
    mean, half = guide.density()
    return (
        f"{method:6} {setting:14} {rate:<7g} {ramp:<5g} {stands.value:8.4f} {climbed:7.4f} "
        f"{right.value:9.4f} {half:9.4f} {mean:9.4f} {seconds:7.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--methods", default="lrt", help="names of lbbnn/frontier (default: %(default)s)")
    parser.add_argument("--setting", default="rates", help="a prior, and -klWEIGHT (default: %(default)s)")
    parser.add_argument("--rates", default="0.003", help="first learning rates (default: %(default)s)")
    parser.add_argument("--ramps", default="0.1", help="shares of the training (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=20)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{DATASET}, {chosen.epochs} epochs, seed {SEED}; nats an image; accuracy of held-out images")
    print("method setting        rate    ramp     bound  change  accuracy   density mean_incl CPU_sec")
    rates, ramps = ([float(part) for part in given.split(",")] for given in (chosen.rates, chosen.ramps))
    for method, rate, ramp in itertools.product(chosen.methods.split(","), rates, ramps):
        print(line(method, chosen.setting, chosen.epochs, rate, ramp), flush=True)


if __name__ == "__main__":
    main()
