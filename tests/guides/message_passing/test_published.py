"""The published algorithm as a yardstick: that it is straight itself, and that the package agrees with it."""

from __future__ import annotations

import copy
import functools
import itertools
import math

import jax
import numpy as np
import pytest
import torch

from guides import ProbabilisticBackpropagation
from tests.guides.message_passing.published import Published, moment_matched, start_means
from zoo.models.bnn import PBPNetwork

EPOCHS = 3
MESSAGES = {"pbp": "gaussian", "sspbp": "spike-slab"}


@pytest.fixture(autouse=True, scope="module")
def _full_optimisation():
    """What agrees with the published algorithm is optimised as the program that a user has."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def task(rows: int = 60, columns: int = 4, seed: int = 0):
    """Standardised rows of a function with kinks, and rows to predict."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows + 20, columns))
    y = np.abs(x[:, 0]) - 0.7 * x[:, 1] * (x[:, 2] > 0) + 0.2 * rng.normal(size=len(x))
    y = (y - y[:rows].mean()) / y[:rows].std()
    return x[:rows], y[:rows], x[rows:]


@functools.cache
def published_run(widths, messages, bias, epochs=EPOCHS):
    """The yardstick after ``epochs``, its start, its orders, and the rows to predict.  Look, do not touch."""
    x, y, x_test = task()
    rng = np.random.default_rng(0)
    start = start_means((x.shape[1], *widths, 1), bias, rng)
    orders = np.stack([rng.permutation(len(x)) for _ in range(epochs)])
    run = Published(start, messages, bias)
    for order in orders:
        run.epoch(x, y, order)
    return run, start, orders, (x, y, x_test)


# the yardstick


def test_spike_slab_layer_is_the_exact_law_given_that_some_input_is_not_zero():
    """Against all 2^3 patterns of zeros among the inputs."""
    rng = np.random.default_rng(1)
    slab, mean, variance = rng.uniform(0.1, 0.9, 3), rng.normal(size=3), rng.uniform(0.1, 2, 3)
    m, v = rng.normal(size=(2, 3)), rng.uniform(0.1, 2, (2, 3))
    some, first, second = 0.0, np.zeros(2), np.zeros(2)
    for pattern in itertools.product((0, 1), repeat=3):
        on = np.array(pattern)
        probability = np.prod(np.where(on, slab, 1 - slab)) * on.any()
        average = m @ (on * mean) / math.sqrt(3)
        spread = ((m**2) @ (on * variance) + v @ (on * (mean**2 + variance))) / 3
        some, first = some + probability, first + probability * average
        second = second + probability * (spread + average**2)
    tensors = (torch.tensor(value) for value in (slab, mean, variance, m, v))
    _, got_mean, got_variance, pi = Published._spike_slab_layer(*tensors, last=True)
    assert pi.item() == pytest.approx(some, rel=1e-12)
    np.testing.assert_allclose(got_mean, first / some, rtol=1e-12)
    np.testing.assert_allclose(got_variance, second / some - (first / some) ** 2, rtol=1e-12)


def test_moment_matching_of_the_gamma_is_exact_where_the_evidence_is():
    """Where the evidence is exact, of a known function: the posterior of the precision is a Gamma too."""
    shape, rate, deviation = 6.0, 6.0, 1.7

    def log_z(a: float) -> float:
        """Of ``N(y; f, 1 / g)`` and ``g ~ Gamma(a, rate)``: a Student t, without the part free of a."""
        gammas = math.lgamma(a + 0.5) - math.lgamma(a)
        return gammas - (a + 0.5) * math.log1p(deviation**2 / (2 * rate))

    a, b = moment_matched(*(log_z(shape + k) for k in range(3)), shape, rate)
    assert (a, b) == pytest.approx((shape + 0.5, rate + deviation**2 / 2), rel=1e-9)


