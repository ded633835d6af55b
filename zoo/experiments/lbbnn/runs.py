"""Many fits of one logistic regression side by side.

``R`` regressions on the same rows are one linear layer of ``R`` outputs, each with weights, a start, noise
and a minibatch of its own: the loss is the sum of theirs, Adam works on each number alone, and so no fit
knows of another.  That holds for guides whose weights are independent; multiplicative flows, which multiply
all outputs by one draw, are :class:`~.runs_of_flows.AutoMNFOfRuns` here.  What a step of few columns costs is
mostly the time of its calls, which is that of one fit.

In expectation loss and gradients are those of single fits, their noise is not: the offset, too, enters by
the law of the output here, and a row that a minibatch has twice has one noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyro
import torch
from pyro import distributions as dist
from torch import Tensor
from torch.distributions import kl_divergence
from torch.nn.functional import linear, softplus

from guides.core.distributions import SpikeSlab
from guides.core.moments import spike_slab_kl
from guides.variational.spike_slab import AutoSpikeSlab
from zoo.experiments.lbbnn.runs_of_flows import AutoMNFOfRuns
from zoo.fitting.svi import Fit, FitSettings
from zoo.seeds import stable_seed

#: Networks drawn for the bound of each run.
BOUND_DRAWS = 1000


@dataclass(frozen=True)
class SideBySide:
    """``runs`` times :class:`~zoo.models.latent_binary.SpikeSlabLogistic`.

    Sites: ``w: [runs, in]``, ``b: [runs]``; observed ``y: [N, runs]``.
    """

    runs: int
    in_features: int
    inclusion: float

    def __call__(self, x: Tensor, y: Tensor, counts: Tensor | None = None) -> Tensor:
        """:param counts: ``[N, runs]``, how often a row counts in each run; once, if it is not given"""
        zero = x.new_zeros(())
        prior = SpikeSlab(x.new_tensor(self.inclusion), zero, zero + 1)
        w = pyro.sample("w", prior.expand([self.runs, self.in_features]).to_event(2))
        each, rows = pyro.plate("runs", self.runs, dim=-1), pyro.plate("data", len(x), dim=-2)
        with each:
            b = pyro.sample("b", dist.Normal(zero, 1.0))
        logits = linear(x, w, b)
        counts = torch.ones_like(logits) if counts is None else counts
        drawn = pyro.poutine.mask(mask=counts > 0)
        times = pyro.poutine.scale(scale=torch.where(counts > 0, counts, torch.ones_like(counts)))
        with each, rows, drawn, times:
            pyro.sample("y", dist.Bernoulli(logits=logits), obs=y[:, None].expand(logits.shape))
        return logits


class FittedRuns(NamedTuple):
    """Of every run: inclusion probabilities ``[R, in]``, evidence lower bound ``[R]``, nats; and how much the
    bound rose in the last tenth, a mean over the runs.
    """

    inclusion: np.ndarray
    elbo: np.ndarray
    bound_change: float


def fit_side_by_side(
    make_guide: Callable[[Callable], AutoSpikeSlab],
    x: Tensor,
    y: Tensor,
    inclusion: float,
    runs: int,
    settings: FitSettings,
) -> FittedRuns:
    """:param settings: of each run; its minibatches are drawn with replacement, as those of :class:`Fit`"""
    model = SideBySide(runs, x.shape[1], inclusion)
    torch.manual_seed(stable_seed("make", settings.seed))
    guide = make_guide(model)
    fit = Fit(guide, model, (x, y), replace(settings, batch_size=None))
    fit.batches = minibatches(x, y, runs, settings.batch_size)
    fit.run()
    change = fit.last_change().value / runs
    bounds = bound_of_each(guide, x, y, inclusion, stable_seed("bound", settings.seed))
    return FittedRuns(guide.inclusion_probabilities()["w"].double().numpy(), bounds.numpy(), change)


def minibatches(x: Tensor, y: Tensor, runs: int, size: int | None) -> Iterator[tuple[Tensor, ...]]:
    """``(x, y, counts [N, runs])`` for ever: every run draws ``size`` rows of its own with replacement, which
    together count as much as all rows; ``(x, y)`` where that would be all of them, or None.
    """
    rows = len(x)
    while size is None or size >= rows:
        yield x, y
    ones = torch.full((size, runs), rows / size)
    while True:
        yield x, y, torch.zeros(rows, runs).scatter_add_(0, torch.randint(rows, (size, runs)), ones)


@torch.no_grad()
def bound_of_each(guide: AutoSpikeSlab, x: Tensor, y: Tensor, inclusion: float, seed: int) -> Tensor:
    """Expected log likelihood of all rows by drawn weights, minus the divergence, ``[R]``, nats."""
    prior = x.new_tensor(inclusion).logit(), x.new_zeros(()), x.new_ones(())
    drawn, divergence = _draws_and_divergence(guide, prior, seed)
    sign = (1 - 2 * y)[:, None]
    likelihood = torch.stack(
        [-softplus(sign * linear(x, w, b)).sum(0) for w, b in zip(drawn["w"], drawn["b"], strict=True)]
    )
    divergence = divergence + kl_divergence(guide.site_distribution("b"), dist.Normal(*prior[1:]))
    return likelihood.double().mean(0) - divergence


def _draws_and_divergence(
    guide: AutoSpikeSlab, prior: Sequence[Tensor], seed: int
) -> tuple[dict[str, Tensor], Tensor]:
    """``{"w": [S, R, in], "b": [S, R]}``, and the divergence of the weights, ``[R]``."""
    if isinstance(guide, AutoMNFOfRuns):
        return guide.draws_of_runs(BOUND_DRAWS, prior, seed=seed)
    weights = guide.site_distribution("w")
    divergence = spike_slab_kl(weights.logits, weights.loc, weights.scale.log(), *prior).sum(-1)
    return guide.draws(BOUND_DRAWS, seed=seed), divergence
