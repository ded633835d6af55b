r"""What a falling temperature hides of what `concrete` still gains at the end of a fit.

The lower the temperature the lower the relaxed bound of one and the same guide.  Along a fit the temperature
falls from 1 to 0.1, in its last tenth (counted in learning rates) from 0.25 on.  So the pages compare the two
ends of that tenth at the last temperature (`bound_change`); here both changes stand side by side.

    python benchmarks/falling_temperature.py --dataset kmnist --setting pi0.25-sd1 --epochs 60 \
        --rate 0.005 --reach 1

A fit takes about seven minutes there, a minute by default.  KMNIST is downloaded, or read from ZOO_DATA; the
digits ship inside scikit-learn.
"""

from __future__ import annotations

import argparse

import torch
from pyro.infer import SVI

from guides.core.settling import last_change
from guides.core.svi import Step, shuffled_epochs, svi_steps
from zoo.experiments.engine.declaration import Cell
from zoo.experiments.lbbnn import networks
from zoo.experiments.lbbnn.options import RATES
from zoo.fitting.epochs import set_up
from zoo.fitting.svi import fitting

METHOD = "concrete"


def steps_of(cell: Cell) -> tuple[list[Step], list[float], int]:
    """All steps of a cell's fit, their learning rates, and how many images it has."""
    torch.manual_seed(0)
    data = networks.images(cell.dataset)
    rows = data.x, data.y
    training = networks.training_of(cell, len(data.x), 0)
    model = networks.make_model(METHOD, cell.setting, data, networks.widths_of(cell))
    guide = networks.make_guide(METHOD, model, cell.setting)
    set_up(guide, rows, training)
    svi = SVI(model, guide, guide.optimizer(training.lr, factors=training.factors), guide.elbo())
    schedule = training.schedule(len(data.x))
    with fitting():
        steps = list(svi_steps(svi, shuffled_epochs(rows, training.batch_size, 0), schedule))
    return steps, [schedule.learning_rate(step) for step in range(schedule.steps)], len(data.x)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="digits", choices=("digits", "mnist", "fmnist", "kmnist"))
    parser.add_argument("--setting", default="default", choices=("default", "pi0.1-sd1", "pi0.25-sd1"))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rate", type=float, default=RATES["rate"], help="first learning rate")
    parser.add_argument("--reach", type=float, default=RATES["reach"], help="see zoo.fitting.reach")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    options = {
        "epochs": arguments.epochs,
        "widths": "400-600",
        "rows": 0,
        "device": "cpu",
        "rate": arguments.rate,
        "reach": arguments.reach,
    }
    place = f"lbbnn/{arguments.dataset}", arguments.dataset, METHOD, arguments.setting, 0
    steps, rates, images = steps_of(Cell(*place, options=options))
    print(f"{METHOD} on {arguments.dataset}, {arguments.setting}, {arguments.epochs} epochs")
    print("gain of the relaxed bound in the last tenth, nats an image, and its standard error")
    for words, losses in (
        ("at the temperature of each step", [step.loss for step in steps]),
        ("at the last temperature", [step.final_loss for step in steps]),
    ):
        change, se = last_change(losses, rates)
        print(f"{words:32}{change / images:8.3f}{se / images:8.3f}")


if __name__ == "__main__":
    main()
