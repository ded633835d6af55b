"""A power of a density, by ``scale``, is sampled as it stands: other coordinates would change it.  Elements
that a mask hides from all that counts have their prior back: flat, no chain would ever return from them.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as ndist
import pyro
import pyro.distributions as dist
import pytest
import torch
from numpyro import handlers
from pyro import poutine

from guides.posterior import log_joint
from guides.testing import z_bound
from guides.truth import Gates, nuts
from guides.truth.sampled_sites import pyro_sites, twin_sites
from tests.guides.truth.moments import moments

Y, POWER = np.array([1.2, -0.4, 2.0, 0.3, -1.5]), 0.3
LOOSE = Gates(max_rhat=1.2, min_ess_bulk=10, max_divergence_share=0.1)
GRID = torch.linspace(-12, 12, 4801, dtype=torch.float64)


def tempered(y):
    """A power of the joint density of five effects and their latent scale."""
    with poutine.scale(scale=POWER):
        s = pyro.sample("s", dist.LogNormal(torch.zeros_like(y[0]), 1.0))
        with pyro.plate("groups", len(y)):
            b = pyro.sample("b", dist.Normal(0.0, s))
            pyro.sample("y", dist.Normal(b, 1.0), obs=y)


def twin(y):
    """The same with a power of the density of log s, in place of that of s."""
    with handlers.scale(scale=POWER):
        log_s = numpyro.sample("log_s", ndist.Normal(0.0, 1.0))
        with numpyro.plate("groups", len(y)):
            b = numpyro.sample("b", ndist.Normal(0.0, jnp.exp(log_s)))
            numpyro.sample("y", ndist.Normal(b, 1.0), obs=y)


def exact(log_prior: torch.Tensor) -> np.ndarray:
    """Mean and sd of log s: effects integrated out, and quadrature.

    :param log_prior: of log s, at ``GRID``
    """
    ls, log_density = GRID, log_prior.clone()
    for y in torch.as_tensor(Y):
        precision = POWER / ls.exp() ** 2 + POWER
        log_density += -POWER * ls - 0.5 * precision.log() + 0.5 * (POWER * y) ** 2 / precision
    weights = torch.softmax(log_density, 0)
    mean = (weights * ls).sum()
    return np.array([mean, (weights * (ls - mean) ** 2).sum().sqrt()])


@pytest.mark.slow
def test_a_tempered_hierarchy_is_that_of_quadrature():
    found = nuts(
        tempered,
        (torch.as_tensor(Y),),
        backend="pyro",
        warmup=100,
        draws=100,
        chains=2,
        retries=0,
        gates=LOOSE,
        progress=False,
    )
    prior = POWER * dist.LogNormal(torch.zeros_like(GRID), 1.0).log_prob(GRID.exp()) + GRID
    assert_has_moments(np.log(found.draws["s"]), exact(prior))


@pytest.mark.slow
def test_a_tempered_hierarchy_by_numpyro():
    found = nuts(twin, (Y,), draws=2000, chains=4, gates=LOOSE, progress=False)
    prior = POWER * dist.Normal(torch.zeros_like(GRID), 1.0).log_prob(GRID)
    assert_has_moments(found.draws["log_s"], exact(prior))


def assert_has_moments(draws: np.ndarray, truth: np.ndarray) -> None:
    value, error = moments(draws[..., None].astype(float))
    assert (np.abs(value[:, 0] - truth) < z_bound(2) * error[:, 0]).all(), (value, error, truth)


def test_a_map_to_a_support_that_numpyro_would_scale_is_refused():
    def model():
        with handlers.scale(scale=0.5):
            numpyro.sample("s", ndist.Gamma(2.0, 1.0))

    with pytest.raises(ValueError, match=r"'s' lies under handlers\.scale"):
        nuts(model, (), draws=10, chains=2, progress=False)


def test_sites_whose_density_is_scaled_or_masked_are_left_centred():
    def mixed(y):
        pyro.sample("plain", dist.Normal(0.0, 1.0))
        with poutine.mask(mask=torch.tensor([True, False])):
            pyro.sample("masked", dist.Normal(torch.zeros(2), 1.0))
        tempered(y)

    assert pyro_sites(mixed, (torch.as_tensor(Y),), {}) == (["plain", "masked", "s", "b"], ["plain"])

    def mixed_twin(y):
        numpyro.sample("plain", ndist.Normal(0.0, 1.0))
        with handlers.mask(mask=np.array([True, False])):
            numpyro.sample("masked", ndist.Normal(np.zeros(2), 1.0))
        twin(y)

    assert twin_sites(mixed_twin, (Y,), {}) == (["plain", "masked", "log_s", "b"], ["plain"])


SEEN = torch.tensor([True, True, True, False, True])


def partly_seen(y):
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(y)):
        pyro.sample("y", dist.Normal(b, 1.0), obs=y, obs_mask=SEEN)


@pytest.mark.slow
def test_outcomes_in_part_unseen_have_the_predictive_of_what_was_seen():
    y = torch.as_tensor(Y, dtype=torch.float32)
    settings = {"warmup": 60, "draws": 100, "retries": 0, "gates": LOOSE, "progress": False}
    found = nuts(partly_seen, (y,), backend="pyro", **settings)
    assert found.passed, found.reason
    variance = 1 / (1 + 4)
    mean = variance * Y[SEEN.numpy()].sum()
    assert_has_moments(found.draws["b"], np.array([mean, variance**0.5]))
    for element in range(5):  # the four that were seen, too: nothing looks at them
        assert_has_moments(found.draws["y_unobserved"][..., element], np.array([mean, (1 + variance) ** 0.5]))


def test_a_joint_density_counts_padding_with_its_prior():
    y = torch.as_tensor(Y, dtype=torch.float32)
    draws = {"b": torch.tensor([0.3, -1.0]), "y_unobserved": torch.linspace(-2, 2, 10).reshape(2, 5)}
    b = draws["b"][:, None]
    expected = dist.Normal(0.0, 1.0).log_prob(draws["b"]) + dist.Normal(b, 1.0).log_prob(y)[:, SEEN].sum(1)
    expected = expected + dist.Normal(b, 1.0).log_prob(draws["y_unobserved"]).sum(1)
    torch.testing.assert_close(log_joint(partly_seen, draws, y), expected)


def test_a_masked_element_that_data_look_at_keeps_its_flat_prior():
    def looked_at(y):
        with poutine.mask(mask=SEEN):
            b = pyro.sample("b", dist.Normal(torch.zeros(5), 1.0))
        pyro.sample("y", dist.Normal(b, 1.0), obs=y)

    y, b = torch.as_tensor(Y, dtype=torch.float32), torch.linspace(-2, 2, 10).reshape(2, 5)
    expected = dist.Normal(b, 1.0).log_prob(y).sum(1) + dist.Normal(0.0, 1.0).log_prob(b)[:, SEEN].sum(1)
    torch.testing.assert_close(log_joint(looked_at, {"b": b}, y), expected)
