"""The public class: exact where assumed density filtering is exact, equal to its definition elsewhere.

Compilation is nearly all of the time.  The quick tests share the programs of ``fitted``: three networks of
``SHARED``, 40 rows, three epochs; the same laws for the others are slow tests.
"""

import functools
import math
from dataclasses import replace

import jax
import numpy as np
import pyro
import pytest
import torch
import torch.nn.functional as F
from pyro import distributions as dist
from scipy import integrate, stats
from torch.distributions import Categorical, MixtureSameFamily, Normal

from guides import ProbabilisticBackpropagation, SpikeSlab, UnsupportedSiteError
from guides.message_passing import compiled, fit_together, updates
from guides.message_passing.messages import FAMILIES
from guides.message_passing.program import propagate
from guides.message_passing.recorder import analyse, record
from guides.message_passing.schedule import start_means
from guides.posterior.draws import Posterior
from tests.guides.message_passing.networks import INPUTS, NETWORKS, data, gamma, number, observe, pbp, weights

both_families = pytest.mark.parametrize("messages", ["gaussian", "spike-slab"])
one_family = pytest.mark.parametrize(
    "messages", ["gaussian", pytest.param("spike-slab", marks=pytest.mark.slow)]
)
SHARED = [("pbp", "gaussian"), ("pbp without bias", "spike-slab"), ("two_precisions", "gaussian")]
NOISE = 0.5


def cases(quick, others):
    """Parameters, each a tuple or a single one, for the quick and for the slow tests."""
    tuples = (case if isinstance(case, tuple) else (case,) for case in others)
    return [*quick, *(pytest.param(*case, marks=pytest.mark.slow) for case in tuples)]


def line(loc=0.3, scale=2.0):
    """One weight, known noise."""

    def model(x, y=None):
        observe(x * pyro.sample("w", dist.Normal(number(loc), number(scale))), y, NOISE)

    return model


def regression(x, y=None):
    observe(x @ weights("w", x.shape[1], scale=2.0, loc=0.3), y, NOISE)


@functools.cache
def fitted(name="pbp", messages="gaussian", epochs=3):
    return ProbabilisticBackpropagation(NETWORKS[name], messages).fit(*data(), epochs=epochs)


def close(a, b, tolerance=1e-10):
    a, b = (np.asarray(v, dtype=float) for v in (a, b))
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def same_fit(a, b, tolerance=0.0):
    for name in a.sites:
        close(a.sites[name].mean, b.sites[name].mean, tolerance)
        close(a.sites[name].variance, b.sites[name].variance, tolerance)
    for name in a.precisions:
        close(a.precisions[name], b.precisions[name], tolerance)
    close(a.noise_variance, b.noise_variance, tolerance)


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


def tilted_moments(evidence, mean, variance, step=2e-4):
    """Moments after one row, from the derivatives of ``log Z`` by finite differences."""

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


# ----------------------------------------------------------------------- compiled against interpreted


def interpreted(model, messages, x, y, order, means):
    """The same algorithm, one torch operation after another: the program of the recorder, the updates."""
    recording = analyse(model, x, y)
    program, family = recording.program, FAMILIES[messages]
    rows = {name: torch.from_numpy(value) for name, value in recording.rows.items()}
    priors, gammas = recording.weights, recording.gammas
    tensor = functools.partial(torch.tensor, dtype=torch.float64)
    precision = {n: (tensor(g.concentration), tensor(g.rate)) for n, g in gammas.items()}
    if recording.noise_precision:
        a, b = precision.pop(recording.noise_precision)
        noise = a, b * recording.noise_scale**2
    moments, sites = {}, {}
    for name, prior in priors.items():
        variance = torch.from_numpy(prior.factor**2)
        if prior.precision:
            expected = updates.expected_variance(*precision[prior.precision])
            variance = variance * expected
            zeros = torch.zeros(prior.shape).double()
            sites[name] = updates.PriorSite(zeros + 1 / expected, zeros.clone(), zeros.clone())
        moments[name] = (torch.as_tensor(means[name]).double(), variance)
    for epoch in order:
        for i in epoch:
            leaves = {n: tuple(t.clone().requires_grad_() for t in pair) for n, pair in moments.items()}
            message = propagate(program, family, leaves, {n: value[i] for n, value in rows.items()})
            if recording.noise_precision:
                variances = [updates.expected_variance(*noise, k) for k in range(3)]
            else:
                variances = [tensor(recording.noise_scale**2)]
            log_z = [family.log_evidence(message, y[i], v) for v in variances]
            flat = [t for pair in leaves.values() for t in pair]
            gradients = iter(torch.autograd.grad(log_z[0], flat))
            moments = {
                n: updates.adf_update(*pair, next(gradients), next(gradients))[:2]
                for n, pair in moments.items()
            }
            if recording.noise_precision:
                noise = updates.gamma_update(*(z.detach() for z in log_z), *noise)[:2]
        for name in sites:
            refine(name, priors[name], moments, sites, precision)
    return moments, precision, noise if recording.noise_precision else None


