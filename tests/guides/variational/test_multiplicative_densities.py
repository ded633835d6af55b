"""The densities of AutoMNF against sums over grids, draws, and the change of variables."""

import pytest
import torch
from pyro import distributions as dist
from torch.distributions import kl_divergence

from guides import AutoMNF
from guides.core import kernels
from guides.core.distributions import SpikeSlab
from guides.core.uses import Uses
from guides.flows import fused
from guides.testing import NOISE, assert_mean, data, network, normal, perturb, spike_slab, z_bound
from guides.truth.conjugate import conjugate_linear_regression
from guides.variational import multiplicative_flow
from guides.variational.multiplied_laws import MultipliedSpikeSlabLaw
from guides.variational.multipliers import Multipliers
from tests.guides.variational.multiplied import (
    each_flow,
    each_prior,
    fitted,
    law_given,
    linear_model,
    log_joint,
    moved,
)


@each_flow
def test_auxiliary_density_integrates_to_one(flow):
    torch.manual_seed(0)
    module = Multipliers(2, flow, 2, (6,), 1.0, 0.3)
    perturb(module, 0.3)
    line = torch.linspace(-15, 17, 401)
    grid = torch.cartesian_prod(line, line)
    for activations in torch.randn(2, 5):
        density = module.log_auxiliary(grid, activations.expand(len(grid), -1)).exp().sum()
        assert density.item() * (line[1] - line[0]).item() ** 2 == pytest.approx(1.0, abs=0.01)
    # Far out, where the density is zero, the inverse of a flow overflows.
    density = module.log_prob(grid).exp().nan_to_num(0.0).sum()
    assert density.item() * (line[1] - line[0]).item() ** 2 == pytest.approx(1.0, abs=0.01)


@each_flow
def test_guesses_have_the_auxiliary_density(flow):
    module = Multipliers(2, flow, 2, (6,), 1.0, 0.3)
    perturb(module, 0.2)
    seen = torch.randn(1, 3)
    line = torch.linspace(-15, 17, 401)
    grid = torch.cartesian_prod(line, line)
    with torch.no_grad():
        weights = module.log_auxiliary(grid, seen.expand(len(grid), -1)).softmax(0)
        guesses = module.guess(torch.randn(20_000, 2), seen.expand(20_000, -1))
    assert_mean(guesses.double(), (weights @ grid).double())
    assert_mean(guesses.double() ** 2, (weights @ grid**2).double())


def summed(guide, w):
    """``log int q(z) q(w | z) dz`` of weights ``w [n, 1]`` of one column, on a grid, ``[n]``."""
    z = torch.linspace(-30, 30, 60_001)[:, None]
    with torch.no_grad():
        density = guide.multipliers[0].log_prob(z).exp() * (z[1] - z[0])
    assert density.sum().item() == pytest.approx(1.0, abs=1e-3)
    loc, scale = z * guide.loc.detach(), guide.log_scale.detach().exp()
    if hasattr(guide, "logits"):
        law = SpikeSlab(logits=guide.logits.detach(), loc=loc, scale=scale)
    else:
        law = dist.Normal(loc, scale)
    return torch.stack([(density * law.log_prob(value).exp().squeeze(-1)).sum().log() for value in w])


def summed_over_multipliers(prior):
    """One column: a guide, weights ``w [3, 1]`` and their densities, ``[3]``."""
    x, y = data(columns=1)
    _, guide = moved(prior, x, y)
    slabs = guide.draws(1000, seed=1)["w"]
    quartiles = slabs[slabs != 0].quantile(torch.tensor([0.25, 0.75]))  # far out it needs more guesses
    w = torch.cat([torch.zeros(1), quartiles])[:, None]
    return guide, w, summed(guide, w)


@each_prior
def test_guesses_know_nothing_of_the_multipliers_that_draws_of_the_same_seed_had(prior):
    """A mean over one guess is unbiased, and its logarithm too low; where the guess has seen the truth it is
    too high (by over a nat here).
    """
    torch.manual_seed(0)
    guide = AutoMNF(linear_model(prior), init_z_scale=0.6, init_scale=0.1, num_flows=1, hidden=(8,))
    guide.setup(*data(columns=1))
    with torch.no_grad():
        guide.loc.fill_(1.0)
    w = guide.draws(300, seed=0)["w"]
    excess = (guide.log_prob({"w": w}, num_multipliers=1, seed=0) - summed(guide, w)).double()
    assert excess.mean() < -z_bound(1) * excess.std() / len(w) ** 0.5


