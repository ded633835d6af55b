"""The real experiments instead of the toys of this folder's other tests."""

from __future__ import annotations

import pytest

from zoo.experiments.engine import catalogue
from zoo.experiments.sspbp import declared


@pytest.fixture(autouse=True)
def _real_experiments(calls, monkeypatch):
    monkeypatch.setattr(catalogue, "MODULES", (declared.__name__,))
