"""What `pip install posterior-zoo` would bring: every module, and the files that are no Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("data_loaders", "guides", "zoo")
#: Endings of files that are no Python and have to be there beside the modules.
DATA = (".c", ".css", ".csv", ".html", ".js", ".nc", ".txt", ".typed")
SDIST = "from setuptools.build_meta import build_sdist; build_sdist('..')"
IMPORTS = """
from pathlib import Path
import data_loaders, guides, zoo
from zoo.models import create

assert all(Path.cwd() in Path(package.__file__).parents for package in (data_loaders, guides, zoo))
guides.AutoSpikeSlab(create("spike-slab-bnn", in_features=13))
assert zoo.__version__
"""


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    """The source distribution."""
    folder = tmp_path_factory.mktemp("archive")
    source = folder / "source"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, source)
    run(sys.executable, "-c", SDIST, cwd=source)
    (found,) = folder.glob("*.tar.gz")
    return found


@pytest.fixture(scope="module")
def wheel(archive) -> Path:
    """Built from the source distribution alone."""
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", ".")
    run(*pip, archive, cwd=archive.parent)
    (found,) = archive.parent.glob("*.whl")
    return found


@pytest.mark.slow
def test_source_distribution_says_how_to_cite_it_and_has_no_tests(archive):
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {"CITATION.cff", "CHANGELOG.md", "LICENSE", "README.md", "constraints.txt"} <= names
    assert not any(name.startswith("tests") for name in names)


@pytest.mark.slow
def test_wheel_holds_every_module_and_data_file(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", *DATA)
    }
    named = {
        "guides/core/kernels.c",
        "guides/py.typed",
        "zoo/commands/html/report.html",
        "data_loaders/originals/csv/raisin.csv",
        "data_loaders/originals/csv/SOURCES.txt",
        "zoo/experiments/sspbp/published/table-3.3.csv",
        "zoo/experiments/lbbnn/published/explained.csv",
    }
    assert named <= expected
    assert expected <= held, sorted(expected - held)


@pytest.mark.slow
def test_wheel_works_in_a_fresh_environment(wheel, tmp_path, monkeypatch):
    """Away from the repository.  The environment sees the packages that are needed, and not this one."""
    monkeypatch.delenv("PYTHONPATH", raising=False)  # it may name the repository
    venv.create(tmp_path / "env", symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    (site,) = tmp_path.glob("env/lib/*/site-packages")
    (site / "needed.pth").write_text(sysconfig.get_path("purelib"))  # an editable install is not followed
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", wheel, cwd=tmp_path)
    run(python, "-c", IMPORTS, cwd=tmp_path)
    selection = ("--model", "spike-slab-linear", "--guides", "varbvs", "--reference", "exact")
    told = run(python.parent / "zoo", "compare", "diabetes", *selection, "--out", "board", cwd=tmp_path)
    assert "varbvs" in told
    assert (tmp_path / "board" / "scoreboard.csv").exists()