@each_prior
def test_density_by_a_few_guesses_is_unbiased(prior):
    guide, w, truth = summed_over_multipliers(prior)
    estimates = guide.log_prob({"w": w.repeat(500, 1)}, num_multipliers=2)
    assert_mean(estimates.view(500, 3).double().exp(), truth.double().exp())


@pytest.mark.slow
@each_prior
def test_log_prob_converges_to_a_sum_over_multipliers(prior):
    guide, w, truth = summed_over_multipliers(prior)
    copies = {"w": w.repeat(2000, 1)}
    estimates = guide.log_prob(copies, num_multipliers=10)
    assert_mean(estimates.view(2000, 3).double().exp(), truth.double().exp())  # unbiased for any number
    assert torch.equal(estimates, guide.log_prob(copies, num_multipliers=10))
    few = {"w": w.repeat(200, 1)}
    closer = guide.log_prob(few, num_multipliers=200).view(200, 3)
    assert ((closer - truth).abs().mean(0) < (estimates.view(2000, 3) - truth).abs().mean(0) / 2).all()


def test_log_prob_of_equal_guesses_is_that_of_one(monkeypatch):
    """It is the logarithm of a *mean* over guesses: where all are the same, it does not matter how many."""
    x, y = data()
    _, guide = moved(spike_slab, x, y)
    (module,) = guide.multipliers
    guess = module.guess
    monkeypatch.setattr(module, "guess", lambda noise, seen: guess(torch.zeros_like(noise), seen))
    draws = guide.draws(5, seed=1)
    one, many = (guide.log_prob(draws, num_multipliers=number) for number in (1, 7))
    assert one.unique().numel() > 1
    torch.testing.assert_close(many, one)


def test_importance_weights_are_unbiased_for_the_evidence():
    x, y = data(rows=6)
    exact = conjugate_linear_regression(x.numpy(), y.numpy(), prior_scale=1.0, noise_scale=NOISE)
    _, guide = fitted(normal, x, y, steps=80, lr=0.1, init_scale=0.7)
    with torch.no_grad():
        guide.log_scale += 0.3  # wide enough for weights of finite variance
    draws, log_q = guide.draws_with_log_prob(50_000, seed=3)
    weights = (log_joint(normal, x, y, draws["w"]) - log_q - exact.log_evidence).double().exp()
    assert weights.mean().item() == pytest.approx(1.0, abs=0.05)


@each_prior
def test_quantiles_are_those_of_the_draws(prior):
    x, y = data()
    _, guide = moved(prior, x, y)
    draws = guide.draws(20_000, seed=2)["w"]
    levels = [0.05, 0.3, 0.5, 0.9]
    for level, value in zip(levels, guide.quantiles(levels)["w"], strict=True):
        assert ((draws < value).double().mean(0) - level < 0.02).all()
        assert (level - (draws <= value).double().mean(0) < 0.02).all()
    assert torch.equal(guide.median()["w"], guide.quantiles(levels)["w"][2])


def test_quantiles_far_out_are_those_of_one_normal_where_the_multipliers_are_equal():
    loc, scale, columns = torch.tensor([[2.0, -1.0], [0.1, 3.0], [0, 0]]).double()
    law = dist.Normal(0.5 * loc, scale)
    nodes = torch.full((9, 1), 0.5, dtype=torch.float64)
    for level in torch.tensor([1e-9, 0.001, 0.4, 0.999]).double():
        found = multiplicative_flow._mixture_quantile(
            level, nodes, loc, scale, columns.long(), torch.ones_like(loc)
        )
        torch.testing.assert_close(found, law.icdf(level))


@each_prior
def test_the_mean_of_a_site_is_that_of_the_draws(prior):
    """It has the error of 4096 draws itself."""
    _, guide = moved(prior, *data())
    draws = guide.draws(20_000, seed=2)["w"].double()
    error = draws.std(0) * (1 / 20_000 + 1 / 4096) ** 0.5
    assert ((guide.mean_of_site("w") - draws.mean(0)).abs() < z_bound(error.numel()) * error).all()


# ---------------------------------------------------------------------- densities without Monte Carlo