def test_refinement_divides_out_what_it_put_in():
    """After a sweep, posterior = cavity times site: without new data the next cavity is the same one."""
    run = copy.deepcopy(published_run((5,), "gaussian", bias=True, epochs=1)[0])

    def cavities():
        sites = zip(run.variances, run.site_precisions, run.means, run.site_means, strict=True)
        return [(1 / v - precision, m / v - mean) for v, precision, m, mean in sites]

    before = cavities()
    run.refine()
    for old, new in zip(before, cavities(), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("widths", [(6,), pytest.param((4, 3), marks=pytest.mark.slow)])
def test_biases_make_the_spike_vanish(widths):
    gaussian, *_, (_, _, x_test) = published_run(widths, "gaussian", bias=True)
    mixed, *_ = published_run(widths, "spike-slab", bias=True)
    np.testing.assert_allclose(mixed.predict(x_test).mean, gaussian.predict(x_test).mean, atol=1e-10)
    assert mixed.noise == pytest.approx(gaussian.noise, rel=1e-10)
    assert (mixed.predict(x_test).slabs == 1).all()


@pytest.mark.slow
def test_without_biases_the_spike_is_there():
    gaussian, *_, (_, _, x_test) = published_run((5, 4), "gaussian", bias=False)
    mixed, *_ = published_run((5, 4), "spike-slab", bias=False)
    assert mixed.predict(x_test).slabs.min() < 0.999
    assert np.abs(mixed.predict(x_test).mean - gaussian.predict(x_test).mean).max() > 1e-3


# the package


@pytest.mark.parametrize(
    ("method", "bias", "widths"),
    [
        ("pbp", True, (12,)),
        ("pbp", False, (5, 4)),
        ("sspbp", True, (5, 4)),
        ("sspbp", False, (12,)),
        ("sspbp", False, (5, 4)),
    ],
)
@pytest.mark.slow
def test_package_agrees_with_the_published_algorithm(method, bias, widths):
    run, start, orders, (x, y, x_test) = published_run(widths, MESSAGES[method], bias=bias)
    expected = run.predict(x_test)
    guide = fitted(method, bias, widths, start, orders, x, y)
    law = guide.predictive(torch.as_tensor(x_test), noise=False)
    if method == "sspbp":
        np.testing.assert_allclose(law.probs, expected.slabs[:, -1], atol=1e-6)
    np.testing.assert_allclose(law.loc, expected.mean, atol=1e-6)
    np.testing.assert_allclose(law.scale**2, expected.variance, atol=1e-6)
    slabs = np.stack([np.asarray(slab) for slab in guide.slab_probabilities(torch.as_tensor(x_test))], axis=1)
    np.testing.assert_allclose(slabs, expected.slabs, atol=1e-6)
    assert guide.noise_variance == pytest.approx(run.noise_variance, rel=1e-6)


@pytest.mark.slow
def test_wide_and_deep_network_whose_weight_precision_has_no_expected_variance():
    """Many weights, few rows: the Gamma's shape falls below 1.  The published algorithm takes that as it is,
    which ends the refinement of nearly all weights; to refuse it lets the prior's variance grow without end.
    """
    widths = (12, 12, 12)
    run, start, orders, (x, y, x_test) = published_run(widths, "gaussian", bias=True)
    assert run.prior[0] <= 1
    guide = fitted("pbp", True, widths, start, orders, x, y)
    predicted = guide.predictive(torch.as_tensor(x_test), noise=False)
    np.testing.assert_allclose(predicted.loc, run.predict(x_test).mean, atol=1e-6)


@pytest.mark.slow
def test_package_agrees_in_every_weight_and_in_the_precisions():
    run, start, orders, (x, y, _) = published_run((5, 4), "spike-slab", bias=False)
    guide = fitted("sspbp", False, (5, 4), start, orders, x, y)
    for layer, (mean, variance) in enumerate(zip(run.means, run.variances, strict=True), start=1):
        np.testing.assert_allclose(guide.sites[f"w{layer}"].mean, mean, atol=1e-6)
        np.testing.assert_allclose(guide.sites[f"w{layer}"].variance, variance, rtol=1e-6)
    assert [float(v) for v in guide.precisions["weight_precision"]] == pytest.approx(run.prior, rel=1e-6)
    assert [float(v) for v in guide.precisions["noise_precision"]] == pytest.approx(run.noise, rel=1e-6)


@pytest.mark.slow
def test_predictive_mixture_of_a_network_without_biases():
    """With noise: the slab and, at the mean of the target, the spike, both blurred by the noise."""
    run, start, orders, (x, y, x_test) = published_run((5, 4), "spike-slab", bias=False)
    expected, noise = run.predict(x_test), run.noise_variance
    guide = fitted("sspbp", False, (5, 4), start, orders, x, y)
    predictive = guide.predictive(torch.as_tensor(x_test))
    slab = expected.slabs[:, -1]
    for value in (-1.3, 0.0, 0.4):
        density = (1 - slab) * normal_density(value, noise)
        density = density + slab * normal_density(value - expected.mean, expected.variance + noise)
        got = predictive.log_prob(torch.full((len(x_test),), value, dtype=torch.float64))
        np.testing.assert_allclose(got, np.log(density), atol=1e-6)
    np.testing.assert_allclose(predictive.mean, slab * expected.mean, atol=1e-6)


def fitted(method, bias, widths, start, orders, x, y) -> ProbabilisticBackpropagation:
    model = PBPNetwork(x.shape[1], widths=widths, bias=bias)
    guide = ProbabilisticBackpropagation(model, MESSAGES[method])
    init_means = {f"w{layer}": torch.as_tensor(mean) for layer, mean in enumerate(start, start=1)}
    return guide.fit(
        torch.as_tensor(x), torch.as_tensor(y), epochs=len(orders), order=orders, init_means=init_means
    )


def normal_density(deviation, variance):
    return np.exp(-0.5 * deviation**2 / variance) / np.sqrt(2 * math.pi * variance)
