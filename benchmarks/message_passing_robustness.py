"""Spike-and-slab message passing without biases, where the published formulas lose runs: it must lose none.

boston  5x5x5, 40 epochs, float64, 60 seeds: the published formulas lose 28 of 60
yacht   5x5x5,  3 epochs, float32, 100 seeds: the published formulas lose 90 to 100 of 100

A run is lost when NaN or infinity stands in a weight's mean or variance, in the Gammas of noise and weights,
or in a prediction (mean, variance and slab probability of every layer, over all rows).  Variances must be
positive too.  Each seed has a random 80/20 split; runs of one structure are fitted side by side.  Needs the
data sets (ZOO_DATA or the network).  Ends with 1 when a run is lost.

    python benchmarks/message_passing_robustness.py --help
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass

import torch

from guides import ProbabilisticBackpropagation
from guides.message_passing import fit_together
from zoo.experiments.sspbp.networks import problem_80_20
from zoo.fitting.problem import Problem
from zoo.models.bnn import PBPNetwork


@dataclass(frozen=True)
class Case:
    """One row of the report; ``published`` says what the published formulas lose."""

    data: str
    widths: tuple[int, ...]
    epochs: int
    dtype: torch.dtype
    seeds: int
    published: str


CASES = (
    Case("boston", (5, 5, 5), 40, torch.float64, 60, "28 of 60"),
    Case("yacht", (5, 5, 5), 3, torch.float32, 100, "90 to 100 of 100"),
)


def lost(guide: ProbabilisticBackpropagation, problem: Problem) -> list[str]:
    """What is not finite (or not positive, of variances) after a run; empty for a sound one."""
    values = {}
    for name, (mean, variance) in guide.sites.items():
        values |= {f"mean of {name}": mean, f"variance of {name}": variance}
    for name, gamma in guide.precisions.items():
        values[f"Gamma of {name}"] = torch.tensor([float(number) for number in gamma])
    for rows, x in (("training", problem.x), ("test", problem.x_test)):
        law = guide.predictive(x, noise=False)
        values |= {f"mean of {rows} rows": law.loc, f"variance of {rows} rows": law.scale**2}
        values |= {f"mean with noise of {rows} rows": guide.predictive(x).mean}
        for layer, slab in enumerate(guide.slab_probabilities(x), start=1):
            values[f"slab probability {layer} of {rows} rows"] = slab
    bad = [name for name, value in values.items() if not torch.isfinite(value).all()]
    return bad + [name for name, value in values.items() if name.startswith("var") and not (value > 0).all()]


def run(case: Case, seeds: int) -> int:
    """Fits and reports; returns how many runs are lost."""
    problems = [problem_80_20(case.data, seed) for seed in range(seeds)]
    model = PBPNetwork(problems[0].x.shape[1], widths=case.widths, bias=False)
    guides = [ProbabilisticBackpropagation(model, "spike-slab", dtype=case.dtype) for _ in problems]
    start = time.perf_counter()
    fit_together(guides, [p.train for p in problems], epochs=case.epochs, seeds=list(range(seeds)))
    seconds = time.perf_counter() - start
    pairs = list(zip(guides, problems, strict=True))
    faults = {seed: bad for seed, pair in enumerate(pairs) if (bad := lost(*pair))}
    net, bits = "x".join(map(str, case.widths)), str(case.dtype).removeprefix("torch.")
    slab = torch.stack([guide.slab_probabilities(p.x)[-1].mean() for guide, p in pairs])
    print(
        f"{case.data} {net}, {case.epochs} epochs, {bits}: {len(faults)} of {seeds} runs lost "
        f"(published formulas: {case.published}); mean slab probability of the output on the training rows "
        f"{slab.mean():.3f}; {seconds:.0f} s"
    )
    for seed, bad in faults.items():
        print(f"  seed {seed}: {', '.join(bad)}")
    return len(faults)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, help="runs a case; as above by default")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sys.exit(1 if sum(run(case, arguments.seeds or case.seeds) for case in CASES) else 0)


if __name__ == "__main__":
    main()
