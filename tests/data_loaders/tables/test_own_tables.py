"""Tables as people have them: what each column becomes, what is kept of it, and what is refused."""

from __future__ import annotations

import csv
import json
import shlex

import numpy as np
import pandas as pd
import pytest

from data_loaders import DataError, Recipe, TableOptions, load_csv, load_rows, load_table, survey
from data_loaders.splits import standard_split
from data_loaders.tables.cells import FILL_IN
from data_loaders.tables.columns import kind_of, unusable
from data_loaders.tables.oddities import copied_rows, row_numbers, unseen_classes
from tests.data_loaders.tables.people import messy, refusal

IMPUTED = TableOptions(missing="impute")


def both(data) -> np.ndarray:
    """All rows in the order of the file."""
    x = np.empty((len(data.y_train) + len(data.y_test), data.num_features))
    x[data.extras["rows_train"]], x[data.extras["rows_test"]] = data.x_train, data.x_test
    return x


def test_every_kind_of_column_becomes_numbers(write):
    table = messy()
    data = load_table(write(table), options=TableOptions(drop=("id", "name"), categories=("zip",)))
    colours = ["blue, light", "green", "red"]
    names = [*(f"colour={name}" for name in colours), "smoker", "seen", "zip=1000", "zip=2000"]
    assert data.feature_names == ("age", *names)
    days = (pd.to_datetime(table.seen) - pd.Timestamp("1970-01-01")).dt.days
    expected = np.column_stack(
        [
            table.age,
            *(table.colour == name for name in colours),
            table.smoker == "Yes",
            days,
            table.zip == 1000,
            table.zip == 2000,
        ]
    )
    np.testing.assert_array_equal(both(data), expected)
    assert (data.task, data.num_classes, data.recipe.labels) == ("multiclass", 3, ("high", "low", "mid"))
    labels = np.array(data.recipe.labels)
    assert (labels[data.y_train] == table.risk[data.extras["rows_train"]]).all()
    assert "classes: high = 0, low = 1, mid = 2" in data.oddities


def test_numbers_are_read_as_ever(write):
    table = messy()[["id", "age", "zip"]]
    data, plain = load_table(write(table), split=2), load_csv(write(table), split=2)
    assert data.recipe is None
    for name in ("x_train", "x_test", "y_train", "y_test"):
        assert getattr(data, name).tobytes() == getattr(plain, name).tobytes()
    assert data.oddities == plain.oddities
    assert plain.oddities == ("column 'id' seems to number the rows: --drop id leaves it out",)
    dropped = load_table(write(table), options=TableOptions(drop=("id",)))
    by_hand = load_csv(write(table[["age", "zip"]], "less.csv"))
    assert dropped.x_train.tobytes() == by_hand.x_train.tobytes()
    assert dropped.x_train.flags.c_contiguous


def with_gaps() -> tuple[pd.DataFrame, np.ndarray]:
    """Gaps in the columns of every kind, some in held-out rows, and the training rows."""
    table, (train, test) = messy().drop(columns=["id", "name", "zip"]), standard_split(40, 0)
    table = table.astype({"smoker": object, "seen": object, "colour": object})
    for place, name in enumerate(("age", "colour", "smoker", "seen")):
        table.loc[[train[place], train[9 + 2 * place], test[0]], name] = np.nan
    return table, train


def test_missing_values_are_imputed_from_the_training_rows(write):
    table, train = with_gaps()
    data = load_table(write(table), options=IMPUTED)
    seen = table.iloc[train]
    columns = {column.name: column for column in data.recipe.columns}
    assert columns["age"].fill == seen.age.median() != table.age.median()
    assert columns["colour"].fill == seen.colour.mode()[0]
    assert columns["smoker"].fill == seen.smoker.str.lower().mode()[0]
    assert columns["seen"].fill == (pd.to_datetime(seen.seen) - pd.Timestamp(0)).dt.days.median()
    x = both(data)
    gaps = table.age.isna().to_numpy()
    np.testing.assert_array_equal(x[gaps, 0], np.full(3, columns["age"].fill))
    np.testing.assert_array_equal(x[~gaps, 0], table.age[~gaps])
    assert x[table.colour.isna(), 1 + columns["colour"].levels.index(columns["colour"].fill)].all()
    assert f"column 'age': 3 missing, taken for {columns['age'].fill:.15g}" in data.oddities