def refine(name, prior, moments, sites, precision):
    """One weight after another."""
    mean, variance = (t.clone() for t in moments[name])
    for position in np.ndindex(*prior.shape):
        loc, factor = float(prior.loc[position]), float(prior.factor[position])
        site = updates.PriorSite(*(part[position] for part in sites[name]))
        without = updates.cavity(
            (mean[position] - loc) / factor, variance[position] / factor**2, site.precision
        )
        site, a, b, refined, _ = updates.refine_precision(*without, site, *precision[prior.precision])
        precision[prior.precision] = a, b
        for part, value in zip(sites[name], site, strict=True):
            part[position] = value
        if refined:
            both = 1 / (1 / without.variance + site.precision)
            mean[position] = loc + factor * both * without.mean / without.variance
            variance[position] = factor**2 * both
    moments[name] = mean, variance


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "messages"),
    cases(
        [("two_precisions", "gaussian")],
        [
            ("pbp without bias", "spike-slab"),
            ("pbp", "gaussian"),
            ("pbp", "spike-slab"),
            ("two_precisions", "spike-slab"),
            ("residual", "spike-slab"),
            ("pooled", "gaussian"),
        ],
    ),
)
def test_compiled_and_interpreted_runs_agree(name, messages):
    x, y = data()
    rng = np.random.default_rng(1)
    order = np.stack([rng.permutation(40) for _ in range(3)])
    model = NETWORKS[name]
    means = {n: 0.5 * rng.standard_normal(p.shape) for n, p in record(model, x, y).weights.items()}
    guide = ProbabilisticBackpropagation(model, messages)
    guide.fit(x, y, epochs=3, order=order, init_means=means)
    moments, precisions, noise = interpreted(model, messages, x, y, order, means)
    for site, pair in moments.items():
        close(guide.sites[site].mean, pair[0], 1e-9)
        close(guide.sites[site].variance, pair[1], 1e-9)
    for site, pair in precisions.items():
        close(guide.precisions[site], [float(p) for p in pair], 1e-9)
    if noise is not None:
        close(guide.noise_variance, float(noise[1] / (noise[0] - 1)), 1e-9)
    assert guide.refused == {"weights": 0, "noise": 0, "prior": 0}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pbp", "pbp deep", "bnn"])
def test_with_bias_spike_and_slab_makes_no_difference(name):
    same_fit(fitted(name), fitted(name, "spike-slab"), 1e-10)


@pytest.mark.slow
def test_without_bias_spike_and_slab_makes_a_difference():
    name = "pbp without bias"
    assert abs(fitted(name).noise_variance - fitted(name, "spike-slab").noise_variance) > 1e-4


@pytest.mark.slow
def test_a_network_written_in_two_ways_is_one_network():
    """Padding and dividing by the root, or bias sites and priors that shrink with the inputs."""

    def other(x, y=None):
        scale, w = gamma("lam").rsqrt(), {}
        for i, (out, fan_in) in enumerate(((6, INPUTS), (1, 6)), start=1):
            part = scale / math.sqrt(fan_in + 1)
            w[i] = weights(f"w{i}", fan_in, out, scale=part), weights(f"b{i}", out, scale=part)
        hidden = (x @ w[1][0] + w[1][1]).relu()
        observe((hidden @ w[2][0] + w[2][1]).squeeze(-1), y, 1 / torch.sqrt(gamma("gamma")))

    x, y = data()
    order = np.stack([np.random.default_rng(i).permutation(40) for i in range(3)])
    rng = np.random.default_rng(0)
    start = {"w1": rng.standard_normal((6, 4)), "w2": rng.standard_normal((1, 7))}
    first = ProbabilisticBackpropagation(pbp((6,))).fit(x, y, epochs=3, order=order, init_means=start)
    split = {}
    for i in (1, 2):
        matrix = start[f"w{i}"] / math.sqrt(start[f"w{i}"].shape[1])
        split |= {f"w{i}": matrix[:, :-1].T, f"b{i}": matrix[:, -1]}
    second = ProbabilisticBackpropagation(other).fit(x, y, epochs=3, order=order, init_means=split)
    new = data(9, seed=8)[0]
    # the sweep over the prior visits the same weights in another order
    close(first.predictive(new).mean, second.predictive(new).mean, 0.05)
    close(first.predictive(new).stddev, second.predictive(new).stddev, 0.05)
    first, second = ProbabilisticBackpropagation(pbp((6,))), ProbabilisticBackpropagation(other)
    first.partial_fit(x, y, init_means=start), second.partial_fit(x, y, init_means=split)
    close(first.predictive(new).mean, second.predictive(new).mean, 1e-9)
    close(first.noise_variance, second.noise_variance, 1e-9)


