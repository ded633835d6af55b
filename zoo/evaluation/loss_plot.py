"""The picture of a fit's losses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from zoo.evaluation.plots import plain
from zoo.files.tables import write_figure


def plot_loss(losses: np.ndarray, path: str | Path, title: str = "") -> None:
    """The loss of every step ``[steps]`` (grey) and its running mean over a fiftieth of the fit."""
    window = max(1, len(losses) // 50)
    running = np.convolve(losses, np.ones(window) / window, mode="valid")
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axis = figure.subplots()
    axis.plot(losses, color="0.8", linewidth=0.5)
    axis.plot(np.arange(window - 1, len(losses)), running, color="#0072B2")
    low, high = np.quantile(losses, [0.001, 0.95])
    if low < high:  # the first steps would flatten the rest
        axis.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set(xlabel="step", ylabel="loss (nats)", title=plain(title))
    write_figure(figure, path, dpi=150)
