"""What all pictures of saved results have in common: colours, panels, titles and captions.

Only arrays and rows come in; no model, no posterior.  Every picture is one PNG (whole or not at all), drawn
on its own ``Figure`` (never pyplot: no window, no shared state), and leaves matplotlib's settings as they
were.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from zoo.budgets import REFERENCES
from zoo.files.tables import write_figure

#: Okabe & Ito (2008): told apart with every common kind of colour blindness.  The reference is black.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#F0E442")
REFERENCE_COLOUR, FAINT = "black", "0.65"
DPI = 130


def colours(methods: Sequence[str], reference: str | None = None) -> dict[str, str]:
    """One colour a method, the reference black; from the ninth method on the palette begins again."""
    others = [m for m in methods if m != reference]
    named = {m: PALETTE[i % len(PALETTE)] for i, m in enumerate(others)}
    return named | ({reference: REFERENCE_COLOUR} if reference is not None else {})


def plain(text: str) -> str:
    """A name that matplotlib shows as it stands: a dollar sign would begin a formula."""
    return text.replace("$", r"\$")


def reference_name(methods: Mapping[str, object]) -> str | None:
    """The trusted one among the methods, if any.

    :raises ValueError: when there is no method
    """
    if not methods:
        raise ValueError("no method to plot")
    return next((m for m in REFERENCES if m in methods), None)


def with_room(low: float, high: float, share: float) -> tuple[float, float]:
    """Limits of an axis that shows all from ``low`` to ``high``, with this share of it on both sides; they
    differ, however large a number that stands there alone.
    """
    room = share * (high - low) or max(1.0, share * abs(high))
    return float(low - room), float(high + room)


def arrange(count: int, most: int) -> tuple[int, int]:
    """Rows and columns of so many panels, at most so many side by side, the rows as even as can be."""
    rows = math.ceil(count / most)
    return rows, math.ceil(count / max(1, rows))


def bare_panels(rows: int, columns: int, size: tuple[float, float], **shared) -> tuple[Figure, np.ndarray]:
    """A figure of ``size`` inches and its axes ``[rows, columns]``, as matplotlib has them."""
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def panels(rows: int, columns: int, size: tuple[float, float], **shared) -> tuple[Figure, np.ndarray]:
    """:func:`bare_panels` without frames; :raises ValueError: for no rows"""
    if rows < 1:
        raise ValueError("no method to plot")
    figure, axes = bare_panels(rows, columns, size, **shared)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8.5)
    return figure, axes


def finish(figure: Figure, path: str | Path, title: str = "", caption: str = "") -> None:
    """Writes a figure, with a title over it and a caption under it."""
    if title:
        figure.suptitle(title, fontsize=12, fontweight="bold")
    if caption:
        # under everything: constrained layout keeps no room for figure texts, so the file's box is widened
        # for it
        figure.text(0.5, -0.01, caption, ha="center", va="top", fontsize=8, color="0.35")
    write_figure(figure, path, dpi=DPI, bbox_inches="tight", pad_inches=0.12)
