"""Nearly all of the time of these tests is that of XLA."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _quick_compilation(quick_compilation):
    pass
