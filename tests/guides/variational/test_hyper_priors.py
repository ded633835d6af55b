"""Beta and Gamma hyper-priors of spikes and slabs: in the model, and as the published programs have them."""

import math

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import TraceMeanField_ELBO
from pyro.infer.autoguide import init_to_value
from scipy import stats
from scipy.special import betaln, logsumexp
from torch.distributions import constraints
from torch.nn import functional as F

from guides import AutoConcrete, AutoSpikeSlab, SpikeSlab
from guides.core import moments
from guides.testing import (
    NOISE,
    data,
    drawn_losses,
    fit,
    gradients,
    linear_model,
    spike_slab,
    vectorized,
    z_bound,
)
from guides.truth.spike_slab_linear import enumerate_spike_slab
from guides.variational.hyper_priors import (
    published_log_inclusion,
    published_log_normal_gamma,
    published_log_posterior,
)

# ---------------------------------------------------------------------- hyper-priors in the model

A, B = 2.0, 5.0
GUIDES = [
    lambda model: AutoSpikeSlab(model, init_inclusion=(-0.5, 0.5), init_loc_fn=START),
    lambda model: AutoConcrete(model, temperature=0.1, init_inclusion=(-0.5, 0.5), init_loc_fn=START),
]
START = init_to_value(values={"w": torch.full((4,), 0.1), "pi": torch.tensor(0.3), "tau": torch.tensor(1.0)})


def hierarchical(x, y=None):
    pi = pyro.sample("pi", dist.Beta(torch.tensor(A), torch.tensor(B))).unsqueeze(-1)
    tau = pyro.sample("tau", dist.Gamma(torch.tensor(4.0), torch.tensor(4.0))).unsqueeze(-1)
    prior = SpikeSlab(pi, torch.tensor(0.0), tau.rsqrt())
    w = pyro.sample("w", prior.expand([*pi.shape[:-1], x.shape[-1]]).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, NOISE), obs=y)


def orthogonal():
    x, y = data(rows=12, columns=4)
    return torch.linalg.qr(x)[0] * 2, y


def hierarchical_truth(x, y):
    """Log evidence and inclusion, ``pi`` integrated out in closed form and ``tau`` on a grid."""
    grid = np.exp(np.linspace(-4, 3, 141))
    log_weight = stats.gamma.logpdf(grid, 4, scale=1 / 4) + np.log(grid) + np.log(7 / 140)
    size = np.array([bin(i).count("1") for i in range(16)])
    prior = betaln(A + size, B + 4 - size) - betaln(A, B)
    rows = [
        enumerate_spike_slab(
            x.numpy(), y.numpy(), slab_scale=tau**-0.5 / NOISE, noise_scale=NOISE
        ).model_log_evidence
        + prior
        + weight
        for tau, weight in zip(grid, log_weight, strict=True)
    ]
    joint = logsumexp(rows, 0)
    probs = np.exp(joint - logsumexp(joint))
    return logsumexp(joint), np.array([probs[[i for i in range(16) if i >> j & 1]].sum() for j in range(4)])


@pytest.mark.parametrize("make", GUIDES, ids=["spike-slab", "concrete"])
@pytest.mark.slow
def test_hyper_priors_in_the_model(make):
    x, y = orthogonal()
    evidence, inclusion = hierarchical_truth(x, y)
    guide = make(hierarchical)
    fit(hierarchical, guide, x, y, steps=200, lr=0.08, elbo=vectorized(TraceMeanField_ELBO, 10))
    bounds = -drawn_losses(hierarchical, guide, x, y, runs=20, particles=40)
    error = z_bound() * bounds.std() / 20**0.5
    assert evidence - 0.6 - error < bounds.mean() < evidence + error
    fitted = guide.inclusion_probabilities()["w"].numpy()
    np.testing.assert_allclose(fitted, inclusion, atol=0.15)
    assert fitted.argmax() == inclusion.argmax()


@pytest.mark.parametrize("make", GUIDES, ids=["spike-slab", "concrete"])
def test_divergence_is_closed_form_given_the_drawn_hyper_parameters(make):
    x, y = orthogonal()
    guide = make(hierarchical)
    guide(x, y)
    model_trace, _ = guide.get_traces()
    nodes = model_trace.nodes
    law = guide.site_distribution("w")
    prior = torch.logit(nodes["pi"]["value"]), torch.tensor(0.0), nodes["tau"]["value"].rsqrt()
    kl = moments.spike_slab_kl(law.logits, law.loc, law.scale.log(), *prior).sum()
    torch.testing.assert_close(nodes["w"]["log_prob_sum"], -kl)


