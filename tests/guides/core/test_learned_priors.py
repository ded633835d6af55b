"""Empirical Bayes of layers: the closed form against a search, its trace in the bound, and its state."""

from __future__ import annotations

import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import SVI, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoGuideList
from torch.distributions import kl_divergence

from guides import AutoConcrete, AutoMeanField, AutoMNF, AutoSpikeSlab, AutoSpikeSlabMVN, SpikeSlab
from guides.core import kernels
from guides.core.learned_priors import EVERY, TINY, Learned, LearnedPriors, Numbers
from guides.core.svi import half_cosine
from guides.testing import (
    NOISE,
    data,
    fit,
    linear_model,
    losses,
    network,
    normal,
    perturb,
    spike_slab,
)

SPARSE = [AutoSpikeSlab, AutoMNF, AutoConcrete, AutoSpikeSlabMVN]


def trained(make=AutoSpikeSlab, prior=spike_slab, steps: int = 1, learned=True):
    x, y = data()
    model = network(prior)
    guide = make(model, empirical_bayes=learned)
    guide.setup(x, y)
    perturb(guide, 0.3)
    if steps:
        fit(model, guide, x, y, steps=steps, lr=0.01)
    return model, guide, (x, y)


def test_learned_numbers_make_the_divergence_smallest():
    """Against a search over sd and inclusion, at the parameters that the guide had in its first run."""
    _, guide, (x, y) = trained(steps=0)
    before = {name: [t.clone() for t in parts] for name, parts in guide._detached().items()}
    guide.elbo().loss_and_grads(guide.model, guide, x, y)
    assert set(guide.learned_priors.numbers) == {"w1", "w2", "b1"}  # b2 and the precision are one number
    for name in ("w1", "w2", "b1"):
        loc, log_scale, *logits = before[name]
        learned = guide.learned_priors.numbers[name]
        scale, inclusion = learned.scale, learned.inclusion

        def divergence(scale, inclusion, loc=loc, log_scale=log_scale, logits=logits):
            if not logits:
                return kl_divergence(dist.Normal(loc, log_scale.exp()), dist.Normal(0.0, scale)).sum()
            law = SpikeSlab(logits=logits[0], loc=loc, scale=log_scale.exp())
            prior = SpikeSlab(torch.tensor(inclusion), torch.tensor(0.0), torch.tensor(scale))
            return kl_divergence(law, prior.expand(loc.shape)).sum()

        best = divergence(scale, inclusion)
        for factor in (0.98, 1.02):
            assert divergence(scale * factor, inclusion) > best
            if inclusion is not None:
                assert divergence(scale, inclusion * factor) > best
    assert guide.learned_priors.numbers["b1"].inclusion is None


def test_correlated_inclusions_are_learned_on_average_over_their_logits():
    """What one draw of the logits has is another number at every step."""
    _, guide, (x, y) = trained(AutoSpikeSlabMVN, steps=0)
    alpha = guide.inclusion_probabilities()["w1"]
    loc, log_scale = guide._detached()["w1"][:2]
    guide.elbo().loss_and_grads(guide.model, guide, x, y)
    found = guide.learned_priors.numbers["w1"]
    assert found.inclusion == pytest.approx(alpha.mean().item(), rel=1e-3)
    square = (alpha * ((2 * log_scale).exp() + loc.square())).sum() / alpha.sum()
    assert found.scale == pytest.approx(square.sqrt().item(), rel=1e-3)
    drawn = guide.trace.nodes["w1"]["fn"].logits.sigmoid().mean().item()
    assert abs(drawn - found.inclusion) > 0.01 * found.inclusion


@pytest.mark.parametrize("make", SPARSE)
def test_inclusions_that_a_prior_follows_keep_no_graph(make):
    """They are kept until the gradient is taken, and would keep all that led to them."""
    model, guide, (x, y) = trained(make, steps=0)
    guide.elbo().loss(model, guide, x, y)
    guide(x, y)
    law = guide.trace.nodes["w1"]["fn"]
    assert law.logits.requires_grad
    assert not law.mean_logits()().requires_grad


