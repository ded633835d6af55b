"""Pictures: they are written, show what was given, and leave matplotlib alone.  How they look was judged by
eye.
"""

from __future__ import annotations

import math

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from zoo.evaluation import plots
from zoo.evaluation.estimates import Estimate
from zoo.evaluation.scoreboard import Row

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def drawn(monkeypatch) -> list[Figure]:
    """The figures that were saved."""
    figures, save = [], Figure.savefig
    monkeypatch.setattr(plots, "DPI", 40)
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k))[1]
    )
    return figures


@pytest.fixture(autouse=True)
def _settings_untouched():
    before = dict(matplotlib.rcParams)
    yield
    assert dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in vars(plots)


def texts(figure: Figure) -> str:
    return "\n".join(t.get_text() for t in figure.findobj(matplotlib.text.Text))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [((5.4, 8.0, 55.6), {"5", "10", "20", "50"}), ((0.05, 0.06, 256.0), {"0.1", "1", "10", "100"})],
)
def test_ticks_of_a_logarithmic_axis_are_few_and_do_not_overlap(seconds, expected, drawn, tmp_path):
    rows = [Row.from_figures(f"m{i}", "bnn", {"fit_seconds": s}) for i, s in enumerate(seconds)]
    plots.plot_scoreboard(rows, tmp_path / "s.png")
    axis, figure = drawn[0].axes[0], drawn[0]
    low, high = axis.get_xlim()
    labels = [
        label
        for place, label in zip(axis.get_xticks(), axis.get_xticklabels(), strict=True)
        if low <= place <= high
    ]
    assert {label.get_text() for label in labels} >= expected
    assert not [label for label in axis.get_xticklabels(minor=True) if label.get_text()]
    boxes = [label.get_window_extent(figure.canvas.get_renderer()) for label in labels]
    assert all(left.x1 < right.x0 for left, right in zip(boxes, boxes[1:], strict=False))


def test_scoreboard_has_a_panel_per_figure_and_every_method(drawn, tmp_path):
    figures = {"rmse": Estimate(3.0, 0.2), "ref_w1": Estimate(0.4, 0.01, 0.07), "fit_seconds": 3.0}
    rows = [
        Row.from_figures("nuts", "bnn", {"rmse": Estimate(2.8, 0.2), "fit_seconds": 300.0}),
        Row.from_figures("mean-field", "bnn", {**figures, "pareto_k": math.inf}),
        Row.from_figures("single", "bnn", {"rmse": 3.0, "pareto_k": 0.3}),
        Row("flow", "bnn", "failed: NaN"),
    ]
    plots.plot_scoreboard(rows, tmp_path / "a" / "scoreboard.png", title="boston")
    assert (tmp_path / "a" / "scoreboard.png").read_bytes().startswith(PNG)
    (figure,) = drawn
    assert [axis.get_title() for axis in figure.axes if axis.get_visible()] == [
        "RMSE",
        "W1",
        "Pareto k",
        "seconds",
    ]
    for word in ("boston", "nuts", "mean-field", "flow  failed", "∞"):
        assert word in texts(figure)
    with pytest.raises(ValueError, match="no row"):
        plots.plot_scoreboard(rows[3:], tmp_path / "b.png")
    assert not (tmp_path / "b.png").exists()


@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_bands_draw_the_reference_in_every_panel(drawn, tmp_path, count):
    grid = np.linspace(0, 1, 20)
    band = (grid, grid - 1, grid + 1)
    bands = {"nuts": (grid + 5, grid + 4, grid + 6), **{f"guide {i}": band for i in range(count)}}
    plots.plot_bands_1d(grid, grid, grid, bands, tmp_path / "bands.png")
    visible = [axis for axis in drawn[0].axes if axis.get_visible()]
    assert [axis.get_title() for axis in visible] == [f"guide {i}" for i in range(count)]
    for axis in visible:
        assert any(np.array_equal(line.get_ydata(), grid + 5) for line in axis.lines)
        assert axis.get_ylim() == visible[0].get_ylim()


def test_bands_without_a_reference_or_with_it_alone(drawn, tmp_path):
    grid = np.linspace(0, 1, 20)
    band = (grid, grid - 1, grid + 1)
    plots.plot_bands_1d(grid, grid, grid, {"pbp": band}, tmp_path / "bands.png")
    plots.plot_bands_1d(grid, grid, grid, {"nuts": band}, tmp_path / "bands.png")
    assert [f.axes[0].get_title() for f in drawn] == ["pbp", "nuts"]
    with pytest.raises(ValueError, match="'exact' is not among"):
        plots.plot_bands_1d(grid, grid, grid, {"pbp": band}, tmp_path / "bands.png", reference="exact")
    with pytest.raises(ValueError, match="no method"):
        plots.plot_bands_1d(grid, grid, grid, {}, tmp_path / "bands.png")


def test_scatter_has_a_row_a_method_on_equal_axes_with_the_correlation(drawn, tmp_path):
    rng = np.random.default_rng(0)
    mean, sd = rng.normal(size=40), rng.uniform(1, 2, 40)
    other = mean + 0.3 * rng.normal(size=40)
    methods = {"pbp": (other, sd), "constant": (np.ones(40), np.zeros(40))}
    plots.plot_scatter(mean, sd, methods, tmp_path / "scatter.png", reference="nuts")
    axes = drawn[0].axes
    assert len(axes) == 4
    assert f"correlation {np.corrcoef(mean, other)[0, 1]:.3f}" in texts(drawn[0])
    assert texts(drawn[0]).count("constant") >= 2
    for axis in axes:
        assert axis.get_xlim() == axis.get_ylim()
        assert len(axis.lines[1].get_xdata()) == 40
        assert np.isfinite(axis.get_xlim()).all()
    with pytest.raises(ValueError, match="no method"):
        plots.plot_scatter(mean, sd, {}, tmp_path / "empty.png")


def test_inclusion_draws_every_probability_and_the_half(drawn, tmp_path):
    methods = {"spike-slab": np.array([0.2, 0.9]), "exact": np.array([0.1, 1.0])}
    plots.plot_inclusion(methods, ["Po1", "a very long name of a covariate"], tmp_path / "inclusion.png")
    axis = drawn[0].axes[0]
    heights = [[bar.get_height() for bar in group] for group in axis.containers[1:]]
    assert heights == [[0.1, 1.0], [0.2, 0.9]]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["exact", "spike-slab"]
    assert any(set(line.get_ydata()) == {0.5} for line in axis.lines)


def test_colours_are_black_for_the_reference_and_do_not_depend_on_it():
    assert plots.colours(["nuts", "a", "b"], "nuts") == {"nuts": "black", **plots.colours(["a", "b"])}
    assert len(set(plots.colours([str(i) for i in range(8)]).values())) == 8
