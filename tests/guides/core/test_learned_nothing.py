"""Sites that nothing is learned about are refused; points that have not arrived say so."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch

from guides import PosteriorBootstrap, fit_ensemble
from guides.core.settling import UnsettledWarning

GROUP = torch.arange(40) % 4
Y = 0.5 * GROUP + torch.randn(40, generator=torch.Generator().manual_seed(0))


def hierarchical(group, y=None):
    mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = pyro.sample("tau", dist.HalfNormal(1.0))
    with pyro.plate("groups", 4):
        a = pyro.sample("a", dist.Normal(mu, tau))
    with pyro.plate("data", len(group)):
        pyro.sample("y", dist.Normal(a[group], 1.0), obs=y)


def test_a_site_that_the_likelihood_does_not_see_is_refused():
    """Its draws would be where it starts; with the prior's density it is seen."""
    with pytest.raises(ValueError, match="does not depend on site 'mu', 'tau'.*loss='map' has its prior"):
        PosteriorBootstrap(hierarchical).fit(GROUP, Y, num_draws=2, steps=2)
    with pytest.raises(ValueError, match="site 'mu', 'tau' has not moved.*take prior=True"):
        fit_ensemble(hierarchical, GROUP, Y, members=1, steps=3, prior=False)


@pytest.mark.filterwarnings("ignore::guides.core.settling.UnsettledWarning")
def test_a_loss_of_ones_own_may_leave_a_site_out():
    def absolute(values, group, y):
        return (y - values["a"][group]).abs()

    with pytest.warns(
        UserWarning, match="does not depend on site 'mu', 'tau', whose draws would be its starts"
    ):
        PosteriorBootstrap(hierarchical, loss=absolute).fit(GROUP, Y, num_draws=2, steps=2)


@pytest.mark.filterwarnings("ignore::guides.core.settling.UnsettledWarning")
def test_a_site_that_the_prior_sees_is_fitted():
    posterior = PosteriorBootstrap(hierarchical, loss="map").fit(GROUP, Y, num_draws=2, steps=2)
    assert {"mu", "tau", "a"} <= set(posterior.draws())
    assert set(fit_ensemble(hierarchical, GROUP, Y, members=1, steps=3).draws()) == {"mu", "tau", "a"}


def test_members_that_have_not_arrived_say_so():
    """The loss of a Gaussian mean at lr 1e-3 goes on falling for 100 steps; at 0.3 it has arrived."""

    def mean(y):
        mu = pyro.sample("mu", dist.Normal(0.0, 10.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    options = {"members": 2, "steps": 200}
    with pytest.warns(UnsettledWarning, match="2 of 2 members have not arrived.*more steps"):
        short = fit_ensemble(mean, Y + 5, lr=1e-3, **options)
    assert min(short.info["last_tenth"]) > 0.5
    arrived = fit_ensemble(mean, Y + 5, lr=0.3, **options)  # a warning would be an error
    assert max(arrived.info["last_tenth"]) < 0.5
