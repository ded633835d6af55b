"""Fits that must be the same: compiled and interpreted, in portions, together, in other orders, cut short."""

import functools
import math
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from guides import ProbabilisticBackpropagation
from guides.message_passing import fit_together, updates
from guides.message_passing.messages import FAMILIES
from guides.message_passing.program import propagate
from guides.message_passing.recorder import analyse, record
from guides.message_passing.schedule import start_means
from tests.guides.message_passing.fits import (
    NOISE,
    both_families,
    cases,
    close,
    fitted,
    line,
    regression,
    same_fit,
)
from tests.guides.message_passing.networks import INPUTS, NETWORKS, data, gamma, observe, pbp, weights

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


def test_the_time_of_portions_adds_up():
    """The second has nothing to compile and is over at once."""
    x, y = data()
    guide = ProbabilisticBackpropagation(line()).partial_fit(x[:20, 0], y[:20])
    first = guide.seconds
    assert guide.partial_fit(x[20:, 0], y[20:]).seconds > first
    assert guide.epochs == 2


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


def test_epochs_are_told_one_by_one():
    x, y = data()
    seen = []
    ProbabilisticBackpropagation(line()).fit(
        x[:, 0],
        y,
        epochs=3,
        on_epoch=lambda epoch, guide: seen.append((epoch, guide.epochs, guide.rows_seen)),
    )
    assert seen == [(1, 1, 40), (2, 2, 80), (3, 3, 120)]


def test_fits_together_share_their_time():
    x, y = data()
    guides = [ProbabilisticBackpropagation(line()) for _ in range(2)]
    begun = time.perf_counter()
    fit_together(guides, [(x[:, 0], y)] * 2, epochs=1, seeds=[0, 1])
    assert 0 < sum(guide.seconds for guide in guides) <= time.perf_counter() - begun
