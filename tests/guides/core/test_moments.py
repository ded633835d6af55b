"""The closed forms against Monte Carlo, and the fused autograd functions against the closed forms."""

import itertools

import pytest
import torch
from pyro import distributions as dist
from torch.distributions import kl_divergence

from guides import SpikeSlab
from guides.core import fused, moments
from guides.testing import assert_mean, assert_variance

torch_double = {"dtype": torch.float64}


def parameters(n: int = 5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    draw = lambda: torch.randn(n, generator=generator, **torch_double)  # noqa: E731
    return {"logits": draw(), "loc": draw(), "log_scale": 0.3 * draw() - 0.5}


def mixed(**kwargs) -> SpikeSlab:
    p = parameters()
    return SpikeSlab(logits=p["logits"], loc=p["loc"], scale=p["log_scale"].exp())


def gaussian(**kwargs) -> dist.Normal:
    p = parameters()
    return dist.Normal(p["loc"], p["log_scale"].exp())


def scalars(*values: float) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(v, **torch_double) for v in values)


PAIRS = {
    "spike-slab, spike-slab": (mixed, lambda: SpikeSlab(*scalars(0.3, 0.2, 1.5))),
    "normal, spike-slab": (gaussian, lambda: SpikeSlab(*scalars(0.3, 0.2, 1.5))),
    "normal, normal": (gaussian, lambda: dist.Normal(*scalars(0.2, 1.5))),
    "lognormal, gamma": (
        lambda: dist.LogNormal(parameters()["loc"], parameters()["log_scale"].exp()),
        lambda: dist.Gamma(*scalars(2.5, 1.5)),
    ),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_kl_is_the_mean_of_the_log_ratio(pair):
    q, p = (make() for make in PAIRS[pair])
    p = p.expand(q.batch_shape)
    w = q.sample([200_000])
    assert_mean(q.log_prob(w) - p.log_prob(w), kl_divergence(q, p))
    assert (kl_divergence(q, p) > 0).all()
    torch.testing.assert_close(kl_divergence(q, q) if type(q) is type(p) else torch.zeros(5), torch.zeros(5),
                               check_dtype=False, rtol=0, atol=1e-12)  # fmt: skip
    together = kl_divergence(q.to_event(1), p.to_event(1))
    torch.testing.assert_close(together, kl_divergence(q, p).sum())


def test_spike_slab_against_a_density_is_infinite():
    """An atom is not absolutely continuous with respect to a density."""
    assert kl_divergence(mixed(), gaussian()).isinf().all()


def test_moments_and_entropy_are_those_of_the_draws():
    law = mixed()
    w = law.sample([200_000])
    p = parameters()
    probs, variance = torch.sigmoid(p["logits"]), torch.exp(2 * p["log_scale"])
    assert_mean(w, moments.spike_slab_mean(probs, p["loc"]))
    assert_variance(w, moments.spike_slab_variance(probs, p["loc"], variance))
    assert_mean(-law.log_prob(w), moments.spike_slab_entropy(p["logits"], p["log_scale"]))
    prior = scalars(-0.5, 0.2, 1.5)
    cross = moments.spike_slab_cross_entropy(probs, p["loc"], variance, *prior)
    assert_mean(-SpikeSlab(logits=prior[0], loc=prior[1], scale=prior[2]).log_prob(w), cross)
    entropy = moments.spike_slab_entropy(p["logits"], p["log_scale"])
    kl = moments.spike_slab_kl(p["logits"], p["loc"], p["log_scale"], *prior)
    torch.testing.assert_close(cross - entropy, kl)


def test_kl_stays_finite_and_exact_at_extreme_logits():
    """No ``0 log 0`` in float32, where inclusion rounds to 0 or 1."""
    logits = torch.tensor([-120.0, -40.0, 40.0, 120.0], requires_grad=True)
    zero, one = torch.zeros(()), torch.ones(())
    kl = moments.spike_slab_kl(logits, zero, zero, torch.tensor(-1.0), zero, one)
    kl.sum().backward()
    excluded, included = -torch.nn.functional.logsigmoid(one), -torch.nn.functional.logsigmoid(-one)
    torch.testing.assert_close(kl.detach(), torch.stack([excluded, excluded, included, included]))
    assert logits.grad.isfinite().all()


# ---------------------------------------------------------------------- fused functions

PRIOR = {"logits": -0.6, "loc": 0.3, "scale": 1.4}


def gaussian_site(loc, log_scale, prior_loc, prior_scale):
    """The same as the fused function, from the plain formulas."""
    variance = torch.exp(2 * log_scale)
    cross = moments.normal_cross_entropy(loc, variance, prior_loc, prior_scale)
    return variance, (cross - moments.normal_entropy(log_scale)).sum()


def spike_slab_site(logits, loc, log_scale, prior_logits, prior_loc, prior_scale):
    probs, variance = torch.sigmoid(logits), torch.exp(2 * log_scale)
    kl = moments.spike_slab_kl(logits, loc, log_scale, prior_logits, prior_loc, prior_scale).sum()
    return moments.spike_slab_mean(probs, loc), moments.spike_slab_variance(probs, loc, variance), kl


FUSED = {
    "gaussian": (fused.GaussianSite, gaussian_site, ("loc", "log_scale"), ("loc", "scale")),
    "spike-slab": (
        fused.SpikeSlabSite,
        spike_slab_site,
        ("logits", "loc", "log_scale"),
        ("logits", "loc", "scale"),
    ),
}


def fused_inputs(own, prior, shape) -> list[torch.Tensor]:
    size = torch.Size(shape).numel()
    values = [parameters(size)[name].reshape(shape) for name in own] + [
        scalars(PRIOR[name])[0] for name in prior
    ]
    return [value.requires_grad_() for value in values]


@pytest.mark.parametrize("shape", [(3, 4), (1,), (7,)])
@pytest.mark.parametrize("name", FUSED)
def test_fused_equals_plain(name, shape, monkeypatch):
    monkeypatch.setattr(fused, "CHUNK", 5)  # several pieces, the last one short
    function, plain, own, prior = FUSED[name]
    inputs = fused_inputs(own, prior, shape)
    results = function.apply(*inputs), plain(*inputs)
    weights = [torch.randn_like(r) for r in results[0]]
    gradients = []
    for outputs in results:
        total = sum((w * r).sum() for w, r in zip(weights, outputs, strict=True))
        gradients.append(torch.autograd.grad(total, inputs))
    for a, b in itertools.chain(zip(*results, strict=True), zip(*gradients, strict=True)):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", FUSED)
def test_fused_derivatives_are_right(name, monkeypatch):
    monkeypatch.setattr(fused, "CHUNK", 5)
    function, _, own, prior = FUSED[name]
    assert torch.autograd.gradcheck(function.apply, fused_inputs(own, prior, (3, 2)))


def test_gaussian_output():
    mean, noise = (torch.randn(4, 3, **torch_double) for _ in range(2))
    variance = torch.rand(4, 3, **torch_double) + 0.1
    inputs = mean.requires_grad_(), variance.requires_grad_()
    assert torch.autograd.gradcheck(lambda m, v: fused.GaussianOutput.apply(m, v, noise, 1e-20), inputs)
    # Particles on the left, which mean and variance lack.
    particles = torch.randn(2, 4, 3, **torch_double)
    assert torch.autograd.gradcheck(lambda m, v: fused.GaussianOutput.apply(m, v, particles, 1e-20), inputs)
    certain = torch.zeros(2, requires_grad=True)
    output = fused.GaussianOutput.apply(torch.ones(2), certain, torch.ones(2), 1e-20)
    output.sum().backward()
    torch.testing.assert_close(output, torch.ones(2))
    assert certain.grad.isfinite().all()