# ------------------------------------------------------------------------------- fits that must be the same


@pytest.mark.slow
def test_seeds():
    x, y = data()

    def fit(seed):
        return ProbabilisticBackpropagation(NETWORKS["pbp"]).fit(x, y, epochs=3, seed=seed)

    same_fit(fit(1), fit(1))
    assert not torch.equal(fit(1).sites["w1"].mean, fit(2).sites["w1"].mean)
    guide = fit(1)
    same_fit(guide.fit(x, y, epochs=3, seed=1), fit(1))  # a second fit starts afresh


def test_order_and_start_are_those_of_the_seed():
    x, y = data()
    rng = np.random.default_rng(3)
    start = {"w1": rng.standard_normal((4, 4)) / 2, "w2": rng.standard_normal((1, 5)) / math.sqrt(5)}
    order = np.stack([rng.permutation(40) for _ in range(3)])
    by_seed = ProbabilisticBackpropagation(NETWORKS["pbp"]).fit(x, y, epochs=3, seed=3)
    given = ProbabilisticBackpropagation(NETWORKS["pbp"])
    given.fit(x, y, epochs=3, seed=99, order=order, init_means={k: torch.tensor(v) for k, v in start.items()})
    same_fit(by_seed, given)


@pytest.mark.parametrize(
    ("name", "messages"),
    cases([("one_vector", "gaussian")], [("pbp without bias", "spike-slab"), ("two_precisions", "gaussian")]),
)
def test_rows_can_come_in_portions(name, messages):
    x, y = data()
    whole = ProbabilisticBackpropagation(NETWORKS[name], messages).partial_fit(x, y, seed=4)
    parts = ProbabilisticBackpropagation(NETWORKS[name], messages)
    for start, stop in ((0, 18), (18, 36), (36, 37), (37, 38), (38, 39), (39, 40)):  # one row too
        parts.partial_fit(x[start:stop], y[start:stop], seed=4)
    same_fit(whole, parts)
    assert (parts.epochs, parts.rows_seen, whole.rows_seen) == (6, 40, 40)
    if name == "one_vector":  # no prior to refine, so that a fit of one epoch is the same
        fit = ProbabilisticBackpropagation(NETWORKS[name], messages).fit(
            x, y, epochs=1, order=np.arange(40)[None]
        )
        same_fit(whole, fit)


def test_rows_go_on_after_a_fit():
    x, y = data()
    guide = ProbabilisticBackpropagation(NETWORKS["one_vector"]).fit(x[:30], y[:30], epochs=1)
    guide.partial_fit(x[30:], y[30:])
    precision = 1 / 4 + (x**2).sum(0) / NOISE**2  # each row has pulled on every weight at most like this
    assert (guide.sites["w"].variance > 1 / precision).all()
    assert guide.rows_seen == 40
    with pytest.raises(ValueError, match="started"):
        guide.partial_fit(x, y, init_means={"w": np.zeros(3)})


def test_a_model_whose_network_depends_on_the_rows_cannot_go_on():
    def model(x, y=None):
        observe(F.relu((x - x.mean(0)) @ weights("w", INPUTS, 4)) * x.std() @ weights("v", 4), y)

    x, y = data()
    guide = ProbabilisticBackpropagation(model).partial_fit(x[:20], y[:20])
    with pytest.raises(ValueError, match="something else with these rows"):
        guide.partial_fit(x[20:], y[20:])


def test_start_is_in_units_of_the_prior():
    """``loc + factor N(0, 1 / inputs)``: it makes no difference where a network divides."""
    recording = analyse(NETWORKS["two_precisions"], *data())
    start, noise = start_means(recording, np.random.default_rng(3), None), np.random.default_rng(3)
    close(start["w"], noise.standard_normal((INPUTS, 4)) / math.sqrt(INPUTS))
    close(start["v"], 0.1 + 0.5 * noise.standard_normal(4) / math.sqrt(4))
    assert start_means(analyse(regression, *data()), noise, None)["w"].tolist() == [0.3] * INPUTS


@pytest.mark.slow
@both_families
def test_batches(messages):
    """Slower to learn and near the sequential result; padding of the last batch counts nothing."""
    x, y = data(41)
    one = ProbabilisticBackpropagation(regression, messages).fit(x, y, epochs=1)
    for size in (2, 100):
        many = ProbabilisticBackpropagation(regression, messages).fit(x, y, epochs=1, batch_size=size)
        close(many.predictive(x).mean, one.predictive(x).mean, 0.5)


