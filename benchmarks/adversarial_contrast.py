r"""How many draws a step adversarial variational Bayes needs: its objective beside the exact evidence.

A linear regression on 40 correlated features has its posterior and evidence in closed form.  From
five draws a weight on, adaptive contrast has the draws' correlations; with fewer the classifier has to find
them, hardly ever errs, and the divergence counts too little: the objective rises above the log evidence,
which no bound does.

    python benchmarks/adversarial_contrast.py --seeds 2

A generator narrower than the weights are many has no density, whatever the draws:

    python benchmarks/adversarial_contrast.py --weights 100 --num-particles 500 --steps 2000
    python benchmarks/adversarial_contrast.py --weights 100 --num-particles 500 --steps 2000 --width 200

Some 5 to 40 seconds a fit.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable

import pyro
import torch
from pyro import distributions as dist
from torch import Tensor

from guides.implicit import AdversarialVariationalBayes, SaturationWarning
from guides.truth import conjugate_linear_regression

ROWS, INPUTS, NOISE = 400, 10, 0.7
LOOKS = 200  # last steps that the objective is averaged over
DRAWS = 4000


def problem(weights: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features ``[ROWS, weights]``, targets, and features of 100 test rows: rectified sums of ten inputs."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS + 100, INPUTS, generator=generator)
    directions = torch.randn(INPUTS, weights, generator=generator) / INPUTS**0.5
    x = (inputs @ directions + torch.randn(weights, generator=generator)).clamp(min=0)
    truth = torch.randn(weights, generator=generator) / weights**0.5
    y = x @ truth + NOISE * torch.randn(ROWS + 100, generator=generator)
    return x[:ROWS], y[:ROWS], x[ROWS:]


def regression(weights: int) -> Callable:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(weights), weights**-0.5).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, NOISE), obs=y)

    return model


def line(
    weights: int,
    num_particles: int,
    steps: int,
    seed: int,
    width: int,
    lr: float,
    classifier_lr: float | None,
) -> str:
    """A row of the table."""
    x, y, x_test = problem(weights)
    exact = conjugate_linear_regression(x.numpy(), y.numpy(), prior_scale=weights**-0.5, noise_scale=NOISE)
    begun = time.process_time()
    guide = AdversarialVariationalBayes(
        regression(weights),
        num_particles=num_particles,
        hidden=(width, width),
        noise_features=max(width, 100),
    )
    guide.fit(x, y, steps=steps, lr=lr, classifier_lr=classifier_lr, seed=seed)
    seconds = time.process_time() - begun
    objective = -sum(guide.losses[-LOOKS:]) / LOOKS
    functions = guide.draws(DRAWS, seed=seed)["w"].double() @ x_test.double().mT
    mean, covariance = torch.as_tensor(exact.mean), torch.as_tensor(exact.covariance)
    f_mean = x_test.double() @ mean
    f_sd = ((x_test.double() @ covariance) * x_test).sum(-1).sqrt()
    error = ((functions.mean(0) - f_mean).abs() / f_sd).mean().item()
    ratio = (functions.std(0) / f_sd).mean().item()
    loss = guide.facts["classifier_loss"]
    return (
        f"{weights:7} {num_particles:13} {steps:6} {seed:4} {objective - exact.log_evidence:9.1f} "
        f"{loss:10.3f} {error:10.3f} {ratio:8.3f} {seconds:7.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", nargs="+", type=int, default=[40], help="features of the regression")
    parser.add_argument("--lr", type=float, default=5e-3, help="first learning rate")
    parser.add_argument("--num-particles", nargs="+", type=int, default=[100, 200], help="draws a step")
    parser.add_argument("--steps", nargs="+", type=int, default=[2000, 10000])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--width",
        type=int,
        default=50,
        help="hidden units a layer, of both networks; noise has as many dimensions, 100 at least",
    )
    parser.add_argument("--classifier-lr", type=float, help="default: that of the generator")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", SaturationWarning)  # the table shows the classifier's loss
    print("objective less the log evidence, nats; mean error and sd ratio of the function, in exact sds")
    print("weights num_particles  steps seed  above Z classifier mean error sd ratio CPU sec")
    for weights in options.weights:
        for num_particles in options.num_particles:
            for steps in options.steps:
                for seed in range(options.seeds):
                    row = line(
                        weights, num_particles, steps, seed, options.width, options.lr, options.classifier_lr
                    )
                    print(row, flush=True)


if __name__ == "__main__":
    main()
