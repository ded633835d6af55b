"""Output folders: one configuration each, gone when the work was refused, whole when it was interrupted."""

from __future__ import annotations

import json
import os
import shutil

import pytest

import zoo.files.output
from zoo.errors import FailedError, UserError
from zoo.files.output import (
    differences,
    folder_versions,
    grid_folder,
    outgrow,
    output_folder,
    read_config,
    sole_folder,
    versions,
)

CONFIG = {"command": "fit", "seed": 3, "widths": [50]}


def work(folder, error: BaseException) -> None:
    """Leaves a result, and ends with ``error``."""
    with output_folder(folder, CONFIG) as folder:
        (folder / "result.txt").write_text("whole")
        raise error


def test_folder_says_what_it_is_and_with_which_versions(tmp_path):
    with output_folder(tmp_path / "a" / "b", CONFIG) as folder:
        assert read_config(folder) == {**CONFIG, "versions": versions()}
    assert {"python", "torch", "pyro-ppl", "numpyro", "jax"} <= set(versions())


def test_folder_keeps_all_versions_that_have_worked_in_it(tmp_path, monkeypatch):
    for number in ("2.11.0", "2.13.0+cpu", "2.11.0"):
        monkeypatch.setattr(zoo.files.output, "versions", lambda number=number: {"torch": number, "jax": "1"})
        with output_folder(tmp_path / "a", CONFIG) as folder:
            assert read_config(folder)["versions"]["torch"].startswith("2.11.0")
    assert read_config(tmp_path / "a")["versions"] == {"torch": "2.11.0, 2.13.0+cpu", "jax": "1"}
    assert folder_versions(tmp_path / "nowhere") == {"torch": "2.11.0", "jax": "1"}
    assert outgrow(tmp_path / "a", CONFIG, {**CONFIG, "steps": 9}, [])  # nothing of the others is left
    assert read_config(tmp_path / "a")["versions"] == {"torch": "2.11.0", "jax": "1"}


HALVES = (".config.json.00c1e2f3.half", ".mean-field.nc.0a1b2c3d.half")


def test_half_files_of_a_killed_call_are_removed_and_nothing_else(tmp_path):
    others = {".env.prod.template", ".notes.md.20240101", "config.json", ".config.json.x1y2.half", ".hidden"}
    for name in (*HALVES, *others):
        (tmp_path / name).write_text("{}")
    with sole_folder(tmp_path):
        assert {path.name for path in tmp_path.iterdir()} == others


def test_half_files_of_a_call_at_work_and_in_a_foreign_folder_stay(tmp_path):
    for name in ("ours", "foreign"):
        (tmp_path / name).mkdir()
    with sole_folder(tmp_path / "ours"):
        (tmp_path / "ours" / HALVES[0]).write_text("half")
        with pytest.raises(UserError, match="another call is at work"), sole_folder(tmp_path / "ours"):
            pass
        assert (tmp_path / "ours" / HALVES[0]).exists()
    for name in (HALVES[0], "letter.txt"):
        (tmp_path / "foreign" / name).write_text("dear")
    (tmp_path / "foreign" / "letter.txt").unlink()  # with what begins with a dot alone it is no more ours
    with sole_folder(tmp_path / "foreign"):
        assert (tmp_path / "foreign" / HALVES[0]).exists()


def test_a_file_system_without_locks_is_worked_on_and_no_half_file_removed_there(tmp_path, monkeypatch):
    """Who writes it may still be at work."""

    def no_locks(handle, operation):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", no_locks)
    for name in ("config.json", HALVES[0]):
        (tmp_path / name).write_text("{}")
    with sole_folder(tmp_path):
        assert (tmp_path / HALVES[0]).exists()


def test_a_sole_folder_that_cannot_be_is_told_of(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(UserError, match="file is a file, not a folder: choose another --out"),
        sole_folder(tmp_path / "file"),
    ):
        pass
    with (
        pytest.raises(UserError, match="cannot write to .*: Not a directory"),
        sole_folder(tmp_path / "file" / "a"),
    ):
        pass


