"""A table with every kind of column, and what is said where it is refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from data_loaders import DataError, load_table


def messy(rows: int = 40) -> pd.DataFrame:
    """Every kind of column, complete; 'risk' are classes."""
    count = np.arange(rows)
    return pd.DataFrame(
        {
            "id": count,
            "name": [f"P. {i}" for i in count],
            "age": 20 + (count * 37) % 50 / 2,
            "colour": np.array(["red", "green", "blue, light"])[count % 3],
            "smoker": np.array(["Yes", "no"])[count // 2 % 2],
            "seen": [f"2020-{1 + i % 12:02d}-15" for i in count],
            "zip": np.array([1000, 2000])[count // 3 % 2],
            "risk": np.array(["mid", "high", "low"])[count // 4 % 3],
        }
    )


def refusal(path, **options) -> str:
    with pytest.raises(DataError) as caught:
        load_table(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path}: ")
