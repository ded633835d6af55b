"""The public class is exact where assumed density filtering is exact: linear models, and single rows."""

import math

import numpy as np
import pyro
import pytest
import torch
import torch.nn.functional as F
from pyro import distributions as dist
from scipy import integrate, stats

from guides import ProbabilisticBackpropagation
from tests.guides.message_passing.fits import NOISE, both_families, cases, close, line, regression
from tests.guides.message_passing.networks import INPUTS, NETWORKS, data, gamma, number, observe

one_family = pytest.mark.parametrize(
    "messages", ["gaussian", pytest.param("spike-slab", marks=pytest.mark.slow)]
)


# ------------------------------------------------------------------------------- linear models, exactly


@pytest.mark.parametrize(
    ("messages", "batch_size"),
    cases(
        [("gaussian", 1), ("spike-slab", 7)],
        [("gaussian", 7), ("gaussian", 40), ("spike-slab", 1), ("spike-slab", 40)],
    ),
)
def test_one_weight_is_recursive_linear_regression(messages, batch_size):
    """Nothing is approximated here, so the order and the batches do not matter."""
    x, y = data()
    guide = ProbabilisticBackpropagation(line(), messages).fit(x[:, 0], y, epochs=1, batch_size=batch_size)
    precision = 1 / 4 + (x[:, 0] ** 2).sum() / NOISE**2
    mean = (0.3 / 4 + (x[:, 0] * y).sum() / NOISE**2) / precision
    close(guide.sites["w"].mean, mean)
    close(guide.sites["w"].variance, 1 / precision)
    assert guide.noise_variance == NOISE**2
    law = guide.predictive(x[:, 0])
    close(law.mean, x[:, 0] * mean)
    close(law.variance, x[:, 0] ** 2 / precision + NOISE**2)


@both_families
def test_many_weights_are_projected_row_by_row(messages):
    """The exact update of each row, of which the diagonal is kept."""
    x, y = data()
    mean, variance = np.full(INPUTS, 0.3), np.full(INPUTS, 4.0)
    order = np.random.default_rng(5).permutation(40)
    for i in order:
        row = x[i].numpy()
        gain = variance * row / (row @ (variance * row) + NOISE**2)
        mean = mean + gain * (float(y[i]) - row @ mean)
        variance = variance - gain * row * variance
    guide = ProbabilisticBackpropagation(regression, messages).fit(x, y, epochs=1, order=order[None])
    close(guide.sites["w"].mean, mean)
    close(guide.sites["w"].variance, variance)


@one_family
def test_epochs_count_the_data_again(messages):
    x, y = data()
    guide = ProbabilisticBackpropagation(line(0.0), messages).fit(x[:, 0], y, epochs=3)
    precision = 1 / 4 + 3 * (x[:, 0] ** 2).sum() / NOISE**2
    close(guide.sites["w"].variance, 1 / precision)


def test_intercept_alone():
    """A model without inputs: the mean of the data."""
    x, y = data()
    guide = ProbabilisticBackpropagation(NETWORKS["constant"]).fit(x, y, epochs=1)
    precision = 1 + 40 / 0.25
    close(guide.sites["mu"].mean, float(y.sum()) / 0.25 / precision)
    close(guide.predictive(x, noise=False).mean, np.full(40, float(guide.sites["mu"].mean)))


# ------------------------------------------------------------------------------ one data point, by quadrature


def tilted_moments(evidence, mean, variance):
    """Moments after one row, from the derivatives of ``log Z`` by finite differences."""

    step = 2e-4

    def derivative(function):
        near, far = function(step) - function(-step), function(2 * step) - function(-2 * step)
        return (8 * near - far) / (12 * step)

    in_mean = derivative(lambda d: math.log(evidence(mean + d, variance)))
    in_variance = derivative(lambda d: math.log(evidence(mean, variance + d)))
    return mean + variance * in_mean, variance - variance**2 * (in_mean**2 - 2 * in_variance)


def expectation(function, mean, variance):
    """Under a normal, kinks at 0 allowed."""
    law = stats.norm(mean, math.sqrt(variance))
    low, high = law.ppf([1e-16, 1 - 1e-16])
    edges = sorted({low, min(max(0.0, low), high), high})
    pieces = [
        integrate.quad(lambda w: function(w) * law.pdf(w), a, b, epsabs=1e-14, epsrel=1e-13, limit=200)[0]
        for a, b in zip(edges[:-1], edges[1:], strict=True)
    ]
    return sum(pieces)


@pytest.mark.parametrize("slope", [pytest.param(0.0, marks=pytest.mark.slow), 0.2])
def test_one_row_through_a_kink(slope):
    """The likelihood's mean is matched by a normal, whose moments and evidence are known by quadrature."""
    row, target = 1.7, 0.9

    def model(x, y=None):
        observe(F.leaky_relu(x * pyro.sample("w", dist.Normal(number(0.3), number(0.8))), slope), y, NOISE)

    def output(w):
        return max(row * w, slope * row * w)

    def evidence(mean, variance):
        first = expectation(output, mean, variance)
        spread = expectation(lambda w: (output(w) - first) ** 2, mean, variance)
        return stats.norm(first, math.sqrt(spread + NOISE**2)).pdf(target)

    x, y = torch.tensor([row]).double(), torch.tensor([target]).double()
    guide = ProbabilisticBackpropagation(model).fit(x, y, epochs=1, init_means={"w": 0.3})
    close(guide.sites["w"], tilted_moments(evidence, 0.3, 0.64), 1e-7)


