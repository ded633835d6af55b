r"""What the start of the logits' spread makes of correlated inclusions in a network of 400 and 600 units.

The choice of ``MVN_SPREAD`` in :mod:`zoo.experiments.lbbnn.networks`: the same cell of ``lbbnn/digits`` from
several starts, beside independent inclusions (``lrt``), whose bound the correlated ones have where their
covariance is zero.

    python benchmarks/correlated_inclusion_start.py --spreads 0.1 0.5 2.0 --trials 1 \
        --rate 0.005 --reach 1

A fit takes two to three minutes.  The digits ship inside scikit-learn.
"""

from __future__ import annotations

import argparse
import time

import torch

from zoo.evaluation.metrics import accuracy
from zoo.experiments.engine.declaration import Cell
from zoo.experiments.lbbnn import networks
from zoo.experiments.lbbnn.options import RATES
from zoo.fitting.epochs import bound, classes, train

DATASET, SETTING, WIDTHS, MEMBERS = "digits", "pi0.1-sd1", "400-600", 10


def line(method: str, spread: float, epochs: int, trial: int, rates: dict[str, float]) -> str:
    """A row of the table."""
    options = {"epochs": epochs, "widths": WIDTHS, "rows": 0, "device": "cpu", **rates}
    cell = Cell(f"lbbnn/{DATASET}", DATASET, method, SETTING, trial, options=options)
    data = networks.images(DATASET)
    model = networks.make_model(method, SETTING, data, networks.widths_of(cell))
    plan = networks.training_of(cell, len(data.x), seed=trial)
    torch.manual_seed(trial)
    guide = networks.make_guide(method, model, SETTING)
    if method == "mvn":
        guide.init_spread = spread
    begun = time.process_time()
    history = train(guide.model, guide, (data.x, data.y), plan)
    seconds = time.process_time() - begun
    fitted = networks.FittedNetworks(model, [guide], data, history, trial)
    right = accuracy(classes(fitted.ensemble(data.x_test, MEMBERS)), data.y_test)
    stands, risen = bound(guide, (data.x, data.y), seed=trial), history.change / len(data.x)
    start = f"{spread:6g}" if method == "mvn" else " " * 6
    figures = f"{stands.value:8.4f} {stands.se:7.4f} {risen:7.4f} {right.value:9.4f} {seconds:8.0f}"
    return f"{method:7} {start} {trial:5} {figures}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--spreads", nargs="+", type=float, default=[0.1, 0.5, 2.0], help="sds of the logits")
    parser.add_argument("--epochs", type=int, default=20, help="as of the page: 20 passes each")
    parser.add_argument("--trials", type=int, default=1)
    parser.add_argument("--rate", type=float, default=RATES["rate"], help="first learning rate")
    parser.add_argument("--reach", type=float, default=RATES["reach"], help="see zoo.fitting.reach")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{DATASET}, {WIDTHS} units, {SETTING}, {options.epochs} epochs; nats an image, test images")
    print("method  spread trial    bound      se  change  accuracy  CPU sec")
    rates = {"rate": options.rate, "reach": options.reach}
    for trial in range(options.trials):
        print(line("lrt", 0.0, options.epochs, trial, rates), flush=True)
        for spread in options.spreads:
            print(line("mvn", spread, options.epochs, trial, rates), flush=True)


if __name__ == "__main__":
    main()