@pytest.mark.slow
@pytest.mark.parametrize("make", GUIDES, ids=["spike-slab", "concrete"])
def test_empirical_bayes_of_the_inclusion_probability(make):
    """At the optimum the learnt ``pi`` is the mean inclusion of the layer."""

    def model(x, y):
        pi = pyro.param("pi", torch.tensor(0.5), constraint=constraints.unit_interval)
        scale = pyro.param("scale", torch.tensor(0.5), constraint=constraints.positive)
        w = pyro.sample("w", SpikeSlab(pi, torch.tensor(0.0), scale).expand([4]).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, NOISE), obs=y)

    x, y = orthogonal()
    guide = make(model)
    fit(model, guide, x, y, steps=300, lr=0.1)
    law = guide.site_distribution("w")
    assert pyro.param("pi").item() == pytest.approx(law.probs.mean().item(), abs=0.02)
    second = (law.probs * (law.loc**2 + law.scale**2)).sum() / law.probs.sum()
    assert pyro.param("scale").item() ** 2 == pytest.approx(second.item(), rel=0.15)


@pytest.mark.slow
def test_empirical_bayes_of_a_beta_that_layers_share():
    """The learnt Beta has the mean of the layers' ``pi``, and the bound rises."""

    def model(x, y):
        a = pyro.param("a", torch.tensor(1.0), constraint=constraints.positive)
        b = pyro.param("b", torch.tensor(1.0), constraint=constraints.positive)
        hidden = x
        for name in ("w1", "w2"):
            pi = pyro.sample(f"pi_{name}", dist.Beta(a, b))
            prior = SpikeSlab(pi, torch.tensor(0.0), torch.tensor(1.0))
            hidden = torch.tanh(F.linear(hidden, pyro.sample(name, prior.expand([4, 4]).to_event(2))))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(hidden.sum(-1), NOISE), obs=y)

    x, y = orthogonal()
    guide = AutoConcrete(model)
    history = fit(model, guide, x, y, steps=320, lr=0.1)
    assert np.mean(history[-50:]) < np.mean(history[:25]) - 3
    a, b = pyro.param("a").item(), pyro.param("b").item()
    drawn = guide.draws(500)
    learnt = torch.cat([drawn["pi_w1"], drawn["pi_w2"]]).mean().item()
    assert a / (a + b) == pytest.approx(learnt, abs=0.06)
    assert a / (a + b) < 0.35  # few weights are needed


# ---------------------------------------------------------------------- densities, right and as published


def test_published_normal_gamma_is_off_by_what_it_says():
    w, tau = torch.randn(6).double(), torch.rand(6).double() + 0.2
    a, b = torch.tensor(2.5).double(), torch.tensor(1.5).double()
    truth = dist.Gamma(a, b).log_prob(tau) + dist.Normal(0.0, tau.rsqrt()).log_prob(w)
    wrong = published_log_normal_gamma(w, torch.ones(6).double(), tau, a, b)
    expected = truth + (a - 0.5) * (tau - tau.log()) - 0.5 * tau * w**2
    torch.testing.assert_close(wrong, expected, atol=1e-6, rtol=0)


def test_published_normal_gamma_without_the_weight():
    """Of a weight that is out there is the number one, and the penalty of its size as if it were in."""
    w, tau = torch.randn(6).double(), torch.rand(6).double() + 0.2
    off, a, b = torch.zeros(6).double(), torch.tensor(2.5).double(), torch.tensor(1.5).double()
    torch.testing.assert_close(
        published_log_normal_gamma(w, off, tau, a, b), 1 - tau * w**2, atol=1e-6, rtol=0
    )


def test_published_inclusion_does_not_sum_to_one():
    a, b = torch.tensor([3.3, 2.1], dtype=torch.float64)
    single = torch.stack([b, a]) / (a + b)  # Beta-Binomial of one indicator
    wrong = published_log_inclusion(torch.tensor([0.0, 1.0]).double(), a, b).exp()
    assert abs(wrong.sum().item() - 1) > 0.05
    missing = torch.lgamma(
        a + torch.tensor([0.0, 1.0])
    )  # which cancels there; lgamma(1 + gamma) is 0 at both
    torch.testing.assert_close((wrong.log() + missing).exp(), single)


