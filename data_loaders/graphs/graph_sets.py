"""Sets of graphs: the temporal sets of TUDataset, and static ones.

from data_loaders.graphs.graph_sets import load_graphs

contacts = load_graphs("dblp")             # every contact once
doubled = load_graphs("dblp", doubled=True)  # twice, as in the files and in the dissertation
graphs = contacts.to_networkx()
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from data_loaders.errors import DataError, nearest
from data_loaders.graphs.edge_lists import EdgeList, edge_list
from data_loaders.originals.checksums import FILE_SHA256, GRAPHS_SHA256
from data_loaders.originals.files import read_arrays
from data_loaders.originals.parsing import MOST_UNPACKED, UNREADABLE, Arrays, RawError

if TYPE_CHECKING:  # slow to import
    import networkx as nx


@dataclass(frozen=True)
class GraphEntry:
    """Facts about a set: as in `data_loaders.catalogue.entries.Entry`; `graphs` is their number, `rows` that
    of the lines of the file, of which a contact has two in a temporal set.
    """

    name: str
    graphs: int
    rows: int
    licence: str
    source: str
    file: str
    sha256: str
    temporal: bool = False
    addresses: tuple[str, ...] = ()
    content: str = ""
    oddities: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class GraphSet:
    """Graphs with their edges in order.

    `num_nodes` is [n], nodes of every graph as the file has them: those without an edge are in no edge list.
    """

    name: str
    graphs: tuple[EdgeList, ...]
    num_nodes: np.ndarray
    oddities: tuple[str, ...] = ()

    def to_networkx(self) -> list[nx.MultiDiGraph]:
        """Every graph with all its edges and their times."""
        return [graph.to_networkx() for graph in self.graphs]


_TWICE = (
    "a contact stands in the file twice, (u, v, t) and (v, u, t): here once, unless asked for doubled, with "
    "the smaller number as sender",
    "a contact of a node with itself stands there once",
)


def _temporal(name: str, graphs: int, rows: int, *oddities: str) -> GraphEntry:
    file = f"graphs/{name}_ct1.npz"
    return GraphEntry(
        name=name,
        graphs=graphs,
        rows=rows,
        licence="none stated (TUDataset)",
        source="chrsmrrs.github.io/datasets (Oettershagen et al. 2020)",
        file=file,
        sha256=FILE_SHA256[file],
        temporal=True,
        addresses=(f"https://www.chrsmrrs.com/graphkerneldatasets/{name}_ct1.zip",),
        content=GRAPHS_SHA256[name],
        oddities=(*_TWICE, "rows are not sorted by time, and most share it with another", *oddities),
    )


def _static(
    name: str, file: str, graphs: int, rows: int, licence: str, source: str, *oddities: str
) -> GraphEntry:
    place = f"graphs/{file}.npz"
    return GraphEntry(name, graphs, rows, licence, source, place, FILE_SHA256[place], oddities=oddities)


_GDSS = "github.com/harryjo97/GDSS"
GRAPH_SETS: Mapping[str, GraphEntry] = {
    entry.name: entry
    for entry in (
        _temporal("dblp", 755, 241_674),
        _temporal("facebook", 995, 267_673, "87 contacts of a node with itself"),
        _temporal("highschool", 180, 98_066),
        _temporal("infectious", 200, 91_944),
        _temporal("mit", 97, 142_508, "times up to 5576, and a graph of 6726 rows"),
        _temporal("tumblr", 373, 74_520),
        _static("community_small", "gen_community_small", 100, 3515, "none stated", _GDSS),
        _static("ego_small", "gen_ego_small", 200, 1739, "none stated", _GDSS, "neighbourhoods in Citeseer"),
        _static("grid", "gen_grid", 100, 40_333, "none stated", _GDSS),
        _static(
            "enzymes",
            "enzymes",
            600,
            37_282,
            "none stated (TUDataset)",
            _GDSS,
            "8 graphs have nodes without edges",
        ),
        _static(
            "proteins",
            "proteins",
            1113,
            81_044,
            "none stated (TUDataset)",
            "github.com/JiaxuanYou/graph-generation",
            "5 graphs have nodes without edges",
        ),
    )
}


def load_graphs(name: str, *, doubled: bool = False) -> GraphSet:
    """The set `name`: edges by time, ties in the order of the file; static sets in the order of the file.

    :param doubled: every contact of a temporal set twice, as in its file
    :raises DataError: an unknown name, a file that is missing or fails its checksum, `doubled` for others
    """
    if name not in GRAPH_SETS:
        known = ", ".join(GRAPH_SETS)
        raise DataError(f"unknown set of graphs {name!r}{nearest(name, GRAPH_SETS)}; all names: {known}")
    entry = GRAPH_SETS[name]
    if doubled and not entry.temporal:
        raise DataError(f"{name}: its edges are no contacts, there is nothing to double")
    arrays, _ = read_arrays(entry, lambda known, raw: parse_tu_dataset(f"{known.name}_ct1", raw))
    bounds = arrays["edge_ptr"].astype(np.int64)
    edges = np.stack([arrays["src"], arrays["dst"]], 1).astype(np.int64)
    graphs = []
    for begin, end in zip(bounds[:-1], bounds[1:], strict=True):
        of_graph, times = edges[begin:end], arrays["time"][begin:end] if entry.temporal else None
        if entry.temporal and not doubled:
            once = of_graph[:, 0] <= of_graph[:, 1]
            of_graph, times = of_graph[once], times[once]
        graphs.append(edge_list(of_graph, times))
    return GraphSet(name, tuple(graphs), arrays["n_nodes"].astype(np.int64), entry.oddities)


def parse_tu_dataset(folder: str, raw: Sequence[bytes]) -> Arrays:
    """The arrays of a zipped temporal set in the text format of TUDataset.

    :raises RawError: when it cannot be read
    """
    try:
        with zipfile.ZipFile(io.BytesIO(raw[0])) as archive:
            if sum(member.file_size for member in archive.infolist()) > MOST_UNPACKED:
                raise RawError("the archive is larger than the set can be")

            def numbers(part: str) -> np.ndarray:
                text = archive.read(f"{folder}/{folder}_{part}.txt").decode("ascii").replace(",", " ")
                return np.loadtxt(io.StringIO(text), dtype=np.int64, ndmin=2)

            edges, times = numbers("A") - 1, numbers("edge_attributes")[:, 0]
            graph_of_node, count = numbers("graph_indicator")[:, 0] - 1, len(numbers("graph_labels"))
        sizes = np.bincount(graph_of_node, minlength=count)
        first = np.concatenate([[0], np.cumsum(sizes)])
        graph = graph_of_node[edges[:, 0]]
        local = edges - first[graph][:, None]
        bounds = np.concatenate([[0], np.cumsum(np.bincount(graph, minlength=count))])
        order = np.argsort(graph, kind="stable")
        src, dst, time = local[order, 0], local[order, 1], times[order]
    except RawError:
        raise
    except (OSError, *UNREADABLE) as error:
        raise RawError(f"it cannot be read: {error}") from None
    return {"src": src, "dst": dst, "time": time, "edge_ptr": bounds, "n_nodes": sizes}


@dataclass(frozen=True)
class Properties:
    """Means over the graphs of a set."""

    graphs: int
    nodes: float
    edges: float
    repeated_edges: float


def properties(graphs: Sequence[EdgeList], num_nodes: Sequence[int] | None = None) -> Properties:
    """`repeated_edges` is the number of edges less that of the pairs of nodes, without directions."""
    nodes = [graph.num_nodes for graph in graphs] if num_nodes is None else num_nodes
    pairs = [len(np.unique(np.sort(graph.edges, axis=1), axis=0)) for graph in graphs]
    edges = float(np.mean([len(graph) for graph in graphs]))
    return Properties(len(graphs), float(np.mean(nodes)), edges, edges - float(np.mean(pairs)))
