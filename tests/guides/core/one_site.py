"""A single site ``w``, Gaussian or spike and slab: its law, for tests of random tensors, and statements."""

import pyro
import pytest
import torch
from pyro import distributions as dist

from guides import SpikeSlab
from guides.core.random_tensors import RandomTensor
from guides.core.uses import Uses
from guides.core.weight_laws import GaussianLaw, SpikeSlabLaw

KINDS = ["gaussian", "spike-slab"]
each_kind = pytest.mark.parametrize("kind", KINDS)


def make_law(kind: str, shape, by_moments: bool = True, leading=(), plates: int = 0, seed: int = 0, **uses):
    """The law of one site ``w`` with nondescript parameters."""
    generator = torch.Generator().manual_seed(seed)
    loc, log_scale, logits = torch.randn(3, *shape, generator=generator)
    prior = SpikeSlab(0.3) if kind == "spike-slab" else dist.Normal(0.0, 1.0)
    batch, event = torch.Size(shape[:plates]), torch.Size(shape[plates:])
    arguments = {"prior": prior.expand(shape).to_event(len(shape) - plates), "by_moments": by_moments}
    arguments["uses"] = Uses("w", **{"wants_grad": torch.is_grad_enabled(), **uses})
    own = (logits,) if kind == "spike-slab" else ()
    family = SpikeSlabLaw if kind == "spike-slab" else GaussianLaw
    law = family("w", batch, event, loc, 0.3 * log_scale - 1, *own, **arguments)
    return law.expand(torch.Size(leading) + law.batch_shape) if leading else law


def weight(kind: str, shape, **kwargs) -> RandomTensor:
    return make_law(kind, shape, **kwargs).rsample()


def weights(spike: bool, *shape: int) -> torch.Tensor:
    """The statement of a model that draws the site."""
    prior = SpikeSlab(0.5, 0.0, 1.0) if spike else dist.Normal(0.0, 1.0)
    return pyro.sample("w", prior.expand(shape).to_event(len(shape)))


def observe(law: dist.TorchDistribution, y: torch.Tensor, rows: int, name: str = "y") -> None:
    """Data in a plate of so many rows."""
    with pyro.plate(f"rows of {name}", rows):
        pyro.sample(name, law, obs=y)
