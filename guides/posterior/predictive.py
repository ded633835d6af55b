"""From the likelihoods of all draws to one predictive distribution, or to the function without noise.

The mixture is in closed form where the likelihood is Gaussian, Bernoulli or categorical; any other likelihood
gives one law a draw (:class:`~guides.posterior.law_of_draws.LawsOfDraws`).
"""

from __future__ import annotations

import math

import torch
from pyro import distributions as dist
from torch import Tensor
from torch.distributions import Categorical, Distribution, Independent, MixtureSameFamily, Normal
from torch.nn.functional import logsigmoid

from guides.posterior.law_of_draws import LawsOfDraws, MixtureOfDraws

__all__ = ["empirical", "function_values", "mixture"]


def function_values(laws: Distribution) -> Tensor:
    """Noiseless function values ``[S, N]``, for ``K`` classes ``[S, N, K]``, of likelihoods ``[S, N]``.

    The mean of a Gaussian likelihood, the log-odds of a Bernoulli, each class's log-odds
    ``log p_k - log(1 - p_k)`` of a categorical one, the value of a ``pyro.deterministic`` site, the mean of
    any other likelihood (of Student's and Cauchy's the centre, which they have where they have no mean).
    """
    if isinstance(laws, Independent):
        return function_values(laws.base_dist)
    if isinstance(laws, Normal):
        return laws.loc
    if isinstance(laws, dist.Bernoulli):
        return laws.logits
    if isinstance(laws, LawsOfDraws):
        return laws.centre
    if isinstance(laws, dist.Delta):
        return laws.v
    log_probs = laws.logits
    others = [
        torch.cat((log_probs[..., :k], log_probs[..., k + 1 :]), -1).logsumexp(-1)
        for k in range(log_probs.shape[-1])
    ]
    return log_probs - torch.stack(others, -1)


def mixture(laws: Distribution) -> Distribution:
    """The equal mixture over draws of laws with batch shape ``[S, N]``; batch shape ``[N]``."""
    if isinstance(laws, LawsOfDraws):
        return MixtureOfDraws(laws)
    if isinstance(laws, dist.Delta):
        return empirical(laws.v)
    if isinstance(laws, Normal | Independent):
        return _mixture_of_components(laws)
    family = dist.Categorical if isinstance(laws, Categorical) else dist.Bernoulli
    if "logits" not in vars(laws):  # made of probabilities
        return family(probs=laws.probs.mean(0))
    # averages of probabilities, as logarithms: a probability next to 0 keeps its size
    if isinstance(laws, Categorical):
        return family(logits=laws.logits.log_softmax(-1).logsumexp(0) - math.log(len(laws.logits)))
    right, wrong = (logsigmoid(signed).logsumexp(0) for signed in (laws.logits, -laws.logits))
    return family(logits=_finite(right - wrong))


def _finite(logits: Tensor) -> Tensor:
    """An infinite one times a label of 0 would be no number."""
    largest = torch.finfo(logits.dtype).max
    return logits.clamp(-largest, largest)


def _mixture_of_components(laws: Distribution) -> MixtureSameFamily:
    """With draws behind the rows, before the outputs of a row."""
    outputs = laws.reinterpreted_batch_ndims if isinstance(laws, Independent) else 0
    base = laws.base_dist if outputs else laws
    classes = int(isinstance(base, Categorical))
    parameters = [value.movedim(0, -1 - outputs - classes) for value in parameters_of(base)]
    if isinstance(base, Normal):
        parts = Normal(*parameters, validate_args=False)
    elif isinstance(base, dist.Bernoulli):
        parts = dist.Bernoulli(logits=_finite(parameters[0]), validate_args=False)
    else:
        parts = type(base)(logits=parameters[0], validate_args=False)
    size, *rows = laws.batch_shape
    weights = Categorical(parameters[0].new_ones(size).expand(*rows, size))
    return MixtureSameFamily(weights, joint(parts, outputs), validate_args=False)


def empirical(values: Tensor) -> dist.Empirical:
    """The law that puts equal weight on ``S`` values ``[S, N, ...]``; batch shape ``[N]``."""
    samples = values.movedim(0, 1) if values.dim() > 1 else values
    return dist.Empirical(samples, samples.new_zeros(samples.shape[:2]))


def joint(law: Distribution, outputs: int) -> Distribution:
    """Laws of elements whose last dimensions, so many, are outputs of a row: one event."""
    return Independent(law, outputs, validate_args=False) if outputs else law


def parameters_of(law: Distribution) -> tuple[Tensor, ...]:
    """The numbers that a law of one of the closed families is made of, each of its whole batch shape."""
    if isinstance(law, Normal):
        return law.loc.expand(law.batch_shape), law.scale.expand(law.batch_shape)
    return (law.v,) if isinstance(law, dist.Delta) else (law.logits,)
