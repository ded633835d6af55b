"""A spike-and-slab site that has no pathwise gradient is refused with the remedy for its case."""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro import distributions as dist

from guides import AutoSpikeSlab, SpikeSlab
from guides.core.random_tensors import PathwiseGradientError

X = torch.linspace(-1, 1, 12).reshape(4, 3)


def weights():
    return pyro.sample("w", SpikeSlab(probs=0.5).expand([2, 3]).to_event(2))


def used_elsewhere(x):
    w = weights()
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal((x @ w.T).sum(-1) + w.exp().sum(), 1.0), obs=torch.zeros(len(x)))


def shows_nothing(x):
    x @ weights().T


def rows_meet(x):
    pyro.sample("y", dist.Normal((x @ weights().T).prod(0).sum(), 1.0), obs=torch.tensor(0.0))


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        (used_elsewhere, "its inclusion has no pathwise gradient there; use it once, through F.linear"),
        (shows_nothing, "let the model return its prediction"),
        (rows_meet, "give every row a likelihood term of its own"),
    ],
)
def test_each_case_has_its_own_remedy(model, remedy):
    with pytest.raises(PathwiseGradientError, match=remedy):
        AutoSpikeSlab(model)(X)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_model_that_shows_nothing_is_refused_from_two_rows_on(rows):
    """A row alone meets none."""
    if rows == 1:
        AutoSpikeSlab(shows_nothing)(X[:1])
        return
    with pytest.raises(PathwiseGradientError, match="let the model return its prediction"):
        AutoSpikeSlab(shows_nothing)(X[:rows])
