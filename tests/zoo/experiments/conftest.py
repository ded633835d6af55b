"""Toy experiments instead of the real ones, for the tests of the runner."""

from __future__ import annotations

import pytest

import zoo.experiments.engine.catalogue
from tests.zoo.experiments import toy_experiments


@pytest.fixture
def calls(monkeypatch):
    """The catalogue has the toys alone; returns the cells that are computed in this process."""
    monkeypatch.setattr(zoo.experiments.engine.catalogue, "MODULES", (toy_experiments.__name__,))
    monkeypatch.setattr(toy_experiments, "CALLS", [])
    return toy_experiments.CALLS
