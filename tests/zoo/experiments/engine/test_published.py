"""The numbers in print: read as they stand, each beside the right one of ours, and the files complete."""

from __future__ import annotations

import csv
from decimal import Decimal

import pytest

from zoo.experiments import Published
from zoo.experiments.engine import published
from zoo.experiments.engine.catalogue import experiments
from zoo.experiments.engine.declaration import matches
from zoo.experiments.engine.published import (
    PrintedRow,
    explanations,
    published_numbers,
    read_table,
    source_of,
)

PAPERS = ("sspbp", "lbbnn", "sip", "npl", "graphs")
FOLDERS = {paper: published.ROOT / paper / "published" for paper in PAPERS}
TABLES = [
    (paper, path.stem)
    for paper, folder in FOLDERS.items()
    for path in sorted(folder.glob("*.csv"))
    if path.stem not in ("sources", "explained", "left_out")
]


def lines(paper: str, name: str) -> list[dict[str, str]]:
    with (FOLDERS[paper] / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def anywhere(row: PrintedRow) -> tuple[str, str, str, str]:
    return row.dataset, row.method, row.setting, row.metric


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a paper called ``p`` has its tables; what is returned writes one."""
    monkeypatch.setattr(published, "ROOT", tmp_path)
    (tmp_path / "p" / "published").mkdir(parents=True)

    def write(name: str, text: str) -> None:
        (tmp_path / "p" / "published" / f"{name}.csv").write_text(text)

    return write


def test_digits_are_kept_and_units_changed(folder):
    folder("t", "dataset,method,setting,metric,value,se,note\nd,m,s,accuracy,98.10,0.20,dagger\n")
    (number,) = published_numbers(read_table("p", "t"), anywhere, {"accuracy": "0.01"}).values()
    assert number == Published(0.981, 0.002, printed="0.9810 ± 0.0020", remark="dagger")
    (number,) = published_numbers(read_table("p", "t"), anywhere).values()
    assert str(number) == "98.10 ± 0.20"


@pytest.mark.parametrize("se", ["", "0.000"])
def test_no_error_and_one_that_is_rounded_to_zero_are_none(folder, se):
    folder("t", f"dataset,method,setting,metric,value,se\nd,m,s,rmse,0.005,{se}\n")
    (number,) = published_numbers(read_table("p", "t"), anywhere).values()
    assert (number.value, number.se) == (0.005, None)
    assert str(number) == ("0.005 ± 0.000" if se else "0.005")


def test_three_statistics_are_a_range(folder):
    head = "dataset,method,setting,metric,statistic,value,note\n"
    body = [f"d,m,s,accuracy,{name},{value},x\n" for name, value in (("min", 1), ("median", 2), ("max", 4))]
    folder("t", head + "".join(body))
    (number,) = published_numbers(read_table("p", "t"), anywhere).values()
    assert number == Published(2, None, 1, 4, "1 / 2 / 4", "x")


def test_two_numbers_at_one_place_are_refused(folder):
    folder("t", "dataset,method,setting,metric,value\nd,m,s,rmse,1\nd,m,s,rmse,2\n")
    with pytest.raises(ValueError, match="two published numbers at one place"):
        published_numbers(read_table("p", "t"), anywhere)


def test_a_number_without_a_place_is_left_out(folder):
    folder("t", "dataset,method,setting,metric,value\nd,m,s,rmse,1\nd,n,s,rmse,2\n")
    found = published_numbers(read_table("p", "t"), lambda row: anywhere(row) if row.method == "n" else None)
    assert list(found) == [("d", "n", "s", "rmse")]


def test_explanations_of_a_table(folder):
    folder(
        "explained", "tables,dataset,method,setting,metric,kind,why\na b,d,*,*,*,misprint,w\nb,*,*,*,*,k,v\n"
    )
    assert [found.kind for found in explanations("p", "b")] == ["misprint", "k"]
    assert explanations("p", "a")[0].place == ("d", "*", "*", "*")
    assert explanations("p", "c") == ()


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_names_its_paper_and_every_source_its_table(paper):
    listed = [line["file"] for line in lines(paper, "sources")]
    assert sorted(listed) == sorted(table for found, table in TABLES if found == paper)
    for table in listed:
        source, errors = source_of(paper, table)
        assert source.paper
        assert source.table
        assert errors


@pytest.mark.parametrize(("paper", "table"), TABLES)
def test_every_value_is_a_number_of_its_own(paper, table):
    seen = set()
    for line in lines(paper, table):
        assert Decimal(line["value"]).is_finite()
        assert not line.get("se") or Decimal(line["se"]) >= 0
        row = PrintedRow(**{name: line[name] for name in PrintedRow.__dataclass_fields__ if name in line})
        seen.add((*anywhere(row), line.get("statistic")))
    assert len(seen) == len(lines(paper, table)) > 2


def test_lines_tell_where_a_number_was_copied_from(folder):
    folder("t", "dataset,method,setting,metric,value\nd,m,s,rmse,1\nd,n,s,rmse,2\n")
    found = published_numbers(read_table("p", "t"), anywhere)
    assert [number.lines for number in found.values()] == [("t:2",), ("t:3",)]


def left_out(paper: str) -> list[tuple[str, str]]:
    """Lines of the print that stand beside no number of ours, each with the reason."""
    patterns = lines(paper, "left_out") if (FOLDERS[paper] / "left_out.csv").exists() else []
    return [
        (row.line, line["why"])
        for line in patterns
        for table in line["tables"].split()
        for row in read_table(paper, table)
        if matches((line["dataset"], line["method"], line["setting"], line["metric"]), row.place)
    ]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_printed_number_stands_beside_one_of_ours_or_is_left_out_for_a_reason(paper):
    """Not both; and the page of results tells the reasons."""
    shown = {
        line
        for experiment in experiments().values()
        if experiment.name.startswith(f"{paper}/")
        for number in experiment.published.values()
        for line in number.lines
    }
    reasons = left_out(paper)
    printed = {row.line for found, table in TABLES if found == paper for row in read_table(paper, table)}
    assert sorted(line for line, _ in reasons) == sorted(printed - shown)
    results = (published.ROOT.parents[1] / "docs" / "results" / "README.md").read_text(encoding="utf-8")
    for why in {why for _, why in reasons}:
        assert why in results


@pytest.mark.parametrize("paper", PAPERS)
def test_every_explanation_is_of_an_experiment(paper):
    named = {name for line in lines(paper, "explained") for name in line["tables"].split()}
    assert named <= {name.partition("/")[2] for name in experiments()}


def test_numbers_copied_by_hand_from_the_print():
    """One of each table, with all its digits."""
    found = experiments()
    for name, place, words in (
        ("sspbp/table-3.1", ("X3-W-3", "sspbp", "default", "mmd2"), "0.00024"),
        ("sspbp/table-3.2", ("boston", "sspbp", "5x5x5", "slab_layer_4"), "0.971 ± 0.009"),
        ("sspbp/table-3.3", ("boston", "pbp", "50", "rmse"), "3.554 ± 0.179"),
        ("sspbp/table-3.3", ("naval", "pbp", "50", "log_likelihood"), "3.725 ± 0.006"),
        ("sspbp/table-a3", ("naval", "pbp", "50", "log_likelihood"), "3.725 ± 0.006"),
        ("sspbp/table-a6", ("yacht", "pbp", "10x10", "log_likelihood_published"), "-2.687 ± 0.054"),
        ("sspbp/table-a5", ("naval", "sspbp", "100", "log_likelihood_published"), "3.895 ± 0.012"),
        ("sspbp/reference-program", ("yacht", "pbp", "80-20", "rmse"), "1.24 ± 0.09"),
        ("graphs/table-5.1", ("tumblr", "doubled", "default", "avg_repeated_edges"), "128.16"),
        ("lbbnn/mnist", ("mnist", "lrt", "default", "accuracy_mean"), "0.9835 / 0.9846 / 0.9860"),
        ("lbbnn/mnist", ("mnist", "gaussian", "default", "accuracy"), "0.9820 / 0.9830 / 0.9850"),
        ("lbbnn/mnist", ("mnist", "concrete", "default", "density_mean"), "0.092"),
        ("lbbnn/thesis", ("mnist", "lrt-thesis", "thesis", "accuracy_lrt"), "0.9833 / 0.9849 / 0.9854"),
        ("lbbnn/thesis", ("mnist", "lrt", "thesis", "accuracy"), "0.9833 / 0.9849 / 0.9854"),
        ("lbbnn/decisions", ("mnist", "gaussian", "default", "decided"), "0.8477"),
        ("lbbnn/cnn", ("fmnist", "mnf", "default", "accuracy"), "0.9131"),
        ("lbbnn/simulation", ("mjmcmc_sim_logistic", "concrete", "default", "fpr"), "0.28"),
        ("lbbnn/cost", ("mnist", "mnf", "default", "seconds"), "30"),
        ("npl/table-4.2", ("miniboone", "npl_empirical", "1000", "log_likelihood"), "-22.188 ± 0.278"),
        ("lbbnn/variance", ("mnist", "lrt-thesis", "thesis", "ece"), "0.220"),
    ):
        assert str(found[name].published[place]) == words, (name, place)


def test_the_two_cells_that_are_lost_have_no_number():
    """Yacht with biases, two layers: cut off in both texts."""
    table = experiments()["sspbp/table-a3"]
    assert len(table.published) == 2 * 32 - 2
    assert not any(
        place[0] == "yacht" and place[2:] == ("10x10", "log_likelihood") for place in table.published
    )


def test_an_explanation_corrects_a_print_only_where_it_says_by_what(folder):
    head = "tables,dataset,method,setting,metric,kind,why"
    folder("explained", f"{head},factor\na,*,*,*,*,misprint,w,0.1\na,*,*,*,*,k,v,\n")
    assert [found.factor for found in explanations("p", "a")] == [0.1, 1.0]
    folder("explained", f"{head}\na,*,*,*,*,k,v\n")
    assert explanations("p", "a")[0].factor == 1.0