def test_one_row_through_a_kink_as_spike_and_slab():
    row, target = 1.7, 0.4

    def model(x, y=None):
        observe(F.relu(x * pyro.sample("w", dist.Normal(number(0.3), number(0.8)))), y, NOISE)

    def evidence(mean, variance):
        slab = expectation(lambda w: float(w > 0), mean, variance)
        first = expectation(lambda w: row * w * (w > 0), mean, variance) / slab
        spread = expectation(lambda w: (row * w - first) ** 2 * (w > 0), mean, variance) / slab
        normal = stats.norm(first, math.sqrt(spread + NOISE**2)).pdf(target)
        return slab * normal + (1 - slab) * stats.norm(0, NOISE).pdf(target)

    x, y = torch.tensor([row]).double(), torch.tensor([target]).double()
    guide = ProbabilisticBackpropagation(model, "spike-slab").fit(x, y, epochs=1, init_means={"w": 0.3})
    close(guide.sites["w"], tilted_moments(evidence, 0.3, 0.64), 1e-7)


@pytest.mark.slow
@both_families
def test_one_row_far_from_the_kink_is_the_exact_posterior(messages):
    def model(x, y=None):
        observe(F.relu(x * pyro.sample("w", dist.Normal(number(3.0), number(0.6)))), y, NOISE)

    def density(w):
        return stats.norm(3.0, 0.6).pdf(w) * stats.norm(max(1.5 * w, 0.0), NOISE).pdf(3.8)

    total, first, second = (
        integrate.quad(lambda w, k=k: w**k * density(w), -1, 7, epsabs=1e-13)[0] for k in range(3)
    )
    x, y = torch.tensor([1.5]).double(), torch.tensor([3.8]).double()
    guide = ProbabilisticBackpropagation(model, messages).fit(x, y, epochs=1, init_means={"w": 3.0})
    close(guide.sites["w"], (first / total, second / total - (first / total) ** 2), 2e-5)


def test_noise_update():
    """A known weight: the formula as printed, which is near the exact posterior of the precision."""
    a, b, factor, error = 60.0, 50.0, 2.0, 1.3

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(number(1.0), number(1e-9)))
        observe(x * w, y, factor * gamma("tau", a, b).rsqrt())

    x = torch.ones(1).double()
    guide = ProbabilisticBackpropagation(model).fit(x, x + error, epochs=1)
    log_z = [
        stats.norm(0, math.sqrt(factor**2 * b / (a + k - 1))).logpdf(error) for k in range(3)
    ]  # Gamma(a + k, b)
    new_a = 1 / (math.exp(log_z[2] - 2 * log_z[1] + log_z[0]) * (a + 1) / a - 1)
    new_b = 1 / (math.exp(log_z[2] - log_z[1]) * (a + 1) / b - math.exp(log_z[1] - log_z[0]) * a / b)
    close(guide.precisions["tau"], (new_a, new_b))
    close(guide.noise_variance, factor**2 * new_b / (new_a - 1))

    def density(tau):
        return stats.gamma(a, scale=1 / b).pdf(tau) * stats.norm(0, factor * tau**-0.5).pdf(error)

    total, first, second = (
        integrate.quad(lambda t, k=k: t**k * density(t), 0.01, 5, epsabs=1e-13)[0] for k in range(3)
    )
    exact = first / total, second / total - (first / total) ** 2
    found = guide.precisions["tau"]
    close((found.concentration / found.rate, found.concentration / found.rate**2), exact, 0.01)
    assert abs(exact[0] - a / b) > 0.002  # the row has moved it, and by as much as it should
    assert abs(found.concentration / found.rate - exact[0]) < 0.1 * abs(exact[0] - a / b)


@pytest.mark.slow
def test_prior_refinement():
    """One weight with a random precision, one row: the formulas as printed, and quadrature."""
    a, b, factor, loc, target = 30.0, 40.0, 1.5, 0.4, 4.0

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(number(loc), factor * gamma("lam", a, b).rsqrt()))
        observe(x * w, y, NOISE)

    x = torch.ones(1).double()
    guide = ProbabilisticBackpropagation(model).fit(x, x * target, epochs=1)
    # the cavity of the only weight is the likelihood; in units of the factor, around loc
    mean, variance = (target - loc) / factor, (NOISE / factor) ** 2
    total = [variance + b / (a - 1 + k) for k in range(3)]
    log_z = [-0.5 * math.log(t) - mean**2 / (2 * t) for t in total]
    slope, curvature = -mean / total[0], -1 / (2 * total[0]) + mean**2 / (2 * total[0] ** 2)
    new_mean = mean + variance * slope
    new_variance = variance - variance**2 * (slope**2 - 2 * curvature)
    close(guide.sites["w"], (loc + factor * new_mean, factor**2 * new_variance), 1e-9)
    new_a = 1 / (math.exp(log_z[2] - 2 * log_z[1] + log_z[0]) * (a + 1) / a - 1)
    new_b = 1 / (math.exp(log_z[2] - log_z[1]) * (a + 1) / b - math.exp(log_z[1] - log_z[0]) * a / b)
    close(guide.precisions["lam"], (new_a, new_b), 1e-9)

    def density(lam):
        scale = math.sqrt(factor**2 / lam + NOISE**2)
        return stats.gamma(a, scale=1 / b).pdf(lam) * stats.norm(loc, scale).pdf(target)

    whole, first = (
        integrate.quad(lambda t, k=k: t**k * density(t), 1e-3, 4, epsabs=1e-13)[0] for k in range(2)
    )
    found = new_a / new_b
    assert abs(found - first / whole) < 0.15 * abs(first / whole - a / b)
