"""Sets of graphs: their numbers are those in print, and a download gives the same arrays."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest

from data_loaders import DataError
from data_loaders.graphs.edge_lists import edge_list
from data_loaders.graphs.graph_sets import (
    GRAPH_SETS,
    Properties,
    load_graphs,
    parse_tu_dataset,
    properties,
)
from data_loaders.originals.files import content_digest
from data_loaders.originals.parsing import RawError

TEMPORAL = [name for name, entry in GRAPH_SETS.items() if entry.temporal]
#: Table 5.1: nodes, edges, repeated edges; the last two of doubled contacts.
PRINTED = {
    "dblp": ("52.87", "320.10", "220.32"),
    "facebook": ("95.72", "269.02", "167.30"),
    "highschool": ("52.32", "544.81", "432.73"),
    "infectious": ("50.00", "459.72", "333.74"),
    "mit": ("20.00", "1469.15", "1432.55"),
    "tumblr": ("53.11", "199.79", "128.16"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTED)
def test_doubled_contacts_give_the_printed_table(name, mirror):
    found = load_graphs(name, doubled=True)
    values = properties(found.graphs, found.num_nodes)
    assert values.graphs == GRAPH_SETS[name].graphs
    assert tuple(f"{v:.2f}" for v in (values.nodes, values.edges, values.repeated_edges)) == PRINTED[name]


def test_contacts_once(mirror):
    found, doubled = load_graphs("facebook"), load_graphs("facebook", doubled=True)
    for once, twice in zip(found.graphs[:20], doubled.graphs[:20], strict=True):
        loops = (twice.edges[:, 0] == twice.edges[:, 1]).sum()
        assert len(twice) == 2 * len(once) - loops
        assert (np.diff(once.times) >= 0).all()
        assert once.num_nodes == twice.num_nodes
    assert properties(found.graphs).edges == pytest.approx(134.55, abs=0.01)
    assert sum((g.edges[:, 0] == g.edges[:, 1]).sum() for g in found.graphs) == 87
    assert any("twice" in oddity for oddity in found.oddities)
    assert found.to_networkx()[3].number_of_edges() == len(found.graphs[3])


@pytest.mark.parametrize("name", [name for name in GRAPH_SETS if name not in TEMPORAL])
def test_static_sets(name, mirror):
    entry, found = GRAPH_SETS[name], load_graphs(name)
    assert len(found.graphs) == entry.graphs
    assert sum(map(len, found.graphs)) == entry.rows
    alone = sum(graph.num_nodes < nodes for graph, nodes in zip(found.graphs, found.num_nodes, strict=True))
    assert alone == {"enzymes": 8, "proteins": 5}.get(name, 0)
    with pytest.raises(DataError, match="nothing to double"):
        load_graphs(name, doubled=True)


def _zipped(**parts: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for part, text in parts.items():
            archive.writestr(f"x_ct1/x_ct1_{part}.txt", text)
    return stream.getvalue()


def test_original_files_are_read():
    raw = _zipped(
        A="1, 2\n2, 1\n3, 4\n4, 3\n",
        edge_attributes="5\n5\n7\n7\n",
        graph_indicator="1\n1\n2\n2\n2\n",
        graph_labels="0\n1\n",
    )
    arrays = parse_tu_dataset("x_ct1", [raw])
    assert arrays["src"].tolist() == [0, 1, 0, 1]
    assert arrays["time"].tolist() == [5, 5, 7, 7]
    assert arrays["edge_ptr"].tolist() == [0, 2, 4]
    assert arrays["n_nodes"].tolist() == [2, 3]


def test_damaged_files_are_refused():
    parts = {"A": "1, 2\n2, 1\n", "edge_attributes": "5\n5\n", "graph_labels": "0\n"}
    parts["graph_indicator"] = "1\n1\n"
    whole = _zipped(**parts)
    assert len(parse_tu_dataset("x_ct1", [whole])["src"]) == 2
    for raw in (
        _zipped(A="1, 2\n"),  # a part is missing
        _zipped(**{**parts, "A": "1, 2\n2, 9\n3, 1\n"}),  # a node of no graph
        _zipped(**{**parts, "graph_indicator": "0\n0\n"}),
        _zipped(**{**parts, "edge_attributes": "5\n"}),  # fewer times than edges
        whole[:60] + bytes([whole[60] ^ 255]) + whole[61:],
        whole[:-30],
    ):
        with pytest.raises(RawError, match="cannot be read"):
            parse_tu_dataset("x_ct1", [raw])


def test_contacts_keep_their_times_where_graphs_are_mixed():
    raw = _zipped(
        A="3, 4\n1, 2\n4, 3\n2, 1\n",
        edge_attributes="7\n5\n8\n6\n",
        graph_indicator="1\n1\n2\n2\n",
        graph_labels="0\n1\n",
    )
    arrays = parse_tu_dataset("x_ct1", [raw])
    assert arrays["src"].tolist() == [0, 1, 0, 1]
    assert arrays["time"].tolist() == [5, 6, 7, 8]


def test_properties_by_hand():
    """Of four edges three are between the same two nodes, whatever their direction."""
    graphs = [edge_list([(0, 1), (1, 0), (0, 1), (2, 2)]), edge_list([(0, 1), (1, 2)])]
    assert properties(graphs) == Properties(graphs=2, nodes=3.0, edges=3.0, repeated_edges=1.0)
    assert properties(graphs, [3, 8]).nodes == 5.5


@pytest.mark.parametrize("name", TEMPORAL)
def test_digest_of_a_download_is_that_of_the_mirror(name, mirror):
    with np.load(mirror / GRAPH_SETS[name].file, allow_pickle=False) as stored:
        arrays = {key: stored[key] for key in stored.files}
    assert content_digest(arrays, ["src", "dst", "time", "edge_ptr"]) == GRAPH_SETS[name].content


def test_unknown_sets_come_with_the_nearest():
    with pytest.raises(DataError, match="unknown set of graphs 'dblb'.*dblp"):
        load_graphs("dblb")