@pytest.mark.slow
@both_families
def test_batches_and_the_noise(messages):
    noisy = ProbabilisticBackpropagation(NETWORKS["pbp"], messages).fit(*data(), epochs=3, batch_size=3)
    before = fitted("pbp", messages).precisions["gamma"].concentration
    close(noisy.precisions["gamma"].concentration, before, 0.15)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "messages"),
    cases([("two_precisions", "gaussian")], [("pbp without bias", "spike-slab"), ("leaky", "gaussian")]),
)
def test_fits_together_are_the_same_fits(name, messages):
    sets = [data(seed=seed) for seed in range(3)]
    alone = [
        ProbabilisticBackpropagation(NETWORKS[name], messages).fit(x, y, epochs=3, seed=seed)
        for seed, (x, y) in enumerate(sets)
    ]
    together = [ProbabilisticBackpropagation(NETWORKS[name], messages) for _ in sets]
    seen = []
    returned = fit_together(together, sets, epochs=3, seeds=range(3), on_epoch=seen.append)
    assert all(a is b for a, b in zip(returned, together, strict=True))
    assert seen == [1, 2, 3]
    for a, b in zip(alone, together, strict=True):
        same_fit(a, b, 1e-9)
        assert a.posterior(1).info["seed"] == b.posterior(1).info["seed"]
        assert (a.epochs, a.rows_seen, a.refused) == (b.epochs, b.rows_seen, b.refused)
        close(a.predictive(sets[0][0]).mean, b.predictive(sets[0][0]).mean, 1e-9)
    if name == "leaky":
        at_once = [ProbabilisticBackpropagation(NETWORKS[name], messages) for _ in sets]
        fit_together(at_once, sets, epochs=3, seeds=range(3))
        for a, b in zip(together, at_once, strict=True):
            same_fit(a, b, 1e-12)


def test_fits_together_must_match():
    x, y = data()

    def guides(*models):
        return [ProbabilisticBackpropagation(model) for model in models]

    with pytest.raises(ValueError, match="structure"):
        fit_together(guides(pbp(), pbp((5,))), [(x, y)] * 2, seeds=[0, 1])
    with pytest.raises(ValueError, match="length"):
        fit_together(guides(pbp(), pbp()), [(x, y), (x[1:], y[1:])], seeds=[0, 1])
    with pytest.raises(ValueError, match="noise"):
        fit_together(guides(pbp(), pbp(noise_scale=1.0)), [(x, y)] * 2, seeds=[0, 1])
    with pytest.raises(ValueError, match="one guide"):
        fit_together(guides(pbp(), pbp()), [(x, y)] * 2, seeds=[0])


@pytest.mark.slow
def test_many_rows_run_epoch_by_epoch_with_the_same_result(monkeypatch):
    x, y = data()
    reference = fitted(epochs=3)
    monkeypatch.setattr("guides.message_passing.job.ROWS_IN_ONE_CALL", 10)
    same_fit(ProbabilisticBackpropagation(NETWORKS["pbp"]).fit(x, y, epochs=3), reference, 1e-12)


# ------------------------------------------------------------------------------------------ predictions


def test_gaussian_predictive_is_the_message():
    guide, x = fitted(), data(9, seed=7)[0]
    recording = record(NETWORKS["pbp"], x)
    rows = {name: torch.from_numpy(value) for name, value in recording.rows.items()}
    message = propagate(recording.program, FAMILIES["gaussian"], guide.sites, rows)
    law, function = guide.predictive(x), guide.predictive(x, noise=False)
    assert isinstance(law, Normal)
    assert law.batch_shape == (9,)
    close(law.mean, message.mean)
    close(law.variance, message.variance + guide.noise_variance)
    close(function.variance, message.variance)
    assert all(torch.equal(s, torch.ones(9).double()) for s in guide.slab_probabilities(x))
    assert len(guide.slab_probabilities(x)) == 2


@pytest.mark.slow
def test_spike_and_slab_predictive_is_the_mixture():
    guide, (x, y) = fitted("pbp without bias", "spike-slab"), data(9, seed=7)
    recording = record(NETWORKS["pbp without bias"], x)
    rows = {name: torch.from_numpy(value) for name, value in recording.rows.items()}
    message = propagate(recording.program, FAMILIES["spike-slab"], guide.sites, rows)
    slab = message.log_slab.exp().expand(9)
    assert slab.min() < 0.999
    law, function = guide.predictive(x), guide.predictive(x, noise=False)
    assert isinstance(law, MixtureSameFamily)
    assert isinstance(function, SpikeSlab)
    s = guide.noise_variance
    density = (1 - slab) * Normal(number(0.0), number(s).sqrt()).log_prob(y).exp()
    density = density + slab * Normal(message.mean, (message.variance + s).sqrt()).log_prob(y).exp()
    close(law.log_prob(y), density.log())
    close(law.mean, slab * message.mean)
    close(function.mean, law.mean)
    close(function.variance + s, law.variance)
    close(guide.slab_probabilities(x)[-1], slab)
    close(guide.slab_probabilities(x)[0], torch.ones(9))
    assert len(guide.slab_probabilities(x)) == 3


