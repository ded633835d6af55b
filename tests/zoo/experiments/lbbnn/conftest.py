"""Tiny cells of the real experiments."""

from __future__ import annotations

import pytest

from tests.zoo.experiments.lbbnn.tiny_cells import OPTIONS
from zoo.experiments import Cell
from zoo.experiments.engine import catalogue
from zoo.experiments.lbbnn import declared, networks


@pytest.fixture
def small_and_real(calls, monkeypatch):
    """Instead of the toys of this folder's other tests."""
    monkeypatch.setattr(catalogue, "MODULES", (declared.__name__,))
    monkeypatch.setitem(networks.PASSES, "digits", 3)


@pytest.fixture
def cell(tmp_path):
    def make(method="lrt", setting="default", dataset="digits", **options) -> Cell:
        return Cell("x", dataset, method, setting, 0, options={**OPTIONS, **options}, folder=tmp_path)

    return make
