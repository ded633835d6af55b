"""Pictures: they are written, show what was given, and leave matplotlib alone.  How they look was judged by
eye.
"""

from __future__ import annotations

import math
import struct

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from zoo.evaluation import plots
from zoo.evaluation.calibration import ecdf, ecdf_band
from zoo.evaluation.calibration_plot import plot_ranks
from zoo.evaluation.estimates import Estimate
from zoo.evaluation.function_plots import plot_bands_1d, plot_scatter
from zoo.evaluation.inclusion_plot import plot_inclusion
from zoo.evaluation.loss_plot import plot_loss
from zoo.evaluation.scoreboard import LEGEND, Row
from zoo.evaluation.scoreboard_plot import READ, _bar, _is_cut, compared, plot_scoreboard
from zoo.files.tables import LONGEST, write_figure

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
    plot_scoreboard(rows, tmp_path / "a" / "scoreboard.png", title="boston")
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
        plot_scoreboard(rows[3:], tmp_path / "b.png")
    assert not (tmp_path / "b.png").exists()


def upright(axis: Axes) -> list[float]:
    """Where lines go from the bottom of a panel to its top."""
    return [line.get_xdata()[0] for line in axis.lines if list(line.get_ydata()) == [0, 1]]


@pytest.mark.parametrize("status", ["ok", "failed: late"])
def test_panels_show_what_is_right_what_noise_gives_and_the_reference(status, drawn, tmp_path):
    """Against one that has failed nothing is read; of noise floors the largest is shown."""
    figures = {"coverage_90": Estimate(0.93, 0.01), "ref_w1": Estimate(0.4, 0.01, 0.07), "pareto_k": 0.4}
    rows = [
        Row.from_figures("nuts", "bnn", {"coverage_90": Estimate(0.92, 0.01)}, status),
        Row.from_figures("mean-field", "bnn", figures),
        Row.from_figures("mnf", "bnn", {"ref_w1": Estimate(0.3, 0.01, 0.05), "ref_sd_ratio": 0.8}),
    ]
    plot_scoreboard(rows, tmp_path / "s.png")
    panels = {axis.get_title(): axis for axis in drawn[0].axes}
    expected = {"coverage_90": [0.92, 0.9] if status == "ok" else [0.9], "ref_sd_ratio": [1.0]}
    for name, lines in {**expected, "ref_w1": [], "pareto_k": [0.7]}.items():
        assert upright(panels[LEGEND[name].heading]) == lines
    (floor,) = panels["W1"].patches
    assert (floor.get_x(), floor.get_width()) == (0, 0.07)


def test_sizes_densities_and_seconds_are_numbers_to_read_and_have_no_panel(drawn, tmp_path):
    numbers = {"num_parameters": 1502, "fit_seconds": 3.0, "density_mean": 0.4, "density_half": 0.2}
    only_numbers = Row.from_figures("map", "bnn", numbers)
    assert compared([only_numbers]) == []
    with pytest.raises(ValueError, match="no row"):
        plot_scoreboard([only_numbers], tmp_path / "s.png")
    rows = [only_numbers, Row.from_figures("pbp", "bnn", {**numbers, "elbo": -3.0})]
    plot_scoreboard(rows, tmp_path / "s.png")
    assert [axis.get_title() for axis in drawn[0].axes] == ["ELBO"]


@pytest.mark.parametrize(
    ("count", "shape"), [(1, (1, 1)), (4, (1, 4)), (5, (2, 3)), (9, (3, 3)), (12, (3, 4))]
)
def test_panels_fill_their_rows(count, shape, monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(plots, "write_figure", lambda figure, *args, **options: figures.append(figure))
    names = [name for name in LEGEND if name not in READ][:count]
    plot_scoreboard([Row.from_figures("pbp", "bnn", dict.fromkeys(names, 0.5))], tmp_path / "s.png")
    axes = figures[0].axes
    assert axes[0].get_gridspec().get_geometry() == shape
    assert [axis.get_title() for axis in axes if axis.get_visible()] == [LEGEND[n].heading for n in names]


@pytest.mark.parametrize("count", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 4)), 5])
def test_bands_draw_the_reference_in_every_panel(drawn, tmp_path, count):
    grid = np.linspace(0, 1, 20)
    band = (grid, grid - 1, grid + 1)
    bands = {"nuts": (grid + 5, grid + 4, grid + 6), **{f"guide {i}": band for i in range(count)}}
    plot_bands_1d(grid, grid, grid, bands, tmp_path / "bands.png")
    visible = [axis for axis in drawn[0].axes if axis.get_visible()]
    assert [axis.get_title() for axis in visible] == [f"guide {i}" for i in range(count)]
    for axis in visible:
        assert any(np.array_equal(line.get_ydata(), grid + 5) for line in axis.lines)
        assert axis.get_ylim() == visible[0].get_ylim()


