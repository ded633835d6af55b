"""What ``sip-ns`` needs against learning rows by heart: held-out log likelihood by dropout and bound.

The last look at the choice of ``SAMPLER_DROPOUT``, ``SAMPLER_REACH`` and ``SAMPLER_ROWS`` of
:mod:`zoo.fitting.implicit`: a fifth of the training rows is held out, test rows are not looked at.

    python benchmarks/neural_sampler_dropout.py --datasets kin8nm wine_red --dropouts 0 0.2

Data sets that are not embedded need ``ZOO_DATA``, or their download.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
import torch

from data_loaders import load
from guides.implicit import SparseImplicitProcess
from zoo.fitting.implicit import (
    INDUCING_OF_MORE,
    SAMPLER_DROPOUT,
    SAMPLER_NOISE,
    SAMPLER_NOISE_RATE,
    SAMPLER_RATE,
    SAMPLER_REACH,
    WIDTHS,
)
from zoo.fitting.memory import keep_freed_memory
from zoo.models import NeuralSampler

HELD_OUT, SEED = 0.2, 7


def parted(name: str) -> tuple[torch.Tensor, ...]:
    """``x, y`` to fit ``[N, d], [N]`` and ``x, y`` held out, all standardised by the former; the last item is
    the sd of the target in its unit.
    """
    data = load(name)
    order = np.random.default_rng(SEED).permutation(len(data.x_train))
    kept = round((1 - HELD_OUT) * len(order))
    x, y = data.x_train, data.y_train
    parts = [(values[order[:kept]], values[order[kept:]]) for values in (x, y)]
    scaled = []
    for first, second in parts:
        sd = first.std(0)
        scaled += [(part - first.mean(0)) / np.where(sd == 0, 1, sd) for part in (first, second)]
    x, x_held, y, y_held = (torch.as_tensor(part, dtype=torch.float32) for part in scaled)
    return x, y, x_held, y_held, torch.tensor(parts[1][0].std())


def measure(name: str, dropout: float, reach: float, steps: int) -> None:
    """One line: log likelihood of the rows held out, nats in the target's unit, and their RMSE."""
    x, y, x_held, y_held, sd = parted(name)
    torch.manual_seed(0)
    prior = NeuralSampler(x.shape[1], WIDTHS, dropout=dropout)
    guide = SparseImplicitProcess(prior, INDUCING_OF_MORE, init_noise_scale=SAMPLER_NOISE)
    begun, lr = time.process_time(), min(SAMPLER_RATE, reach * len(x) / steps)
    guide.fit(x, y, steps=steps, lr=lr, noise_lr=SAMPLER_NOISE_RATE)
    law = guide.predictive(x_held)
    likelihood = law.log_prob(y_held.double()).mean().item() - math.log(sd)
    rmse = (law.mean - y_held).square().mean().sqrt().item() * sd.item()
    print(
        f"{name:12} {len(x):6} rows  dropout {dropout:4}  reach {reach:6}  log likelihood {likelihood:8.3f}  "
        f"RMSE {rmse:7.3f}  {time.process_time() - begun:4.0f} CPU s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=["boston", "concrete", "energy", "yacht"])
    parser.add_argument("--dropouts", nargs="+", type=float, default=[0.0, SAMPLER_DROPOUT])
    parser.add_argument("--reach", type=float, default=SAMPLER_REACH, help="learning rate times steps, a row")
    parser.add_argument("--steps", type=int, default=4000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    for name in options.datasets:
        for dropout in options.dropouts:
            measure(name, dropout, options.reach, options.steps)


if __name__ == "__main__":
    main()