def test_missing_values_are_refused_with_all_columns_in_one_line(write):
    table, _ = with_gaps()
    message = refusal(write(table))
    for name in ("age", "colour", "smoker", "seen"):
        row = int(np.flatnonzero(table[name].isna())[0]) + 1
        assert f"column '{name}', row {row}: missing value ('') (3 rows)" in message
    assert "--missing impute" in message
    assert "--drop age,colour,smoker,seen" in message


def test_what_was_done_survives_json_and_encodes_new_rows_alike(write):
    table, train = with_gaps()
    data = load_table(write(table), options=IMPUTED)
    recipe = Recipe.from_dict(json.loads(json.dumps(data.recipe.to_dict())))
    assert recipe == data.recipe
    shuffled = table[["seen", "risk", "smoker", "age", "colour"]]
    x, notes = load_rows(write(shuffled, "new.csv"), "risk", recipe)
    assert x.tobytes() == both(data).tobytes()
    assert len(notes) == 4  # one a column, of what is filled in
    x, _ = load_rows(write(table.drop(columns="risk").iloc[:1], "one.csv"), "risk", recipe)
    np.testing.assert_array_equal(x, both(data)[:1])


def test_new_rows_without_a_single_value_are_filled_in(write):
    """A row to be predicted may lack what no row beside it has."""
    table, _ = with_gaps()
    recipe = load_table(write(table), options=IMPUTED).recipe
    new = table.drop(columns="risk").iloc[:1].assign(age=None, colour=None, smoker=None, seen=None)
    x, notes = load_rows(write(new, "new.csv"), "risk", recipe)
    age, colour, smoker, seen = recipe.columns
    levels = [float(level == colour.fill) for level in colour.levels]
    assert x.tolist() == [[age.fill, *levels, float(smoker.fill == "yes"), seen.fill]]
    day = pd.Timestamp(0) + pd.Timedelta(days=seen.fill)
    assert notes == (
        f"column 'age': 1 missing value filled in by {age.fill:g}",
        f"column 'colour': 1 missing value filled in by {colour.fill}",
        f"column 'smoker': 1 missing value filled in by {smoker.fill}",
        f"column 'seen': 1 missing value filled in by {day.date()}",
    )


def test_missing_values_are_told_once_for_the_rows_of_a_fit_and_once_for_new_ones(write):
    table = pd.DataFrame({"a": [1.0, 2.0, None, 4.0, 5.0, 6.0] * 4, "y": range(24)})
    data = load_table(write(table), options=IMPUTED)
    assert [note for note in data.oddities if "missing" in note] == ["column 'a': 4 missing, taken for 4"]
    _, notes = load_rows(write(table.iloc[:9], "new.csv"), "y", data.recipe)
    assert notes == ("column 'a': 2 missing values filled in by 4",)


def test_a_column_may_have_any_name(write):
    names = {"age": "age__years", "colour": "remainder", "smoker": "verbose"}
    options = TableOptions(drop=("id", "name"))
    data = load_table(write(messy().rename(columns=names)), options=options)
    assert data.feature_names[0] == "age__years"
    assert both(data).tobytes() == both(load_table(write(messy()), options=options)).tobytes()


def test_dates_of_all_centuries(write):
    dates = ["9999-12-31", "1492-10-12", *messy()["seen"][2:]]
    data = load_table(write(messy().assign(seen=dates)), options=TableOptions(drop=("id", "name")))
    found = both(data)[:2, data.feature_names.index("seen")]
    assert found.tolist() == [2932896.0, -174301.0]


