"""Padding has its prior back in joint densities, and all else counts as before."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor

from guides.core.masked_sites import padding
from guides.posterior import log_joint

Y = torch.tensor([1.2, -0.4, 2.0, 0.3, -1.5])
SEEN = torch.tensor([True, True, True, False, True])
FIRST = torch.tensor([True, False])
LAWS = {
    "Bernoulli": (lambda: dist.Bernoulli(torch.tensor([0.2, 0.3])), torch.ones(2)),
    "Categorical": (lambda: dist.Categorical(torch.tensor([[0.2, 0.8], [0.3, 0.7]])), torch.tensor([1, 0])),
    "Binomial": (lambda: dist.Binomial(3, torch.tensor([0.2, 0.3])), torch.tensor([3.0, 0.0])),
    "events": (lambda: dist.Bernoulli(torch.full((2, 3), 0.2)).to_event(1), torch.ones(2, 3)),
    "one-hot": (lambda: dist.OneHotCategorical(torch.full((2, 3), 1 / 3)), torch.eye(3)[:2]),
    "sphere": (lambda: dist.ProjectedNormal(torch.eye(3)[:2]), torch.eye(3)[:2]),
}


@pytest.mark.parametrize(("law", "value"), LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("looked_at", [False, True])
def test_padding_of_any_law(law, value, looked_at):
    def model():
        with poutine.mask(mask=FIRST):
            x = pyro.sample("x", law())
        if looked_at:
            weights = torch.arange(1.0, 1.0 + x.numel()).reshape(x.shape)
            pyro.sample("y", dist.Normal((weights * x).sum(), 1.0), obs=torch.tensor(0.0))

    run = poutine.trace(poutine.condition(model, {"x": value})).get_trace()
    expected = run.log_prob_sum() if looked_at else law().log_prob(value).sum()
    torch.testing.assert_close(log_joint(model, {"x": value[None]}), expected[None])


def test_a_power_of_a_prior_does_not_count_for_padding():
    """Its norm, by x of padding, is a power of s, which would have another law."""

    def model():
        with poutine.scale(scale=0.3):
            s = pyro.sample("s", dist.LogNormal(0.0, 1.0))
            with poutine.mask(mask=FIRST):
                pyro.sample("x", dist.Normal(torch.zeros(2), s))

    s, x = torch.tensor([0.5, 4.0]), torch.tensor([[0.1, 0.2], [-1.0, 3.0]])
    prior = dist.Normal(0.0, s[:, None]).log_prob(x)
    expected = 0.3 * (dist.LogNormal(0.0, 1.0).log_prob(s) + prior[:, 0]) + prior[:, 1]
    torch.testing.assert_close(log_joint(model, {"s": s, "x": x}), expected)


def test_a_value_that_is_smaller_than_its_mask_counts_as_often_as_before():
    def model(y):
        with poutine.mask(mask=SEEN):
            b = pyro.sample("b", dist.Normal(0.0, 1.0))  # by mistake within, and counted four times
            with pyro.plate("rows", 5):
                pyro.sample("y", dist.Normal(b, 1.0), obs=y)

    b = torch.tensor([0.3, -1.0])
    runs = [poutine.trace(poutine.condition(model, {"b": value})).get_trace(Y) for value in b]
    torch.testing.assert_close(log_joint(model, {"b": b}, Y), torch.stack([r.log_prob_sum() for r in runs]))


def test_masks_may_depend_on_other_sites():
    """Then the order of the draws must not matter."""

    def model():
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        with poutine.mask(mask=z > 0):
            x = pyro.sample("x", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(torch.where(z > 0, x, 0.0), 1.0), obs=torch.tensor(0.5))

    z, x = torch.tensor([1.0, -1.0]), torch.tensor([0.3, 2.0])
    expected = sum(dist.Normal(0.0, 1.0).log_prob(v) for v in (z, x, torch.where(z > 0, x, 0.0) - 0.5))
    torch.testing.assert_close(log_joint(model, {"z": z, "x": x}), expected)
    torch.testing.assert_close(log_joint(model, {"z": z.flip(0), "x": x.flip(0)}), expected.flip(0))


@pytest.mark.parametrize("place", [-2.0, 0.0, 2.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_data_may_look_through_a_rectifier(place, sign):
    def model():
        with poutine.mask(mask=FIRST):
            x = pyro.sample("x", dist.Normal(torch.full((2,), place), 1e-3))
        pyro.sample("y", dist.Normal((sign * x).relu().sum(), 1.0), obs=torch.tensor(0.0))

    assert not padding([model], ["x"], (), {})


def test_data_may_be_more_by_what_a_mask_hides():
    def model():
        with poutine.mask(mask=FIRST):
            x = pyro.sample("x", dist.Normal(torch.zeros(2), 1e-3))
        data = torch.zeros(3 if x[1] > 0.5 else 2)
        pyro.sample("y", dist.Normal(data, 1.0), obs=data)

    assert not padding([model], ["x"], (), {})


def test_data_that_are_masked_stay_so_though_there_are_draws_of_them():
    def model(y):
        with pyro.plate("rows", 5), poutine.mask(mask=SEEN):
            pyro.sample("y", dist.Normal(0.0, 1.0), obs=y)

    expected = dist.Normal(0.0, 1.0).log_prob(Y)[SEEN].sum().expand(2)
    torch.testing.assert_close(log_joint(model, {"y": Y.expand(2, 5)}, Y), expected)


def test_data_that_are_not_seen_may_be_nan():
    def model(y):
        with pyro.plate("rows", 5):
            pyro.sample("y", dist.Normal(0.0, 1.0), obs=y, obs_mask=SEEN)

    unseen = torch.linspace(-1.0, 1.0, 5)
    expected = dist.Normal(0.0, 1.0).log_prob(Y)[SEEN].sum() + dist.Normal(0.0, 1.0).log_prob(unseen).sum()
    y = torch.where(SEEN, Y, torch.nan)
    torch.testing.assert_close(log_joint(model, {"y_unobserved": unseen[None]}, y), expected[None])


def test_a_first_draw_that_is_impossible_does_not_matter():
    def model():
        with poutine.mask(mask=FIRST):
            x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0))
        pyro.sample("y", dist.Uniform(x[0], x[0] + 1.0), obs=torch.tensor(0.5))

    x = torch.tensor([[3.0, 1.0], [0.2, -1.0]])
    impossible, other = log_joint(model, {"x": x})
    assert impossible == -torch.inf
    torch.testing.assert_close(other, dist.Normal(0.0, 1.0).log_prob(x[1]).sum())


@pytest.mark.parametrize("scale", [1.0, 0.4])
def test_sequences_of_different_lengths(scale):
    lengths, y = torch.tensor([3, 1, 2]), torch.linspace(-2, 2, 9).reshape(3, 3)

    def model():
        s = pyro.sample("s", dist.LogNormal(0.0, 1.0))
        x: Tensor = torch.zeros(3)
        with pyro.plate("sequences", 3), poutine.scale(scale=scale):
            for t in range(3):
                with poutine.mask(mask=t < lengths):
                    x = pyro.sample(f"x{t}", dist.Normal(x, s))
                    pyro.sample(f"y{t}", dist.Normal(x, 1.0), obs=y[t])

    s, x = torch.tensor([0.7, 2.0]), torch.linspace(-1, 1, 18).reshape(2, 3, 3)
    inside = torch.arange(3)[:, None] < lengths
    before = torch.cat((torch.zeros(2, 1, 3), x[:, :2]), 1)
    prior = dist.Normal(before, s[:, None, None]).log_prob(x) * torch.where(inside, scale, 1.0)
    likelihood = dist.Normal(x, 1.0).log_prob(y) * torch.where(inside, scale, 0.0)
    expected = dist.LogNormal(0.0, 1.0).log_prob(s) + (prior + likelihood).sum((1, 2))
    found = log_joint(model, {"s": s} | {f"x{t}": x[:, t] for t in range(3)})
    torch.testing.assert_close(found, expected)
