"""Predictive metrics: against Monte Carlo, scipy, scikit-learn and scoringrules, and in another unit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import scoringrules
import sklearn.metrics
import torch
from torch.distributions import Bernoulli, Categorical, MixtureSameFamily, Normal, Poisson

from zoo.evaluation import metrics, mixtures
from zoo.evaluation.estimates import share_estimate
from zoo.evaluation.metrics import predictive_figures


def gaussian_mixture(points: int, components: int, dtype=torch.float64) -> MixtureSameFamily:
    g = torch.Generator().manual_seed(0)
    means = torch.randn(points, 1, generator=g) + torch.randn(points, components, generator=g)
    sds = 0.3 + torch.rand(points, components, generator=g)
    weights = 0.1 + torch.rand(points, components, generator=g)
    return MixtureSameFamily(Categorical(weights.to(dtype)), Normal(means.to(dtype), sds.to(dtype)))


def in_unit(predictive: MixtureSameFamily, scale: float, shift: float) -> MixtureSameFamily:
    parts = predictive.component_distribution
    return MixtureSameFamily(
        predictive.mixture_distribution, Normal(parts.loc * scale + shift, parts.scale * scale)
    )


def targets(points: int, seed: int = 1) -> torch.Tensor:
    return 1.5 * torch.randn(points, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ------------------------------------------------------------------------------------------------ the closed


def test_rmse_and_its_error_against_repeated_test_sets():
    """The mean over many test sets is the truth, and their scatter is the standard error."""
    g = torch.Generator().manual_seed(0)
    results = []
    for _ in range(400):
        y = 2 * torch.randn(200, generator=g, dtype=torch.float64)
        estimate = metrics.rmse(Normal(torch.zeros(200), torch.ones(200)), y, target_scale=3.0)
        results.append((estimate.value, estimate.se))
    values, errors = np.array(results).T
    assert values.mean() == pytest.approx(6, abs=4 * values.std() / 20 + 0.01)
    assert errors.mean() == pytest.approx(values.std(), rel=0.15)


def test_log_likelihood_of_a_mixture_equals_scipy():
    predictive, y = gaussian_mixture(40, 7), targets(40)
    parts, weights = predictive.component_distribution, predictive.mixture_distribution.probs
    by_hand = np.log((weights.numpy() * scipy.stats.norm.pdf(y[:, None], parts.loc, parts.scale)).sum(-1))
    estimate = metrics.log_likelihood(predictive, y)
    assert estimate.value == pytest.approx(by_hand.mean(), abs=1e-12)
    assert estimate.se == pytest.approx(scipy.stats.sem(by_hand), rel=1e-12)


@pytest.mark.parametrize("components", [1, 3, pytest.param(80, marks=pytest.mark.slow)])
def test_crps_against_monte_carlo(components):
    predictive, y = gaussian_mixture(3, components), targets(3)
    torch.manual_seed(0)
    a, b = predictive.sample((40_000,)), predictive.sample((40_000,))
    draws = (a - y).abs() - 0.5 * (a - b).abs()
    error = draws.std(0) / math.sqrt(len(draws))
    assert ((mixtures.crps_values(predictive, y) - draws.mean(0)).abs() < 4.5 * error).all()


@pytest.mark.parametrize("components", [40, 64, 65, 300])
def test_crps_on_both_sides_of_the_switch_equals_scoringrules(components):
    predictive, y = gaussian_mixture(6, components), targets(6)
    parts, weights = predictive.component_distribution, predictive.mixture_distribution.probs
    expected = scoringrules.crps_mixnorm(*(t.numpy() for t in (y, parts.loc, parts.scale, weights)))
    np.testing.assert_allclose(mixtures.crps_values(predictive, y), expected, rtol=1e-9)


def test_crps_of_a_narrow_component_in_a_wide_mixture_goes_over_pairs():
    """A spike beside wide components would need millions of nodes; the answer stays exact, in another chunk
    size too.
    """
    predictive, y = gaussian_mixture(3, 80), targets(3)
    parts, weights = predictive.component_distribution, predictive.mixture_distribution.probs
    parts.scale[1, 5] = 1e-6
    expected = scoringrules.crps_mixnorm(*(t.numpy() for t in (y, parts.loc, parts.scale, weights)))
    assert mixtures._node_counts(next(mixtures.chunks(predictive))[1])[1] > 1e6
    np.testing.assert_allclose(mixtures.crps_values(predictive, y), expected, rtol=1e-9)


def test_crps_of_a_point_that_needs_many_nodes_beside_points_that_need_few():
    predictive, y = gaussian_mixture(3, 300), targets(3)
    parts, weights = predictive.component_distribution, predictive.mixture_distribution.probs
    parts.scale[1] = 0.02
    nodes = mixtures._node_counts(next(mixtures.chunks(predictive))[1])
    assert 2 * max(nodes[0], nodes[2]) < nodes[1] < mixtures.PAIR_COST * 300
    expected = scoringrules.crps_mixnorm(*(t.numpy() for t in (y, parts.loc, parts.scale, weights)))
    np.testing.assert_allclose(mixtures.crps_values(predictive, y), expected, rtol=1e-9)


def test_quadrature_is_exact_where_it_is_hardest():
    """Equal sds make the integrand least smooth; E|X - X'| of one Gaussian is 2 sd / sqrt(pi)."""
    one = mixtures.Mixture(*(torch.tensor([[v]], dtype=torch.float64) for v in (1.0, 0.3, 1.7)))
    nodes = int(mixtures._node_counts(one))
    assert nodes < 30
    assert mixtures._spread(one, nodes).item() == pytest.approx(2 * 1.7 / math.sqrt(math.pi), rel=1e-11)


