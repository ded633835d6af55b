"""What one step of a sparse implicit process costs: classifier and all the rest, on the same draws.

The published setting: a batch of 10 rows with 13 columns, 100 functions of a 50-50 network and 100 draws of
the posterior, 50 inducing inputs, float64.  Beside it, step by step in this one process, so that a busy
machine slows both alike: one step of Adam on a plain 13-50-50-1 network; and a batch of 100, which makes an
epoch.  The published TensorFlow program, which is not here, was measured once on such a machine at 145 ms of
CPU time where this took 23 ms; the bar, 24 ms, is six times less.

    python benchmarks/sparse_implicit_process.py --help
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import torch
from torch import nn

from guides.implicit import SparseImplicitProcess
from zoo.fitting.memory import keep_freed_memory
from zoo.models import BNNProcess

COLUMNS, ROWS = 13, 455
#: Milliseconds of CPU time, of a step at batch 10 in float64; and of the published program's.
BAR, PUBLISHED = 24.0, 145.0


def plain_step(batch: int) -> Callable[[], None]:
    network = nn.Sequential(
        nn.Linear(COLUMNS, 50), nn.LeakyReLU(0.2), nn.Linear(50, 50), nn.LeakyReLU(0.2), nn.Linear(50, 1)
    ).double()
    adam = torch.optim.Adam(network.parameters(), fused=True)
    x, y = torch.randn(batch, COLUMNS, dtype=torch.float64), torch.randn(batch, dtype=torch.float64)

    def step() -> None:
        adam.zero_grad()
        (network(x).squeeze(-1) - y).square().mean().backward()
        adam.step()

    return step


def race(batch: int, dtype: torch.dtype, steps: int, clock: Callable[[], float]) -> tuple[float, float]:
    """Median milliseconds of a step of the process, and of a plain one taken after each."""
    torch.manual_seed(0)
    x = torch.randn(ROWS, COLUMNS, dtype=dtype)
    y = torch.sin(x[:, 0]) + 0.3 * torch.randn(ROWS, dtype=dtype)
    guide = SparseImplicitProcess(BNNProcess(COLUMNS, dtype=dtype), 50, num_functions=100, num_particles=100)
    plain, times, last = plain_step(batch), ([], []), clock()

    def between(step: int, guide: SparseImplicitProcess) -> None:
        nonlocal last
        ours, start = clock() - last, clock()
        plain()
        last = clock()
        if step > 10:
            times[0].append(ours)
            times[1].append(last - start)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        guide.fit(x, y, steps=steps + 10, batch_size=batch, on_step=between)
    return tuple(1e3 * statistics.median(values) for values in times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100, help="timed steps a line")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument(
        "--clock", choices=("wall", "cpu"), default="cpu", help="cpu: for a machine that others use too"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as the fits of `zoo` do
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    print(f"torch {torch.__version__}, {options.threads} thread(s), medians of {options.clock} time\n")
    print(f"{'one step':22} {'ms':>7} {'plain ms':>9} {'ratio':>6} {'ms a row':>9}   bar")
    for dtype in (torch.float64, torch.float32):
        for batch in (10, 100):
            ours, plain = race(batch, dtype, options.steps, clock)
            name = f"{str(dtype).removeprefix('torch.')}, batch {batch}"
            bar = f"{BAR:g}" if (dtype, batch) == (torch.float64, 10) else ""
            print(f"{name:22} {ours:7.1f} {plain:9.2f} {ours / plain:6.0f} {ours / batch:9.2f}   {bar}")
    print(f"\nthe published program: {PUBLISHED:g} ms a step of 10 rows, {PUBLISHED / 10:g} ms a row")


if __name__ == "__main__":
    main()
