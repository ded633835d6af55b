"""States of nodes: the gradient that passes a round."""

from __future__ import annotations

import torch

from zoo.models.graphs.graph_states import steadily


def test_gradients_grow_in_no_graph_and_shrink_as_they_are():
    """Three graphs whose turn multiplies by 0.5, 1 and 3: only the last gradient is scaled."""
    factor = torch.tensor([0.5, 1.0, 3.0])[:, None, None]
    nodes, arriving = torch.randn(3, 4, 2, requires_grad=True), torch.randn(3, 4, 2)
    after = steadily(nodes, lambda nodes: factor * nodes)
    torch.testing.assert_close(after, factor * nodes)
    (found,) = torch.autograd.grad(after, nodes, arriving)
    torch.testing.assert_close(found, factor.clamp_max(1.0) * arriving)


def test_what_does_not_pass_the_turn_is_left_alone():
    nodes = torch.randn(1, 4, 2, requires_grad=True)
    after = steadily(nodes, lambda nodes: 100 * nodes)
    (found,) = torch.autograd.grad((after + 7 * nodes).sum(), nodes)
    torch.testing.assert_close(found, torch.full((1, 4, 2), 8.0))


def test_a_hundred_turns_do_not_explode():
    start = torch.randn(2, 5, 3, requires_grad=True)
    nodes = start
    for _ in range(100):
        nodes = steadily(nodes, lambda nodes: 10 * nodes - 9 * nodes.detach())
    (found,) = torch.autograd.grad(nodes.sum(), start)
    torch.testing.assert_close(found, torch.ones(2, 5, 3))


def test_no_gradient_is_asked_for_where_none_is_taken():
    nodes = torch.randn(1, 2, 2)
    torch.testing.assert_close(steadily(nodes, lambda nodes: 2 * nodes), 2 * nodes)
    with torch.no_grad():
        nodes = nodes.requires_grad_()
        assert not steadily(nodes, lambda nodes: 2 * nodes).requires_grad


def test_a_gradient_of_zero_stays_zero():
    nodes = torch.randn(2, 4, 2, requires_grad=True)
    arriving = torch.tensor([1.0, 0.0])[:, None, None].expand(2, 4, 2)
    (found,) = torch.autograd.grad(steadily(nodes, lambda nodes: 3 * nodes), nodes, arriving)
    torch.testing.assert_close(found, arriving)
