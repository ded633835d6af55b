"""What a step of Newton's gains: of quadratics all of it, and never more than is there."""

from __future__ import annotations

import warnings

import pyro
import pytest
import torch
from pyro import distributions as dist

from guides import PosteriorBootstrap
from guides.bootstrap.posterior_bootstrap import _End, _warn_unsettled
from guides.bootstrap.remaining import newtons_step
from guides.bootstrap.weights import dirichlet_weights
from guides.core.settling import UnsettledWarning
from guides.core.svi import half_cosine

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
    gain, step = newtons_step(losses, start)
    torch.testing.assert_close(gain, losses(start), rtol=1e-6, atol=0)
    torch.testing.assert_close(step, centre - torch.cat([start["a"].flatten(1), start["b"]], 1))
    at_minimum = {"a": centre[:, :2].reshape(DRAWS, 1, 2), "b": centre[:, 2:]}
    gain, step = newtons_step(losses, at_minimum)
    assert gain.tolist() == [0.0] * DRAWS
    assert not step.any()


def test_what_the_quadratic_model_promises_is_not_believed():
    """``log cosh`` far out is a slope with next to no curvature: Newton's step goes too far by far, and what
    is told is what was there.
    """

    def losses(values):
        return values["a"].cosh().log().sum(1)

    start = {"a": torch.full((1, 2), 2.0, dtype=torch.float64)}
    gain, step = newtons_step(losses, start)
    assert 0 < gain.item() <= losses(start).item()
    assert gain.item() > 0.5 * losses(start).item()  # a part of the step, for the whole goes too far
    torch.testing.assert_close(gain, losses(start) - losses({"a": start["a"] + step}))


def test_where_the_loss_curves_downwards_the_way_ends():
    """``a^2 - b^2 / 2``: downhill it curves upwards, and the next direction would lead back to the saddle."""

    def losses(values):
        return values["a"] @ torch.tensor([[1.0, 0.0], [0.0, -0.5]]).double() @ values["a"].mT

    start, downhill = torch.tensor([[-0.5, 0.5]]).double(), torch.tensor([[1.0, 0.5]]).double()
    gain, step = newtons_step(lambda values: losses(values)[0], {"a": start})
    torch.testing.assert_close(step, 1.25 / 1.75 * downhill)
    torch.testing.assert_close(gain, (losses({"a": start}) - losses({"a": start + step}))[0])


def test_a_loss_without_curvature_tells_nothing():
    start = {"a": torch.ones(2, 1)}
    for losses in (lambda v: -v["a"].square().sum(1), lambda v: v["a"].sum(1), lambda v: v["a"].abs().sum(1)):
        for part in newtons_step(losses, start):
            assert part.isnan().all()


@pytest.mark.parametrize("error", [ValueError, RuntimeError])  # of a support, of a factorisation
def test_a_step_to_where_a_law_cannot_be_is_none(error):
    """Of one draw alone; the others keep theirs."""

    def losses(values):
        if (values["a"] < -1).any():
            raise error("scale must be positive")
        return values["a"].cosh().log().sum(1)

    start = {"a": torch.tensor([[0.3], [2.0]], dtype=torch.float64)}
    gain, _ = newtons_step(losses, start)
    assert gain.isfinite().all()
    assert gain[0] > 0


def line(x, y=None):
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 10.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def fitted(apart: float, steps: int, *, noise: float = 1.0, more: int = 0):
    """Two columns that differ by so much of a sd, beside ``more`` that do not hang together; and how far the
    draws are from weighted least squares, along the difference of the two, in sds of that.
    """
    first, rows = normal(60 + 4 * more), 60 + 4 * more
    others = normal(rows, more, seed=5)
    x = torch.cat([torch.stack([first, first + apart * normal(rows, seed=1)], 1), others], 1)
    y = x[:, 0] - 2 * x[:, 1] + noise * normal(rows, seed=2)
    posterior = PosteriorBootstrap(line).fit(x, y, num_draws=30, steps=steps)
    weights = dirichlet_weights(30, rows, 0, 0.0, torch.Generator().manual_seed(0)).double()
    gram = torch.einsum("bi,ij,ik->bjk", weights, x, x)
    exact = torch.linalg.solve(gram, torch.einsum("bi,ij,i->bj", weights, x, y))
    along, wanted = (w[:, 0] - w[:, 1] for w in (posterior.draws()["w"], exact))
    return posterior, (along - wanted).abs() / wanted.std()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("more", [0, 40])
