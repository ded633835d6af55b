"""Tables become files."""

import pandas as pd
import pytest


@pytest.fixture
def write(tmp_path):
    def to_file(table: pd.DataFrame, name: str = "people.csv"):
        table.to_csv(tmp_path / name, index=False)
        return tmp_path / name

    return to_file
