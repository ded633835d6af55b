"""The leaderboard as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from zoo.evaluation.leaderboard.standings import MARK, Standing
from zoo.evaluation.plots import PALETTE, finish, panels

#: Panel title -> which direction is better, the value that is right (None: none).
PANELS = {
    "rank by W1": ("← better", None),
    "W1": ("← better", None),
    "sd ratio": ("1 is right", 1.0),
    "vs truth, nats": ("better →", 0.0),
    "CPU seconds": ("", None),
}
#: Panel title -> figure of a fit, of the panels of means.
MEANS = {"W1": "ref_w1", "sd ratio": "ref_sd_ratio", "vs truth, nats": "ref_log_likelihood"}
#: Nats a test point: beyond it guides that are far off would leave no room to tell the others apart.
WIDE = 10.0


def plot_leaderboard(found: Sequence[Standing], path: str | Path) -> None:
    """A line a guide that is ranked, best on top: its ranks and figures as means with ± 2 standard errors,
    and what a fit costs.

    :raises ValueError: when no guide is ranked
    """
    ranked = [standing for standing in found if standing.ranks]
    figure, axes = panels(1, len(PANELS), (2.4 * len(PANELS) + 1.4, 0.9 + 0.27 * len(ranked)), sharey=True)
    for axis, (title, (arrow, right)) in zip(axes.flat, PANELS.items(), strict=True):
        for i, standing in enumerate(ranked):
            value, se = _value(standing, title)
            if math.isfinite(value):
                colour = PALETTE[1] if standing.note else PALETTE[0]
                axis.errorbar(
                    value, i, xerr=2 * se if se else None, fmt="o", color=colour, markersize=5, capsize=2
                )
        axis.set_title(title + (f"\n{arrow}" if arrow else "\n"), fontsize=9)
        if right is not None:
            axis.axvline(right, color="0.6", linewidth=1, zorder=1)
        axis.grid(axis="both", color="0.92", linewidth=0.8)
        axis.set_axisbelow(True)
    axes.flat[-1].set_xscale("log")
    likelihoods = axes.flat[list(PANELS).index("vs truth, nats")]
    if max(map(abs, likelihoods.get_xlim())) > WIDE:
        likelihoods.set_xscale("symlog", linthresh=1.0)
    axes.flat[0].set_yticks(range(len(ranked)), [standing.name for standing in ranked])
    axes.flat[0].set_ylim(len(ranked) - 0.4, -0.6)
    finish(figure, path, caption=f"bars: ± 2 standard errors; orange and {MARK}: see the guide's note")


def _value(standing: Standing, title: str) -> tuple[float, float | None]:
    if title == "CPU seconds":
        return standing.cost, None
    mean = standing.mean(MEANS[title]) if title in MEANS else standing.rank
    return (math.nan, None) if mean is None else (mean.value, mean.se)
