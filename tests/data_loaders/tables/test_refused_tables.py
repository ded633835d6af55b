"""Columns and targets that are refused: which, where, and the remedy."""

from __future__ import annotations

import pytest

from data_loaders import TableOptions
from tests.data_loaders.tables.people import messy, refusal

CHANGES = {
    "an id": ({}, {}, ["column 'name', a category of its own in every row, as an id has (--drop name"]),
    "many levels": (
        {"name": [f"street {i % 60}" for i in range(130)]},
        {},
        ["column 'name', 60 categories, more than 50", "--drop name leaves it out"],
    ),
    "a date that is none": (
        {"seen": ["2020-01-31"] * 129 + ["2020-13-01"]},
        {},
        ["column 'seen', row 130: '2020-13-01' is not a date", "--drop name,seen leaves them out"],
    ),
    "day or month": ({"seen": ["03/04/2020", "05/06/2020"] * 65}, {}, ["'03/04/2020' may be day/month"]),
    "numbers and texts": (
        {"zip": ["1000", "10X0"] * 65},
        {},
        ["column 'zip', row 2: '10X0' is not a number", "--categories zip"],
    ),
    "numbers of which some have thousands apart": (
        {"zip": ["304.0", "1,304.0"] * 65},
        {},
        ["column 'zip', row 2: '1,304.0' is not a number: write numbers without", "--categories zip"],
    ),
    "a target of which some have thousands apart": (
        {"risk": ["304.0", "1,304.0"] * 65},
        {},
        ["column 'risk', row 2: '1,304.0' is not a number: write numbers without unit or separator"],
    ),
    "a column without values": ({"age": [None] * 130}, {}, ["column 'age', no value in any row"]),
    "one class": ({"risk": ["low"] * 130}, {}, ["target column 'risk' is constant ('low' in every row)"]),
    "a target of ids": ({}, {"target": "name"}, ["target column 'name' has 130 different texts"]),
    "a target with a unit": (
        {"risk": [f"{i % 20 / 10 - 0.3:.1f}{' %'[i % 2 :]}" for i in range(130)]},
        {},
        ["row 1: '-0.3 %' is not a number: write numbers without unit", "1234.5 (or say --task multi"],
    ),
    "a target of prices": (
        {"risk": [f"${i}.20" for i in range(130)]},
        {},
        ["column 'risk', row 1: '$0.20' is not a number: write numbers without unit or separator"],
    ),
    "a feature with a unit": (
        {"colour": [f"{1000 * (i % 60):,} km" for i in range(130)]},
        {},
        ["column 'colour', 60 categories, more than 50; is '0 km' a number? write numbers without"],
    ),
    "a feature with a unit and few levels": (
        {"colour": [f"{i % 36 / 10}%" for i in range(130)]},
        {},
        ["column 'colour', 36 categories; is '0.0%' a number?", "or name the column in --categories"],
    ),
    "a feature with decimal commas": (
        {"colour": [f"{i % 20},5" for i in range(130)]},
        {},
        ["column 'colour', 20 categories; is '0,5' a number?", "with a point, as 1234.5"],
    ),
    "a target with decimal commas": (
        {"risk": [f"{i % 18 // 2},{5 * (i % 2)}" for i in range(130)]},
        {},
        ["row 1: '0,0' is not a number: write numbers without unit"],
    ),
    "a target with thousands apart": (
        {"risk": [f"{1000 + i:,}.5" for i in range(130)]},
        {},
        ["row 1: '1,000.5' is not a number: write numbers without unit or separator, with a point, as"],
    ),
    "a feature with a unit, different in all rows": (
        {"colour": [f"{i / 10}%" for i in range(130)]},
        {},
        ["column 'colour', a category of its own in every row, as an id has; is '0.0%' a number?"],
    ),
    "three classes": ({}, {"task": "binary"}, ["'risk' has 3 classes: --task multiclass"]),
    "texts for numbers": ({}, {"task": "regression"}, ["column 'risk', row 1: 'mid' is not a number"]),
    "a gap in the target": (
        {"risk": ["low", None, "high", None] + ["low"] * 126},
        {},
        ["column 'risk', row 2: missing value ('') (2 rows); a target is not filled in"],
    ),
    "nothing of the kind": ({}, {"options": TableOptions(drop=("nam",))}, ["'nam' for --drop", "name?"]),
    "no target left": ({}, {"options": TableOptions(drop=("risk",))}, ["cannot drop 'risk'"]),
    "two inputs of one name": (
        {"colour=red": range(130)},
        {"target": "risk", "options": TableOptions(drop=("name",))},
        ["would have two inputs of one name, colour=red: rename a column"],
    ),
    "a third way": ({}, {"options": TableOptions(missing="guess")}, ["refuse or impute, not 'guess'"]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_refusals(name, write):
    changes, request, words = CHANGES[name]
    if not any("name" in word for word in words):
        request = {"options": TableOptions(drop=("name",)), **request}
    message = refusal(write(messy(130).assign(**changes)), **request)
    assert all(word in message for word in words), message
