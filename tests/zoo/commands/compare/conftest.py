"""Tiny budgets, no pictures unless a test looks at them, and one finished comparison."""

from __future__ import annotations

import pytest

from tests.zoo.cli_helpers import linear_rows, make_tiny, write_csv
from tests.zoo.commands.compare.tables import compare_again


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    make_tiny(monkeypatch)


@pytest.fixture
def pictures(_tiny, monkeypatch):
    """This test looks at the pictures."""
    make_tiny(monkeypatch, pictures=True)


@pytest.fixture(scope="session")
def graded(tmp_path_factory):
    """``(folder, result)`` of ``zoo compare`` on ``folder/table.csv``, which has written ``folder/out``."""
    folder = tmp_path_factory.mktemp("graded")
    write_csv(folder / "table.csv", linear_rows(40))
    with pytest.MonkeyPatch.context() as patch:
        make_tiny(patch, pictures=True)
        result = compare_again(folder, folder / "out", patch)
    assert result.exit_code == 0, result.output
    return folder, result