def test_correlated_inclusions_of_a_matrix_over_inputs_keep_their_places():
    """Each beside the slab of its own weight, though the logits are kept by output."""

    def model(x):
        w = pyro.sample("w", spike_slab([3, 2], 0.7))
        pyro.sample("y", dist.Normal(x @ w, NOISE).to_event(2), obs=torch.ones(len(x), 2))

    x = torch.randn(4, 3)
    guide = AutoSpikeSlabMVN(model, empirical_bayes="rates")
    guide.setup(x)
    perturb(guide, 1.0)
    alpha = guide.inclusion_probabilities()["w"]
    loc, log_scale = guide._detached()["w"][:2]
    guide.elbo().loss_and_grads(model, guide, x)
    found = guide.learned_priors.numbers["w"]
    square = (alpha * ((2 * log_scale).exp() + loc.square())).sum() / alpha.sum()
    assert found.scale == pytest.approx(square.sqrt().item(), rel=2e-3)
    assert found.outputs == pytest.approx((alpha.mean(1) / alpha.mean()).tolist(), rel=5e-3)
    assert found.inputs == pytest.approx((alpha.mean(0) / alpha.mean()).tolist(), rel=5e-3)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("smallest", [1, kernels.SMALLEST])
@pytest.mark.parametrize("make", [*SPARSE, AutoMeanField])
def test_a_step_learns(make, smallest, monkeypatch):
    """With and without the passes in one piece that large sites take."""
    monkeypatch.setattr(kernels, "SMALLEST", smallest)
    _, guide, _ = trained(make, normal if make is AutoMeanField else spike_slab)
    assert set(guide.learned_priors.numbers) == {"w1", "w2", "b1"}
    assert guide.learned_priors.runs == 1


def test_vectorized_particles_of_mnf_leave_the_priors_of_layers_as_they_are():
    model, guide, (x, y) = trained(AutoMNF, steps=1)
    before = guide.learned_priors.numbers["w1"]
    elbo = guide.elbo(num_particles=3, vectorize_particles=True)
    svi = SVI(model, guide, guide.optimizer(0.05), elbo)
    for _ in range(EVERY):
        svi.step(x, y)
    assert guide.learned_priors.numbers["w1"] == before