@pytest.mark.parametrize("messages", cases(["spike-slab"], ["gaussian"]))
def test_nothing_known_at_zero(messages):
    """Without a bias and at the origin the output is a known number; no law breaks down there."""
    x = torch.zeros(2, INPUTS).double()
    guide = fitted("pbp without bias", messages)
    close(guide.predictive(x).mean, [0.0, 0.0])
    assert torch.isfinite(guide.predictive(x).log_prob(torch.zeros(2).double())).all()
    close(guide.predictive(x, noise=False).mean, [0.0, 0.0])


LEARNING = ("pbp", "constant")


@pytest.mark.parametrize("name", cases(LEARNING, [name for name in NETWORKS if name not in LEARNING]))
def test_every_network_learns(name):
    """Finite, no update of the noise refused, and better than the mean where there is something to learn."""
    x, y = data()
    guide = fitted(name)
    law = guide.predictive(x)
    assert torch.isfinite(law.log_prob(y)).all()
    assert guide.refused["noise"] == guide.refused["prior"] == 0
    if name not in ("constant", "scaled"):
        assert ((law.mean - y) ** 2).mean() < 0.7 * y.var()
    close(guide.posterior(400).predictive(x[:7]).mean, law.mean[:7], 0.5)


@pytest.mark.slow
def test_known_function_is_learned():
    """A sanity check on the size of errors: noise 0.2, so 0.04 is the best there is."""
    x, y = data(400)
    guide = ProbabilisticBackpropagation(pbp((20,))).fit(x, y, epochs=20)
    new_x, new_y = data(200, seed=9)
    law = guide.predictive(new_x)
    assert ((law.mean - new_y) ** 2).mean() < 0.06
    assert 0.03 < guide.noise_variance < 0.06
    inside = ((new_y - law.mean).abs() < 1.645 * law.stddev).double().mean()
    assert 0.82 < inside < 0.97


# ------------------------------------------------------------------------------------------------ as draws


def test_draws_have_the_moments_of_the_sites():
    guide = fitted("two_precisions")
    n = 20_000
    draws = guide.draws(n, seed=3)
    assert draws.keys() == {"w", "v", "a", "b", "noise"}
    for name, (mean, variance) in guide.sites.items():
        error = (draws[name].mean(0) - mean) / (variance / n).sqrt()
        assert error.abs().max() < 5
        spread = draws[name].var(0) / variance
        assert (spread - 1).abs().max() < 5 * math.sqrt(2 / n)
    for name, (a, b) in guide.precisions.items():
        assert abs(float(draws[name].mean()) - a / b) < 5 * math.sqrt(a / n) / b
        assert abs(float(draws[name].var()) / (a / b**2) - 1) < 6 * math.sqrt((2 + 6 / a) / n)
    again, other = guide.draws(5, seed=3), guide.draws(5, seed=4)
    assert all(torch.equal(again[k], guide.draws(5, seed=3)[k]) for k in again)
    assert not torch.equal(again["w"], other["w"])


def test_log_prob_is_the_density_of_the_draws():
    guide = fitted("two_precisions")
    draws = guide.draws(6)
    expected = 0
    for name, (mean, variance) in guide.sites.items():
        law = stats.norm(mean, variance.sqrt())
        expected = expected + law.logpdf(draws[name]).reshape(6, -1).sum(1)
    for name, (a, b) in guide.precisions.items():
        expected = expected + stats.gamma(a, scale=1 / b).logpdf(draws[name])
    close(guide.log_prob(draws), expected)
    with pytest.raises(ValueError, match="'w' is missing"):
        guide.log_prob({k: v for k, v in draws.items() if k != "w"})


@pytest.mark.parametrize("name", cases(["pbp"], ["needs_y", "modules"]))
def test_posterior_is_one_of_this_package(name, tmp_path):
    guide, (x, y) = fitted(name), data(9, seed=7)
    posterior = guide.posterior(300, seed=2)
    assert isinstance(posterior, Posterior)
    assert len(posterior) == 300
    assert posterior.info["messages"] == "gaussian"
    law = posterior.predictive(x)
    assert torch.isfinite(law.log_prob(y)).all()
    posterior.save(tmp_path / "p.nc", x, observed_data={"y": y})
    loaded = Posterior.load(tmp_path / "p.nc", NETWORKS[name])
    assert all(torch.equal(loaded.sites[k], v) for k, v in posterior.sites.items())
    assert loaded.info["epochs"] == 3
    idata = guide.to_arviz(x, y, n=20)
    assert idata["posterior"].sizes["draw"] == 20
    assert set(guide.to_arviz(n=20)["posterior"].data_vars) == set(guide.draws(1))
    assert "log_likelihood" in idata.groups() or "log_likelihood" in str(idata.groups())


