"""Models, guides, data sets and experiments that another package registers by entry points."""

from __future__ import annotations

import logging
import sys

import pytest

import data_loaders
from data_loaders import DataError
from data_loaders.catalogue.lookup import ENTRIES
from data_loaders.registered import Catalogue
from tests.zoo.cli_helpers import run_zoo
from zoo.experiments.engine.catalogue import OTHERS, experiments
from zoo.registry.queries import GUIDES, MODELS, applicable

ENTRY_POINTS = {
    "models": {"tiny-bnn": "tiny_zoo:MODEL"},
    "guides": {"tiny-guide": "tiny_zoo:GUIDE"},
    "datasets": {"tiny_line": "tiny_zoo:DATA"},
    "experiments": {"tiny/dice": "tiny_zoo:EXPERIMENT"},
}
MODULE = '''
"""All that a package can register."""
from functools import partial

import numpy as np

from data_loaders.catalogue.entries import Entry
from data_loaders.records import Whole
from zoo.experiments.engine.declaration import Effort, Experiment, Source
from zoo.models.entries import Card, ModelEntry
from zoo.registry.entries import GuideEntry

CARD = Card(law="w ~ N(0, 1)", assumes="little", cost="seconds", fails="seldom")


def make_model(shape, *, widths=(3,)):
    from zoo.models import BNN

    return BNN(shape.in_features, widths=widths)


def make_guide():
    from guides import AutoMeanField
    from zoo.fitting.methods import Variational

    return Variational(partial(AutoMeanField, init_scale=0.1))


def read():
    x = np.linspace(-1, 1, 40)[:, None]
    return Whole(x, np.sin(3 * x[:, 0]), ("x",), "y")


def throw(cell):
    return {"eyes": 1.0 + cell.seed % 6}


MODEL = ModelEntry(
    "tiny-bnn", "a small network", make_model, paper="tiny", tasks=("regression",), references=("nuts",),
    weights="gaussian", card=CARD,
)
GUIDE = GuideEntry(
    "tiny-guide", "mean field from a narrow start", make_guide, paper="tiny", model="tiny-bnn",
    code="tiny_zoo.make_guide()", card=CARD,
)
DATA = Entry("tiny_line", "package", "regression", 40, 1, "y", "CC0", "made up", splits=20, read=read)
EXPERIMENT = Experiment(
    "tiny/dice", "One throw.", Source("Nobody 1999", "Table 1"), throw, {"eyes": "of a die"}, ("fair",),
    ("hand",), quick=Effort(1, "nothing"), full=Effort(2, "nothing"),
)
'''


def write_package(folder, name: str, points: dict[str, dict[str, str]]) -> None:
    """What an installation of a package leaves of its metadata."""
    info = folder / f"{name.replace('-', '_')}-0.7.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.7\n")
    groups = (
        "\n".join([f"[posterior_zoo.{group}]", *(f"{key} = {value}" for key, value in found.items())])
        for group, found in points.items()
    )
    (info / "entry_points.txt").write_text("\n\n".join(groups) + "\n")


