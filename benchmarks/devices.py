r"""What a GPU is good for: steps of image networks on it and on this machine's CPU, in turn.

A network of 400 and 600 units has little arithmetic in a step of a few hundred rows, and the guides start
hundreds of small programs for it, each of which takes a GPU as long as a thousand times the numbers would.
With rows the two part: the table says from how many on a GPU pays here.  The convolutional network has
six times the arithmetic in a row (3.1 million products for 0.56).

    python benchmarks/devices.py --rows 200 2000 20000
    python benchmarks/devices.py --convolutional --methods mlp gaussian lrt mnf --rows 200

Images are made up: only their shape counts.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator

import torch
from pyro.infer import SVI

from guides.core.svi import shuffled_epochs, svi_steps
from zoo.experiments.lbbnn.networks import Images, make_guide, make_model
from zoo.fitting.epochs import Training, set_up
from zoo.fitting.svi import fitting

SIDE, WIDTHS, SETTING, WARM = 28, (400, 600), "default", 3


def steps_of(method: str, device: str, rows: int, steps: int, widths: tuple[int, ...]) -> Iterator[float]:
    """Seconds of one step after another, to the end of its work: a GPU goes on when the call has returned.

    :param widths: hidden units of each layer; none for the convolutional network
    """
    torch.manual_seed(0)
    x = torch.rand(2 * rows, SIDE**2).to(device)
    y = torch.randint(10, (2 * rows,)).to(device)
    model = make_model(method, SETTING, Images(x, y, x, y, SIDE), widths)
    guide = make_guide(method, model, SETTING)
    training = Training(steps, batch_size=rows)
    set_up(guide, (x, y), training)
    svi = SVI(guide.model, guide, guide.optimizer(training.lr), guide.elbo())
    taken = svi_steps(svi, shuffled_epochs((x, y), rows, 0), training.schedule(len(x)))
    for _ in range(steps):
        begun = time.perf_counter()
        next(taken)
        if x.is_cuda:
            torch.cuda.synchronize()
        yield time.perf_counter() - begun


def line(method: str, rows: int, steps: int, widths: tuple[int, ...], devices: tuple[str, ...]) -> str:
    """A row of the table: median seconds of a step on each device, steps taken in turn."""
    with fitting():
        runs = [steps_of(method, device, rows, WARM + steps, widths) for device in devices]
        times = list(itertools.islice(zip(*runs, strict=True), WARM, WARM + steps))
    medians = [1e3 * statistics.median(values) for values in zip(*times, strict=True)]
    ratio = f"{medians[0] / medians[1]:10.2f}" if len(medians) > 1 else ""
    return f"{method:9} {rows:7}" + "".join(f"{value:12.2f}" for value in medians) + ratio


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", default=["mlp", "gaussian", "lrt", "concrete", "mnf"])
    parser.add_argument("--rows", nargs="+", type=int, default=[200, 2000, 20_000], help="of a minibatch")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--convolutional", action="store_true", help="the network of lbbnn/cnn")
    options = parser.parse_args()
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    gpu = torch.cuda.get_device_name() if len(devices) > 1 else "no GPU"
    print(f"{torch.get_num_threads()} threads of the CPU, {gpu}; torch {torch.__version__}")
    widths = () if options.convolutional else WIDTHS
    print("method       rows      CPU ms" + "      GPU ms   CPU / GPU" * (len(devices) > 1))
    for rows in options.rows:
        for method in options.methods:
            print(line(method, rows, options.steps, widths, devices), flush=True)


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(f"{time.perf_counter() - started:.0f} s")