def test_precision_that_nothing_uses_keeps_its_prior():
    def model(x, y=None):
        gamma("idle", 3.0, 2.0)
        observe(x @ weights("w", INPUTS), y)

    guide = ProbabilisticBackpropagation(model).fit(*data(), epochs=2)
    assert guide.precisions == {"idle": (3.0, 2.0)}
    assert guide.draws(3)["idle"].shape == (3,)


# ------------------------------------------------------------------------------------------------- on disk


@pytest.mark.parametrize(
    ("name", "messages"),
    cases([("two_precisions", "gaussian")], [("pbp without bias", "spike-slab"), ("scaled", "gaussian")]),
)
def test_saved_and_loaded(name, messages, tmp_path):
    guide, (x, y) = fitted(name, messages), data(9, seed=7)
    guide.save(tmp_path / "guide.safetensors")
    loaded = ProbabilisticBackpropagation.load(tmp_path / "guide.safetensors", NETWORKS[name])
    same_fit(guide, loaded)
    whole, read = (jax.tree.leaves(g._fitted.state) for g in (guide, loaded))
    assert all(np.array_equal(a, b) for a, b in zip(whole, read, strict=True))
    assert (loaded.messages, loaded.dtype, loaded.epochs) == (messages, torch.float64, 3)
    assert (loaded.seconds, loaded.refused, loaded.rows_seen) == (guide.seconds, guide.refused, 120)
    assert torch.equal(guide.predictive(x).mean, loaded.predictive(x).mean)
    assert all(torch.equal(v, loaded.draws(3)[k]) for k, v in guide.draws(3).items())
    again = ProbabilisticBackpropagation(NETWORKS[name], messages).fit(*data(), epochs=3).partial_fit(x, y)
    same_fit(loaded.partial_fit(x, y), again)
    assert list(tmp_path.iterdir()) == [tmp_path / "guide.safetensors"]


def test_files_that_are_none_of_ours(tmp_path):
    path = tmp_path / "guide.safetensors"
    fitted().save(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="truncated or no saved"):
        ProbabilisticBackpropagation.load(path, NETWORKS["pbp"])
    path.write_text("hello")
    with pytest.raises(ValueError, match="truncated or no saved"):
        ProbabilisticBackpropagation.load(path, NETWORKS["pbp"])


def test_seeds_from_numpy_can_be_saved(tmp_path):
    guide = ProbabilisticBackpropagation(line()).fit(X[:, 0], Y, epochs=1, seed=np.int64(3))
    guide.save(tmp_path / "g")
    assert ProbabilisticBackpropagation.load(tmp_path / "g", line()).posterior(1).info["seed"] == 3


def test_another_model_does_not_fit_a_saved_fit(tmp_path):
    fitted().save(tmp_path / "guide.safetensors")
    loaded = ProbabilisticBackpropagation.load(tmp_path / "guide.safetensors", pbp((5,)))
    with pytest.raises(ValueError, match="other weight sites"):
        loaded.predictive(data()[0])
    with pytest.raises(ValueError, match="something else"):
        loaded.partial_fit(*data())


# ---------------------------------------------------------------------------------------- manners


def test_a_fit_is_silent_and_changes_nothing_global(capfd):
    numpy_state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()
    guide = ProbabilisticBackpropagation(NETWORKS["pbp without bias"], "spike-slab").fit(*data(), epochs=3)
    guide.predictive(data()[0]), guide.draws(3), guide.posterior(3)
    assert torch.equal(torch_state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])
    assert not jax.config.jax_enable_x64
    assert jax.numpy.zeros(1).dtype == jax.numpy.float32
    assert torch.get_default_dtype() == torch.float32
    assert capfd.readouterr() == ("", "")
    assert not pyro.get_param_store().keys()


@pytest.mark.slow
def test_progress_and_interruption():
    """What a progress bar needs; Ctrl-C leaves the state of the last full epoch."""
    x, y = data()
    seen = []

    def stop(epoch, guide):
        seen.append((epoch, guide.epochs, guide.noise_variance))
        if epoch == 2:
            raise KeyboardInterrupt

    guide = ProbabilisticBackpropagation(NETWORKS["pbp"])
    order = np.stack([np.random.default_rng(i).permutation(40) for i in range(5)])
    with pytest.raises(KeyboardInterrupt):
        guide.fit(x, y, epochs=5, order=order, on_epoch=stop)
    two = ProbabilisticBackpropagation(NETWORKS["pbp"])
    two.fit(x, y, epochs=2, order=order[:2], on_epoch=lambda epoch, guide: None)
    same_fit(guide, two)
    assert [s[:2] for s in seen] == [(1, 1), (2, 2)]
    assert seen[1][2] == guide.noise_variance
    guide.predictive(x)


