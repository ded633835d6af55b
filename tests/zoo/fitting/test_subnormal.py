"""Numbers next to zero are zero while a network is trained, and only then."""

from __future__ import annotations

import pytest
import torch

from guides import AutoMeanField
from zoo.fitting.epochs import Training, train
from zoo.fitting.subnormal import flushes, subnormal_numbers_are_zero
from zoo.models.bnn import BNN

SMALLEST = torch.finfo(torch.float32).tiny


@pytest.fixture(autouse=True)
def _as_it_was():
    if not torch.set_flush_denormal(False):
        pytest.skip("this processor keeps subnormal numbers or none, whatever it is told")
    yield
    torch.set_flush_denormal(False)


def halves() -> torch.Tensor:
    """Of the smallest number with a whole mantissa: by a matrix product, and by its backward run."""
    x, half = torch.full((32, 32), SMALLEST, requires_grad=True), 0.5 * torch.eye(32)
    product = x @ half
    product.backward(torch.full_like(x, SMALLEST))
    return torch.stack([product.detach().max(), x.grad.max()])


def test_in_a_training_and_not_after_it():
    model = BNN(2, widths=(3,), outputs=2, likelihood="categorical")
    data = torch.randn(8, 2), torch.arange(8) % 2
    seen = []

    def look(epoch: int) -> dict[str, float]:
        seen.append((flushes(), halves().max().item()))
        return {}

    assert (halves() > 0).all()
    train(model, AutoMeanField(model), data, Training(epochs=1, batch_size=4), each_epoch=look)
    assert seen == [(True, 0.0)] * 2
    assert not flushes()
    assert (halves() > 0).all()


def test_who_has_it_already_keeps_it():
    torch.set_flush_denormal(True)
    with subnormal_numbers_are_zero():
        assert flushes()
    assert flushes()


def test_who_computes_in_double_precision_keeps_it_too():
    torch.set_flush_denormal(True)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with subnormal_numbers_are_zero():
            pass
        assert flushes()
    finally:
        torch.set_default_dtype(before)


def test_an_error_does_not_leave_it_behind():
    with pytest.raises(ZeroDivisionError), subnormal_numbers_are_zero():
        raise ZeroDivisionError
    assert not flushes()
