"""The KL divergence of draws, by a classifier, against closed forms."""

from __future__ import annotations

import math

import pytest
import torch

from guides.implicit import DiscriminatorKL, SaturationWarning


def gaussians(dimensions: int, shift: float = 0.5, ratio: float = 0.8):
    """Samplers of ``q`` and ``p``, and ``KL(q || p)``: q has a mean of length ``shift`` and, in its first
    coordinate, ``ratio`` times the sd of p, which is standard.
    """
    mean = torch.full((dimensions,), shift / math.sqrt(dimensions))
    sd = torch.ones(dimensions)
    sd[0] = ratio
    kl = 0.5 * (sd**2 + mean**2 - 1 - 2 * sd.log()).sum().item()
    return lambda n: mean + sd * torch.randn(n, dimensions), lambda n: torch.randn(n, dimensions), kl


def trained(kl: DiscriminatorKL, q, p, steps: int, draws: int = 500, lr: float = 3e-3) -> DiscriminatorKL:
    for step in range(steps):
        kl.lr = lr * (1 - step / steps)
        kl.step(q(draws), p(draws))
    return kl


@pytest.mark.parametrize(
    ("dimensions", "adaptive_contrast", "steps"),
    [
        (1, False, 250),
        pytest.param(5, False, 1000, marks=pytest.mark.slow),
        pytest.param(20, False, 1500, marks=pytest.mark.slow),
        pytest.param(20, True, 1000, marks=pytest.mark.slow),
    ],
)
def test_known_divergence(dimensions, adaptive_contrast, steps):
    """Within the Monte Carlo error of an estimate from 1000 draws."""
    q, p, exact = gaussians(dimensions)
    kl = trained(DiscriminatorKL(adaptive_contrast=adaptive_contrast), q, p, steps)
    ratio = kl.log_ratio(q(1000))
    assert abs(kl.kl(q(100_000)).item() - exact) < ratio.std().item() / math.sqrt(1000)
    assert not kl.saturated


def test_the_logit_is_the_log_density_ratio():
    """q = N(1, 1), p = N(0, 1): T(u) = u - 1/2 exactly, and symmetrised KL 1/2."""
    kl = trained(
        DiscriminatorKL(), lambda n: 1 + torch.randn(n, 1), lambda n: torch.randn(n, 1), 400, lr=1e-2
    )
    u = torch.linspace(-1.5, 2.5, 9).unsqueeze(-1)
    torch.testing.assert_close(kl.log_ratio(u), u[:, 0] - 0.5, rtol=0, atol=0.15)
    both = kl.symmetrised(1 + torch.randn(20_000, 1), torch.randn(20_000, 1))
    assert both.item() == pytest.approx(0.5, abs=0.05)


def test_both_laws_count_alike_whatever_their_draws():
    """A sparse implicit process has more draws of its prior than of its posterior."""
    kl, q, p = DiscriminatorKL((10,)), torch.randn(5, 2), 1 + torch.randn(50, 2)
    kl.step(q, p)
    of_q, of_p = kl.log_ratio(q), kl.log_ratio(p)
    expected = 0.5 * ((1 + (-of_q).exp()).log().mean() + (1 + of_p.exp()).log().mean())
    assert kl.step(q, p) == pytest.approx(expected.item(), rel=1e-5)


def test_adaptive_contrast_is_two_gaussians_and_what_two_classifiers_add():
    """``log q`` is that of q's Gaussian and what q's classifier adds in its units; ``log p`` likewise."""

    class Known:
        def __init__(self, factor):
            self.factor, self.seen = factor, ()

        def logit(self, u):
            return self.factor * u.sum(1) ** 3

        def step(self, first, second, lr):
            self.seen = first, second
            return 0.5

    kl, q, p = DiscriminatorKL((3,), adaptive_contrast=True), 5 + 2 * torch.randn(300, 2), torch.randn(400, 2)
    kl._start(q)
    kl._classifiers = classifiers = Known(1.0), Known(0.3)
    kl.step(q, p)
    u, parts = 2 + torch.randn(9, 2), []
    for classifier, draws in zip(classifiers, (q, p), strict=True):
        mean, sd = draws.mean(0), draws.std(0)
        torch.testing.assert_close(classifier.seen[0], (draws - mean) / sd)
        torch.testing.assert_close(classifier.seen[1].std(0), torch.ones(2), rtol=0, atol=0.2)
        gaussian = torch.distributions.Normal(mean, sd).log_prob(u).sum(1)
        parts.append(gaussian + classifier.logit((u - mean) / sd))
    torch.testing.assert_close(kl.log_ratio(u), parts[0] - parts[1], rtol=1e-4, atol=1e-4)


def test_saturation_is_reported_and_its_estimate_too_small():
    """Twenty sds apart: KL 200 nats."""
    kl = trained(DiscriminatorKL(), lambda n: 20 + torch.randn(n, 1), lambda n: torch.randn(n, 1), 200)
    assert kl.saturated
    assert kl.classifier_loss < 0.05
    with pytest.warns(SaturationWarning, match="too small"):
        estimate = kl.kl(20 + torch.randn(100, 1))
    assert 0 < estimate < 100
    kl.kl(20 + torch.randn(100, 1))  # says so once


