"""Likelihoods of every kind: their predictive and function, their log-likelihood, and what ArviZ is told."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine

from guides.posterior import Posterior
from guides.posterior.arviz_io import import_arviz
from guides.posterior.evaluate import observed_laws
from guides.posterior.law_of_draws import LawsOfDraws, MixtureOfDraws
from guides.posterior.predictive import function_values
from guides.testing import assert_mean, normal

az = import_arviz()
S, N, P = 40, 6, 2


def model_of(law, event: int = 0, size: tuple[int, ...] = (P,)):
    """``law(f)`` of ``f = x w``: ``[N]``, or ``[N, size[1]]``."""

    def model(x, y=None):
        w = pyro.sample("w", normal(list(size)))
        with pyro.plate("data", len(x)):
            return pyro.sample("y", law(x @ w).to_event(event), obs=y)

    return model


LAWS = {
    "poisson": (lambda f: dist.Poisson(f.exp()), lambda f: f.exp()),
    "student": (lambda f: dist.StudentT(3.0, f, 0.5), lambda f: f),
    "cauchy": (lambda f: dist.Cauchy(f, 0.5), lambda f: f),
    "negative binomial": (lambda f: dist.NegativeBinomial(4.0, logits=f), lambda f: 4 * f.exp()),
    "gamma": (lambda f: dist.Gamma(2.0, f.exp()), lambda f: 2 / f.exp()),
    "zero-inflated": (
        lambda f: dist.ZeroInflatedPoisson(f.exp(), gate=torch.tensor(0.3)),
        lambda f: 0.7 * f.exp(),
    ),
    "normal": (lambda f: dist.Normal(f, 0.5), lambda f: f),
}


def problem(name: str, shape: tuple[int, ...] = (P,)):
    """A posterior, inputs, data, and the noiseless output of every draw ``[S, N]``."""
    generator = torch.Generator().manual_seed(5)
    w, x = 0.5 * torch.randn(S, *shape, generator=generator), torch.randn(N, P, generator=generator)
    law = LAWS[name][0]
    f = x @ w if len(shape) > 1 else torch.einsum("np,sp->sn", x, w)
    torch.manual_seed(0)
    return Posterior.from_draws(model_of(law), {"w": w}, {"method": "test"}), x, law(f[0]).sample(), f


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", LAWS)
def test_predictive_is_the_mixture_of_the_laws_of_all_draws(name):
    posterior, x, y, f = problem(name)
    law, function = LAWS[name]
    predictive = posterior.predictive(x)
    assert (predictive.batch_shape, predictive.event_shape) == ((N,), ())
    expected = torch.stack([law(row).log_prob(y) for row in f])
    torch.testing.assert_close(predictive.log_prob(y), expected.logsumexp(0) - math.log(S))
    torch.testing.assert_close(posterior.function(x), function(f))
    torch.testing.assert_close(posterior.predictive(x, noise=False).mean, function(f).mean(0))
    if name != "cauchy":
        torch.testing.assert_close(predictive.mean, function(f).mean(0))
        total = torch.stack([law(row).variance for row in f]).mean(0) + function(f).var(0, correction=0)
        torch.testing.assert_close(predictive.variance, total)
    torch.manual_seed(1)
    sample = predictive.sample(torch.Size([4000]))
    assert sample.shape == (4000, N)
    threshold = y + 0.25  # a share, which every law has
    share = torch.stack([(law(row).sample(torch.Size([4000])) <= threshold).float().mean(0) for row in f])
    assert_mean((sample <= threshold).float(), share.mean(0))
    assert posterior.function(x, n=3).shape == (3, N)


@pytest.mark.filterwarnings("ignore:Estimated shape")  # made-up draws
@pytest.mark.parametrize("name", LAWS)
def test_log_likelihood_and_arviz_groups_of_every_law(name):
    posterior, x, y, f = problem(name)
    expected = torch.stack([LAWS[name][0](row).log_prob(y) for row in f])
    torch.testing.assert_close(posterior.log_likelihood(x, observed_data={"y": y})["y"], expected)
    idata = posterior.to_arviz(x, observed_data={"y": y}, prior=7)
    np.testing.assert_allclose(idata["log_likelihood"]["y"].values[0], expected, rtol=1e-5)
    assert idata["posterior_predictive"]["y"].shape == (1, S, N)
    assert idata["prior"]["w"].shape == (1, 7, P)
    assert idata["prior_predictive"]["y"].shape == (1, 7, N)
    assert math.isfinite(az.loo(idata).elpd_loo)


def test_the_laws_of_draws_are_one_distribution():
    posterior, x, y, f = problem("poisson")
    laws = observed_laws(posterior.model, posterior.draws(), x)
    whole = dist.Poisson(f.exp())
    assert laws.batch_shape == whole.batch_shape
    for value in (y, y.expand(S, N), y.expand(3, S, N)):
        torch.testing.assert_close(laws.log_prob(value), whole.log_prob(value))
    torch.testing.assert_close(laws.variance, whole.variance)
    assert laws.sample(torch.Size([3, 2])).shape == (3, 2, S, N)


# ------------------------------------------------------------------------------------------- events and masks


@pytest.mark.parametrize("name", ["normal", "student"])
def test_an_event_is_one_observation(name):
    law = LAWS[name][0]
    w = torch.randn(S, P, 3)
    posterior = Posterior.from_draws(model_of(law, event=1, size=(P, 3)), {"w": w})
    x, y = torch.randn(N, P), torch.randn(N, 3)
    expected = law(torch.einsum("np,spd->snd", x, w)).log_prob(y).sum(-1)
    idata = posterior.to_arviz(
        x, observed_data={"y": y}, dims={"y": ["row", "coordinate"]}, coords={"coordinate": ["a", "b", "c"]}
    )
    likelihood = idata["log_likelihood"]["y"]
    assert likelihood.dims == ("chain", "draw", "row")
    np.testing.assert_allclose(likelihood.values[0], expected, rtol=1e-4)
    assert idata["posterior_predictive"]["y"].shape == (1, S, N, 3)
    assert list(idata["observed_data"]["coordinate"].values) == ["a", "b", "c"]
    assert posterior.function(x).shape == (S, N, 3)


def test_a_law_of_vectors_is_one_observation_a_vector():
    def model(x, y=None):
        w = pyro.sample("w", normal([P, 3]))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.MultivariateNormal(x @ w, torch.eye(3)), obs=y)

    w, x, y = torch.randn(S, P, 3), torch.randn(N, P), torch.randn(N, 3)
    posterior = Posterior.from_draws(model, {"w": w})
    f = torch.einsum("np,spd->snd", x, w)
    expected = dist.Normal(f, 1.0).log_prob(y).sum(-1)
    torch.testing.assert_close(posterior.log_likelihood(x, observed_data={"y": y})["y"], expected)
    law = posterior.predictive(x)
    assert (law.batch_shape, law.event_shape) == ((N,), (3,))
    torch.testing.assert_close(law.log_prob(y), expected.logsumexp(0) - math.log(S))
    torch.manual_seed(0)
    sample = law.sample(torch.Size([4000]))
    assert_mean(sample, f.mean(0))
    covariance = torch.einsum("sni,snj->ij", sample - f.mean(0), sample - f.mean(0)) / (4000 * N)
    spread = f - f.mean(0)  # a draw is picked for a vector, not for a coordinate
    expected = torch.eye(3) + torch.einsum("sni,snj->ij", spread, spread) / (S * N)
    torch.testing.assert_close(covariance, expected, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("how", ["law", "handler", "all"])
def test_masked_rows_are_predicted_and_add_nothing_to_the_likelihood(how):
    keep = torch.arange(N) % 2 == 0

    def model(x, y=None):
        w = pyro.sample("w", normal([P]))
        law = dist.Normal(x @ w, 0.5)
        if how == "law":
            law = law.mask(keep)
        with pyro.plate("data", len(x)), poutine.mask(mask={"law": True, "handler": keep, "all": False}[how]):
            pyro.sample("y", law, obs=y)

    w, x, y = torch.randn(S, P), torch.randn(N, P), torch.randn(N)
    posterior = Posterior.from_draws(model, {"w": w})
    plain = Posterior.from_draws(model_of(LAWS["normal"][0]), {"w": w})
    torch.testing.assert_close(posterior.predictive(x).log_prob(y), plain.predictive(x).log_prob(y))
    expected = plain.log_likelihood(x, observed_data={"y": y})["y"] * (keep if how != "all" else 0)
    torch.testing.assert_close(posterior.log_likelihood(x, observed_data={"y": y})["y"], expected)


# ---------------------------------------------------------------------------------------------- several sites


def two_sites(x, y=None, z=None):
    w = pyro.sample("w", normal([P]))
    f = pyro.deterministic("f", x @ w)
    with pyro.plate("data", len(x)):
        y = pyro.sample("y", dist.Poisson(f.exp()), obs=y)
        pyro.sample("z", dist.Normal(f + y, 0.5), obs=z)


def test_two_observed_sites():
    """The second depends on the first: it is scored given its data."""
    w, x = 0.5 * torch.randn(S, P), torch.randn(N, P)
    posterior = Posterior.from_draws(two_sites, {"w": w})
    y, z, f = torch.ones(N), torch.randn(N), torch.einsum("np,sp->sn", x, w)
    with pytest.raises(ValueError, match="the model has 'y', 'z': pass site=NAME"):
        posterior.predictive(x)
    torch.testing.assert_close(posterior.function(x, site="y"), f.exp())
    assert posterior.predictive(x, site="z").batch_shape == (N,)
    idata = posterior.to_arviz(x, observed_data={"y": y, "z": z})
    laws = {"y": dist.Poisson(f.exp()), "z": dist.Normal(f + y, 0.5)}
    for name, expected in (("y", laws["y"].log_prob(y)), ("z", laws["z"].log_prob(z))):
        np.testing.assert_allclose(idata["log_likelihood"][name].values[0], expected, rtol=1e-4, atol=1e-5)
    replicates = {name: idata["posterior_predictive"][name].values[0] for name in "yz"}
    noise = replicates["z"] - f.numpy() - replicates["y"]  # drawn together
    assert abs(noise.std() - 0.5) < 0.1


def test_a_deterministic_site_is_asked_for_by_name():
    w, x = torch.randn(S, P), torch.randn(N, P)
    posterior = Posterior.from_draws(two_sites, {"w": w})
    f = torch.einsum("np,sp->sn", x, w)
    torch.testing.assert_close(posterior.function(x, site="f"), f)
    torch.testing.assert_close(posterior.predictive(x, site="f").mean, f.mean(0))


@pytest.mark.parametrize("name", ["nonsense", "w", "f"])
def test_data_of_a_site_that_is_not_observed_are_refused_with_the_names_of_those_that_are(name):
    posterior = Posterior.from_draws(two_sites, {"w": torch.randn(S, P)})
    with pytest.raises(ValueError, match=f"no observed site '{name}'; it has 'y', 'z'"):
        posterior.to_arviz(torch.randn(N, P), observed_data={"y": torch.ones(N), name: torch.ones(N)})
    if name != "f":
        with pytest.raises(ValueError, match=f"no site '{name}' to predict; it has 'y', 'z'"):
            posterior.predictive(torch.randn(N, P), site=name)


@pytest.mark.parametrize("shape", [(N - 1,), (N, 1), (1,)])
def test_data_of_another_shape_are_refused(shape):
    posterior, x, *_ = problem("normal")
    with pytest.raises(ValueError, match=rf"site 'y' has shape \[{N}\] in the model, the data \["):
        posterior.to_arviz(x, observed_data={"y": torch.zeros(shape)})


def test_labels_are_whole_numbers():
    model = model_of(lambda f: dist.Categorical(logits=f), size=(P, 3))
    posterior = Posterior.from_draws(model, {"w": torch.randn(S, P, 3)})
    x, labels = torch.randn(N, P), torch.tensor([0, 1, 2, 0, 1, 2])
    expected = posterior.log_likelihood(x, observed_data={"y": labels})["y"]
    assert torch.equal(posterior.log_likelihood(x, observed_data={"y": labels.double()})["y"], expected)
    with pytest.raises(ValueError, match="'y' takes whole numbers"):
        posterior.log_likelihood(x, observed_data={"y": labels + 0.5})


# ------------------------------------------------------------------------------------------------ ArviZ users


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_data_are_taken(dtype):
    posterior, x, y, _ = problem("normal")
    a, b = x.numpy().astype(dtype), y.numpy().astype(dtype)[::-1]
    a.flags.writeable = False
    torch.testing.assert_close(posterior.function(a), posterior.function(x))
    torch.testing.assert_close(posterior.predictive(x=a).mean, posterior.predictive(x).mean)
    torch.testing.assert_close(posterior.function(pd.DataFrame(a)), posterior.function(x))
    found = posterior.to_arviz(a, observed_data={"y": b})
    expected = posterior.log_likelihood(x, observed_data={"y": y.flip(0)})["y"]
    np.testing.assert_array_equal(found["log_likelihood"]["y"].values[0], expected)
    assert found["observed_data"]["y"].dtype == dtype
    ints = Posterior.from_draws(model_of(lambda f: dist.Bernoulli(logits=f)), posterior.draws())
    labels = np.array([0, 1, 1, 0, 1, 0])
    assert ints.log_likelihood(a, observed_data={"y": labels})["y"].shape == (S, N)


def test_a_model_of_tables_is_given_tables():
    """Texts in a column too, which no tensor holds."""

    def model(table):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        old = torch.tensor((table["kind"] == "old").to_numpy(), dtype=torch.float32)
        x = torch.tensor(table["x"].to_numpy(), dtype=torch.float32)
        y = torch.tensor(table["y"].to_numpy()) if "y" in table else None
        with pyro.plate("data", len(table)):
            pyro.sample("y", dist.Normal(w[0] * x + w[1] * old, 1.0), obs=y)

    table = pd.DataFrame({"x": [0.0, 1.0, 2.0], "kind": ["old", "new", "old"]})
    w = torch.randn(S, 2)
    posterior = Posterior.from_draws(model, {"w": w})
    expected = torch.stack([w[:, 1], w[:, 0], 2 * w[:, 0] + w[:, 1]], 1)
    torch.testing.assert_close(posterior.function(table), expected)
    torch.testing.assert_close(posterior.predictive(table=table).mean, expected.mean(0))
    with pytest.raises(KeyError, match="x"):  # the model's own error, of the table
        posterior.function(table[["kind"]])
    with pytest.raises((TypeError, IndexError)) as raised:  # of the tensor in its place
        posterior.function(table[["x"]])
    assert isinstance(raised.value.__cause__, KeyError)
    y = np.array([0.5, -1.0, 2.0])
    found = posterior.log_likelihood(table, observed_data={"y": y})["y"]
    torch.testing.assert_close(found, dist.Normal(expected, 1.0).log_prob(torch.tensor(y).float()))


def test_dims_and_coords_name_sites_data_and_replicates():
    posterior, x, y, _ = problem("normal")
    idata = posterior.to_arviz(
        x,
        observed_data={"y": y},
        prior=3,
        dims={"w": ["feature"], "y": ["row"]},
        coords={"feature": ["age", "sex"], "row": np.arange(10, 10 + N)},
    )
    assert idata["posterior"]["w"].dims == idata["prior"]["w"].dims == ("chain", "draw", "feature")
    assert list(idata["posterior"]["feature"].values) == ["age", "sex"]
    for group in ("posterior_predictive", "log_likelihood", "observed_data", "prior_predictive"):
        assert idata[group]["y"].dims[-1] == "row"
        assert idata[group]["row"].values[0] == 10
    with pytest.raises(ValueError, match="dims names 2 dimensions of 'w'"):
        posterior.to_arviz(dims={"w": ["a", "b"]})


def test_a_posterior_is_printed_on_one_line():
    posterior, *_ = problem("normal")
    assert repr(posterior) == "Posterior(test: 40 draws; w [2])"
    sites = {f"w{i}": torch.zeros(2, 30, 50, 13) for i in range(8)}
    line = repr(Posterior(posterior.model, sites, {"method": "nuts", "notes": "x" * 999}))
    shown = ", ".join(f"w{i} [50, 13]" for i in range(5))
    assert line == f"Posterior(nuts: 2 chains of 30 draws; {shown}, 3 more)"
    assert repr(Posterior(posterior.model, {})) == "Posterior(no draws)"


def test_the_function_of_students_law_without_a_mean_is_its_centre():
    loc = torch.randn(3, 4)
    laws = LawsOfDraws([dist.StudentT(0.9, row, 2.0) for row in loc])
    assert laws.mean.isnan().all()
    assert torch.equal(function_values(laws), loc)


def test_a_sample_of_a_mixture_is_of_each_law_alike():
    """Of three that do not meet: a third of each, within 4.5 standard errors."""
    rates, n = torch.tensor([1.0, 1e3, 1e6]), 9000
    mixture = MixtureOfDraws(LawsOfDraws([dist.Poisson(rate.expand(2)) for rate in rates]))
    sample = mixture.sample(torch.Size([n]))
    shares = [(sample < 100), (sample > 100) & (sample < 1e5), (sample > 1e5)]
    for share in shares:
        assert (abs(share.double().mean(0) - 1 / 3) < 4.5 * (2 / 9 / n) ** 0.5).all()


def test_elements_of_a_sample_of_a_mixture_pick_laws_of_their_own():
    """Of two that do not meet: two elements are of the same one in half of the samples."""
    rates, n = torch.tensor([1.0, 1e6]), 4000
    mixture = MixtureOfDraws(LawsOfDraws([dist.Poisson(rate.expand(2)) for rate in rates]))
    first, second = (mixture.sample(torch.Size([n])) > 1e3).unbind(1)
    assert abs((first == second).double().mean() - 0.5) < 4.5 * 0.5 / n**0.5


def test_the_function_of_several_outputs_without_a_mean_is_their_centre():
    """Of Cauchy's laws, two outputs a row as one event."""
    w, x = torch.randn(S, P, 2), torch.randn(N, P)
    posterior = Posterior.from_draws(model_of(lambda f: dist.Cauchy(f, 0.5), event=1, size=(P, 2)), {"w": w})
    torch.testing.assert_close(posterior.function(x), x @ w)
