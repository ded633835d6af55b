"""The compiled loop: against the printed algorithm, exact regression, and itself in other shapes.

Compilation is nearly all of the time, so the quick tests share a few shapes: 30 rows, two epochs, minibatches
of two, and the networks named here.
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from guides.message_passing import compiled
from guides.message_passing.arrays import double_precision
from guides.message_passing.messages import FAMILIES
from tests.guides.message_passing.published import Published


@dataclasses.dataclass(frozen=True)
class Network:
    """``W [z; 1] / sqrt(in')`` and ReLU; the rows bring the bias unit of the first layer with them."""

    family: str
    layers: int
    bias: bool = True

    def __call__(self, weights, row):
        family, m = FAMILIES[self.family], None
        for i in range(self.layers):
            mean, variance = weights[f"w{i}"]
            if i == 0:
                m = family.linear_of_numbers(row["x"], mean, variance)
            else:
                m = family.relu(m)
                if self.bias:
                    m = family.concatenate([m, family.constant(jnp.ones(1, mean.dtype))])
                m = family.linear(m, mean, variance)
            m = family.scale(m, 1 / math.sqrt(mean.shape[1]))
        return type(m)(*(a[..., 0] for a in m))


WITH_BIAS, WITHOUT = Network("gaussian", 2), Network("spike-slab", 2, bias=False)
ROWS, EPOCHS = 30, 2


def problem(sizes=(3, 5, 1), rows: int = ROWS, bias: bool = True, seed: int = 0):
    """Start means by layer, ``x`` with its column of ones, ``y``."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, sizes[0]))
    y = np.sin(x.sum(1)) + 0.1 * rng.normal(size=rows)
    means = [
        rng.normal(size=(b, a + bias)) / math.sqrt(a + bias)
        for a, b in zip(sizes[:-1], sizes[1:], strict=True)
    ]
    return means, np.concatenate([x, np.ones((rows, 1))], 1) if bias else x, (y - y.mean()) / y.std()


def start(means, noise=(6.0, 6.0), dtype=np.float64, loc=0.0, factor=1.0):
    named = {f"w{i}": m for i, m in enumerate(means)}
    links = {site: ("lambda", loc, factor) for site in named}
    return compiled.initial_state(named, {}, noise, {"lambda": (6.0, 6.0)}, links, dtype)


def order_of(rows: int, epochs: int = 1, seed: int = 3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(rows) for _ in range(epochs)])


def leaves(state) -> list[np.ndarray]:
    return [np.asarray(a) for a in jax.tree.leaves(state)]


def assert_same(a, b, rtol=1e-9, atol=1e-11) -> None:
    for x, y in zip(leaves(a), leaves(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=rtol, atol=atol)


@pytest.mark.parametrize("sizes", [(3, 5, 1), pytest.param((2, 4, 4, 1), marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("family", "bias"),
    [("gaussian", True), *(pytest.param(family, False, marks=pytest.mark.slow) for family in FAMILIES)],
)
def test_equals_the_printed_algorithm(family, bias, sizes):
    means, x, y = problem(sizes, bias=bias)
    orders = order_of(len(y), EPOCHS)
    state, links = start(means)
    state = compiled.run_epochs(Network(family, len(means), bias), links, state, {"x": x}, y, orders)
    printed = Published(means, family, bias)
    for order in orders:
        printed.epoch(x[:, : sizes[0]], y, order)
    for i in range(len(means)):
        mean, variance = state.weights[f"w{i}"]
        np.testing.assert_allclose(np.asarray(mean), printed.means[i], rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(np.asarray(variance), printed.variances[i], rtol=1e-8)
        site = state.priors[f"w{i}"].site
        np.testing.assert_allclose(np.asarray(site.precision), printed.site_precisions[i], rtol=1e-8)
        np.testing.assert_allclose(np.asarray(site.concentration), printed.site_shapes[i], atol=1e-8)
        np.testing.assert_allclose(np.asarray(site.rate), -printed.site_rates[i], atol=1e-8)
    np.testing.assert_allclose([float(v) for v in state.noise], printed.noise, rtol=1e-9)
    np.testing.assert_allclose([float(v) for v in state.precisions["lambda"]], printed.prior, rtol=1e-9)
    assert [int(n) for n in state.refused] == [0, 0, 0]


def test_epochs_are_passes_and_sweeps():
    means, x, y = problem()
    orders = order_of(len(y), EPOCHS)
    state, links = start(means)
    together = compiled.run_epochs(WITH_BIAS, links, state, {"x": x}, y, orders)
    for order in orders:
        state = compiled.refine(links, compiled.run_epoch(WITH_BIAS, state, {"x": x}, y, order))
    assert_same(together, state)


@pytest.mark.slow
@pytest.mark.parametrize("bias", [True, False])
def test_spike_slab_equals_gaussian_with_a_bias_only(bias):
    means, x, y = problem(rows=60, bias=bias)
    results = []
    for family in ("gaussian", "spike-slab"):
        state, links = start(means)
        results.append(
            compiled.run_epochs(Network(family, 2, bias), links, state, {"x": x}, y, order_of(60, 3))
        )
    gap = max(np.abs(a - b).max() for a, b in zip(*map(leaves, results), strict=True))
    assert gap < 1e-10 if bias else gap > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gaussian", "spike-slab"])
def test_trials_together_equal_trials_alone(family):
    network = Network(family, 2, bias=False)
    alone, parts = [], []
    for seed in range(3):
        means, x, y = problem(bias=False, seed=seed)
        state, links = start(means)
        arguments = (state, {"x": x}, y, order_of(len(y), EPOCHS, seed))
        parts.append(arguments)
        alone.append(compiled.run_epochs(network, links, *arguments))
    stacked = jax.tree.map(lambda *a: np.stack([np.asarray(b) for b in a]), *parts)
    together = compiled.run_epochs(network, links, *stacked, trials=True)
    assert_same(together, jax.tree.map(lambda *a: np.stack([np.asarray(b) for b in a]), *alone))


@pytest.mark.slow
def test_minibatches_of_one_are_single_points():
    means, x, y = problem()
    order = order_of(len(y))[0]
    state, _ = start(means)
    single = compiled.run_epoch(WITH_BIAS, state, {"x": x}, y, order)
    padded = np.stack([order, np.full_like(order, -1)], 1)
    assert_same(single, compiled.run_minibatches(WITH_BIAS, state, {"x": x}, y, padded))


@pytest.mark.slow
def test_epochs_of_minibatches_of_one_are_epochs_of_single_points():
    means, x, y = problem()
    order = order_of(len(y))[0]
    state, links = start(means)
    single = compiled.run_epoch(WITH_BIAS, state, {"x": x}, y, order)
    assert_same(single, compiled.run_minibatches(WITH_BIAS, state, {"x": x}, y, order[:, None]))
    assert_same(
        compiled.run_epochs(WITH_BIAS, links, state, {"x": x}, y, order[None, :, None]),
        compiled.run_epochs(WITH_BIAS, links, state, {"x": x}, y, order[None]),
    )


@pytest.mark.slow
def test_a_minibatch_does_not_depend_on_its_order():
    means, x, y = problem()
    state, _ = start(means)
    batches = np.stack([order_of(len(y), seed=seed)[0] for seed in (3, 4)], 1)
    run = lambda o: compiled.run_minibatches(WITH_BIAS, state, {"x": x}, y, o)  # noqa: E731
    assert_same(run(batches), run(batches[:, ::-1]))


@pytest.mark.slow
def test_a_minibatch_of_spikes_and_slabs_does_not_depend_on_its_order():
    means, x, y = problem()
    state, _ = start(means)
    batches = order_of(len(y))[0].reshape(5, 6)
    run = lambda o: compiled.run_minibatches(Network("spike-slab", 2), state, {"x": x}, y, o)  # noqa: E731
    assert_same(run(batches), run(batches[:, ::-1]))


@pytest.mark.slow
@pytest.mark.parametrize(("network", "rows"), [(WITHOUT, ROWS), (Network("spike-slab", 2), 60)])
def test_float32_weights_stay_close_and_the_noise_is_float64(network, rows):
    means, x, y = problem(rows=rows, bias=network.bias)
    double, links = start(means)
    single, _ = start(means, dtype=np.float32)
    args = (y, order_of(rows, EPOCHS))
    double = compiled.run_epochs(network, links, double, {"x": x}, *args)
    single = compiled.run_epochs(network, links, single, {"x": x.astype(np.float32)}, *args)
    assert {a.dtype for a in jax.tree.leaves(single.weights)} == {np.dtype(np.float32)}
    assert {a.dtype for a in jax.tree.leaves((single.noise, single.precisions))} == {np.dtype(np.float64)}
    for a, b in zip(jax.tree.leaves(single.weights), jax.tree.leaves(double.weights), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-3, atol=2e-4)
    assert float(single.noise.rate) == pytest.approx(float(double.noise.rate), rel=1e-4)


def linear_start(noise: float, inputs: int):
    means, variances = {"w0": np.full((1, inputs), 0.2)}, {"w0": np.linspace(0.5, 1.5, inputs)[None]}
    return compiled.initial_state(means, variances, noise), means["w0"][0], variances["w0"][0]


def test_one_weight_is_exact_bayesian_regression():
    """A linear model, known noise, one pass: precision and precision-weighted mean simply add up."""
    rng, noise = np.random.default_rng(6), 0.3
    x, y = rng.normal(size=(40, 1)), rng.normal(size=40)
    (state, links), mean, variance = linear_start(noise, 1)
    state = compiled.run_epochs(Network("gaussian", 1), links, state, {"x": x}, y, order_of(40))
    precision = 1 / variance + (x**2).sum() / noise
    assert np.asarray(state.weights["w0"].variance)[0] == pytest.approx(1 / precision, rel=1e-12)
    right = (mean / variance + (x[:, 0] * y).sum() / noise) / precision
    assert np.asarray(state.weights["w0"].mean)[0] == pytest.approx(right, rel=1e-12)
    assert isinstance(state.noise, compiled.FixedNoise)
    assert float(state.noise.variance) == noise


def test_several_weights_are_recursive_regression_projected_to_independent_normals():
    rng, noise, inputs = np.random.default_rng(6), 0.3, 3
    x, y = rng.normal(size=(25, inputs)), rng.normal(size=25)
    (state, _), mean, variance = linear_start(noise, inputs)
    order = order_of(25)[0]
    state = compiled.run_epoch(Network("gaussian", 1), state, {"x": x}, y, order)
    for n in order:
        row = x[n] / math.sqrt(inputs)
        covariance = np.diag(variance)
        gain = covariance @ row / (row @ covariance @ row + noise)
        mean = mean + gain * (y[n] - row @ mean)
        variance = np.diag(covariance - np.outer(gain, row) @ covariance)  # the projection
    np.testing.assert_allclose(np.asarray(state.weights["w0"].mean)[0], mean, rtol=1e-11)
    np.testing.assert_allclose(np.asarray(state.weights["w0"].variance)[0], variance, rtol=1e-11)


@pytest.mark.slow
def test_a_prior_that_is_moved_and_scaled_gives_the_moved_and_scaled_posterior():
    """``w = loc + factor u``: the same data through the network of ``u``; the refinement agrees too."""

    @dataclasses.dataclass(frozen=True)
    class Scaled:
        def __call__(self, weights, row):
            mean, variance = weights["w0"]
            family = FAMILIES["gaussian"]
            m = family.linear_of_numbers(row["x"] / 3.0, mean - 0.7, variance)
            return type(m)(*(a[..., 0] for a in m))

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 4)), rng.normal(size=30)
    plain, links = start([np.zeros((1, 4))])
    moved, _ = start([np.full((1, 4), 0.7)], loc=0.7, factor=1.5)
    orders = order_of(30, 3)
    plain = compiled.run_epochs(Network("gaussian", 1), links, plain, {"x": x}, y, orders)
    moved = compiled.run_epochs(Scaled(), links, moved, {"x": 2 * x * 0.5}, y, orders)
    # row scale: 1 / sqrt(4) for u, 1.5 / 3 for w
    np.testing.assert_allclose(
        np.asarray(moved.weights["w0"].mean), 0.7 + 1.5 * np.asarray(plain.weights["w0"].mean), rtol=1e-10
    )
    np.testing.assert_allclose(
        np.asarray(moved.weights["w0"].variance), 2.25 * np.asarray(plain.weights["w0"].variance), rtol=1e-10
    )
    assert_same(moved.precisions, plain.precisions)


@pytest.mark.slow
def test_groups_of_weights_have_their_own_precision():
    means, _, _ = problem()
    named = {f"w{i}": m for i, m in enumerate(means)}
    precisions = {"first": (6.0, 6.0), "second": (4.0, 3.0)}
    links = {"w0": ("first", 0.0, 1.0), "w1": ("second", 0.0, 1.0)}
    state, links = compiled.initial_state(named, {}, (6.0, 6.0), precisions, links)
    narrowed = {
        name: compiled.Moments(m.mean, 0.3 * np.asarray(m.variance)) for name, m in state.weights.items()
    }
    swept = state._replace(weights=narrowed)  # as data would
    both = compiled.refine(links, swept)
    one = compiled.refine(links[:1], swept)
    assert_same(both.precisions["first"], one.precisions["first"])
    assert_same(both.weights["w0"], one.weights["w0"])
    assert float(one.precisions["second"].rate) == 3.0
    assert float(both.precisions["second"].rate) != 3.0


@pytest.mark.parametrize("dtype", [pytest.param(np.float64, marks=pytest.mark.slow), np.float32])
def test_weights_that_the_data_have_not_met_are_not_refined(dtype):
    """The cavity is exactly nothing, though the start variance was rounded to float32."""
    means, factor = {"w": np.linspace(-1, 1, 4)}, 0.3
    state, links = compiled.initial_state(
        means, {}, 1.0, {"lambda": (101.0, 1.0)}, {"w": ("lambda", 0.1, factor)}, dtype
    )
    assert_same(compiled.refine(links, state), state, rtol=0, atol=0)


def test_refused_updates_are_counted_and_change_nothing():
    means, x, y = problem()
    y[4] = 1e200  # squares to infinity
    state, _ = start(means)
    order = np.full(ROWS, 4)
    after = compiled.run_epoch(WITH_BIAS, state, {"x": x}, y, order)
    assert int(after.refused.weights) == ROWS * sum(m.size for m in means)
    assert int(after.refused.noise) == ROWS
    assert_same(after._replace(refused=state.refused), state, rtol=0, atol=0)
    padded = np.stack([order, np.full_like(order, -1)], 1)
    batch = compiled.run_minibatches(WITH_BIAS, state, {"x": x}, y, padded)
    assert_same(batch._replace(refused=state.refused), state, rtol=0, atol=0)
    assert int(batch.refused.noise) == ROWS
    assert int(batch.refused.weights) == ROWS * sum(m.size for m in means)


def test_an_empty_place_of_a_minibatch_refuses_nothing():
    """It is filled with the first row, whatever that is."""
    means, x, y = problem()
    y[0] = 1e200
    state, _ = start(means)
    order = np.full(ROWS, 4)
    single = compiled.run_epoch(WITH_BIAS, state, {"x": x}, y, order)
    assert [int(n) for n in single.refused] == [0, 0, 0]
    padded = np.stack([order, np.full_like(order, -1)], 1)
    assert_same(single, compiled.run_minibatches(WITH_BIAS, state, {"x": x}, y, padded))


def test_a_minibatch_whose_sum_is_no_gamma_leaves_the_noise_alone():
    """Each row alone widens the Gamma and leaves it proper; all together would not."""
    rows, x = 50, np.ones((50, 1))
    state, _ = compiled.initial_state({"w0": np.zeros((1, 1))}, {"w0": np.full((1, 1), 0.5)}, (6.0, 6.0))
    run = lambda order: compiled.run_minibatches(  # noqa: E731
        Network("gaussian", 1), state, {"x": x}, np.full(rows, 10.0), order
    )
    alone, together = run(np.where(np.arange(rows) > 0, -1, 0)[None]), run(np.arange(rows)[None])
    assert int(alone.refused.noise) == 0
    assert rows * (float(alone.noise.concentration) - 6) < -5
    assert int(together.refused.noise) == rows
    assert_same(together.noise, state.noise, rtol=0, atol=0)


def test_a_prior_factor_that_is_not_finite_is_refused_and_counted():
    state, links = start([np.zeros((1, 2))])
    far = compiled.Moments(np.array([[1e160, 0.5]]), np.full((1, 2), 0.1))  # squares to infinity
    state = state._replace(weights={"w0": far})
    after = compiled.refine(links, state)
    assert int(after.refused.prior) == 1
    assert (np.asarray(after.weights["w0"].mean) != far.mean).tolist() == [[False, True]]
    assert all(np.isfinite(a).all() for a in leaves(after))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_no_run_is_lost(dtype):
    """Small bias-free networks of three layers, far-off targets: where the printed formulas fail first."""
    for seed in range(4):
        means, x, y = problem((4, 5, 5, 5, 1), rows=80, bias=False, seed=seed)
        y[::17] *= 30
        state, links = start(means, dtype=dtype)
        network = Network("spike-slab", 4, bias=False)
        state = compiled.run_epochs(network, links, state, {"x": x.astype(dtype)}, y, order_of(80, 10, seed))
        assert all(np.isfinite(a).all() for a in leaves(state))
        assert all(np.asarray(w.variance).min() > 0 for w in state.weights.values())


def test_a_precision_without_expected_variance_is_refused():
    with pytest.raises(ValueError, match=r"lambda.*concentration above 1"):
        compiled.initial_state(
            {"w": np.zeros(2)}, {}, 1.0, {"lambda": (1.0, 1.0)}, {"w": ("lambda", 0.0, 1.0)}
        )


def test_nothing_global_changes():
    assert not jax.config.jax_enable_x64
    means, x, y = problem()
    state, links = start(means)
    compiled.run_epochs(WITH_BIAS, links, state, {"x": x}, y, order_of(len(y), EPOCHS))
    assert not jax.config.jax_enable_x64


def test_colouring_undoes_whitening():
    """Of weights around a prior mean that is not zero."""
    with double_precision():
        prior = compiled.Prior(jnp.array([2.0]), jnp.array([0.5]), None)
        weights = compiled.Moments(jnp.array([3.0]), jnp.array([0.75]))
        old, changed = compiled.Moments(jnp.array([0.0]), jnp.array([9.0])), jnp.array([True])
        found = compiled._colour(compiled._whiten(weights, prior), prior, old, changed)
    np.testing.assert_allclose([*found.mean, *found.variance], [3.0, 0.75], rtol=1e-12)
