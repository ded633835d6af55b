"""What sparse implicit processes refuse, and data at the edge of what they take."""

from __future__ import annotations

import math

import pytest
import torch

from guides.core.svi import DivergenceError
from guides.implicit import SparseImplicitProcess
from tests.guides.implicit.sparse_processes import X, Y, fitted, network
from zoo.models import BNNProcess

pytestmark = pytest.mark.filterwarnings("ignore::guides.implicit.SaturationWarning")


def test_refusals_before_the_fit():
    with pytest.raises(ValueError, match="alpha must lie in"):
        SparseImplicitProcess(network(), alpha=1.5)
    with pytest.raises(ValueError, match="num_functions=21 .* more than 21 are needed"):
        SparseImplicitProcess(network(), 20, num_functions=21)
    for number in (0, 5.5, True):
        with pytest.raises(ValueError, match="num_inducing must be a positive whole number"):
            SparseImplicitProcess(network(), number)
    with pytest.raises(ValueError, match="num_particles must be 2 at least"):
        SparseImplicitProcess(network(), num_particles=1)
    with pytest.raises(ValueError, match="jitter"):
        SparseImplicitProcess(network(), jitter=0.0)
    with pytest.raises(ValueError, match="noise_scale"):
        SparseImplicitProcess(network(), noise_scale=-1.0)
    with pytest.raises(ValueError, match="init_noise_scale"):
        SparseImplicitProcess(network(), init_noise_scale=0.0)
    for question, argument in (("draws", 3), ("predictive", X), ("posterior", 3), ("save", "fit")):
        with pytest.raises(RuntimeError, match="not fitted"):
            getattr(SparseImplicitProcess(network()), question)(argument)


def test_refusals_of_data():
    guide = SparseImplicitProcess(network(), 5)
    with pytest.raises(ValueError, match="constant"):
        guide.fit(X, torch.full((40,), 3.0))
    with pytest.raises(ValueError, match="y must be finite"):
        guide.fit(X, torch.cat((Y[1:], torch.tensor([torch.nan]))))
    with pytest.raises(ValueError, match=r"\[N, d\]"):
        guide.fit(X[:, 0], Y)
    with pytest.raises(ValueError, match="x must be of floating point, got torch.int64"):
        guide.fit(X.long(), Y)
    with pytest.raises(ValueError, match="y must be a tensor, got a ndarray"):
        guide.fit(X, Y.numpy())
    with pytest.raises(ValueError, match=r"process of 2 column\(s\) needs x \[N, 2\]"):
        SparseImplicitProcess(BNNProcess(2, (3,)), 5).fit(X, Y)
    with pytest.raises(ValueError, match="steps"):
        guide.fit(X, Y, steps=0)
    with pytest.raises(ValueError, match="noise_lr"):
        guide.fit(X, Y, noise_lr=0.0)
    with pytest.raises(ValueError, match="warm_up"):
        guide.fit(X, Y, warm_up=1.5)
    with pytest.raises(ValueError, match="no site 'f'"):
        SparseImplicitProcess(lambda x: x, 5).fit(X, Y)


def test_refusals_of_inputs():
    guide = fitted(steps=1)
    for x in (X[:, 0], X.repeat(1, 2)):
        with pytest.raises(ValueError, match=r"x must be \[m, 1\]"):
            guide.predictive(x)
    with pytest.raises(ValueError, match=r"x must be \[m, 1\], one row at least; got \[0, 1\]"):
        guide.predictive(X[:0])
    for number in (math.nan, math.inf):
        with pytest.raises(ValueError, match="^x must be finite$"):
            guide.predictive(X.clone().fill_(number))
    for x in (X.numpy(), X.long()):
        with pytest.raises(ValueError, match="x must be a tensor of floating point"):
            guide.predictive(x)


def test_divergence_in_the_last_step():
    with pytest.raises(DivergenceError, match="step 0: it leaves numbers that are not finite; lower"):
        SparseImplicitProcess(network(), 5, noise_features=8).fit(X, Y, steps=1, lr=1e300)


def test_divergence_names_the_step():
    with pytest.raises(DivergenceError, match="step [1-9].*lower the learning rate"):
        SparseImplicitProcess(network(), 5, noise_features=8).fit(X, Y, steps=50, lr=1e4, batch_size=10)


def test_fewer_rows_than_inducing_inputs():
    guide = SparseImplicitProcess(network(), 20, noise_features=8).fit(X[:4], Y[:4], steps=2)
    assert guide.inducing.shape == (20, 1)
    assert guide.inducing.unique(dim=0).shape == (20, 1)
    assert guide.predictive(X).mean.isfinite().all()


@pytest.mark.filterwarnings("ignore::guides.core.settling.UnsettledWarning")
def test_rows_that_coincide():
    x = torch.zeros(30, 1)
    guide = SparseImplicitProcess(network(), 10, noise_features=8).fit(x, Y[:30], steps=5)
    assert guide.predictive(X).mean.isfinite().all()
