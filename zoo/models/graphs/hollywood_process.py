"""The binary Hollywood process, with exact log-probabilities, in nats, float64.

A growing graph is its edges ``[m, 2]`` with nodes numbered by first appearance, the sender of an edge before
its recipient (:mod:`data_loaders.graphs.edge_lists`).  The Hollywood process is also a Pyro model of its two
parameters, with a NumPyro twin: :class:`HollywoodModel`.

Crane and Dempsey 2018, Edge Exchangeable Models for Interaction Networks (JASA); Ott 2022 (dissertation,
chapter 5), whose equation 5.8 is put right here (Gamma(alpha + 1) in the numerator).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np
import pyro
import torch
from pyro import distributions as dist
from scipy.special import gammaln
from torch import Tensor

from data_loaders import DataError
from data_loaders.graphs.edge_lists import EdgeList, check_ends, check_numbering
from data_loaders.graphs.random_graphs import check_hollywood, hollywood
from zoo.models.traits import Traits

# ------------------------------------------------------------------------------- the binary Hollywood process


@dataclass(frozen=True)
class HollywoodProcess:
    """Ends of edges one after the other.  Of M ends so far on N nodes, node i having D(i) of them::

        P(node i) = (D(i) - sigma) / (M + alpha),   P(a new node) = (alpha + sigma N) / (M + alpha)

    The first end is a new node.  ``0 < sigma < 1``, ``alpha > -sigma``.
    """

    alpha: float = 1.0
    sigma: float = 0.7

    def __post_init__(self) -> None:
        check_hollywood(self.alpha, self.sigma)

    def log_prob(self, edges: Tensor | np.ndarray | EdgeList) -> Tensor:
        """Of a sequence ``[m, 2]``: ``[]``.  It depends on the counts of the nodes alone.

        :raises DataError: for nodes that are not numbered by first appearance
        """
        counts, total = _counts(_pairs(edges))
        seen, nodes = np.arange(1, total), np.arange(1, len(counts))
        old = gammaln(counts - self.sigma) - gammaln(1 - self.sigma)
        value = np.log(self.alpha + nodes * self.sigma).sum() - np.log(self.alpha + seen).sum() + old.sum()
        return torch.as_tensor(value, dtype=torch.float64)

    def next_end(self, ends: Sequence[int]) -> Tensor:
        """Probabilities of the end after some others: of the nodes so far, then of a new one, ``[N + 1]``.

        :raises DataError: for nodes that are not numbered by first appearance
        """
        if len(ends) == 0:
            return torch.ones(1, dtype=torch.float64)
        counts = torch.as_tensor(_counts(np.asarray(ends))[0]).double()
        new = counts.new_tensor([self.alpha + self.sigma * len(counts)])
        weights = torch.cat([counts - self.sigma, new])
        return weights / (len(ends) + self.alpha)

    def sample(self, num_graphs: int, num_edges: int | Sequence[int], seed: int = 0) -> list[EdgeList]:
        """:param num_edges: of every graph, or of each"""
        lengths = [num_edges] * num_graphs if isinstance(num_edges, Integral) else list(num_edges)
        if len(lengths) != num_graphs:
            raise DataError(f"{num_graphs} graphs need {num_graphs} numbers of edges, not {len(lengths)}")
        return hollywood(lengths, self.alpha, self.sigma, np.random.default_rng(seed))

    def expected_nodes(self, num_edges: int | np.ndarray) -> np.ndarray:
        """Exact mean number of nodes after so many edges; same shape.

        After one end the mean of N + alpha / sigma is 1 + alpha / sigma, and the end that follows M others
        multiplies it by 1 + sigma / (M + alpha): the sum of the logs of these keeps what gamma functions
        would lose where alpha is large or sigma small.  Time and memory grow with the largest number.

        :raises DataError: for anything but positive whole numbers
        """
        edges = np.asarray(num_edges)
        if edges.dtype.kind not in "iu" or (edges < 1).any():
            raise DataError(f"numbers of edges are whole and 1 or more, not {num_edges}")
        if edges.size == 0:
            return edges.astype(np.float64)
        edges = edges.astype(np.int64)
        a, s = self.alpha, self.sigma
        grown = np.cumsum(np.log1p(s / (a + np.arange(1, 2 * edges.max()))))[2 * edges - 2]
        return np.exp(grown) + a / s * np.expm1(grown)

    def expected_nodes_of_many(self, num_edges: int | np.ndarray) -> np.ndarray:
        """Equation 5.8, the limit of :meth:`expected_nodes` for many edges; same shape.

        The print has Gamma(sigma + 1) where Gamma(alpha + 1) belongs.
        """
        a, s, ends = self.alpha, self.sigma, 2 * np.asarray(num_edges, dtype=np.float64)
        return np.exp(gammaln(a + 1) - gammaln(a + s)) / s * ends**s


def _pairs(edges: Tensor | np.ndarray | EdgeList) -> np.ndarray:
    """``[m, 2]``, one edge at least."""
    found = np.asarray(edges.edges if isinstance(edges, EdgeList) else edges)
    check_ends(found)
    return found


def _counts(ends: np.ndarray) -> tuple[np.ndarray, int]:
    """How often each node appears, and how many ends there are."""
    ends = ends.ravel()
    check_numbering(ends)
    return np.bincount(ends), ends.size


@dataclass(frozen=True)
class HollywoodModel:
    """The parameters of a Hollywood process, given what it picked.

    ``alpha ~ Gamma(1, 0.2)``, so that alpha > 0; ``sigma ~ Beta(1, 1)``.  A row of ``x: [N, 3]`` is one pick
    of an end: ends before it, nodes before it, and earlier appearances of the node that was picked (0: a new
    one); ``y: [N]`` is 1 for a new node.  Given that the node is not new, which one it is tells of sigma too:
    that is the site ``which``, a factor that needs ``y``.  The likelihood of all picks is
    :meth:`HollywoodProcess.log_prob` (:func:`data_loaders.graphs.random_graphs.picks` makes the rows).

    Sites: ``alpha: []``, ``sigma: []``; observed ``y: [N]``.
    """

    @property
    def traits(self) -> Traits:
        return Traits("none", "bernoulli", "picks")

    def __call__(self, x: Tensor, y: Tensor | None = None, size: int | None = None) -> Tensor:
        """The Pyro model; ``size``: rows of the whole data set if ``x`` is a minibatch.  Returns log-odds of
        a new node, ``[N]``.
        """
        one = x.new_ones(())
        alpha = pyro.sample("alpha", dist.Gamma(one, 0.2 * one))[..., None]
        sigma = pyro.sample("sigma", dist.Beta(one, one))[..., None]
        ends, nodes, before = x.unbind(-1)
        rest = ends - sigma * nodes
        output = (alpha + sigma * nodes).log() - rest.log()
        batch = None if size is None else torch.arange(len(x))
        with pyro.plate("data", size or len(x), subsample=batch):
            if y is not None:
                which = (before.clamp_min(1) - sigma).log() - rest.log()
                pyro.factor("which", torch.where(before > 0, which, 0.0))
            pyro.sample("y", dist.Bernoulli(logits=output), obs=y)
        return output

    def twin(self, x, y=None):
        """The same model in NumPyro."""
        import jax.numpy as jnp
        import numpyro
        import numpyro.distributions as ndist

        alpha = numpyro.sample("alpha", ndist.Gamma(1.0, 0.2))
        sigma = numpyro.sample("sigma", ndist.Beta(1.0, 1.0))
        ends, nodes, before = x[:, 0], x[:, 1], x[:, 2]
        rest = ends - sigma * nodes
        output = jnp.log(alpha + sigma * nodes) - jnp.log(rest)
        if y is not None:
            which = jnp.log(jnp.maximum(before, 1) - sigma) - jnp.log(rest)
            numpyro.factor("which", jnp.where(before > 0, which, 0.0).sum())
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", ndist.Bernoulli(logits=output), obs=y)
        return output
