"""Where the steps of a fit are taken.  What was fitted answers on the CPU, wherever that was."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from zoo.errors import UserError

CPU = "cpu"


def check_device(name: str, option: str = "--device") -> None:
    """:raises UserError: for a device that there is not; ``option`` is what the user set"""
    check_device_name(name, option)
    if name == CPU:
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(name.partition(":")[2] or 0) >= count:
        there = f"it has {count} GPU{'s' * (count > 1)}" if count else "torch finds no GPU"
        raise UserError(
            f"{option} {name}: this machine has no such device ({there}); leave it out for the CPU"
        )


def check_device_name(name: str, option: str) -> None:
    """:raises UserError: for what can be no device, here or on a worker elsewhere"""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise UserError(f"{option} takes cpu, cuda or cuda:N, not {name!r}")


def moved(data: tuple, device: str) -> tuple:
    """The arguments of a model on a device; lists stay where they are."""
    return tuple(part.to(device) if isinstance(part, Tensor) else part for part in data)


def device_of(data: tuple) -> torch.device:
    """Of the first tensor; the CPU where there is none."""
    return next((part.device for part in data if isinstance(part, Tensor)), torch.device(CPU))
