"""What one SVI step of the guides costs, relative to Pyro's own autoguide and to a deterministic network.

All contestants run in this one process and take turns, so that a busy machine slows them alike; the figures
are medians over rounds.  Three cases:

small   13-50-1 regression, 455 rows, full batch, validation on; everything relative to ``AutoNormal`` with
        ``TraceMeanField_ELBO`` and ``pyro.optim.Adam``; of ``AutoMNF`` also without its compiled flows
large   784-400-600-10 classification, batches of 100 drawn afresh (repeating one batch lets gradients become
        denormal numbers, which are slow); relative to the same network trained with ``torch.optim.Adam``.
        All as ``zoo`` trains: without validation, and freed memory kept.  Then where the time goes: the parts
        of a step, each run by itself, as shares of the plain step of the same race.  A small network stands
        for what every step pays whatever its size: Pyro's handlers, Python, nodes of autograd
conv    LeNet, batches of 200, as the large case; a guide convolves twice where the plain network does once

    python benchmarks/svi_step.py --help
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
import warnings
from collections.abc import Callable
from unittest import mock

import pyro
import torch
import torch.nn.functional as F
from pyro import distributions as dist
from pyro.infer import SVI, JitTrace_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

from guides import AutoMeanField, AutoMNF, AutoSpikeSlab, SpikeSlab
from guides.core.flat_guide import FlatGuide
from guides.core.fused import GaussianOutput, SpikeSlabSite
from guides.core.layer_noise import TINY_VARIANCE
from guides.core.svi import unwatched
from guides.flows import fused
from guides.variational.multipliers import Multipliers
from zoo.fitting.memory import keep_freed_memory
from zoo.models.lenet import LeNet, mean_pooling
from zoo.models.weights import GaussianWeights, SpikeSlabWeights

WIDTHS, BATCH, CONVOLUTIONAL_BATCH = (784, 400, 600, 10), 100, 200
PLAIN = "plain network, Adam"
#: Ratios to the plain network. What keeps a step from its bar is in the table of its parts.
BARS = {"AutoMeanField": 4.50, "AutoSpikeSlab": 2.50, "AutoMNF, rnvp": 4.20, "AutoMNF, iaf": 5.50}


def network(widths: tuple[int, ...], spike_slab: bool, likelihood: Callable) -> Callable:
    """A Pyro model: weights ``N(0, 1 / fan_in)`` or spike and slab, biases ``N(0, 1)``, ReLU."""

    def model(x: Tensor, y: Tensor | None = None) -> None:
        h = x
        for layer, (fan_in, width) in enumerate(itertools.pairwise(widths)):
            scale = torch.tensor(1 / math.sqrt(fan_in))
            prior = SpikeSlab(torch.tensor(0.1), scale=scale) if spike_slab else dist.Normal(0.0, scale)
            weight = pyro.sample(f"w{layer}", prior.expand([width, fan_in]).to_event(2))
            bias = pyro.sample(f"b{layer}", dist.Normal(0.0, 1.0).expand([width]).to_event(1))
            h = F.linear(torch.relu(h) if layer else h, weight, bias)
        likelihood(h, y)

    return model


def regression(output: Tensor, y: Tensor | None) -> None:
    precision = pyro.sample("precision", dist.Gamma(6.0, 6.0))
    with pyro.plate("data", output.shape[-2]):
        pyro.sample("y", dist.Normal(output.squeeze(-1), precision.rsqrt()), obs=y)


def classification(output: Tensor, y: Tensor | None) -> None:
    with pyro.plate("data", 60_000, subsample=torch.arange(output.shape[-2])):  # drawn by the caller
        pyro.sample("y", dist.Categorical(logits=output), obs=y)


def small_case() -> dict[str, Callable[[], object]]:
    model = network((13, 50, 1), False, regression)
    x = torch.randn(455, 13)
    data = x, torch.sin(x[:, 0]) + 0.3 * torch.randn(455)

    def stepper(guide, optimizer, loss):
        svi = SVI(model, guide, optimizer, loss)
        return lambda: svi.step(*data)

    mnf = AutoMNF(model)
    mnf_step = stepper(mnf, mnf.optimizer(), mnf.elbo())

    def in_torch() -> None:
        """A step of the same guide without the compiled flows."""
        with mock.patch.object(fused, "has_kernel", return_value=False):
            mnf_step()

    adam = {"lr": 0.01}
    auto, jit = AutoNormal(model), AutoNormal(model)
    mean_field, sampled = AutoMeanField(model), AutoMeanField(model, lrt=False)
    return {
        "AutoNormal": stepper(auto, pyro.optim.Adam(adam), TraceMeanField_ELBO()),
        "AutoNormal, JitTrace_ELBO": stepper(
            jit, pyro.optim.Adam(adam), JitTrace_ELBO(ignore_jit_warnings=True)
        ),
        "AutoMeanField": stepper(mean_field, mean_field.optimizer(), mean_field.elbo()),
        "AutoMeanField, no LRT": stepper(sampled, sampled.optimizer(), sampled.elbo()),
        "AutoMNF": mnf_step,
        "AutoMNF, flows by torch": in_torch,
    }


def classifiers(
    plain: nn.Module, guides: dict[str, FlatGuide], batch: int
) -> dict[str, Callable[[], object]]:
    """A step of a deterministic network and of guides on such networks, with batches drawn afresh."""
    images, labels = torch.rand(6000, WIDTHS[0]), torch.randint(WIDTHS[-1], (6000,))

    def minibatch() -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(images), (batch,))
        return images[rows], labels[rows]

    adam = torch.optim.Adam(plain.parameters(), lr=1e-3)

    def plain_step() -> None:
        x, y = minibatch()
        adam.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        adam.step()

    def stepper(guide: FlatGuide) -> Callable[[], object]:
        svi = SVI(guide.model, guide, guide.optimizer(lr=1e-3), guide.elbo())
        return lambda: svi.step(*minibatch())

    return {PLAIN: plain_step, **{name: stepper(guide) for name, guide in guides.items()}}


def large_case() -> dict[str, Callable[[], object]]:
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(WIDTHS)]
    plain = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])
    gaussian, mixed = (network(WIDTHS, spike_slab, classification) for spike_slab in (False, True))
    guides = {
        "AutoMeanField": AutoMeanField(gaussian),
        "AutoSpikeSlab": AutoSpikeSlab(mixed, init_inclusion="mild"),
        "AutoMNF, rnvp": AutoMNF(mixed, init_inclusion="mild"),
        "AutoMNF, iaf": AutoMNF(mixed, flow="iaf", init_inclusion="mild"),
    }
    return classifiers(plain, guides, BATCH)


class MeanPooling(nn.Module):
    """That of LeNet."""

    def forward(self, maps: Tensor) -> Tensor:
        return mean_pooling(maps)


def convolutional_case() -> dict[str, Callable[[], object]]:
    gaussian, mixed = (LeNet(WIDTHS[0], weights=law) for law in (GaussianWeights(), SpikeSlabWeights(0.1)))
    layers: list[nn.Module] = [nn.Unflatten(1, (1, gaussian.side, gaussian.side))]
    for out, into, *kernel in gaussian.layers:
        if kernel:
            layers += [nn.Conv2d(into, out, kernel), nn.ReLU(), MeanPooling()]
        else:
            layers += [nn.Flatten(), nn.Linear(into, out), nn.ReLU()]
    guides = {
        "AutoMeanField": AutoMeanField(gaussian),
        "AutoSpikeSlab": AutoSpikeSlab(mixed, init_inclusion="mild"),
        "AutoMNF, rnvp": AutoMNF(mixed, init_inclusion="mild"),
    }
    return classifiers(nn.Sequential(*layers[:-1]), guides, CONVOLUTIONAL_BATCH)


def parts() -> dict[str, dict[str, Callable[[], object]]]:
    """What steps of the large case consist of, ``{step: {part: run it}}``, each part forth and back."""
    shapes = [(b, a) for a, b in itertools.pairwise(WIDTHS)]
    inputs = [torch.rand(BATCH, fan_in) for _, fan_in in shapes]
    weights = [torch.randn(shape, requires_grad=True) for shape in shapes]
    outputs = [torch.randn(BATCH, width) for width, _ in shapes]

    def products(times: int) -> None:
        for _ in range(times):
            for i, (x, w, d) in enumerate(zip(inputs, weights, outputs, strict=True)):
                _ = F.linear(x, w.detach()), d.T @ x, d @ w.detach() if i else None

    def differentiated(function: Callable, arguments: list[list[Tensor]], *fixed: object) -> Callable:
        upstream = [[torch.ones_like(r) for r in function(*own, *fixed)] for own in arguments]

        def run() -> None:
            for own, d in zip(arguments, upstream, strict=True):
                torch.autograd.grad(function(*own, *fixed), own, d)

        return run

    def adam(numbers_a_weight: int, **options) -> Callable:
        tensors = [torch.zeros(numbers_a_weight * w.numel(), requires_grad=True) for w in weights]
        for tensor in tensors:
            tensor.grad = torch.randn_like(tensor)
        return torch.optim.Adam(tensors, **options).step

    def like(tensors: list[Tensor], count: int) -> list[list[Tensor]]:
        return [[torch.rand_like(t).requires_grad_() for _ in range(count)] for t in tensors]

    def drawn(mean: Tensor, variance: Tensor) -> tuple[Tensor]:
        return (GaussianOutput.apply(mean, variance, torch.randn_like(mean), TINY_VARIANCE),)

    multipliers = [Multipliers(fan_in, "rnvp", 2, (50,), 1.0, 0.1) for _, fan_in in shapes]
    seen = [torch.randn(width) for width, _ in shapes]

    def flows() -> None:
        for module, activations in zip(multipliers, seen, strict=True):
            z, density = module(torch.randn(len(module.contraction)), expected=True)
            (density - module.log_auxiliary(z, activations)).backward()
            module.zero_grad()

    model = network((7, 4, 6, 10), True, classification)
    guide = AutoSpikeSlab(model, init_inclusion="mild")
    svi = SVI(model, guide, guide.optimizer(lr=1e-3), guide.elbo())
    x, y = torch.rand(BATCH, 7), torch.randint(10, (BATCH,))
    prior = torch.tensor(-2.0), torch.tensor(0.0), torch.tensor(1.0)
    lrt = {
        "products of matrices, twice": lambda: products(2),
        "noise and outputs": differentiated(drawn, like(outputs, 2)),
        "moments and KL of weights": differentiated(SpikeSlabSite.apply, like(weights, 3), *prior),
        "Adam, 3 numbers a weight": adam(3, fused=True),
        "the same step of 7-4-6-10": lambda: svi.step(x, y),
    }
    return {
        PLAIN: {"products of matrices": lambda: products(1), "Adam": adam(1)},
        "AutoSpikeSlab": lrt,
        "AutoMNF, rnvp": {**lrt, "flows": flows},
    }


def race(
    contestants: dict[str, Callable[[], object]], rounds: int, warm_up: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Median seconds of one call each, taking turns."""
    for _, step in itertools.product(range(warm_up), contestants.values()):
        step()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, step in contestants.items():
            start = clock()
            step()
            times[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def report(title: str, medians: dict[str, float], bars: dict[str, float]) -> None:
    print(f"{title}\n{'':28} {'ms':>8} {'ratio':>7}   bar")
    baseline = next(iter(medians.values()))
    for name, seconds in medians.items():
        bar = f"{bars[name]:5.2f}" if name in bars else ""
        print(f"{name:28} {1e3 * seconds:8.3f} {seconds / baseline:7.2f} {bar}")
    print()


def report_parts(steps: dict[str, Callable], rounds: int, clock: Callable[[], float]) -> None:
    """Runs the parts against the whole steps, and prints shares of the plain step."""
    table = parts()
    contestants = {name: steps[name] for name in table}
    contestants |= {f"{step}: {part}": run for step, own in table.items() for part, run in own.items()}
    medians = race(contestants, rounds, 5, clock)
    print("where the time goes, in plain steps")
    for step, own in table.items():
        shares = {part: medians[f"{step}: {part}"] / medians[PLAIN] for part in own}
        shares["all else (data, memory, caches)"] = medians[step] / medians[PLAIN] - sum(shares.values())
        print(f"{step:34} {medians[step] / medians[PLAIN]:5.2f}")
        for part, share in shares.items():
            print(f"  {part:32} {share:5.2f}")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=("small", "large", "conv", "all"), default="all")
    parser.add_argument(
        "--rounds", type=int, default=300, help="timed steps of the small case (the others: a third)"
    )
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu: for a machine that others use too"
    )
    options = parser.parse_args()

    warnings.filterwarnings("ignore", category=FutureWarning)  # the JIT contestant's
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    torch.set_num_threads(options.threads)
    pyro.set_rng_seed(options.seed)
    pyro.enable_validation(True)
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    print(
        f"torch {torch.__version__}, pyro {pyro.__version__}, {options.threads} thread(s), "
        f"medians of {options.clock} time\n"
    )
    rounds = max(1, options.rounds // 3)
    if options.case in ("small", "all"):
        medians = race(small_case(), options.rounds, 20, clock)
        report("one SVI step, 13-50-1, 455 rows", medians, {"AutoMeanField": 0.70})
    keep_freed_memory()
    with unwatched():
        if options.case in ("large", "all"):
            steps = large_case()
            report("one step, 784-400-600-10, batch 100", race(steps, rounds, 5, clock), BARS)
            report_parts(steps, rounds, clock)
        if options.case in ("conv", "all"):
            report("one step, LeNet, batch 200", race(convolutional_case(), rounds, 5, clock), {})


if __name__ == "__main__":
    main()