@pytest.fixture
def install(tmp_path, monkeypatch):
    """``install(name, entry points, module)``; afterwards nothing has been looked up yet."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, points: dict[str, dict[str, str]], module: str) -> None:
        (tmp_path / f"{name.replace('-', '_')}.py").write_text(module)
        monkeypatch.delitem(sys.modules, name.replace("-", "_"), raising=False)
        write_package(tmp_path, name, points)
        for others in (MODELS._others, GUIDES._others, ENTRIES._others, OTHERS):
            monkeypatch.setattr(others, "_found", None)

    return write


@pytest.fixture
def tiny(install):
    install("tiny-zoo", ENTRY_POINTS, MODULE)


@pytest.mark.usefixtures("tiny")
def test_names_of_another_package_are_found_and_say_where_they_are_from():
    for catalogue, group in ((MODELS, "models"), (GUIDES, "guides"), (ENTRIES, "datasets")):
        (name,) = ENTRY_POINTS[group]
        assert list(catalogue) == [*catalogue.ours, name]
        assert catalogue[name].name == name
        assert catalogue.package(name) == "tiny-zoo 0.7"
        assert catalogue.package(next(iter(catalogue))) == ""
    assert list(experiments())[-1] == "tiny/dice"
    assert applicable(GUIDES["tiny-guide"], MODELS["tiny-bnn"])[0] is MODELS["tiny-bnn"]


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["list"], "tiny-bnn"),
        (["list"], "tiny-guide"),
        (["data", "list"], "tiny_line"),
        (["reproduce", "--list"], "tiny/dice"),
    ],
)
def test_lists_name_the_package(command, name):
    lines = run_zoo(*command).stdout.splitlines()
    assert f"registered by tiny-zoo 0.7: {name}" in lines
    assert any(line.startswith(f"  {name} ") for line in lines)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", [name for points in ENTRY_POINTS.values() for name in points])
def test_cards_name_the_package(name):
    lines = run_zoo("show", name).stdout.splitlines()
    assert "package     tiny-zoo 0.7" in lines


@pytest.mark.usefixtures("tiny")
def test_ours_have_no_package_on_their_card():
    assert not any(line.startswith("package") for line in run_zoo("show", "mean-field").stdout.splitlines())


@pytest.mark.usefixtures("tiny")
def test_a_guide_of_another_package_is_fitted_to_its_model_and_data(tmp_path):
    out = tmp_path / "fit"
    arguments = ("--model", "tiny-bnn", "--guide", "tiny-guide", "--steps", 3, "--out", out)
    assert run_zoo("fit", "tiny_line", *arguments).exit_code == 0
    (tmp_path / "new.csv").write_text("x\n0.5\n")
    done = run_zoo("predict", out, "--input", tmp_path / "new.csv", "--out", tmp_path / "p.csv", "--draws", 9)
    assert done.exit_code == 0, done.stderr
    data = data_loaders.load("tiny_line", split=3)
    assert (len(data.y_train), len(data.y_test)) == (36, 4)
    assert data_loaders.fetch("tiny_line").name == "tiny_zoo.py"


@pytest.mark.usefixtures("tiny")
def test_an_experiment_of_another_package_runs(tmp_path):
    done = run_zoo("reproduce", "tiny/dice", "--budget", "quick", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.stdout
    assert "eyes" in (tmp_path / "out" / "table.md").read_text()


BROKEN = {
    "no-module": (
        "models",
        "no_zoo:MODEL",
        "",
        "ModuleNotFoundError: No module named 'no_zoo'",
    ),
    "raises": ("models", "bad_zoo:MODEL", "raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
    "leaves": ("guides", "bad_zoo:GUIDE", "raise SystemExit(3)", "SystemExit: 3"),
    "no-object": ("guides", "bad_zoo:GUIDE", "", "AttributeError: module 'bad_zoo' has no attribute 'GUIDE'"),
    "kind": ("datasets", "bad_zoo:DATA", "DATA = 3", "it is of type int, not Entry"),
    "experiment": ("experiments", "bad_zoo:E", "E = ()", "it is of type tuple, not Experiment"),
}


@pytest.mark.parametrize(("group", "target", "module", "why"), BROKEN.values(), ids=BROKEN)
def test_what_cannot_be_used_is_left_out_with_one_line(install, caplog, group, target, module, why):
    install("bad-zoo", {group: {"broken": target}}, module)
    catalogue = {"models": MODELS, "guides": GUIDES, "datasets": ENTRIES}.get(group)
    for _ in range(2):
        assert "broken" not in (experiments() if catalogue is None else list(catalogue))
    (line,) = caplog.messages
    assert line == f"zoo: package bad-zoo 0.7: {group[:-1]} 'broken' is left out: {why}"


def test_ours_keep_their_names_and_packages_come_in_the_order_of_the_alphabet(install, caplog):
    points = {"guides": {"mean-field": "a_zoo:GUIDE", "tiny-guide": "a_zoo:GUIDE"}}
    install("a-zoo", points, MODULE)
    install("b-zoo", {"guides": {"tiny-guide": "b_zoo:GUIDE", "other": "b_zoo:GUIDE"}}, MODULE)
    ours = GUIDES["mean-field"]
    assert "tiny-guide" in GUIDES
    assert GUIDES["mean-field"] is ours
    assert GUIDES.package("tiny-guide") == "a-zoo 0.7"
    assert caplog.messages == [
        "zoo: package a-zoo 0.7: guide 'mean-field' is left out: posterior-zoo has that name",
        "zoo: package b-zoo 0.7: guide 'other' is left out: its entry is called 'tiny-guide'",
        "zoo: package b-zoo 0.7: guide 'tiny-guide' is left out: a-zoo 0.7 has that name",
    ]


def test_a_name_of_ours_imports_no_other_package(install, caplog):
    install("bad-zoo", {"guides": {"broken": "bad_zoo:GUIDE"}}, "raise RuntimeError")
    assert GUIDES["mean-field"].name == "mean-field"
    assert "pbp" in GUIDES
    assert GUIDES.package("pbp") == ""
    assert not caplog.messages


def test_a_package_may_look_at_the_catalogue_while_it_is_imported(install):
    install(
        "tiny-zoo", ENTRY_POINTS, MODULE + "\nfrom zoo.registry.queries import GUIDES\nSEEN = list(GUIDES)\n"
    )
    assert "tiny-guide" in GUIDES


@pytest.mark.parametrize(
    ("read", "why"),
    [
        ("raise KeyError('x')", "tiny_line: its package cannot read it \\(KeyError: 'x'\\)"),
        (
            "return Whole(np.ones((3, 1)), np.ones(3), ('x',), 'y')",
            r"its package gave arrays of shapes \(\(3, 1\), \(3,\)\), and says \(\(40, 1\), \(40,\)\)",
        ),
    ],
)
def test_data_that_its_package_cannot_read_are_refused(install, read, why):
    install("tiny-zoo", ENTRY_POINTS, MODULE.replace("def read():\n", f"def read():\n    {read}\n"))
    with pytest.raises(DataError, match=why):
        data_loaders.load("tiny_line")


def test_the_line_reaches_somebody_who_has_set_up_no_log(install, capfd, monkeypatch):
    monkeypatch.setattr(logging.getLogger("posterior_zoo"), "propagate", False)
    install("bad-zoo", {"guides": {"broken": "bad_zoo:GUIDE"}}, "")
    assert "broken" not in Catalogue("guides", type(GUIDES["pbp"]), {})
    assert capfd.readouterr().err.splitlines() == [
        "zoo: package bad-zoo 0.7: guide 'broken' is left out: AttributeError: module 'bad_zoo' has no "
        "attribute 'GUIDE'"
    ]
