"""Every operation on messages against Monte Carlo; both libraries; no input gives a negative variance."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from guides.message_passing.arrays import double_precision
from guides.message_passing.messages import FAMILIES, GAUSSIAN, SPIKE_SLAB, GaussianMessage, SpikeSlabMessage

DRAWS = 300_000
WIDTH = 4


def double(values) -> torch.Tensor:
    return torch.as_tensor(np.asarray(values), dtype=torch.float64)


def gaussian(seed: int = 0) -> GaussianMessage:
    rng = np.random.default_rng(seed)
    return GaussianMessage(double(rng.normal(size=WIDTH)), double(rng.uniform(0.2, 2, WIDTH)))


def spike_slab(seed: int = 0, rho=None) -> SpikeSlabMessage:
    rng = np.random.default_rng(seed + 50)
    rho = double(rng.uniform(0.1, 0.8, WIDTH) if rho is None else rho)
    return SpikeSlabMessage(rho.log(), torch.log1p(-rho), *gaussian(seed))


def weights(seed: int = 1, out: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    return double(rng.normal(size=(out, WIDTH))), double(rng.uniform(0.05, 1.0, (out, WIDTH)))


def draw(m, rng: np.random.Generator) -> np.ndarray:
    """Samples ``[DRAWS, k]`` of what a message stands for."""
    z = rng.normal(m.mean.numpy(), np.sqrt(m.variance.numpy()), (DRAWS, m.mean.shape[-1]))
    if isinstance(m, SpikeSlabMessage):
        rho = np.broadcast_to(m.log_slab.exp().numpy(), z.shape[1:])
        z = z * (rng.random(z.shape) < rho)
    return z


def assert_moments(z: np.ndarray, mean, variance) -> None:
    """Mean and variance of the columns of ``z`` within five standard errors."""
    mean, variance, n = np.asarray(mean), np.asarray(variance), len(z)
    assert np.all(np.abs(z.mean(0) - mean) < 5 * z.std(0) / math.sqrt(n))
    squares = (z - mean) ** 2
    assert np.all(np.abs(squares.mean(0) - variance) < 5 * squares.std(0) / math.sqrt(n))


def assert_describes(m, z: np.ndarray) -> None:
    """Moments of the whole, share of exact zeros, and moments of the rest."""
    family = SPIKE_SLAB if isinstance(m, SpikeSlabMessage) else GAUSSIAN
    assert_moments(z, *family.mean_and_variance(m))
    if family is GAUSSIAN:
        return
    for j in range(z.shape[1]):
        slab = z[z[:, j] != 0, j]
        rho = float(m.log_slab.expand(m.mean.shape)[j].exp())
        spike = float(m.log_spike.expand(m.mean.shape)[j].exp())
        assert rho + spike == pytest.approx(1, abs=1e-12)
        assert abs(len(slab) / len(z) - rho) <= 5 * math.sqrt(rho * spike / len(z))
        assert_moments(slab[:, None], m.mean[j : j + 1], m.variance[j : j + 1])


@pytest.fixture(params=["gaussian", "spike-slab"])
def family(request):
    return FAMILIES[request.param]


def message(family, seed: int = 0):
    return gaussian(seed) if family is GAUSSIAN else spike_slab(seed)


@pytest.mark.parametrize("with_bias", [False, True])
def test_linear(family, with_bias):
    rng, m, (mean, variance) = np.random.default_rng(9), message(family), weights()
    bias = (double([0.3, -1.0, 0.0]), double([0.5, 0.2, 1.0])) if with_bias else None
    z = draw(m, rng)
    a = np.empty((DRAWS, 3))
    for j in range(3):
        w = rng.normal(mean[j].numpy(), variance[j].sqrt().numpy(), z.shape)
        a[:, j] = (w * z).sum(1)
        if with_bias:
            a[:, j] += rng.normal(float(bias[0][j]), math.sqrt(float(bias[1][j])), DRAWS)
    assert_describes(family.linear(m, mean, variance, bias), a)


def test_linear_of_numbers_is_linear_of_a_constant(family):
    x, (mean, variance) = double(np.random.default_rng(2).normal(size=(5, WIDTH))), weights()
    bias = (double([0.3, -1.0, 0.0]), double([0.5, 0.2, 1.0]))
    for b in (None, bias):
        short = family.linear_of_numbers(x, mean, variance, b)
        long = family.linear(family.constant(x), mean, variance, b)
        for u, v in zip(short, long, strict=True):
            torch.testing.assert_close(u.broadcast_to(v.shape), v)


@pytest.mark.parametrize("slope", [None, 0.01, 0.3])
def test_rectifiers(family, slope):
    m = message(family)
    z = draw(m, np.random.default_rng(3))
    z = np.where(z > 0, z, (slope or 0.0) * z)
    result = family.relu(m) if slope is None else family.leaky_relu(m, slope)
    assert_describes(result, z)


def test_leaky_relu_keeps_the_spike():
    m = spike_slab()
    result = SPIKE_SLAB.leaky_relu(m, 0.2)
    assert result.log_slab is m.log_slab
    assert result.log_spike is m.log_spike


def test_sum_of_branches(family):
    rng, m1, m2 = np.random.default_rng(4), message(family, 0), message(family, 7)
    assert_describes(family.add(m1, m2), draw(m1, rng) + draw(m2, rng))


def test_scale_shift_concatenate(family):
    m1, m2, rng = message(family, 0), message(family, 7), np.random.default_rng(5)
    z1, z2 = draw(m1, rng), draw(m2, rng)
    factor, offset = np.array([2.0, -1.0, 0.5, 3.0]), np.array([1.0, 0.0, -2.0, 0.5])
    assert_describes(family.scale(m1, factor), z1 * factor)
    assert_moments(z1 + offset, *family.mean_and_variance(family.shift(m1, offset)))
    assert_describes(family.concatenate([m1, m2]), np.concatenate([z1, z2], 1))


def test_a_shift_by_nothing_keeps_the_spike_and_any_other_does_not():
    m = spike_slab()
    assert SPIKE_SLAB.shift(m, 0.0) is m
    shifted = SPIKE_SLAB.shift(m, 0.5)
    assert torch.all(shifted.log_slab == 0)
    assert torch.all(torch.isneginf(shifted.log_spike))


def test_shared_spike_broadcasts_through_every_operation():
    """A linear layer gives one slab probability for all units; other operations must take that."""
    m = SPIKE_SLAB.linear(spike_slab(), *weights(out=WIDTH))
    assert m.log_slab.shape == (1,)
    full = SpikeSlabMessage(*(a.expand(WIDTH).clone() for a in m))
    mean, variance = weights(3)
    pairs = [
        (SPIKE_SLAB.linear(a, mean, variance), SPIKE_SLAB.relu(a))
        + (SPIKE_SLAB.add(a, full), SPIKE_SLAB.add(full, a), SPIKE_SLAB.concatenate([a, spike_slab()]))
        for a in (m, full)
    ]
    for short, long in zip(*pairs, strict=True):
        for u, v in zip(short, long, strict=True):
            torch.testing.assert_close(u.broadcast_to(v.shape), v.broadcast_to(v.shape))


def test_evidence(family):
    m = message(family)
    y, noise = double([0.2, -1.0, 3.0, 0.0]), 0.4
    slab = stats.norm(m.mean.numpy(), np.sqrt(m.variance.numpy() + noise)).pdf(y.numpy())
    density = slab
    if family is SPIKE_SLAB:
        rho = m.log_slab.exp().numpy()
        density = rho * slab + (1 - rho) * stats.norm(0, math.sqrt(noise)).pdf(y.numpy())
    ours = family.log_evidence(m, y, double(noise)).numpy() - 0.5 * math.log(2 * math.pi)
    np.testing.assert_allclose(ours, np.log(density), rtol=1e-12)


def test_evidence_of_an_outlier_does_not_underflow():
    m = SPIKE_SLAB.relu(spike_slab())
    y = double(1e4).expand(WIDTH)
    log_z = SPIKE_SLAB.log_evidence(m, y, double(1e-3))
    assert torch.isfinite(log_z).all()
    assert log_z.max() < -1e5


@pytest.mark.parametrize("exponent", [-3, -10, -13, -17, -40, -250])
def test_a_layer_that_is_nearly_always_zero(exponent):
    """With tiny slab probabilities one activation at most is on: ``pi = sum rho``, a mixture of terms."""
    rho = np.array([1.0, 2.0, 0.5, 3.0]) * 10.0**exponent
    m, (mean, variance) = spike_slab(rho=rho), weights()
    result = SPIKE_SLAB.linear(m, mean, variance)
    assert float(result.log_slab) == pytest.approx(math.log(rho.sum()), abs=max(1e-9, 10 * rho.sum()))
    chance = torch.as_tensor(rho / rho.sum())
    means = mean * m.mean
    right = means @ chance
    within = (mean**2 * m.variance + variance * (m.mean**2 + m.variance)) @ chance
    between = ((means - right[:, None]) ** 2) @ chance
    tolerance = {"rtol": max(1e-9, 30 * rho.sum()), "atol": 0}
    torch.testing.assert_close(result.mean, right, **tolerance)
    torch.testing.assert_close(result.variance, within + between, **tolerance)


def test_a_single_unit_leaves_a_certain_weight_no_variance():
    """``pi = rho``: the two terms in braces are equal, and their rounding must not be below 0."""
    rho = double(np.random.default_rng(3).uniform(0.01, 0.99, (300, 1)))
    m = SpikeSlabMessage(rho.log(), torch.log1p(-rho), 1 + rho, 0 * rho)
    slab = SPIKE_SLAB.linear(m, double([[0.7]]), double([[0.0]]))
    torch.testing.assert_close(slab.mean, 0.7 * m.mean)
    assert torch.all(slab.variance >= 0)
    assert torch.all(slab.variance < 1e-14)


def test_relu_keeps_both_probabilities_exact():
    """``rho'`` near 0 and near 1, from both sides."""
    mean, variance = double([30.0, -30.0, -37.0, 8.0]), double([1.0] * 4)
    certain = SPIKE_SLAB.relu(SpikeSlabMessage(double([0.0] * 4), double([-math.inf] * 4), mean, variance))
    log_tail = stats.norm.logcdf(-mean.numpy())
    np.testing.assert_allclose(certain.log_slab.numpy(), stats.norm.logcdf(mean.numpy()), rtol=1e-11)
    np.testing.assert_allclose(certain.log_spike.numpy(), log_tail, rtol=1e-11)
    log_rho = double([-30.0, -30.0, -3.0, -300.0])
    rare = SPIKE_SLAB.relu(
        SpikeSlabMessage(log_rho, torch.log1p(-log_rho.exp()), double([3.0, -10.0, -20.0, -5.0]), variance)
    )
    np.testing.assert_allclose(rare.log_spike.numpy(), -np.exp(rare.log_slab.numpy()), rtol=1e-11)


