"""The pictures of the latent binary experiments, from what their cells have left; of each cell trial 0,
but on the frontier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from zoo.evaluation.plots import DPI, arrange, bare_panels, colours
from zoo.experiments.engine.declaration import Record
from zoo.experiments.engine.pictures import by_dataset, first_trials
from zoo.files.tables import write_figure

MOST = np.log(10)  # the largest entropy of ten classes, in nats
BINS = 40
MOST_COLUMNS = 4  # panels side by side
#: Of weights of the divergence on the frontier; others have a cross.
MARKS = {1.0: "o", 0.3: "s", 0.1: "^", 0.05: "D", 0.03: "v"}
#: What stands over the density there.
FRONTIER = {"accuracy": "accuracy", "ece": "calibration error"}


def plot_entropies(out: Path, records: Sequence[Record]) -> None:
    """``entropy-<data set>.png``: distribution functions in (full) and out of domain (dashed) above,
    histograms below, one a method.
    """
    for dataset, group in by_dataset(first_trials(records)).items():
        rows, columns = arrange(len(group), MOST_COLUMNS)
        size = (max(3.0 * columns, 7.0), 3.6 + 2.8 * rows)
        figure = Figure(figsize=size, layout="constrained", facecolor="white")
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
    for dataset, group in by_dataset(first_trials(records)).items():
        figure, (axes,) = bare_panels(1, 2, (9.0, 3.8))
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
    for dataset, group in by_dataset(first_trials(records)).items():
        for record in group:
            parts = [np.load(record.folder / f"{name}.npz") for name in ("low", "high")]
            classes, shown = parts[0]["predicted"].shape
            # more pictures are smaller ones
            side = min(0.75, 15 / (2 * shown))
            size = max(2 * shown * side, 4.0), classes * (side + 0.1)
            figure, axes = bare_panels(classes, 2 * shown, size)
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
    for dataset, group in by_dataset(record for record in records if record.ok).items():
        lines = _frontier_lines(group)
        guides, priors = (list(dict.fromkeys(names)) for names in zip(*lines, strict=True))
        weights = sorted({weight for line in lines.values() for weight in line}, reverse=True)
        palette = colours(priors)
        styles = {guide: "-:"[i % 2] for i, guide in enumerate(guides)}
        marks = {weight: MARKS.get(weight, "x") for weight in weights}
        figure, (axes,) = bare_panels(1, 2, (11.0, 4.2))
        for axis, (metric, name) in zip(axes, FRONTIER.items(), strict=True):
            for (guide, prior), line in lines.items():
                colour = palette[prior]
                means = {w: [_mean(line[w], m) for m in ("density_half", metric)] for w in sorted(line)}
                axis.plot(*zip(*means.values(), strict=True), styles[guide], color=colour, lw=1)
                for weight, (x, y) in means.items():
                    axis.plot(x, y, marks[weight], color=colour, mfc=_face(weight, colour), ms=5)
            axis.set(xscale="log", xlabel="share of weights with inclusion above one half", ylabel=name)
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
            axis.xaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
            axis.xaxis.set_minor_formatter(NullFormatter())
            axis.margins(0.1)
        figure.legend(
            handles=_frontier_keys(palette, styles, marks), fontsize=8, frameon=False, loc="outside right"
        )
        figure.suptitle(f"{dataset}: accuracy and calibration error by weight of the divergence", fontsize=9)
        write_figure(figure, out / f"frontier-{dataset}.png", dpi=DPI)


def _frontier_lines(records: Sequence[Record]) -> dict[tuple[str, str], dict[float, list[Record]]]:
    """``(guide, prior) -> weight of the divergence -> trials``."""
    lines: dict[tuple[str, str], dict[float, list[Record]]] = {}
    for record in records:
        prior, _, weight = record.cell.setting.partition("-kl")
        line = lines.setdefault((record.cell.method.removeprefix("cold-"), prior), {})
        line.setdefault(float(weight), []).append(record)
    return lines


def _frontier_keys(
    palette: Mapping[str, str], styles: Mapping[str, str], marks: Mapping[float, str]
) -> list[Line2D]:
    """Of the legend: what colour, line and mark stand for."""
    grey = "0.3"
    keys = [Line2D([], [], color=colour, label=prior) for prior, colour in palette.items()]
    keys += [Line2D([], [], color=grey, ls=style, label=guide) for guide, style in styles.items()]
    for weight, mark in marks.items():
        label = f"{weight:g} ({'posterior' if weight == 1 else 'cold'})"
        keys.append(Line2D([], [], color=grey, ls="", marker=mark, mfc=_face(weight, grey), label=label))
    return keys


def _face(weight: float, colour: str) -> str:
    """The posterior is filled, cold ones are open."""
    return colour if weight == 1 else "white"


def _mean(records: Sequence[Record], metric: str) -> float:
    return float(np.mean([record.metrics[metric] for record in records]))


def plot_correlations(out: Path, records: Sequence[Record]) -> None:
    """``correlations.png``: the correlation matrix of every design, columns numbered from 1."""
    designs = {record.cell.setting: record for record in reversed(first_trials(records))}
    if not designs:
        return
    names = sorted(designs, key=float)
    rows, columns = arrange(len(names), MOST_COLUMNS)
    figure, axes = bare_panels(rows, columns, (max(2.3 * columns, 4.0), 2.6 * rows))
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