def test_a_band_that_explodes_does_not_flatten_the_others(drawn, tmp_path):
    grid = np.linspace(0, 1, 20)
    bands = {name: (grid, grid - wide, grid + wide) for name, wide in (("nuts", 1), ("a", 1), ("b", 1e6))}
    plot_bands_1d(grid, grid, grid, bands, tmp_path / "bands.png")
    assert drawn[0].axes[0].get_ylim() == pytest.approx((-1 - 0.06 * 3, 2 + 0.06 * 3))


def test_bands_without_a_reference_or_with_it_alone(drawn, tmp_path):
    grid = np.linspace(0, 1, 20)
    band = (grid, grid - 1, grid + 1)
    plot_bands_1d(grid, grid, grid, {"pbp": band}, tmp_path / "bands.png")
    plot_bands_1d(grid, grid, grid, {"nuts": band}, tmp_path / "bands.png")
    assert [f.axes[0].get_title() for f in drawn] == ["pbp", "nuts"]
    with pytest.raises(ValueError, match="no method"):
        plot_bands_1d(grid, grid, grid, {}, tmp_path / "bands.png")


def test_scatter_has_a_row_a_method_on_axes_that_all_share(drawn, tmp_path):
    rng = np.random.default_rng(0)
    mean, sd = rng.normal(size=40), rng.uniform(1, 2, 40)
    other = mean + 0.3 * rng.normal(size=40)
    methods = {"pbp": (other, sd), "constant": (np.ones(40), np.zeros(40))}
    plot_scatter(mean, sd, methods, tmp_path / "scatter.png", reference="nuts")
    axes = drawn[0].axes
    assert len(axes) == 4
    for axis in axes:
        assert axis.get_xlim() == axis.get_ylim()
        assert len(axis.lines[1].get_xdata()) == 40
    for above, below in zip(axes[:2], axes[2:], strict=True):
        assert above.get_xlim() == below.get_xlim()
    for axis, values in zip(axes, (other, sd, np.ones(40), np.zeros(40)), strict=True):
        low, high = axis.get_xlim()
        assert low < values.min()
        assert values.max() < high
    with pytest.raises(ValueError, match="no method"):
        plot_scatter(mean, sd, {}, tmp_path / "empty.png")


@pytest.mark.slow
def test_scatter_tells_scale_and_shift(drawn, tmp_path):
    """A guide that is perfectly correlated, and wrong."""
    rng = np.random.default_rng(0)
    mean, sd = rng.normal(size=40), rng.uniform(1, 2, 40)
    methods = {"same": (mean, sd), "shrunk": (0.5 * mean, 0.25 * sd), "shifted": (mean + 3 * sd, sd)}
    plot_scatter(mean, sd, methods, tmp_path / "scatter.png")
    shown = [axis.texts[0].get_text() for axis in drawn[0].axes]
    assert shown[:2] == ["slope 1.00, error 0.00", "ratio 1.00"]
    assert shown[2].startswith("slope 0.50, error ")
    assert shown[3] == "ratio 0.25"
    assert shown[4].endswith("error 3.00")


def test_the_ratio_of_sds_is_that_of_the_point_in_the_middle(drawn, tmp_path):
    mean, sds = np.arange(3.0), np.array([1.0, 2.0, 9.0])
    plot_scatter(mean, np.ones(3), {"a": (mean, sds)}, tmp_path / "scatter.png")
    shown = [axis.texts[0].get_text() for axis in drawn[0].axes]
    assert shown == ["slope 1.00, error 0.00", "ratio 2.00"]