def test_results_do_not_depend_on_the_chunks(monkeypatch):
    predictive, y = gaussian_mixture(11, 90), targets(11)
    whole = (
        predictive_figures(predictive, y, "regression"),
        metrics.mixture_quantiles(predictive, [0.05, 0.5]),
    )
    monkeypatch.setattr(mixtures, "CHUNK_NUMBERS", 200)
    monkeypatch.setattr(mixtures, "CACHED_NUMBERS", 200)
    parts = (
        predictive_figures(predictive, y, "regression"),
        metrics.mixture_quantiles(predictive, [0.05, 0.5]),
    )
    torch.testing.assert_close(parts[1], whole[1], rtol=1e-12, atol=1e-12)
    for name, estimate in whole[0].items():
        assert parts[0][name].value == pytest.approx(estimate.value, rel=1e-11), name


def test_quantiles_invert_the_cdf_and_equal_scipy_for_a_normal():
    levels = [0.05, 0.5, 0.95]
    predictive = gaussian_mixture(30, 20)
    quantiles = metrics.mixture_quantiles(predictive, levels)
    assert quantiles.shape == (3, 30)
    back = predictive.cdf(quantiles)
    torch.testing.assert_close(
        back, torch.tensor(levels, dtype=torch.float64)[:, None].expand(3, 30), atol=1e-12, rtol=0
    )
    normal = Normal(torch.tensor([0.0, -3.0, 1e8]).double(), torch.tensor([1.0, 2.0, 1e-3]).double())
    expected = scipy.stats.norm.ppf(np.array(levels)[:, None], normal.loc, normal.scale)
    np.testing.assert_allclose(metrics.mixture_quantiles(normal, levels), expected, rtol=1e-13, atol=1e-13)


