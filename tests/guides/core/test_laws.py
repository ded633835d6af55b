"""The law of one site: its two ways to the KL agree, and say no by name."""

import numpy as np
import pytest
import torch
from pyro import distributions as dist
from torch.distributions import kl_divergence

from guides import SpikeSlab
from guides.core.laws import ClosedFormPrior, TransformedLaw
from guides.core.purpose import Purpose
from guides.testing import assert_mean
from tests.guides.core.test_random_tensors import KINDS, make_law

PRIORS = {
    "gaussian": lambda *p: dist.Normal(*p[1:]),
    "spike-slab": lambda *p: SpikeSlab(logits=p[0], loc=p[1], scale=p[2]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_one_prior_for_the_site_and_one_for_each_element_agree(kind):
    """The fused node (numbers expanded over the site) and the plain formulas: value and every gradient."""
    results = []
    for spread in (lambda t: t, lambda t: t.expand(3, 4).clone()):
        law = make_law(kind, (3, 4))
        parameters = [law.loc, law.log_scale] + ([law.logits] if kind == "spike-slab" else [])
        for parameter in parameters:
            parameter.requires_grad_()
        own = [torch.tensor(v, requires_grad=True) for v in (-0.7, 0.4, 1.5)]
        prior = PRIORS[kind](*map(spread, own)).expand([3, 4])
        law.prior = prior
        assert (law.moments_and_kl[2] is None) == (spread(own[0]).dim() == 2)
        total = law.kl + law.mean.sum() + 3 * law.variance.sum()
        inputs = parameters + own[kind == "gaussian" :]
        results.append((total.detach(), *torch.autograd.grad(total, inputs)))
    torch.testing.assert_close(results[0], results[1])


def test_inclusions_of_a_prior_that_are_trained_have_their_gradient():
    """One for each weight and one slab for all: the fused node of learned ones has no gradient by them."""
    results = []
    for scale in (torch.tensor(1.5), torch.full((3, 4), 1.5)):
        law = make_law("spike-slab", (3, 4))
        own = torch.linspace(-1.0, 1.0, 12).view(3, 4).requires_grad_()
        law.prior = SpikeSlab(logits=own, loc=torch.tensor(0.4).expand(scale.shape), scale=scale)
        results.append((law.kl.detach(), *torch.autograd.grad(law.kl, own)))
    torch.testing.assert_close(results[0], results[1])


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_expectations(kind):
    law = make_law(kind, (3,))
    draws = law.sample([50_000])
    own = (
        SpikeSlab(logits=law.logits, loc=law.loc, scale=law.log_scale.exp()) if kind == "spike-slab" else None
    )
    own = own or dist.Normal(law.loc, law.log_scale.exp())
    assert_mean(own.log_prob(draws).sum(-1), law.log_prob(law.rsample()))
    prior = SpikeSlab(torch.tensor([0.2, 0.5, 0.9]))
    assert_mean(prior.log_prob(draws), law.rsample().expected_log_prob(prior))
    assert_mean(prior.log_prob(draws), prior.log_prob(law.rsample()))
    law = make_law(kind, (3,))
    law.prior = prior
    assert_mean((own.log_prob(draws) - prior.log_prob(draws)).sum(-1), law.kl)


def test_pairs_without_a_closed_form_are_refused_by_name():
    law = make_law("spike-slab", (3,))
    law.prior = dist.Normal(torch.zeros(3), 1.0)
    with pytest.raises(NotImplementedError, match="site 'w'.*atom"):
        _ = law.kl
    law = make_law("gaussian", (3,))
    law.prior = dist.Laplace(torch.zeros(3), 1.0)
    with pytest.raises(NotImplementedError, match="site 'w'.*Laplace"):
        _ = law.kl


def test_kl_of_particles_is_one_number_each():
    law = make_law("gaussian", (2, 3), plates=1)
    prior = law.prior
    many = law.expand([5, 2])
    assert kl_divergence(many, ClosedFormPrior(prior, many)).shape == (5, 2)
    torch.testing.assert_close(many.kl[4], law.kl)
    assert many.rsample().shape == (5, 2, 3)
    with pytest.raises(ValueError, match="site 'w'.*cannot become"):
        law.expand([5, 3])


def test_a_run_that_looks_for_structure_stays_on_the_device():
    law = make_law("gaussian", (3,))
    law.loc = law.loc.to("meta")  # a device that every machine has
    law.uses.purpose = Purpose.STRUCTURE
    assert law.log_prob(None).device.type == "meta"


def test_density_of_a_positive_number_is_lognormal():
    """Exactly: at 1, whose logarithm is 0, and elsewhere."""
    law = TransformedLaw(
        "t", torch.Size([1]), torch.Size([]), torch.tensor([0.7]), torch.tensor([-0.4]),
        prior=dist.Gamma(2.0, 3.0), exact=True,
    )  # fmt: skip
    expected = -dist.LogNormal(0.7, torch.tensor(-0.4).exp()).entropy()
    torch.testing.assert_close(law.log_prob(torch.ones(1)), expected.reshape(1))


def test_the_divergence_of_a_positive_number_from_a_gamma():
    """By a quadrature of the two densities' log ratio."""
    loc, log_scale, prior = torch.tensor([0.7, -0.2]), torch.tensor([-0.4, -1.0]), dist.Gamma(2.0, 3.0)
    law = TransformedLaw("t", torch.Size([2]), torch.Size([]), loc, log_scale, prior=prior, exact=True)
    nodes, weights = (torch.as_tensor(part)[:, None] for part in np.polynomial.hermite_e.hermegauss(60))
    own = dist.LogNormal(loc.double(), log_scale.double().exp())
    t = (loc.double() + log_scale.double().exp() * nodes).exp()
    ratio = own.log_prob(t) - dist.Gamma(2.0, torch.tensor(3.0).double()).log_prob(t)
    expected = (weights * ratio).sum(0) / weights.sum()
    torch.testing.assert_close(law.kl.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_law_remembers_is_of_its_own_shape(kind):
    """Of one that has been scored and drawn, before it is expanded to particles."""
    law = make_law(kind, (2, 3), plates=1)
    law.uses.is_over = True  # spikes may be looked at
    assert law.log_prob(None).shape == (2,)
    assert law.draw("+").shape == (2, 3)
    many = law.expand([5, 2])
    drawn = many.draw("+")
    assert drawn.shape == (5, 2, 3)
    assert not torch.equal(drawn[0], drawn[1])
    torch.testing.assert_close(many.log_prob(None), law.log_prob(None).expand(5, 2))
