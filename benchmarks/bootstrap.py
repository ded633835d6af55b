"""What the nonparametric posteriors cost, as ratios measured side by side.

bootstrap   100 draws of a small Bayesian network, all together, relative to one after the other
flow        a training step of a masked autoregressive flow, 1000 rows, relative to Pyro's transforms, and to
            zuko where it is installed, without and with batch normalisation
posterior   100 draws with shared parameters, in training steps; and 100 whole trainings relative to that

    python benchmarks/bootstrap.py --help
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import pyro
import torch
from pyro import distributions as dist
from pyro.distributions import transforms
from torch import Tensor, nn
from torch.nn import functional as F

from guides import PosteriorBootstrap
from guides.bootstrap.base_measures import GaussianBase
from guides.bootstrap.shared_parameters import Laws, local_draws
from guides.bootstrap.training import InClosedForm, Law
from guides.flows.weighted_batch_norm import weighted_rows
from zoo.models import FlowDensity

ROWS = 1000


def race(contestants: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float]) -> dict:
    """Median seconds of one call each, taking turns."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 3):
        for name, call in contestants.items():
            start = clock()
            call()
            if turn >= 3:
                times[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def report(title: str, medians: dict[str, float], baseline: float, bars: dict[str, str]) -> None:
    print(f"{title}\n{'':44} {'ms':>9} {'ratio':>7}   bar")
    for name, seconds in medians.items():
        print(f"{name:44} {1e3 * seconds:9.3f} {seconds / baseline:7.2f}   {bars.get(name, '')}")
    print()


def network(read: bool) -> Callable:
    """3-10-1 with Gaussian weights; one that reads a value cannot be run for all draws at once."""

    def model(x: Tensor, y: Tensor | None = None) -> None:
        h = x
        for layer, (fan_in, width) in enumerate(((3, 10), (10, 1))):
            prior = dist.Normal(0.0, fan_in**-0.5)
            weight = pyro.sample(f"w{layer}", prior.expand([width, fan_in]).to_event(2))
            bias = pyro.sample(f"b{layer}", dist.Normal(0.0, 1.0).expand([width]).to_event(1))
            h = F.linear(torch.relu(h) if layer else h, weight, bias)
        if read:
            h.sum().item()
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(h.squeeze(-1), 0.1), obs=y)

    return model


def bootstrap_case(steps: int, clock: Callable[[], float]) -> None:
    """100 rows."""
    x = torch.randn(100, 3)
    y = torch.sin(x[:, 0]) + 0.1 * torch.randn(100)

    def run(read: bool, draws: int) -> float:
        start = clock()
        PosteriorBootstrap(network(read), loss="map").fit(x, y, num_draws=draws, steps=steps)
        return clock() - start

    for read in (True, False):
        run(read, 2)
    pairs = [(run(False, 100), run(True, 10)) for _ in range(5)]
    together, alone = (statistics.median(times) for times in zip(*pairs, strict=True))
    print(f"bootstrap of a network, 100 draws of {steps} steps")
    print(f"  together {together:.2f} s, one after the other {10 * alone:.2f} s (ten times ten)")
    print(f"  {10 * alone / together:.1f} times faster   bar 10\n")


