"""ReLU messages against 60 digits: what a table holds is computed here again, and the package meets it."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch

from guides.message_passing.messages import GAUSSIAN, SPIKE_SLAB, GaussianMessage, SpikeSlabMessage

#: alpha -> g = phi / Phi, h = g + alpha, s = 1 - g h, log Phi, as written down by hand
TABLE = {
    -10000: (10000.0001, 9.99999980000001e-5, 9.99999940000005e-9, -50000010.12927892),
    -100: (100.0099980009993, 0.009998000999260705, 9.994004994826345e-5, -5005.524208694205),
    -40: (40.02496884720726, 0.02496884720726372, 0.0006226683785913888, -804.6084420137538),
    -30: (30.03325966743368, 0.03325966743367704, 0.001103771511890091, -454.3212439563432),
    -20: (20.04975306852785, 0.04975306852785054, 0.002463261615052164, -203.9171553710973),
    -10: (10.09809323396251, 0.09809323396251196, 0.009445377825656261, -53.23128515051247),
    -5: (5.186503967125842, 0.1865039671258421, 0.03269643461711223, -15.06499839398873),
    -2: (2.373215532822841, 0.3732155328228409, 0.1142791004140813, -3.783184333682032),
    0: (0.7978845608028654, 0.7978845608028654, 0.3633802276324187, -0.6931471805599453),
    3: (0.004437839042125664, 3.004437839042126, 0.9866667884582592, -0.001350809964748194),
}
TOLERANCE = {torch.float64: 2e-12, torch.float32: 2e-5}


def exact(alpha) -> tuple[mpmath.mpf, ...]:
    """``g``, ``h``, ``s``, ``log Phi`` and ``Phi`` to at least 60 digits."""
    with mpmath.workdps(60):
        alpha = mpmath.mpf(alpha)
        with mpmath.workdps(100):  # h and s lose digits like alpha^2 and alpha^4: 16 at most here
            below = mpmath.erfc(-alpha / mpmath.sqrt(2)) / 2
            g = mpmath.npdf(alpha) / below
            h = g + alpha
            return g, h, 1 - g * h, mpmath.log(below), below


@pytest.mark.parametrize("alpha", TABLE)
def test_the_table_is_right(alpha):
    assert [float(value) for value in exact(alpha)[:4]] == pytest.approx(TABLE[alpha], rel=1e-13)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("alpha", [*TABLE, -1000, -8.5, -3.5, -3, -2.9, -1, 1, 10, 40])
def test_spike_slab_relu(alpha, dtype):
    """A slab with mean ``alpha`` and variance 1 becomes ``log Phi``, ``h`` and ``s``."""
    alpha = float(np.float32(alpha))
    mean, variance, zero = unit(alpha, dtype)
    _, h, s, log_below, below = exact(alpha)
    after = SPIKE_SLAB.relu(SpikeSlabMessage(zero, zero - math.inf, mean, variance))
    close = TOLERANCE[dtype]
    assert after.mean.item() == pytest.approx(float(h), rel=close)
    assert after.variance.item() == pytest.approx(float(s), rel=close)
    assert after.log_slab.item() == pytest.approx(float(log_below), rel=close, abs=torch.finfo(dtype).tiny)
    with mpmath.workdps(60):
        # either form loses all digits on the other side of 0
        log_above = mpmath.log1p(-below) if alpha < 0 else exact(-alpha)[3]
    assert after.log_spike.item() == pytest.approx(float(log_above), rel=close, abs=torch.finfo(dtype).tiny)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("alpha", [-10, -8.5, -5, -3.5, -3, -2.9, -2, -1, 0, 1, 3, 10, 40])
def test_gaussian_relu(alpha, dtype):
    """``Phi h`` and ``Phi (s + Phi(-alpha) h^2)``, to the digits that a sum of positive terms keeps."""
    alpha = float(np.float32(alpha))
    mean, variance, _ = unit(alpha, dtype)
    _, h, s, _, below = exact(alpha)
    after = GAUSSIAN.relu(GaussianMessage(mean, variance))
    with mpmath.workdps(60):
        expected = below * h, below * (s + (1 - below) * h**2)
    # exp(-alpha^2 / 2) alone costs alpha^2 units in the last place
    close = TOLERANCE[dtype] * (1 + alpha**2 / 10)
    assert after.mean.item() == pytest.approx(float(expected[0]), rel=close)
    assert after.variance.item() == pytest.approx(float(expected[1]), rel=close)


@pytest.mark.parametrize("alpha", [-1e4, -1000, -100, -40])
def test_gaussian_relu_far_out_is_zero_or_nearly(alpha):
    """``Phi`` underflows below -38: no number but 0 is possible, and no NaN."""
    mean, variance, _ = unit(alpha, torch.float64)
    after = GAUSSIAN.relu(GaussianMessage(mean, variance))
    expected = exact(alpha)
    assert after.mean.item() == pytest.approx(float(expected[4] * expected[1]), rel=1e-9, abs=1e-300)
    assert 0 <= after.variance.item() < 1e-300


def unit(alpha: float, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Mean ``alpha``, variance one, and a zero."""
    return tuple(torch.tensor([value], dtype=dtype) for value in (alpha, 1.0, 0.0))


# max(X W, 0): means of X and W -> moments of the Gaussian message, and of the spike-and-slab message
PRODUCTS = {
    (0, 0): ((0.398942, 0.340845), (0.5, 0.797885, 0.363380)),
    (1, 3): ((3.330334, 7.888461), (0.817144, 4.075578, 6.616397)),
    (1, -3): ((0.330334, 0.911296), (0.182856, 1.806522, 2.316914)),
    (3, 3): ((9.031062, 18.349473), (0.980526, 9.210424, 17.061909)),
    (3, -3): ((0.031062, 0.089474), (0.019474, 1.595094, 2.099835)),
}


@pytest.mark.parametrize("pair", PRODUCTS)
def test_messages_of_a_product(pair):
    """One linear layer of one random input: the product's exact moments; then the ReLU."""
    (of_x, of_w), (gaussian, mixed) = pair, PRODUCTS[pair]
    one = torch.ones(1, 1, dtype=torch.float64)
    x_mean, weight = of_x * one[0], of_w * one
    before = GAUSSIAN.linear(GaussianMessage(x_mean, one[0]), weight, one)
    after = GAUSSIAN.relu(before)
    assert [value.item() for value in after] == pytest.approx(gaussian, abs=1e-6)

    sure = torch.zeros(1, dtype=torch.float64)
    slab = SPIKE_SLAB.linear(SpikeSlabMessage(sure, sure - math.inf, x_mean, one[0]), weight, one)
    after = SPIKE_SLAB.relu(slab)
    got = (after.log_slab.exp().item(), after.mean.item(), after.variance.item())
    assert got == pytest.approx(mixed, abs=1e-6)
    with mpmath.workdps(40):
        mean = mpmath.mpf(of_x * of_w)
        variance = mpmath.mpf(1 + of_x**2 + of_w**2)
        _, h, s, _, below = exact(mean / mpmath.sqrt(variance))
        expected = (below, mpmath.sqrt(variance) * h, variance * s)
    assert got == pytest.approx([float(value) for value in expected], rel=1e-12)
