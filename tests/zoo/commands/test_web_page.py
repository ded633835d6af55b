"""``zoo report``: the page says what the files say, whatever they hold, and works in a browser."""

from __future__ import annotations

import base64
import csv
import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.zoo.cli_helpers import run_zoo
from zoo.commands.web_page import MOST_ROWS, failures, markdown_html
from zoo.errors import UserError
from zoo.evaluation.scoreboard import Row, write_scoreboard
from zoo.files.result_folder import Table, read_result_folder

HOSTILE = "</td></script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\"'|{{ 7 * 7 }}"
#: The smallest picture there is.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
ROWS = [
    Row("nuts", "bnn", note="R-hat 1.003, bulk ESS 801", rmse=1.0 / 3, standard_errors={"rmse": 0.01}),
    Row("mean-field", "bnn", rmse=12.5, standard_errors={"rmse": 1e-7}, ref_w1=0.1 + 0.2, pareto_k=2.0),
    Row("pbp", "bnn", rmse=2.0, standard_errors={"rmse": 0.5}, ref_w1=1e-9, pareto_k=0.3),
    Row("spike-slab", "bnn", status="failed: the loss of step 7 is nan"),
]
VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Reads a page: every tag must be closed where it should; keeps its tables, its tags and its text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.tables: list[list[list[str]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data

    def texts_of(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.tags if name == tag]


def for_people(page: Page) -> list[list[str]]:
    """The scoreboard of the Markdown file."""
    tables = [[[cell.strip() for cell in row] for row in table] for table in page.tables]
    return next(table for table in tables if "RMSE" in table[0])


def make_folder(folder: Path, rows=ROWS, config: dict | None = None) -> Path:
    folder.mkdir()
    write_scoreboard(rows, folder, ["Nearest to the truth: pbp."])
    (folder / "scoreboard.png").write_bytes(PNG)
    (folder / "reference.nc").write_bytes(b"not shown")
    config = config or {"command": "compare", "data": "boston", "model": "bnn", "budget": {"steps": 9}}
    (folder / "config.json").write_text(json.dumps({**config, "versions": {"torch": "2.13.0"}}))
    return folder


def report(tmp_path: Path, *folders: Path) -> Page:
    done = run_zoo("report", *folders, "--out", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    return Page((tmp_path / "page.html").read_text("utf-8"))


def cells(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_numbers_are_those_of_the_files(tmp_path):
    page = report(tmp_path, make_folder(tmp_path / "a"))
    for name in ("scoreboard.csv", "standard_errors.csv"):
        assert cells(tmp_path / "a" / name) in page.tables
    assert ["budget steps", "9"] in page.tables[-2]
    assert page.tables[-1] == [["torch", "2.13.0"]]


def test_texts_pictures_and_failures(tmp_path):
    page = report(tmp_path, make_folder(tmp_path / "a"))
    assert "Nearest to the truth: pbp." in page.words
    assert page.words.count("compare boston bnn") == 2  # title and heading
    (picture,) = page.texts_of("img")
    assert base64.b64decode(picture["src"].removeprefix("data:image/png;base64,")) == PNG
    assert page.tables[0] == [
        ["method", "model", "status"],
        ["spike-slab", "bnn", "failed: the loss of step 7 is nan"],
    ]
    people = for_people(page)
    assert people[1][people[0].index("RMSE")] == "0.333 ± 0.010"


def test_a_page_of_several_folders(tmp_path):
    """An experiment run for it, and a kind of folder that no line of code knows."""
    run_zoo("reproduce", "example/dice", "--budget", "quick", "--out", tmp_path / "dice")
    other = tmp_path / "board"
    other.mkdir()
    (other / "config.json").write_text(json.dumps({"command": "leaderboard", "datasets": ["boston"]}))
    (other / "leaderboard.csv").write_text("guide,rank\npbp,1\n")
    page = report(tmp_path, make_folder(tmp_path / "a"), tmp_path / "dice", other)
    for path in (tmp_path / "dice/table.csv", tmp_path / "dice/results.csv", other / "leaderboard.csv"):
        assert cells(path) in page.tables
    assert [tag["href"] for tag in page.texts_of("a")] == ["#part-1", "#part-2", "#part-3"]
    assert {"compare boston bnn", "reproduce example/dice", "leaderboard"} <= set(page.words)


def test_nothing_is_loaded_from_anywhere(tmp_path):
    page = report(tmp_path, make_folder(tmp_path / "a"))
    assert not page.texts_of("link")
    assert all("src" not in tag for tag in page.texts_of("script"))
    (policy,) = [tag["content"] for tag in page.texts_of("meta") if "http-equiv" in tag]
    assert policy.startswith("default-src 'none'; img-src data:;")


def test_hostile_names_are_text(tmp_path):
    rows = [Row(HOSTILE, HOSTILE, note=HOSTILE, rmse=1.0), Row("b", "b", status=f"failed: {HOSTILE}")]
    config = {"command": "compare", "data": HOSTILE, HOSTILE: HOSTILE}
    page = report(tmp_path, make_folder(tmp_path / "a", rows, config))
    assert len(page.texts_of("script")) == 1
    assert len(page.texts_of("img")) == 1
    assert not [tag for tag, attributes in page.tags if any(name.startswith("on") for name in attributes)]
    assert cells(tmp_path / "a" / "scoreboard.csv") in page.tables
    assert [HOSTILE, HOSTILE] in page.tables[-2]
    people = for_people(page)
    # Markdown reads &amp; as &, in a method's name as anywhere
    assert people[1][0] == HOSTILE.replace("&amp;", "&")


def test_markdown_leads_nowhere():
    text = "# T\n\n[a](page.md) [b](javascript:alert) ![c](https://x.org/c.png) [d](https://x.org)\n\n## H\n"
    html = str(markdown_html(text, {}))
    assert "<img" not in html
    assert "[b](javascript:alert) c" in html
    assert re.findall('href="(.*?)"', html) == ["https://x.org"]
    assert "<h3>H</h3>" in html
    assert "T" not in html


@pytest.mark.parametrize("text", ["", "# a title alone"])
def test_a_text_without_a_word_is_none(text):
    assert markdown_html(text, {}) == ""


def test_a_picture_stands_where_the_text_wants_it(tmp_path):
    folder = make_folder(tmp_path / "a")
    (folder / "scoreboard.md").write_text("![all](scoreboard.png) and [it](scoreboard.png)\n")
    page = report(tmp_path, folder)
    (picture,) = page.texts_of("img")
    assert picture["alt"] == "all"
    assert picture["src"].startswith("data:")
    assert not page.texts_of("figure")
    assert all("href" not in tag for tag in page.texts_of("a"))


def test_a_long_table_is_cut_and_says_so(tmp_path):
    folder = make_folder(tmp_path / "a")
    lines = [f"{i},{i / 7}" for i in range(MOST_ROWS + 20)]
    (folder / "losses.csv").write_text("\n".join(["step,loss", *lines, ""]))
    page = report(tmp_path, folder)
    assert cells(folder / "losses.csv")[: MOST_ROWS + 1] in page.tables
    assert any(f"The first {MOST_ROWS} of {MOST_ROWS + 20} rows" in words for words in page.words)


def test_failures_lose_their_empty_columns():
    table = Table("t", ["a", "b", "status"], [["1", "2", "ok"], ["3", "", "failed: why"]])
    assert failures([Table("s", ["x"], [["1"]]), table]) == Table(
        "failures", ["a", "status"], [["3", "failed: why"]]
    )
    assert failures([table, table]).rows == [["3", "failed: why"]]


# ------------------------------------------------------------------------------------------- bad folders


def refused(tmp_path: Path, folder: Path, words: str, out: str = "page.html") -> None:
    done = run_zoo("report", folder, "--out", tmp_path / out)
    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: shutil.rmtree(folder), "is no folder"),
        (lambda folder: (folder / "config.json").unlink(), "holds no config.json"),
        (lambda folder: (folder / "config.json").write_text('{"a": 1}'), "names no command"),
        (lambda folder: (folder / "config.json").write_text('{"command"'), "truncated or damaged"),
        (lambda folder: (folder / "scoreboard.csv").unlink(), "is not finished"),
        (lambda folder: (folder / "scoreboard.csv").write_text("a,b\n1,2\n3\n"), "row 3 has 1 cells"),
        (lambda folder: (folder / "scoreboard.csv").write_text("a,b\n1,2\n3,"), "its last line has no end"),
        (lambda folder: (folder / "scoreboard.csv").write_text('a,b\n1,"2\n'), "scoreboard.csv is truncated"),
        (lambda folder: (folder / "scoreboard.csv").write_text(""), "its last line has no end"),
        (lambda folder: (folder / "scoreboard.md").write_bytes(b"\xff\xfe"), "no UTF-8"),
        (lambda folder: (folder / "scoreboard.png").write_bytes(PNG[:-5]), "no whole PNG"),
    ],
)
def test_a_folder_that_is_refused(tmp_path, damage, words):
    folder = make_folder(tmp_path / "a")
    damage(folder)
    refused(tmp_path, folder, words)


def test_a_fit_that_was_interrupted_is_refused(tmp_path):
    folder = tmp_path / "fit"
    folder.mkdir()
    (folder / "config.json").write_text('{"command": "fit", "data": "diabetes"}')
    (folder / "fit.safetensors").write_bytes(b"a checkpoint")
    refused(tmp_path, folder, "is not finished")


def test_either_of_its_last_files_finishes_a_fit(tmp_path):
    (tmp_path / "config.json").write_text('{"command": "fit", "data": "diabetes", "guide": "pbp", "seed": 1}')
    for name in ("losses.csv", "fit.json"):
        (tmp_path / name).write_text("step,loss\n0,1.5\n")
        found = read_result_folder(tmp_path)
        assert found.title == "fit diabetes pbp"
        (tmp_path / name).unlink()


def test_any_text_or_table_finishes_a_folder_of_another_kind_and_half_files_are_not_read(tmp_path):
    (tmp_path / "config.json").write_text('{"command": "mend"}')
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / ".b.csv").write_text("half")
    with pytest.raises(UserError, match="is not finished: give the command that began it once more"):
        read_result_folder(tmp_path)
    for name in ("t.md", "t.csv"):
        (tmp_path / name).write_text("a,b\n")
        found = read_result_folder(tmp_path)
        assert [*found.texts, *(table.name for table in found.tables), *found.pictures] == [name, "a.png"]
        (tmp_path / name).unlink()


