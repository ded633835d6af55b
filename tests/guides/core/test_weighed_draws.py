"""Consumers that weigh draws by their density: at the exact posterior every weight is the evidence."""

from __future__ import annotations

import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.infer import (
    SVI,
    Importance,
    Predictive,
    RenyiELBO,
    Trace_ELBO,
    TraceTailAdaptive_ELBO,
    WeighedPredictive,
)
from pyro.infer.autoguide import AutoGuideList
from pyro.infer.importance import psis_diagnostic, vectorized_importance_weights

from guides import AutoConcrete, AutoMeanField, AutoMNF, AutoSpikeSlab, PathwiseGradientError, SpikeSlab

ROWS, NOISE, SLAB, LOGIT = 12, 1.0, 1.5, 0.4
DRAWS = 24  # of weights that are all equal
MORE_DRAWS = 300


def data():
    generator = torch.Generator().manual_seed(3)
    x = torch.linalg.qr(torch.randn(ROWS, 2, generator=generator, dtype=torch.float64))[0] * 2
    return x, x @ torch.tensor([0.7, -0.1], dtype=torch.float64) + torch.randn(
        ROWS, generator=generator, dtype=torch.float64
    )


def model_with(prior):
    def model(x, y=None):
        w = pyro.sample("w", prior)
        mean = x @ w
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, NOISE), obs=y)
        return mean

    return model


def zeros():
    return torch.zeros(2, dtype=torch.float64)


GAUSSIAN = model_with(dist.Normal(zeros(), SLAB).to_event(1))
SPIKES = model_with(SpikeSlab(logits=zeros() + LOGIT, loc=0.0, scale=SLAB).to_event(1))


def exact_guide(make, model, shift=0.0):
    """The guide at the posterior: columns are orthogonal with square 4, so that it is a product."""
    x, y = data()
    guide = make(model)
    guide.setup(x, y)
    variance = 1 / (4 / NOISE**2 + 1 / SLAB**2)
    loc = variance * (x.T @ y) / NOISE**2
    with torch.no_grad():
        guide.loc.copy_(loc + shift)
        guide.log_scale.fill_(0.5 * math.log(variance))
        if make is not AutoMeanField:
            # log odds of a column: the prior's, times the slab's evidence over the spike's
            guide.logits.copy_(LOGIT + 0.5 * math.log(variance / SLAB**2) + loc**2 / (2 * variance))
    return guide


def log_evidence(spikes: bool) -> float:
    """By hand: the sum over the four sets of columns."""
    x, y = data()
    total = []
    on = torch.sigmoid(torch.tensor(LOGIT, dtype=torch.float64)) if spikes else torch.tensor(1.0)
    for first in (0.0, 1.0):
        for second in (0.0, 1.0):
            kept = torch.tensor([first, second], dtype=torch.float64)
            weight = torch.where(kept == 1, on, 1 - on).log().sum()
            covariance = NOISE**2 * torch.eye(ROWS, dtype=torch.float64) + SLAB**2 * (x * kept) @ x.T
            law = torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance)
            total.append(weight + law.log_prob(y))
    return float(torch.stack(total).logsumexp(0))


def weighed_predictive(model, guide, parallel, draws=DRAWS):
    x, y = data()
    predictive = WeighedPredictive(model, guide=guide, num_samples=draws, parallel=parallel)
    return predictive(x, y).log_weights


def importance(model, guide, parallel):
    x, y = data()
    if parallel:
        return vectorized_importance_weights(model, guide, x, y, num_samples=DRAWS, max_plate_nesting=1)[0]
    run = Importance(model, guide=guide, num_samples=DRAWS).run(x, y)
    return torch.stack(list(run.log_weights))


def by_hand(model, guide, parallel):
    """The loop of Pyro's tutorials."""
    x, y = data()
    weights = []
    for _ in range(DRAWS):
        guide_trace = poutine.trace(guide).get_trace(x, y)
        trace = poutine.trace(poutine.replay(model, trace=guide_trace)).get_trace(x, y)
        weights.append(trace.log_prob_sum() - guide_trace.log_prob_sum())
    return torch.stack(weights)


