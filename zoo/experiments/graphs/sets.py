"""The sets of graphs that models are trained on and compared with, and their properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from data_loaders.graphs.edge_lists import EdgeList
from data_loaders.graphs.graph_sets import GRAPH_SETS, load_graphs, properties
from data_loaders.graphs.random_graphs import draw_graphs
from zoo.experiments.engine.declaration import Cell

#: Of 1000 synthetic graphs, and of all of a real set.
VALIDATION = 0.1
TEST = 0.2


class Parts(NamedTuple):
    """:ivar fresh: other graphs of the same law, as many as all but the test graphs; of a real set, none"""

    training: Sequence[EdgeList]
    validation: Sequence[EdgeList]
    test: Sequence[EdgeList]
    fresh: Sequence[EdgeList]


def describe_set(cell: Cell) -> Mapping[str, float]:
    """The line of Table 5.1."""
    if cell.dataset in GRAPH_SETS:
        whole = load_graphs(cell.dataset, doubled=cell.method == "doubled")
        found = properties(whole.graphs, whole.num_nodes)
    else:
        found = properties(draw_graphs(cell.dataset, cell.options["graphs"], cell.split_seed))
    return {
        "graphs": float(found.graphs),
        "avg_nodes": found.nodes,
        "avg_edges": found.edges,
        "avg_repeated_edges": found.repeated_edges,
    }


def split(dataset: str, graphs: int, seed: int, *, doubled: bool = False) -> Parts:
    """Synthetic sets: a tenth of ``graphs`` validates, as many again are for the test.  Real sets, of which
    at most so many are used: a fifth is for the test, a tenth validates.
    """
    if dataset not in GRAPH_SETS:
        tenth = max(1, round(VALIDATION * graphs))
        drawn = draw_graphs(dataset, 2 * graphs + tenth, seed)
        ends = np.cumsum([graphs - tenth, tenth, tenth])
        return Parts(*(drawn[i:j] for i, j in zip([0, *ends], [*ends, None], strict=True)))
    whole = load_graphs(dataset, doubled=doubled).graphs
    order = np.random.default_rng(seed).permutation(len(whole))[:graphs]
    test, validation = (max(1, int(share * len(order))) for share in (TEST, VALIDATION))
    picked = [whole[i] for i in order]
    return Parts(picked[test + validation :], picked[test : test + validation], picked[:test], [])
