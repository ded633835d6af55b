"""How far generated graphs are from real ones: distances between laws of graphs, each beside its floor.

A graph is described by three histograms, each of sum one: of degrees, of local clustering coefficients (100
bins on [0, 1]) and of the spectrum of the normalised Laplacian (200 bins on [0, 2]).  Two sets of graphs are
compared by the maximum mean discrepancy of each, with a kernel of the total variation distance, and by the
Kolmogorov-Smirnov distance of their densities.  Ott 2022 (dissertation, chapter 5); O'Bray, Horn, Rieck and
Borgwardt 2022, Evaluation Metrics for Graph Generative Models (ICLR), for what such distances can tell.

All of these are above zero for two samples of one law, the more the smaller they are: compare samples of
equal size, and see :func:`floors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
from scipy.spatial.distance import cdist

from zoo.errors import UserError
from zoo.evaluation.estimates import Estimate

CLUSTERING_BINS, SPECTRUM_BINS = 100, 200
#: Scale of the kernel for each histogram.
SCALES: Mapping[str, float] = {"degree": 1.0, "cluster": 0.1, "spectral": 1.0}
METRICS = {
    "mmd_degree": "MMD of degree histograms; lower is better",
    "mmd_cluster": "MMD of histograms of local clustering; lower is better",
    "mmd_spectral": "MMD of histograms of the normalised Laplacian's spectrum; lower is better",
    "ks_density": "Kolmogorov-Smirnov distance of densities; lower is better",
}
RESAMPLES = 200


# ------------------------------------------------------------------------------------------------ descriptors


@dataclass(frozen=True)
class Described:
    """Graphs by their histograms.

    :ivar degree: ``[n, D]``, entry d the share of nodes of degree d
    :ivar cluster: ``[n, 100]``
    :ivar spectral: ``[n, 200]``
    :ivar density: ``[n]``, edges over possible edges, 0 for one node
    """

    degree: np.ndarray
    cluster: np.ndarray
    spectral: np.ndarray
    density: np.ndarray

    def __len__(self) -> int:
        return len(self.density)

    def __getitem__(self, rows: np.ndarray) -> Described:
        return Described(self.degree[rows], self.cluster[rows], self.spectral[rows], self.density[rows])


def describe(graphs: Sequence[nx.Graph]) -> Described:
    """Of simple graphs without directions: loops, repeated edges and directions are dropped.

    :raises UserError: no graph, or one without nodes
    """
    if not graphs:
        raise UserError("no graphs to describe")
    found = [_describe(graph) for graph in graphs]
    most = max(len(degree) for degree, *_ in found)
    degrees = [np.pad(degree, (0, most - len(degree))) for degree, *_ in found]
    return Described(np.stack(degrees), *(np.stack(part) for part in list(zip(*found, strict=True))[1:]))


def _describe(graph: nx.Graph) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    if len(graph) == 0:
        raise UserError("a graph without nodes cannot be described")
    adjacency = nx.to_numpy_array(graph, weight=None) > 0
    adjacency = (adjacency | adjacency.T).astype(float)
    np.fill_diagonal(adjacency, 0)
    degrees, nodes = adjacency.sum(1), len(graph)
    pairs = degrees * (degrees - 1)
    triangles = ((adjacency @ adjacency) * adjacency).sum(1)
    clustering = np.divide(triangles, pairs, out=np.zeros(nodes), where=pairs > 0)
    # rounding takes eigenvalues out of [0, 2], and numpy.histogram drops them without a word; those of many
    # graphs lie on edges of bins (1 of stars), and would fall left or right by the numbering of the nodes
    spectrum = np.clip(np.linalg.eigvalsh(_laplacian(adjacency, degrees)).round(9), 0, 2)
    return (
        np.bincount(degrees.astype(int)) / nodes,
        np.histogram(clustering, CLUSTERING_BINS, (0, 1))[0] / nodes,
        np.histogram(spectrum, SPECTRUM_BINS, (0, 2))[0] / nodes,
        np.array(degrees.sum() / max(nodes * (nodes - 1), 1)),
    )


def _laplacian(adjacency: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """Normalised; rows of nodes without edges are zero."""
    root = np.divide(1, np.sqrt(degrees), out=np.zeros_like(degrees), where=degrees > 0)
    return np.diag((degrees > 0).astype(float)) - root[:, None] * adjacency * root


# -------------------------------------------------------------------------------------------------- distances


@dataclass(frozen=True)
class Convention:
    """How a maximum mean discrepancy is written down.

    :ivar squared: kernel ``exp(-tv^2 / (2 scale^2))``; else ``exp(-tv / (2 scale^2))``, as the dissertation
        prints it.  The squared one is not positive definite in general
    :ivar root: the MMD; else its square
    :ivar biased: of all pairs, a graph with itself among them; else an estimate that can be negative
    """

    squared: bool = True
    root: bool = True
    biased: bool = True


#: The only convention, of those tried, that can have given the published tables.
TABLES = Convention()
#: The equations as printed.
PRINTED = Convention(squared=False, root=False)


def mmd(x: np.ndarray, y: np.ndarray, scale: float, convention: Convention = TABLES) -> float:
    """Between histograms ``[n, k]`` and ``[m, l]`` of sum one; the shorter ones are padded with zeros.

    The root of a negative estimate is 0.
    """
    return _Kernels.of(x, y, scale, convention).value()


@dataclass(frozen=True)
class _Kernels:
    """Kernel matrices within and between two samples."""

    xx: np.ndarray
    yy: np.ndarray
    xy: np.ndarray
    convention: Convention

    @classmethod
    def of(cls, x: np.ndarray, y: np.ndarray, scale: float, convention: Convention) -> _Kernels:
        width = max(x.shape[1], y.shape[1])
        x, y = (np.pad(rows, ((0, 0), (0, width - rows.shape[1]))) for rows in (x, y))

        def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            distance = cdist(a, b, "cityblock") / 2
            return np.exp(-(distance**2 if convention.squared else distance) / (2 * scale**2))

        return cls(kernel(x, x), kernel(y, y), kernel(x, y), convention)

    def value(self, times: tuple[np.ndarray, np.ndarray] | None = None) -> float:
        """:param times: how often each graph of the two samples counts; once by default"""
        a, b = times or (np.ones(len(self.xx)), np.ones(len(self.yy)))
        between = a @ self.xy @ b / (a.sum() * b.sum())
        found = self._within(self.xx, a) + self._within(self.yy, b) - 2 * between
        return float(np.sqrt(max(found, 0.0)) if self.convention.root else found)

    def _within(self, kernel: np.ndarray, times: np.ndarray) -> float:
        total, size = times @ kernel @ times, times.sum()
        if self.convention.biased:
            return total / size**2
        if size < 2:
            raise UserError("an MMD without each graph's pair with itself needs two graphs a sample")
        return (total - times @ kernel.diagonal()) / (size * (size - 1))


def compare(
    generated: Described, real: Described, convention: Convention = TABLES, seed: int = 0
) -> dict[str, Estimate]:
    """All METRICS, with the standard error of a bootstrap over the graphs of both samples.

    Where the laws are equal it is too large, for the bootstrap adds its noise to that of the samples (Arcones
    and Gine 1992, Annals of Statistics 20): to the second order an MMD's by a root of 3/2, its square's by a
    root of 3, and more where the kernel takes nearly all graphs for unlike, for a resample has some twice;
    a Kolmogorov-Smirnov distance's by 1.1 to 1.25 (measured).  Whether laws are equal is for :func:`floors`
    to tell.  Where they are far apart it is right within 15 % (measured).

    :raises UserError: for samples of unequal size, whose floors cannot be compared
    """
    if len(generated) != len(real):
        raise UserError(f"compare as many graphs as there are real ones: {len(generated)} and {len(real)}")
    rng, size = np.random.default_rng(seed), len(real)
    drawn = rng.integers(size, size=(RESAMPLES, 2, size))
    found = {}
    for name, scale in SCALES.items():
        kernels = _Kernels.of(getattr(generated, name), getattr(real, name), scale, convention)
        resampled = [
            kernels.value(tuple(np.bincount(rows, minlength=size) for rows in pair)) for pair in drawn
        ]
        found[f"mmd_{name}"] = Estimate(kernels.value(), float(np.std(resampled)))
    distances = [_ks(generated.density[i], real.density[j]) for i, j in drawn]
    found["ks_density"] = Estimate(_ks(generated.density, real.density), float(np.std(distances)))
    return found


def scores(generated: Described, real: Described, convention: Convention = TABLES) -> dict[str, float]:
    """All METRICS without errors, of samples of any size."""
    found = {
        f"mmd_{name}": mmd(getattr(generated, name), getattr(real, name), scale, convention)
        for name, scale in SCALES.items()
    }
    return found | {"ks_density": _ks(generated.density, real.density)}


def floors(
    law: Described, real: Described, convention: Convention = TABLES, repeats: int = 20, seed: int = 0
) -> dict[str, Estimate]:
    """What a perfect generator scores against ``real``: means over samples of its size of other graphs.

    The errors are those of the choice of samples alone.  Samples overlap and ``real`` is the same for all, so
    that other graphs of the law, or other real ones, would change a floor by more; with no more graphs of
    the law than real ones there is but one sample, and the error is zero.

    :param law: graphs of the same law, the training graphs say, at least as many as real ones
    :raises UserError: for fewer
    """
    if len(law) < len(real):
        raise UserError(f"a floor needs at least {len(real)} graphs of the law, not {len(law)}")
    rng = np.random.default_rng(seed)
    samples = [law[rng.permutation(len(law))[: len(real)]] for _ in range(repeats)]
    values = [scores(sample, real, convention) for sample in samples]
    return {
        name: Estimate(
            float(np.mean([value[name] for value in values])),
            float(np.std([value[name] for value in values], ddof=1) / np.sqrt(repeats)),
        )
        for name in METRICS
    }


def _ks(a: np.ndarray, b: np.ndarray) -> float:
    """Kolmogorov-Smirnov distance; scipy's comes with a p-value that takes most of its time."""
    points = np.concatenate([a, b])
    below = (np.searchsorted(np.sort(sample), points, "right") / len(sample) for sample in (a, b))
    return float(np.abs(np.subtract(*below)).max())