CONSUMERS = pytest.mark.parametrize("weights", [weighed_predictive, importance, by_hand])
CASES = pytest.mark.parametrize(
    ("make", "model"),
    [
        pytest.param(AutoMeanField, GAUSSIAN, id="gaussian"),
        pytest.param(AutoSpikeSlab, SPIKES, id="spike-slab"),
        pytest.param(AutoConcrete, SPIKES, id="concrete"),
    ],
)


@pytest.mark.one_in(4)
@CASES
@CONSUMERS
@pytest.mark.parametrize("parallel", [False, True], ids=["in turn", "parallel"])
@pytest.mark.parametrize("gradients", [False, True], ids=["no_grad", "grad"])
def test_weights_at_the_posterior_are_the_evidence(make, model, weights, parallel, gradients):
    guide = exact_guide(make, model)
    if weights is by_hand and gradients and make is not AutoMeanField:
        said = "no pathwise gradient|under a loss that weighs draws"
        with pytest.raises(PathwiseGradientError, match=f"site 'w'.*({said})"):
            weights(model, guide, parallel)
        return
    with torch.set_grad_enabled(gradients):
        found = weights(model, guide, parallel).detach()
    expected = torch.full_like(found, log_evidence(spikes=make is not AutoMeanField))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)  # logits of Pyro's priors are rounded


@pytest.mark.one_in(3)
@CASES
def test_weights_elsewhere_are_unbiased(make, model):
    guide = exact_guide(make, model, shift=0.15)
    with torch.no_grad():
        found = weighed_predictive(model, guide, False, MORE_DRAWS) - log_evidence(make is not AutoMeanField)
    ratio = found.exp()
    assert found.std() > 0.1
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / MORE_DRAWS**0.5


@CASES
@pytest.mark.parametrize("vectorized", [False, True])
def test_renyi_bound_at_the_posterior_is_the_evidence(make, model, vectorized):
    guide = exact_guide(make, model)
    elbo = RenyiELBO(alpha=0.3, num_particles=4, vectorize_particles=vectorized)
    expected = -log_evidence(spikes=make is not AutoMeanField)
    assert elbo.loss(model, guide, *data()) == pytest.approx(expected, abs=1e-5)


def test_renyi_bound_trains_a_gaussian():
    """Gradient to the mean, against that of the same bound by hand, with the same draws."""
    x, y = data()
    guide = exact_guide(AutoMeanField, GAUSSIAN, shift=0.3)
    torch.manual_seed(5)
    RenyiELBO(alpha=0.5, num_particles=3).loss_and_grads(GAUSSIAN, guide, x, y)
    loc = guide.loc.detach().clone().requires_grad_()
    log_scale = guide.log_scale.detach().clone().requires_grad_()
    torch.manual_seed(5)
    terms = []
    for _ in range(3):
        w = loc + log_scale.exp() * torch.randn_like(loc)
        log_p = dist.Normal(0.0, SLAB).log_prob(w).sum() + dist.Normal(x @ w, NOISE).log_prob(y).sum()
        terms.append(log_p - dist.Normal(loc, log_scale.exp()).log_prob(w).sum())
    bound = ((0.5 * torch.stack(terms)).logsumexp(0) - math.log(3)) / 0.5
    (-bound).backward()
    torch.testing.assert_close(guide.loc.grad, loc.grad)
    torch.testing.assert_close(guide.log_scale.grad, log_scale.grad)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (AutoSpikeSlab, "no pathwise gradient; train with Trace_ELBO .* needs Gaussian weights"),
        (AutoConcrete, "train with Trace_ELBO"),
    ],
)
@pytest.mark.parametrize("elbo", [RenyiELBO, TraceTailAdaptive_ELBO])
def test_weighed_losses_of_spikes_are_refused(make, said, elbo):
    guide = exact_guide(make, SPIKES)
    with pytest.raises(PathwiseGradientError, match=f"site 'w'.*{said}"):
        elbo(num_particles=2, vectorize_particles=elbo is TraceTailAdaptive_ELBO).loss_and_grads(
            SPIKES, guide, *data()
        )


def test_guides_without_a_density_are_refused_by_name():
    x, y = data()
    guide = AutoMNF(SPIKES)
    guide(x, y)
    with torch.no_grad(), pytest.raises(NotImplementedError, match="site 'w'.*no density.*WeighedPredictive"):
        weighed_predictive(SPIKES, guide, False)
    Predictive(SPIKES, guide=guide, num_samples=3)(x)  # which weighs nothing


