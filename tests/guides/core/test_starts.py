"""Where a fit starts: weights as wide as their layer bears, whatever the prior; all else at the median."""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine

from guides import SpikeSlab
from guides.core.starts import init_to_he, initial_value


def site(law, shape: tuple[int, ...] = (), event_dim: int = 0) -> dict:
    prior = law.expand(list(shape)).to_event(event_dim)
    return poutine.trace(lambda: pyro.sample("w", prior)).get_trace().nodes["w"]


def assert_spread(value: torch.Tensor, centre: float, sd: float) -> None:
    """Of some ten thousand numbers."""
    assert value.mean().item() == pytest.approx(centre, abs=0.05 * sd)
    assert value.std().item() == pytest.approx(sd, rel=0.05)


@pytest.mark.parametrize("scale", [5.0, 0.005])
@pytest.mark.parametrize(
    ("shape", "event_dim", "inputs"),
    [
        ((10_000,), 1, 10_000),  # a vector: all of it
        ((400, 25), 2, 25),
        ((300, 4, 3, 3), 4, 36),
        ((20, 20, 25), 2, 25),  # in a plate
        ((10_000,), 0, 1),  # single numbers in a plate
    ],
)
def test_weights_start_at_draws_no_wider_than_the_root_of_their_inputs(shape, event_dim, inputs, scale):
    value = initial_value(site(dist.Normal(0.3, scale), shape, event_dim))
    assert value.shape == shape
    assert_spread(value, 0.3, min(scale, inputs**-0.5))


def test_a_spike_and_slab_starts_in_its_slab():
    value = initial_value(site(SpikeSlab(probs=0.01, loc=0.3, scale=5.0), (400, 25), 2))
    assert_spread(value, 0.3, 0.2)
    assert (value != 0).all()


@pytest.mark.parametrize("start", [initial_value, init_to_he])
def test_other_sites_start_at_their_median(start):
    """Among draws of a half-Cauchy some would be in the hundreds."""
    value = start(site(dist.HalfCauchy(torch.tensor(1.0)), (2000,), 1))
    assert 0.9 < value.median() < 1.1
    assert value.max() < 20


@pytest.mark.parametrize("law", [dist.Normal(0.3, 0.005), SpikeSlab(probs=0.01, loc=0.3, scale=0.005)])
def test_weights_of_rectified_units_start_as_he_says_and_vectors_at_zero(law):
    assert_spread(init_to_he(site(law, (400, 25), 2)), 0.0, (2 / 25) ** 0.5)
    assert_spread(init_to_he(site(law, (300, 4, 3, 3), 4)), 0.0, (2 / 36) ** 0.5)
    assert_spread(init_to_he(site(law, (20, 20, 25), 2)), 0.0, (2 / 25) ** 0.5)
    assert torch.equal(init_to_he(site(law, (25,), 1)), torch.zeros(25))
