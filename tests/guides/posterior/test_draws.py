"""Draws, function values and predictive distributions of a posterior, from draws with known consequences."""

import math

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer.autoguide import AutoNormal

from guides.posterior.draws import Posterior
from guides.testing import (
    NOISE,
    assert_mean,
    linear_model,
    normal,
)

S, N = 60, 7


def classifier(likelihood):
    def model(x, y=None):
        w = pyro.sample("w", normal([x.shape[-1], 3]))
        f = x @ w
        with pyro.plate("data", len(x)):
            return pyro.sample("y", likelihood(f), obs=y)

    return model


MODELS = {
    "normal": linear_model(normal),
    "bernoulli": classifier(lambda f: dist.Bernoulli(logits=f[..., 0])),
    "categorical": classifier(lambda f: dist.Categorical(logits=f)),
}


def make(name: str) -> tuple[Posterior, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    shape = (S, 2) if name == "normal" else (S, 2, 3)
    w = torch.randn(shape, generator=generator)
    return (
        Posterior.from_draws(MODELS[name], {"w": w}, {"method": "test"}),
        torch.randn(N, 2, generator=generator),
        w,
    )


def test_draws_merge_chains_and_thin_evenly():
    values = torch.arange(12.0).reshape(2, 6)
    posterior = Posterior(MODELS["normal"], {"w": values})
    assert len(posterior) == 12
    assert torch.equal(posterior.draws()["w"], torch.arange(12.0))
    assert torch.equal(posterior.draws(3)["w"], torch.tensor([0.0, 6.0, 11.0]))
    with pytest.raises(ValueError, match="holds 12 draws"):
        posterior.draws(13)


def test_gaussian_predictive_is_the_mixture_over_draws():
    posterior, x, w = make("normal")
    f = torch.einsum("nd,sd->sn", x, w)
    torch.testing.assert_close(posterior.function(x), f)
    law = posterior.predictive(x)
    y = torch.randn(N)
    density = dist.Normal(f, NOISE).log_prob(y).logsumexp(0) - math.log(S)
    torch.testing.assert_close(law.log_prob(y), density)
    torch.testing.assert_close(law.mean, f.mean(0))
    torch.testing.assert_close(law.variance, f.var(0, correction=0) + NOISE**2)
    assert law.batch_shape == (N,)
    noiseless = posterior.predictive(x, noise=False)
    torch.testing.assert_close(noiseless.mean, f.mean(0))
    assert_mean(noiseless.sample(torch.Size([3000])), f.mean(0))
    assert posterior.function(x, n=5).shape == (5, N)


def test_class_predictive_averages_probabilities():
    posterior, x, w = make("categorical")
    probs = torch.softmax(torch.einsum("nd,sdk->snk", x, w).double(), -1)
    torch.testing.assert_close(posterior.predictive(x).probs.double(), probs.mean(0))
    torch.testing.assert_close(posterior.function(x).double(), torch.logit(probs), rtol=1e-4, atol=1e-5)
    posterior, x, w = make("bernoulli")
    f = torch.einsum("nd,sd->sn", x, w[..., 0])
    torch.testing.assert_close(posterior.predictive(x).probs, torch.sigmoid(f).mean(0))
    torch.testing.assert_close(posterior.function(x), f)


def test_several_sites_to_predict_need_a_name():
    def model(x):
        w = pyro.sample("w", normal([2]))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0))
            pyro.sample("z", dist.Normal(x @ w, 2.0))

    posterior = Posterior.from_draws(model, {"w": torch.zeros(3, 2)})
    with pytest.raises(ValueError, match="pass site=NAME"):
        posterior.predictive(torch.randn(4, 2))


def test_saved_and_loaded(tmp_path):
    posterior, x, w = make("normal")
    posterior.save(tmp_path / "fit.nc")
    loaded = Posterior.load(tmp_path / "fit.nc", posterior.model)
    np.testing.assert_array_equal(loaded.draws()["w"], w)
    assert loaded.info["method"] == "test"
    torch.testing.assert_close(loaded.function(x), posterior.function(x))


def test_data_that_no_site_is_named_for_are_refused_in_a_line():
    posterior = Posterior.from_draws(lambda: None, {"w": torch.zeros(3)})
    for ask in (posterior.log_likelihood, posterior.to_arviz):
        with pytest.raises(TypeError, match="takes {observed site: its data}, as in {'y': y}, not a Tensor$"):
            ask(observed_data=torch.zeros(2))


def test_to_arviz_has_the_groups():
    posterior, x, _ = make("normal")
    y = torch.randn(N)
    idata = posterior.to_arviz(x, observed_data={"y": y})
    expected = dist.Normal(posterior.function(x), NOISE).log_prob(y)
    np.testing.assert_allclose(idata["log_likelihood"]["y"].values[0], expected, rtol=1e-5)
    assert idata["posterior_predictive"]["y"].shape == (1, S, N)
    np.testing.assert_array_equal(idata["observed_data"]["y"], y)


def test_draws_of_a_guide_are_those_of_the_seed():
    class Guide:
        model = MODELS["normal"]

        def draws(self, n: int, seed: int = 0) -> dict[str, torch.Tensor]:
            return {"w": torch.full((n, 2), float(seed))}

    posterior = Posterior.from_guide(Guide(), 5, seed=3)
    assert torch.equal(posterior.draws()["w"], torch.full((5, 2), 3.0))
    assert posterior.info["draw_seed"] == 3


def test_groups_of_several_chains_belong_to_their_draws():
    """Chain by chain: what a draw gives to every observation, and data drawn by it."""
    _, x, w = make("normal")
    apart = torch.tensor([1.0, 100.0, 1e4])[:, None, None]
    posterior = Posterior(MODELS["normal"], {"w": apart * w.reshape(3, S // 3, 2)})
    y = torch.randn(N)
    groups = posterior.groups(x, observed_data={"y": y})
    f = torch.einsum("nd,csd->csn", x, posterior.sites["w"])
    np.testing.assert_allclose(groups["log_likelihood"]["y"], dist.Normal(f, NOISE).log_prob(y), rtol=1e-4)
    new = torch.as_tensor(groups["posterior_predictive"]["y"])
    assert new.shape == (3, S // 3, N)
    noise = new - f
    assert (noise.abs() < 6 * NOISE).all()  # of 420 normal numbers one in a million times
    assert abs(noise.std() / NOISE - 1) < 4.5 / (2 * noise.numel()) ** 0.5


def test_what_is_loaded_is_what_was_saved(tmp_path):
    """The facts too: what only ArviZ is told is none of them."""
    posterior, *_ = make("normal")
    posterior.save(tmp_path / "fit.nc")
    assert Posterior.load(tmp_path / "fit.nc", posterior.model).info == posterior.info == {"method": "test"}


def test_the_noiseless_predictive_of_classes_is_that_of_their_log_odds():
    """One law a row, of as many numbers as there are classes."""
    posterior, x, _ = make("categorical")
    law, f = posterior.predictive(x, noise=False), posterior.function(x)
    assert (law.batch_shape, law.event_shape) == ((N,), (3,))
    torch.testing.assert_close(law.mean, f.mean(0))
    torch.testing.assert_close(law.variance, f.var(0, correction=0))


def test_a_guide_of_others_is_told_what_to_do():
    with pytest.raises(TypeError, match="AutoNormal is no guide of this package: take Posterior.from_draws"):
        Posterior.from_guide(AutoNormal(linear_model(normal)))
