"""The pictures of the experiments: drawn from what cells left, counts whole numbers, none beyond a screen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.zoo.experiments.lbbnn.tiny_cells import BY_NAME, OPTIONS
from zoo.evaluation.plots import DPI
from zoo.experiments.engine.declaration import Cell, Record
from zoo.experiments.lbbnn import images, plots
from zoo.experiments.sspbp.plots import plot_densities


@pytest.fixture
def drawn(monkeypatch) -> list[Figure]:
    """The figures that would be saved."""
    figures = []

    def save(self, target, **options):
        figures.append(self)
        Path(target).touch()

    monkeypatch.setattr(Figure, "savefig", save)
    return figures


def record(tmp_path, dataset="digits", method="lrt", setting="default", **arrays) -> Record:
    folder = tmp_path / dataset / method / setting
    folder.mkdir(parents=True)
    for name, value in arrays.items():
        if isinstance(value, dict):
            np.savez(folder / f"{name}.npz", **value)
        else:
            np.save(folder / f"{name}.npy", value)
    return Record(Cell("x", dataset, method, setting, 0), "ok", {"slab": 0.5}, 1.0, folder)


def ticks(axis) -> list[float]:
    return [*axis.get_xticks(), *axis.get_yticks()]


def test_epochs_are_whole_numbers(drawn, tmp_path):
    curves = {"ensemble_test": np.linspace(2, 1, 5), "ensemble_train": np.linspace(2, 1, 5)}
    plots.plot_training(tmp_path, [record(tmp_path, curves=curves)])
    for axis in drawn[0].axes:
        assert all(tick == round(tick) for tick in axis.get_xticks())


def test_columns_of_a_design_are_whole_numbers_and_designs_go_on_below(drawn, tmp_path):
    records = [record(tmp_path, setting=f"0.{i}", correlations=np.eye(20)) for i in range(1, 10)]
    plots.plot_correlations(tmp_path, records)
    panels = [axis for axis in drawn[0].axes if axis.get_title().startswith("j = ")]
    assert [axis.get_title() for axis in panels] == [f"j = 0.{i}" for i in range(1, 10)]
    for axis in panels:
        assert all(tick == round(tick) for tick in ticks(axis))
    assert max(drawn[0].get_size_inches()) * DPI <= 2000


@pytest.mark.slow
def test_many_methods_and_many_pictures_stay_within_a_screen(drawn, tmp_path):
    entropies = {"inside": np.linspace(0, 1, 9), "outside": np.linspace(1, 2, 9)}
    plots.plot_entropies(tmp_path, [record(tmp_path, method=f"m{i}", entropies=entropies) for i in range(9)])
    assert sum(axis.get_title().startswith("m") and axis.get_visible() for axis in drawn[0].axes) == 9
    part = {"predicted": np.zeros((2, 20), int), "images": np.zeros((2, 20, 4, 4))}
    plots.plot_pictures(tmp_path, [record(tmp_path, "kmnist", low=part, high=part)])
    pairs = {f"p{i}": (0.0, float(i)) for i in range(5)}
    density = np.stack([np.linspace(-1, 1, 9), np.ones(9)])
    plot_densities(
        tmp_path / "d.png", [record(tmp_path, name, "pbp", density=density) for name in pairs], pairs
    )
    assert len([axis for axis in drawn[-1].axes if axis.get_visible()]) == 2 * len(pairs)
    for figure in drawn:
        assert max(figure.get_size_inches()) * DPI <= 2000


@pytest.mark.slow
@pytest.mark.usefixtures("small_and_real")
def test_pictures_are_drawn_from_what_the_cells_left(cell, tmp_path, monkeypatch):
    monkeypatch.setattr(images, "SHOWN", 1)  # a picture more costs more than its network
    for name, function, methods in (
        ("entropy", images.entropies, ("lrt", "mnf-early")),
        ("training", images.training_curve, ("lrt", "mlp")),
        ("pictures", images.pictures, ("lrt",)),
    ):
        records = []
        for method in methods:
            folder = tmp_path / name / method
            folder.mkdir(parents=True)
            place = Cell("x", "digits", method, "default", 0, options=OPTIONS, folder=folder)
            records.append(Record(place, "ok", function(place), 1.0, folder))
        failed = Record(Cell("x", "digits", "mnf", "default", 0), "failed: no", {}, 1.0, tmp_path)
        BY_NAME[f"lbbnn/{name}"].finish(tmp_path, [*records, failed])
        BY_NAME[f"lbbnn/{name}"].finish(tmp_path / "empty", [])
    for name in ("entropy-digits", "training-digits", "digits-lrt"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "empty").exists()


def test_correlation_matrices_are_drawn(tmp_path):
    records = []
    for setting in ("0.1", "1"):
        folder = tmp_path / setting
        folder.mkdir()
        np.save(folder / "correlations.npy", np.eye(20))
        records.append(Record(Cell("x", "sim", "exact", setting, 0), "ok", {"rmse": 0.0}, 1.0, folder))
    plots.plot_correlations(tmp_path, records)
    assert (tmp_path / "correlations.png").exists()
    plots.plot_correlations(tmp_path / "empty", [])


def test_frontier_has_a_line_for_guide_and_prior_and_a_filled_mark_for_the_posterior(drawn, tmp_path):
    figures = {1: (0.01, 0.90, 0.05), 0.1: (0.04, 0.95, 0.01)}
    records = []
    for guide in ("lrt", "mnf"):
        for prior in ("fixed", "rates"):
            for weight, values in figures.items():
                method = guide if weight == 1 else f"cold-{guide}"
                found = record(tmp_path, method=method, setting=f"{prior}-kl{weight}")
                metrics = dict(zip(("density_half", "accuracy", "ece"), values, strict=True))
                records.append(Record(found.cell, "ok", metrics, 1.0, found.folder))
    plots.plot_frontier(tmp_path, records)
    for axis, metric in zip(drawn[0].axes, (1, 2), strict=True):
        lines = [line for line in axis.lines if len(line.get_xdata()) == 2]
        assert len(lines) == len({(line.get_color(), line.get_linestyle()) for line in lines}) == 4
        marks = [line for line in axis.lines if len(line.get_xdata()) == 1]
        filled = {line.get_ydata()[0] for line in marks if line.get_markerfacecolor() != "white"}
        assert filled == {figures[1][metric]}
        assert {line.get_ydata()[0] for line in marks} == {values[metric] for values in figures.values()}
