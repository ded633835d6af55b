"""Many comparisons in one folder: several splits and seeds, leaderboards; killed, resumed, side by side."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

import zoo
import zoo.commands.compare
from data_loaders.tables.own_tables import TableOptions
from tests.zoo.cli_helpers import fresh_process, linear_rows, make_tiny, refused, run_zoo, write_csv
from zoo.commands import repeated
from zoo.commands.comparison import ask
from zoo.commands.leaderboard import plan
from zoo.errors import FailedError
from zoo.evaluation.estimates import Estimate
from zoo.evaluation.repeats import Run
from zoo.evaluation.scoreboard import Row
from zoo.files.output import differences, sole_folder
from zoo.fitting.methods import Variational

MODEL = ("--model", "spike-slab-linear")
GUIDES = ("--guides", "varbvs,spike-slab")


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    make_tiny(monkeypatch)
    monkeypatch.setattr("zoo.commands.leaderboard.plot_leaderboard", lambda *args: None)  # takes longest


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    return [
        write_csv(folder / "exact.csv", linear_rows(30)),
        write_csv(folder / "noisy.csv", linear_rows(40, noise=1.0)),
    ]


def untimed(folder: Path, name: str) -> pd.DataFrame:
    """A table but for the times, which differ from run to run."""
    return pd.read_csv(folder / name).drop(columns=["cpu_seconds", "fit_seconds"], errors="ignore")


def assert_same(first: Path, second: Path) -> None:
    for name in ("leaderboard.csv", "runs.csv", "differences.csv"):
        pd.testing.assert_frame_equal(untimed(first, name), untimed(second, name), check_exact=True)


@pytest.fixture(scope="module")
def board(tables, tmp_path_factory):
    """``zoo leaderboard`` of two tables; one of the guides is for other models."""
    out = tmp_path_factory.mktemp("board") / "out"
    with pytest.MonkeyPatch.context() as patch:
        make_tiny(patch)
        guides = ("--guides", "varbvs,pbp")
        names = ",".join(map(str, tables))
        call = ("leaderboard", "--datasets", names, *MODEL, *guides, "--out", out)
        result = run_zoo(*call)
    assert result.exit_code == 0, result.output
    return out, call, result


def test_leaderboard_writes_its_tables(board):
    out, _, result = board
    table = pd.read_csv(out / "leaderboard.csv").set_index("guide")
    assert set(table.index) == {"varbvs", "pbp"}
    assert table.loc["pbp", "status"].startswith("refused: messages are passed for Gaussian weights")
    assert table.loc["varbvs", ["rank", "datasets", "runs", "failed"]].tolist() == [1, 2, 2, 0]
    assert table.loc["varbvs", "cpu_seconds"] > 0
    runs = pd.read_csv(out / "runs.csv")
    graded = runs[runs["method"] == "varbvs"]
    assert graded[["dataset", "split"]].to_numpy().tolist() == [["exact", 0], ["noisy", 0]]
    by_data = graded.groupby("dataset")["ref_w1"].mean()
    assert table.loc["varbvs", "ref_w1"] == pytest.approx(by_data.mean())
    assert table.loc["varbvs", "cpu_seconds"] == pytest.approx(graded["cpu_seconds"].mean())
    pairs = pd.read_csv(out / "differences.csv")
    assert pairs["dataset"].unique().tolist() == ["exact", "noisy"]
    assert pairs["over"].dropna().unique().tolist() == ["row"]  # paired within each of them
    assert (out / "leaderboard.png").exists()
    assert "- pbp (exact, noisy): messages are" in (out / "leaderboard.md").read_text()
    assert "nearest to the posterior: varbvs" in result.stdout


def test_a_member_is_the_comparison_itself(board, tables, tmp_path):
    """Number for number what ``zoo compare`` gives for the table alone."""
    out, *_ = board
    call = ("compare", tables[1], *MODEL, "--guides", "varbvs", "--out", tmp_path / "one")
    assert run_zoo(*call).exit_code == 0
    one = untimed(tmp_path / "one", "scoreboard.csv")
    member = untimed(out / "noisy" / "split-0-seed-0", "scoreboard.csv")
    pd.testing.assert_frame_equal(one, member, check_exact=True)


@pytest.mark.slow
def test_what_is_there_is_not_fitted_again(board, tmp_path, monkeypatch):
    """A resumed board is the uninterrupted one; what was lost alone is computed."""
    out, call, _ = board
    resumed = shutil.copytree(out, tmp_path / "resumed")
    (resumed / "noisy" / "split-0-seed-0" / "varbvs.nc").unlink()
    (resumed / "exact" / "split-0-seed-0" / "varbvs.nc").write_bytes(b"half a file")
    for name in ("leaderboard.csv", "runs.csv", "differences.csv"):
        (resumed / name).unlink()
    fits = []
    posterior = zoo.commands.compare._posterior
    counted = lambda *args: fits.append(1) or posterior(*args)  # noqa: E731
    monkeypatch.setattr(zoo.commands.compare, "_posterior", counted)
    assert run_zoo(*call[:-1], resumed).exit_code == 0
    assert len(fits) == 2
    assert_same(out, resumed)


@pytest.mark.slow
def test_compare_on_several_splits(tables, tmp_path):
    out = tmp_path / "out"
    table = zoo.compare(tables[1], model="spike-slab-linear", guides="varbvs", splits=2, out=out)
    parts = [
        pd.read_csv(path).set_index("method") for path in sorted(out.glob("split-*-seed-0/scoreboard.csv"))
    ]
    w1 = pd.Series([part.loc["varbvs", "ref_w1"] for part in parts])
    assert len(w1) == 2
    assert table.loc["varbvs", "ref_w1"] == pytest.approx(w1.mean())
    assert table.loc["varbvs", "ref_w1_se"] == pytest.approx(w1.std() / 2**0.5)
    assert pd.read_csv(out / "differences.csv")["over"].unique() == ["split"]
    assert table.attrs["differences"][0]["first"] == "exact"
    assert "Means over splits and seeds." in (out / "scoreboard.md").read_text()
    single = ("compare", tables[1], *MODEL, "--guides", "varbvs", "--out", out)
    assert "command is compare --splits --seeds there" in refused(*single)


def test_data_sets_splits_and_seeds_may_be_added(tables):
    plain = {"guides": ["varbvs"], "model": "spike-slab-linear"}
    small = plan([str(tables[0])], **plain)
    large = plan(list(map(str, tables)), **plain, splits=3, seeds=2)
    assert len(large.cells) == 12
    assert len({cell.folder for cell in large.cells}) == 12
    assert {cell.folder for cell in small.cells} <= {cell.folder for cell in large.cells}
    assert differences(small.config(), large.config()) == []
    assert differences(small.config(), plan([str(tables[0])], **plain, budget="full").config())
    longer = plan([str(tables[0])], **plain, steps=70)
    assert differences(small.config(), longer.config()) == ["budget steps is 60 there, 70 here"]
    assert "--budget quick --steps 70 --out out/b" in longer.command("out/b")
    assert "--budget quick --out out/b" in small.command("out/b")
    later = plan([str(tables[0])], **plain, splits=2, seeds=2, seed=5)
    seen = [(cell.comparison.problem.dataset.split, cell.comparison.seed) for cell in later.cells]
    assert seen == [(0, 5), (0, 6), (1, 5), (1, 6)]
    assert [cell.folder for cell in later.cells][-1] == "exact/split-1-seed-6"


def test_several_splits_with_another_budget_are_another_run(tables):
    quick, full = (
        repeated._config([repeated._cell(ask(str(tables[0]), model="spike-slab-linear", budget=budget))])
        for budget in ("quick", "full")
    )
    assert any(line.startswith("budget steps") for line in differences(quick, full))


def test_several_splits_of_another_model_or_table_are_another_run(tmp_path):
    """What training rows decide, the unit of the noise and what is filled in, is no difference."""
    rows = [("ab"[i % 2], *row) for i, row in enumerate(linear_rows(30))]
    table = write_csv(tmp_path / "homes.csv", rows, header="home,a,b,y")

    def config(split=0, **wishes) -> dict:
        wishes = {"guides": ["mean-field"], "reference": "none", "noise": 0.3, "widths": [5], **wishes}
        return repeated._config([repeated._cell(ask(str(table), split=split, **wishes))])

    def told(**wishes) -> list[str]:
        there, here = config(), config(**wishes)
        return differences(there | {"grid": None}, here | {"grid": None})

    assert told(split=3) == []
    assert told(widths=[7]) == ["options widths is 5 there, 7 here"]
    assert told(noise=0.4) == ["options noise_scale is 0.3 there, 0.4 here"]
    assert told(table=TableOptions(drop=("home",)))[0] == "table dropped is none there, home here"
    labels = write_csv(tmp_path / "labels.csv", [(*row[:2], int(row[2] > 0)) for row in linear_rows(30)])
    tasks = [
        repeated._config([repeated._cell(ask(str(labels), task=task, guides=["mean-field"]))])
        for task in ("regression", "binary")
    ]
    assert "task is regression there, binary here" in differences(*tasks)


def test_what_is_odd_about_some_splits_names_them(tmp_path, monkeypatch):
    """Ten of forty rows stand twice, and the last column is one number; seeds share their split."""
    rows = [(*row[:2], 7, row[2]) for row in linear_rows(30)]
    table = write_csv(tmp_path / "copies.csv", rows + rows[:10], header="a,b,c,y")
    plain = {"guides": ["mean-field"], "reference": "none"}
    cells = [repeated._cell(ask(str(table), split=k, seed=s, **plain)) for k in (0, 1, 3) for s in (0, 1)]
    assert repeated._notes(cells[:2]) == cells[0].comparison.notes
    copies = "{} of 4 test rows are exact copies of training rows"
    two = (f"splits 0, 3: {copies.format(3)}", f"split 1: {copies.format(2)}")
    assert repeated._notes(cells) == ("constant columns: c", *two)
    monkeypatch.setattr(repeated, "MOST_SHOWN", 1)
    assert repeated._notes(cells)[1:] == (two[0], "and 1 more that some splits have")


def test_few_splits_need_more_than_two_standard_errors():
    """Three of them: 4.3, by Student's t."""
    runs = []
    for split, gap in enumerate((-0.1, -0.2, -0.3)):  # their mean is 3.5 errors below 0
        row = Row.from_figures("a", "m", {"ref_log_likelihood": Estimate(gap, 0.01)})
        runs.append(Run("d", split, 0, [row], pd.DataFrame(), {}))
    (sentence,) = repeated.summarise(runs).words
    assert sentence.startswith("a is not told apart from the truth by its predictions")
    assert "predicts worse" in repeated.summarise(runs[:1]).words[0]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (FailedError("the loss is nan"), "the loss is nan"),
        pytest.param(KeyError("w"), "KeyError", marks=pytest.mark.slow),
    ],
)
def test_a_fit_that_fails_is_a_row_and_is_not_tried_twice(error, why, tables, tmp_path, monkeypatch):
    tried = []

    def diverge(*args, **kwargs):
        tried.append(1)
        raise error

    monkeypatch.setattr(Variational, "fit", diverge)
    out, guides = tmp_path / "out", ["varbvs", "spike-slab"]
    board = zoo.leaderboard(tables[0], guides=guides, model="spike-slab-linear", out=out)
    assert board.loc["spike-slab", ["runs", "failed"]].tolist() == [1, 1]
    assert board.loc["spike-slab", "status"].startswith(f"failed: {why}")
    assert board.loc["varbvs", "rank"] == 1
    assert len(tried) == 1
    assert f"spike-slab: 1 of 1, failed: {why}" in (out / "leaderboard.md").read_text()