@pytest.mark.slow
def test_adaptive_contrast_does_not_saturate():
    kl = DiscriminatorKL(adaptive_contrast=True)
    trained(kl, lambda n: 20 + torch.randn(n, 1), lambda n: torch.randn(n, 1), 200, lr=1e-4)
    assert not kl.saturated
    assert kl.classifier_loss == pytest.approx(math.log(2), abs=0.02)


def test_laws_that_are_the_same():
    kl = trained(DiscriminatorKL(), lambda n: torch.randn(n, 3), lambda n: torch.randn(n, 3), 100)
    assert kl.classifier_loss == pytest.approx(math.log(2), abs=0.1)
    assert kl.kl(torch.randn(1000, 3)).abs() < 0.1


@pytest.mark.parametrize("adaptive_contrast", [False, True])
def test_gradients_reach_the_draws_and_not_the_classifier(adaptive_contrast):
    kl = DiscriminatorKL(adaptive_contrast=adaptive_contrast)
    q, p = torch.randn(10, 2, requires_grad=True), torch.randn(12, 2, requires_grad=True)
    kl.step(2 * q, p)
    assert q.grad is None
    kl.symmetrised(q, p).backward()
    assert q.grad.abs().sum() > 0
    assert p.grad.abs().sum() > 0
    parameters = [w for c in kl._classifiers for w in c.network.parameters()]
    assert all(w.grad is None for w in parameters)
    torch.testing.assert_close(kl.kl(q), kl.log_ratio(q).mean())
    torch.testing.assert_close(kl.symmetrised(q, p), 0.5 * (kl.kl(q) - kl.kl(p)))


def test_refusals():
    kl = DiscriminatorKL()
    assert math.isnan(kl.classifier_loss)
    assert not kl.saturated
    with pytest.raises(RuntimeError, match="step"):
        kl.kl(torch.zeros(3, 2))
    with pytest.raises(ValueError, match="same D"):
        kl.step(torch.zeros(3, 2), torch.zeros(3, 1))
    with pytest.raises(ValueError, match="two at least"):
        kl.step(torch.zeros(1, 2), torch.zeros(3, 2))
    with pytest.raises(ValueError, match="draws of p must be finite"):
        kl.step(torch.zeros(3, 2), torch.full((3, 2), torch.nan))
    with pytest.raises(ValueError, match="lr"):
        DiscriminatorKL(lr=0.0)
    with pytest.raises(ValueError, match="hidden"):
        DiscriminatorKL(hidden=(50, 0))


def test_draws_of_two_precisions_are_refused():
    divergence = DiscriminatorKL()
    for q, p in ((torch.randn(4, 2), torch.randn(4, 2).double()), (torch.ones(4, 2).long(),) * 2):
        with pytest.raises(ValueError, match="one precision, of floating point"):
            divergence.step(q, p)


def test_the_classifiers_loss_is_a_running_mean():
    """Of all batches at first, and of both classifiers the smaller one's."""
    kl = DiscriminatorKL((10,), lr=0.1)
    losses = [kl.step(torch.randn(20, 2), 1 + torch.randn(20, 2)) for _ in range(6)]
    assert kl.classifier_loss == pytest.approx(sum(losses) / 6)
    assert max(losses) > 1.1 * min(losses)
    both = DiscriminatorKL((10,), adaptive_contrast=True)
    q, p = torch.randn(40, 2), torch.randn(40, 2).exp()
    first = both.step(q, p)
    assert first == both.classifier_loss == both._losses.min() < both._losses.max()


def test_adaptive_contrast_is_to_running_moments():
    """Of both laws, whose first batches count alike."""
    kl, batches = DiscriminatorKL((10,), adaptive_contrast=True), torch.randn(3, 2, 20, 2)
    for q, p in batches:
        kl.step(q, p)
    for law, draws in zip(kl._laws, batches.unbind(1), strict=True):
        torch.testing.assert_close(law.mean, draws.mean((0, 1)))
        torch.testing.assert_close(law.variance, draws.var(1).mean(0))


def test_where_a_classifier_begins_to_be_saturated():
    """Below 0.05 nats; before its first step it is not."""
    kl = DiscriminatorKL((10,))
    assert not kl.saturated
    for loss, saturated in ((0.0501, False), (0.0499, True)):
        kl.classifier_loss = loss
        assert kl.saturated == saturated


def test_a_classifier_learns_under_no_grad():
    """A caller who only measures draws needs no gradients; the classifier does."""
    kl, generator = DiscriminatorKL((10,), lr=0.05), torch.Generator().manual_seed(0)
    q, p = torch.randn(50, 1, generator=generator), 1 + torch.randn(50, 1, generator=generator)
    with torch.no_grad():
        losses = [kl.step(q, p) for _ in range(20)]
    assert losses[-1] < losses[0]