def test_new_categories_are_zeros_and_told(write):
    table = messy()
    options = TableOptions(drop=("id", "name"))
    recipe = load_table(write(table), options=options).recipe
    new = table.iloc[:4].assign(colour=["red", "purple", "purple", "beige"])
    x, notes = load_rows(write(new, "new.csv"), "risk", recipe)
    assert x[:, 1:4].tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    told = "column 'colour': no training row has beige, purple; 3 rows with 0 for all its categories"
    assert notes == (told,)


def test_a_category_of_held_out_rows_alone_is_no_input(write):
    table, (_, test) = messy(), standard_split(40, 0)
    table.loc[test[0], "colour"] = "purple"
    data = load_table(write(table), options=TableOptions(drop=("id", "name")))
    assert "colour=purple" not in data.feature_names
    assert data.x_test[0, 1:4].tolist() == [0, 0, 0]
    assert any("no training row has purple; 1 row with 0" in note for note in data.oddities)


def test_columns_that_new_rows_lack_or_have_too_many_are_named(write):
    table = messy()
    recipe = load_table(write(table), options=TableOptions(drop=("id", "name"))).recipe
    with pytest.raises(DataError, match="has missing columns: age, zip; needed are age, colour"):
        load_rows(write(table.drop(columns=["age", "zip"]), "new.csv"), "risk", recipe)
    with pytest.raises(DataError, match="has extra columns: size"):
        load_rows(write(table.assign(size=1), "new.csv"), "risk", recipe)


def test_new_rows_with_cells_that_do_not_fit_name_all_columns(write):
    table = messy()
    recipe = load_table(write(table), options=TableOptions(drop=("id", "name"))).recipe
    new = table.astype({"age": object}).head(4)
    new.loc[1, "age"], new.loc[2, "smoker"], new.loc[3, "seen"] = "old", "perhaps", "2020-02-31"
    new.loc[0, "colour"] = ""
    with pytest.raises(DataError) as caught:
        load_rows(write(new, "new.csv"), "risk", recipe)
    for words in (
        "column 'age', row 2: 'old' is not a number",
        "column 'colour', row 1: missing value ('')",
        "column 'smoker', row 3: 'perhaps' is neither no nor yes",
        "column 'seen', row 4: '2020-02-31' is not a date as 2020-12-31",
    ):
        assert words in str(caught.value)
    assert str(caught.value).endswith(f"; {FILL_IN}")


def test_a_remedy_can_be_pasted_whatever_a_column_is_called(write):
    """It is quoted for the shell, and within as a line of CSV."""

    def names(text: str) -> list[str]:
        return next(csv.reader([shlex.split(text)[1]]))

    table = messy().rename(columns={"name": "note, long", "zip": "it's"}).assign(**{"it's": ["1", "x"] * 20})
    message = refusal(write(table), target="risk")
    remedy = message[message.index("(--drop ") + 1 :]
    assert names(remedy) == ["note, long", "it's"]
    mixed = remedy[remedy.index("--categories ") :]
    assert names(mixed) == ["it's"]
    numbered = load_table(write(messy()[["id", "age"]].rename(columns={"id": "a, id"})))
    assert numbered.oddities[0].endswith("""--drop '"a, id"' leaves it out""")


def test_zeros_and_ones_without_a_task_are_told(write):
    table = messy()[["age", "zip", "smoker"]].assign(y=[0, 1] * 20)
    for chosen in (table, table[["age", "y"]]):  # with a recipe, and of numbers alone
        told = "target 'y' has only 0 and 1: --task binary makes classes of them"
        data = load_table(write(chosen))
        assert (data.task, data.oddities[0]) == ("regression", told)
        for task in ("regression", "binary"):
            assert told not in load_table(write(chosen), task=task).oddities
    assert not any("--task binary" in note for note in load_table(write(table), "zip").oddities)