# --------------------------------------------------------------------------------- shares of generated graphs


def unique_share(graphs: Sequence[nx.Graph]) -> float:
    """Different simple graphs, up to isomorphism, over graphs: as for :func:`describe`, directions, loops and
    repeated edges are dropped.

    :raises UserError: no graphs
    """
    known: _Known = {}
    return len({_name(graph, known) for graph in _simple(graphs)}) / len(graphs)


def novel_share(graphs: Sequence[nx.Graph], training: Sequence[nx.Graph]) -> float:
    """Share of the graphs that are isomorphic to none of the training graphs, as :func:`unique_share`."""
    known: _Known = {}
    seen = {_name(graph, known) for graph in _simple(training)}
    return float(np.mean([_name(graph, known) not in seen for graph in _simple(graphs)]))


def valid_share(graphs: Sequence[nx.Graph], shape: str) -> float:
    """Share of cycles (of at least 3 nodes) or ladders; ``shape`` is ``cycles`` or ``ladders``."""
    return float(np.mean([VALID[shape](graph) for graph in _simple(graphs)]))


def is_cycle(graph: nx.Graph) -> bool:
    return len(graph) > 2 and all(degree == 2 for _, degree in graph.degree) and nx.is_connected(graph)


def is_ladder(graph: nx.Graph) -> bool:
    return (
        len(graph) > 1 and len(graph) % 2 == 0 and nx.is_isomorphic(graph, nx.ladder_graph(len(graph) // 2))
    )


VALID = {"cycles": is_cycle, "ladders": is_ladder}


def _simple(graphs: Sequence[nx.Graph]) -> list[nx.Graph]:
    if not graphs:
        raise UserError("no graphs to take a share of")
    found = [nx.Graph(graph) for graph in graphs]
    for graph in found:
        graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    return found


#: Connected graphs that are no two isomorphic, by what Weisfeiler and Lehman's refinement makes of them.
_Known = dict[tuple[str, ...], list[nx.Graph]]
#: Rounds of it: graphs that they do not tell apart are hardly ever different ones.
ROUNDS = 4


def _name(graph: nx.Graph, known: _Known) -> tuple:
    """The same for isomorphic graphs and no others, as far as they are told apart by one and the same
    ``known``, which is added to.
    """
    return tuple(
        sorted(_name_of_part(graph.subgraph(part), known) for part in nx.connected_components(graph))
    )


def _name_of_part(part: nx.Graph, known: _Known) -> tuple:
    core = _without_trees(part)
    refined = nx.weisfeiler_lehman_subgraph_hashes(core, node_attr="label", iterations=ROUNDS)
    nx.set_node_attributes(core, {node: marks[-1] for node, marks in refined.items()}, "label")
    marks = tuple(sorted(marks[-1] for marks in refined.values()))
    alike = known.setdefault(marks, [])
    for i, other in enumerate(alike):
        if nx.vf2pp_is_isomorphic(core, other, node_label="label"):
            return marks, i
    alike.append(core)
    return marks, len(alike) - 1


def _without_trees(part: nx.Graph) -> nx.Graph:
    """Trees that hang on the rest are folded into the ``label`` of the node that they hang on (Aho, Hopcroft
    and Ullman's code of a rooted tree): to match many leaves that are alike may take minutes.
    """
    core = nx.Graph(part)
    code: dict = {node: [] for node in core}
    while leaves := [v for v, degree in core.degree if degree == 1 and core.degree[next(iter(core[v]))] > 1]:
        for leaf in leaves:
            code[next(iter(core[leaf]))].append(_code(code[leaf]))
        core.remove_nodes_from(leaves)
    nx.set_node_attributes(core, {node: _code(code[node]) for node in core}, "label")
    return core


def _code(branches: list[str]) -> str:
    return f"({''.join(sorted(branches))})"