@CASES
def test_predictive_uses_the_weights_that_it_returns(make, model):
    """Also where gradients are enabled, as Pyro leaves them."""
    guide = exact_guide(make, model)
    x, _ = data()
    found = Predictive(model, guide=guide, num_samples=5, return_sites=["w", "_RETURN"])(x)
    torch.testing.assert_close(found["_RETURN"], found["w"].reshape(5, 2) @ x.T)


def test_pareto_diagnostic_at_the_posterior():
    """Constant weights have the lightest tail there is."""
    x, y = data()
    k = psis_diagnostic(GAUSSIAN, exact_guide(AutoMeanField, GAUSSIAN, 0.05), x, y, num_particles=400)
    assert k < 0.5


def test_list_is_evaluated_by_draws_and_trained_by_expectations():
    x, y = data()
    guide = AutoGuideList(GAUSSIAN)
    guide.append(exact_guide(AutoMeanField, poutine.block(GAUSSIAN, expose=["w"])))
    with torch.no_grad():
        found = [-Trace_ELBO().loss(GAUSSIAN, guide, x, y) for _ in range(400)]
    found = torch.tensor(found, dtype=torch.float64)
    assert abs(found.mean() - log_evidence(False)) < 4 * found.std() / 20 + 1e-9
    SVI(GAUSSIAN, guide, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO()).step(x, y)
    assert guide[0].sites["w"].by_moments


def test_weights_of_a_positive_site_are_unbiased():
    """A Gamma prior has a log-normal law and a closed-form ELBO: its draws are weighed all the same."""
    y = torch.tensor([2.0, 0.0, 3.0, 1.0], dtype=torch.float64)
    a, b = torch.tensor([3.0, 2.0], dtype=torch.float64)

    def counts(y=None):
        rate = pyro.sample("rate", dist.Gamma(a, b))
        with pyro.plate("data", 4):
            pyro.sample("y", dist.Poisson(rate), obs=y)

    total, n = y.sum(), len(y)
    evidence = a * b.log() - torch.lgamma(a) + torch.lgamma(a + total) - (a + total) * (b + n).log()
    evidence = evidence - torch.lgamma(y + 1).sum()
    guide = AutoMeanField(counts)
    guide.setup(y)
    with torch.no_grad():
        guide.loc.fill_(0.35)
        guide.log_scale.fill_(math.log(0.35))
    found = WeighedPredictive(counts, guide=guide, num_samples=MORE_DRAWS)(y).log_weights
    ratio = (found - evidence).exp()
    assert found.std() > 0.01
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / MORE_DRAWS**0.5


@pytest.mark.parametrize("gradients", [False, True], ids=["no_grad", "grad"])
def test_traces_of_the_messenger_itself(gradients):
    """``guide(...); guide.get_traces()``: an ELBO where gradients are wanted, weights where they are not."""
    x, y = data()
    guide = exact_guide(AutoMeanField, GAUSSIAN, shift=0.2)
    with torch.set_grad_enabled(gradients):
        found = []
        for _ in range(MORE_DRAWS):
            guide(x, y)
            model_trace, guide_trace = guide.get_traces()
            difference = model_trace.log_prob_sum() - guide_trace.log_prob_sum()
            found.append(difference.item())
    found = torch.tensor(found, dtype=torch.float64) - log_evidence(False)
    if gradients:
        assert found.mean() < 0
    else:
        ratio = found.exp()
        assert abs(ratio.mean() - 1) < 4 * ratio.std() / MORE_DRAWS**0.5


def test_a_loss_of_the_users_own_gets_draws():
    """Whatever a subclass of Trace_ELBO does with the traces: here the importance-weighted bound."""

    class Weighted(Trace_ELBO):
        def loss(self, model, guide, *args, **kwargs):
            terms = [
                p.log_prob_sum() - q.log_prob_sum() for p, q in self._get_traces(model, guide, args, kwargs)
            ]
            return -(torch.stack(terms).logsumexp(0) - math.log(len(terms))).item()

    guide = exact_guide(AutoMeanField, GAUSSIAN)
    found = Weighted(num_particles=5).loss(GAUSSIAN, guide, *data())
    assert found == pytest.approx(-log_evidence(False), abs=1e-5)