@pytest.mark.parametrize("make", SPARSE)
def test_the_loss_has_the_learned_prior_in_it(make):
    """As if the model had the numbers that were learned."""
    x, y = data()
    model = linear_model(spike_slab)
    guide = make(model, empirical_bayes=True)
    guide.setup(x, y)
    guide.learned_priors = LearnedPriors(numbers={"w": Learned(0.6, 0.8)})

    def same(x, y=None):
        w = pyro.sample("w", SpikeSlab(torch.tensor(0.8), 0.0, torch.tensor(0.6)).expand([3]).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, NOISE), obs=y)

    losses = []
    for target in (model, same):
        other = make(target)
        other.load_state_dict(guide.state_dict() if target is model else _plain(guide.state_dict()))
        pyro.set_rng_seed(0)
        losses.append(TraceMeanField_ELBO().loss(target, other, x, y))
    pyro.set_rng_seed(0)
    plain = make(model)
    plain.load_state_dict(_plain(guide.state_dict()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    pyro.set_rng_seed(0)
    assert abs(TraceMeanField_ELBO().loss(model, plain, x, y) - losses[0]) > 0.1


def _plain(state: dict) -> dict:
    """Of a guide that learns nothing."""
    layout = {k: v for k, v in state["_extra_state"].items() if k != "learned_priors"}
    return {**state, "_extra_state": layout}


def test_mean_field_learns_the_sds_of_its_layers():
    _, guide, _ = trained(AutoMeanField, normal)
    found = guide.learned_priors.numbers
    assert set(found) == {"w1", "w2", "b1"}
    assert all(learned.inclusion is None and learned.scale > 0 for learned in found.values())
    _, guide, _ = trained(AutoMeanField, spike_slab)
    assert set(guide.learned_priors.numbers) == {"b1"}  # a Gaussian beside a spike has no such closed form


def test_rates_are_those_of_rows_and_columns():
    """And their prior is in the loss: a closed form against the KL divergence of every weight."""
    _, guide, (x, y) = trained(steps=0, learned="rates")
    before = guide._detached()["w1"][2].sigmoid()
    guide.elbo().loss_and_grads(guide.model, guide, x, y)
    found = guide.learned_priors.numbers["w1"]
    table = found.inclusion * torch.tensor(found.outputs)[:, None] * torch.tensor(found.inputs)
    torch.testing.assert_close(table, before.mean(1)[:, None] * before.mean(0) / before.mean())
    guide(x, y)
    law, (loc, log_scale, logits) = guide.trace.nodes["w1"]["fn"], guide._detached()["w1"]
    prior = SpikeSlab(table.clamp(1e-6, 1 - 1e-6), 0.0, found.scale)
    expected = kl_divergence(SpikeSlab(logits=logits, loc=loc, scale=log_scale.exp()), prior).sum()
    torch.testing.assert_close(law.kl, expected, rtol=1e-4, atol=1e-4)
    guide.zero_grad()
    (own,) = torch.autograd.grad(law.kl, guide.logits)
    free = guide.logits.detach().clone().requires_grad_()
    pieces = free[: logits.numel()].view_as(logits)
    whole = kl_divergence(SpikeSlab(logits=pieces, loc=loc, scale=log_scale.exp()), prior).sum()
    torch.testing.assert_close(own, torch.autograd.grad(whole, free)[0], rtol=1e-3, atol=1e-4)


def test_rates_of_filters_are_means_over_their_places():
    logits = torch.randn(3, 2, 2, 4, generator=torch.Generator().manual_seed(0))
    zeros = torch.zeros_like(logits)
    found = LearnedPriors(rates=True)._best(Numbers(zeros, zeros, lambda: logits, torch.tensor(0.0), 4))
    alpha = logits.sigmoid()
    torch.testing.assert_close(torch.tensor(found.outputs), alpha.mean((1, 2, 3)) / alpha.mean())
    torch.testing.assert_close(torch.tensor(found.inputs), alpha.mean((0, 2, 3)) / alpha.mean())


@pytest.mark.parametrize(("logit", "inclusion"), [(-1e3, TINY), (1e3, 1 - TINY)])
def test_a_prior_stays_one_where_all_weights_have_gone_or_all_are_known(logit, inclusion):
    """Probabilities of 0 or 1, or no spread, would shut the weights in for ever."""
    loc = torch.zeros(3)
    law = Numbers(loc, loc - 60, lambda: torch.full((3,), logit), torch.tensor(0.0), 1)
    assert LearnedPriors()._best(law) == Learned(TINY, inclusion)


def test_a_vector_of_weights_has_one_probability_and_no_rates():
    x, y = data()
    model = linear_model(spike_slab)
    guide = AutoSpikeSlab(model, empirical_bayes="rates")
    fit(model, guide, x, y, steps=1, lr=0.01)
    found = guide.learned_priors.numbers["w"]
    assert 0 < found.inclusion < 1
    assert found.outputs == found.inputs == ()


def test_charge_of_what_was_learned_is_that_of_bic():
    numbers = {"w": Learned(1.0, 0.5, (1.0,) * 4, (1.0,) * 3), "b": Learned(2.0)}
    expected = math.log(12) + 3 / 2 * math.log(3) + 2 / 2 * math.log(4) + math.log(4) / 2
    assert LearnedPriors(numbers=numbers).charge({"w": 12, "b": 4}) == pytest.approx(expected)
    with pytest.raises(ValueError, match="empirical_bayes must be True, False or 'rates', got 'rate'"):
        AutoSpikeSlab(network(spike_slab), empirical_bayes="rate")


@pytest.mark.parametrize("learned", [True, "rates"])
def test_numbers_follow_every_few_training_runs_and_no_other_run(learned):
    _, guide, (x, y) = trained(steps=0, learned=learned)
    svi = SVI(guide.model, guide, guide.optimizer(0.05), guide.elbo())
    seen = []
    for _ in range(2 * EVERY + 1):
        svi.evaluate_loss(x, y)
        guide.draws(2)
        svi.step(x, y)
        seen.append(guide.learned_priors.numbers["w1"])
    assert len(set(seen)) == 3
    assert seen[0] == seen[EVERY - 1] != seen[EVERY]


def test_nothing_is_learned_from_a_run_of_which_no_gradient_is_taken():
    """A look at the loss, or at passes as in training, leaves the prior and so the bound as they are."""
    model, guide, (x, y) = trained(steps=EVERY)
    before = dict(guide.learned_priors.numbers), guide.learned_priors.runs
    for _ in range(EVERY + 1):
        guide(x, y)
        guide.elbo().loss(model, guide, x, y)
    assert (dict(guide.learned_priors.numbers), guide.learned_priors.runs) == before


def test_nothing_is_learned_while_the_weight_of_the_divergence_is_on_its_way():
    model, guide, (x, y) = trained(steps=0)
    svi = SVI(model, guide, guide.optimizer(0.01), guide.elbo())
    for step in range(2 * EVERY):
        guide.kl_weight = 0.5 + step / 100
        svi.step(x, y)
    assert guide.learned_priors.numbers == {}


@pytest.mark.parametrize("stair", [1, 7])
def test_stairs_of_the_weight_are_a_rise_too(stair):
    """How long one is is known from the second on; what the first taught is forgotten."""
    learned = LearnedPriors(numbers={"w": Learned(1.0)})

    def runs(weight, count):
        for _ in range(count):
            learned.after_run({}, weight)
        return learned.runs

    assert runs(0.1, stair) == stair - 1
    assert learned.numbers
    assert [runs(weight, stair) for weight in (0.4, 0.7)] == [0, 0]
    assert not learned.numbers
    assert runs(0.9, stair + 3) == 3  # a cold posterior's end, which stands for longer
    assert runs(1.0, 5) == 4  # the first run has the rise
    again = LearnedPriors(**learned.state())
    assert again.state() == learned.state()
    assert runs(0.5, 5) == 8  # one that falls begins anew, and forgets nothing


def test_a_short_stair_after_a_long_one_does_not_end_the_rise():
    """As long as the longest is a stair, for all that is known."""
    learned = LearnedPriors()
    for weight, count in ((0.1, 8), (0.4, 3), (0.7, 8)):
        for _ in range(count):
            learned.after_run({}, weight)
    assert (learned.stood, learned.stair, learned.runs) == (7, 7, 0)
    learned.after_run({}, 0.7)
    assert learned.runs == 1


@pytest.mark.parametrize("slab", [True, False])
def test_scales_are_around_the_prior_mean(slab):
    base = (
        SpikeSlab(torch.tensor(0.3), torch.tensor(0.5), torch.tensor(1.0)) if slab else dist.Normal(0.5, 1.0)
    )

    def model(x):
        w = pyro.sample("w", base.expand([3]).to_event(1))
        pyro.sample("y", dist.Normal(x @ w, 1.0).to_event(1), obs=torch.ones(4))

    x = torch.randn(4, 3)
    guide = (AutoSpikeSlab if slab else AutoMeanField)(model, empirical_bayes=True)
    guide.setup(x)
    perturb(guide, 0.3)
    with torch.no_grad():
        law = guide.site_distribution("w")
        alpha, slabs = (law.probs, law) if slab else (torch.ones(3), law)
        squares = slabs.scale**2 + (slabs.loc - 0.5) ** 2
        expected = ((alpha * squares).sum() / alpha.sum()).sqrt().item()
    SVI(model, guide, guide.optimizer(1e-8), guide.elbo()).step(x)
    assert guide.learned_priors.numbers["w"].scale == pytest.approx(expected, rel=1e-4)


def test_a_list_that_would_ignore_it_is_refused():
    model = network(spike_slab)
    for kl_weight, learned in ((0.5, False), (1.0, True)):
        part = AutoSpikeSlab(model, empirical_bayes=learned)
        part.kl_weight = kl_weight
        guides = AutoGuideList(model)
        guides.append(part)
        with pytest.raises(NotImplementedError, match="leave empirical_bayes and kl_weight out"):
            guides(*data())


def test_a_prior_that_hangs_on_another_site_is_left_alone():
    def model(x):
        precision = pyro.sample("precision", dist.Gamma(6.0, 6.0))
        w = pyro.sample("w", dist.Normal(0.0, precision.rsqrt()).expand([3]).to_event(1))
        pyro.sample("y", dist.Normal(x @ w, 1.0).to_event(1), obs=torch.ones(4))

    guide = AutoMeanField(model, empirical_bayes=True)
    with pytest.warns(UserWarning, match="learns nothing: none of 'w'"):
        fit(model, guide, torch.randn(4, 3), steps=2, lr=0.01)
    assert guide.learned_priors.numbers == {}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("learned", [True, "rates"])
def test_learned_priors_are_saved_with_the_guide(learned):
    model, guide, (x, y) = trained(steps=EVERY + 2, learned=learned)
    other = AutoSpikeSlab(model)
    other.load_state_dict(guide.state_dict())
    assert other.learned_priors.numbers == guide.learned_priors.numbers
    assert other.learned_priors.runs == EVERY + 2
    assert "learned_priors" not in AutoSpikeSlab(model).get_extra_state()
    fit(model, other, x, y, steps=EVERY, lr=0.01)
    assert other.learned_priors.numbers != guide.learned_priors.numbers


def test_kl_counts_less_in_training_and_never_in_the_reported_bound():
    x, y = data()
    model = network(spike_slab)
    guide = AutoSpikeSlab(model)
    guide.setup(x, y)
    losses, reported, elbo = {}, {}, TraceMeanField_ELBO()
    for weight in (1.0, 0.25, 0.0):
        guide.kl_weight = weight
        pyro.set_rng_seed(0)
        losses[weight] = elbo.loss_and_grads(model, guide, x, y)
        pyro.set_rng_seed(0)
        reported[weight] = SVI(model, guide, guide.optimizer(), elbo).evaluate_loss(x, y)
    whole = losses[1.0] - losses[0.0]
    assert whole > 1
    assert losses[0.25] - losses[0.0] == pytest.approx(0.25 * whole, rel=1e-4)
    assert reported[0.0] == reported[1.0]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("weight", [1.0, 0.1])
def test_cold_gaussian_posterior_is_the_one_of_sharper_data(weight):
    """Of orthogonal columns the optimum is known: precision ``n / (weight noise^2) + 1``."""
    x = torch.eye(3).repeat(5, 1)
    y = x @ torch.tensor([1.0, -1.0, 0.5])
    model = linear_model(normal)
    guide = AutoMeanField(model)
    guide.kl_weight = weight
    fit(model, guide, x, y, steps=250, lr=0.1)
    expected = (5 / (weight * NOISE**2) + 1) ** -0.5
    spread = guide.site_distribution("w").scale
    torch.testing.assert_close(spread, torch.full((3,), expected), rtol=0.15, atol=0)


def test_weights_that_move_as_one_find_the_prior_that_the_data_ask_for():
    """Three of 200 columns matter and all start in: where each goes alone, a third is in after 250 steps,
    for the prior follows the weights and they the prior.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100, 200, generator=generator)
    y = x[:, :3].sum(1) + NOISE * torch.randn(100, generator=generator)
    model = linear_model(spike_slab)

    def fitted(common: dict[str, float]):
        torch.manual_seed(0)
        guide = AutoSpikeSlab(model, empirical_bayes=True)
        optimizer = guide.optimizer(0.05, common=common)
        svi = SVI(model, guide, optimizer, guide.elbo())
        for step in range(250):
            optimizer.set_lr(half_cosine(0.05, step, 250))
            svi.step(x, y)
        return guide, losses(model, guide, guide.elbo(), 100, x, y)

    guide, loss = fitted({"logits": 5.0, "log_scale": 5.0})
    _, loss_apart = fitted({})
    within = 4 * (loss.var() / len(loss) + loss_apart.var() / len(loss_apart)).sqrt()
    assert loss.mean() < loss_apart.mean() - within
    assert (guide.inclusion_probabilities()["w"] > 0.5).nonzero().flatten().tolist() == [0, 1, 2]
    assert guide.learned_priors.numbers["w"].inclusion < 0.1
