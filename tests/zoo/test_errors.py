"""Memory that cannot be had is told in a line, whoever wanted it; other errors stay what they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.zoo.cli_helpers import run_zoo
from zoo.errors import FailedError, enough_memory

ENDLESS = 10**14


@pytest.mark.parametrize("ask", [lambda: torch.empty(ENDLESS), lambda: np.empty(ENDLESS)])
def test_memory_that_cannot_be_had(ask):
    with (
        pytest.raises(FailedError, match=r"^not enough memory; fewer rows, draws or units .*\)$") as told,
        enough_memory(),
    ):
        ask()
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "error", [RuntimeError("shapes do not fit"), FailedError("a fit that cannot allocate memory")]
)
def test_other_errors_stay_what_they_are(error):
    with pytest.raises(RuntimeError) as raised, enough_memory():
        raise error
    assert raised.value is error


def test_a_network_too_large_leaves_its_folder_to_a_smaller_one(tmp_path):
    out = tmp_path / "out"
    told = run_zoo("fit", "diabetes", "--steps", 2, "--widths", ENDLESS, "--out", out)
    assert told.exit_code == 1
    assert "not enough memory" in told.stderr
    assert not out.exists()