@pytest.mark.parametrize(("values", "told"), [([1, 2], "1, 2"), ([1, 2, 3], "1, 2, 3"), ([1, 2, 3, 4], None)])
def test_few_whole_numbers_without_a_task_are_told(values, told, write):
    table = messy()[["age", "zip"]].assign(y=(values * 20)[:40])
    data = load_table(write(table))
    said = [note for note in data.oddities if "taken as numbers" in note]
    assert data.task == "regression"
    assert [note.partition("only ")[2].partition(", taken")[0] for note in said] == ([told] if told else [])
    for other in (table["y"] / 2, table["y"] + 0.5, table["y"] * 10):
        data = load_table(write(table.assign(y=other)))
        assert not any("taken as numbers" in note for note in data.oddities)


def test_leading_zeros_of_numbers_are_told(write):
    zips = np.array(["00011", "00088", "12345"])
    table = messy()[["age", "smoker"]].assign(**{"the zip": zips[np.arange(40) % 3]}, y=np.arange(40) / 7)
    told = "column 'the zip' has leading zeros and is taken as numbers: --categories 'the zip' takes it as "
    told += "names"
    for chosen in (table, table.drop(columns="smoker")):  # with a recipe, and of numbers alone
        assert load_table(write(chosen)).oddities[0] == told
        names = load_table(write(chosen), options=TableOptions(categories=("the zip",)))
        assert not any("leading zeros" in note for note in names.oddities)
    plain = table.assign(**{"the zip": np.array(["0", "0.5", "-0.25", "10", "0e3"])[np.arange(40) % 5]})
    assert not any("leading zeros" in note for note in load_table(write(plain)).oddities)


def test_a_date_is_no_target_unless_dates_are_classes(write):
    table = messy().drop(columns=["id", "name"])
    for task in (None, "regression"):
        message = refusal(write(table), target="seen", task=task)
        assert message.startswith("the target column 'seen' is a date, which is neither a number nor a class")
        assert "choose another --target" in message
    assert load_table(write(table), "seen", task="multiclass").num_classes == 12


def test_two_texts_are_binary_and_flags_too(write):
    table = messy().assign(risk=["benign", "malign"] * 20).drop(columns="name")
    data = load_table(write(table))
    assert (data.task, data.recipe.labels) == ("binary", ("benign", "malign"))
    assert load_table(write(table.assign(risk=[True, False] * 20))).recipe.labels == ("False", "True")


def test_flags_written_in_several_ways_are_two_classes(write):
    path = write(messy().assign(risk=["TRUE", "False", "True", "false"] * 10).drop(columns="name"))
    data = load_table(path)
    assert (data.task, data.recipe.labels) == ("binary", ("false", "true"))
    assert survey(path)[-1].levels == 2
    with pytest.raises(DataError, match="is constant"):
        load_table(write(messy().assign(risk=["TRUE", "True"] * 20).drop(columns="name")))


@pytest.mark.parametrize(
    ("label", "task"),
    [
        ("{} kg", "multiclass"),
        ("C{}", None),
        ("class {}", None),
        ("{}-{}", None),
        ("BMW{}", None),
        ("#{}", None),
        ("{}a", None),
    ],
)
def test_labels_with_numbers_are_classes(label, task, write):
    """More than ten of them; numbers with a unit too, where the user says so."""
    table = messy(130).assign(risk=[label.format(i % 12, i % 12) for i in range(130)]).drop(columns="name")
    assert load_table(write(table), task=task).num_classes == 12


def test_few_levels_with_a_unit_are_classes(write):
    table = messy().assign(risk=[f"{i % 4 * 10} mg" for i in range(40)]).drop(columns="name")
    assert load_table(write(table)).recipe.labels == ("0 mg", "10 mg", "20 mg", "30 mg")


def test_a_constant_category_is_noted(write):
    table = messy().assign(colour="red").drop(columns="name")
    assert "constant columns: colour=red" in load_table(write(table)).oddities


def test_survey_tells_all_columns_without_refusing(write):
    table, _ = with_gaps()
    found = {one.name: one for one in survey(write(table.assign(name=[f"P{i}" for i in range(40)])))}
    assert [one.kind for one in found.values()] == [
        "number", "category", "flag", "date", "category", "category",
    ]  # fmt: skip
    assert (found["colour"].levels, found["colour"].missing, found["colour"].problem) == (3, 3, "")
    assert "as an id has" in found["name"].problem


