"""Bad input: one line that names the offender in plain words, exit code 2, nothing left behind or lost."""

from __future__ import annotations

import gzip

import pytest

import zoo
from tests.zoo.cli_helpers import linear_rows, refused, write_csv
from zoo.errors import UserError
from zoo.fitting.problem import load_problem

WORDS = [
    ("diabets", [], ["unknown data set 'diabets'", "diabetes"]),
    ("diabetes", ["--model", "bnnn"], ["unknown model 'bnnn'", "bnn"]),
    ("diabetes", ["--activation", "relo"], ["unknown activation 'relo'", "relu"]),
    ("diabetes", ["--split", 20], ["diabetes: split 20 is out of range", "0 to 19"]),
    ("diabetes", ["--split", -1], ["split -1 is out of range"]),
    ("diabetes", ["--seed", -1], ["--seed", "not -1"]),
    ("diabetes", ["--noise", 0], ["--noise must be a positive standard deviation, not 0"]),
    ("diabetes", ["--noise", "nan"], ["--noise", "not nan"]),
    ("diabetes", ["--noise", "inf"], ["--noise", "not inf"]),
    (
        "diabetes",
        ["--noise", "1e-300"],
        ["--noise 1e-300 is", "sds of the target", "between 1e-12 and 1e+12"],
    ),
    ("diabetes", ["--weight-scale", "1e30"], ["--weight-scale", "from 1e-12 to 1e+12", "not 1e+30"]),
    ("digits", ["--noise", 1], ["--noise is for regression only", "digits is multiclass"]),
    ("diabetes", ["--widths", "a,b"], ["--widths", "'a,b'"]),
    ("diabetes", ["--widths", "5,"], ["--widths", "'5,'"]),
    ("diabetes", ["--widths", "50,0"], ["--widths must be at least 1", "'50,0'"]),
    ("diabetes", ["--model", "spike-slab-bnn", "--inclusion", 0], ["--inclusion", "not 0"]),
    ("diabetes", ["--model", "spike-slab-bnn", "--inclusion", 1], ["--inclusion", "not 1"]),
    ("diabetes", ["--model", "spike-slab-bnn", "--inclusion", "nan"], ["--inclusion", "not nan"]),
    (
        "diabetes",
        ["--model", "spike-slab-linear", "--widths", 3],
        ["--widths does not apply", "spike-slab-linear"],
    ),
    ("digits", ["--model", "pbp-bnn"], ["'pbp-bnn' is for regression", "digits is multiclass"]),
    ("diabetes", ["--task", "binary"], ["--task is for CSV files"]),
    ("diabetes", ["--target", "x"], ["--target is for CSV files"]),
]


@pytest.mark.parametrize(("data", "options", "words"), WORDS)
def test_word_that_makes_no_sense(data, options, words, tmp_path):
    line = refused("fit", data, *options, "--out", tmp_path / "a" / "b")
    assert all(word in line for word in words), line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("data", "options", "words"), WORDS[::4])
def test_compare_refuses_the_same_words(data, options, words, tmp_path):
    """It reads them by the same functions: a sample."""
    line = refused("compare", data, *options, "--out", tmp_path / "a" / "b")
    assert all(word in line for word in words), line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--guide", "mean-feld"], ["unknown guide 'mean-feld'", "mean-field"]),
        (["--guide", "spike-slab", "--model", "pbp-bnn"], ["'spike-slab' does not apply to model 'pbp-bnn'"]),
        (["--guide", "pbp", "--activation", "tanh"], ["'pbp' does not apply to model 'bnn'", "tanh"]),
        (["--guide", "sspbp", "--model", "spike-slab-bnn"], ["'sspbp' does not apply", "Gaussian weights"]),
        (["--guide", "pbp", "--steps", 5], ["--steps does not apply to guide 'pbp'"]),
        (["--guide", "pbp-1-epoch", "--lr", 0.1], ["--lr does not apply to guide 'pbp-1-epoch'"]),
        (["--steps", 0], ["--steps must be at least 1, not 0"]),
        (["--batch-size", 0], ["--batch-size must be at least 1, not 0"]),
        (["--lr", 0], ["--lr must be a positive number, not 0"]),
        (["--lr", -1], ["--lr", "not -1"]),
        (["--lr", "nan"], ["--lr", "not nan"]),
        (["--lr", "inf"], ["--lr", "not inf"]),
    ],
)
def test_fit_that_makes_no_sense(options, words, tmp_path):
    line = refused("fit", "diabetes", *options, "--out", tmp_path / "a")
    assert all(word in line for word in words), line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--guides", "mean-field,mean-feld"], ["unknown guide 'mean-feld'", "mean-field"]),
        (["--guides", "mean-field,mean-field"], ["'mean-field' is named twice"]),
        (["--guides", ",", "--reference", "none"], ["--guides names nothing"]),
        (
            ["--guides", "spike-slab", "--model", "pbp-bnn"],
            ["'spike-slab' does not apply to model 'pbp-bnn'"],
        ),
        (["--guides", "pbp", "--activation", "tanh"], ["'pbp' does not apply to model 'bnn'", "tanh"]),
        (["--guides", "mean-field,sspbp", "--model", "spike-slab-linear"], ["'sspbp' does not apply"]),
        (["--guides", "pbp,pbp"], ["'pbp' is named twice"]),
        (["--budget", "fast"], ["unknown budget 'fast'", "quick, full"]),
        (["--steps", "0"], ["--steps must be at least 1, not 0"]),
        (["--reference", "nutz"], ["unknown reference 'nutz'", "nuts"]),
        (["--reference", "exact"], ["'bnn' has no 'exact' reference", "--reference nuts"]),
        (["--model", "spike-slab-linear", "--reference", "nuts"], ["no 'nuts' reference", "discrete"]),
    ],
)
def test_comparison_that_makes_no_sense(options, words, tmp_path):
    line = refused("compare", "diabetes", *options, "--out", tmp_path / "a")
    assert all(word in line for word in words), line
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_of_nothing_is_refused():
    with pytest.raises(UserError, match="nothing to do: name a guide"):
        zoo.compare("diabetes", guides=[], reference="none")


