"""Pages of results: in the words of today, and unfinished ones what the cells kept beside them give."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import pandas as pd
import pytest

from zoo.experiments.engine.page import numbers
from zoo.experiments.engine.records import RESULT, read_all
from zoo.experiments.engine.request import plan
from zoo.experiments.engine.rewrite import pages, rewritten
from zoo.experiments.engine.tables import table_lines, write_tables
from zoo.registry.queries import GUIDES

RESULTS = Path(__file__).parents[1] / "docs" / "results"
KEPT = sorted(RESULTS.rglob("*.tar.gz"))
PAGES = {page.relative_to(RESULTS).as_posix(): (page, experiment) for page, experiment in pages(RESULTS)}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_the_words_and_the_print_of_today(name):
    """Else: ``python -m zoo.experiments.engine.rewrite docs/results``."""
    page, experiment = PAGES[name]
    text, table = rewritten(page, experiment)
    assert text == page.read_text(encoding="utf-8")
    written = page.with_suffix(".csv").read_text(encoding="utf-8")
    assert table.to_csv(index=False, lineterminator="\n") == written


def test_there_are_pages():
    assert len(PAGES) > 45


def test_there_are_kept_cells():
    assert KEPT


@pytest.mark.parametrize("kept", KEPT, ids=lambda path: path.relative_to(RESULTS).as_posix())
def test_a_page_is_what_its_kept_cells_give(kept, tmp_path):
    """And today's code would go on with them: they are sound and of its revision, all of them."""
    with tarfile.open(kept) as file:
        file.extractall(tmp_path, filter="data")
    config = json.loads((tmp_path / "config.json").read_text())
    options = {key.removeprefix("option "): str(v) for key, v in config.items() if key.startswith("option ")}
    request = plan(config["experiment"], seed=config["seed"], options=options)
    assert request.config({}).items() <= config.items(), "an older revision: run it again, or delete the file"
    records = read_all(tmp_path, request.experiment, request.seed, request.effort.options)
    assert len(records) == len(list(tmp_path.rglob(RESULT)))
    page = kept.with_name(kept.name.removesuffix(".tar.gz") + ".md")
    assert page.relative_to(RESULTS).with_suffix("").as_posix() == config["experiment"]
    lines = table_lines(request, records)
    assert "\n\n".join(numbers(request.experiment, lines)) in page.read_text()
    write_tables(tmp_path, records, lines)
    assert (tmp_path / "table.csv").read_text() == page.with_suffix(".csv").read_text()


FIRST_PAGES = sorted(RESULTS.rglob("README.md"))
LINK = re.compile(r"\]\(([^)#]+)\)")


def _linked(page: Path) -> set[Path]:
    links = (link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link)
    return {(page.parent / link).resolve() for link in links}


@pytest.mark.parametrize("first", FIRST_PAGES, ids=lambda page: page.relative_to(RESULTS).as_posix())
def test_a_first_page_leads_to_every_page_and_picture_beside_it(first):
    linked = _linked(first)
    assert [page for page in linked if not page.exists()] == []
    shown = linked.union(*(_linked(page) for page in linked if page.suffix == ".md"))
    beside = {file.resolve() for kind in ("*.md", "*.png") for file in first.parent.glob(kind)} - {first}
    assert sorted(file.name for file in beside - shown) == []


def test_the_first_page_leads_to_that_of_every_paper():
    assert set(FIRST_PAGES) - {RESULTS / "README.md"} <= _linked(RESULTS / "README.md")


@pytest.mark.parametrize(
    ("guide", "method"),
    {
        "spike-slab": "lrt",
        "mnf": "mnf",
        "concrete": "concrete",
        "mean-field": "gaussian",
        "group-normal-jeffreys": "group-normal-jeffreys",
        "mc-dropout": "mc-dropout",
        "concrete-dropout": "concrete-dropout",
    }.items(),
)
def test_a_guide_tells_the_cost_that_was_measured(guide, method):
    """``zoo show GUIDE`` against the page of the times of an epoch."""
    table = pd.read_csv(RESULTS / "lbbnn" / "cost.csv").set_index(["method", "metric"])["mean"]
    told = re.match(r"an epoch on MNIST takes (\S+) times", GUIDES[guide].card.cost)
    assert float(told[1]) == round(table[method, "relative"], 1)
