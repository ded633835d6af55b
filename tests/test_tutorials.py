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
    "grade_a_guide": {"warmup=500, draws=500": "warmup=30, draws=30, retries=0", "steps=4000": "steps=300"},
    "growing_graphs": {"epochs=12": "epochs=2", "epochs=10": "epochs=2", "range(200)": "range(20)"},
    "sparse_networks": {"steps=1000": "steps=100", "steps=1500": "steps=150", "range(1000)": "range(200)"},
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


#: Runs each script of a folder in a process of its own, which has what they all import.
FORKED = """
import os, pathlib, runpy, sys
import arviz, jax, matplotlib.pyplot, numpyro.infer, pyro, torch, guides, zoo

for script in sorted(pathlib.Path(sys.argv[1]).glob("*.py")):
    if os.fork() == 0:
        os.dup2(os.open(script.with_suffix(".err"), os.O_WRONLY | os.O_CREAT), 2)
        runpy.run_path(str(script), run_name="__main__")
        sys.exit()
    script.with_suffix(".end").write_text(str(os.waitstatus_to_exitcode(os.wait()[1])))
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> Path:
    """A folder with the exit status and the standard error of every tutorial."""
    folder = tmp_path_factory.mktemp("tutorials")
    for path in TUTORIALS:
        source = path.read_text()
        for printed, small in SMALL.get(path.stem, {}).items():
            assert printed in source
            source = source.replace(printed, small)
        (folder / path.name).write_text(source)
    environment = {**os.environ, "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-c", FORKED, folder],
        stdout=subprocess.DEVNULL,
        env=environment,
        check=True,
        timeout=1200,
    )
    return folder


@pytest.mark.slow
@each_tutorial
def test_tutorial_runs(path, ended):
    errors = (ended / path.with_suffix(".err").name).read_text()
    assert (ended / path.with_suffix(".end").name).read_text() == "0", errors[-2000:]
