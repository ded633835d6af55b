"""The picture of inclusion probabilities, as those of :mod:`zoo.evaluation.plots`."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from zoo.evaluation.plots import colours, finish, panels, reference_name

#: Inches of a line of bars, and lines of them.
LINE, MOST_LINES = 13.0, 4
#: Characters of a coefficient's name where it is turned, and inches of a character.
LONGEST_NAME, LETTER = 28, 0.08


def plot_inclusion(
    methods: Mapping[str, np.ndarray],
    names: Sequence[str],
    path: str | Path,
    title: str = "",
    caption: str = "",
) -> None:
    """Inclusion probabilities as grouped bars with the line at one half (the median probability model); many
    coefficients go on in a panel below.

    :param methods: method -> probabilities [P]; those of a trusted one are drawn in black
    :param names: of the P coefficients
    """
    reference = reference_name(methods)
    order = [m for m in (reference,) if m is not None] + [m for m in methods if m != reference]
    group = 0.16 + 0.17 * len(order)  # inches of a coefficient
    lines = min(MOST_LINES, math.ceil(len(names) * group / LINE))
    count = math.ceil(len(names) / lines)
    size = (float(np.clip(1.6 + count * group, 6.0, 1.6 + LINE)), 0.8 + 2.8 * lines)
    figure, axes = panels(lines, 1, size, sharey=True)
    palette = colours(list(methods), reference)
    for first, axis in zip(range(0, len(names), count), axes.flat, strict=False):
        part = slice(first, first + count)
        bars = {method: np.asarray(methods[method])[part] for method in order}
        _inclusion_panel(axis, bars, names[part], count, size[0], palette)
    for axis in axes.flat[math.ceil(len(names) / count) :]:
        axis.set_visible(False)
    above = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": min(6, len(order)), "frameon": False}
    axes.flat[0].legend(**above, fontsize=9)
    finish(figure, path, title, caption)


def _inclusion_panel(
    axis: Axes,
    bars: Mapping[str, np.ndarray],
    names: Sequence[str],
    count: int,
    width: float,
    palette: Mapping[str, str],
) -> None:
    """Some of the coefficients, in a panel with room for so many."""
    step = 0.8 / len(bars)
    places = np.arange(len(names))
    axis.bar(
        places[::2], 1.0, width=1, color="0.965", zorder=0
    )  # every second coefficient, to follow the groups
    for i, (method, heights) in enumerate(bars.items()):
        shift = (i - (len(bars) - 1) / 2) * step
        axis.bar(places + shift, heights, 0.92 * step, color=palette[method], label=method, zorder=2)
    axis.axhline(0.5, color="0.3", linewidth=1, linestyle="--", zorder=3)
    _name_coefficients(axis, names, width / count)
    axis.set(ylim=(0, 1), xlim=(-0.6, count - 0.4), ylabel="inclusion probability")
    axis.tick_params(axis="x", length=0)


def _name_coefficients(axis: Axes, names: Sequence[str], room: float) -> None:
    """Names under groups of so many inches: in lines where their words have room, else turned and cut; those
    that would overlap even so are left out.
    """
    places, letters = np.arange(len(names)), int(room / LETTER)
    if max(len(word) for name in names for word in name.split()) <= letters:
        texts = [textwrap.fill(name, letters, max_lines=3, placeholder="…") for name in names]
        axis.set_xticks(places, texts, fontsize=8.5)
        return
    texts = [name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…" for name in names]
    every = math.ceil(2 * LETTER / room)
    axis.set_xticks(places[::every], texts[::every], rotation=45, ha="right", fontsize=8.5)
    for label in axis.get_xticklabels():
        label.set_rotation_mode("anchor")