def test_relu_of_a_message_that_is_surely_on_has_a_gradient():
    """There the form of ``log(1 - rho')`` that is not taken is minus infinity, with an infinite slope."""
    mean = double([50.0, 1e4]).requires_grad_()
    zero = double([0.0])
    relu = SPIKE_SLAB.relu(SpikeSlabMessage(zero, zero - math.inf, mean, double([1.0, 4.0])))
    (slope,) = torch.autograd.grad(relu.log_spike.sum(), mean)
    # log Phi(-alpha) falls as -alpha^2 / 2 - log alpha
    np.testing.assert_allclose(slope.numpy(), [-50.0 - 1 / 50, -5000.0 / 2], rtol=1e-5)


def network(family, layers, bias: bool):
    """``x -> message`` through ReLU layers, the bias as the weight of an extra unit."""

    def forward(x):
        m = family.linear_of_numbers(x, *layers[0])
        for mean, variance in layers[1:]:
            m = family.relu(family.scale(m, 1 / math.sqrt(mean.shape[1])))
            if bias:
                m = family.concatenate([m, family.constant(1 + 0 * m.mean[..., :1])])
            m = family.linear(m, mean, variance)
        return m

    return forward


def layers_of(sizes: tuple[int, ...], bias: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rng = np.random.default_rng(8)
    shapes = [(b, a + (bias and i > 0)) for i, (a, b) in enumerate(zip(sizes, sizes[1:], strict=False))]
    return [(double(rng.normal(size=s)), double(rng.uniform(0.1, 1, s))) for s in shapes]


@pytest.mark.parametrize("bias", [True, False])
def test_spike_slab_is_gaussian_exactly_when_there_is_a_bias(bias):
    layers = layers_of((3, 4, 4, 2), bias)
    x = double(np.random.default_rng(1).normal(size=(20, 3)))
    one, two = (
        family.mean_and_variance(network(family, layers, bias)(x)) for family in (GAUSSIAN, SPIKE_SLAB)
    )
    gap = max(float((a - b).abs().max()) for a, b in zip(one, two, strict=True))
    assert gap < 1e-10 if bias else gap > 1e-3


@pytest.mark.slow  # quick: the whole fits of test_backpropagation, where gradients decide
@pytest.mark.parametrize("bias", [True, False])
def test_torch_and_jax_give_the_same_numbers_and_gradients(family, bias):
    import jax
    import jax.numpy as jnp

    layers = layers_of((3, 4, 4, 1), bias)
    x, y = double(np.random.default_rng(1).normal(size=3)), 0.7
    flat = [t.clone().requires_grad_() for layer in layers for t in layer]

    def evidence(flat, x, y):
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        m = network(family, pairs, bias)(x)
        return family.log_evidence(type(m)(*(a[..., 0] for a in m)), y, 0.3 + 0 * y)

    value = evidence(flat, x, double(y))
    value.backward()
    with double_precision():
        arrays = [jnp.asarray(t.detach().numpy()) for t in flat]
        both = jax.jit(jax.value_and_grad(evidence))
        other, gradients = both(arrays, jnp.asarray(x.numpy()), jnp.asarray(y))
        assert float(other) == pytest.approx(value.item(), rel=1e-12)
        for t, g in zip(flat, gradients, strict=True):
            np.testing.assert_allclose(t.grad.numpy(), np.asarray(g), rtol=1e-9, atol=1e-13)


finite = st.floats(-1e6, 1e6)
positive = st.floats(0, 1e6)
log_probability = st.floats(-800, -1e-20) | st.just(-0.0)


EXTREMES = dict(
    means=st.lists(finite, min_size=3, max_size=3),
    variances=st.lists(positive, min_size=3, max_size=3),
    logs=st.lists(log_probability, min_size=3, max_size=3),
    weight_means=st.lists(finite, min_size=9, max_size=9),
    weight_variances=st.lists(positive, min_size=9, max_size=9),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)


def never_negative_or_nan(means, variances, logs, weight_means, weight_variances, dtype):
    array = lambda values: torch.tensor(values, dtype=dtype)  # noqa: E731
    log_slab = array(logs)
    log_spike = torch.where(log_slab > -0.69, torch.log(-torch.expm1(log_slab)), torch.log1p(-log_slab.exp()))
    mean, variance = array(weight_means).reshape(3, 3), array(weight_variances).reshape(3, 3)
    mean.requires_grad_()
    m = SpikeSlabMessage(log_slab, log_spike, array(means), array(variances))
    for family, start in ((SPIKE_SLAB, m), (GAUSSIAN, GaussianMessage(m.mean, m.variance))):
        linear = family.linear(start, mean, variance)
        rectified = family.relu(linear)
        added = family.add(rectified, start)
        for result in (
            linear,
            rectified,
            added,
            family.leaky_relu(linear, 0.1),
            family.linear(added, mean, variance),
        ):
            assert not any(torch.isnan(a).any() for a in result)
            assert torch.all(result.variance >= 0)
            assert torch.all(family.mean_and_variance(result)[1] >= 0)


@settings(deadline=None, max_examples=50)
@given(**EXTREMES)
def test_nothing_is_ever_negative_or_nan(**drawn):
    never_negative_or_nan(**drawn)


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(**EXTREMES)
def test_nothing_is_ever_negative_or_nan_at_length(**drawn):
    never_negative_or_nan(**drawn)


@pytest.mark.parametrize("rho", [1e-2, 1e-4, 1e-7, 1e-11, 1e-14, 1e-200])
def test_a_unit_is_on_where_any_of_its_inputs_is(rho):
    """``1 - (1 - rho)^k``, however small."""
    m = spike_slab(rho=np.full(WIDTH, rho))
    for found, k in (SPIKE_SLAB.linear(m, *weights()), WIDTH), (SPIKE_SLAB.add(m, m), 2):
        expected = math.log(-math.expm1(k * math.log1p(-rho)))
        np.testing.assert_allclose(found.log_slab, expected, rtol=0, atol=1e-12)
