"""p(f | u) by moments of draws against the equations of Gaussian processes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from guides.implicit.conditional import InducingMoments


def kernel(a: Tensor, b: Tensor) -> Tensor:
    return 1.5 * torch.exp(-0.5 * (a - b.mT) ** 2)


def draws_with_moments(mean: Tensor, covariance: Tensor, n: int) -> Tensor:
    """``[n, D]`` whose sample mean and covariance (divisor n - 1) are exactly these."""
    raw = torch.randn(n, len(mean), dtype=torch.float64)
    q = torch.linalg.qr(raw - raw.mean(0)).Q
    return mean + (n - 1) ** 0.5 * q @ torch.linalg.cholesky(covariance).mT


def test_a_gaussian_process_is_conditioned_by_its_own_equations():
    z = torch.linspace(-2, 2, 5, dtype=torch.float64).unsqueeze(-1)
    x = torch.tensor([[-1.3], [0.2], [3.5]], dtype=torch.float64)
    both = torch.cat((z, x))
    mean = both.squeeze(-1).sin()
    draws = draws_with_moments(mean, kernel(both, both) + 1e-8 * torch.eye(8), 60)
    jitter = 1e-3
    moments = InducingMoments.of(draws[:, :5], jitter)
    given = moments.conditional(draws[:, 5:])
    u = torch.randn(4, 5, dtype=torch.float64)
    gain = torch.linalg.solve(kernel(z, z) + (jitter + 1e-8) * torch.eye(5), kernel(z, x))
    torch.testing.assert_close(given.mean(u), mean[5:] + (u - mean[:5]) @ gain)
    covariance = kernel(x, x) + 1e-8 * torch.eye(3) - kernel(x, z) @ gain
    exact = covariance.diagonal()
    torch.testing.assert_close(given.variance, exact)
    remainder = moments.remainder(draws[:, 5:], given.weights)
    torch.testing.assert_close(remainder.mT @ remainder, covariance)
    torch.testing.assert_close(given.prior_variance, kernel(x, x).diagonal() + 1e-8)
    torch.testing.assert_close(given.retained, exact.mean() / 1.5)


def test_few_draws_leave_no_variance_and_many_do():
    """Independent values: u tells nothing, and all of the variance is left."""
    generator = torch.Generator().manual_seed(0)

    def retained(draws: int) -> float:
        values = torch.randn(draws, 40, generator=generator)
        return InducingMoments.of(values[:, :20], 1e-5).conditional(values[:, 20:]).retained.item()

    assert retained(21) < 1e-3
    assert retained(2000) > 0.95


def test_coincident_inducing_inputs_and_processes_of_low_rank():
    draws = torch.randn(100, 2, dtype=torch.float64)
    same = draws[:, :1].expand(-1, 12)
    given = InducingMoments.of(same, 1e-5).conditional(draws[:, :2])
    assert given.variance[0] < 1e-4
    assert given.mean(draws[:3, :1].expand(-1, 12))[:, 0] == pytest.approx(draws[:3, 0].numpy(), abs=1e-4)
    assert given.variance[1] == pytest.approx(given.prior_variance[1].item(), rel=0.2)


def test_numbers_that_are_not_finite():
    with pytest.raises(ValueError, match="singular"):
        InducingMoments.of(torch.full((10, 3), torch.inf), 1e-5)


def test_gradients():
    u, f = torch.randn(9, 3, dtype=torch.float64), torch.randn(9, 2, dtype=torch.float64)
    point = torch.randn(2, 3, dtype=torch.float64)

    def answers(u: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        given = InducingMoments.of(u, 1e-3).conditional(f)
        return given.mean(point), given.variance

    assert torch.autograd.gradcheck(answers, (u.requires_grad_(), f.requires_grad_()))


def test_rounding_leaves_no_negative_variance():
    """What u knows without fail, in large units: 1e-16 of some millions is more than the jitter."""
    u = 1e3 * torch.randn(200, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    f = u @ torch.randn(8, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    variance = InducingMoments.of(u, 1e-12).conditional(f).variance
    assert (variance >= 0).all()
    assert variance.max() < 1e-12 * f.var(0).max()
