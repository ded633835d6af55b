"""What a guide is tested with: priors, models with a known answer, yardsticks and checks.

    from guides.testing import check_guide

    def test_my_guide():
        check_guide(MyGuide)

Needs no test framework.  Random comparisons are judged by their own standard errors, at a family-wise error
of ``FAMILY_WISE`` for each of them; seeds are fixed, so that a check that passes keeps passing.
"""

from guides.testing.checks import (
    CHECKS,
    GAP,
    check_divergence,
    check_gradients,
    check_guide,
    check_minibatches,
    check_particles,
    check_posterior,
    check_same_seed,
    check_saving,
)
from guides.testing.noise import (
    Noise,
    repeats,
)
from guides.testing.problems import (
    NOISE,
    PRODUCTS,
    Case,
    data,
    exact_loss,
    exact_loss_of_draws,
    linear_model,
    moments_in_training,
    network,
    normal,
    priors_only,
    product,
    spike_slab,
)
from guides.testing.running import (
    ELBOS,
    assert_drawn_particles_are_runs,
    assert_particles_are_runs,
    drawn_losses,
    each_batch,
    fit,
    gradients,
    loss_and_gradients,
    losses,
    mean_of,
    perturb,
    vectorized,
)
from guides.testing.yardsticks import (
    FAMILY_WISE,
    assert_equal_results,
    assert_mean,
    assert_same_mean,
    assert_same_moments,
    assert_share,
    assert_variance,
    z_bound,
)

__all__ = [
    "CHECKS",
    "Case",
    "ELBOS",
    "FAMILY_WISE",
    "GAP",
    "NOISE",
    "Noise",
    "PRODUCTS",
    "assert_drawn_particles_are_runs",
    "assert_equal_results",
    "assert_mean",
    "assert_particles_are_runs",
    "assert_same_mean",
    "assert_same_moments",
    "assert_share",
    "assert_variance",
    "check_divergence",
    "check_gradients",
    "check_guide",
    "check_minibatches",
    "check_particles",
    "check_posterior",
    "check_same_seed",
    "check_saving",
    "data",
    "drawn_losses",
    "each_batch",
    "exact_loss",
    "exact_loss_of_draws",
    "fit",
    "gradients",
    "linear_model",
    "loss_and_gradients",
    "losses",
    "mean_of",
    "moments_in_training",
    "network",
    "normal",
    "perturb",
    "priors_only",
    "product",
    "repeats",
    "spike_slab",
    "vectorized",
    "z_bound",
]
