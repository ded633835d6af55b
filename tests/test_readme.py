"""The README's examples run as printed, and find what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pyro

README = Path(__file__).parent.parent / "README.md"


def test_python_examples():
    """One after the other, as a reader would type them."""
    first, second = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    pyro.set_rng_seed(0)
    names: dict = {}
    exec(first, names)  # noqa: S102
    inclusion = names["guide"].inclusion_probabilities()["w"]
    assert set(inclusion.gt(0.5).nonzero().flatten().tolist()) == {0, 3}
    assert (names["draws"]["w"] == 0).any()
    exec(second, names)  # noqa: S102
    x, y = names["x"], names["y"]
    error = (names["fit"].predictive(x).mean - y).square().mean().sqrt()
    assert error < y.std() / 2


def test_nothing_is_left_to_fill_in():
    assert "<!-- scoreboard" not in README.read_text()
