"""Group normal-Jeffreys and the horseshoe."""

import math

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import Predictive, Trace_ELBO, TraceMeanField_ELBO
from torch.distributions import kl_divergence

from guides import (
    AutoGroupNormalJeffreys,
    AutoMeanField,
    Horseshoe,
    UnsupportedSiteError,
)
from guides.testing import (
    Noise,
    assert_mean,
    assert_share,
    data,
    fit,
    linear_model,
    loss_and_gradients,
    losses,
    network,
    normal,
    perturb,
    vectorized,
)
from tests.guides.variational.one_unit import assert_expectations, errors_of, layer, local_weights


def jeffreys_loss(guide, x, y):
    loc, log_scale, z_loc, z_log_scale = guide._views(**dict(guide.named_parameters()))["w"]
    first, second = z_loc * loc, (z_loc**2 + (2 * z_log_scale).exp()) * (loc**2 + (2 * log_scale).exp())
    likelihood = errors_of(first, second - first**2, x, y)
    of_w = kl_divergence(dist.Normal(loc, log_scale.exp()), dist.Normal(0.0, 1.0)).sum()
    alpha = (2 * z_log_scale).exp() / z_loc**2
    of_z = 0.63576 - 0.63576 * torch.sigmoid(1.8732 + 1.48695 * alpha.log()) + 0.5 * torch.log1p(1 / alpha)
    return likelihood + of_w + of_z.sum()


def test_loss_and_gradient_of_group_normal_jeffreys_are_expectations():
    """The loss is quadratic in the noise of ``z``, once noise of both signs in the rows is averaged."""
    x, y = data()
    guide = AutoGroupNormalJeffreys(layer)
    guide.setup(x, y)
    perturb(guide, 0.3)
    of_z = Noise.two_level(4).normal
    noise = Noise(torch.cat([torch.cat([of_z, torch.full((4, 20), sign)], 1) for sign in (1.0, -1.0)]))
    runs = noise.each(lambda: loss_and_gradients(layer, guide, guide.elbo(), x, y))
    truth = jeffreys_loss(guide, x, y)
    assert_expectations(runs, truth, guide)
    # Vectorised particles share z.
    many = losses(layer, guide, vectorized(TraceMeanField_ELBO, 20), 100, x, y)
    assert_mean(many, truth.item())


def test_group_normal_jeffreys_refuses_models_without_groups():
    x, y = data()
    with pytest.raises(ValueError, match=r"no site of the model \(w\).*use AutoMeanField"):
        AutoGroupNormalJeffreys(linear_model(normal))(x, y)
    with pytest.raises(UnsupportedSiteError, match="subsampled plate 'data'.*use AutoMeanField"):
        AutoGroupNormalJeffreys(local_weights)(x, y)
    for wrong in (-1.0, 0.0, math.nan):
        with pytest.raises(ValueError, match="init_z_scale must be positive"):
            AutoGroupNormalJeffreys(layer, init_z_scale=wrong)
    guessing = Trace_ELBO(num_particles=3, vectorize_particles=True)
    with pytest.raises(NotImplementedError, match="'w': its prior is improper.*max_plate_nesting"):
        guessing.loss(layer, AutoGroupNormalJeffreys(layer), x, y)


def test_divergence_of_the_multipliers_up_to_a_constant():
    """Against ``E log|z| - log v`` by the midpoint rule, at several ``alpha``."""
    guide = AutoGroupNormalJeffreys(layer)
    guide(*data())
    differences = []
    for log_alpha in (-4.0, -1.0, 0.0, 1.0, 4.0):
        scale = math.exp(log_alpha / 2)

        normal_quantiles = torch.special.ndtri((torch.arange(400_000).double() + 0.5) / 400_000)
        expected = (1 + scale * normal_quantiles).abs().log().mean().item()
        with torch.no_grad():
            guide.z_log_scale.fill_(log_alpha / 2)
            guide.loc.zero_()
            guide.log_scale.zero_()
        guide(*data())
        ours = guide.trace.nodes["w"]["fn"].kl.item() / 3
        differences.append(ours - (expected - math.log(scale)))
    assert np.ptp(differences) < 0.03


@pytest.mark.parametrize("scale", [torch.tensor(0.7), torch.tensor([[0.3], [0.7]])])
def test_divergence_of_group_normal_jeffreys_is_to_the_models_own_scale(scale):
    """``w~`` is compared with that, not with a standard normal, be it one for all weights or not."""

    def model(x, y):
        w = pyro.sample("w", dist.Normal(0.0, scale).expand([2, 3]).to_event(2))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal((x @ w.T).sum(-1), 1.0), obs=y)

    x, y = data()
    guide = AutoGroupNormalJeffreys(model)
    guide.setup(x, y)
    perturb(guide, 0.3)
    guide(x, y)
    law = guide.trace.nodes["w"]["fn"]
    of_w = kl_divergence(dist.Normal(law.loc, law.log_scale.exp()), dist.Normal(0.0, scale)).sum()
    alpha = (2 * law.z_log_scale).exp() / law.z_loc**2
    # the constants of Molchanov et al. (2017), as printed
    of_z = 0.63576 * (1 - torch.sigmoid(1.87320 + 1.48695 * alpha.log())) + 0.5 * torch.log1p(1 / alpha)
    torch.testing.assert_close(law.kl, of_w + of_z.sum())


