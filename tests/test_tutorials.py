"""Every tutorial runs from top to bottom."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIALS = sorted((Path(__file__).parent.parent / "tutorials").glob("*.py"))

each_tutorial = pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)


def test_tutorials_are_found():
    assert len(TUTORIALS) >= 3


@each_tutorial
def test_tutorial_imports_what_there_is(path):
    """Its import statements alone: seconds instead of a minute."""
    imports = [
        node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert any(
        node.module and node.module.startswith("guides") for node in imports if hasattr(node, "module")
    )
    exec(compile(ast.Module(imports, []), str(path), "exec"), {})  # noqa: S102


@pytest.mark.slow
@each_tutorial
def test_tutorial_runs(path):
    environment = {**os.environ, "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, env=environment, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
