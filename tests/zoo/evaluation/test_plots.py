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
from zoo.evaluation.scoreboard import LEGEND, Row

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
    ]
    for word in ("boston", "nuts", "mean-field", "flow  failed", "∞"):
        assert word in texts(figure)
    with pytest.raises(ValueError, match="no row"):
        plots.plot_scoreboard(rows[3:], tmp_path / "b.png")
    assert not (tmp_path / "b.png").exists()


def test_sizes_densities_and_seconds_are_numbers_to_read_and_have_no_panel(drawn, tmp_path):
    numbers = {"num_parameters": 1502, "fit_seconds": 3.0, "density_mean": 0.4, "density_half": 0.2}
    only_numbers = Row.from_figures("map", "bnn", numbers)
    assert plots.compared([only_numbers]) == []
    with pytest.raises(ValueError, match="no row"):
        plots.plot_scoreboard([only_numbers], tmp_path / "s.png")
    rows = [only_numbers, Row.from_figures("pbp", "bnn", {**numbers, "elbo": -3.0})]
    plots.plot_scoreboard(rows, tmp_path / "s.png")
    assert [axis.get_title() for axis in drawn[0].axes] == ["ELBO"]


@pytest.mark.parametrize(
    ("count", "shape"), [(1, (1, 1)), (4, (1, 4)), (5, (2, 3)), (9, (3, 3)), (12, (3, 4))]
)
def test_panels_fill_their_rows(count, shape, monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(plots, "write_figure", lambda figure, *args, **options: figures.append(figure))
    names = [name for name in LEGEND if name not in plots.READ][:count]
    plots.plot_scoreboard([Row.from_figures("pbp", "bnn", dict.fromkeys(names, 0.5))], tmp_path / "s.png")
    axes = figures[0].axes
    assert axes[0].get_gridspec().get_geometry() == shape
    assert [axis.get_title() for axis in axes if axis.get_visible()] == [LEGEND[n].heading for n in names]


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
