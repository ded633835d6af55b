"""What a step of Newton's gains: of quadratics all of it, and never more than is there."""

from __future__ import annotations

import warnings

import pyro
import pytest
import torch
from pyro import distributions as dist

from guides import PosteriorBootstrap
from guides.bootstrap.remaining import remaining_gain
from guides.bootstrap.weights import dirichlet_weights
from guides.core.settling import UnsettledWarning

DRAWS = 4


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_of_a_quadratic_it_is_what_lies_above_the_minimum():
    """Of several sites, and of every draw its own, though their curvatures differ by thousands."""
    root, centre = normal(DRAWS, 5, 5), normal(DRAWS, 5, seed=1)
    scale = torch.tensor([1.0, 10.0, 0.1, 100.0], dtype=torch.float64)

    def losses(values):
        apart = torch.cat([values["a"].reshape(DRAWS, -1), values["b"]], 1) - centre
        return scale * (apart[:, None] @ root).square().sum((1, 2))

    start = {"a": normal(DRAWS, 1, 2, seed=2), "b": normal(DRAWS, 3, seed=3)}
    torch.testing.assert_close(remaining_gain(losses, start), losses(start), rtol=1e-6, atol=0)
    at_minimum = {"a": centre[:, :2].reshape(DRAWS, 1, 2), "b": centre[:, 2:]}
    assert remaining_gain(losses, at_minimum).tolist() == [0.0] * DRAWS


def test_what_the_quadratic_model_promises_is_not_believed():
    """``log cosh`` far out is a slope with next to no curvature: Newton's step goes too far by far."""

    def losses(values):
        return (values["a"].cosh().log()).sum(1)

    start = {"a": torch.full((1, 2), 3.0, dtype=torch.float64)}
    gain, there = remaining_gain(losses, start).item(), losses(start).item()
    assert 0 <= gain <= there


def test_a_loss_that_curves_downwards_gains_nothing():
    start = {"a": torch.ones(2, 1)}
    assert remaining_gain(lambda values: -values["a"].square().sum(1), start).tolist() == [0.0, 0.0]
    assert remaining_gain(lambda values: values["a"].sum(1), start).tolist() == [0.0, 0.0]  # a plane


def line(x, y=None):
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 10.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def fitted(apart: float, steps: int):
    """Two columns that differ by so much of a sd."""
    first, rows = normal(60), 60
    x = torch.stack([first, first + apart * normal(60, seed=1)], 1)
    y = x[:, 0] - 2 * x[:, 1] + normal(60, seed=2)
    posterior = PosteriorBootstrap(line).fit(x, y, num_draws=30, steps=steps)
    weights = dirichlet_weights(30, rows, 0, 0.0, torch.Generator().manual_seed(0)).double()
    gram = torch.einsum("bi,ij,ik->bjk", weights, x, x)
    exact = torch.linalg.solve(gram, torch.einsum("bi,ij,i->bj", weights, x, y))
    away = posterior.draws()["w"] - exact
    return posterior, 0.5 * torch.einsum("bj,bjk,bk->b", away, gram, away)


def test_draws_in_a_flat_valley_are_a_warning():
    """Weighted least squares has a closed form: by it the draws are as far from their minima as is said."""
    with pytest.warns(UnsettledWarning, match="a step of Newton's gains up to.*columns that say the same"):
        posterior, missing = fitted(0.02, 400)
    found = torch.tensor(posterior.info["remaining_gain"]).double()
    assert 60 * missing.max() > 1  # nats of all rows: beyond a sd of the posterior
    torch.testing.assert_close(found, missing, rtol=1e-3, atol=1e-6)
    assert max(map(abs, posterior.info["last_tenth"])) < 1e-2  # which alone would say nothing
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior, missing = fitted(1.0, 800)
    assert 60 * missing.max() < 1e-4


def test_a_loss_without_a_second_derivative_has_none():
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            ctx.save_for_backward(a)
            return a**2

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, gradient):
            return 2 * ctx.saved_tensors[0] * gradient

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 10.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(Once.apply(w) * x, 1.0), obs=y)

    x = normal(20).float()
    posterior = PosteriorBootstrap(model).fit(x, 2 * x, num_draws=2, steps=300)
    assert all(value != value for value in posterior.info["remaining_gain"])
