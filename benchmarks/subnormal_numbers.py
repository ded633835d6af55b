r"""What numbers next to zero cost at the end of a fit, where the network knows its training images.

A network is fitted, and then goes on by steps so small that it stays where it is: in turn with subnormal
numbers (in float32 those below 1.2e-38) and with zeros in their place, as ``zoo.fitting.epochs`` has it.

    python benchmarks/subnormal_numbers.py --settings pi0.25-sd1 pi0.1-sd1
    python benchmarks/subnormal_numbers.py --methods lrt mlp gaussian

A fit takes three minutes.  The digits ship inside scikit-learn; other images are downloaded, or read from
ZOO_DATA.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext

import pyro
import torch
from pyro.infer import SVI
from torch import Tensor

from zoo.experiments.engine.declaration import Cell
from zoo.experiments.lbbnn import networks
from zoo.experiments.lbbnn.metrics import METHODS
from zoo.experiments.lbbnn.options import RATES
from zoo.fitting.subnormal import subnormal_numbers_are_zero

ROUNDS, STEPS, LR = 5, 20, 1e-9
ONE_NETWORK = tuple(method for method in METHODS if method != "deep-ensemble")


def processor_time(step: Callable[[], object]) -> float:
    """Milliseconds of this thread a step."""
    start = time.thread_time()
    for _ in range(STEPS):
        step()
    return 1e3 * (time.thread_time() - start) / STEPS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="digits", choices=("digits", "mnist", "fmnist", "kmnist"))
    parser.add_argument("--methods", nargs="+", default=["lrt"], choices=ONE_NETWORK)
    parser.add_argument("--settings", nargs="+", default=["default"])
    parser.add_argument("--epochs", type=int, default=60)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    options = {"epochs": arguments.epochs, "widths": "400-600", "rows": 0, "device": "cpu", **RATES}
    print(f"{arguments.dataset}, {arguments.epochs} epochs; ms of a step, medians of {ROUNDS} rounds in turn")
    print(f"{'method':22} {'setting':12} {'subnormal':>9} {'zero':>6} {'ratio':>6}")
    for method, setting in itertools.product(arguments.methods, arguments.settings):
        fitted = networks.fit(Cell("lbbnn", arguments.dataset, method, setting, 0, options=options))
        (guide,), data = fitted.guides, fitted.data
        svi = SVI(guide.model, guide, guide.optimizer(LR), guide.elbo())

        def step(svi: SVI = svi, x: Tensor = data.x, y: Tensor = data.y) -> None:
            rows = torch.randperm(len(x))[: networks.BATCH]
            svi.step(x[rows], y[rows], len(x))

        kept, zero = [], []
        for _ in range(ROUNDS):
            for times, context in ((kept, nullcontext), (zero, subnormal_numbers_are_zero)):
                with pyro.validation_enabled(False), context():
                    times.append(processor_time(step))
        kept_ms, zero_ms = statistics.median(kept), statistics.median(zero)
        print(f"{method:22} {setting:12} {kept_ms:9.1f} {zero_ms:6.1f} {kept_ms / zero_ms:6.2f}", flush=True)


if __name__ == "__main__":
    main()
