"""Small experiments that do what a test needs: count calls, fail, sleep."""

from __future__ import annotations

import os
import time

from zoo.errors import FailedError, UserError
from zoo.experiments.engine.declaration import Cell, Effort, Experiment, Published, Source

CALLS: list[Cell] = []
#: Two data sets, two methods, two settings, three trials.
CELLS = 24


def measure(cell: Cell) -> dict[str, float]:
    CALLS.append(cell)
    (cell.folder / "left.txt").write_text(cell.name)
    error = cell.split_seed / 2**32 + len(cell.method)
    if cell.setting == "5":
        return {"error": error}
    return {"score": cell.seed / 2**32, "error": error}


def slow(cell: Cell) -> dict[str, float]:
    time.sleep(float(os.environ.get("TOY_SECONDS", "0")))
    return measure(cell)


def troubled(cell: Cell) -> dict[str, float]:
    """Some of ``b``'s cells fail, each in its own way, unless the environment says that all is well."""
    result = measure(cell)
    if cell.dataset == "b" and cell.setting == "5" and "TOY_MENDED" not in os.environ:
        if (cell.method, cell.trial) == ("m", 0):
            return {"error": float("nan")}
        if (cell.method, cell.trial) == ("m", 1):
            raise ZeroDivisionError("one line\nand another")
        if (cell.method, cell.trial) == ("m", 2):
            raise FailedError("the loss is not finite")
        if (cell.method, cell.trial) == ("n", 1):
            return {"surprise": 1.0}
        if (cell.method, cell.trial) == ("n", 2):
            return {}
    return result


def refused(cell: Cell) -> dict[str, float]:
    """``b`` needs something that the user has to mend."""
    if cell.dataset == "b" and "TOY_MENDED" not in os.environ:
        raise UserError("the file of b is missing")
    return measure(cell)


def random_numbers(cell: Cell) -> dict[str, float]:
    """Uses the global generators, as no cell should."""
    import random

    import numpy as np
    import torch

    here = os.getpid() == int(os.environ.get("TOY_PARENT", "0"))
    threads = f"{torch.get_num_threads()} {os.environ.get('XLA_FLAGS')} {here}"
    (cell.folder / "threads.txt").write_text(threads)
    big = torch.randn(300, 300)
    return {"error": random.random() + np.random.rand(), "score": (big @ big).sum().item()}


def dies(cell: Cell) -> dict[str, float]:
    """As if the kernel had run out of memory."""
    if (cell.dataset, cell.trial) == ("b", 2):
        time.sleep(1.0)
        os.kill(os.getpid(), 9)
    return measure(cell)


def interrupted(cell: Cell) -> dict[str, float]:
    if (cell.dataset, cell.trial) == ("b", 1) and "TOY_MENDED" not in os.environ:
        raise KeyboardInterrupt
    return measure(cell)


def declare(name: str = "toy/plain", run=measure, **changes) -> Experiment:
    fields = {
        "name": name,
        "summary": "A toy.",
        "source": Source("Nobody 1999", "Table 1", "7"),
        "run": run,
        "metrics": {"error": "an error, lower is better", "score": "a score, higher is better"},
        "datasets": ("a", "b"),
        "methods": ("m", "n"),
        "settings": ("5x5", "5"),
        "quick": Effort(1, "no time", {"epochs": 1}),
        "full": Effort(3, "no time either", {"epochs": 4}),
        "published": {
            ("a", "m", "5", "error"): Published(1.5, 0.01),
            ("b", "n", "5x5", "score"): Published(0.3),
        },
        "published_error": "population standard deviation over root n",
        "notes": {("b", "*", "*", "*"): "another b", ("*", "n", "5", "error"): "n|5"},
    }
    return Experiment(**{**fields, **changes})


EXPERIMENTS = tuple(
    declare(f"toy/{run.__name__}", run)
    for run in (measure, slow, troubled, refused, random_numbers, dies, interrupted)
)