@pytest.mark.parametrize("saved", [{}, {"columns": [{}], "dropped": [], "labels": []}, {"columns": 1}])
def test_a_damaged_recipe(saved):
    with pytest.raises(DataError, match="damaged"):
        Recipe.from_dict(saved)


def test_bounds_of_what_a_column_of_texts_may_be():
    """Fifty categories, of more than one row each; dates only where most texts are."""
    levels = [f"level {i}" for i in range(51)]
    assert unusable(2 * levels[:50]) == ""
    assert "51 categories, more than 50" in unusable(2 * levels)
    assert unusable(["alone"]) == ""
    assert "a category of its own in every row" in unusable(["one", "two"])
    dates = ["2020-12-31", "2021-01-01"]
    assert kind_of([*dates, "later", "never"]) == "category"
    assert kind_of([*dates, "never"]) == "date"


def test_copies_are_rows_of_equal_numbers_whatever_the_sign_of_zero():
    x, y = np.array([[0.0, 1.0], [2.0, 3.0], [-0.0, 1.0]]), np.array([0.0, 1.0, -0.0])
    said = copied_rows(x, y, np.array([0, 1]), np.array([2]))
    assert said == ("in this split 1 of 1 test rows are exact copies of training rows",)


def test_classes_without_a_training_row_are_told():
    y, train = np.array([0, 1, 2, 1, 0]), np.array([0, 3, 4])
    told = unseen_classes(y, train, ("high", "low", "mid"))
    assert told == ("in this split no training row is of class mid",)
    assert unseen_classes(y, train, ()) == ("in this split no training row is of class 2",)
    assert unseen_classes(y, np.arange(5), ()) == ()


@pytest.mark.parametrize("words", [False, True])
def test_a_split_without_training_rows_of_one_of_two_classes_says_so(words, write):
    table, (_, test) = messy()[["age", "zip"]], standard_split(40, 0)
    y = np.where(np.arange(40) == test[0], 1, 0)
    path = write(table.assign(y=np.array(["no", "yes"])[y] if words else y))
    data = load_table(path) if words else load_csv(path, task="binary")
    told = f"in this split no training row is of class {'yes' if words else 1}"
    assert told in data.oddities


@pytest.mark.parametrize(
    ("values", "numbers_rows"),
    [([3.0, 1.0, 2.0], True), ([1.0, 1.0, 2.0], False), ([1.0, 1.5, 2.0], False)],
)
def test_a_column_numbers_the_rows_by_whole_numbers_that_all_differ(values, numbers_rows):
    said = row_numbers(np.array(values)[:, None], ("price_index",))
    assert said == ("column 'price_index' seems to number the rows: --drop price_index leaves it out",) * (
        numbers_rows
    )


def test_a_column_is_constant_by_the_values_that_it_has(write):
    gaps = [None, "red", "red", None]
    table = pd.DataFrame(
        {"one": gaps, "two": ["red", "blue", None, "red"], "none": [None] * 4, "y": range(4)}
    )
    found = {column.name: column.constant for column in survey(write(table))}
    assert found == {"one": True, "two": False, "none": False, "y": False}


def test_a_target_with_a_text_of_its_own_in_every_row_has_no_classes(write):
    names = [f"P. {i}" for i in range(40)]
    told = "the target column 'who' has 40 different texts: these are no classes"
    for task in (None, "multiclass"):
        assert refusal(write(messy()[["age", "zip"]].assign(who=names)), task=task) == told


def test_of_many_rows_with_one_new_category_it_is_told_once(write):
    table, options = messy(), TableOptions(drop=("id", "name"))
    recipe = load_table(write(table), options=options).recipe
    _, notes = load_rows(write(table.assign(colour="purple"), "new.csv"), "risk", recipe)
    assert notes == ("column 'colour': no training row has purple; 40 rows with 0 for all its categories",)
