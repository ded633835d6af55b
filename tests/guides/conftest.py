"""What tests of several rooms of guides ask for."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def _double():
    """New tensors are float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
