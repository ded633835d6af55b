"""The README's example runs as printed, and finds the columns it says."""

from __future__ import annotations

import re
from pathlib import Path

import pyro

README = Path(__file__).parent.parent / "README.md"


def test_python_example():
    code = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL).group(1)
    pyro.set_rng_seed(0)
    names: dict = {}
    exec(code, names)  # noqa: S102
    inclusion = names["guide"].inclusion_probabilities()["w"]
    assert set(inclusion.gt(0.5).nonzero().flatten().tolist()) == {0, 3}
    assert (names["draws"]["w"] == 0).any()


def test_nothing_is_left_to_fill_in():
    assert "<!-- scoreboard" not in README.read_text()
