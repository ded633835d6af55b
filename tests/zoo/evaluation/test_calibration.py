"""Ranks: uniform where the posterior is right, and named where it is wrong."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from arviz.stats.ecdf_utils import ecdf_confidence_band
from scipy import stats

from guides.testing import NOISE, assert_share, data
from guides.truth.conjugate import conjugate_linear_regression
from zoo.evaluation.calibration import LEVEL, _ScoreLaw, ecdf, ecdf_band, judge, p_value, rank

DRAWS = 99


def ranks_of_conjugate(shift: float = 0.0, scale: float = 1.0) -> np.ndarray:
    """Ranks ``[200]`` of the first coefficient of the battery's linear model under its exact posterior, moved
    by ``shift`` of its sds and stretched by ``scale``.
    """
    rng, x = np.random.default_rng(3), data()[0].double().numpy()
    ranks = []
    for i in range(200):
        w = rng.standard_normal(x.shape[1])
        y = x @ w + NOISE * rng.standard_normal(len(x))
        exact = conjugate_linear_regression(x, y, prior_scale=1.0, noise_scale=NOISE)
        mean, sd = exact.mean[0], exact.covariance[0, 0] ** 0.5
        draws = exact.draws(DRAWS, seed=i)["w"][:, 0]
        ranks.append(rank(w[0], mean + shift * sd + scale * (draws - mean), rng))
    return np.array(ranks)


@pytest.mark.parametrize(
    ("shift", "scale", "words"),
    [
        (0.0, 1.0, "uniform"),
        (0.0, 0.5, "too narrow"),
        (0.0, 2.0, "too wide"),
        (1.0, 1.0, "shifted right"),
        (-1.0, 1.0, "shifted left"),
        (2.0, 0.5, "too narrow, shifted right"),
    ],
)
def test_exact_posterior_is_uniform_and_wrong_ones_are_named(shift, scale, words):
    verdict = judge(ranks_of_conjugate(shift, scale), DRAWS, quantities=8)
    assert verdict.words == words
    if words == "uniform":
        assert verdict.p > LEVEL
    assert verdict.spread == pytest.approx(scale, abs=4 * verdict.spread_se)
    assert verdict.shift == pytest.approx(shift / scale, abs=4 * verdict.shift_se)
    assert verdict.spread_se < 0.2 * scale


def test_point_is_too_narrow():
    ranks = np.repeat([0, DRAWS], 25)
    verdict = judge(ranks, DRAWS)
    assert verdict.words == "too narrow"
    assert verdict.spread < 0.1
    assert np.isnan([verdict.shift_se, verdict.spread_se]).all()  # the truth may be any distance outside


def test_width_that_ranks_at_one_end_do_not_show_is_not_named():
    verdict = judge(np.full(50, DRAWS), DRAWS)
    assert verdict.words == "shifted left"
    assert np.isnan(verdict.spread_se)


@pytest.mark.parametrize(
    ("mean", "log_sd", "words"),
    [(0.0, 0.7, "too narrow"), (0.0, -0.7, "too wide"), (0.5, 0.0, "shifted left")],
)
def test_what_is_named_is_a_likelihood_ratio_above_its_limit(mean, log_sd, words):
    """Twice the gain in log likelihood is chi2 of one degree, whose upper 1 % begin at 6.63."""
    best = np.array([mean, log_sd])
    for ratio, expected in ((6.4, "of another shape"), (6.9, words)):
        curvature = ratio / (best @ best)  # of a quadratic that falls by ratio / 2 from (0, 0) to the best

        def minus(at, curvature=curvature):
            return 50 + curvature * ((at - best) @ (at - best)) / 2

        assert _ScoreLaw(mean, np.exp(log_sd), 0.1, 0.1, minus).words() == expected


def test_among_many_quantities_one_needs_a_smaller_p():
    ranks = np.concatenate([np.arange(0, 100, 5), np.full(3, 99)])
    assert LEVEL / 8 < p_value(ranks, DRAWS) < LEVEL
    assert judge(ranks, DRAWS).words != "uniform"
    assert judge(ranks, DRAWS, quantities=8).words == "uniform"


def test_errors_are_those_of_a_gaussian():
    """Of its mean and sd, from as many values as there are ranks."""
    verdict = judge(np.repeat(np.arange(DRAWS + 1), 4), DRAWS)
    assert verdict.shift_se == pytest.approx(400**-0.5, rel=0.1)
    assert verdict.spread_se == pytest.approx(800**-0.5, rel=0.1)


@pytest.mark.parametrize("draws", [19, 99])
def test_right_posteriors_are_found_guilty_at_the_level(draws):
    rng = np.random.default_rng(0)
    values = [p_value(ranks, draws) for ranks in rng.integers(draws + 1, size=(1000, 40))]
    for level in (0.05, 0.2):
        hits = torch.as_tensor(np.array(values) < level)[:, None]
        assert_share(hits, level)


@pytest.mark.parametrize("quantities", [1, 8])
def test_ranks_are_uniform_where_they_stay_within_the_band(quantities):
    rng = np.random.default_rng(1)
    _, lower, upper = ecdf_band(60, DRAWS, quantities)
    left = []
    for i in range(200):
        tilt = rng.beta(1 + i / 200, 1, size=60)
        ranks = np.floor(tilt * (DRAWS + 1)).astype(int)
        curve = ecdf(ranks, DRAWS)
        left.append(((curve < lower - 1e-9) | (curve > upper + 1e-9)).any())
        assert left[-1] == (p_value(ranks, DRAWS) < LEVEL / quantities)
    assert 20 < sum(left) < 180


def test_the_band_ends_where_the_verdict_changes():
    """All sets of six ranks among three draws, at levels that fall to those of a few of the sets counted."""
    sets = list(combinations_with_replacement(range(4), 6))
    values = np.array([p_value(np.array(ranks), 3) for ranks in sets])
    curves = np.array([ecdf(np.array(ranks), 3) for ranks in sets])
    for quantities in range(1, 1500):
        _, lower, upper = ecdf_band(6, 3, quantities)
        left = ((curves < lower - 1e-9) | (curves > upper + 1e-9)).any(1)
        np.testing.assert_array_equal(left, values < LEVEL / quantities)


@pytest.mark.parametrize(("n", "draws", "quantities"), [(60, 99, 1), (20, 19, 8), (200, 99, 1)])
def test_band_is_that_of_arviz(n, draws, quantities):
    """Which optimises where this one counts: within a rank."""
    places, lower, upper = ecdf_band(n, draws, quantities)
    assert len(places) == draws
    prob = 1 - LEVEL / quantities
    low, high = ecdf_confidence_band(n, places, places, prob=prob, method="optimized")
    np.testing.assert_allclose(lower, low, atol=1.01 / n)
    np.testing.assert_allclose(upper, high, atol=1.01 / n)


def test_rank_counts_draws_below():
    rng = np.random.default_rng(0)
    assert rank(0.5, np.array([0.1, 0.9, 0.4, 0.6]), rng) == 2
    assert rank(-1.0, np.arange(3.0), rng) == 0
    assert rank(9.0, np.arange(3.0), rng) == 3


def test_ties_are_broken_at_random():
    """A truth with an atom, draws of the same law: every rank as likely as any other."""
    rng = np.random.default_rng(2)

    def spikes(*shape: int) -> np.ndarray:
        return np.where(rng.random(shape) < 0.6, 0.0, rng.standard_normal(shape))

    ranks = np.array([rank(float(spikes(1)[0]), spikes(9), rng) for _ in range(4000)])
    hits = torch.as_tensor(ranks[:, None] == np.arange(10))
    assert_share(hits, 0.1)


@pytest.mark.parametrize("ranks", [[], [100], [-1]])
def test_numbers_that_are_no_ranks_are_refused(ranks):
    with pytest.raises(ValueError, match="between 0 and 99"):
        judge(np.array(ranks), DRAWS)


def test_more_quantities_than_a_p_value_can_tell_are_refused():
    ranks = np.zeros(100, dtype=int)
    assert judge(ranks, DRAWS, quantities=1000).words == "shifted right"
    with pytest.raises(ValueError, match="at most 1000 quantities"):
        judge(ranks, DRAWS, quantities=1001)


@pytest.mark.parametrize("seed", range(3))
def test_a_verdict_on_ranks_counted_from_above_is_its_mirror_image(seed):
    """Also where nearly all ranks are at one end, whose probabilities differ from one by rounding."""
    rng = np.random.default_rng(seed)
    ranks = np.append(rng.binomial(DRAWS, 0.45, size=60), [0, DRAWS - 1, DRAWS])
    one, other = judge(ranks, DRAWS), judge(DRAWS - ranks, DRAWS)
    assert one.shift == pytest.approx(-other.shift, rel=1e-4)
    for name in ("p", "spread", "shift_se", "spread_se"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-4)


def test_errors_are_the_same_where_the_truth_is_far_in_either_tail():
    ranks = np.array([50] * 60 + [DRAWS])
    one, other = judge(ranks, DRAWS), judge(DRAWS - ranks, DRAWS)
    assert (one.shift_se, one.spread_se) == pytest.approx((other.shift_se, other.spread_se), rel=1e-3)


@pytest.mark.parametrize(("shift", "words"), [(0.3, "shifted right"), (-0.3, "shifted left")])
def test_a_small_shift_has_a_direction(shift, words):
    truths = stats.norm.ppf((np.arange(2000) + 0.5) / 2000)  # in sds of the draws, whose mean is the shift
    ranks = np.floor(stats.norm.cdf(truths - shift) * (DRAWS + 1)).astype(int)
    assert judge(ranks, DRAWS).words == words


def test_the_smallest_p_is_that_of_twenty_thousand_sets():
    """None of which is as far from uniform as ranks that are all the same; never zero."""
    assert p_value(np.zeros(100, dtype=int), DRAWS) == pytest.approx(1 / 20_001)


@pytest.mark.parametrize(("p", "words"), [(0.0501, "uniform"), (0.0499, "too narrow")])
def test_the_verdict_is_at_five_percent(monkeypatch, p, words):
    monkeypatch.setattr("zoo.evaluation.calibration.p_value", lambda ranks, draws: p)
    assert judge(np.repeat([0, DRAWS], 25), DRAWS).words == words
    assert judge(np.repeat([0, DRAWS], 25), DRAWS, quantities=2).words == "uniform"


def test_few_points_in_turn_are_too_narrow_even_if_they_are_exact_draws():
    """What the verdict on an ensemble means: with a spread of a half, to four standard errors of a set of
    ranks.
    """
    rng = np.random.default_rng(0)
    ranks = [rank(rng.normal(), np.resize(rng.normal(size=5), DRAWS), rng) for _ in range(300)]
    verdict = judge(np.array(ranks), DRAWS)
    assert verdict.words == "too narrow"
    assert verdict.spread == pytest.approx(0.5, abs=4 * verdict.spread_se)
