"""One result a cell: whole or absent, and never that of another cell."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from zoo.experiments.engine.declaration import Cell, Record
from zoo.experiments.engine.records import cell_folder, publish, read_record, sweep, workplace
from zoo.experiments.engine.workers import run_cell

CELL = Cell("toy/plain", "a", "m", "5x5", 2, base_seed=0, options={"epochs": 4, "widths": (5, 5)})


def store(out, cell=CELL, status="ok", value=0.1 + 0.2, left="left") -> Record:
    with workplace(out) as folder:
        (folder / "left.txt").write_text(left)
        metrics = {"error": value} if status == "ok" else {}
        return publish(out, Record(cell, status, metrics, 1.25, folder, "trace" if metrics == {} else ""))


def hidden(out) -> list[str]:
    return [path.name for path in (out / "cells").iterdir() if path.name.startswith(".")]


def test_result_comes_back_as_it_was_with_its_files(tmp_path):
    stored = store(tmp_path)
    assert read_record(tmp_path, CELL) == stored
    assert stored.metrics == {"error": 0.1 + 0.2}
    assert stored.folder == tmp_path / "cells" / "a" / "m" / "5x5" / "2"
    assert (stored.folder / "left.txt").read_text() == "left"
    assert hidden(tmp_path) == []
    assert stored.folder.stat().st_mode & 0o777 == 0o755


def test_nothing_is_there_before(tmp_path):
    assert read_record(tmp_path, CELL) is None


def test_work_that_is_broken_off_leaves_nothing(tmp_path):
    def work() -> None:
        with workplace(tmp_path) as folder:
            (folder / "left.txt").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert list((tmp_path / "cells").iterdir()) == []


def test_a_worker_does_not_make_the_folder_of_a_call_that_has_ended(tmp_path):
    with pytest.raises(FileNotFoundError), workplace(tmp_path / "gone"):
        pytest.fail("a workplace where there is no call")
    assert not (tmp_path / "gone").exists()


def test_a_cell_that_ends_after_its_call_leaves_nothing(tmp_path):
    out = tmp_path / "out"
    out.mkdir()

    def end_the_call(cell) -> dict[str, float]:
        shutil.rmtree(out)
        return {"error": 1.0}

    with pytest.raises(FileNotFoundError):
        run_cell(end_the_call, ["error"], CELL, out)
    with pytest.raises(FileNotFoundError):
        publish(out, Record(CELL, "ok", {"error": 1.0}, 1.0, tmp_path, ""))
    assert not out.exists()


@pytest.mark.parametrize("damage", ["removed", "altered", "truncated"])
def test_a_file_beside_the_result_belongs_to_it(damage, tmp_path):
    file = store(tmp_path).folder / "left.txt"
    os.mkfifo(file.parent / "notes")  # nothing that others put there is read
    (file.parent / ".DS_Store").write_text("of a file manager")
    assert read_record(tmp_path, CELL) is not None
    if damage == "removed":
        file.unlink()
    else:
        file.write_text({"altered": "LEFT", "truncated": "le"}[damage])
    assert read_record(tmp_path, CELL) is None
    assert store(tmp_path).folder == file.parent  # computed anew, it takes the place of the damaged one
    assert read_record(tmp_path, CELL) is not None


def test_files_in_folders_belong_to_the_result_and_one_of_its_name_gives_way(tmp_path):
    with workplace(tmp_path) as folder:
        (folder / "result.json").write_text("the cell's own")
        (folder / "parts").mkdir()
        (folder / "parts" / "left.txt").write_text("left")
        record = publish(tmp_path, Record(CELL, "ok", {"error": 1.0}, 1.25, folder, ""))
    assert read_record(tmp_path, CELL) == record
    (record.folder / "parts" / "left.txt").write_text("altered")
    assert read_record(tmp_path, CELL) is None


def test_result_of_another_call_is_not_computed_again_but_a_failure_is(tmp_path):
    store(tmp_path, status="failed: no")
    first = run_cell(lambda cell: {"error": 5.0}, ["error"], CELL, tmp_path)
    assert first.metrics == {"error": 5.0}
    assert run_cell(lambda cell: pytest.fail("again"), ["error"], CELL, tmp_path) == first


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_truncated_result_is_none_and_is_replaced(share, tmp_path):
    path = store(tmp_path).folder / "result.json"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    assert read_record(tmp_path, CELL) is None
    assert read_record(tmp_path, store(tmp_path, value=2.0).cell).metrics == {"error": 2.0}
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("content", [b"[]", b"3", b"null", b"\xff\xfe", b"{}", b'{"sha256": 1}', b'"text"'])
def test_other_content_is_none(content, tmp_path):
    (store(tmp_path).folder / "result.json").write_bytes(content)
    assert read_record(tmp_path, CELL) is None


def test_every_flipped_bit_is_noticed(tmp_path):
    path = store(tmp_path).folder / "result.json"
    whole = path.read_bytes()
    content = json.loads(whole)
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        record = read_record(tmp_path, CELL)
        # white space may change into other white space
        assert record is None or json.loads(bytes(damaged)) == content, place


def test_altered_number_is_none(tmp_path):
    path = store(tmp_path).folder / "result.json"
    path.write_text(path.read_text().replace("0.30000000000000004", "0.3"))
    assert read_record(tmp_path, CELL) is None


@pytest.mark.parametrize(
    "change", [{"trial": 3}, {"base_seed": 1}, {"options": {"epochs": 5}}, {"method": "n"}]
)
def test_result_in_the_place_of_another_cell_is_none(change, tmp_path):
    other = dataclasses.replace(CELL, **change)
    folder = store(tmp_path).folder
    if cell_folder(tmp_path, other) != folder:
        cell_folder(tmp_path, other).parent.mkdir(parents=True, exist_ok=True)
        folder.rename(cell_folder(tmp_path, other))
    assert read_record(tmp_path, other) is None


@pytest.mark.parametrize("name", ["seed", "split_seed"])
def test_result_of_a_cell_whose_seeds_were_others_is_none(name, monkeypatch, tmp_path):
    """As those of an earlier version may have been."""
    store(tmp_path)
    assert read_record(tmp_path, CELL) is not None
    monkeypatch.setattr(Cell, name, 1)
    assert read_record(tmp_path, CELL) is None


def test_file_or_folder_in_the_way_is_replaced(tmp_path):
    target = cell_folder(tmp_path, CELL)
    target.parent.mkdir(parents=True)
    target.write_text("x")
    assert read_record(tmp_path, CELL) is None
    store(tmp_path)
    (target / "result.json").unlink()
    (target / "result.json").mkdir()
    assert read_record(tmp_path, CELL) is None
    assert store(tmp_path).ok
    assert (target / "result.json").is_file()


def test_sound_result_stays_and_a_failure_gives_way(tmp_path):
    store(tmp_path, status="failed: no")
    assert read_record(tmp_path, CELL).traceback == "trace"
    assert store(tmp_path, value=1.0, left="first").ok
    again = store(tmp_path, value=2.0, left="second")
    assert again == read_record(tmp_path, CELL)
    assert again.metrics == {"error": 1.0}
    assert (again.folder / "left.txt").read_text() == "first"
    assert store(tmp_path, status="failed: no").ok
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("status", ["ok", "failed: no"])
def test_many_at_once_leave_one_whole_result(status, tmp_path):
    barrier = Barrier(8)

    def work(number: int) -> Record:
        barrier.wait()
        return store(tmp_path, status=status, value=float(number), left=str(float(number)))

    for _ in range(10):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
    record = read_record(tmp_path, CELL)
    assert record.status == status
    if record.ok:
        assert (record.folder / "left.txt").read_text() == str(record.metrics["error"])
    assert hidden(tmp_path) == []


def test_sweep_takes_what_the_dead_left_and_nothing_else(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    store(tmp_path)
    host = socket.gethostname()
    living = {f".running-{host}-{os.getpid()}-x", ".running-another.host-1-x"}
    for name in {f".running-{host}-{dead.pid}-x", *living}:
        (tmp_path / "cells" / name).mkdir()
    sweep(tmp_path)
    assert set(hidden(tmp_path)) == living
    sweep(tmp_path, own=True)
    assert hidden(tmp_path) == [".running-another.host-1-x"]
    assert read_record(tmp_path, CELL).ok


@pytest.mark.parametrize(
    ("error", "left"),
    [(PermissionError(1, "not permitted"), 1), (ProcessLookupError(3, "no such process"), 0)],
)
def test_folders_of_another_users_process_stay(error, left, monkeypatch, tmp_path):
    """A process that must not be signalled lives."""

    def kill(process, number):
        raise error

    monkeypatch.setattr(os, "kill", kill)
    (tmp_path / "cells" / f".running-{socket.gethostname()}-1-x").mkdir(parents=True)
    sweep(tmp_path)
    assert len(hidden(tmp_path)) == left


def test_sweep_of_a_new_folder(tmp_path):
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []
