"""Graphs of one's own on the command line: fitted, kept, and drawn anew."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from data_loaders.graphs.edge_lists import edge_list
from data_loaders.graphs.edge_tables import edges_text, load_edges
from data_loaders.graphs.random_graphs import draw_graphs
from tests.zoo.cli_helpers import run_zoo
from zoo.commands.graphs import STATE, fit_edges, is_edge_fit, sample_edges
from zoo.errors import UserError
from zoo.files.output import sole_folder
from zoo.files.sealed import read_seal
from zoo.fitting.graphs import GraphTraining, fit_graphs


@pytest.fixture
def edges(tmp_path):
    path = tmp_path / "edges.csv"
    path.write_text(edges_text(draw_graphs("ladders", 8, 1)))
    return path


def test_fit_is_kept_and_draws(edges, tmp_path):
    out = tmp_path / "fit"
    result = run_zoo("fit", edges, "--model", "edge-graph", "--steps", 2, "--out", out)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "2 epochs" in result.stdout
    assert is_edge_fit(out)
    assert (
        "holds this fit already"
        in run_zoo("fit", edges, "--model", "edge-graph", "--steps", 2, "--out", out).stdout
    )
    assert sample_edges(out, tmp_path / "new.csv", 5, seed=3) == sum(
        map(len, new := load_edges(tmp_path / "new.csv"))
    )
    lengths = {len(graph) for graph in load_edges(edges)}
    assert len(new) == 5
    assert {len(graph) for graph in new} <= lengths
    sample_edges(out, tmp_path / "again.csv", 5, seed=3)
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "new.csv").read_bytes()


def test_a_fit_whose_saving_breaks_off_leaves_no_half_file(edges, tmp_path, monkeypatch):
    def half(tensors, target):
        Path(target).write_bytes(b"half")
        raise OSError("no room")

    monkeypatch.setattr("zoo.commands.graphs.save_file", half)
    with pytest.raises(UserError, match="no room"):
        fit_edges(edges, tmp_path / "fit", GraphTraining(epochs=1))
    assert {path.name for path in (tmp_path / "fit").iterdir()} == {"config.json"}


def test_sample_draws_graphs_and_predict_says_that_it_cannot(edges, tmp_path):
    out = tmp_path / "fit"
    fit_edges(edges, out, GraphTraining(epochs=1))
    result = run_zoo("sample", out, "--rows", 3, "--out", tmp_path / "new.csv")
    found = load_edges(tmp_path / "new.csv")
    assert result.stdout.startswith(f"3 graphs of {sum(map(len, found))} edges in all drawn")
    before = (out / STATE).read_bytes()
    result = run_zoo("sample", out, "--rows", 3, "--out", out / STATE)
    assert (result.exit_code, "is part of the fit in" in result.stderr) == (2, True)
    assert (out / STATE).read_bytes() == before
    for kept in (edges, tmp_path / "notes.csv"):
        (tmp_path / "notes.csv").write_text("my,notes\n")
        before = kept.read_bytes()
        assert run_zoo("sample", out, "--rows", 3, "--out", kept).exit_code == 2
        assert kept.read_bytes() == before
    (tmp_path / "file").touch()
    result = run_zoo("sample", out, "--rows", 3, "--out", tmp_path / "file" / "new.csv")
    assert (result.exit_code, "cannot write to" in result.stderr) == (2, True)
    result = run_zoo("predict", out, "--input", edges, "--out", tmp_path / "p.csv")
    assert (result.exit_code, result.stderr) == (
        2,
        f"zoo: {out} holds a model of graphs: zoo sample draws them\n",
    )


def test_an_interrupted_fit_says_that_nothing_is_kept(edges, tmp_path, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    command = ("fit", edges, "--model", "edge-graph", "--steps", 1, "--out", tmp_path / "fit")
    with monkeypatch.context() as patch:
        patch.setattr("zoo.commands.graphs.fit_graphs", stopped)
        result = run_zoo(*command)
    assert result.exit_code == 130
    assert result.stderr == "zoo: interrupted; nothing is kept yet: the same command starts again\n"
    assert run_zoo(*command).exit_code == 0


def test_more_steps_give_the_fit_of_a_folder_of_its_own(edges, tmp_path):
    def fit(out, steps):
        return run_zoo("fit", edges, "--model", "edge-graph", "--steps", steps, "--out", tmp_path / out)

    assert fit("long", 1).exit_code == 0
    told = fit("long", 2)
    assert (told.exit_code, told.stderr) == (
        0,
        f"zoo: {tmp_path / 'long'} held a fit of 1 steps; the learning rate falls to zero over all steps, so "
        "that one of 2 starts again\n",
    )
    assert fit("fresh", 2).stderr == ""
    for name in (STATE, "fit.json", "config.json"):
        assert (tmp_path / "long" / name).read_bytes() == (tmp_path / "fresh" / name).read_bytes()
    assert "training epochs is 2 there, 1 here" in fit("long", 1).stderr


def test_a_seal_that_is_not_there_is_missing(edges, tmp_path):
    fit_edges(edges, tmp_path / "fit", GraphTraining(epochs=1))
    (tmp_path / "fit" / "fit.json").unlink()
    told = run_zoo("sample", tmp_path / "fit", "--out", tmp_path / "new.csv")
    assert told.exit_code == 2
    assert "fit.json is missing, without which fit.safetensors may be half a fit: fit again" in told.stderr


def test_two_fits_at_once_in_one_folder(edges, tmp_path):
    with (
        sole_folder(tmp_path / "fit"),
        pytest.raises(UserError, match="another call is at work in .*fit: wait for its end"),
    ):
        fit_edges(edges, tmp_path / "fit", GraphTraining(epochs=1))


def test_times_are_kept(tmp_path):
    edges = tmp_path / "edges.csv"
    ladders = draw_graphs("ladders", 4, 1)
    edges.write_text(edges_text([edge_list(graph.edges, 30 + 60 * graph.times) for graph in ladders]))
    fit_edges(edges, tmp_path / "fit", GraphTraining(epochs=1))
    sample_edges(tmp_path / "fit", tmp_path / "new.csv", 2)
    for graph in load_edges(tmp_path / "new.csv"):
        np.testing.assert_array_equal(graph.times, 30 + 60 * np.arange(len(graph)))
    with pytest.raises(UserError, match="at least one graph to draw, not 0"):
        sample_edges(tmp_path / "fit", tmp_path / "none.csv", 0)


def test_draws_hang_on_the_seed_and_a_fit_on_the_times(tmp_path):
    edges, out = tmp_path / "edges.csv", tmp_path / "fit"
    alike = [edge_list([(0, 1), (0, 2), (1, 3), (2, 3), (3, 3), (0, 4)])] * 3  # of one length, as all draws
    edges.write_text(edges_text(alike))
    fit_edges(edges, out, GraphTraining(epochs=1))
    drawn = []
    for seed in (1, 2):
        sample_edges(out, tmp_path / "new.csv", 20, seed=seed)
        drawn.append((tmp_path / "new.csv").read_bytes())
    assert drawn[0] != drawn[1]
    edges.write_text(edges_text([edge_list(graph.edges, 2 * graph.times) for graph in alike]))
    with pytest.raises(UserError, match="belongs to another run"):
        fit_edges(edges, out, GraphTraining(epochs=1))


def test_options_of_the_model_are_kept(edges, tmp_path):
    out, options = tmp_path / "fit", ("--timed", "--window", 4, "--messages", "sum")
    fit = ("fit", edges, "--model", "edge-graph", "--steps", 1, "--out", out)
    assert run_zoo(*fit, *options).exit_code == 0
    about = read_seal(out / STATE)
    assert about["kind"] == {"timed": True, "window": 4, "aggregation": "sum"}
    assert sample_edges(out, tmp_path / "new.csv", 2) > 0
    result = run_zoo("fit", "diabetes", "--timed", "--out", tmp_path / "x")
    assert result.stderr == "zoo: --timed is for model edge-graph\n"


def test_the_model_is_listed_and_shown():
    assert "edge-graph  graphs  graphs that grow" in run_zoo("list", "--paper", "graphs").stdout
    shown = run_zoo("show", "edge-graph").stdout
    assert "zoo fit edges.csv --model edge-graph --out FOLDER" in shown


def test_bad_input_is_one_line(edges, tmp_path):
    result = run_zoo("fit", tmp_path / "none.csv", "--model", "edge-graph", "--out", tmp_path / "x")
    assert result.exit_code == 2
    assert "not found" in result.stderr
    result = run_zoo("fit", edges, "--model", "edge-graph", "--steps", 0, "--out", tmp_path / "x")
    assert result.stderr == "zoo: --steps must be at least 1, not 0\n"
    result = run_zoo("fit", edges, "--model", "edge-graph", "--lr", "inf", "--out", tmp_path / "x")
    assert result.stderr == "zoo: --lr must be a positive number, not inf\n"
    typed = ("--inclusion", 0), ("--concentration", 0), ("--split", 0), ("--guide", "mean-field")
    for option, value in typed:
        result = run_zoo("fit", edges, "--model", "edge-graph", option, value, "--out", tmp_path / "x")
        assert f"{option} does not apply to model 'edge-graph'" in result.stderr
    result = run_zoo("fit", "diabetes", "--window", 0, "--out", tmp_path / "x")
    assert result.stderr == "zoo: --window is for model edge-graph\n"
    result = run_zoo("fit", edges, "--model", "edge-graph", "--guide", "pbp", "--out", tmp_path / "x")
    assert "--guide does not apply to model 'edge-graph'" in result.stderr
    with pytest.raises(UserError, match="holds no config"):
        sample_edges(tmp_path, tmp_path / "new.csv", 2)
    assert not (tmp_path / "x").exists()


def test_networkx_graphs_of_ones_own():
    graphs = [nx.relabel_nodes(nx.path_graph(n), {0: "start"}) for n in range(3, 9)]
    model, fit = fit_graphs(graphs, settings=GraphTraining(epochs=2))
    assert fit.best in (1, 2)
    assert all(isinstance(graph.simple(), nx.Graph) for graph in model.sample(3, 4))
    with pytest.raises(UserError, match="two at least, not 1"):
        fit_graphs(graphs[:1])
