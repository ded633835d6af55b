"""What one data point costs in message passing, through the public ``fit``.

Microseconds of CPU time for each visited row, refinement of the prior included: the difference between a long
and a short fit of the same data, so that recording and compiling are not counted.  All contestants take turns
in this one process; the figures are medians over rounds.

published   the published C program.  Its times are those measured once, on one machine; with ``--published
            FOLDER``, a checkout of HIPS/Probabilistic-Backpropagation, its source is compiled with ``cc`` and
            takes its turn (a plain loop stands in for BLAS where there is none)
pbp         Gaussian messages, network with biases
sspbp       spike-and-slab messages, network without biases
x 5         five such fits in one loop (``fit_together``), per fit

    python benchmarks/message_passing.py --help
"""

from __future__ import annotations

import argparse
import ctypes
import math
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyro
import torch
import torch.nn.functional as F
from pyro import distributions as dist
from torch import Tensor

from guides.message_passing import ProbabilisticBackpropagation, fit_together

#: microseconds of the published C program for each point, and what we must stay below
PUBLISHED = {(13, 50): 5.8, (8, 50): 5.6, (13, 100): 10.5, (13, 50, 50): 26.0}
BARS = {"pbp": 0.9, "sspbp": 2.0, "pbp x 5": 0.45}
SHORT, LONG = 2, 22  # epochs
TRIALS = 5


def network(sizes: tuple[int, ...], bias: bool) -> Callable:
    """A plain Pyro model with one output: ``W [z; 1] / sqrt(in + 1)`` or ``W z / sqrt(in)``."""

    def model(x: Tensor, y: Tensor | None = None) -> None:
        scale = pyro.sample("weight_precision", dist.Gamma(6.0, 6.0)).rsqrt()
        hidden = x
        for i, (fan_in, out) in enumerate(zip(sizes, (*sizes[1:], 1), strict=True)):
            shape = [out, fan_in + bias]
            weight = pyro.sample(f"w{i}", dist.Normal(0.0, scale).expand(shape).to_event(2))
            hidden = torch.relu(hidden) if i else hidden
            padded = F.pad(hidden, (0, 1), value=1.0) if bias else hidden
            hidden = F.linear(padded, weight) / math.sqrt(shape[1])
        precision = pyro.sample("noise_precision", dist.Gamma(6.0, 6.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(hidden.squeeze(-1), precision.rsqrt()), obs=y)

    return model


def problem(rows: int, columns: int, seed: int) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, columns))
    y = np.sin(x @ rng.normal(size=columns)) + 0.3 * rng.normal(size=rows)
    return torch.as_tensor(x), torch.as_tensor((y - y.mean()) / y.std())


# ------------------------------------------------------------------------------------- the published program

BLAS_HEADER = """
enum { CblasRowMajor, CblasNoTrans, CblasTrans };
static inline void cblas_dgemv(int order, int trans, int rows, int columns, double alpha,
                               const double *a, int lda, const double *x, int incx, double beta, double *y,
                               int incy) {
    int out = trans == CblasTrans ? columns : rows;
    for (int i = 0; i < out; i++) y[i] = beta == 0 ? 0 : beta * y[i];
    for (int i = 0; i < rows; i++) {
        const double *row = a + (long)i * lda;
        if (trans == CblasTrans) {
            double factor = alpha * x[i];
            for (int j = 0; j < columns; j++) y[j] += factor * row[j];
        } else {
            double sum = 0;
            for (int j = 0; j < columns; j++) sum += row[j] * x[j];
            y[i] += alpha * sum;
        }
    }
}
"""