def test_draws_in_a_flat_valley_are_a_warning(more):
    """Weighted least squares has a closed form, and one flat valley is one of two columns or of many."""
    with pytest.warns(UnsettledWarning, match="are moved by a step of Newton's.*columns that say the same"):
        posterior, missing = fitted(0.02, 300, more=more)
    assert missing.mean() > 0.5
    assert torch.tensor(posterior.info["remaining_way"]).mean() > 0.25
    assert max(map(abs, posterior.info["last_tenth"])) < 1e-2  # which alone would say nothing


def test_draws_at_their_minima_are_none():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        posterior, missing = fitted(1.0, 600)
    assert missing.max() < 0.05
    assert max(posterior.info["remaining_way"]) < 0.05


def test_how_far_is_told_in_sds_of_the_draws_and_not_of_the_likelihood():
    """Whose noise is a hundred times that of the data: the draws' own width is narrow, and they stand off by
    more of it than by the likelihood's curvature.
    """
    with pytest.warns(UnsettledWarning, match="are moved by a step of Newton's"):
        posterior, missing = fitted(0.1, 300, noise=0.01)
    assert missing.mean() > 0.5
    assert 60 * max(posterior.info["remaining_gain"]) < 2  # nats of all rows


def test_a_way_is_measured_by_the_draws_along_it():
    """Of draws that hang together, across: there their sd is sqrt(0.04 / 3), and not that of a number."""
    draws = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [0.1, -0.1], [-0.1, 0.1]], dtype=torch.float64)
    step, none = torch.zeros_like(draws), torch.zeros(4)
    step[0] = torch.tensor([0.1, -0.1])
    away = _End({"a": draws[:, :1], "b": draws[:, 1:]}, none, none, none, step).away()
    assert away.tolist() == pytest.approx([0.02**0.5 / (0.04 / 3) ** 0.5, 0, 0, 0])


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
    for name in ("remaining_gain", "remaining_way"):
        assert all(value != value for value in posterior.info[name])


def test_a_lone_draw_has_no_spread_to_measure_its_way_by():
    x = normal(20, 1)
    posterior = PosteriorBootstrap(line).fit(x, 2 * x[:, 0], num_draws=1, steps=300, lr=0.3)
    assert all(value != value for value in posterior.info["remaining_way"])


@pytest.mark.parametrize(
    ("fell", "went", "short", "unsettled"),
    [
        ({0: 0.0099}, {}, {}, 0),
        ({0: 0.0101}, {}, {}, 1),
        ({0: 0.0101, 1: -0.0101}, {}, {}, 2),  # a loss that rose is none that has arrived
        ({}, {0: 0.89}, {}, 0),
        ({}, {0: 0.91}, {}, 1),
        ({}, {0: -0.91}, {}, 1),
        ({}, {}, dict.fromkeys(range(3), 0.24), 0),
        ({}, {}, dict.fromkeys(range(2), 0.26), 0),  # so few hardly move what is asked of all
        ({}, {}, dict.fromkeys(range(3), -0.26), 3),
        ({0: 0.0101}, {1: 0.91}, dict.fromkeys(range(1, 4), 0.26), 4),  # each draw counts once
    ],
)
def test_where_draws_begin_to_be_unsettled(fell, went, short, unsettled):
    """Of a hundred draws of two numbers: nats of the last tenth, shares of the way that the steps reach, and
    sds that a step of Newton's still goes.
    """
    reach = sum(half_cosine(0.1, step, 50) for step in range(50))
    start = {"a": normal(100, 2)}
    minimum, change, step = start["a"].clone(), torch.zeros(100), torch.zeros(100, 2, dtype=torch.float64)
    for draw, value in fell.items():
        change[draw] = value
    for draw, share in went.items():
        minimum[draw, 1] += share * reach
    for draw, sds in short.items():
        step[draw, 0] = sds * minimum[:, 0].std()
    end = _End({"a": minimum}, torch.zeros(100), change, torch.zeros(100), step)
    if not unsettled:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _warn_unsettled(start, end, 50, 0.1)
        return
    with pytest.warns(UnsettledWarning, match=f"^{unsettled} of 100 draws"):
        _warn_unsettled(start, end, 50, 0.1)
