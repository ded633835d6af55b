"""Distances to the reference: against scipy, closed forms of Gaussians, and repeated runs for the standard
errors.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch

from zoo.evaluation import distances
from zoo.evaluation.distances import compare_functions, inclusion_error, wasserstein_1
from zoo.evaluation.estimates import jackknife_variance

FIGURES = ("ref_mean_error", "ref_sd_ratio", "ref_w1")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def autoregression(draws: int, points: int, phi: float, g: torch.Generator) -> torch.Tensor:
    """A stationary AR(1) chain with unit variance, [draws, points]."""
    noise = torch.randn(draws, points, generator=g, dtype=torch.float64)
    chain = [noise[0]]
    for step in noise[1:]:
        chain.append(phi * chain[-1] + math.sqrt(1 - phi**2) * step)
    return torch.stack(chain)


@pytest.mark.parametrize(("s", "t"), [(1, 1), (1, 7), (50, 50), (50, 49), (48, 36), (60, 7), (301, 200)])
def test_wasserstein_equals_scipy(s, t):
    a, b = normal(s, 4), 1.3 * normal(t, 4, seed=1) + 0.2
    ours = wasserstein_1(a.T.sort(-1).values, b.T.sort(-1).values)
    expected = [scipy.stats.wasserstein_distance(a[:, i], b[:, i]) for i in range(4)]
    np.testing.assert_allclose(ours, expected, rtol=1e-12)


def test_the_three_distances_of_shifted_and_scaled_gaussians():
    """Mean off by 0.5 reference sds and sd times 0.6; W1 of the two Gaussians from their quantile
    functions.
    """
    sd = torch.tensor([0.1, 2.0, 30.0], dtype=torch.float64)
    reference = normal(8000, 3) * sd + 5
    draws = normal(6000, 3, seed=1) * 0.6 * sd + 5 + 0.5 * sd
    found = compare_functions(reference, draws)
    u = (np.arange(100_000) + 0.5) / 100_000
    w1 = np.abs(scipy.stats.norm.ppf(u) - (0.5 + 0.6 * scipy.stats.norm.ppf(u))).mean()
    for name, truth in zip(FIGURES, (0.5, 0.6, w1), strict=True):
        estimate = getattr(found, name)
        assert estimate.value == pytest.approx(truth, abs=4.5 * estimate.se), name
        assert 0 < estimate.se < 0.03, name
    assert (found.points, found.left_out) == (3, 0)


def test_error_of_inclusion_probabilities_that_are_right():
    """No delta method at zero: the root mean square of their own errors."""
    found = inclusion_error([0.2, 0.7], [0.2, 0.7], [0.1, 0.3])
    assert found.value == 0
    assert found.se == pytest.approx(math.sqrt(0.05))


def test_definitions_by_hand():
    reference, draws = normal(30, 5), normal(20, 5, seed=1) * torch.arange(1, 6) + 1
    found = compare_functions(reference, draws)
    sd, z = reference.std(0), (draws.mean(0) - reference.mean(0)) / reference.std(0)
    assert found.ref_mean_error.value == pytest.approx(z.square().mean().sqrt().item(), rel=1e-12)
    assert found.ref_sd_ratio.value == pytest.approx((draws.std(0) / sd).median().item(), rel=1e-12)
    w1 = [scipy.stats.wasserstein_distance(reference[:, i], draws[:, i]) / sd[i] for i in range(5)]
    assert found.ref_w1.value == pytest.approx(np.mean(w1), rel=1e-12)


def test_moments_without_a_group_are_those_of_the_other_draws():
    draws = 3 + normal(11, 4) * torch.arange(1, 5)
    group = torch.arange(11) * 4 // 11
    found = distances._moments_without(draws, group, 4)
    for g in range(4):
        torch.testing.assert_close(found.mean[g], draws[group != g].mean(0))
        torch.testing.assert_close(found.sd[g], draws[group != g].std(0))


def test_units_and_classes_and_chunks_do_not_matter(monkeypatch):
    reference, draws = normal(120, 4, 3), normal(90, 4, 3, seed=1) + 0.4
    whole = compare_functions(reference, draws)
    assert whole.points == 12
    flat = compare_functions(1000 * reference.reshape(120, 12) - 7, 1000 * draws.reshape(90, 12) - 7)
    monkeypatch.setattr(distances, "CHUNK_NUMBERS", 300)
    parts = compare_functions(reference, draws)
    for name in FIGURES:
        for other in (flat, parts):
            for value in ("value", "se", "floor"):
                expected = getattr(getattr(whole, name), value)
                assert getattr(getattr(other, name), value) == pytest.approx(expected, rel=1e-9), (
                    name,
                    value,
                )


@pytest.mark.parametrize(
    ("phi", "shift", "scale"),
    [
        pytest.param(0.0, 0.3, 0.7, marks=pytest.mark.slow),
        pytest.param(0.7, 0.3, 0.7, marks=pytest.mark.slow),
        (0.7, 1.5, 0.9),
    ],
)
def test_standard_errors_are_the_scatter_of_repeated_runs(phi, shift, scale):
    """Test points share three directions, so they are strongly correlated; the chains are autocorrelated for
    phi > 0.
    """
    g = torch.Generator().manual_seed(1)
    loadings = normal(3, 8, seed=5)
    loadings = loadings / loadings.norm(dim=0)
    results = []
    for _ in range(40):
        reference = torch.cat([autoregression(200, 3, phi, g) @ loadings for _ in range(2)])
        draws = scale * torch.randn(300, 3, generator=g, dtype=torch.float64) @ loadings + shift
        results.append([(e.value, e.se) for e in compare_functions(reference, draws).figures().values()])
    values, errors = np.moveaxis(np.array(results), -1, 0)
    ratio = np.sqrt((errors**2).mean(0)) / values.std(0, ddof=1)
    # the scatter of 40 runs is known to 11 %
    assert ((ratio > 0.75) & (ratio < 1.65)).all(), ratio


@pytest.mark.parametrize("num_draws", [200, 800, pytest.param(4000, marks=pytest.mark.slow)])
def test_two_samples_of_one_law_are_as_far_apart_as_the_noise_floor_says(num_draws):
    """Of 200 independent points the means are known to some 5 %."""
    reference, draws = normal(800, 200), normal(num_draws, 200, seed=1)
    found = compare_functions(reference, draws)
    for name in ("ref_mean_error", "ref_w1"):
        estimate = getattr(found, name)
        assert estimate.floor == pytest.approx(estimate.value, rel=0.12), name
    assert found.ref_sd_ratio.floor == pytest.approx(1, abs=0.05)
    whole = math.sqrt(1 / 800 + 1 / num_draws)  # sd of a difference of means, in sds of the law
    assert found.ref_mean_error.floor == pytest.approx(whole, rel=0.12)


def test_the_floor_of_the_sd_ratio_is_that_of_the_halves():
    """Of one half with twice the sd of the other: ``0.5^shrink``, ``shrink^2 = (1/S + 1/T) / (4/S)``."""
    half = normal(20, 5)
    found = compare_functions(torch.cat([half, 2 * half + 1]), normal(30, 5, seed=1))
    shrink = math.sqrt((1 / 40 + 1 / 30) / (4 / 40))
    assert found.ref_sd_ratio.floor == pytest.approx(0.5**shrink, rel=1e-9)


def test_floors_are_in_sds_of_the_whole_reference():
    """And not of one of its halves, here twice as wide as the other and moved by one."""
    half = normal(20, 5)
    halves, shrink = (half, 2 * half + 1), math.sqrt((1 / 40 + 1 / 30) / (4 / 40))
    found, sd = compare_functions(torch.cat(halves), normal(30, 5, seed=1)), torch.cat(halves).std(0)
    apart = (halves[0].mean(0) - halves[1].mean(0)) / sd
    assert found.ref_mean_error.floor == pytest.approx(shrink * apart.square().mean().sqrt().item(), rel=1e-9)
    w1 = [scipy.stats.wasserstein_distance(*(values[:, i] for values in halves)) / sd[i] for i in range(5)]
    assert found.ref_w1.floor == pytest.approx(shrink * np.mean(w1), rel=1e-9)


def test_the_floor_of_an_odd_number_of_draws_is_that_of_unequal_halves():
    """Two of five and three: their means are apart by the root of 1/2 + 1/3."""
    reference, shrink = normal(5, 6), math.sqrt((1 / 5 + 1 / 30) / (1 / 2 + 1 / 3))
    found = compare_functions(reference, normal(30, 6, seed=1))
    apart = (reference[:2].mean(0) - reference[2:].mean(0)) / reference.std(0)
    assert found.ref_mean_error.floor == pytest.approx(shrink * apart.square().mean().sqrt().item(), rel=1e-9)


@pytest.mark.parametrize("draws", [2, 3, 4, 5])
def test_floors_begin_at_four_draws_of_the_reference(draws):
    """Of which each half has an sd."""
    figures = compare_functions(normal(draws, 6), normal(30, 6, seed=1)).figures()
    assert [estimate.floor is not None for estimate in figures.values()] == [draws >= 4] * 3


@pytest.mark.parametrize("still", [2, 3])
def test_points_that_stand_still_in_the_second_half_have_no_ratio_of_halves(still):
    """Two of three, or all of them, as where a chain sticks: the floor is that of the others."""
    reference = normal(20, 3)
    reference[10:, :still] = 1.0
    floor = compare_functions(reference, normal(20, 3, seed=1)).ref_sd_ratio.floor
    ratio = (reference[:10, 2].std() / reference[10:, 2].std()).item()
    assert floor == (pytest.approx(ratio ** math.sqrt(1 / 2), rel=1e-9) if still == 2 else None)


def test_standard_errors_are_those_of_a_jackknife_by_hand():
    """Over twenty groups of neighbours of each sample; without some, the reference has other sds too."""
    reference, draws = normal(45, 3) * torch.arange(1, 4), normal(30, 3, seed=1) + 0.5

    def without_each(values: torch.Tensor) -> list[torch.Tensor]:
        group = torch.arange(len(values)) * 20 // len(values)
        return [values[group != g] for g in range(20)]

    by_draws = [compare_functions(reference, part).figures() for part in without_each(draws)]
    by_reference = [compare_functions(part, draws).figures() for part in without_each(reference)]
    for name, estimate in compare_functions(reference, draws).figures().items():
        parts = [[figures[name].value for figures in found] for found in (by_draws, by_reference)]
        assert estimate.se == pytest.approx(math.sqrt(19 * sum(map(np.var, parts))), rel=1e-6), name


def test_jackknife_of_a_mean_is_its_standard_error():
    """A group a draw: ``s / sqrt(n)``, exactly."""
    draws = normal(20, 1)
    ours = distances._Groups.of(draws)
    assert ours.count == 20
    assert jackknife_variance(ours.without.mean[:, 0]) == pytest.approx(draws.var().item() / 20)


def test_chains_that_disagree_show_in_the_floor():
    apart = torch.cat([normal(200, 10), 3 + normal(200, 10, seed=1)])
    assert compare_functions(apart, normal(100, 10)).ref_mean_error.floor > 1


def test_points_where_the_reference_is_constant_are_left_out():
    reference, draws = normal(40, 6), normal(30, 6, seed=1)
    reference[:, 2] = 0.1
    draws[:, 4] = 7.0
    found = compare_functions(reference, draws)
    assert (found.points, found.left_out) == (5, 1)
    keep = [0, 1, 3, 4, 5]
    assert found.figures() == compare_functions(reference[:, keep], draws[:, keep]).figures()


def test_a_constant_whose_computed_sd_is_not_zero_counts_as_constant():
    constant = torch.full((2998, 1), 1e6 / 3, dtype=torch.float64)
    assert constant.std(0) > 0  # rounding
    with pytest.raises(ValueError, match="does not vary"):
        compare_functions(constant, constant)


def test_one_draw_is_a_point_estimate():
    reference = normal(500, 4)
    found = compare_functions(reference, torch.zeros(1, 4))
    assert found.ref_sd_ratio.value == 0
    assert found.ref_mean_error.floor < 3 / math.sqrt(500)  # it has no noise of its own
    # mean |z| of 4 x 500 draws, in units of a sample sd that is itself known to 1 / sqrt(2 x 500)
    mean, sd = scipy.stats.halfnorm.mean(), scipy.stats.halfnorm.std()
    se = math.hypot(sd / math.sqrt(2000), mean / math.sqrt(1000) / 2)
    assert found.ref_w1.value == pytest.approx(mean, abs=4.5 * se)
    assert all(e.se >= 0 and math.isfinite(e.se) for e in found.figures().values())


@pytest.mark.parametrize(("reference", "draws"), [(2, 1), (3, 2), (2, 5), (3, 1), (3, 3)])
def test_very_few_draws_give_finite_figures_and_two_no_errors(reference, draws):
    found = compare_functions(normal(reference, 3), normal(draws, 3, seed=1)).figures().values()
    assert all(math.isfinite(e.value) for e in found)
    assert [e.se is None for e in found] == [2 in (reference, draws)] * 3
    assert 2 in (reference, draws) or all(math.isfinite(e.se) for e in found)


def test_values_whose_squares_overflow_are_refused():
    with pytest.raises(ValueError, match="squares are infinite"):
        compare_functions(1e160 * normal(9, 3), normal(9, 3, seed=1))
    with pytest.raises(ValueError, match="squares are infinite"):
        compare_functions(normal(9, 3), 1e160 * normal(9, 3, seed=1))


@pytest.mark.parametrize(
    ("reference", "draws", "word"),
    [
        (torch.zeros(10, 3), torch.zeros(10, 3), "does not vary"),
        (normal(10, 0), normal(10, 0), "empty"),
        (normal(10, 3), normal(10, 4), "same test points"),
        (normal(2, 5, 3), normal(10, 3), "same test points"),
        (normal(1, 3), normal(10, 3), "two draws"),
        (normal(10, 3), normal(0, 3), "two draws"),
        (normal(10, 3), normal(10, 3).log(), "function draws: .* NaN"),
        (normal(10, 3) / 0, normal(10, 3), "reference function: .* NaN"),
        (normal(10), normal(10), "same test points"),
    ],
)
def test_bad_input_names_the_method(reference, draws, word):
    with pytest.raises(ValueError, match=f"^pbp: .*{word}"):
        compare_functions(reference, draws, method="pbp")


def test_inclusion_error_and_its_error():
    exact, g = torch.tensor([0.0, 0.5, 1.0, 0.25]).double(), torch.Generator().manual_seed(0)
    shifted = (exact + torch.tensor([0.1, -0.1, -0.1, 0.1])).clamp(0, 1)
    assert inclusion_error(shifted, exact).value == pytest.approx(0.1)
    assert inclusion_error(shifted, exact).se == 0
    runs = torch.binomial(torch.full((2000, 4), 400.0).double(), shifted.expand(2000, 4), generator=g) / 400
    mcse = (shifted * (1 - shifted) / 400).sqrt()
    results = torch.tensor([inclusion_error(p, exact, mcse).value for p in runs])
    assert inclusion_error(shifted, exact, mcse).se == pytest.approx(results.std().item(), rel=0.1)


def test_noise_floor_of_inclusion_is_what_draws_of_the_truth_have():
    exact, g = torch.tensor([0.1, 0.5, 0.9, 0.25]).double(), torch.Generator().manual_seed(0)
    runs = torch.binomial(torch.full((4000, 4), 400.0).double(), exact.expand(4000, 4), generator=g) / 400
    found = [inclusion_error(p, exact, (exact * (1 - exact) / 400).sqrt()) for p in runs]
    squares = torch.tensor([estimate.value for estimate in found]).square()
    assert squares.mean().item() == pytest.approx(
        found[0].floor ** 2, abs=4 * squares.std().item() / len(runs) ** 0.5
    )
    assert inclusion_error(runs[0], exact).floor is None


def test_inclusion_error_refuses_what_is_no_probability():
    with pytest.raises(ValueError, match="outside"):
        inclusion_error(torch.tensor([1.2]), torch.tensor([1.0]))
    with pytest.raises(ValueError, match="outside"):
        inclusion_error(torch.tensor([torch.nan]), torch.tensor([1.0]))
    with pytest.raises(ValueError, match="3 inclusion probabilities against 2"):
        inclusion_error(torch.ones(3), torch.ones(2))
