"""Guides and laws with multipliers, somewhere nondescript, for the tests of AutoMNF."""

import pytest
import torch
from pyro import distributions as dist

from guides import AutoMNF
from guides.core.distributions import SpikeSlab
from guides.core.uses import Uses
from guides.testing import NOISE, fit, linear_model, normal, perturb, spike_slab
from guides.variational.multiplied_laws import MultipliedGaussianLaw, MultipliedSpikeSlabLaw
from guides.variational.multipliers import Multipliers

each_flow = pytest.mark.parametrize("flow", ["rnvp", "iaf"])
each_prior = pytest.mark.parametrize("prior", [normal, spike_slab])


def fitted(prior, x, y, steps: int = 30, lr: float = 0.05, **options) -> tuple:
    model = linear_model(prior)
    guide = AutoMNF(model, **options)
    fit(model, guide, x, y, steps=steps, lr=lr)
    return model, guide


def moved(prior, x, y, scale: float = 0.3, **options) -> tuple:
    """A guide somewhere nondescript, its flows far from the identity."""
    model = linear_model(prior)
    guide = AutoMNF(model, init_z_scale=0.4, **options)
    guide.setup(x, y)
    perturb(guide, scale)
    return model, guide


def log_joint(prior, x, y, w) -> torch.Tensor:
    return prior([x.shape[-1]]).base_dist.log_prob(w).sum(-1) + dist.Normal(w @ x.T, NOISE).log_prob(y).sum(
        -1
    )


def law_given(z_scale: float, kind: str, shape, axis: int, **options):
    """A law of nondescript parameters; ``z_scale`` tiny fixes ``z``."""
    generator = torch.Generator().manual_seed(4)
    loc, log_scale, logits = torch.randn(3, *shape, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        module = Multipliers(shape[axis], "rnvp", 2, (5,), 1.0, z_scale)
        perturb(module.flow, 0.2)
        perturb(module.auxiliary_flow, 0.2)
    prior = (SpikeSlab(0.3) if kind == "spike-slab" else dist.Normal(0.0, 1.0)).expand(shape)
    own = (logits,) if kind == "spike-slab" else ()
    family = MultipliedSpikeSlabLaw if kind == "spike-slab" else MultipliedGaussianLaw
    uses = Uses("w", False, torch.is_grad_enabled())
    return family("w", torch.Size(), torch.Size(shape), loc, 0.3 * log_scale - 1, *own,
                  prior=prior.to_event(len(shape)), by_moments=True, uses=uses, multipliers=module, axis=axis,
                  **options)  # fmt: skip
