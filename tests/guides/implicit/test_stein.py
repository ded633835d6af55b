"""The spectral Stein estimate of a score against that of Gaussians."""

from __future__ import annotations

import pytest
import torch

from guides.implicit.stein import _width, stein_score


@pytest.mark.parametrize("dimensions", [1, 2])
def test_score_of_a_gaussian(dimensions):
    sd = torch.tensor([0.5, 2.0])[:dimensions]
    draws = 1 + sd * torch.randn(300, dimensions)
    exact = -(draws - 1) / sd**2
    error = (stein_score(draws) - exact).square().mean(0).sqrt() * sd
    assert (error < 0.45).all()


@pytest.mark.parametrize("sd", [0.3, 3.0])
def test_gradient_of_the_entropy(sd):
    """``d/dsd E[-log q] = 1 / sd``, by ``-E[score(u) du/dsd]`` with ``u = sd * e``."""
    noise = torch.randn(500, 1)
    gradient = -(stein_score(sd * noise) * noise).mean()
    assert gradient.item() == pytest.approx(1 / sd, rel=0.1)


def test_units_do_not_matter():
    draws = torch.randn(100, 2, dtype=torch.float64)
    scale = torch.tensor([10.0, 0.01], dtype=torch.float64)
    torch.testing.assert_close(stein_score(scale * draws + 3), stein_score(draws) / scale)


def test_the_kernel_s_gradient_is_that_of_autograd():
    from guides.implicit.stein import _kernel, _kernel_gradient

    u = torch.randn(7, 3, dtype=torch.float64)
    first = u.clone().requires_grad_()
    for n in range(7):
        (gradient,) = torch.autograd.grad(_kernel(first, u)[:, n].sum(), first)
        torch.testing.assert_close(_kernel_gradient(u)[n], gradient.sum(0))


def test_elsewhere():
    draws, at = torch.randn(200, 1), torch.tensor([[0.5], [-1.0]])
    torch.testing.assert_close(stein_score(draws, at), -at, rtol=0, atol=0.35)
    torch.testing.assert_close(stein_score(draws, draws), stein_score(draws))


def test_refusals():
    with pytest.raises(ValueError, match="coincide"):
        stein_score(torch.ones(5, 2))
    with pytest.raises(ValueError, match="kept must be below 1"):
        stein_score(torch.randn(5, 2), kept=1.0)
    with pytest.raises(ValueError, match="two at least"):
        stein_score(torch.randn(5))
    with pytest.raises(ValueError, match="finite"):
        stein_score(torch.full((5, 1), torch.nan))
    score = stein_score(torch.stack((torch.randn(20), torch.ones(20)), 1))
    assert score[:, 1].abs().max() < 1e-5 * score[:, 0].abs().max()


def test_the_eigenfunctions_make_up_the_share_that_is_kept():
    """Two draws a width apart, both needed for nine tenths: k / (1 - k) with k = exp(-1 / 2)."""
    k = torch.tensor(-0.5, dtype=torch.float64).exp()
    expected = torch.stack([k / (1 - k), -k / (1 - k)])[:, None]
    draws = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    torch.testing.assert_close(stein_score(draws, kept=0.9), expected)


@pytest.mark.parametrize(("loc", "sd"), [(1000.0, 1.0), (2.0, 0.01)])
def test_where_draws_lie_does_not_matter_in_single_precision(loc, sd):
    draws = (loc + sd * torch.randn(100, 30, generator=torch.Generator().manual_seed(0))).float()
    exact = stein_score(draws.double())
    assert (stein_score(draws) - exact).norm() < 1e-4 * exact.norm()


def test_no_gradient_flows():
    draws, at = torch.randn(20, 2, requires_grad=True), torch.randn(3, 2, requires_grad=True)
    assert not stein_score(draws, at).requires_grad
    assert not stein_score(draws).requires_grad


def test_the_kernel_is_as_wide_as_the_median_distance():
    """Of 1, 2, 3, 97, 99 and 100 the third, of two columns times the root of two: outliers move nothing."""
    draws = torch.tensor([[0.0], [1.0], [3.0], [100.0]])
    torch.testing.assert_close(_width(draws), torch.tensor([3.0]))
    torch.testing.assert_close(_width(draws.repeat(1, 2)), torch.full((2,), 3.0 * 2**0.5))


def test_a_coordinate_that_does_not_vary_has_width_one():
    """Beside it the kernel falls as exp(-d^2 / 2), whatever the other coordinates' units are."""
    draws = torch.cat([50 * torch.randn(30, 1), torch.full((30, 1), 2.0)], 1).double()
    beside = draws + torch.tensor([0.0, 1.5]).double()
    expected = torch.tensor(-0.5 * 1.5**2).double().exp() * stein_score(draws)
    torch.testing.assert_close(stein_score(draws, beside), expected)