def test_a_refused_fit_leaves_the_old_one():
    x, y = data()
    guide = ProbabilisticBackpropagation(NETWORKS["pbp"]).fit(x, y, epochs=1)
    before = guide.sites["w1"].mean.clone()
    with pytest.raises(ValueError, match="NaN"):
        guide.fit(x, torch.full_like(y, math.nan))
    assert torch.equal(guide.sites["w1"].mean, before)
    guide.sites["w1"].mean.zero_()  # what is handed out is a copy
    assert torch.equal(guide.sites["w1"].mean, before)


@pytest.mark.slow
def test_single_precision():
    """Weights in float32, inputs of any kind; near the result in float64."""
    x, y = data()
    exact = fitted()
    guide = ProbabilisticBackpropagation(NETWORKS["pbp"], dtype=torch.float32).fit(x, y, epochs=3)
    assert guide.sites["w1"].mean.dtype == torch.float32
    close(guide.predictive(x).mean, exact.predictive(x).mean, 1e-3)
    assert guide.draws(2)["w1"].dtype == torch.float64  # as the model has them


@pytest.mark.slow
def test_models_and_data_in_single_precision(tmp_path):
    """The usual dtype of Pyro models; the fit itself is in float64."""

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([INPUTS, 4]).to_event(2))
        scale = pyro.sample("lam", dist.Gamma(6.0, 6.0)).rsqrt()
        v = pyro.sample("v", dist.Normal(0.0, scale).expand([4]).to_event(1))
        scale = pyro.sample("tau", dist.Gamma(6.0, 6.0)).rsqrt()
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(F.relu(x @ w) @ v, scale), obs=y)

    x, y = (t.float() for t in data())
    guide = ProbabilisticBackpropagation(model).fit(x, y, epochs=2)
    assert guide.sites["w"].mean.dtype == torch.float64
    assert guide.predictive(x).mean.dtype == torch.float64
    assert guide.draws(2)["w"].dtype == torch.float32
    guide.posterior(5).predictive(x)
    numbers = ProbabilisticBackpropagation(model).fit(x.numpy(), y.numpy(), epochs=2)
    same_fit(guide, numbers)
    guide.save(tmp_path / "g")
    assert ProbabilisticBackpropagation.load(tmp_path / "g", model).draws(2)["w"].dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "messages"),
    cases([SHARED[1]], [("pbp", "gaussian"), ("pbp", "spike-slab"), ("pbp without bias", "gaussian")]),
)
def test_dull_data(name, messages):
    """A constant target, constant inputs, equal rows: nothing breaks."""
    x, y = data()
    dull = torch.cat([x[:, :2], torch.ones(40, 1).double()], 1)
    for inputs, targets in ((x, torch.ones(40)), (dull, y), (0 * x, y), (x, 1e6 * y)):
        guide = ProbabilisticBackpropagation(NETWORKS[name], messages).fit(inputs, targets, epochs=3)
        assert all(torch.isfinite(part).all() for site in guide.sites.values() for part in site)
        assert math.isfinite(guide.noise_variance)
        assert torch.isfinite(guide.predictive(x).log_prob(targets[0].double())).all()


@pytest.mark.slow
@both_families
@pytest.mark.parametrize("name", ["pbp", "pbp without bias"])
def test_one_row(name, messages):
    x, y = data()
    guide = ProbabilisticBackpropagation(NETWORKS[name], messages).fit(x[:1], y[:1], epochs=3)
    assert all(torch.isfinite(part).all() for site in guide.sites.values() for part in site)
    assert math.isfinite(guide.noise_variance)
    assert torch.isfinite(guide.predictive(x).log_prob(y[0])).all()


X, Y = data()
FIT_ERRORS = {
    "NaN in x": (dict(x=X * math.nan), "x has 120 values that are NaN or infinite, the first in row 0"),
    "infinite y": (dict(y=torch.where(torch.arange(40) == 3, math.inf, Y)), "y has 1 values .* row 3"),
    "shape of y": (dict(y=Y[:, None]), r"y must have shape \[N\], got \(40, 1\)"),
    "rows": (dict(y=Y[1:]), "x has 40 rows and y has 39"),
    "no rows": (dict(x=X[:0], y=Y[:0]), "at least one row"),
    "no epochs": (dict(epochs=0), "epochs and batch_size must be at least 1"),
    "no batch": (dict(batch_size=0), "epochs and batch_size must be at least 1"),
    "order shape": (dict(order=np.zeros((1, 40), int)), r"order must be integers of shape .* = \(2, 40\)"),
    "order dtype": (dict(order=np.zeros((2, 40))), "order must be integers"),
    "order range": (dict(order=np.full((2, 40), 40)), "order must hold row numbers 0 to 39"),
    "negative order": (dict(order=np.full((2, 40), -1)), "order must hold row numbers 0 to 39"),
    "unknown site": (dict(init_means={"w9": np.zeros(3)}), "no weight site 'w9', but w1, w2"),
    "wrong mean": (dict(init_means={"w1": np.zeros(3)}), r"site 'w1' has shape \(4, 4\), got \(3,\)"),
    "NaN mean": (dict(init_means={"w1": np.full((4, 4), math.nan)}), "'w1' has values that are not finite"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "words"), FIT_ERRORS.values(), ids=FIT_ERRORS.keys())
