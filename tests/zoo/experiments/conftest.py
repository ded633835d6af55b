"""Toy experiments instead of the real ones, for the tests of the runner."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # cli_helpers

import toy_experiments  # noqa: E402

import zoo.experiments.catalogue  # noqa: E402


@pytest.fixture
def calls(monkeypatch):
    """The catalogue has the toys alone; returns the cells that are computed in this process."""
    monkeypatch.setattr(zoo.experiments.catalogue, "MODULES", ("toy_experiments",))
    monkeypatch.setattr(toy_experiments, "CALLS", [])
    return toy_experiments.CALLS
