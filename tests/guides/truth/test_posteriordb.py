"""NUTS against Stan's reference draws (posteriordb)."""

import os
from pathlib import Path

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

from guides.testing import z_bound
from guides.truth.mcmc import nuts
from tests.guides.truth.moments import moments


def regression(X, y, weights, sigma):
    """y ~ N(X beta, sigma): beta and sigma with the priors given."""
    beta = numpyro.sample("beta", weights)
    sigma = numpyro.sample("sigma", sigma)
    numpyro.sample("y", dist.Normal(X @ beta, sigma), obs=y)


def flat(k):
    """Stan's default where a model names no prior for a vector[k]."""
    return dist.ImproperUniform(constraints.real, (k,), ()).to_event(1)


def flat_positive():
    return dist.ImproperUniform(constraints.positive, (), ())


def blr(d):
    """blr.stan: beta ~ N(0, 10), sigma ~ N(0, 10) cut at 0."""
    beta = dist.Normal(0.0, 10.0).expand([5]).to_event(1)
    return regression, (d["X"], d["y"], beta, dist.HalfNormal(10.0))


def kidiq(d):
    """kidscore_interaction.stan: beta flat, sigma ~ Cauchy(0, 2.5) cut at 0; score ~ 1 + hs + iq + hs iq."""
    hs, iq = d["mom_hs"], d["mom_iq"]
    X = np.stack([np.ones(len(iq)), hs, iq, hs * iq], 1)
    return regression, (X, d["kid_score"], flat(4), dist.HalfCauchy(2.5))


def mesquite(d):
    """logmesquite.stan: beta and sigma flat; log weight ~ 1 + five logarithms + group."""
    names = ("diam1", "diam2", "canopy_height", "total_height", "density")
    X = np.stack([np.ones(46), *(np.log(d[n]) for n in names), d["group"]], 1)
    return regression, (X, np.log(d["weight"]), flat(7), flat_positive())


def earnings(d):
    """logearn_interaction_z.stan: beta and sigma flat; log earn ~ 1 + z + male + z male, z: height."""
    z = (d["height"] - d["height"].mean()) / d["height"].std(ddof=1)
    X = np.stack([np.ones(len(z)), z, d["male"], z * d["male"]], 1)
    return regression, (X, np.log(d["earn"]), flat(4), flat_positive())


def eight_schools(d):
    """eight_schools_noncentered.stan: mu ~ N(0, 5), tau ~ Cauchy(0, 5) cut at 0, theta ~ N(mu, tau).

    Written centred here: a funnel, which only automatic non-centring makes samplable.
    """

    def model(y, sigma):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
        theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([8]).to_event(1))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)

    return model, (d["y"].astype(float), d["sigma"].astype(float))


POSTERIORS = [
    ("kidiq-kidscore_interaction", kidiq, {"dense_mass": True}),
    ("eight_schools-eight_schools_noncentered", eight_schools, {"target_accept": 0.95, "draws": 1000}),
    ("mesquite-logmesquite", mesquite, {}),
    ("sblrc-blr", blr, {}),
    ("earnings-logearn_interaction_z", earnings, {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "twin", "settings"), POSTERIORS)
def test_nuts_agrees_with_stan(name, twin, settings):
    root = os.environ.get("ZOO_DATA")
    if not root:
        pytest.skip("ZOO_DATA does not name the folder of the data sets")
    file = np.load(Path(root) / "posteriordb" / f"{name}.npz", allow_pickle=False)
    model, args = twin({k.removeprefix("data_"): file[k] for k in file.files if k.startswith("data_")})
    result = nuts(model, args, float64=True, seed=1, **settings)
    assert result.passed, result.reason
    columns = []
    for parameter in file["param_names"]:  # "beta[1]" -> draws["beta"][..., 0]
        site, _, index = str(parameter).rstrip("]").partition("[")
        columns.append(result.draws[site][..., int(index) - 1] if index else result.draws[site])
    (ours, our_error), (stan, stan_error) = moments(np.stack(columns, -1)), moments(file["draws"])
    z = (ours - stan) / np.hypot(our_error, stan_error)
    assert np.abs(z).max() < z_bound(z.size * len(POSTERIORS)), z
