"""Distances between laws of graphs against direct loops, networkx and floors that are known."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
from scipy.stats import ks_2samp

from data_loaders.graphs.random_graphs import draw_graphs
from zoo.errors import UserError
from zoo.evaluation.graphs import (
    METRICS,
    PRINTED,
    SCALES,
    TABLES,
    Convention,
    _Kernels,
    compare,
    describe,
    floors,
    mmd,
    novel_share,
    scores,
    unique_share,
    valid_share,
)


def random_graphs(number: int, seed: int) -> list[nx.Graph]:
    return [nx.gnp_random_graph(8, 0.4, seed=1000 * seed + i) for i in range(number)]


def test_histograms_are_those_of_networkx():
    graphs = [*random_graphs(5, 1), nx.star_graph(3), nx.empty_graph(1), nx.complete_graph(2)]
    found = describe(graphs)
    for row, graph in enumerate(graphs):
        degree = np.array(nx.degree_histogram(graph)) / len(graph)
        np.testing.assert_allclose(found.degree[row, : len(degree)], degree)
        clustering = np.histogram(list(nx.clustering(graph).values()), 100, (0, 1))[0] / len(graph)
        np.testing.assert_allclose(found.cluster[row], clustering)
        spectrum = np.clip(nx.normalized_laplacian_spectrum(graph), 0, 2)
        assert found.spectral[row].sum() == pytest.approx(1)
        centres = (np.arange(200) + 0.5) / 100
        assert abs(found.spectral[row] @ centres - spectrum.mean()) < 0.01
        assert found.density[row] == pytest.approx(nx.density(graph))
    assert found.degree.sum(1) == pytest.approx(np.ones(len(graphs)))


def test_loops_repeats_and_directions_are_dropped():
    graph = nx.MultiDiGraph([(0, 1), (1, 0), (0, 0), (1, 2), (1, 2)])
    graph.add_edge(0, 1, weight=0.0)
    graph.add_edge(1, 2, weight=-5.0)
    found, plain = describe([graph]), describe([nx.path_graph(3)])
    for name in ("degree", "cluster", "spectral", "density"):
        np.testing.assert_allclose(getattr(found, name), getattr(plain, name))


@pytest.mark.parametrize("squared", [True, False])
@pytest.mark.parametrize("root", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_mmd_is_that_of_a_double_loop(squared, root, biased):
    x, y = describe(random_graphs(6, 1)).degree, describe(random_graphs(4, 2)).degree
    width, scale = max(x.shape[1], y.shape[1]), 0.5
    a, b = ([list(row) + [0.0] * (width - len(row)) for row in rows] for rows in (x, y))

    def kernel(p, q):
        distance = sum(abs(u - v) for u, v in zip(p, q, strict=True)) / 2
        return math.exp(-(distance**2 if squared else distance) / (2 * scale**2))

    def mean(rows, others, same):
        pairs = [
            kernel(p, q)
            for i, p in enumerate(rows)
            for j, q in enumerate(others)
            if biased or not same or i != j
        ]
        return sum(pairs) / len(pairs)

    expected = mean(a, a, True) + mean(b, b, True) - 2 * mean(a, b, False)
    expected = math.sqrt(max(expected, 0)) if root else expected
    assert mmd(x, y, scale, Convention(squared, root, biased)) == pytest.approx(expected, abs=1e-12)


def test_density_is_compared_by_kolmogorov_and_smirnov():
    x, y = describe(random_graphs(30, 1)), describe(random_graphs(20, 2))
    assert scores(x, y)["ks_density"] == pytest.approx(ks_2samp(x.density, y.density).statistic, abs=1e-12)


def test_a_sample_is_at_distance_zero_of_itself():
    described = describe(random_graphs(12, 3))
    for name, estimate in compare(described, described).items():
        assert estimate.value == pytest.approx(0, abs=1e-7), name
    assert scores(described, described) == pytest.approx(dict.fromkeys(METRICS, 0), abs=1e-7)


def test_samples_of_one_law_give_the_floor():
    """``(1 - kbar) (1/n + 1/m)`` for the biased square, kbar the mean kernel of two graphs."""
    law, convention = describe(random_graphs(400, 6)), Convention(squared=False, root=False)
    for name, scale in SCALES.items():
        alone = [
            mmd(getattr(law, name)[[i]], getattr(law, name)[[i + 1]], scale, convention) for i in range(300)
        ]
        expected = np.mean(alone) / 2 * (2 / 30)  # of one graph each: 2 - 2 k
        found = [floors(law, law[i : i + 30], convention, 5)[f"mmd_{name}"].value for i in range(0, 180, 30)]
        assert np.mean(found) == pytest.approx(expected, rel=0.15)


def test_what_is_of_one_law_scores_near_the_floor_and_what_is_not_far_above():
    x, y = describe(random_graphs(60, 4)), describe(random_graphs(60, 5))
    floor = floors(describe(random_graphs(240, 6)), y)
    for name, estimate in compare(x, y).items():
        assert estimate.value < 2.5 * floor[name].value
        assert 0 < estimate.se < 0.2
    far = scores(describe([nx.cycle_graph(8)] * 60), y)
    assert all(far[name] > 3 * floor[name].value for name in ("mmd_degree", "mmd_spectral", "ks_density"))


def test_scales_of_kernels_are_those_of_the_print():
    assert SCALES == {"degree": 1.0, "cluster": 0.1, "spectral": 1.0}


def test_floors_are_of_different_graphs():
    """Of as many graphs as there are real ones there is one sample: the error is that of rounding."""
    law = describe(random_graphs(10, 7))
    floor = floors(law, law, repeats=3)
    for name, estimate in floor.items():
        assert estimate.value == pytest.approx(0, abs=1e-6), name
        assert estimate.se < 1e-6, name


def test_bootstrap_draws_both_samples():
    one, several = describe([nx.cycle_graph(8)] * 12), describe(random_graphs(12, 8))
    assert compare(several, several)["ks_density"].se > 0  # not the same graphs of both
    for pair in ((one, several), (several, one)):
        assert min(compare(*pair)[name].se for name in ("mmd_degree", "mmd_spectral")) > 1e-3


def test_bootstrap_errors_are_the_scatter_of_resampled_graphs():
    """Both of 200 samples: sds that are known to a twentieth each."""
    x, y = describe(random_graphs(12, 1)), describe([nx.gnp_random_graph(9, 0.6, seed=i) for i in range(12)])
    drawn = np.random.default_rng(5).integers(12, size=(200, 2, 12))
    found = [scores(x[i], y[j]) for i, j in drawn]
    for name, estimate in compare(x, y).items():
        scatter = np.std([one[name] for one in found])
        assert estimate.se == pytest.approx(scatter, rel=4 * math.sqrt(2 / (2 * 199))), name


@pytest.mark.slow
def test_bootstrap_error_is_that_of_repeated_samples():
    reference = Convention(biased=False, root=False)
    pairs = [(describe(random_graphs(30, 2 * i)), describe([nx.cycle_graph(8)] * 30)) for i in range(25)]
    values = [scores(x, y, reference)["mmd_degree"] for x, y in pairs]
    errors = [compare(x, y, reference)["mmd_degree"].se for x, y in pairs[:5]]
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.5)


@pytest.mark.parametrize("biased", [True, False])
def test_a_graph_that_was_drawn_twice_counts_as_two(biased):
    x, y = describe(random_graphs(5, 1)).degree, describe(random_graphs(4, 2)).degree
    times, convention = (np.array([2, 0, 1, 3, 1]), np.array([0, 1, 1, 4])), Convention(biased=biased)
    repeated = (np.repeat(rows, count, axis=0) for rows, count in zip((x, y), times, strict=True))
    expected = mmd(*repeated, 0.5, convention)
    assert _Kernels.of(x, y, 0.5, convention).value(times) == pytest.approx(expected, abs=1e-12)


def test_error_of_a_floor_is_that_of_a_mean(monkeypatch):
    """Of 1, 2, 6: squares 4 + 1 + 9, over 2, over 3, root."""
    values = iter([1.0, 2.0, 6.0])
    monkeypatch.setattr("zoo.evaluation.graphs.scores", lambda *_: dict.fromkeys(METRICS, next(values)))
    law = describe(random_graphs(4, 9))
    for estimate in floors(law, law, repeats=3).values():
        assert (estimate.value, estimate.se) == (3.0, pytest.approx(math.sqrt(14 / 2 / 3)))


def test_error_of_a_floor_falls_with_the_root_of_the_repeats():
    law, real = describe(random_graphs(60, 9)), describe(random_graphs(15, 10))
    few, many = floors(law, real, repeats=8), floors(law, real, repeats=128)
    assert 2.5 < np.mean([few[name].se / many[name].se for name in METRICS]) < 6


def test_unequal_samples_are_refused():
    with pytest.raises(UserError, match="as many graphs as there are real ones: 3 and 4"):
        compare(describe(random_graphs(3, 1)), describe(random_graphs(4, 1)))
    with pytest.raises(UserError, match="at least 4 graphs of the law, not 3"):
        floors(describe(random_graphs(3, 1)), describe(random_graphs(4, 1)))
    with pytest.raises(UserError, match="no graphs"):
        describe([])
    with pytest.raises(UserError, match="without nodes"):
        describe([nx.empty_graph(0)])


def test_conventions():
    assert Convention(squared=True, root=True, biased=True) == TABLES
    assert Convention(squared=False, root=False, biased=True) == PRINTED


def test_shares():
    cycles, ladders = ([g.simple() for g in draw_graphs(name, 6, 1)] for name in ("cycles", "ladders"))
    assert (valid_share(cycles, "cycles"), valid_share(ladders, "ladders")) == (1, 1)
    assert (valid_share(ladders, "cycles"), valid_share(cycles, "ladders")) == (0, 0)
    two_triangles = nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(3))
    assert valid_share([two_triangles, nx.path_graph(3), nx.cycle_graph(3)], "cycles") == pytest.approx(1 / 3)
    relabelled = nx.relabel_nodes(nx.path_graph(4), {0: 2, 2: 0})
    assert unique_share([nx.path_graph(4), relabelled, nx.cycle_graph(4)]) == pytest.approx(2 / 3)
    several = nx.MultiDiGraph([(0, 1), (1, 0), (0, 0), (1, 2)])
    assert unique_share([several, nx.path_graph(3)]) == 0.5
    assert novel_share([several], [nx.path_graph(3)]) == 0
    for share in (unique_share, lambda graphs: novel_share(graphs, [several])):
        with pytest.raises(UserError, match="no graphs"):
            share([])
    assert novel_share([relabelled, nx.star_graph(3)], [nx.path_graph(4)]) == 0.5
    # every node of both sees the same around it, as far as one may look
    assert unique_share([nx.cycle_graph(8), nx.disjoint_union(nx.cycle_graph(4), nx.cycle_graph(4))]) == 1


def test_shares_know_isomorphic_graphs_from_others():
    """Against a search without marks, on small graphs: trees, forests, and cycles with trees on them."""
    rng = np.random.default_rng(0)
    graphs = [
        nx.gnm_random_graph(6, int(rng.integers(3, 9)), seed=int(rng.integers(1000))) for _ in range(60)
    ]
    alike = [any(nx.is_isomorphic(graph, other) for other in graphs[:30]) for graph in graphs[30:]]
    assert 0 < sum(alike) < 30
    for graph, known in zip(graphs[30:], alike, strict=True):
        order = dict(zip(graph, rng.permutation(6).tolist(), strict=True))
        assert novel_share([nx.relabel_nodes(graph, order)], graphs[:30]) == (not known)
    classes = []
    for graph in graphs:
        if not any(nx.is_isomorphic(graph, other) for other in classes):
            classes.append(graph)
    assert unique_share(graphs) == len(classes) / 60
    regular = [
        nx.complete_bipartite_graph(3, 3),
        nx.circular_ladder_graph(3),
    ]  # which no refinement tells apart
    assert unique_share(regular) == 1
    assert novel_share(regular[1:], regular) == 0
    assert unique_share([*regular, *regular]) == 0.5
    assert unique_share([nx.disjoint_union(regular[i], regular[j]) for i, j in ((0, 1), (1, 1), (0, 0))]) == 1


def test_shares_of_graphs_with_many_leaves_take_no_search():
    """Hubs of as many leaves each, in a ring: a search that tries one leaf after another does not end."""
    graph = nx.cycle_graph(12)
    for hub in range(12):
        graph.add_edges_from((hub, f"{hub} {leaf}") for leaf in range(20))
    other = nx.relabel_nodes(graph, dict(zip(graph, reversed(list(graph)), strict=True)))
    moved = graph.copy()
    moved.remove_node("0 0")
    moved.add_edge(1, "1 20")
    assert unique_share([graph, other, moved]) == pytest.approx(2 / 3)


def test_numbers_of_nodes_do_not_matter():
    """Eigenvalues of these lie on edges of bins."""
    rng, graphs = np.random.default_rng(0), [nx.star_graph(9), nx.cycle_graph(12), nx.ladder_graph(6)]
    for graph in graphs:
        for _ in range(20):
            again = nx.relabel_nodes(graph, dict(enumerate(rng.permutation(len(graph)).tolist())))
            renumbered = nx.Graph()
            renumbered.add_nodes_from(range(len(graph)))
            renumbered.add_edges_from(again.edges)
            np.testing.assert_array_equal(describe([graph]).spectral, describe([renumbered]).spectral)


def test_an_unbiased_discrepancy_of_one_graph_is_refused():
    one = describe([nx.star_graph(4)])
    with pytest.raises(UserError, match="two graphs a sample"):
        mmd(one.degree, one.degree, 1.0, Convention(biased=False))


def test_bootstrap_samples_have_rows_of_their_own():
    """Of two equal samples too: the rows of both are drawn apart, or each is at distance 0 of itself."""
    x = describe(random_graphs(12, 8))
    drawn = np.random.default_rng(3).integers(12, size=(200, 2, 12))
    found = [scores(x[i], x[j]) for i, j in drawn]
    for name, estimate in compare(x, x, seed=3).items():
        scatter = np.std([one[name] for one in found])
        assert scatter > 1e-3, name
        assert estimate.se == pytest.approx(scatter, rel=1e-6), name


def test_the_order_of_branches_tells_no_graphs_apart():
    """A triangle with a twig of one leaf and one of two, numbered either way."""
    triangle = [(0, 1), (1, 2), (2, 0)]
    graph = nx.Graph([*triangle, (0, 3), (0, 4), (3, 5), (4, 6), (4, 7)])
    other = nx.Graph([*triangle, (0, 3), (0, 4), (4, 5), (3, 6), (3, 7)])
    assert nx.is_isomorphic(graph, other)
    assert unique_share([graph, other]) == 0.5
    assert novel_share([graph], [other]) == 0