def test_bad_input_is_a_line_and_leaves_nothing(tables, tmp_path):
    out = ("--out", tmp_path / "out")
    table = tables[0]
    cases = {
        "unknown data set 'diabets'; nearest: diabetes": ("--datasets", "diabets"),
        "unknown guide 'mean-feld'; nearest: mean-field": ("--datasets", table, "--guides", "mean-feld"),
        "--datasets names nothing": ("--datasets", ","),
        "--guides names nothing": ("--datasets", table, "--guides", ""),
        "is named twice in --datasets": ("--datasets", f"{table},{table}"),
        "'mean-field' is named twice in --guides": ("--datasets", table, "--guides", "mean-field,mean-field"),
        "--splits must be at least 1": ("--datasets", table, "--splits", 0),
        "--seeds must be at least 1": ("--datasets", table, "--seeds", 0),
        "--jobs must be at least 1": ("--datasets", table, *MODEL, "--guides", "varbvs", "--jobs", 0),
        "unknown budget 'huge'": ("--datasets", table, "--budget", "huge"),
        "--steps must be at least 1, not 0": (
            "--datasets",
            table,
            *MODEL,
            "--guides",
            "varbvs",
            "--steps",
            0,
        ),
        "none of the guides can be fitted to": ("--datasets", table, "--guides", "varbvs"),
        "has no trusted posterior to rank by": (
            "--datasets",
            table,
            "--model",
            "spike-slab-bnn",
            *GUIDES[:1],
            "mnf",
        ),
    }
    for words, arguments in cases.items():
        assert words in refused("leaderboard", *arguments, *out)
    assert not (tmp_path / "out").exists()
    assert "--splits must be at least 1" in refused("compare", table, "--splits", 0, *out)
    assert "--jobs is for several --splits or --seeds" in refused("compare", table, "--jobs", 2, *out)
    assert "--guides names nothing" in refused("compare", table, "--guides", " ", *out)


