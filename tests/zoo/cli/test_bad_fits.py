"""Fits that are damaged, rows that they cannot predict, and files that predictions may not replace."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from tests.zoo.cli_helpers import linear_rows, refused, run_zoo, write_csv
from zoo.commands.predict import load_fit
from zoo.errors import UserError


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A folder with a table, the fit of it, and new rows."""
    folder = tmp_path_factory.mktemp("fitted")
    table = write_csv(folder / "table.csv", linear_rows(30))
    write_csv(folder / "new.csv", [row[:2] for row in linear_rows(4)], "a,b")
    assert run_zoo("fit", table, "--steps", 5, "--widths", 3, "--out", folder / "fit").exit_code == 0
    return folder


@pytest.fixture
def work(fitted, tmp_path):
    """A copy to damage."""
    shutil.copytree(fitted, tmp_path / "work")
    return tmp_path / "work"


def predict_refused(work) -> str:
    line = refused("predict", work / "fit", "--input", work / "new.csv", "--out", work / "p.csv")
    assert not (work / "p.csv").exists()
    return line


def test_truncated_fit(work):
    path = work / "fit" / "fit.safetensors"
    whole = path.read_bytes()
    for size in (0, 5, 200, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        line = predict_refused(work)
        assert "fit.safetensors is truncated" in line
        again = refused("fit", work / "table.csv", "--steps", 5, "--widths", 3, "--out", work / "fit")
        assert "fit.safetensors is truncated" in again
        assert path.read_bytes() == whole[:size]


def test_flipped_bit_in_a_fit(work):
    """Header, checksum, layout, numbers: wherever a bit is flipped, nothing is read or predicted."""
    path = work / "fit" / "fit.safetensors"
    whole = path.read_bytes()
    places = [*range(0, len(whole), len(whole) // 60), len(whole) - 1]
    for i, place in enumerate(places):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"fit\.safetensors .*(checksum|truncated)"):
            load_fit(work / "fit")
        if i % 20 == 0:
            assert "fit.safetensors" in predict_refused(work)


@pytest.mark.parametrize("content", ['{"command": "fit", "see', "[]", "\x00"])
def test_truncated_config_of_a_fit(work, content):
    (work / "fit" / "config.json").write_text(content)
    assert "config.json is truncated or damaged" in predict_refused(work)
    refused("fit", work / "table.csv", "--steps", 5, "--widths", 3, "--out", work / "fit")
    assert (work / "fit" / "fit.safetensors").exists()


@pytest.mark.parametrize("key", ["features", "standardisation", "options", "model", "command"])
def test_config_of_a_fit_without_a_key(work, key):
    path = work / "fit" / "config.json"
    config = json.loads(path.read_text())
    del config[key]
    path.write_text(json.dumps(config))
    line = predict_refused(work)
    assert "config.json was altered" in line
    assert repr(key) in line


def test_config_of_a_fit_with_another_number(work):
    """The scale of the target is what a prediction depends on: it cannot be changed unnoticed."""
    path = work / "fit" / "config.json"
    config = json.loads(path.read_text())
    config["standardisation"]["y_sd"] *= 2
    path.write_text(json.dumps(config))
    assert "'standardisation'" in predict_refused(work)


def test_folder_without_a_fit(work):
    assert "holds no config.json" in refused(
        "predict", work, "--input", work / "new.csv", "--out", work / "p.csv"
    )
    for nothing in (work / "table.csv", work / "nowhere"):
        text = refused("predict", nothing, "--input", work / "new.csv", "--out", work / "p.csv")
        assert f"{nothing} is no folder: give the --out" in text
    (work / "fit" / "fit.safetensors").unlink()
    assert "not finished" in predict_refused(work)
    (work / "fit" / "config.json").write_text('{"command": "compare"}')
    assert "zoo compare" in predict_refused(work)


def test_fit_of_another_table_is_not_overwritten(work):
    before = (work / "fit" / "fit.safetensors").read_bytes()
    write_csv(work / "table.csv", linear_rows(31))
    line = refused("fit", work / "table.csv", "--steps", 5, "--widths", 3, "--out", work / "fit")
    assert "belongs to another run" in line
    assert "fingerprint" in line
    assert (work / "fit" / "fit.safetensors").read_bytes() == before


def test_checkpoint_of_another_fit_is_not_continued(work):
    run_zoo("fit", work / "table.csv", "--steps", 5, "--seed", 1, "--widths", 3, "--out", work / "other")
    shutil.copy(work / "other" / "fit.safetensors", work / "fit" / "fit.safetensors")
    line = refused("fit", work / "table.csv", "--steps", 5, "--widths", 3, "--out", work / "fit")
    assert "belongs to another fit" in line
    assert "config.json was altered" in predict_refused(work)


NEW_ROWS = {
    "missing column": ("a", [[1.0]], ["missing columns: b"]),
    "extra column": ("a,b,c", [[1.0, 2.0, 3.0]], ["extra columns: c"]),
    "text": ("a,b", [[1.0, 2.0], [1.0, "x"]], ["column 'b', row 2", "'x'"]),
    "nan": ("a,b", [[1.0, "nan"]], ["column 'b', row 1", "missing"]),
    "infinity": ("a,b", [["inf", 1.0]], ["column 'a', row 1", "infinity"]),
    "too large": ("a,b", [[1.0, 2.0], [1.0, 1e30]], ["column 'b', row 2", "outside the training data"]),
    "no rows": ("a,b", [], ["empty"]),
}


@pytest.mark.parametrize("name", NEW_ROWS)
def test_rows_that_cannot_be_predicted(name, work):
    header, rows, words = NEW_ROWS[name]
    write_csv(work / "new.csv", rows, header)
    line = predict_refused(work)
    assert "new.csv" in line
    assert all(word in line for word in words), line


def test_predictions_that_cannot_be_written(work):
    new = work / "new.csv"
    before = new.read_bytes()
    for out, word in (
        (work / "fit", "cannot write"),
        (new / "p.csv", "cannot write"),
        (new, "--input itself"),
    ):
        assert word in refused("predict", work / "fit", "--input", new, "--out", out, "--draws", 2)
    assert "not found" in refused("predict", work / "fit", "--input", work / "x.csv", "--out", work / "p.csv")
    assert "--draws must be at least 1" in refused(
        "predict", work / "fit", "--input", new, "--out", work / "p.csv", "--draws", 0
    )
    assert new.read_bytes() == before
    assert sorted(path.name for path in work.iterdir()) == ["fit", "new.csv", "table.csv"]


@pytest.mark.parametrize("name", ["config.json", "fit.safetensors", "losses.csv", "loss.png"])
def test_predictions_do_not_replace_the_fit(name, work):
    path, new = work / "fit" / name, work / "new.csv"
    before = path.read_bytes()
    line = refused("predict", work / "fit", "--input", new, "--out", path, "--draws", 2)
    assert line == f"zoo: --out {path} is part of the fit in {work / 'fit'}: choose another file"
    assert path.read_bytes() == before
    inside = work / "fit" / "predictions.csv"
    for _ in range(2):  # written, and replaced
        told = run_zoo("predict", work / "fit", "--input", new, "--out", inside, "--draws", 2)
        assert told.exit_code == 0, told.output


def test_predictions_replace_predictions_alone(work, fitted):
    new, out = work / "new.csv", work / "p.csv"
    ask = ("predict", work / "fit", "--input", new, "--draws", 2, "--out")
    for earlier in ("", "mean,sd,q5,q50,q95\n1,2,3,4,5\n", "label,prob_a,prob_b\na,0.9,0.1\n"):
        out.write_text(earlier)
        assert run_zoo(*ask, out).exit_code == 0
    elsewhere = work / "moved" / "table.csv"
    elsewhere.parent.mkdir()
    shutil.copy(work / "table.csv", elsewhere)
    out.write_text("my,notes\n1,2\n")
    for kept, words in (
        (fitted / "table.csv", "is, or is called as, the table that was fitted"),
        (elsewhere, "holds something else, for it does not begin with mean,sd,q5,q50,q95"),
        (out, "holds something else, for it does not begin with mean,sd,q5,q50,q95"),
        (elsewhere.parent, "it is a folder, and --out names a file"),
    ):
        before = kept.read_bytes() if kept.is_file() else None
        assert words in refused(*ask, kept)
        assert (kept.read_bytes() if kept.is_file() else None) == before


def test_predictions_into_a_pipe_or_through_a_link(work):
    pipe, link = work / "pipe", work / "link.csv"
    os.mkfifo(pipe)
    link.symlink_to("p.csv")
    ask = ("predict", work / "fit", "--input", work / "new.csv", "--draws", 2, "--out")
    assert f"cannot write to {pipe}: not a regular file" in refused(*ask, pipe)
    assert pipe.is_fifo()
    assert run_zoo(*ask, link).exit_code == 0
    assert link.is_symlink()
    assert (work / "p.csv").read_text().startswith("mean,sd,")
