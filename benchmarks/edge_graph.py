"""Models of growing graphs, batched, against loops over graphs and edges; one thread, CPU time.

Forward and backward on Barabasi-Albert graphs of 10 to 40 nodes, as ratios of graphs a second measured in
turns in one process, and graphs of 100 edges drawn a second.  The loops are the oracles of the tests: the
same parameters, one message after the other.

    python benchmarks/edge_graph.py --help
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_loaders.graphs.edge_lists import EdgeList
from data_loaders.graphs.random_graphs import draw_graphs
from tests.zoo.models.graphs import plain_deepgmg, plain_edge_graph
from zoo.models.graphs.deepgmg import DeepGMG, arrivals
from zoo.models.graphs.edge_batches import batches
from zoo.models.graphs.edge_graph import EdgeGraphModel

#: What we must reach: ratios to the loop, and graphs a second.
BARS = {"edge model": 15.0, "deepgmg": 4.0, "drawn a second": 20.0}
BATCH = 32


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def race(
    model: torch.nn.Module, plain: Callable, shape: Callable, groups: list[list[EdgeList]], rounds: int
) -> tuple[float, float]:
    """Edges a second, batched and by the loop."""
    few = [group[len(group) // 2] for group in groups]  # of every length

    def batched() -> None:
        for group in groups:
            (-model.log_prob_of_batch(group).sum()).backward()

    def loop() -> None:
        for graph in few:
            (-plain(model, shape(graph))).backward()

    times = [(seconds(batched), seconds(loop)) for _ in range(rounds)]
    spent = [statistics.median(column) for column in zip(*times, strict=True)]
    return sum(len(g) for group in groups for g in group) / spent[0], sum(map(len, few)) / spent[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--graphs", type=int, default=256, help="batched; the loops see one in 32 of them")
    parser.add_argument("--rounds", type=int, default=3)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    graphs = draw_graphs("ba", wanted.graphs, 0)
    groups = [[graphs[i] for i in group] for group in batches(graphs, BATCH)]
    contestants = {
        "edge model": (EdgeGraphModel(), plain_edge_graph.log_prob, lambda graph: graph),
        "edge model, timed": (EdgeGraphModel(timed=True), plain_edge_graph.log_prob, lambda graph: graph),
        "deepgmg": (DeepGMG(), plain_deepgmg.log_prob, arrivals),
    }
    for name, contestant in contestants.items():
        batched, loop = race(*contestant, groups, wanted.rounds)
        edges = sum(map(len, graphs)) / len(graphs)
        bar = f"bar {BARS[name]:.0f}" if name in BARS else ""
        print(f"{name:18} {batched / edges:7.0f} graphs/s  {batched / loop:6.1f} times the loop  {bar}")
    model, count = EdgeGraphModel(), 128
    spent = statistics.median(seconds(lambda: model.sample(count, 100)) for _ in range(wanted.rounds))
    print(f"{'drawn a second':18} {count / spent:7.0f} graphs of 100 edges  bar {BARS['drawn a second']:.0f}")


if __name__ == "__main__":
    main()