@pytest.mark.parametrize("value", [0.0, 1e17])
def test_a_single_number_has_axes_with_room(value, drawn, tmp_path):
    """Also one so large that another near it is the same number."""
    values, still = np.full(3, value), np.zeros(3)
    plot_scatter(values, still, {"a": (values, still)}, tmp_path / "scatter.png")
    plot_bands_1d(np.arange(3.0), values, np.arange(3.0), {"a": (values,) * 3}, tmp_path / "bands.png")
    for axis, limits in ((drawn[0].axes[0], "xlim"), (drawn[1].axes[0], "ylim")):
        low, high = axis.properties()[limits]
        assert low < value < high


def test_scatter_of_a_reference_that_does_not_vary(drawn, tmp_path):
    mean, sd = np.array([1.0, 1.0, 1.0]), np.array([0.0, 0.0, 2.0])
    plot_scatter(mean, sd, {"a": (mean + 4, sd / 2)}, tmp_path / "scatter.png")
    plot_scatter(mean, 0 * sd, {"a": (mean, sd)}, tmp_path / "scatter.png")
    assert [axis.texts[0].get_text() for axis in drawn[0].axes] == ["error 2.00", "ratio 0.50"]
    assert [axis.texts[0].get_text() for axis in drawn[1].axes] == ["", ""]


def test_error_bars_are_two_standard_errors_to_either_side():
    assert _bar(Estimate(3.0, 0.25), "rmse") == [[0.5], [0.5]]
    assert not _is_cut(Estimate(3.0, 0.25), "rmse")


@pytest.mark.slow
def test_error_bars_and_ticks_stay_where_a_figure_can_be(drawn, tmp_path):
    figures = {
        "accuracy": Estimate(0.98, 0.03),
        "ece": Estimate(0.01, 0.02),
        "ref_sd_ratio": Estimate(0.1, 0.2),
    }
    rows = [
        Row.from_figures("a", "bnn", figures),
        Row.from_figures("b", "bnn", {"accuracy": Estimate(1.0, 0.02), "ece": Estimate(0.0, 0.02)}),
        Row.from_figures("c", "bnn", {"accuracy": Estimate(0.5, 0.1), "elbo": Estimate(-3.0, 2.0)}),
    ]
    plot_scoreboard(rows, tmp_path / "s.png")
    panels = {axis.get_title(): axis for axis in drawn[0].axes}
    ends = {
        name: [
            [round(float(x), 9) for x in line[:, 0]]
            for part in axis.collections
            for line in part.get_segments()
        ]
        for name, axis in panels.items()
    }
    assert ends["accuracy"] == [[0.92, 1.0], [0.96, 1.0], [0.3, 0.7]]
    assert ends["ECE"] == [[0.0, 0.05], [0.0, 0.04]]
    assert ends["sd ratio"] == [[0.0, 0.5]]
    assert ends["ELBO"] == [[-7.0, 1.0]]  # has no end
    for name, low, high in (("accuracy", 0, 1), ("ECE", 0, 1), ("sd ratio", 0, math.inf)):
        ticks = panels[name].get_xticks()
        assert len(ticks) > 1
        assert (ticks >= low).all()
        assert (ticks <= high).all()
    assert "bars: ± 2 standard errors, cut at what is possible" in texts(drawn[0])
    plot_scoreboard(rows[2:], tmp_path / "s.png")
    assert "cut at" not in texts(drawn[1])


@pytest.fixture
def sizes(monkeypatch) -> list[float]:
    """Pixels of the longer side of the figures that would be written, at the full resolution."""
    found = []

    def write(figure, path, *, dpi, **options):
        found.append(dpi * max(figure.get_size_inches()))

    monkeypatch.setattr(plots, "write_figure", write)
    return found


@pytest.mark.slow
def test_pictures_of_much_are_laid_out_within_a_screen(sizes):
    values = np.linspace(0, 1, 5)
    methods = {f"method {i}": (values, values) for i in range(12)}
    plot_scatter(values, values + 1, methods, "s.png")
    plot_bands_1d(values, values, values, {name: (values,) * 3 for name in methods}, "b.png")
    figures = dict.fromkeys(LEGEND, 0.5)
    plot_scoreboard([Row.from_figures(name, "bnn", figures) for name in methods], "r.png")
    for count, several in ((38, 6), (200, 2)):
        probabilities = {f"method {i}": np.full(count, 0.5) for i in range(several)}
        plot_inclusion(probabilities, [f"x{i}" for i in range(count)], "i.png")
    assert max(sizes) < 2050