def test_published_inclusion_at_a_relaxed_indicator():
    """There ``-lgamma(1 + g)`` of the binomial coefficient is missing too."""
    g, a, b = torch.tensor([0.0, 0.3, 0.8, 1.0]).double(), 3.3, 2.1
    beta = torch.as_tensor(betaln(a + g.numpy(), b + 1 - g.numpy()) - betaln(a, b))
    truth = beta - torch.lgamma(1 + g) - torch.lgamma(2 - g)
    wrong = published_log_inclusion(g, torch.tensor(a).double(), torch.tensor(b).double())
    torch.testing.assert_close(wrong, truth - torch.lgamma(a + g) + torch.lgamma(1 + g))


def test_published_objective_is_what_the_programs_compute():
    x, y = data()
    model = linear_model(spike_slab)
    guide = AutoConcrete(model, objective="published", temperature=0.5)
    guide(x, y)
    assert ((guide.log_hyper.exp() >= 1) & (guide.log_hyper.exp() <= 1.1)).all()
    law = guide.trace.nodes["w"]["fn"]
    state = torch.get_rng_state()
    terms = law.kl
    torch.set_rng_state(state)
    w, gate, (pa, pb, a, b) = law.draw("test"), law.gate, guide.log_hyper[0].exp()
    tau = dist.Gamma(a, b).rsample()
    log_q = published_log_posterior(w, gate, law.logits, law.loc, law.log_scale.exp())
    by_hand = (
        gate * dist.Normal(law.loc, law.log_scale.exp()).log_prob(w).exp() + 1 - gate + 1e-8
    ).log() - F.binary_cross_entropy_with_logits(law.logits, gate, reduction="none")
    torch.testing.assert_close(log_q, by_hand, atol=1e-5, rtol=1e-5)
    log_p = published_log_normal_gamma(w, gate, tau, a, b) + published_log_inclusion(gate, pa, pb)
    torch.testing.assert_close(terms, (log_q - log_p).sum())
    assert all((g != 0).any() for g in gradients(model, guide, guide.elbo(), x, y).values())
    assert guide.draws(5)["w"].shape == (5, 3)


def test_published_objective_is_differentiated_through_its_gates():
    """The published programs differentiate all their terms through the relaxed indicator.  Same draws, terms
    by hand.
    """
    x, y = data()
    guide = AutoConcrete(linear_model(spike_slab), objective="published", temperature=0.5)
    guide(x, y)
    law = guide.trace.nodes["w"]["fn"]
    logits, loc, log_scale, hyper = law.logits, law.loc, law.log_scale, law.hyper
    state = torch.get_rng_state()
    terms = law.kl
    torch.set_rng_state(state)
    with torch.no_grad():
        logistic = 0.5 * torch.logit(law.gate) - logits
        noise = (law.draw("test") / law.gate - loc) / log_scale.exp()
    gate = torch.sigmoid((logits + logistic) / 0.5)
    w = gate * (loc + log_scale.exp() * noise)
    pa, pb, a, b = hyper.exp()
    tau = dist.Gamma(a, b).rsample()
    by_hand = published_log_posterior(w, gate, logits, loc, log_scale.exp()).sum()
    by_hand = by_hand - published_log_normal_gamma(w, gate, tau, a, b).sum()
    by_hand = by_hand - published_log_inclusion(gate, pa, pb).sum()
    torch.testing.assert_close(terms, by_hand)
    own = guide.logits, guide.loc, guide.log_scale, guide.log_hyper
    for ours, truth in zip(torch.autograd.grad(terms, own), torch.autograd.grad(by_hand, own), strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-4, atol=1e-5)


def test_floors_of_the_published_posterior():
    """Where all else underflows: a weight far out whose gate is on, and one surely off that is on."""
    one, far, logit = torch.ones(1), torch.full((1,), 50.0), torch.tensor([-80.0])
    got = published_log_posterior(far, one, logit, torch.zeros(1), 0.1 * one)
    torch.testing.assert_close(got, torch.full((1,), 2 * math.log(1e-8)), rtol=1e-5, atol=0)
    got = published_log_posterior(0 * far, 0 * one, -logit, torch.zeros(1), 0.1 * one)
    torch.testing.assert_close(got, torch.full((1,), math.log(1e-8)), rtol=1e-5, atol=1e-6)
