"""CSV files: what is read, and the one-line refusals of what is not."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pytest

from data_loaders import DataError, load_csv
from data_loaders.splits import standard_split
from data_loaders.tables.cells import FILL_IN

ROWS = [(i, 0.5 * i * i, (i * 7) % 10) for i in range(10)]


@pytest.fixture
def write(tmp_path):
    def to_file(content, name="table.csv"):
        path = tmp_path / name
        if isinstance(content, str):
            content = content.encode()
        path.write_bytes(content)
        return path

    return to_file


def _csv(header="a,b,y", rows=ROWS):
    return header + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)


def _refusal(path, **options):
    with pytest.raises(DataError) as caught:
        load_csv(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    return message.removeprefix(f"{path}: ")


def test_last_column_is_the_target(write):
    data = load_csv(write(_csv()), split=3)
    table = np.array(ROWS, dtype=float)
    train, test = standard_split(10, 3)
    np.testing.assert_array_equal(data.x_train, table[train, :2])
    np.testing.assert_array_equal(data.y_test, table[test, 2])
    assert (data.name, data.task, data.target_name, data.split) == ("table", "regression", "y", 3)
    assert data.feature_names == ("a", "b")
    assert data.y_train.dtype == np.float64
    assert (len(data.y_train), len(data.y_test)) == (9, 1)
    np.testing.assert_array_equal(data.extras["rows_test"], test)


def test_named_target_and_other_protocols(write):
    path = write(_csv())
    data = load_csv(path, target="a", protocol="80/20")
    assert data.feature_names == ("b", "y")
    assert len(data.y_test) == 2
    data = load_csv(path, protocol="whole")
    assert (data.x_train.shape, data.x_test.shape) == ((10, 2), (0, 2))


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + _csv(),
        _csv().replace("\n", "\r\n"),
        _csv().replace("\n", "\n\n") + "\n  \n",
        _csv().replace(",", " , "),
        _csv().rstrip("\n"),
    ],
    ids=["byte order mark", "windows", "blank lines", "spaces", "no last newline"],
)
def test_harmless_variations(text, write):
    data, plain = load_csv(write(text)), load_csv(write(_csv(), "plain.csv"))
    np.testing.assert_array_equal(data.x_train, plain.x_train)
    assert data.feature_names == plain.feature_names


def test_header_that_pandas_makes_up(write):
    assert load_csv(write(_csv("0,1,2"))).feature_names == ("0", "1")


def test_quoted_names_may_hold_commas(write):
    assert load_csv(write(_csv('"a, in cm",b,y'))).feature_names == ("a, in cm", "b")


def _with(row, column, value):
    rows = [list(each) for each in ROWS]
    rows[row - 1][column] = value
    return _csv(rows=rows)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("tall", "'tall' is not a number"),
        ("1_0", "'1_0' is not a number"),
        ("True", "'True' is not a number"),
        ("1;2", "'1;2' is not a number"),
        ("", "missing value ('')"),
        ("NaN", "missing value ('NaN')"),
        ("-nan", "missing value ('-nan')"),
        ("NA", "missing value ('NA')"),
        ("?", "missing value ('?')"),
        ("inf", "'inf' is infinity"),
        ("-Infinity", "'-Infinity' is infinity"),
        ("1e999", "'1e999' is infinity or too large"),
    ],
)
@pytest.mark.parametrize(("column", "name"), [(1, "b"), (2, "y")])
def test_bad_cells(value, says, column, name, write):
    message = _refusal(write(_with(4, column, value)))
    assert message.startswith(f"column '{name}', row 4: {says}")


def test_first_bad_row_is_named(write):
    rows = [list(each) for each in ROWS]
    rows[6][0], rows[2][1] = "late", "early"
    assert _refusal(write(_csv(rows=rows))) == "column 'b', row 3: 'early' is not a number"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("a,b,y\n", "is empty below its header"),
        ("a,b,y\n1,2,3\n", "has only one data row; at least 5 are needed"),
        (_csv(rows=ROWS[:4]), "has only 4 data rows; at least 5 are needed"),
        (_csv(rows=[*ROWS[:2], (1, 2), *ROWS[2:]]), "row 3 has 2 values, but the header names 3 columns"),
        (_csv(rows=[*ROWS[:7], (1, 2, 3, 4)]), "row 8 has 4 values"),
        (
            "# from the clinic\n" + _csv(),
            "row 1 has 3 values, but the header names 1 column; its first line begins with '#': is it a",
        ),
        (_csv("a,a,y"), "has duplicated columns in its header: a"),
        (_csv("a,,y"), "column 2 has no name in the header: name the column"),
        (
            _csv(",b,y"),
            "column 1 has no name in the header: write the table without its index (pandas: to_csv(",
        ),
        (_csv("0.5,1.5,2"), "must be a header of column names"),
        (_csv(rows=[(*row[:2], 3) for row in ROWS]), "the target column 'y' is constant (3 in every row)"),
        (
            "y\n1\n2\n3\n4\n5\n",
            "has no feature column beside the target 'y'; are its values separated by commas?",
        ),
        (_csv().replace(",", ";"), "has semicolons between its values: save it with commas"),
        ('a;"b, c";y\n1;2;3\n', "row 1 has 1 value, but the header names 2 columns; are there semicolons"),
        (_csv().replace(",", "\t"), "has tabs between its values: save it with commas"),
        ('a,b,y\n1,"2,3\n', "is not a well-formed CSV file"),
        (_csv().encode("utf-16"), "is not UTF-8 text"),
        (_csv("größe,b,y").encode("latin-1"), "is not UTF-8 text"),
        (gzip.compress(_csv().encode(), mtime=0), "is compressed: unpack it first (gunzip)"),
    ],
)
def test_bad_files(text, says, write):
    assert says in _refusal(write(text))


def test_a_semicolon_in_a_name_alone_separates_nothing(write):
    found = _refusal(write("a (b; c),y\n1,2,3\n"))
    assert found.endswith("row 1 has 3 values, but the header names 2 columns")


@pytest.mark.parametrize("blank", ["", "  ", "\t"])
def test_a_missing_value_of_the_only_column_is_no_blank_line(blank, write):
    table = pd.DataFrame({"a": [1, None, 3]}).to_csv(index=False)
    assert table.count('""') == 1
    options = {"require_target": False, "columns": ["a"]}
    assert _refusal(write(table), **options) == f"column 'a', row 2: missing value (''); {FILL_IN}"
    data = load_csv(write(table.replace('""', blank)), **options)
    np.testing.assert_array_equal(data.x_test, [[1.0], [3.0]])
    two = load_csv(write('a,b\n1,2\n""\n3,4\n'), require_target=False, columns=["a", "b"])
    np.testing.assert_array_equal(two.x_test, [[1.0, 2.0], [3.0, 4.0]])


def test_paths_that_are_no_files(tmp_path):
    assert _refusal(tmp_path) == "is a directory, not a CSV file"
    assert _refusal(tmp_path / "none.csv") == "not found"
    with pytest.raises(
        DataError, match="^https://example.org/a.csv: not found: download it, and name the file$"
    ):
        load_csv("https://example.org/a.csv", target="y")


def test_unknown_target_gets_a_suggestion(write):
    message = _refusal(write(_csv("height,weight,price")), target="prise")
    assert message.startswith("has no column 'prise' to be the target; did you mean price?")


def test_five_rows_are_enough(write):
    data = load_csv(write(_csv(rows=ROWS[:5])))
    assert (len(data.y_train), len(data.y_test)) == (4, 1)


@pytest.mark.parametrize(("split", "protocol"), [(20, "standard"), (5, "80/20"), (1, "whole"), (0, "half")])
def test_wrong_splits(split, protocol, write):
    assert "protocol" in _refusal(write(_csv()), split=split, protocol=protocol)


LABELS = [(i, i * i, i % 3) for i in range(12)]


def test_whole_numbers_are_regression_unless_said_otherwise(write):
    path = write(_csv(rows=LABELS))
    assert load_csv(path).y_train.dtype == np.float64
    data = load_csv(path, task="multiclass")
    assert (data.y_train.dtype, data.num_classes, data.task) == (np.int64, 3, "multiclass")
    binary = load_csv(write(_csv(rows=[(*row[:2], row[2] % 2) for row in LABELS])), task="binary")
    assert (binary.y_train.dtype, binary.num_classes) == (np.int64, 2)


@pytest.mark.parametrize(
    ("task", "labels", "says"),
    [
        ("binary", [0, 1, 2, 0, 1, 0], "row 3: label 2 is not 0 or 1"),
        ("binary", [0, 1, 0.5, 0, 1, 0], "row 3: label 0.5 is not 0 or 1"),
        ("binary", [0, 1, -1, 0, 1, 0], "row 3: label -1 is not 0 or 1"),
        ("multiclass", [0, 1, 1.5, 2, 1, 0], "row 3: label 1.5 is not a whole number"),
        ("multiclass", [0, 3, 1, 1, 3, 0], "label 2 does not occur"),
        ("multiclass", [1, 2, 1, 1, 2, 1], "label 0 does not occur"),
        ("binary", [1, 1, 1, 1, 1, 1], "constant"),
    ],
)
def test_bad_labels(task, labels, says, write):
    message = _refusal(write(_csv("a,y", enumerate(labels))), task=task)
    assert says in message


def test_unknown_task(write):
    with pytest.raises(DataError, match="unknown task 'ranking'"):
        load_csv(write(_csv()), task="ranking")


def test_rows_to_predict(write):
    path = write(_csv("b,a", [(1, 2), (3, 4)]))
    data = load_csv(path, require_target=False, columns=["a", "b"])
    np.testing.assert_array_equal(data.x_test, [[2, 1], [4, 3]])
    assert (data.x_train.shape, data.y_test.shape, data.protocol) == ((0, 2), (0,), "predict")
    assert data.feature_names == ("a", "b")


def test_one_row_to_predict_with_a_target_that_is_ignored(write):
    path = write("a,y,b\n1,unknown,2\n")
    data = load_csv(path, target="y", require_target=False, columns=["a", "b"])
    np.testing.assert_array_equal(data.x_test, [[1, 2]])
    assert load_csv(write("a\n5\n"), require_target=False).x_test.tolist() == [[5]]


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("a,c,y", "has missing columns: b; needed are a, b"),
        ("a,b,extra", "has extra columns: extra; expected are only a, b"),
    ],
)
def test_columns_that_do_not_fit(header, says, write):
    path = write(_csv(header))
    assert _refusal(path, target="y", require_target=False, columns=["a", "b"]) == says
    if "y" in header:
        assert _refusal(path, columns=["a", "b"]) == says


def test_bad_cell_in_rows_to_predict(write):
    message = _refusal(write("a,b\n1,2\n1,nan\n"), require_target=False, columns=["a", "b"])
    assert message == f"column 'b', row 2: missing value ('nan'); {FILL_IN}"


def test_oddities_of_a_table(write):
    rows = [(1, i % 2, i % 2) for i in range(30)]
    data = load_csv(write(_csv(rows=rows)))
    assert data.oddities == (
        "constant columns: a",
        "in this split 3 of 3 test rows are exact copies of training rows",
    )


def test_columns_that_are_constant_in_the_training_rows_alone(write):
    """Their test rows stand in units of their own, and may ruin every figure of the test."""
    known = load_csv(write(_csv(rows=[(i, i % 7, i) for i in range(30)])))
    test = known.extras["rows_test"].tolist()
    changed = [(7 + 1000 * (i == test[0]), i % 7, i) for i in range(30)]
    said = "in this split constant in all training rows, but not in the test rows: a"
    assert load_csv(write(_csv(rows=changed))).oddities == (said,)
    assert load_csv(write(_csv(rows=changed)), split=1).extras["rows_test"].tolist() != test
    assert load_csv(write(_csv(rows=changed)), split=1).oddities == ()
    assert load_csv(write(_csv(rows=changed)), protocol="whole").oddities == ()
    far = [(-1e308 if i == test[0] else 1e308, *row[1:]) for i, row in enumerate(changed)]
    assert load_csv(write(_csv(rows=far))).oddities == (said,)
    rounded = [(0.1 + 0.2 if i % 2 else 0.3, *row[1:]) for i, row in enumerate(changed)]
    assert load_csv(write(_csv(rows=rounded))).oddities == ()
    rounded[test[0]] = (1000, *rounded[test[0]][1:])
    assert load_csv(write(_csv(rows=rounded))).oddities == (said,)


def test_few_of_many_columns_are_named(write):
    header = ",".join([*(f"c{i}" for i in range(12)), "y"])
    data = load_csv(write(_csv(header, rows=[(*[7] * 12, i) for i in range(30)])))
    assert data.oddities == ("constant columns: c0, c1, c2, c3, c4, c5, c6, c7 and 4 more",)


def test_two_rows_are_enough_when_all_train(write):
    assert len(load_csv(write(_csv(rows=ROWS[:2])), protocol="whole").y_train) == 2
    assert "only one data row" in _refusal(write(_csv(rows=ROWS[:1])), protocol="whole")


def test_messages_stay_on_one_line(write):
    with pytest.raises(DataError, match="^.*bad name.csv: is empty$") as caught:
        load_csv(write("", "bad\nname.csv"))
    assert "\n" not in str(caught.value)
