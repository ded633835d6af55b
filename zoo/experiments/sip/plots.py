"""The pictures of the experiments, from what their cells have left; of each cell trial 0."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from zoo.evaluation.plots import DPI, bare_panels, colours
from zoo.experiments.engine.declaration import Record
from zoo.experiments.engine.pictures import by_dataset, first_trials
from zoo.files.tables import write_figure

DATA, DRAWN, PRIOR = "0.75", "#1f5fa8", "#b2542b"


def plot_functions(out: Path, records: Sequence[Record]) -> None:
    """``<data set>.png``: a panel a method, draws of y given x on the data; below, where a prior was learned,
    functions drawn from it.
    """
    drawn = [record for record in first_trials(records) if (record.folder / "samples.npz").exists()]
    for dataset, group in by_dataset(drawn).items():
        figure, axes = bare_panels(2, len(group), (3.0 * len(group), 5.6))
        for column, record in enumerate(group):
            with np.load(record.folder / "samples.npz") as file:
                _predictive(axes[0, column], file)
                _prior(axes[1, column], file)
            axes[0, column].set_title(record.cell.method, fontsize=10)
        rows = np.ma.getdata(axes[0, 0].collections[0].get_offsets())[:, 1]
        low, high = rows.min(), rows.max()
        for axis in axes[0]:
            axis.set_ylim(low - 0.2 * (high - low), high + 0.2 * (high - low))
        axes[0, 0].set_ylabel("y: data, and draws given x")
        axes[1, 0].set_ylabel("functions of the learned prior")
        write_figure(figure, out / f"{dataset}.png", dpi=DPI)


def plot_inducing(out: Path, records: Sequence[Record]) -> None:
    """``<data set>-<setting>.png``: draws of y above, the path of every inducing input below."""
    for record in first_trials(records):
        figure, axes = bare_panels(2, 1, (5.5, 6.0))
        with np.load(record.folder / "samples.npz") as file:
            _predictive(axes[0, 0], file)
        with np.load(record.folder / "trajectories.npz") as file:
            steps, places = file["steps"], file["places"]
        axes[1, 0].plot(places, steps, color=DRAWN, lw=0.8)
        axes[1, 0].set(xlabel="x of the inducing inputs", ylabel="step", xlim=axes[0, 0].get_xlim())
        write_figure(figure, out / f"{record.cell.dataset}-{record.cell.setting}.png", dpi=DPI)


def plot_large(out: Path, records: Sequence[Record]) -> None:
    """``<data set>.png``: test figures against seconds of training."""
    for dataset, group in by_dataset(first_trials(records)).items():
        figure, axes = bare_panels(1, 3, (12.0, 3.6))
        palette = colours([record.cell.method for record in group])
        for record in group:
            with np.load(record.folder / "curve.npz") as file:
                seconds, *found = file["curve"].T
            for axis, values in zip(axes[0], found, strict=True):
                axis.plot(
                    seconds, values, "o-", ms=3, color=palette[record.cell.method], label=record.cell.method
                )
        for axis, name in zip(axes[0], ("RMSE", "log likelihood", "CRPS"), strict=True):
            axis.set(xlabel="CPU seconds of training", ylabel=name, xscale="log")
        axes[0, 2].legend(fontsize=8, frameon=False)
        write_figure(figure, out / f"{dataset}.png", dpi=DPI)


def plot_gradients(out: Path, records: Sequence[Record]) -> None:
    """``gradients.png``: a dot a parameter, both gradients."""
    found = first_trials(records)
    if not found:
        return
    figure, axes = bare_panels(1, len(found), (5.0 * len(found), 4.2))
    for axis, record in zip(axes[0], found, strict=True):
        with np.load(record.folder / "gradients.npz") as file:
            axis.plot(file["data"], file["divergence"], ".", color=DRAWN, ms=4, label="along the draws")
            axis.plot(
                file["data"][file["largest"]], file["differences"], "+", color=PRIOR, label="by differences"
            )
        axis.set(title=record.cell.method, xlabel="gradient of the data term", ylabel="of the KL term")
        axis.legend(fontsize=8, frameon=False)
    write_figure(figure, out / "gradients.png", dpi=DPI)


def plot_ranks(out: Path, ranks: dict[str, dict[str, float]]) -> None:
    """``ranks.png``: ``ranks``: metric -> method -> average rank."""
    figure, axes = bare_panels(1, len(ranks), (4.0 * len(ranks), 3.2))
    for axis, (metric, found) in zip(axes[0], ranks.items(), strict=True):
        names = sorted(found, key=found.get, reverse=True)
        axis.barh(names, [found[name] for name in names], color=DRAWN)
        axis.set(title=metric, xlabel="average rank, 1 is best")
    write_figure(figure, out / "ranks.png", dpi=DPI)


def _predictive(axis: Axes, file: np.lib.npyio.NpzFile) -> None:
    axis.scatter(file["x_train"], file["y_train"], s=3, color=DATA, linewidths=0)
    x = np.broadcast_to(file["x"], file["y"].shape)
    axis.scatter(x.ravel(), file["y"].ravel(), s=2, color=DRAWN, alpha=0.35, linewidths=0)
    axis.set_xlabel("x")


def _prior(axis: Axes, file: np.lib.npyio.NpzFile) -> None:
    if not len(file["prior"]):
        axis.set_visible(False)
        return
    axis.plot(file["x"], file["prior"].T, color=PRIOR, lw=0.8)
    axis.set_xlabel("x")