@pytest.mark.parametrize("command", ["leaderboard", "compare --splits --seeds"])
def test_a_grid_that_is_growing_is_refused(command, tmp_path):
    folder = make_folder(tmp_path / "a", config={"command": command, "grid": {"splits": 5}})
    (folder / "scoreboard.csv").rename(folder / "differences.csv")
    refused(tmp_path, folder, "is not finished")


def test_a_page_does_not_replace_a_result(tmp_path):
    folder = make_folder(tmp_path / "a")
    before = (folder / "scoreboard.csv").read_bytes()
    refused(tmp_path, folder, "--out names a page", "a/scoreboard.csv")
    assert (folder / "scoreboard.csv").read_bytes() == before
    (tmp_path / "file").touch()
    refused(tmp_path, folder, "cannot write to", "file/page.html")


# ------------------------------------------------------------------------------------------- a browser

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
PHONE = {"width": 390, "height": 844}


@pytest.fixture
def browser_page():
    """A page of a real browser, as wide as a phone, that keeps what goes wrong in it."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")
    if BROWSER is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page(viewport=PHONE)
        page.wrong = []
        page.on("console", lambda message: page.wrong.append(message.text))
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.on("requestfailed", lambda request: page.wrong.append(request.url))
        yield page
        browser.close()


def test_in_a_browser(tmp_path, browser_page):
    """No error, no sideways scrolling on a phone, pictures shown, and a click sorts a table."""
    hostile = Row(HOSTILE, HOSTILE, rmse=7.0, standard_errors={"rmse": 0.1}, ref_w1=5.0, pareto_k=math.inf)
    report(tmp_path, make_folder(tmp_path / "a", [*ROWS, hostile]), make_folder(tmp_path / "b"))
    browser_page.goto((tmp_path / "page.html").as_uri())
    for details in browser_page.locator("details > summary").all():
        details.click()
    assert browser_page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert browser_page.evaluate("[...document.images].every((image) => image.naturalWidth > 0)")
    table = browser_page.locator("#part-1 table", has=browser_page.get_by_role("button", name="W1")).first

    def column(name: str) -> list[str]:
        index = table.locator("thead th").all_inner_texts().index(name)
        return table.locator(f"tbody tr td:nth-child({index + 1})").all_text_contents()

    heading = table.get_by_role("button", name="W1")
    heading.click()
    assert column("W1") == ["1e-09", "0.3", "5", "", ""]
    assert column("method")[:2] == ["pbp", "mean-field"]
    heading.click()
    assert column("W1") == ["5", "0.3", "1e-09", "", ""]
    table.get_by_role("button", name="RMSE").click()
    assert [text.split()[0] for text in column("RMSE")[:-1]] == ["0.333", "2.00", "7.00", "12.5"]
    table.get_by_role("button", name="Pareto k").click()
    assert column("Pareto k")[:3] == ["0.3", "2", "inf"]
    table.get_by_role("button", name="method").click()
    assert column("method")[1:] == ["mean-field", "nuts", "pbp", "spike-slab"]
    assert browser_page.locator("th[aria-sort=ascending]").all_inner_texts()[0].startswith("method")
    assert browser_page.wrong == []
