"""The documentation: its checks run, its commands exist, and the pages made from the code leave nothing out.

That the site builds without a warning is ``make docs``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from pathlib import Path

import pyro
import pytest
import torch
from typer.main import get_command

import guides
from zoo.cli.main import app
from zoo.registry.queries import GUIDES, MODELS

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
CHECKS = re.findall(
    r"^### (.*?)\n|```python\n(.*?)```", (DOCS / "errors.md").read_text(), re.DOTALL | re.MULTILINE
)


def checks() -> list:
    """The blocks of code of the page of errors, by the heading above each."""
    found, heading = [], ""
    for title, code in CHECKS:
        heading = title or heading
        if code:
            needs = "load(" in code and "ZOO_DATA" not in os.environ
            marks = pytest.mark.skipif(needs, reason="ZOO_DATA is not set: no real files")
            found.append(pytest.param(code, id=heading.replace(" ", "-"), marks=marks))
    return found


@pytest.fixture(scope="module")
def pages():
    """The module of the site that makes pages."""
    spec = importlib.util.spec_from_file_location("docs_pages", DOCS / "pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("code", checks())
def test_an_error_in_the_literature_can_be_checked(code):
    exec(code, {})  # noqa: S102


def test_every_block_of_checks_asserts():
    codes = [code for _, code in CHECKS if code]
    assert len(codes) >= 8
    assert all("assert " in code for code in codes)


@pytest.mark.slow
def test_examples_run():
    """As a reader would type them, one after the other; ``test_notebook.py`` has the first, a comparison."""
    pyro.set_rng_seed(0)
    names: dict = {}
    comparison, own_model, faster, _, tested, entry = examples("quickstart") + examples("howto")
    assert "zoo.compare(" in comparison
    exec(own_model, names)  # noqa: S102
    inclusion = names["guide"].inclusion_probabilities()["w"]
    assert set(inclusion.gt(0.5).nonzero().flatten().tolist()) == {0, 3}
    assert (names["draws"]["w"] == 0).any()
    exec(faster, names)  # noqa: S102
    assert names["svi"].step(names["x"], names["y"]) < 1000
    exec(tested, names)  # noqa: S102
    names["test_my_guide"]()
    exec(entry, names)  # noqa: S102
    assert names["NARROW"].name == "narrow"


def test_a_torch_network_needs_no_other_example():
    """A how-to is read alone, and its code is typed into an empty file."""
    names: dict = {}
    exec(next(code for code in examples("howto") if "from_module" in code), names)  # noqa: S102
    x = torch.linspace(-1, 1, 50).reshape(5, 10)
    names["guide"].setup(x, x[:, 0])
    assert names["guide"].inclusion_probabilities()["0.weight"].shape == (20, 10)


def examples(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_commands_exist(path):
    from zoo.experiments.engine.catalogue import experiments

    text = path.read_text()
    commands = get_command(app).commands
    for command, argument in re.findall(r"(?:^|`)zoo ([a-z]+) ?([\w/.-]*)", text, re.MULTILINE):
        assert command in commands
        if command == "reproduce" and argument and not argument.startswith("-"):
            assert argument in experiments()


def test_the_gallery_has_every_model_and_guide(pages, tmp_path):
    (tmp_path / "docs").mkdir()
    pages.write(tmp_path / "docs")
    gallery = tmp_path / "docs" / pages.MADE / "gallery"
    for page, names in (("models", MODELS), ("guides", GUIDES)):
        headings = re.findall(r"^### (.*)$", (gallery / f"{page}.md").read_text(), re.MULTILINE)
        assert set(names) <= set(headings)
        assert len(headings) == len(set(headings))


def test_the_gallery_shows_text_as_it_is(pages):
    card = [("guide", "a"), ("is", "w_1 ~ N(0, [s]^2) * `x` <b>"), ("law", "one\ntwo"), ("use", "zoo *")]
    what, facts = list(pages._card("a", card))[1:]
    assert what == r"w\_1 \~ N(0, \[s\]^2) \* \`x\` \<b\>"
    assert facts == "law\n: one\\\n  two\n\nuse\n: ```text\n  zoo *\n  ```"


def test_the_interface_has_every_public_guide(pages):
    modules = [module for _, named in pages.INTERFACE.values() for module in named]
    shown = {name for module in modules for name in vars(importlib.import_module(module))}
    assert set(guides.__all__) <= shown


def test_pages_of_results_get_what_a_site_needs(pages):
    sources = {name: ["| a |"] for name in ("results/README", "results/sip/a", "index")}
    for name, source in sources.items():
        pages.complete(None, name, source)
    assert sources["results/sip/a"] == ["# sip/a\n\n| a |"]
    assert "{toctree}" in sources["results/README"][0]
    assert sources["index"] == ["| a |"]


def test_code_in_docstrings_is_code(pages):
    lines = [
        "What it does.",
        "",
        "    code()",
        "",
        "    more()",
        "",
        "Then",
        "",
        ":param a: long",
        "    goes on",
    ]
    pages.literal_blocks(None, "class", "a", None, None, lines)
    assert lines == [
        *["What it does.", "", "::", "", "    code()", "", "    more()", "", "Then", ""],
        *[":param a: long", "    goes on"],
    ]
