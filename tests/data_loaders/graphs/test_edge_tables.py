"""Graphs in a CSV file, a line an edge: read, written, refused in one line."""

from __future__ import annotations

import pytest

from data_loaders import DataError
from data_loaders.graphs.edge_lists import edge_list
from data_loaders.graphs.edge_tables import edges_text, load_edges


@pytest.fixture
def table(tmp_path):
    def write(text: str):
        path = tmp_path / "edges.csv"
        path.write_text(text)
        return path

    return write


def test_graphs_are_read_and_written(table, tmp_path):
    path = table("graph,sender,recipient,time\na,x,y,3\nb,u,u,5\na,z,x,-1.5\nb,u,v,6\n")
    first, second = load_edges(path)
    assert first.edges.tolist() == [[0, 1], [1, 2]]
    assert first.times.tolist() == [-1.5, 3]
    assert second.edges.tolist() == [[0, 0], [0, 1]]
    again = tmp_path / "again.csv"
    again.write_text(edges_text([first, second]))
    found = load_edges(again)
    assert [graph.edges.tolist() for graph in found] == [first.edges.tolist(), second.edges.tolist()]
    assert found[0].times.tolist() == [-1.5, 3]
    epochs = edge_list([(0, 1), (1, 2)], [1600000000123.25, 1600000000124.1])
    again.write_text(edges_text([epochs]))
    assert load_edges(again)[0].times.tolist() == epochs.times.tolist()
    (alone,) = load_edges(table("recipient,sender\nb,a, ,\nc,a\n"))
    assert alone.edges.tolist() == [[0, 1], [0, 2]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no column 'sender'"),
        ("sender,to\na,b\n", "no column 'recipient'"),
        ("sender;recipient\na;b\n", "has semicolons between its values: save it with commas"),
        ("sender,recipient\n", "has no edges"),
        ("sender,recipient\na,\n", "line 2: an edge needs its sender and its recipient"),
        ("sender,recipient\nSmith, Ann,Bob\n", "line 2: has more cells than the header"),
        ("sender,sender,recipient\na,b,c\n", "has the column 'sender' twice"),
        ("sender,recipient,time\na,b,noon\n", "line 2: time 'noon' is no number"),
        ("sender,recipient,time\na,b,1_0\n", "line 2: time '1_0' is no number"),
        ('graph,sender,recipient\na,x,"y\nb,x,y\n', "cannot be read"),
        ("graph,sender,recipient\na,x,y\n,x,y\n", "line 3: an edge needs the name of its graph"),
        ("sender,recipient,time\na,b,nan\n", "graph '': time nan of an edge is not finite"),
        ("sender,recipient,time\na,b,1\na,b,\n", "graph '' has times for some of its edges only"),
        ("graph,sender,recipient,time\nx,a,b,1\ny,a,b,\n", "graph 'y' has no times, and others have"),
    ],
)
def test_bad_files_are_refused(text, words, table):
    with pytest.raises(DataError, match=words) as error:
        load_edges(table(text))
    assert "\n" not in str(error.value)


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match="none.csv: not found$"):
        load_edges(tmp_path / "none.csv")
    with pytest.raises(DataError, match="not found: download it, and name the file$"):
        load_edges("http://example.org/edges.csv")
