"""What workers of Ray compute in tests; every worker imports it, so it imports little."""

from __future__ import annotations

import os
import signal

import numpy as np
import torch

from tests.zoo.experiments.toy_experiments import measure, random_numbers
from zoo.errors import UserError


def global_numbers(cell) -> dict[str, float]:
    return {**random_numbers(cell), "score": np.random.rand() + torch.randn(300, 300).sum().item()}


def dies(cell) -> dict[str, float]:
    """Once for one cell, each time for another."""
    folder = cell.folder.parents[2]
    with (folder / "log.txt").open("a") as log:
        log.write(f"{cell.name}\n")
    deadly = folder / f"deadly-{cell.dataset}"
    if (cell.trial, cell.method, cell.setting) == (1, "m", "5") and deadly.exists():
        if cell.dataset == "a":
            deadly.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return measure(cell)


def refuses(cell) -> dict[str, float]:
    raise UserError("the file is missing")


def loses_a_connection(number) -> None:
    raise ConnectionError("a download broke off")