def test_a_sole_folder_that_is_left_empty_goes_as_far_as_it_was_made(tmp_path):
    with sole_folder(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").mkdir()
    with sole_folder(tmp_path / "a"):
        pass
    assert (tmp_path / "a").is_dir()
    with sole_folder(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "result.txt").touch()
    assert (tmp_path / "a" / "b" / "result.txt").exists()


def test_a_grid_that_grows_is_not_finished(tmp_path):
    """What stands for all of it goes, until all of it is there again; not by a call that is refused."""
    config, last = {"command": "leaderboard", "grid": {"splits": 1}}, tmp_path / "a" / "last.csv"

    def call(changes: dict) -> bool:
        with grid_folder(tmp_path / "a", {**config, **changes}, "last.csv"):
            return last.exists()

    assert not call({})
    last.write_text("whole")
    assert call({})
    with pytest.raises(UserError, match="belongs to another run"):
        call({"budget": "full", "grid": {"splits": 2}})
    assert last.exists()
    assert not call({"grid": {"splits": 2}})
    assert read_config(tmp_path / "a")["grid"] == {"splits": 2}


@pytest.mark.parametrize("error", [UserError("refused"), FailedError("nan")])
def test_refused_work_leaves_no_folder_behind(tmp_path, error):
    with pytest.raises(type(error)):
        work(tmp_path / "a" / "b", error)
    assert list(tmp_path.iterdir()) == []


def make_and_refuse(out, *names) -> None:
    with output_folder(out, CONFIG) as folder:
        for name in names:
            (folder / name).mkdir() if name.endswith("/") else (folder / name).write_text("")
        raise UserError("refused")


def test_refused_work_leaves_no_folder_behind_though_a_worker_still_writes_there(tmp_path, monkeypatch):
    out, remove, written = tmp_path / "a", shutil.rmtree, ["cells", "more"]

    def remove_too_early(path, **options) -> None:
        remove(path, **options)
        if written:
            (out / written.pop()).mkdir()

    monkeypatch.setattr(shutil, "rmtree", remove_too_early)
    with pytest.raises(UserError, match="refused"):
        make_and_refuse(out, "first/")
    assert not out.exists()


def test_refused_work_takes_nothing_else_away(tmp_path):
    """What was there before, and what another call has made meanwhile beside it."""
    for folder in (tmp_path / "mine", tmp_path / "results" / "a"):
        if folder.name == "mine":
            folder.mkdir()
            (folder / ".env").write_text("secret")
        with pytest.raises(UserError, match="refused"):
            make_and_refuse(folder, "cells/", ".half", "../b/")
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*"))
    assert left == ["b", "mine", "mine/.env", "results", "results/b"]


@pytest.mark.parametrize("error", [UserError("refused"), FailedError("nan")])
def test_a_folder_that_was_there_stays(tmp_path, error):
    with output_folder(tmp_path / "a", CONFIG) as folder:
        (folder / "result.txt").write_text("whole")
    with pytest.raises(type(error)), output_folder(tmp_path / "a", CONFIG):
        raise error
    assert (tmp_path / "a" / "result.txt").read_text() == "whole"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a bug")])
def test_interrupted_work_keeps_what_is_finished(tmp_path, error):
    with pytest.raises(type(error)):
        work(tmp_path / "a", error)
    with output_folder(tmp_path / "a", CONFIG) as folder:
        assert (folder / "result.txt").read_text() == "whole"


def test_full_disk_is_one_line_and_keeps_what_is_finished(tmp_path):
    with (
        pytest.raises(UserError, match="cannot write to .*x.nc: No space left"),
        output_folder(tmp_path / "a", CONFIG),
    ):
        raise OSError(28, "No space left on device", str(tmp_path / "a" / "x.nc"))
    assert (tmp_path / "a" / "config.json").exists()


def test_folder_of_another_run_is_refused_and_untouched(tmp_path):
    with output_folder(tmp_path / "a", CONFIG):
        pass
    before = (tmp_path / "a" / "config.json").read_bytes()
    with (
        pytest.raises(UserError, match=r"another run \(seed is 3 there, 4 here\): choose another --out"),
        output_folder(tmp_path / "a", {**CONFIG, "seed": 4}),
    ):
        pass
    assert (tmp_path / "a" / "config.json").read_bytes() == before


def test_folder_with_something_else_in_it_is_refused(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with (
        pytest.raises(UserError, match="not empty and holds no config.json"),
        output_folder(tmp_path, CONFIG),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_empty_folder_and_half_a_file_of_a_killed_call_are_no_obstacle(tmp_path):
    with output_folder(tmp_path, CONFIG):
        pass
    (tmp_path / "config.json").rename(tmp_path / ".config.json.x1y2")
    with output_folder(tmp_path, CONFIG) as folder:
        assert read_config(folder)["seed"] == 3


@pytest.mark.parametrize("content", [b'{"command": "fi', b"\xff\xfe", b"[1, 2]", b"", b"3"])
def test_damaged_config_is_named(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UserError, match="config.json is truncated or damaged"):
        read_config(tmp_path)
    with (
        pytest.raises(UserError, match="config.json is truncated or damaged"),
        output_folder(tmp_path, CONFIG),
    ):
        pass
    assert (tmp_path / "config.json").read_bytes() == content


def test_config_without_a_key_belongs_to_another_run(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"command": "fit"}))
    words = "another run .seed is not set there, 3 here; widths is not set there, 50 here"
    with pytest.raises(UserError, match=words), output_folder(tmp_path, CONFIG):
        pass


def test_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(UserError, match="file is a file, not a folder"),
        output_folder(tmp_path / "file", CONFIG),
    ):
        pass
    with (
        pytest.raises(UserError, match="cannot write to .*Not a directory"),
        output_folder(tmp_path / "file" / "a", CONFIG),
    ):
        pass
    assert (tmp_path / "file").read_text() == "x"