@each_flow
def test_densities_of_the_multipliers_follow_the_change_of_variables(flow):
    """Both densities at drawn points, with autograd's Jacobians: no Monte Carlo, hence no tolerance in which
    a dropped log-determinant (some tenths of a nat) could hide.
    """
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(0)
        module = Multipliers(5, flow, 2, (6,), 1.0, 0.4)
        perturb(module, 0.3)
        for noise, seen in zip(torch.randn(4, 5), torch.randn(4, 3), strict=True):
            z, log_q = module(noise)
            jacobian = torch.autograd.functional.jacobian(lambda e: module(e)[0], noise)
            expected = dist.Normal(0.0, 1.0).log_prob(noise).sum() - jacobian.slogdet().logabsdet
            assert (log_q - expected).abs() < 1e-9
            assert (module.log_prob(z) - expected).abs() < 1e-9
            # The quieter form: the base's part in expectation, the rest as it is.
            assert (module(noise, expected=True)[1] - log_q - 0.5 * (noise.square().sum() - 5)).abs() < 1e-9
            _, a1, b1, a2, b2 = module.auxiliary
            h = torch.tanh(seen).mean()
            back = module.auxiliary_flow(z)
            jacobian = torch.autograd.functional.jacobian(module.auxiliary_flow, z.detach())
            law = dist.Normal(a1 + b1 * h, (0.5 * (a2 + b2 * h)).exp())
            expected = law.log_prob(back).sum() + jacobian.slogdet().logabsdet
            assert jacobian.slogdet().logabsdet.abs() > 0.05  # there is something to forget
            assert (module.log_auxiliary(z, seen) - expected).abs() < 1e-9
    finally:
        torch.set_default_dtype(torch.float32)


def test_variance_that_the_auxiliary_density_sees_is_that_of_drawn_weights():
    """Mean and variance of ``sum_i c_i w_ij`` given ``z``, where ``c`` is not its own square."""
    law = law_given(1e-6, "spike-slab", (3, 6), 1)
    contraction = law._multipliers.contraction.detach()
    mean, variance = law._seen_moments()
    torch.testing.assert_close(mean, law.mean @ contraction)
    torch.testing.assert_close(variance, law.variance @ contraction**2)


@pytest.mark.skipif(kernels._library() is None, reason="no C compiler")
def test_a_large_site_has_the_divergence_and_gradients_of_a_small_one(monkeypatch):
    """The compiled path of a whole law, its auxiliary density included: the same draws, the same numbers."""
    results = []
    for smallest in (1, kernels.SMALLEST):
        monkeypatch.setattr(kernels, "SMALLEST", smallest)
        monkeypatch.setattr(fused, "has_kernel", lambda z, steps, large=smallest == 1: large)
        law = law_given(0.4, "spike-slab", (3, 200), 1)
        inputs = law.logits, law._unit_loc, law.log_scale
        for tensor in inputs:
            tensor.requires_grad_()
        torch.manual_seed(3)
        total = law.kl + (law.mean * torch.linspace(-1, 1, 200)).sum() + law.variance.sum()
        assert (law._fused is None) == (smallest > 1)
        parameters = law._multipliers.parameters()
        results.append([total, law.kl, *torch.autograd.grad(total, [*inputs, *parameters])])
    for compiled, plain in zip(*results, strict=True):
        torch.testing.assert_close(compiled, plain, rtol=2e-4, atol=2e-4 * plain.abs().max().item())


def test_auxiliary_cost_is_counted_once_in_plates():
    """Four units in a plate share the multipliers: the cost counts once, whatever the plates."""
    generator = torch.Generator().manual_seed(4)
    loc, log_scale, logits = torch.randn(3, 4, 3, generator=generator)
    torch.manual_seed(7)
    module = Multipliers(3, "rnvp", 2, (5,), 1.0, 0.4)
    perturb(module, 0.2)
    prior = SpikeSlab(0.3).expand([4, 3]).to_event(1)
    law = MultipliedSpikeSlabLaw(
        "w",
        torch.Size([4]),
        torch.Size([3]),
        loc,
        log_scale,
        logits,
        prior=prior,
        by_moments=True,
        uses=Uses("w", False, True),
        multipliers=module,
        axis=1,
    )
    own = kl_divergence(SpikeSlab(logits=logits, loc=law.loc, scale=log_scale.exp()), SpikeSlab(0.3))
    assert law.kl.shape == (4,)
    torch.testing.assert_close(law.kl.sum(), own.sum() + law.cost)
    assert law.cost.abs() > 0.05


def test_what_is_reported_has_an_auxiliary_density_of_the_weights_that_were_drawn():
    """The limit of many weights, which training takes, would make it no bound."""
    x, y = data()
    guide = AutoMNF(network(spike_slab))
    guide.setup(x, y)
    with torch.no_grad():
        guide(x, y)
        law = guide.trace.nodes["w1"]["fn"]
        seen = law._seen()
        expected = law._contracted(law._value, law._multipliers.contraction)
    torch.testing.assert_close(seen, expected)
