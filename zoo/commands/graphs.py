"""``zoo fit edges.csv --model edge-graph``: a model of one's own graphs, kept for drawing new ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from rich.progress import Progress
from safetensors.torch import load_file, save_file

from data_loaders.graphs.edge_lists import EdgeList
from data_loaders.graphs.edge_tables import edges_text, load_edges
from guides.posterior.files import part_of, write_atomically
from zoo.commands.fit_folder import check_output, sole_fit, start_again
from zoo.errors import UserError
from zoo.files.output import output_folder, read_config
from zoo.files.output_file import writing
from zoo.files.sealed import is_finished, read_seal, seal_of, write_seal
from zoo.files.tables import write_text
from zoo.fitting.graphs import GraphTraining, fit_graphs
from zoo.fitting.methods import Watch
from zoo.models.graphs.edge_graph import EdgeGraphModel
from zoo.seeds import stable_seed

#: Name of the model on the command line, which is also what the folder's configuration says.
EDGE_GRAPH, STATE = "edge-graph", "fit.safetensors"


def fit_edges(
    path: str | Path,
    out: str | Path,
    settings: GraphTraining,
    *,
    kind: Mapping[str, object] | None = None,
    progress: Progress | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> str:
    """Fits the graphs of a CSV file, a tenth of which validates; a folder that holds the fit is left as it
    is, and one that holds a shorter fit is begun again.

    :param kind: options of :class:`EdgeGraphModel`: timed, window, aggregation
    :param tell: is told, in a line, what the user should know before the work starts
    :return: what to tell
    :raises UserError: a folder that cannot be written or belongs to another fit, too few graphs
    :raises DataError: a file that cannot be read
    :raises Interrupted: at Ctrl-C, with what is kept
    """
    graphs = load_edges(path)
    about = {"kind": dict(kind or {}), "training": asdict(settings), "graphs": len(graphs)}
    config = {
        "command": "fit",
        "model": EDGE_GRAPH,
        "data": str(path),
        "fingerprint": _fingerprint(graphs),
        **about,
    }
    model = EdgeGraphModel(**about["kind"], seed=stable_seed("make", settings.seed))
    state = Path(out) / STATE

    def with_steps(epochs: int) -> dict:
        return {**config, "training": asdict(replace(settings, epochs=epochs))}

    with sole_fit(out, seal_of(state).name):
        results = (STATE, seal_of(state).name)
        start_again(out, config, ("training", "epochs"), with_steps, results, tell)
        with output_folder(out, config):
            if is_finished(state, about):
                return f"{out} holds this fit already"
            _, fit = fit_graphs(graphs, model, settings, Watch(progress))
            _save(model, graphs, state)
            write_seal(state, about)
    best = fit.validation[fit.best - 1]
    skipped = "; gradients scaled down, for one overflowed" if fit.skipped else ""
    return (
        f"{len(fit.training)} epochs in {fit.seconds:.1f} s, the best one {fit.best}: {best:.3f} nats an "
        f"edge on the graphs held out{skipped}"
    )


def _save(model: EdgeGraphModel, graphs: Sequence[EdgeList], path: Path) -> None:
    """The model, and how long its graphs are and when their edges came, which drawn ones copy."""
    numbers = {
        "lengths": torch.tensor([len(graph) for graph in graphs]),
        "times": torch.as_tensor(np.concatenate([graph.times for graph in graphs])),
    }
    tensors = {**{f"model.{name}": value for name, value in model.state_dict().items()}, **numbers}
    write_atomically(path, lambda target: save_file(tensors, target))


def is_edge_fit(folder: str | Path) -> bool:
    """Whether a folder of ``zoo fit`` holds a model of growing graphs."""
    return read_config(folder).get("model") == EDGE_GRAPH


def sample_edges(folder: str | Path, out: str | Path, number: int, seed: int = 0) -> int:
    """Writes graphs drawn from a fit, each with the number of edges, and the times, of a training graph drawn
    at random; returns how many edges they have.

    :raises UserError: no finished fit, no graphs to draw
    """
    if number < 1:
        raise UserError(f"there is at least one graph to draw, not {number}")
    state = Path(folder) / STATE
    if not is_edge_fit(folder) or not state.exists():
        raise UserError(f"{folder} holds no finished fit of model {EDGE_GRAPH}")
    check_output(out, folder, [edges_text([])])
    about, tensors = read_seal(state), load_file(state)
    model = EdgeGraphModel(**about["kind"])
    model.load_state_dict(part_of(tensors, "model"))
    lengths = tensors["lengths"].numpy()
    chosen = np.random.default_rng(stable_seed("copied", seed)).integers(len(lengths), size=number)
    of_graph = np.split(tensors["times"].numpy(), np.cumsum(lengths)[:-1])
    times = [of_graph[i] for i in chosen]
    graphs = model.sample(number, lengths[chosen].tolist(), times=times, seed=stable_seed("draws", seed))
    with writing(out):
        write_text(out, edges_text(graphs))
    return sum(map(len, graphs))


def _fingerprint(graphs: Sequence[EdgeList]) -> str:
    digest = hashlib.sha256()
    for graph in graphs:
        digest.update(json.dumps(graph.edges.shape).encode() + graph.edges.tobytes() + graph.times.tobytes())
    return digest.hexdigest()[:16]