def compile_published(checkout: Path, folder: Path) -> ctypes.CDLL:
    """Build a shared library in ``folder``; :raises SystemExit: no such source, no compiler, or it fails."""
    source = checkout / "c" / "PBP_net"
    if not (source / "network.c").is_file():
        raise SystemExit(f"{checkout}: no c/PBP_net/network.c in it")
    if shutil.which("cc") is None:
        raise SystemExit("no C compiler: cc is not on the path")
    library = folder / "published.so"
    command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", "-w", "-o", str(library)]
    files = [str(source / "network.c"), str(source / "pnorm.c")]
    attempts = [[*command, *files, f"-l{blas}", "-lm"] for blas in ("openblas", "cblas")]
    (folder / "cblas.h").write_text(BLAS_HEADER)
    for attempt in [*attempts, [*command, f"-I{folder}", *files, "-lm"]]:
        done = subprocess.run(attempt, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            print("published program:", " ".join(part for part in attempt if part.startswith("-")))
            return ctypes.CDLL(str(library))
    raise SystemExit(f"the published program does not compile:\n{done.stderr}")


def published_epochs(
    library: ctypes.CDLL, sizes: tuple[int, ...], x: Tensor, y: Tensor
) -> Callable[[int], None]:
    """A function that runs so many epochs of a fresh network of the published program."""
    doubles = np.ctypeslib.ndpointer(np.float64, flags="C")
    integers = np.ctypeslib.ndpointer(np.int32, flags="C")
    library.init_network.restype = ctypes.c_void_p
    library.init_network.argtypes = [integers, ctypes.c_int, ctypes.c_int, doubles]
    library.one_learning_epoch.restype = ctypes.c_void_p
    library.one_learning_epoch.argtypes = [ctypes.c_void_p, doubles, doubles, *[ctypes.c_int] * 2, integers]
    weights = sum((a + 1) * b for a, b in zip((*sizes, 1), (*sizes[1:], 1, 1), strict=True))
    hidden = np.array(sizes[1:], np.int32)

    def run(epochs: int) -> None:
        rng = np.random.default_rng(0)
        state = library.init_network(hidden, len(hidden), sizes[0], rng.normal(size=weights + 8))
        for _ in range(epochs):
            order = rng.permutation(len(y)).astype(np.int32)
            library.one_learning_epoch(state, x.numpy(), y.numpy(), len(y), sizes[0], order)

    return run


# --------------------------------------------------------------------------------------------------- the race


def contestants(
    sizes: tuple[int, ...], rows: int, library: ctypes.CDLL | None
) -> dict[str, tuple[Callable, int]]:
    """``{name: (function of the number of epochs, rows that an epoch visits)}``."""
    data = [problem(rows, sizes[0], seed) for seed in range(TRIALS)]

    def single(messages: str, bias: bool) -> Callable[[int], object]:
        def run(epochs: int) -> object:
            guide = ProbabilisticBackpropagation(network(sizes, bias), messages)
            return guide.fit(*data[0], epochs=epochs, seed=0)

        return run

    def several(messages: str, bias: bool) -> Callable[[int], object]:
        def run(epochs: int) -> object:
            models = [ProbabilisticBackpropagation(network(sizes, bias), messages) for _ in data]
            return fit_together(models, data, epochs=epochs, seeds=range(TRIALS))

        return run

    entries = {
        "pbp": (single("gaussian", True), rows),
        "sspbp": (single("spike-slab", False), rows),
        f"pbp x {TRIALS}": (several("gaussian", True), rows * TRIALS),
        f"sspbp x {TRIALS}": (several("spike-slab", False), rows * TRIALS),
    }
    if library is not None:
        entries["published"] = (published_epochs(library, sizes, *data[0]), rows)
    return entries


def race(entries: dict[str, tuple[Callable, int]], rounds: int) -> dict[str, float]:
    """Median microseconds of CPU time for each visited row."""

    def cpu_seconds(run: Callable, epochs: int) -> float:
        start = time.process_time()
        run(epochs)
        return time.process_time() - start

    for run, _ in entries.values():  # compiles
        run(SHORT)
        run(LONG)
    times: dict[str, list[float]] = {name: [] for name in entries}
    for _ in range(rounds):
        for name, (run, rows) in entries.items():
            seconds = cpu_seconds(run, LONG) - cpu_seconds(run, SHORT)
            times[name].append(1e6 * seconds / ((LONG - SHORT) * rows))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--published", type=Path, metavar="FOLDER", help="checkout of the published program")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=455)
    parser.add_argument("--nets", default="13-50,8-50,13-100,13-50-50", help="inputs and hidden widths")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        library = compile_published(options.published, Path(folder)) if options.published else None
        print(f"{options.rows} rows; microseconds of CPU time for a point; ratio to the published C program")
        print(f"{'network':14} {'contestant':12} {'us':>8} {'ratio':>7}   bar")
        for net in options.nets.split(","):
            sizes = tuple(int(width) for width in net.split("-"))
            medians = race(contestants(sizes, options.rows, library), options.rounds)
            baseline = medians.get("published", PUBLISHED.get(sizes, math.nan))
            medians = {"published": baseline} | medians
            for name, us in medians.items():
                bar = f"{BARS[name]:5.2f}" if name in BARS else ""
                print(f"{net + '-1':14} {name:12} {us:8.2f} {us / baseline:7.2f} {bar}", flush=True)


if __name__ == "__main__":
    main()
