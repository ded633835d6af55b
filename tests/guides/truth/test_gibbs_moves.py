"""The moves of the Gibbs sampler one by one: the tableau's odds, sweeps, swaps and stretches."""

import copy
import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from guides.testing import z_bound
from guides.truth import polya_gamma
from tests.guides.truth.logistic_problems import problem

# ---------------------------------------------------------------------------------------------------- tableau


def tableau_problem():
    rng, p = np.random.default_rng(2), 4
    X, y = problem(30, p)
    q, scales = np.linspace(0.2, 0.6, p), np.append(np.linspace(0.7, 1.5, p), 0.9)
    built = polya_gamma._Problem.build(X, y, q, scales)
    return built, rng.uniform(0.05, 0.25, 30), X, y, q, scales


def log_marginal(X, y, omega, q, scales, inside):
    """log of prior x integral over (b, w) of exp(kappa eta - omega eta^2 / 2), from a Gaussian density of the
    pseudo-data kappa / omega."""
    D = np.c_[X[:, inside], np.ones(len(y))]
    sd = np.append(scales[:-1][inside], scales[-1])
    law = stats.multivariate_normal(cov=np.diag(1 / omega) + (D * sd**2) @ D.T)
    return law.logpdf((y - 0.5) / omega) + np.log(np.where(inside, q, 1 - q)).sum()


@pytest.mark.parametrize("start", [[0, 0, 0, 0], [1, 0, 1, 0], [1, 1, 1, 1]])
def test_odds_read_off_the_tableau_are_ratios_of_marginals(start):
    built, omega, X, y, q, scales = tableau_problem()
    inside = np.array(start, dtype=bool)
    tableau = polya_gamma._Tableau(built, omega, inside.copy())
    for step in [None, 1, 2, 1, 0, 3, 2]:  # and again after flips
        if step is not None:
            tableau.flip(step)
            inside[step] = ~inside[step]
        np.testing.assert_array_equal(tableau.inside, inside)
        here = log_marginal(X, y, omega, q, scales, inside)
        for j in range(4):
            other = inside.copy()
            other[j] = ~other[j]
            there = log_marginal(X, y, omega, q, scales, other)
            expected = here - there if inside[j] else there - here
            assert tableau.log_odds(j) == pytest.approx(expected, abs=1e-9)
            for k in range(4):
                if inside[j] and not inside[k]:
                    other = inside.copy()
                    other[[j, k]] = False, True
                    expected = log_marginal(X, y, omega, q, scales, other) - here
                    assert tableau.log_odds_of_swap(j, k) == pytest.approx(expected, abs=1e-9)


