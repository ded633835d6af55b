"""The pictures of the latent binary experiments, from what their cells have left; of each cell trial 0."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from zoo.evaluation.plots import DPI, arrange, colours
from zoo.experiments.engine.declaration import Record
from zoo.files.tables import write_figure

MOST = np.log(10)  # the largest entropy of ten classes, in nats
BINS = 40
MOST_COLUMNS = 4  # panels side by side


def plot_entropies(out: Path, records: Sequence[Record]) -> None:
    """``entropy-<data set>.png``: distribution functions in (full) and out of domain (dashed) above,
    histograms below, one a method.
    """
    for dataset, group in _by_dataset(records).items():
        rows, columns = arrange(len(group), MOST_COLUMNS)
        size = (max(3.0 * columns, 7.0), 3.6 + 2.8 * rows)
        figure = Figure(figsize=size, layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        above, below = figure.subfigures(2, 1, height_ratios=[3.6, 2.8 * rows])
        curves, panels = above.subplots(), below.subplots(rows, columns, squeeze=False).flat
        palette = colours([record.cell.method for record in group])
        edges = np.linspace(0, MOST, BINS + 1)
        for panel in panels[len(group) :]:
            panel.set_visible(False)
        for record, panel in zip(group, panels, strict=False):
            method = record.cell.method
            with np.load(record.folder / "entropies.npz") as file:
                for name, style, colour in (("inside", "-", palette[method]), ("outside", "--", "0.3")):
                    values = np.sort(file[name].astype(float))
                    share = np.arange(1, len(values) + 1) / len(values)
                    curves.plot(
                        values, share, style, color=palette[method], label=f"{method}, {name}", lw=1.3
                    )
                    filled = {"color": colour, "alpha": 0.6, "histtype": "stepfilled"}
                    panel.hist(values.clip(0, MOST), edges, density=True, label=name, **filled)
            panel.set(title=method, xlabel="entropy, nats")
            panel.legend(fontsize=7, frameon=False)
        curves.set(xlabel="entropy, nats", ylabel="share of images below", xlim=(0, MOST), ylim=(0, 1))
        curves.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, frameon=False)
        write_figure(figure, out / f"entropy-{dataset}.png", dpi=DPI)


def plot_training(out: Path, records: Sequence[Record]) -> None:
    """``training-<data set>.png``: negative log likelihood of the ensemble after every epoch, on test images
    left, on training images right.
    """
    for dataset, group in _by_dataset(records).items():
        figure, (axes,) = _figure(9.0, 3.8, 1, 2)
        palette = colours([record.cell.method for record in group])
        for record in group:
            method = record.cell.method
            with np.load(record.folder / "curves.npz") as file:
                for axis, part in zip(axes, ("test", "train"), strict=True):
                    curve = file[f"ensemble_{part}"][1:]  # before the first epoch all guess
                    axis.plot(np.arange(1, len(curve) + 1), curve, color=palette[method], label=method)
        axes[0].set(title="test images", xlabel="epoch", ylabel="negative log likelihood, nats an image")
        axes[1].set(title="training images", xlabel="epoch")
        for axis in axes:
            axis.set_yscale("log")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes[1].legend(fontsize=8, frameon=False)
        write_figure(figure, out / f"training-{dataset}.png", dpi=DPI)


def plot_pictures(out: Path, records: Sequence[Record]) -> None:
    """``<data set>-<method>.png``: a row a class; left the images of lowest, right those of highest entropy,
    with the class that was predicted, in red where that is wrong.
    """
    for dataset, group in _by_dataset(records).items():
        for record in group:
            parts = [np.load(record.folder / f"{name}.npz") for name in ("low", "high")]
            classes, shown = parts[0]["predicted"].shape
            # more pictures are smaller ones
            side = min(0.75, 15 / (2 * shown))
            figure, axes = _figure(2 * shown * side, classes * (side + 0.1), classes, 2 * shown)
            for side, part in enumerate(parts):
                for (row, column), predicted in np.ndenumerate(part["predicted"]):
                    axis = axes[row, side * shown + column]
                    axis.imshow(part["images"][row, column], cmap="gray_r", vmin=0, vmax=255)
                    axis.set_title(f"{predicted}", fontsize=6, pad=1, color="k" if predicted == row else "r")
                    axis.set(xticks=[], yticks=[])
                part.close()
            figure.suptitle(f"{dataset}, {record.cell.method}: lowest entropy | highest entropy", fontsize=9)
            write_figure(figure, out / f"{dataset}-{record.cell.method}.png", dpi=DPI)


def plot_frontier(out: Path, records: Sequence[Record]) -> None:
    """``frontier-<data set>.png``: accuracy and calibration error against density, means over the trials; a
    line joins the weights of the divergence of a guide and prior, the posterior itself is the filled mark.
    """
    for dataset, group in _by_dataset(records, all_trials=True).items():
        points: dict[tuple[str, str], dict[float, list[Record]]] = {}
        for record in group:
            prior, _, weight = record.cell.setting.partition("-kl")
            line = points.setdefault((record.cell.method.removeprefix("cold-"), prior), {})
            line.setdefault(float(weight), []).append(record)
        figure, (axes,) = _figure(10.0, 4.2, 1, 2)
        palette = colours([f"{guide}, {prior}" for guide, prior in points])
        for axis, metric in zip(axes, ("accuracy", "ece"), strict=True):
            for (guide, prior), line in points.items():
                label = f"{guide}, {prior}"
                means = {w: [_mean(line[w], m) for m in ("density_half", metric)] for w in sorted(line)}
                colour = palette[label]
                axis.plot(*zip(*means.values(), strict=True), "o-", color=colour, mfc="white", label=label)
                for weight, (x, y) in means.items():
                    axis.annotate(
                        f"{weight:g}", (x, y), fontsize=6, xytext=(3, 3), textcoords="offset points"
                    )
                    if weight == 1:
                        axis.plot(x, y, "o", color=colour)
            axis.set(xscale="log", xlabel="share of weights with inclusion above one half", ylabel=metric)
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.xaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.margins(0.1)
        axes[1].legend(fontsize=8, frameon=False)
        figure.suptitle(f"{dataset}: filled 1 is the posterior, all others are cold posteriors", fontsize=9)
        write_figure(figure, out / f"frontier-{dataset}.png", dpi=DPI)


def _mean(records: Sequence[Record], metric: str) -> float:
    return float(np.mean([record.metrics[metric] for record in records]))


def plot_correlations(out: Path, records: Sequence[Record]) -> None:
    """``correlations.png``: the correlation matrix of every design, columns numbered from 1."""
    designs = {record.cell.setting: record for record in reversed(_first_trials(records))}
    if not designs:
        return
    names = sorted(designs, key=float)
    rows, columns = arrange(len(names), MOST_COLUMNS)
    figure, axes = _figure(2.3 * columns, 2.6 * rows, rows, columns)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for name, axis in zip(names, axes.flat, strict=False):
        matrix = np.load(designs[name].folder / "correlations.npy")
        end = len(matrix) + 0.5
        image = axis.imshow(matrix, cmap="RdBu_r", vmin=-1, vmax=1, extent=(0.5, end, end, 0.5))
        axis.set_title(f"j = {name}", fontsize=9)
        axis.tick_params(labelsize=6)
        for ruler in (axis.xaxis, axis.yaxis):
            ruler.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(image, ax=axes.ravel().tolist(), shrink=0.7)
    write_figure(figure, out / "correlations.png", dpi=DPI)


def _first_trials(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record.ok and record.cell.trial == 0]


def _by_dataset(records: Sequence[Record], all_trials: bool = False) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    sound = [record for record in records if record.ok]
    for record in sound if all_trials else _first_trials(sound):
        groups.setdefault(record.cell.dataset, []).append(record)
    return groups


def _figure(width: float, height: float, rows: int, columns: int) -> tuple[Figure, np.ndarray]:
    figure = Figure(figsize=(max(width, 4.0), height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)