@pytest.mark.parametrize(("data", "likelihood"), [("breast_cancer", "bernoulli"), ("digits", "categorical")])
def test_no_messages_for_classes(data, likelihood, tmp_path):
    for command, option in (("fit", "--guide"), ("compare", "--guides")):
        line = refused(command, data, option, "pbp", "--out", tmp_path / "a")
        assert f"its likelihood is {likelihood}" in line
    assert list(tmp_path.iterdir()) == []


def test_too_many_columns_to_enumerate(tmp_path):
    rows = [[*(float(i == j) for j in range(21)), float(i)] for i in range(30)]
    table = write_csv(tmp_path / "wide.csv", rows, ",".join(f"c{i}" for i in range(22)))
    line = refused("compare", table, "--model", "spike-slab-linear", "--out", tmp_path / "out")
    assert "21 columns" in line
    assert "--reference none" in line
    assert not (tmp_path / "out").exists()


def changed(row: int, column: int, value: object) -> list[list[object]]:
    rows: list[list[object]] = linear_rows(12)
    rows[row][column] = value
    return rows


def last_column(values) -> list[list[object]]:
    return [[*row[:-1], value] for row, value in zip(linear_rows(12), values, strict=True)]


TABLES = {
    "text": (changed(3, 0, "tall"), [], ["column 'a', row 4", "'tall'"]),
    "nan": (changed(3, 1, "NaN"), [], ["column 'b', row 4", "NaN"]),
    "infinity": (changed(3, 1, "-inf"), [], ["column 'b', row 4", "infinity"]),
    "empty cell": (changed(5, 2, ""), [], ["column 'y', row 6", "missing"]),
    "too large": (changed(0, 0, 1e200), [], ["column 'a' holds numbers too large"]),
    "target too large": (changed(0, 2, 1e200), [], ["the training target holds numbers too large"]),
    "too large in a test row": (changed(5, 1, 1e200), [], ["column 'b'", "too large"]),
    "too large in a test target": (changed(5, 2, 1e200), [], ["column 'y'", "too large"]),
    "short row": ([*linear_rows(12), [1.0]], [], ["row 13", "1 value,", "3 columns"]),
    "constant target": (last_column([3] * 12), [], ["target column 'y'", "constant"]),
    "one row": (linear_rows(1), [], ["only one data row"]),
    "header only": ([], [], ["empty"]),
    "no such target": (linear_rows(12), ["--target", "z"], ["'z'", "a, b, y"]),
    "fractions for labels": (linear_rows(12), ["--task", "multiclass"], ["column 'y', row 1", "label"]),
    "label out of range": (
        last_column([0, 1, 2] * 4),
        ["--task", "binary"],
        ["row 3", "label 2 is not 0 or 1"],
    ),
    "negative label": (last_column([0, 1, -1] * 4), ["--task", "multiclass"], ["row 3", "label -1"]),
    "gap in the labels": (last_column([0, 1, 3] * 4), ["--task", "multiclass"], ["label 2 does not occur"]),
    "unknown task": (linear_rows(12), ["--task", "ranking"], ["'ranking'", "regression"]),
}