def test_a_multiplier_whose_mean_is_zero_has_a_gradient():
    """Descent does arrive at exactly zero, where the divergence of ``z`` is flat."""
    x, y = data()
    guide = AutoGroupNormalJeffreys(layer)
    guide(x, y)
    with torch.no_grad():
        guide.z_loc[1:] = torch.tensor([0.0, 1e-3])
    results = loss_and_gradients(layer, guide, guide.elbo(), x, y)
    assert all(result.isfinite().all() for result in results.values())
    guide(x, y)
    (slope,) = torch.autograd.grad(guide.trace.nodes["w"]["fn"].kl, guide.z_loc)
    assert slope[1] == 0
    assert guide.log_alpha()["w"][2].item() == pytest.approx(2 * math.log(0.05 / 1e-3), rel=1e-5)
    assert slope[0] != 0
    assert guide.log_alpha()["w"].isfinite().all()


def test_draws_of_group_normal_jeffreys_have_the_moments_of_the_product():
    """Second moments, and the correlation that weights of one input have through their ``z`` alone."""
    x, y = data()
    guide = AutoGroupNormalJeffreys(network(normal), init_z_scale=0.5)
    guide.setup(x, y)
    perturb(guide, 0.2)
    loc, log_scale, z_loc, z_log_scale = guide._detached()["w1"]
    size = z_loc**2 + torch.exp(2 * z_log_scale)
    draws = guide.draws(20_000, seed=1)["w1"].double()
    assert_mean(draws, (z_loc * loc).double())
    assert_mean(draws**2, (size * (loc**2 + torch.exp(2 * log_scale))).double())
    assert_mean(draws[:, 0] * draws[:, 1], (size[0] * loc[0] * loc[1]).double())
    assert_mean(draws[:, 0, 0] * draws[:, 0, 1], (z_loc[0, 0] * z_loc[0, 1] * loc[0, 0] * loc[0, 1]).double())


def test_predictions_in_parallel_have_multipliers_of_their_own():
    x, y = data()
    guide = AutoGroupNormalJeffreys(layer)
    guide.setup(x, y)
    with torch.no_grad():
        for parameter, value in (("loc", 1.0), ("log_scale", -8.0), ("z_loc", 1.0), ("z_log_scale", 0.0)):
            getattr(guide, parameter).fill_(value)
    w = Predictive(layer, guide=guide, num_samples=2000, parallel=True, return_sites=["w"])(x)["w"].squeeze()
    assert_mean((w - 1).double() ** 2, torch.ones(w.shape[1:], dtype=torch.float64))


def test_multipliers_of_a_product_are_those_of_its_rows():
    """``x @ w``, of more inputs than outputs."""

    def model(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal((x @ w).sum(-1), 1.0), obs=y)

    guide = AutoGroupNormalJeffreys(model)
    guide.setup(torch.ones(5, 3), torch.zeros(5))
    assert guide.log_alpha()["w"].shape == (3,)
    perturb(guide, 0.3)
    assert_mean(guide.draws(20_000, seed=1)["w"].double(), guide.mean_of_site("w").double())


def test_a_horseshoe_in_a_plate_has_a_global_scale_for_each_element():
    def model():
        with pyro.plate("groups", 3):  # as many as there are inputs
            return pyro.sample("w", dist.Normal(0.0, 1.0).expand([4, 3]).to_event(2))

    nodes = poutine.trace(Horseshoe()(model)).get_trace().nodes
    raw, local, shrink = (nodes[f"w_{part}"]["value"] for part in ("raw", "local", "global"))
    assert shrink.shape == (3,)
    torch.testing.assert_close(nodes["w"]["value"], raw * local * shrink[:, None, None])


@pytest.mark.slow
def test_group_normal_jeffreys_finds_the_input_that_is_noise():
    x, y = data(rows=100)  # the middle column does nothing
    guide = AutoGroupNormalJeffreys(layer)
    fit(layer, guide, x, y, steps=300, lr=0.08)
    noise = guide.log_alpha()["w"]
    assert noise.argmax() == 1
    assert noise[1] > max(noise[0], noise[2]) + 2
    off_centre = AutoGroupNormalJeffreys(
        lambda: pyro.sample("w", dist.Normal(torch.ones(2, 2), 1.0).to_event(2))
    )
    with pytest.raises(UnsupportedSiteError, match="centred"):
        off_centre()


