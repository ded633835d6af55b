"""What `pip install posterior-zoo` would bring: every module, and the files that are no Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("data_loaders", "guides", "zoo")
#: Endings of files that are no Python and have to be there beside the modules.
DATA = (".c", ".css", ".csv", ".html", ".js", ".txt")


@pytest.mark.slow
def test_wheel_holds_every_module_and_data_file(tmp_path):
    source = tmp_path / "source"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
        source,
    ]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", *DATA)
    }
    named = {
        "guides/core/kernels.c",
        "zoo/commands/html/report.html",
        "data_loaders/csv/raisin.csv",
        "data_loaders/csv/SOURCES.txt",
        "zoo/experiments/sspbp/published/table-3.3.csv",
        "zoo/experiments/lbbnn/published/explained.csv",
    }
    assert named <= expected
    assert expected <= held, sorted(expected - held)
