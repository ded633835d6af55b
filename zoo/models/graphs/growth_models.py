"""Models of graphs, by name.  They are fitted to graphs, not to rows, and so are no entries of the other
catalogue.  Imports nothing slow.
"""

from __future__ import annotations

from dataclasses import dataclass

from zoo.models.entries import Card


@dataclass(frozen=True)
class GraphModel:
    """:ivar made: how it is made in Python"""

    name: str
    summary: str
    made: str
    card: Card
    paper: str = "graphs"


GROWTH_MODELS = {
    "edge-graph": GraphModel(
        name="edge-graph",
        summary="graphs that grow edge by edge, loops and repeated edges among them",
        made="zoo.models.EdgeGraphModel()",
        card=Card(
            law="sender: an existing node or a new one, by a softmax of scores of their states\n"
            "recipient: likewise, given the sender\n"
            "then every node hears from its neighbours, and a GRU makes its new state",
            assumes="edges in the order in which they came; every node has an edge",
            cost="6 s an epoch of 900 graphs of 84 edges on a core; memory by the square of the length",
            fails="does not know how many edges are left: cycles are not closed in time (sees_end in Python)",
        ),
    )
}
