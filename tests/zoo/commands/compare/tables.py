"""The comparison that most tests of this folder look at, and how to ask for it again."""

from __future__ import annotations

import functools
from pathlib import Path

import zoo.commands.reference
from guides.truth.gates import Gates
from guides.truth.mcmc import nuts
from tests.zoo.cli_helpers import run_zoo

NO_GATES = Gates(max_rhat=99, min_ess_bulk=0, max_divergence_share=1)


def compare_again(folder: Path, out: Path, monkeypatch):
    """``zoo compare`` of two features, with gates that every chain passes."""
    monkeypatch.setattr(zoo.commands.reference, "nuts", functools.partial(nuts, gates=NO_GATES))
    return run_zoo("compare", folder / "table.csv", "--widths", 3, "--seed", 7, "--out", out)
