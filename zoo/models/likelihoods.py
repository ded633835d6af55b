"""The observed site ``y`` of the models, in Pyro and in NumPyro."""

from __future__ import annotations

import pyro
import torch
from pyro import distributions as dist
from torch import Tensor

from zoo.models.traits import Likelihood


def observe(
    likelihood: Likelihood,
    output: Tensor,
    y: Tensor | None,
    rows: int,
    size: int | None,
    noise_scale: float | None,
) -> None:
    """The ``y`` site in Pyro: ``output`` is the mean or the logits, in a plate that scales a minibatch up."""
    if likelihood == "normal":
        if noise_scale is None:
            prior = dist.Gamma(output.new_tensor(6.0), output.new_tensor(6.0))
            scale = pyro.sample("noise_precision", prior).rsqrt()
        else:
            scale = output.new_tensor(noise_scale)
        law = dist.Normal(output, scale)
    elif likelihood == "bernoulli":
        law = dist.Bernoulli(logits=output)
    else:
        law = dist.Categorical(logits=output)
    batch = None if size is None else torch.arange(rows)
    with pyro.plate("data", size or rows, subsample=batch):
        pyro.sample("y", law, obs=y)


def observe_numpyro(likelihood: Likelihood, output, y, noise_scale: float | None):
    """The ``y`` site in NumPyro; the plate is an independent event of the whole data set."""
    import numpyro
    import numpyro.distributions as ndist

    if likelihood == "normal":
        precision = None if noise_scale else numpyro.sample("noise_precision", ndist.Gamma(6.0, 6.0))
        scale = noise_scale or precision**-0.5
        law = ndist.Normal(output, scale)
    elif likelihood == "bernoulli":
        law = ndist.Bernoulli(logits=output)
    else:
        law = ndist.Categorical(logits=output)
    with numpyro.plate("data", output.shape[0]):
        numpyro.sample("y", law, obs=y)
    return output
