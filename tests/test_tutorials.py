"""Every tutorial runs from top to bottom; what benchmarks import is there."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIALS = sorted((Path(__file__).parent.parent / "tutorials").glob("*.py"))

BENCHMARKS = sorted((Path(__file__).parent.parent / "benchmarks").glob("*.py"))

#: What the tests run with less of: tutorial, and what stands there for what.
SMALL = {
    "functions_instead_of_weights": {
        **{"steps=2000": "steps=300", "steps=1000": "steps=100"},
        "-2.6 > best": "-4.0",  # that it beats every Gaussian takes the whole fit
    },
    "grade_a_guide": {"warmup=500, draws=500": "warmup=150, draws=150", "steps=4000": "steps=300"},
    "growing_graphs": {"epochs=12": "epochs=2", "epochs=10": "epochs=2", "range(200)": "range(20)"},
    "sparse_networks": {"steps=1000": "steps=300", "steps=1500": "steps=500"},
    "your_own_model": {"range(1500)": "range(500)", "range(600)": "range(300)", "range(200)": "range(50)"},
    "your_own_module_and_guide": {"range(800)": "range(200)", "1500)": "400)", "range(1000)": "range(300)"},
}

each_tutorial = pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)


def test_tutorials_are_found():
    assert len(TUTORIALS) >= 3


def run_imports(path: Path) -> list[ast.stmt]:
    """The import statements of a script alone: seconds instead of a minute."""
    imports = [
        node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    exec(compile(ast.Module(imports, []), str(path), "exec"), {})  # noqa: S102
    return imports


@each_tutorial
def test_tutorial_imports_what_there_is(path):
    imports = run_imports(path)
    assert any(
        node.module and node.module.startswith("guides") for node in imports if hasattr(node, "module")
    )


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_benchmark_imports_what_there_is(path):
    assert run_imports(path)


@pytest.mark.slow
@each_tutorial
def test_tutorial_runs(path, tmp_path):
    source = path.read_text()
    for printed, small in SMALL.get(path.stem, {}).items():
        assert printed in source
        source = source.replace(printed, small)
    script = tmp_path / path.name
    script.write_text(source)
    environment = {**os.environ, "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    environment.pop("JAX_DISABLE_MOST_OPTIMIZATIONS")
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=environment, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
