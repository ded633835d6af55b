"""A small sparse implicit process and its data, for tests."""

from __future__ import annotations

import torch

from guides.implicit import SparseImplicitProcess
from zoo.models import BNNProcess

GENERATOR = torch.Generator().manual_seed(0)
X = torch.linspace(-2, 2, 40).unsqueeze(-1)
Y = X[:, 0].sin() + 0.2 * torch.randn(40, generator=GENERATOR)


def network(**options) -> BNNProcess:
    torch.manual_seed(0)
    return BNNProcess(1, (10,), **{"dtype": torch.float64, **options})


def fitted(prior=None, steps: int = 3, seed: int = 0, **options) -> SparseImplicitProcess:
    guide = SparseImplicitProcess(prior or network(), 5, hidden=(10,), noise_features=8, **options)
    return guide.fit(X, Y, steps=steps, batch_size=10, seed=seed)
