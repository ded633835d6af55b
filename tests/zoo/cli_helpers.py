"""The command line in this process and in a fresh one, and small tables to feed it."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from zoo.budgets import BUDGETS, Budget
from zoo.cli.main import app
from zoo.commands.comparison_plots import write_plots

#: Seconds, not minutes; what it gives says nothing about a posterior.
TINY = Budget(steps=60, draws=60, warmup=20, mcmc_draws=30)

#: In this order.
COLUMNS = [
    "method", "model", "status", "note", "rmse", "rmse_se", "log_likelihood", "log_likelihood_se",
    "crps", "crps_se", "coverage_90", "accuracy", "ece", "ref_log_likelihood", "ref_mean_error",
    "ref_sd_ratio", "ref_w1", "ref_pip_rmse", "elbo", "bound_change", "pareto_k",
    "density_mean", "density_half", "num_parameters", "fit_seconds",
]  # fmt: skip
ALWAYS = {"config.json", "scoreboard.csv", "scoreboard.md", "scoreboard.png", "standard_errors.csv"}
PREDICTIVE = ("rmse", "rmse_se", "log_likelihood", "log_likelihood_se", "crps", "crps_se", "coverage_90")
DISTANCES = ("ref_mean_error", "ref_sd_ratio", "ref_w1")


def make_tiny(patch: pytest.MonkeyPatch, elbo_draws: int = 50, pictures: bool = False) -> None:
    """The quick budget is :data:`TINY`, an ELBO is the mean of few draws, and comparisons draw no pictures
    unless a test is about them: they take more time than the fits.
    """
    patch.setitem(BUDGETS, "quick", TINY)
    patch.setattr("zoo.fitting.svi.ELBO_DRAWS", elbo_draws)
    patch.setattr("zoo.evaluation.plots.DPI", 40)
    patch.setattr("zoo.commands.compare.write_plots", write_plots if pictures else lambda *args: None)


def run_zoo(*args: object) -> Result:
    """``zoo ...`` in this process; an unexpected exception is raised."""
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, [str(arg) for arg in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def refused(*args: object) -> str:
    """The one line that a call prints to stderr before it ends with 2."""
    result = run_zoo(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("zoo: ")
    return lines[0]


def fresh_process(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Python code in a process of its own, warnings as errors."""
    command = [sys.executable, "-W", "error", "-c", code, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def write_csv(path: Path, rows: Iterable[Sequence[object]], header: str = "a,b,y") -> Path:
    lines = [header, *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def linear_rows(count: int = 60, noise: float = 0.1) -> list[list[float]]:
    """Rows ``a, b, y`` with ``y = a - 2 b + noise``."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 2))
    y = x @ [1.0, -2.0] + noise * rng.normal(size=count)
    return np.column_stack([x, y]).tolist()


def table_of(folder: Path) -> dict[str, dict[str, str]]:
    """Method -> cells of ``scoreboard.csv``."""
    with (folder / "scoreboard.csv").open(newline="") as file:
        header, *lines = csv.reader(file)
    assert header == COLUMNS
    return {line[0]: dict(zip(header, line, strict=True)) for line in lines}


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