def test_quantiles_in_a_gap_between_far_components():
    """The density between the modes is zero, so Newton's step is useless there: every point is a median."""
    means, sds = torch.tensor([[-1000.0, 1000.0]]).double(), torch.tensor([[1.0, 1e-3]]).double()
    predictive = MixtureSameFamily(Categorical(torch.tensor([[0.25, 0.75]]).double()), Normal(means, sds))
    low, middle, high = metrics.mixture_quantiles(predictive, [0.1, 0.25, 0.6]).flatten().tolist()
    assert low == pytest.approx(-1000 + scipy.stats.norm.ppf(0.4), abs=1e-9)
    assert -1000 < middle < 1000
    assert high == pytest.approx(1000 + 1e-3 * scipy.stats.norm.ppf((0.6 - 0.25) / 0.75), abs=1e-9)


def test_quantiles_of_mixtures_over_many_orders_of_magnitude():
    """Weights over six decades, sds over six, means over four: Newton alone creeps on one of these.

    The tolerance is the spacing of float64 near 1000 times the density of the narrowest component.
    """
    u = torch.rand(3, 400, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    means, sds = (u[1] - 0.5) * 10 ** (4 * u[1, :, :1] - 1), 10 ** (6 * u[2] - 4)
    predictive = MixtureSameFamily(Categorical(10 ** (-6 * u[0])), Normal(means, sds))
    levels = torch.tensor([0.001, 0.05, 0.5, 0.95, 0.9999], dtype=torch.float64)
    back = predictive.cdf(metrics.mixture_quantiles(predictive, levels.tolist()))
    torch.testing.assert_close(back, levels[:, None].expand(5, 400), atol=5e-9, rtol=0)


def test_quantiles_of_many_draws_take_few_steps_in_small_pieces(monkeypatch):
    """The predictive of a thousand draws: what predicting a long table spends its time on."""
    predictive, counts, largest = gaussian_mixture(200, 1000), [], []
    cdf = mixtures.Rates.cdf

    def counted(self, z):
        counts.append(len(z))
        largest.append(z.numel())
        return cdf(self, z)

    monkeypatch.setattr(mixtures.Rates, "cdf", counted)
    metrics.mixture_quantiles(predictive, [0.05, 0.5, 0.95])
    assert sum(counts) <= 4 * 200
    assert max(largest) <= 3 * mixtures.CACHED_NUMBERS


def test_perfect_calibration_covers_nine_tenths():
    torch.manual_seed(3)
    predictive = gaussian_mixture(8000, 5)
    estimate = metrics.coverage_90(predictive, predictive.sample())
    assert estimate.value == pytest.approx(0.9, abs=4 * estimate.se)
    assert estimate.se == pytest.approx(math.sqrt(0.09 / 8000), rel=0.05)
    lower, upper = metrics.mixture_quantiles(predictive, [0.05, 0.95])
    y = predictive.sample()
    inside = ((y >= lower) & (y <= upper)).double().mean()
    assert metrics.coverage_90(predictive, y).value == inside


def test_coverage_of_all_or_none_is_not_called_certain():
    narrow = Normal(torch.zeros(20), torch.full((20,), 0.01))
    nothing = metrics.coverage_90(narrow, torch.ones(20))
    assert nothing.value == 0
    assert 0.02 < nothing.se < 0.1


@pytest.mark.parametrize(("hits", "middle"), [(5, 7 / 9), (3, 5 / 9), (0, 2 / 9)])
def test_error_of_a_share_is_that_of_agresti_and_coull(hits, middle):
    """Of five points: that of a share of nine, with two successes and two failures more."""
    estimate = share_estimate(torch.arange(5) < hits)
    assert estimate.value == hits / 5
    assert estimate.se == pytest.approx(math.sqrt(middle * (1 - middle) / 9), rel=1e-12)


@pytest.mark.parametrize("scale", [0.01, 9.2])
def test_standardised_with_target_scale_equals_original_units(scale):
    predictive, y = gaussian_mixture(50, 6), targets(50)
    ours = predictive_figures(predictive, y, "regression", target_scale=scale)
    original = predictive_figures(in_unit(predictive, scale, 22.0), y * scale + 22.0, "regression")
    for name, estimate in original.items():
        assert ours[name].value == pytest.approx(estimate.value, rel=1e-9, abs=1e-9), name
        assert ours[name].se == pytest.approx(estimate.se, rel=1e-9), name


def test_float32_draws_are_scored_in_float64():
    predictive, y = gaussian_mixture(30, 100, dtype=torch.float32), targets(30)
    exact = MixtureSameFamily(
        Categorical(predictive.mixture_distribution.probs.double()),
        Normal(
            predictive.component_distribution.loc.double(), predictive.component_distribution.scale.double()
        ),
    )
    for name, estimate in predictive_figures(exact, y, "regression").items():
        assert predictive_figures(predictive, y, "regression")[name].value == pytest.approx(
            estimate.value, rel=1e-12
        )


# --------------------------------------------------------------------------------------------------------- cl


def class_problem(points: int = 300) -> tuple[Categorical, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    predictive = Categorical(logits=2 * torch.randn(points, 4, generator=g, dtype=torch.float64))
    torch.manual_seed(100)  # another stream than that of the logits
    return predictive, predictive.sample()


def test_class_figures_equal_scikit_learn():
    predictive, y = class_problem()
    figures = predictive_figures(predictive, y, "multiclass")
    assert set(figures) == {"log_likelihood", "accuracy", "ece"}
    assert figures["log_likelihood"].value == pytest.approx(
        -sklearn.metrics.log_loss(y, predictive.probs), rel=1e-12
    )
    assert figures["accuracy"].value == sklearn.metrics.accuracy_score(y, predictive.probs.argmax(-1))


def test_bernoulli_is_a_categorical_with_two_classes():
    g = torch.Generator().manual_seed(0)
    p = torch.rand(200, generator=g, dtype=torch.float64)
    y = torch.bernoulli(p, generator=g).long()
    binary = predictive_figures(Bernoulli(probs=p), y, "binary")
    two = predictive_figures(Categorical(torch.stack((1 - p, p), -1)), y, "multiclass")
    assert binary["log_likelihood"].value == pytest.approx(-sklearn.metrics.log_loss(y, p), rel=1e-12)
    for name, estimate in two.items():
        assert binary[name].value == pytest.approx(estimate.value, rel=1e-12), name


def test_ece_by_hand():
    """0.9 and 0.92 share a bin; 0.6 = 9/15 is the closed end of one bin and 0.62 lies in the next."""
    p = torch.tensor([0.9, 0.92, 0.1, 0.4, 0.62], dtype=torch.float64)  # top labels 1, 1, 0, 0, 1
    y = torch.tensor([1, 0, 0, 1, 1])
    gaps = abs((0.9 + 0.92 + 0.9) - 2) + 0.6 + abs(0.62 - 1)
    assert metrics.ece(Bernoulli(probs=p), y).value == pytest.approx(gaps / 5, abs=1e-12)


def test_ece_equals_a_loop_over_bins_and_its_error_the_scatter():
    predictive, y = class_problem()
    confidence, label = predictive.probs.max(-1)
    expected = 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            right = (label == y)[inside].double().mean()
            expected += inside.double().mean() * (right - confidence[inside].mean()).abs()
    assert metrics.ece(predictive, y).value == pytest.approx(expected.item(), abs=1e-12)
    overconfident, results = Categorical(probs=torch.tensor([[0.95, 0.05]]).expand(400, 2)), []
    g = torch.Generator().manual_seed(0)
    for _ in range(300):
        estimate = metrics.ece(overconfident, (torch.rand(400, generator=g) > 0.7).long())
        results.append((estimate.value, estimate.se))
    values, errors = np.array(results).T
    assert values.mean() == pytest.approx(0.25, abs=0.01)
    assert errors.mean() == pytest.approx(values.std(), rel=0.15)


def test_a_calibrated_classifier_has_a_small_ece():
    predictive, y = class_problem(points=20_000)
    assert metrics.ece(predictive, y).value < 0.02


# ------------------------------------------------------------------------------------------------------- bad


@pytest.mark.parametrize(
    ("predictive", "y", "word"),
    [
        (Normal(torch.zeros(0), torch.ones(0)), torch.zeros(0), "empty"),
        (Normal(torch.zeros(3), torch.ones(3)), torch.zeros(3, 1), r"\[N\]"),
        (Normal(torch.zeros(3), torch.ones(3)), torch.zeros(4), "batch shape"),
        (Normal(torch.zeros(3), torch.ones(3)), torch.tensor([0.0, torch.nan, 0.0]), "test point 1"),
        (Normal(torch.tensor([0, torch.inf]), torch.ones(2), validate_args=False), torch.zeros(2), "point 1"),
        (Normal(torch.zeros(2), torch.zeros(2), validate_args=False), torch.zeros(2), "not positive"),
        (Normal(torch.zeros(2), torch.ones(2)), torch.full((2,), 1e200, dtype=torch.float64), "float64"),
        (Poisson(torch.ones(3)), torch.ones(3), "Poisson"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_the_name_of_the_method(predictive, y, word):
    with pytest.raises(ValueError, match=f"^mean-field: .*({word})"):
        predictive_figures(predictive, y, "regression", method="mean-field")


def test_labels_may_be_true_and_false():
    law, labels = Bernoulli(probs=torch.tensor([0.2, 0.9, 0.7])), torch.tensor([False, True, False])
    for metric in (metrics.accuracy, metrics.ece, metrics.log_likelihood):
        assert metric(law, labels) == metric(law, labels.double())


@pytest.mark.parametrize("labels", [[0, 3], [0, -1]])
def test_labels_out_of_range_are_refused(labels):
    with pytest.raises(ValueError, match=r"labels: not all among 0\.\.2"):
        predictive_figures(Categorical(torch.ones(2, 3)), torch.tensor(labels), "multiclass")


def test_unknown_task_and_wrong_family_are_refused():
    with pytest.raises(ValueError, match="'counts', known: regression"):
        predictive_figures(Normal(torch.zeros(2), torch.ones(2)), torch.zeros(2), "counts")
    with pytest.raises(ValueError, match="Bernoulli or Categorical, not Normal"):
        predictive_figures(Normal(torch.zeros(2), torch.ones(2)), torch.zeros(2), "binary")
    with pytest.raises(ValueError, match="levels"):
        metrics.mixture_quantiles(Normal(torch.zeros(2), torch.ones(2)), [0.0])


def test_one_test_point_has_figures_without_errors():
    figures = predictive_figures(Normal(torch.zeros(1), torch.ones(1)), torch.ones(1), "regression")
    assert figures["rmse"].value == 1
    assert [figures[name].se for name in ("rmse", "log_likelihood", "crps")] == [None] * 3


def test_empty_quantiles():
    assert metrics.mixture_quantiles(Normal(torch.zeros(0), torch.ones(0)), [0.5]).shape == (1, 0)


@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.ece, metrics.log_likelihood])
def test_labels_that_are_no_class_are_refused_by_all(metric):
    for labels in ([0.0, 2.0], [0.5, 1.0]):
        with pytest.raises(ValueError, match=r"labels: not all among 0\.\.1"):
            metric(Bernoulli(probs=torch.tensor([0.3, 0.6])), torch.tensor(labels))


@pytest.mark.parametrize("metric", [metrics.rmse, metrics.crps, metrics.log_likelihood])
def test_scales_that_are_none_are_refused(metric):
    for scale in (0.0, -3.0, math.nan):
        with pytest.raises(ValueError, match="target_scale must be positive"):
            metric(gaussian_mixture(3, 2), targets(3), scale)


@pytest.mark.parametrize("metric", [metrics.accuracy, metrics.log_likelihood])
def test_several_outputs_a_row_are_refused(metric):
    with pytest.raises(ValueError, match=r"must be \[N\]"):
        metric(Bernoulli(probs=torch.full((3, 2), 0.4)), torch.zeros(3, 2))