def test_folder_that_cannot_be_written(tmp_path, monkeypatch):
    """The first file cannot be made: no folder stays (permissions do not stop root, so the error is made)."""

    def refuse(path, content):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(zoo.files.output, "write_json", refuse)
    with (
        pytest.raises(UserError, match="cannot write to .*Permission denied"),
        output_folder(tmp_path / "a" / "b", CONFIG),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="permissions do not stop root")
def test_read_only_folder(tmp_path):
    with output_folder(tmp_path / "a", CONFIG):
        pass
    (tmp_path / "a").chmod(0o500)
    with (
        pytest.raises(UserError, match="cannot write to .*Permission denied"),
        output_folder(tmp_path / "a", CONFIG),
    ):
        pass
    (tmp_path / "a").chmod(0o700)
    assert read_config(tmp_path / "a")["seed"] == 3


# ---------------------------------------------------------------------------- longer runs, differences


def test_every_setting_that_differs_is_named_with_both_values():
    there = {"seed": 3, "budget": {"steps": 10, "draws": 5}, "widths": [50, 20], "inclusion": None, "gone": 1}
    asked = {
        "seed": 3,
        "budget": {"steps": 20, "draws": 5},
        "widths": (50,),
        "inclusion": 0.5,
        "data": "b",
        "names": ["x" * 30, "y" * 30],
    }
    assert differences(there, asked) == [
        "gone is 1 there, not set here",
        "budget steps is 10 there, 20 here",
        "widths is 50,20 there, 50 here",
        "inclusion is not set there, 0.5 here",
        f"names is not set there, {'x' * 30},{'y' * 6}... here",
    ]
    assert differences(json.loads(json.dumps(asked)), asked) == []
    assert differences({"command": "fit", **there}, {"command": "compare", **asked}) == [
        "command is fit there, compare here"
    ]


def test_what_is_too_long_to_show_is_named():
    there, asked = ({"columns": [{"name": "age", "fill": fill}], "seed": 1} for fill in (1, 2))
    assert differences(there, asked) == ["columns: not the same"]


def test_a_refusal_shows_a_few_of_many_differences(tmp_path):
    with output_folder(tmp_path / "a", {f"setting{i}": 0 for i in range(7)}):
        pass
    with (
        pytest.raises(UserError, match=r"setting3 is 0 there, 1 here; and 3 more\): choose another --out"),
        output_folder(tmp_path / "a", {f"setting{i}": 1 for i in range(7)}),
    ):
        pass


def test_longer_run_takes_the_folder_of_a_shorter_one_over(tmp_path):
    short, long = {**CONFIG, "steps": 2}, {**CONFIG, "steps": 3}
    with output_folder(tmp_path, short) as folder:
        for name in ("result.txt", "letter.txt"):
            (folder / name).write_text("whole")
    assert not outgrow(tmp_path, {**short, "seed": 4}, {**long, "seed": 4}, ["result.txt"])
    assert read_config(tmp_path)["steps"] == 2
    assert outgrow(tmp_path, short, long, ["result.txt", "never.txt"])
    assert read_config(tmp_path) == {**long, "versions": versions()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "letter.txt"]
    assert not outgrow(tmp_path / "nowhere", short, long, [])
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_that_cannot_be_outgrown_is_told_of_and_says_what_it_holds(tmp_path, monkeypatch):
    short, long = {**CONFIG, "steps": 2}, {**CONFIG, "steps": 3}
    with output_folder(tmp_path, short):
        pass

    def refuse(path, content):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(zoo.files.output, "write_json", refuse)
    with pytest.raises(UserError, match="cannot write to .*config.json: Permission denied"):
        outgrow(tmp_path, short, long, ["result.txt"])
    assert read_config(tmp_path)["steps"] == 2