def test_folders_of_others_are_refused(board, tables, tmp_path):
    out, call, _ = board
    line = refused("compare", tables[0], *MODEL, *GUIDES, "--out", out)
    assert "belongs to another run (command is leaderboard there, compare here)" in line
    assert "belongs to another run (guides is varbvs,pbp there" in refused(*call[:5], *GUIDES, *call[7:])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    assert "is not empty and holds no config.json" in refused(*call[:-1], tmp_path / "mine")
    member = shutil.copytree(out, tmp_path / "copy") / "exact" / "split-0-seed-0" / "config.json"
    member.write_text(json.dumps(json.loads(member.read_text()) | {"seed": 9}))
    assert "split-0-seed-0 belongs to another run (seed is 9 there, 0 here)" in refused(
        *call[:-1], tmp_path / "copy"
    )


def test_one_call_at_a_time_in_a_folder(board, tables, tmp_path):
    """Here the other call is a lock; three real ones below."""
    _, call, _ = board
    (tmp_path / "out").mkdir()
    handle = os.open(tmp_path / "out", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    single = ("compare", tables[0], *MODEL, *GUIDES, "--out", tmp_path / "out")
    for command in (single, (*call[:-1], tmp_path / "out")):
        assert f"another call is at work in {tmp_path / 'out'}: wait" in refused(*command)
    os.close(handle)
    assert list((tmp_path / "out").iterdir()) == []
    with sole_folder(tmp_path / "out"):
        pass


FORKED = """
import os, random, signal, sys, time
import pytest
from pathlib import Path
from tests.zoo.cli_helpers import make_tiny
from zoo.errors import UserError
import zoo.commands.leaderboard as leaderboard

make_tiny(pytest.MonkeyPatch())
leaderboard.plot_leaderboard = lambda *args: None
data, out = sys.argv[1].split(","), sys.argv[2]

def work(folder):
    asked = leaderboard.plan(data, ["varbvs"], model="spike-slab-linear", splits=2)
    leaderboard.run(asked, folder)

def fork(folder):
    process = os.fork()
    if process == 0:
        try:
            work(folder)
        except UserError as error:
            os.write(1, f"{error}\\n".encode())
            os._exit(3)
        os._exit(0)
    return process

work(out + "/whole")  # here: what it imports, the others have
start = time.monotonic()
assert os.waitpid(fork(out + "/again"), 0)[1] == 0
seconds = time.monotonic() - start
"""

KILLED = """
killed, started, moments = 0, 0, random.Random(20)
while killed < 20:
    process = fork(out + "/killed")
    started += 1
    assert started <= 60, killed
    time.sleep(moments.uniform(0.0, 0.6 * seconds))
    os.kill(process, signal.SIGKILL)
    killed += os.WIFSIGNALED(os.waitpid(process, 0)[1])
assert os.waitpid(fork(out + "/killed"), 0)[1] == 0
"""

AT_ONCE = """
processes = [fork(out + "/many") for _ in range(3)]
ends = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
assert 0 in ends and set(ends) <= {0, 3}, ends
"""


@pytest.mark.slow
def test_kills_and_company_change_nothing(tables, tmp_path):
    """Killed with -9 at twenty random moments (seed 20); three at once on one folder."""
    done = fresh_process(FORKED + KILLED + AT_ONCE, str(tables[0]), tmp_path)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.splitlines()) <= {
        f"another call is at work in {tmp_path / folder}: wait for its end, or choose another --out"
        for folder in ("killed", "many")
    }
    for folder in ("killed", "many"):
        assert_same(tmp_path / "whole", tmp_path / folder)


@pytest.mark.slow
def test_jobs_change_no_result(board, tables, tmp_path):
    zoo.leaderboard(tables, jobs=2, guides=["varbvs", "pbp"], model="spike-slab-linear", out=tmp_path / "out")
    assert_same(board[0], tmp_path / "out")
