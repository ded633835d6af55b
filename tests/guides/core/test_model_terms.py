"""The terms of a model, and when one of them has changed."""

from __future__ import annotations

import math

import pyro.distributions as dist
import torch

from guides.core.model_terms import RETURN_VALUE, Watched, _fixed, changed


def test_terms_of_a_return_value_are_all_tensors_in_it():
    """In dictionaries, tuples and lists; whole numbers are none."""
    parts = [torch.full((2,), float(i)) for i in range(4)]
    watched = Watched(lambda: {"a": parts[0], "b": (parts[1], [{"c": parts[2]}, 7]), "d": torch.arange(2)})
    watched()
    assert list(watched.terms) == [f"{RETURN_VALUE} {i}" for i in range(3)]
    assert all(torch.equal(term, part) for term, part in zip(watched.terms.values(), parts, strict=False))


def test_priors_are_scored_where_their_numbers_are():
    """A device that every machine has stands for a GPU: nothing is computed there."""
    prior = dist.Normal(torch.zeros(3, device="meta"), torch.ones(3, device="meta"), validate_args=False)
    (score,) = _fixed(prior, torch.empty(3, device="meta"))
    assert (score.device.type, score.shape) == ("meta", (3,))


def test_a_change_is_one_beyond_rounding():
    """Of a term in proportion, and of one that is zero too."""
    before = torch.tensor([0.0, -1000.0, 0.0, -1000.0, 0.0], dtype=torch.float64)
    after = before + torch.tensor([9e-7, -9e-4, 2e-6, 2e-3, math.nan])
    assert changed(before, after).tolist() == [False, False, True, True, True]


def test_a_term_that_is_no_number_any_more_has_changed():
    """A moved row may leave the range of a law, and its term is then NaN; rounding is no change."""
    before = torch.tensor([0.0, 5.0, 5.0, 5.0, 5.0])
    after = torch.tensor([0.0, 5.0 + 1e-6, 5.1, torch.nan, torch.inf])
    assert changed(before, after).tolist() == [False, False, True, True, True]
