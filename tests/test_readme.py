"""The README's examples run as printed, and find what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pyro
import pytest
import torch

README = Path(__file__).parent.parent / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
SELECTION, TRUTH, NETWORK, BOOTSTRAP, FUNCTIONS, GRAPHS, MODELS, MODULE = EXAMPLES


def run_selection() -> dict:
    pyro.set_rng_seed(0)
    names: dict = {}
    exec(SELECTION, names)  # noqa: S102
    return names


@pytest.mark.slow
def test_guide_in_plain_pyro():
    names = run_selection()
    inclusion = names["guide"].inclusion_probabilities()["w"]
    assert set(inclusion.gt(0.5).nonzero().flatten().tolist()) == {0, 3}
    assert (names["draws"]["w"] == 0).any()


def test_imports():
    exec(TRUTH, {})  # noqa: S102
    names: dict = {}
    exec(MODELS, names)  # noqa: S102
    assert names["model"].in_features == 13


def test_a_network_of_ones_own():
    names = {"torch": torch}
    exec(MODULE, names)  # noqa: S102
    x = torch.randn(30, 10)
    names["guide"].setup(x, x[:, 0])
    assert names["guide"].inclusion_probabilities()["0.weight"].shape == (20, 10)


@pytest.mark.slow
def test_message_passing():
    """After the first example, as a reader would type them."""
    names = run_selection()
    exec(NETWORK, names)  # noqa: S102
    x, y = names["x"], names["y"]
    error = (names["fit"].predictive(x).mean - y).square().mean().sqrt()
    assert error < y.std() / 2


@pytest.mark.slow
def test_bootstrap():
    """After the first example too: its columns 0 and 3 matter."""
    names = run_selection()
    exec(BOOTSTRAP, names)  # noqa: S102
    found = names["posterior"].draws()["w"]
    assert found.shape == (100, 10)
    assert (found.mean(0)[[0, 3]] - torch.tensor([1.0, -2.0])).abs().max() < 0.2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::guides.implicit.SaturationWarning")
def test_functions():
    names = run_selection()
    exec(FUNCTIONS, names)  # noqa: S102
    x, y = names["x"], names["y"]
    error = (names["process"].predictive(x).mean - y).square().mean().sqrt()
    assert error < y.std() / 2


def test_graphs():
    names: dict = {}
    exec(GRAPHS, names)  # noqa: S102
    assert [graph.number_of_edges() for graph in names["new"]]
    assert all(graph.number_of_nodes() > 1 for graph in names["new"])


def test_nothing_is_left_to_fill_in():
    assert "<!-- scoreboard" not in README.read_text()
