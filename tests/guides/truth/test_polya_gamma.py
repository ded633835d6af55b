"""The Polya-Gamma sampler, its tableau, and the chains against numerical integration and enumeration."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from guides.posterior import arviz_io
from guides.testing import z_bound
from guides.truth import polya_gamma
from guides.truth.gates import Gates, MCMCResult
from guides.truth.polya_gamma import inclusion_probabilities, sample_polya_gamma, spike_slab_logistic_gibbs
from guides.truth.spike_slab_logistic import enumerate_spike_slab_logistic
from tests.guides.truth.logistic_problems import SIMULATION, by_quadrature, problem, real

LOOSE = Gates(max_rhat=1.05, min_ess_bulk=50)


# ------------------------------------------------------------------------------------------------ Polya-Gamma


@pytest.mark.parametrize("z", [0.0, 0.3, -2.0, 12.0, 49.9, 50.1, -120.0, 700.0])
def test_draws_have_the_law_of_polya_gamma(z):
    """Mean, variance and two values of the Laplace transform; on both sides of the change of method."""
    n = 200_000
    omega = sample_polya_gamma(np.full((2, n // 2), z), np.random.default_rng(1)).ravel()
    assert omega.min() > 0
    a = abs(z)
    mean = np.tanh(a / 2) / (2 * a) if a else 0.25
    # (sinh z - z) / (4 z^3 cosh(z/2)^2) without overflow
    variance = (2 * np.tanh(a / 2) - a / np.cosh(min(a, 700) / 2) ** 2) / (4 * a**3) if a else 1 / 24
    errors = [omega - mean, (omega - mean) ** 2 - variance]
    for t in (1 / mean, 5 / mean):
        root = np.sqrt(a**2 / 4 + t / 2)
        log_cosh = [x + np.log1p(np.exp(-2 * x)) for x in (a / 2, root)]
        errors.append(np.exp(-t * omega) - np.exp(log_cosh[0] - log_cosh[1]))
    scores = [e.mean() / (e.std() / np.sqrt(n)) for e in errors]
    assert np.abs(scores).max() < z_bound(4 * 8), scores


def test_draws_keep_their_shape_and_stream():
    z = np.linspace(-80, 80, 12).reshape(3, 4)
    first, again = (sample_polya_gamma(z, np.random.default_rng(0)) for _ in range(2))
    assert first.shape == (3, 4)
    np.testing.assert_array_equal(first, again)


# ----------------------------------------------------------------------------------------------------- chains


@pytest.mark.slow
def test_chains_find_the_exact_posterior():
    X, y = problem(12, 2, seed=1)
    settings = (0.3, 1.5, 0.8)
    _, _, exact, mean = by_quadrature(X, y, *settings)
    run = spike_slab_logistic_gibbs(X, y, *settings, warmup=200, draws=2000, seed=2)
    assert run.passed, run.reason
    found, error = inclusion_probabilities(run)
    z = ((found - exact) / error).tolist()
    inside = (run.draws["w"] != 0).astype(float)  # the indicators themselves, too
    z += ((inside.mean((0, 1)) - exact) / arviz_io.mcse(inside)).tolist()
    z += ((run.draws["w"].mean((0, 1)) - mean) / arviz_io.mcse(run.draws["w"])).tolist()
    assert np.abs(z).max() < z_bound(len(z)), z


@pytest.mark.slow
def test_columns_that_can_stand_in_for_each_other():
    """Correlation .97 among three of five columns, near-separable classes: swaps are at work."""
    rng = np.random.default_rng(3)
    common = rng.standard_normal((300, 1))
    X = np.c_[common + 0.18 * rng.standard_normal((300, 3)), rng.standard_normal((300, 2))]
    y = (common[:, 0] + 0.15 * rng.standard_normal(300) > 0).astype(float)
    settings = (0.25, 2.0, 1.0)
    exact = enumerate_spike_slab_logistic(X, y, *settings).importance(40_000)
    run = spike_slab_logistic_gibbs(X, y, *settings, draws=2000, seed=4)
    assert run.passed, run.reason
    assert run.sample_stats["swaps"].mean() > 0.05
    found, error = inclusion_probabilities(run)
    z = (found - exact.inclusion) / np.hypot(error, exact.inclusion_se)
    z_mean = (run.draws["w"].mean((0, 1)) - exact.mean) / np.hypot(
        arviz_io.mcse(run.draws["w"]), exact.mean_se
    )
    assert np.abs([*z, *z_mean]).max() < z_bound(10), (z, z_mean)
    assert error.max() < 0.02


@pytest.mark.slow
def test_without_information_the_chains_sample_the_prior():
    y = np.array([0.0, 1, 1, 0, 1, 1])
    run = spike_slab_logistic_gibbs(np.zeros((6, 2)), y, [0.2, 0.7], 3.0, warmup=100, draws=1500, gates=LOOSE)
    found, error = inclusion_probabilities(run)
    np.testing.assert_allclose(found, [0.2, 0.7], atol=1e-12)  # known exactly, whatever the others are
    np.testing.assert_allclose(error, 0, atol=1e-12)
    second = run.draws["w"] ** 2
    assert np.abs((second.mean((0, 1)) - [1.8, 6.3]) / arviz_io.mcse(second)).max() < z_bound(2)


# ----------------------------------------------------------------------------------- settings, gates, storage


@pytest.mark.slow
def test_chains_that_fail_go_on_and_say_so():
    X, y = problem(40, 3)
    strict = Gates(min_ess_bulk=1e9)
    run = spike_slab_logistic_gibbs(X, y, draws=50, warmup=10, chains=2, retries=2, gates=strict, seed=1)
    assert not run.passed
    assert "ESS" in run.reason
    assert run.draws["w"].shape == (2, 200, 3)
    assert (run.diagnostics["attempts"], run.diagnostics["draws"]) == (3, 200)
    assert "divergences" not in run.diagnostics
    # the first draws are those of a run without retries
    once = spike_slab_logistic_gibbs(X, y, draws=50, warmup=10, chains=2, retries=0, gates=strict, seed=1)
    np.testing.assert_array_equal(run.draws["w"][:, :50], once.draws["w"])
    # and all of them those of one long run: nothing is thrown away when chains go on
    long = spike_slab_logistic_gibbs(X, y, draws=200, warmup=10, chains=2, retries=0, gates=strict, seed=1)
    np.testing.assert_array_equal(run.draws["w"], long.draws["w"])
    loose = spike_slab_logistic_gibbs(X, y, draws=300, warmup=10, chains=2, gates=LOOSE, seed=1)
    assert loose.passed
    assert loose.diagnostics["attempts"] == 1


def test_inclusion_probabilities_are_chances_and_not_indicators():
    """Given everything else: strictly between 0 and 1 in every draw."""
    result = spike_slab_logistic_gibbs(*problem(30, 3), warmup=5, draws=30, chains=2, retries=0)
    chances = result.sample_stats["inclusion_probability"]
    assert chances.shape == (2, 30, 3)
    assert ((chances > 0) & (chances < 1)).all()


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_draws_depend_on_the_seed_and_not_on_the_processes(jobs):
    X, y = problem(30, 3)
    options = {"draws": 30, "warmup": 5, "chains": 2, "retries": 0}
    first = spike_slab_logistic_gibbs(X, y, seed=1, **options)
    again = spike_slab_logistic_gibbs(X, y, seed=1, jobs=jobs, **options)
    other = spike_slab_logistic_gibbs(X, y, seed=2, **options)
    for name in ("w", "b"):
        np.testing.assert_array_equal(first.draws[name], again.draws[name])
        assert not np.array_equal(first.draws[name], other.draws[name])
    assert not np.array_equal(first.draws["b"][0], first.draws["b"][1])
    likelihood = stats.bernoulli(1 / (1 + np.exp(-(first.draws["w"] @ X.T + first.draws["b"][..., None]))))
    np.testing.assert_allclose(first.sample_stats["log_likelihood"], likelihood.logpmf(y).sum(-1), rtol=1e-9)


@pytest.mark.slow
def test_cache_answers_the_same_question_only(tmp_path, monkeypatch):
    X, y = problem(30, 2)
    options = {"draws": 40, "chains": 2, "retries": 0, "cache": tmp_path / "run.nc"}
    first = spike_slab_logistic_gibbs(X, y, 0.3, **options)
    monkeypatch.setattr(polya_gamma._Chain, "run", None)  # sampling again would fail
    again = spike_slab_logistic_gibbs(X, y, [0.3, 0.3], **options)
    np.testing.assert_array_equal(again.draws["w"], first.draws["w"])
    np.testing.assert_allclose(inclusion_probabilities(again), inclusion_probabilities(first))
    assert again.settings == first.settings
    assert MCMCResult.load(tmp_path / "run.nc").reason == first.reason
    for change in ({"seed": 1}, {"slab_scale": 2.0}, {"sweeps": 1}):
        with pytest.raises(TypeError):
            spike_slab_logistic_gibbs(X, y, 0.3, **{**options, **change})
    with pytest.raises(TypeError):
        spike_slab_logistic_gibbs(X, 1 - y, 0.3, **options)


def test_a_stored_run_is_known_by_all_that_was_asked(monkeypatch):
    marks = []
    monkeypatch.setattr(polya_gamma, "load_if_same", lambda cache, mark: marks.append(mark) or "known")
    X, y = problem(30, 2)
    changes = [
        *({"inclusion_prob": [0.3, 0.2]}, {"slab_scale": [1.0, 2.0]}, {"bias_scale": 2.0}),
        *({"warmup": 10}, {"draws": 50}, {"chains": 3}, {"sweeps": 1}, {"seed": 1}, {"retries": 1}),
        {"gates": Gates(max_rhat=1.1)},
    ]
    for change in ({}, *changes):
        assert spike_slab_logistic_gibbs(X, y, **change, cache="run.nc") == "known"
    assert len(set(marks)) == 1 + len(changes)
    spike_slab_logistic_gibbs(X, y, cache="run.nc", jobs=2)
    assert marks[-1] == marks[0]


def test_refusals_name_what_is_wrong():
    X, y = problem(10, 2)
    for options, words in [
        ({"chains": 1}, "2 chains"),
        ({"inclusion_prob": 0.0}, "strictly inside"),
        ({"slab_scale": -1.0}, "slab_scale must be positive"),
        ({"slab_scale": [1.0, 2.0, 3.0]}, r"slab_scale must be.* 2 columns, got shape \(3,\)"),
        ({"inclusion_prob": [0.1, 0.2, 0.3]}, r"inclusion_prob must be.* 2 columns, got shape \(3,\)"),
        ({"bias_scale": [1.0, 2.0]}, "bias_scale must be a number"),
    ]:
        with pytest.raises(ValueError, match=words):
            spike_slab_logistic_gibbs(X, y, **options)
    with pytest.raises(ValueError, match="labels 0 and 1"):
        spike_slab_logistic_gibbs(X, y + 0.5)


# -------------------------------------------------------------------------------------------------- real data


@pytest.mark.slow
def test_raisin_against_enumeration():
    X, y = real("raisin")
    run = spike_slab_logistic_gibbs(X, y, draws=1_500, seed=1)
    assert run.passed, run.reason
    found, error = inclusion_probabilities(run)
    laplace = enumerate_spike_slab_logistic(X, y)
    exact = laplace.importance(100_000)
    z = (found - exact.inclusion) / np.hypot(error, exact.inclusion_se)
    assert np.abs(z).max() < z_bound(len(z)), z
    np.testing.assert_allclose(found, laplace.inclusion, atol=0.01 + 3 * error.max())


@pytest.mark.slow
def test_simulation_of_the_thesis():
    X, y = real("mjmcmc_sim_logistic")
    run = spike_slab_logistic_gibbs(X, y, draws=2_000, seed=1)
    assert run.passed, run.reason
    found, error = inclusion_probabilities(run)
    assert error.max() < 0.006 * 3**0.5
    np.testing.assert_allclose(found, SIMULATION, atol=0.01 + 2 * error.max())


@pytest.mark.slow
def test_two_pairs_of_chains_on_gallstone_agree():
    X, y = real("gallstone")
    run = spike_slab_logistic_gibbs(X, y, draws=750, chains=4, seed=1)
    assert run.passed, run.reason
    (first, first_error), (second, second_error) = (
        inclusion_probabilities(
            replace(run, sample_stats={name: value[pair] for name, value in run.sample_stats.items()})
        )
        for pair in (slice(2), slice(2, 4))
    )
    z = (first - second) / np.hypot(first_error, second_error)
    assert np.abs(z).max() < z_bound(len(z)), z
    np.testing.assert_allclose(first, second, atol=0.03 * 2**0.5)  # 0.03 of four chains each


def test_errors_of_inclusion_probabilities_are_standard_errors():
    """Of 8000 independent numbers: their sd over the root of that, found to some five percent."""
    values = np.random.default_rng(0).random((4, 2000, 3)) * [1.0, 0.5, 0.1]
    found, error = inclusion_probabilities(SimpleNamespace(sample_stats={"inclusion_probability": values}))
    np.testing.assert_allclose(found, values.mean((0, 1)))
    np.testing.assert_allclose(error, values.std((0, 1)) / 8000**0.5, rtol=0.2)


def test_gates_look_at_indicators_and_the_log_likelihood(monkeypatch):
    """Not at coefficients, whose zeros would hide how seldom a column comes and goes."""
    seen, real = [], polya_gamma.judge
    monkeypatch.setattr(
        polya_gamma, "judge", lambda values, *others: seen.append(values) or real(values, *others)
    )
    run = spike_slab_logistic_gibbs(*problem(30, 3), warmup=5, draws=20, chains=2, retries=0)
    (values,) = seen
    np.testing.assert_array_equal(values[..., :-1], run.draws["w"] != 0)
    np.testing.assert_array_equal(values[..., -1], run.sample_stats["log_likelihood"])


def test_warm_up_is_left_out_and_nothing_else():
    """What is kept are the last draws of the same chains, whose random numbers go on from warm-up."""
    X, y = problem(30, 3)
    options = {"chains": 2, "retries": 0, "seed": 1}
    kept = spike_slab_logistic_gibbs(X, y, warmup=7, draws=20, **options).draws
    whole = spike_slab_logistic_gibbs(X, y, warmup=0, draws=27, **options).draws
    for name in ("w", "b"):
        np.testing.assert_array_equal(kept[name], whole[name][:, 7:])


def test_chains_that_go_on_are_one_long_run():
    """As many draws again as there are, and again, and none of them is warm-up."""
    X, y = problem(20, 2)
    options = {"warmup": 3, "chains": 2, "seed": 1, "gates": Gates(min_ess_bulk=1e9)}
    run = spike_slab_logistic_gibbs(X, y, draws=5, retries=2, **options)
    assert (run.passed, run.diagnostics["attempts"], run.diagnostics["draws"]) == (False, 3, 20)
    long = spike_slab_logistic_gibbs(X, y, draws=20, retries=0, **options)
    np.testing.assert_array_equal(run.draws["w"], long.draws["w"])


def test_the_law_of_polya_gamma_is_no_inverse_gaussian_at_moderate_tilts():
    """Whose mean is 1 / (2 z), half a percent more than this at z = 6."""
    omega = sample_polya_gamma(np.full(200_000, 6.0), np.random.default_rng(1))
    error = omega - np.tanh(3) / 12
    assert abs(error.mean()) < z_bound(1) * error.std() / np.sqrt(len(omega))