def own_step(features: int, batch_norm: bool, x: Tensor) -> Callable[[], None]:
    flow = FlowDensity(features, batch_norm=batch_norm)
    law, objective = Law(torch.full((ROWS,), 1 / ROWS), (x,)), InClosedForm(flow)
    optimizer = torch.optim.Adam(flow.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        with weighted_rows(law.weights):
            loss, _ = objective.loss(law)
        loss.backward()
        optimizer.step()

    return step


def pyro_step(features: int, batch_norm: bool, x: Tensor) -> Callable[[], None]:
    parts: list[nn.Module] = []
    for block in range(3):
        if batch_norm and block:
            parts.append(transforms.BatchNorm(features))
        parts.append(transforms.affine_autoregressive(features, hidden_dims=[100]))
    modules = nn.ModuleList(parts)
    optimizer = torch.optim.Adam(modules.parameters(), lr=1e-3, fused=True)
    base = dist.Normal(torch.zeros(features), 1.0).to_event(1)

    def step() -> None:
        optimizer.zero_grad()
        z, total = x.clone(), 0.0  # a fresh tensor: they remember what they saw
        for part in modules:
            # its batch normalisation runs from latent space to data
            if isinstance(part, transforms.BatchNorm):
                moved = part._inverse(z)
                total = total - part.log_abs_det_jacobian(moved, z).sum(-1)
            else:
                moved = part(z)
                total = total + part.log_abs_det_jacobian(z, moved)
            z = moved
        (-(base.log_prob(z) + total).mean()).backward()
        optimizer.step()

    return step


def zuko_step(features: int, x: Tensor) -> Callable[[], None] | None:
    try:
        import zuko
    except ImportError:
        return None
    flow = zuko.flows.MAF(features, 0, transforms=3, hidden_features=[100])
    optimizer = torch.optim.Adam(flow.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        (-flow().log_prob(x).mean()).backward()
        optimizer.step()

    return step


def flow_case(features: int, rounds: int, clock: Callable[[], float]) -> None:
    x = torch.randn(ROWS, features)
    for batch_norm in (False, True):
        contestants = {"Pyro transforms": pyro_step(features, batch_norm, x)}
        if not batch_norm and (other := zuko_step(features, x)) is not None:
            contestants["zuko"] = other
        contestants["FlowDensity"] = own_step(features, batch_norm, x)
        medians = race(contestants, rounds, clock)
        fastest = min(seconds for name, seconds in medians.items() if name != "FlowDensity")
        words = "with" if batch_norm else "without"
        title = (
            f"one training step, {features} columns, {words} batch normalisation; ratio to the fastest other"
        )
        if not batch_norm and "zuko" not in contestants:
            title += " (pip install zuko: it is not here, and left out)"
        report(title, medians, fastest, {"FlowDensity": "1.1"})


def posterior_case(features: int, rounds: int, clock: Callable[[], float]) -> None:
    x = torch.randn(ROWS, features)
    step = own_step(features, True, x)
    flow = FlowDensity(features)
    flow.encode(x)
    flow.eval()
    base = GaussianBase(x)
    plain, process = Laws((x,), 0.0, None, 0), Laws((x,), 100.0, base, 500)
    medians = race(
        {
            "training step": step,
            "100 draws, weighted likelihood": lambda: local_draws(flow, plain, 100),
            "100 draws, 500 pseudo-observations": lambda: local_draws(flow, process, 100),
        },
        rounds,
        clock,
    )
    one, wlb, npl = medians.values()
    bars = dict(zip(medians, ("", "2", "25"), strict=True))
    report(f"draws with shared parameters, {features} columns; in training steps", medians, one, bars)
    for steps in (200, 400):
        print(
            f"  100 trainings of {steps} steps over one and its draws: "
            f"{100 * steps / (steps + wlb / one):.1f} (weighted likelihood), "
            f"{100 * steps / (steps + npl / one):.1f} (pseudo-observations)   bar 90"
        )
    print()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=("bootstrap", "flow", "posterior", "all"), default="all")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=200, help="of the bootstrap's optimisations")
    parser.add_argument("--features", type=int, nargs="+", default=[8, 43])
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu: for a machine that others use too"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    pyro.set_rng_seed(0)
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    if options.case in ("bootstrap", "all"):
        bootstrap_case(options.steps, clock)
    for features in options.features:
        if options.case in ("flow", "all"):
            flow_case(features, options.rounds, clock)
        if options.case in ("posterior", "all"):
            posterior_case(features, max(1, options.rounds // 4), clock)


if __name__ == "__main__":
    main()
