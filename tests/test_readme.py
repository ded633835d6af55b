"""The README's example and those of the page of guides run as printed, and find what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pyro
import pytest
import torch

from guides import UnsettledWarning

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
FIGURES = ("ref_w1", "ref_mean_error", "ref_sd_ratio")
LEADERBOARD = ROOT / "docs" / "results" / "leaderboard-full.csv"


def examples(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


(SELECTION,) = examples(README)
COLUMNS, NETWORK, BOOTSTRAP, ENSEMBLE, FUNCTIONS, AVB, GRAPHS, TRUTH, MODELS, MODULE = examples(
    ROOT / "docs" / "guides.md"
)


def run_selection() -> dict:
    pyro.set_rng_seed(0)
    names: dict = {}
    exec(SELECTION, names)  # noqa: S102
    return names


def assert_predicts(fit: str, names: dict) -> None:
    x, y = names["x"], names["y"]
    error = (names[fit].predictive(x).mean - y).square().mean().sqrt()
    assert error < y.std() / 2


@pytest.mark.slow
def test_guide_in_plain_pyro():
    names = run_selection()
    inclusion = names["guide"].inclusion_probabilities()["w"]
    assert set(inclusion.gt(0.5).nonzero().flatten().tolist()) == {0, 3}
    assert (names["draws"]["w"] == 0).any()
    exec(TRUTH, names)  # noqa: S102
    assert torch.from_numpy(names["exact"].inclusion).sub(inclusion).abs().max() < 0.1


def test_models():
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
    assert_predicts("fit", names)


@pytest.mark.slow
def test_variable_selection():
    names = run_selection()
    exec(COLUMNS + TRUTH, names)  # noqa: S102
    exact = torch.from_numpy(names["exact"].inclusion)
    assert (names["joint"].inclusion_probabilities()["w"] - exact).abs().max() < 0.2
    assert set(names["selection"].inclusion.argsort()[-2:]) == {0, 3}


@pytest.mark.slow
def test_an_ensemble():
    names = run_selection()
    exec(NETWORK + ENSEMBLE, names)  # noqa: S102
    assert_predicts("ensemble", names)


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
    with pytest.warns(UnsettledWarning):  # as the example says
        exec(FUNCTIONS, names)  # noqa: S102
    assert_predicts("process", names)


@pytest.mark.slow
def test_an_adversarial_posterior():
    """Of a line with unit noise: sds of one over the root of 200 rows."""
    names = run_selection()
    exec(BOOTSTRAP.split("posterior = ")[0] + AVB, names)  # noqa: S102
    sd = names["posterior"].draws()["w"].std(0)
    assert (sd.mean() * len(names["x"]) ** 0.5).sub(1).abs() < 0.3


def test_graphs():
    names: dict = {}
    exec(GRAPHS, names)  # noqa: S102
    assert [graph.number_of_edges() for graph in names["new"]]
    assert all(graph.number_of_nodes() > 1 for graph in names["new"])


def test_the_table_is_of_the_leaderboard():
    """Guides ranked on all four sets, in its order, to two digits."""
    board = pd.read_csv(LEADERBOARD).query("datasets == 4")
    rows = re.findall(r"^\| `([\w-]+)`(‡?) \| ([\d.].*) \|$", README.read_text(), re.MULTILINE)
    expected = []
    for row in board.itertuples():
        pairs = [(getattr(row, name), getattr(row, f"{name}_se")) for name in FIGURES]
        figures = [f"{value:.2f} ± {se:.2f}" if value else "0" for value, se in pairs]
        mark = "‡" if row.unsettled > 0 else ""
        expected.append((row.guide, mark, " | ".join([*figures, f"{row.cpu_seconds:.0f}"])))
    assert rows == expected


def test_the_words_under_the_picture_are_those_of_its_page():
    under = r"picture above is from `(.+?)`.+?(R-hat \S+)\)\. Its \[table\]\((.+?)\).+?\n> (.+?)\n"
    command, rhat, path, words = re.search(under, README.read_text(), re.S).groups()
    _, made, _, *verdict, _, _ = (ROOT / path).read_text().split("\n\n")
    assert f"made by: `{command}`" in made
    assert f"{rhat}, " in (ROOT / path).read_text()
    assert words == " ".join(verdict)


def test_figures_of_us_crime_are_those_of_its_page():
    page = (ROOT / "docs" / "results" / "lbbnn" / "compare-us_crime.md").read_text()
    sentence = r"`joint-spike-slab` is at a W1 of (\S+ ± \S+), `spike-slab` at (\S+ ± \S+) \(one fit each"
    joint, independent = re.search(sentence, README.read_text()).groups()
    assert f"joint-spike-slab (W1 {joint})" in page
    assert f"then spike-slab ({independent})" in page