@pytest.mark.parametrize("name", TABLES)
def test_table_that_cannot_be_used(name, tmp_path):
    rows, options, words = TABLES[name]
    table = write_csv(tmp_path / "table.csv", rows)
    before = table.read_bytes()
    line = refused("fit", table, *options, "--out", tmp_path / "out")
    assert all(word in line for word in words), line
    if name != "unknown task":
        assert "table" in line
    assert table.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


def test_table_that_is_none(tmp_path):
    (tmp_path / "empty.csv").touch()
    (tmp_path / "latin.csv").write_bytes("é,y\n1,2\n".encode("latin-1"))
    (tmp_path / "folder.csv").mkdir()
    for name, word in (
        ("empty", "empty"),
        ("latin", "UTF-8"),
        ("folder", "directory"),
        ("nowhere", "not found"),
    ):
        line = refused("fit", tmp_path / f"{name}.csv", "--out", tmp_path / "out")
        assert f"{name}.csv" in line
        assert word in line
    assert not (tmp_path / "out").exists()


def test_a_compressed_table(tmp_path):
    table = tmp_path / "table.csv.gz"
    table.write_bytes(gzip.compress(b"a,y\n1,2\n"))
    for line in (refused("fit", table, "--out", tmp_path / "out"), refused("data", "show", table)):
        assert "table.csv.gz: is compressed: unpack it first (gunzip)" in line


@pytest.mark.parametrize("command", ["fit", "compare"])
def test_output_in_the_place_of_a_file(command, tmp_path):
    table = write_csv(tmp_path / "table.csv", linear_rows(12))
    before = table.read_bytes()
    assert "is a file, not a folder" in refused_out(command, table, table)
    assert "cannot write to" in refused_out(command, table, table / "below")
    assert "holds no config.json" in refused_out(command, table, tmp_path)
    assert table.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (["fit", ""], "an argument"),
        (["compare", ""], "an argument"),
        (["fit", "diabetes", "--out", ""], "--out"),
        (["fit", "diabetes", "--missing", "impute", "--out="], "--out"),
        (["compare", "diabetes", "--out", ""], "--out"),
        (["predict", "", "--input", "x.csv", "--out", "p.csv"], "an argument"),
        (["predict", "fit", "--input", "", "--out", "p.csv"], "--input"),
        (["report", "", "--out", "page.html"], "an argument"),
        (["data", "show", ""], "an argument"),
    ],
)
def test_a_name_that_is_empty_is_called_so(call, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = refused(*call)
    assert line == f"zoo: {name} is an empty name: is a shell variable in its place not set?"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("reproduce", ["example/dice", "--datasets", "fair", "loaded"]),
        ("compare", ["diabetes", "--out", "out", "--guides", "mean-field", "loaded", "other"]),
        ("fit", ["my", "loaded", "--out", "out"]),
        ("data show", ["yacht", "loaded"]),
        ("list", ["loaded"]),
        ("data list", ["loaded"]),
    ],
)
def test_a_word_too_many_is_refused_with_the_remedy(command, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = refused(*command.split(), *words)
    assert line.startswith("zoo: 'loaded' is a word too many: a list has commas and no spaces (a,b), ")
    assert line.endswith(f" (zoo {command} --help)")
    assert list(tmp_path.iterdir()) == []


def refused_out(command: str, data: object, out: object) -> str:
    return refused(command, data, "--out", out)


def test_standardised_values_stay_in_the_range_of_float32(tmp_path):
    """One row a million sds away from the others is no reason to stop."""
    table = write_csv(tmp_path / "table.csv", changed(5, 0, 1e9))
    assert load_problem(str(table)).x.isfinite().all()


# ---------------------------------------------------------------------------- a mirror that is damaged


def test_mirror_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("ZOO_DATA", str(tmp_path / "nowhere"))
    line = refused("fit", "boston", "--out", tmp_path / "out")
    assert "ZOO_DATA" in line
    assert "nowhere" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["truncated", "altered"])
def test_damaged_mirror_file_fails_its_checksum(damage, tmp_path, monkeypatch):
    mirror = tmp_path / "mirror"
    (mirror / "uci").mkdir(parents=True)
    (mirror / "uci" / "boston.npz").write_bytes(
        b"" if damage == "truncated" else b"PK\x03\x04 something else"
    )
    monkeypatch.setenv("ZOO_DATA", str(mirror))
    for command in (["fit", "boston", "--out", tmp_path / "out"], ["data", "fetch", "boston"]):
        line = refused(*command)
        assert "boston" in line
        assert "checksum" in line
    assert not (tmp_path / "out").exists()