def test_bad_input_is_one_line(changes, words):
    arguments = {"x": X, "y": Y, "epochs": 2} | changes
    with pytest.raises(ValueError, match=words) as error:
        ProbabilisticBackpropagation(NETWORKS["pbp"]).fit(arguments.pop("x"), arguments.pop("y"), **arguments)
    assert "\n" not in str(error.value)


def test_other_errors():
    x, y = data()
    with pytest.raises(ValueError, match="messages must be"):
        ProbabilisticBackpropagation(pbp(), "laplace")
    with pytest.raises(ValueError, match=r"dtype must be torch\.float64 or torch\.float32"):
        ProbabilisticBackpropagation(pbp(), dtype=torch.float16)
    guide = ProbabilisticBackpropagation(pbp())
    assert (guide.seconds, guide.epochs, guide.rows_seen) == (0, 0, 0)
    questions = (
        lambda: guide.sites,
        lambda: guide.predictive(x),
        lambda: guide.draws(2),
        lambda: guide.refused,
    )
    for ask in questions:
        with pytest.raises(RuntimeError, match="not fitted yet"):
            ask()
    with pytest.raises(ValueError, match="NaN"):
        fitted().predictive(x * math.nan)

    def wide_gamma(x, y=None):
        observe(x @ weights("w", INPUTS), y, gamma("tau", 0.5, 1.0).rsqrt())

    with pytest.raises(ValueError, match=r"site 'tau': .* concentration above 1, not Gamma\(0\.5, 1\)"):
        ProbabilisticBackpropagation(wide_gamma).fit(x, y)

    def logarithm(x, y=None):
        observe(x.log() @ weights("w", INPUTS), y)

    with pytest.raises(ValueError, match="what the model computes from x"):
        ProbabilisticBackpropagation(logarithm).fit(x, y)

    def tanh(x, y=None):
        observe(torch.tanh(x @ weights("w", INPUTS)), y)

    with pytest.raises(UnsupportedSiteError, match="'w'.*`tanh`"):
        ProbabilisticBackpropagation(tanh).fit(x, y)


@pytest.mark.slow
def test_categorical_of_certain_slabs_is_proper():
    """With a bias the spike has probability zero, to the last bit."""
    guide, (x, y) = fitted("pbp", "spike-slab"), data(9)
    law = guide.predictive(x)
    assert isinstance(law.mixture_distribution, Categorical)
    close(law.log_prob(y), fitted("pbp").predictive(x).log_prob(y), 1e-9)
    function = guide.predictive(x, noise=False)
    close(function.mean, fitted("pbp").predictive(x, noise=False).mean, 1e-9)
    assert torch.isfinite(function.entropy()).all()


def test_a_weight_precision_that_is_no_gamma_is_stood_in_for():
    """The optimal Gamma factor beside these weights, against numbers: E_q[log p(w | t) + log p(t)]."""
    guide, kept = ProbabilisticBackpropagation(NETWORKS["pbp"]), fitted("pbp")._fitted
    state = kept.state._replace(precisions={"lam": compiled.Precision(-3.0, -2.0)})
    guide._fitted = replace(kept, state=state)
    concentration, rate = guide.precisions["lam"]
    t = np.linspace(0.5, 1.5, 5)
    squares = sum((m.square() + v).sum().item() for m, v in guide.sites.values())
    count = sum(m.numel() for m, _ in guide.sites.values())
    expected = stats.gamma(6.0, scale=1 / 6.0).logpdf(t) + 0.5 * count * np.log(t) - 0.5 * t * squares
    ours = stats.gamma(concentration, scale=1 / rate).logpdf(t)
    np.testing.assert_allclose(ours - ours[0], expected - expected[0], rtol=1e-10)
    assert guide.draws(3)["lam"].gt(0).all()
    assert guide.log_prob(guide.draws(3)).isfinite().all()


def test_the_stand_in_is_in_units_of_the_prior():
    """``w = loc + factor u``, and only the weights of this precision count."""
    name = "two_precisions"
    guide, kept = ProbabilisticBackpropagation(NETWORKS[name]), fitted(name)._fitted
    precisions = kept.state.precisions | {"b": compiled.Precision(-3.0, 2.0)}
    guide._fitted = replace(kept, state=kept.state._replace(precisions=precisions))
    mean, variance = guide.sites["v"]
    squares = (((mean - 0.1).square() + variance) / 0.25).sum().item()
    close(guide.precisions["b"], (7.0 + 4 / 2, 3.0 + squares / 2))
    assert guide.precisions["a"] == tuple(map(float, kept.state.precisions["a"]))
