"""Options of cells that take seconds, and what every cell must give."""

from __future__ import annotations

import math

from zoo.experiments.lbbnn.declared import EXPERIMENTS
from zoo.experiments.lbbnn.options import RATES

OPTIONS = {"epochs": 1, "members": 4, "widths": "12-10", "rows": 200, "device": "cpu", "steps": 4, **RATES}
BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}


def assert_declared(name: str, figures) -> None:
    """A cell gives metrics that its experiment declares, all of them finite."""
    assert set(figures) <= set(BY_NAME[f"lbbnn/{name}"].metrics)
    assert all(math.isfinite(value) for value in figures.values())