def test_a_picture_is_never_written_longer_than_a_screen(tmp_path):
    write_figure(Figure(figsize=(40, 1)), tmp_path / "wide.png", dpi=130)
    write_figure(Figure(figsize=(1, 2)), tmp_path / "small.png", dpi=130)
    for name, size in (("wide", (LONGEST, LONGEST // 40)), ("small", (130, 260))):
        header = (tmp_path / f"{name}.png").read_bytes()[16:24]
        assert struct.unpack(">II", header) == size


@pytest.mark.slow
def test_inclusion_of_many_coefficients_goes_on_below(drawn, tmp_path):
    probabilities = {f"method {i}": np.linspace(0, 1, 38) for i in range(6)}
    plot_inclusion(probabilities, [f"column {i}" for i in range(38)], tmp_path / "i.png")
    axes = [axis for axis in drawn[0].axes if axis.get_visible()]
    assert len(axes) > 1
    heights = [bar.get_height() for axis in axes for bar in axis.containers[1]]
    assert heights == probabilities["method 0"].tolist()
    shown = [label.get_text() for axis in axes for label in axis.get_xticklabels()]
    assert shown == [f"column {i}" for i in range(38)]
    names = [f"a name without spaces or_with_many_letters_{i:03}" for i in range(200)]
    plot_inclusion({"a": np.full(200, 0.5)}, names, tmp_path / "i.png")
    shown = [label.get_text() for axis in drawn[1].axes for label in axis.get_xticklabels()]
    assert shown == ["a name without spaces or_wi…"] * 200
    assert len({axis.get_xlim() for axis in axes}) == 1
    assert sum(axis.get_legend() is not None for axis in axes) == 1


def test_loss_counts_steps_in_whole_numbers(drawn, tmp_path):
    plot_loss(np.array([3.0, 2.0, 1.5, 1.2]), tmp_path / "loss.png")
    assert all(tick == round(tick) for tick in drawn[0].axes[0].get_xticks())


def test_inclusion_draws_every_probability_and_the_half(drawn, tmp_path):
    methods = {"spike-slab": np.array([0.2, 0.9]), "exact": np.array([0.1, 1.0])}
    plot_inclusion(methods, ["Po1", "a very long name of a covariate"], tmp_path / "inclusion.png")
    assert "a very long name of a covariate" in texts(drawn[0])
    axis = drawn[0].axes[0]
    heights = [[bar.get_height() for bar in group] for group in axis.containers[1:]]
    assert heights == [[0.1, 1.0], [0.2, 0.9]]
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["exact", "spike-slab"]
    assert any(set(line.get_ydata()) == {0.5} for line in axis.lines)


def test_colours_are_black_for_the_reference_and_do_not_depend_on_it():
    assert plots.colours(["nuts", "a", "b"], "nuts") == {"nuts": "black", **plots.colours(["a", "b"])}
    assert len(set(plots.colours([str(i) for i in range(8)]).values())) == 8


def test_ranks_are_drawn_with_the_band_that_judges_them(drawn, tmp_path):
    """That of both quantities together; ten bars of two ranks each hold every rank."""
    found = {"w": np.random.default_rng(0).integers(20, size=60), "b": np.full(60, 19)}
    plot_ranks({"pbp": found, "nothing": {}}, 19, tmp_path / "ranks.png")
    curves, *histograms = drawn[0].axes
    places, lower, upper = ecdf_band(60, 19, quantities=2)
    corners = curves.collections[0].get_paths()[0].vertices[:, 1]
    assert {*(lower - places).round(9), *(upper - places).round(9)} == {*corners.round(9)}
    for line, ranks in zip(curves.lines[1:], found.values(), strict=True):
        np.testing.assert_allclose(line.get_ydata(), ecdf(ranks, 19) - places)
    for axis, (name, ranks) in zip(histograms, found.items(), strict=True):
        assert axis.get_title() == name
        heights = [bar.get_height() for bar in axis.containers[0]]
        assert heights == np.bincount(ranks // 2, minlength=10).tolist()
        low, high = stats.binom.interval(0.95, 60, 1 / 10)
        assert (axis.patches[0].get_y(), axis.patches[0].get_height()) == (low, high - low)


def test_without_ranks_there_is_no_picture_of_them(tmp_path):
    plot_ranks({"pbp": {}}, 19, tmp_path / "ranks.png")
    assert not list(tmp_path.iterdir())