def test_coefficients_have_the_covariance_of_the_tableau():
    """Exactly: by noise that is each unit vector in turn, and none."""
    built, omega, *_ = tableau_problem()
    inside = np.array([True, False, True, True])
    tableau = polya_gamma._Tableau(built, omega, inside)
    noises = np.concatenate([np.eye(4), np.zeros((1, 4))])
    drawn = np.stack(
        [tableau.draw(SimpleNamespace(standard_normal=lambda n, noise=noise: noise)) for noise in noises]
    )
    g = np.flatnonzero(np.append(inside, True))
    precision = ((built.columns * omega) @ built.columns.T + np.diag(built.precision))[np.ix_(g, g)]
    root, mean = (drawn[:-1] - drawn[-1])[:, g], drawn[-1, g]
    np.testing.assert_allclose(root.T @ root, np.linalg.inv(precision), rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(mean, np.linalg.solve(precision, built.moment[g]), rtol=1e-10)
    assert not drawn[:, 1].any()


@pytest.mark.slow
def test_coefficients_drawn_from_the_tableau():
    built, omega, X, y, _, scales = tableau_problem()
    inside = np.array([True, False, True, False])
    tableau = polya_gamma._Tableau(built, omega, inside)
    rng = np.random.default_rng(0)
    draws = np.stack([tableau.draw(rng) for _ in range(20_000)])
    at = [0, 2, 4]
    D = np.c_[X, np.ones(len(y))][:, at]
    covariance = np.linalg.inv((D.T * omega) @ D + np.diag(scales[at] ** -2.0))
    assert not draws[:, [1, 3]].any()
    z = (draws[:, at].mean(0) - covariance @ D.T @ (y - 0.5)) / np.sqrt(np.diag(covariance) / 20_000)
    assert np.abs(z).max() < z_bound(3)
    np.testing.assert_allclose(np.cov(draws[:, at].T), covariance, atol=0.05 * np.diag(covariance).max())


# ------------------------------------------------------------------------------------------------------ moves


@pytest.mark.parametrize(("share", "accepted"), [(0.99, True), (1.01, False)])
@pytest.mark.parametrize("entering", [True, False])
def test_a_sweep_flips_with_the_ratio_of_the_two_models(entering, share, accepted):
    """Of every column whose flip is not certain: just below and just above its chance (Metropolis)."""
    built, omega, X, y, q, scales = tableau_problem()
    q = q / 20 if entering else q
    built, met = replace(built, odds=np.log(q) - np.log1p(-q)), 0
    for start, j in itertools.product(itertools.product([False, True], repeat=4), range(4)):
        inside, other = np.array(start), np.array(start)
        other[j] = ~other[j]
        ratio = log_marginal(X, y, omega, q, scales, other) - log_marginal(X, y, omega, q, scales, inside)
        if inside[j] == entering or ratio >= 0:
            continue
        met += 1
        uniform = np.array([share * math.exp(ratio), 2.0, 2.0, 2.0])
        rng = SimpleNamespace(
            random=lambda n, uniform=uniform: uniform,
            permutation=lambda n, j=j: np.r_[j, np.delete(np.arange(n), j)],
        )
        tableau = polya_gamma._Tableau(built, omega, inside.copy())
        polya_gamma._Chain(rng, tableau.inside, np.zeros(5), sweeps=1)._sweep(tableau)
        assert (tableau.inside[j] != inside[j]) == accepted
    assert met > 10, met


@pytest.mark.parametrize(("share", "accepted"), [(0.99, True), (1.01, False)])
def test_a_swap_is_made_with_the_ratio_of_the_two_models(share, accepted):
    built, omega, X, y, q, scales = tableau_problem()
    met = 0
    for (at, pair), flipped in itertools.product(enumerate(built.pairs), [False, True]):
        one, two = pair[::-1] if flipped else pair
        inside, other = np.arange(4) == one, np.arange(4) == two
        ratio = log_marginal(X, y, omega, q, scales, other) - log_marginal(X, y, omega, q, scales, inside)
        if ratio >= 0:
            continue
        met += 1
        # this pair four times; were it swapped, the second time undoes it for certain, and the others refuse
        uniform = np.array([share * math.exp(ratio), 2.0, 2.0, 2.0])
        stream = iter([np.full(4, built.cumulative[at] - 1e-9), uniform])
        rng = SimpleNamespace(random=lambda n, stream=stream: next(stream))
        tableau = polya_gamma._Tableau(built, omega, inside.copy())
        chain = polya_gamma._Chain(rng, tableau.inside, np.zeros(5), sweeps=1)
        assert chain._swap(built, tableau) == (2 if accepted else 0)
    assert met == 6, met  # one way of each pair


@pytest.mark.parametrize(
    "inside",
    [
        pytest.param([True, False, False, False], marks=pytest.mark.slow),
        [True, False, True, True],
    ],
    ids=sum,
)
def test_stretching_leaves_the_prior_as_it_is(inside):
    """Columns of zeros: the posterior is the prior, under which squares in units of the prior's variances add
    up to a chi-square of k + 1 degrees of freedom, k columns and the intercept.  One round of stretches of
    draws from the prior leaves its mean where it was, and changes it by nothing on average.
    """
    n = 20_000
    built = tableau_problem()[0]
    built = replace(built, columns=np.zeros_like(built.columns))
    rng = np.random.default_rng(0)
    inside, degrees = np.array(inside), sum(inside) + 1
    draws = rng.standard_normal((n, 5)) * built.precision**-0.5 * np.append(inside, True)
    chains = [polya_gamma._Chain(rng, inside, full, sweeps=1) for full in draws]
    for chain in chains:
        chain._stretch(built)
    before, after = draws**2 @ built.precision, np.stack([c.full for c in chains]) ** 2 @ built.precision
    assert (before != after).mean() > 0.9
    z = [
        (after.mean() - degrees) / np.sqrt(2 * degrees / n),
        (after - before).mean() / ((after - before).std() / np.sqrt(n)),
    ]
    assert np.abs(z).max() < z_bound(4), z


def test_a_stretch_is_weighed_against_where_the_one_before_has_ended():
    """From further out than the prior is wide a stretch is refused that would be taken from the start."""
    built = tableau_problem()[0]
    built = replace(built, columns=np.zeros_like(built.columns))
    start = built.precision**-0.5 * np.append(np.zeros(4), 1.0)
    # after 1.3 the chance is 0.39 (0.54 were the square multiplied by 1.3, not 1.3^2), the uniform number 0.5
    for first, goes_on in [(10.0, False), (1.3, False), (1.0, True)]:
        steps, last = (np.log(first), 0.5, 0.0), first * (np.exp(0.5) if goes_on else 1.0)
        uniform = np.array([0.0, 0.5, 0.5])
        rng = SimpleNamespace(
            normal=lambda centre, sds, steps=steps: np.array(steps), random=lambda n, uniform=uniform: uniform
        )
        chain = polya_gamma._Chain(rng, np.zeros(4, dtype=bool), start, sweeps=1)
        chain._stretch(built)
        np.testing.assert_allclose(chain.full, last * start)


def test_pairs_of_equal_columns_are_proposed_a_hundred_times_as_often():
    a, b = np.array([1.0, 1.0, -1.0, -1.0]), np.array([1.0, -1.0, 1.0, -1.0])
    built = polya_gamma._Problem.build(
        np.c_[a, b, 2 * a + 3], np.array([0.0, 1, 1, 0]), np.full(3, 0.3), np.ones(4)
    )
    assert built.pairs.tolist() == [[0, 1], [0, 2], [1, 2]]
    np.testing.assert_allclose(np.diff(built.cumulative, prepend=0), np.array([1, 101, 1]) / 103, atol=1e-12)


@pytest.mark.parametrize("step", ["_sweep", "_swap"])
def test_the_law_of_the_indicators_given_omega_stays_as_it_is(step):
    """Models drawn from it, by enumeration, are of it again after a round of changes or of swaps; and the
    chances that are met on the way are right on average.
    """
    built, omega, X, y, q, scales = tableau_problem()
    models = np.array(list(itertools.product([False, True], repeat=4)))
    log_law = np.array([log_marginal(X, y, omega, q, scales, inside) for inside in models])
    law, n = np.exp(log_law - np.logaddexp.reduce(log_law)), 3000
    tableaus = [polya_gamma._Tableau(built, omega, inside.copy()) for inside in models]
    rng, after, chances = np.random.default_rng(0), [], []
    begun = rng.choice(16, n, p=law)
    for number in begun:
        tableau = copy.deepcopy(tableaus[number])
        chain = polya_gamma._Chain(rng, tableau.inside, np.zeros(5), sweeps=1)
        found = chain._sweep(tableau) if step == "_sweep" else chain._swap(built, tableau)
        chances.append(found)
        after.append(tableau.inside @ [8, 4, 2, 1])
    assert (begun != after).mean() > 0.1
    often = n * law > 10
    z = (np.bincount(after, minlength=16) - n * law)[often] / np.sqrt(n * law * (1 - law))[often]
    assert np.abs(z).max() < z_bound(2 * 16), z
    if step == "_sweep":
        chances = np.stack(chances)
        z = (chances.mean(0) - law @ models) / (chances.std(0) / np.sqrt(n))
        assert np.abs(z).max() < z_bound(2 * 16), z


def test_chains_start_at_models_and_coefficients_drawn_at_random():
    """Each column in or out alike, whatever its prior; coefficients from the prior, zeros where out."""
    built, n = tableau_problem()[0], 4000
    chains = [polya_gamma._Chain.start(built, np.random.default_rng(seed), 1) for seed in range(n)]
    inside, full = np.stack([c.inside for c in chains]), np.stack([c.full for c in chains])
    z = (inside.mean(0) - 0.5) / (0.5 / np.sqrt(n))
    assert np.abs(z).max() < z_bound(4), z
    assert not full[:, :-1][~inside].any()
    squares = full**2 * built.precision
    found = [squares[inside[:, j], j] for j in range(4)] + [squares[:, -1]]
    z = [(s.mean() - 1) / np.sqrt(2 / len(s)) for s in found]
    assert np.abs(z).max() < z_bound(5), z