def test_horseshoe_is_the_prior_it_says():
    pyro.set_rng_seed(0)
    model = Horseshoe(["w1"], global_scale=0.5)(network(normal))
    samples = Predictive(model, num_samples=300)(data()[0])
    raw, local, shrink = (
        samples[f"w1_{name}"].reshape(300, *shape)
        for name, shape in (("raw", (4, 3)), ("local", (1, 3)), ("global", (1, 1)))
    )
    torch.testing.assert_close(samples["w1"].reshape(300, 4, 3), raw * local * shrink)
    assert_share((local < 1).double(), 0.5)  # medians of half-Cauchies
    assert_share((shrink < 0.5).double(), 0.5)
    assert_share((raw.abs() < 0.7 * 0.67449).double(), 0.5)


def test_horseshoe_takes_all_weights_whatever_their_names():
    @Horseshoe()
    def model():
        for name in ("w1_raw", "w2"):
            pyro.sample(name, dist.Normal(torch.zeros(2, 3), 1.0).to_event(2))

    sites = poutine.trace(model).get_trace().stochastic_nodes
    assert set(sites) == {f"{n}_{part}" for n in ("w1_raw", "w2") for part in ("raw", "local", "global")}


def test_horseshoes_within_each_other_take_no_factors_of_each_other():
    def model():
        for name in ("v", "w"):
            pyro.sample(name, dist.Normal(torch.zeros(2, 3), 1.0).to_event(2))

    both = Horseshoe()(Horseshoe(["v"], global_scale=0.1)(model))
    sites = poutine.trace(both).get_trace().stochastic_nodes
    assert set(sites) == {f"{n}_{part}" for n in ("v", "w") for part in ("raw", "local", "global")}
    with pytest.raises(ValueError, match="no site is a matrix of weights"):
        Horseshoe()(Horseshoe()(model))()


def test_horseshoe_of_filters_has_a_scale_for_every_input_channel():
    def filters():
        return pyro.sample("w", dist.Normal(torch.zeros(4, 3, 5, 5), 1.0).to_event(4))

    trace = poutine.trace(Horseshoe(["w"])(filters)).get_trace()
    assert trace.nodes["w_local"]["value"].shape == (1, 3, 1, 1)
    assert trace.nodes["w_global"]["value"].shape == ()


@pytest.mark.slow
def test_horseshoe_under_mean_field_keeps_the_lrt_and_shrinks_noise():
    x, y = data(rows=100)
    model = Horseshoe()(layer)
    guide = AutoMeanField(model)
    guide.setup(x, y)
    assert guide.sites["w_raw"].by_moments
    history = fit(model, guide, x, y, steps=250, lr=0.1)
    assert np.mean(history[-50:]) < np.mean(history[:20])
    draws = guide.draws(500, seed=1)
    weights = (draws["w_raw"] * draws["w_local"] * draws["w_global"].reshape(-1, 1, 1))[:, 0]
    assert weights[:, 0].mean() == pytest.approx(1.0, abs=0.25)
    assert weights[:, 2].mean() == pytest.approx(-0.5, abs=0.25)
    assert draws["w_local"][:, 0, 1].median() < draws["w_local"][:, 0, 0].median() / 2
    assert Predictive(model, guide=guide, num_samples=5)(x)["y"].shape == (5, 100)
    with pytest.raises(ValueError, match="Normal prior"):
        Horseshoe(["precision"])(network(normal))(x, y)
    with pytest.raises(ValueError, match="global_scale"):
        Horseshoe(global_scale=0.0)


def test_horseshoe_refuses_sites_that_it_would_ignore_and_priors_off_centre():
    x, y = data()
    with pytest.raises(ValueError, match="no latent site 'zz'; it has w1, b1, w2, b2, precision"):
        Horseshoe(["zz"])(network(normal))(x, y)
    with pytest.raises(ValueError, match="no latent site 'y'"):
        AutoMeanField(Horseshoe(["w1", "y"])(network(normal)))(x, y)
    with pytest.raises(ValueError, match=r"got a string; write sites=\['w1'\]"):
        Horseshoe("w1")
    with pytest.raises(ValueError, match=r"the sites are w\); name those .* Horseshoe\(\['w'\]\)"):
        Horseshoe()(linear_model(normal))(x, y)

    def off_centre():
        pyro.sample("w", dist.Normal(torch.ones(2, 2), 1.0).to_event(2))

    for model in (Horseshoe()(off_centre), Horseshoe(["w"])(off_centre)):
        with pytest.raises(UnsupportedSiteError, match="'w': its Normal prior must be centred at zero"):
            model()
    assert not pyro.poutine.runtime._PYRO_STACK  # refusals leave nothing behind
