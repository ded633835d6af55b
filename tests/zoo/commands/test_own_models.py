"""``--model path/to/file.py:model``: fitted, predicted, graded; refused in a line where it makes no sense."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import zoo
from guides.posterior.evaluate import log_joint
from guides.truth.gates import MCMCResult
from guides.truth.mcmc import nuts
from tests.zoo.cli_helpers import linear_rows, make_tiny, refused, run_zoo, write_csv
from zoo.budgets import BUDGETS, Budget
from zoo.errors import UserError, one_line
from zoo.fitting.problem import load_problem
from zoo.models.entries import DataShape
from zoo.registry.queries import find_model

HEAD = """
import pyro, torch
from pyro import distributions as dist
"""
LINEAR = """
def model(x, y=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 0.1), obs=y)
"""
TWIN = """
def model_twin(x, y=None):
    import numpyro
    import numpyro.distributions as ndist
    w = numpyro.sample("w", ndist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", ndist.Normal(x @ w, 0.1), obs=y)
"""
MODULE = """
from zoo.models import from_module
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
model = from_module(net, layers="last", noise_scale=0.3)
"""


@pytest.fixture
def table(tmp_path):
    return write_csv(tmp_path / "table.csv", linear_rows(60))


def written(folder: Path, code: str, name: str = "mine.py") -> Path:
    (folder / name).write_text(HEAD + code)
    return folder / name


def test_a_model_of_a_file_is_fitted_and_predicts(table, tmp_path):
    mine = written(tmp_path, LINEAR)
    options = ("--model", f"{mine}:model", "--steps", 300, "--out", tmp_path / "fit")
    told = run_zoo("fit", table, *options)
    assert told.exit_code == 0, told.output
    assert run_zoo("predict", tmp_path / "fit", "--input", table, "--out", tmp_path / "p.csv").exit_code == 0
    found, rows = pd.read_csv(tmp_path / "p.csv"), np.array(linear_rows(60))
    assert np.abs(found["mean"] - rows[:, 2]).max() < 0.5
    assert found["sd"].between(0.19, 0.23).all()
    config = json.loads((tmp_path / "fit" / "config.json").read_text())
    assert (config["model"], config["model_file"]["path"]) == ("mine.py:model", str(mine))
    assert len(config["model_file"]["sha256"]) == 64


def test_a_file_that_changed_is_refused(table, tmp_path):
    mine = written(tmp_path, LINEAR)
    options = ("--model", f"{mine}:model", "--steps", 5, "--out", tmp_path / "fit")
    assert run_zoo("fit", table, *options).exit_code == 0
    predict = ("predict", tmp_path / "fit", "--input", table, "--out", tmp_path / "p.csv")
    text = mine.read_text()
    mine.write_text(text.replace("0.1", "0.2"))
    assert f"{mine} has changed since the fit in {tmp_path / 'fit'}" in refused(*predict)
    assert "belongs to another run (model_file sha256 is" in refused("fit", table, *options)
    mine.unlink()
    assert "cannot be read: No such file" in refused(*predict)
    mine.write_text(text)
    assert run_zoo(*predict).exit_code == 0


def test_a_torch_module_is_a_model_in_one_line(table, tmp_path):
    mine = written(tmp_path, MODULE)
    told = run_zoo(
        "fit", table, "--model", f"{mine}:model", "--guide", "map", "--steps", 20, "--out", tmp_path / "fit"
    )
    assert told.exit_code == 0, told.output
    assert run_zoo("predict", tmp_path / "fit", "--input", table, "--out", tmp_path / "p.csv").exit_code == 0


def test_classes_of_a_table_of_texts(tmp_path):
    rows = [[a, b, "yes" if y > 0 else "no"] for a, b, y in linear_rows(60)]
    table = write_csv(tmp_path / "classes.csv", rows)
    law = "dist.Bernoulli(logits=x @ w)"
    mine = written(tmp_path, LINEAR.replace("dist.Normal(x @ w, 0.1)", law))
    told = run_zoo("fit", table, "--model", f"{mine}:model", "--steps", 100, "--out", tmp_path / "fit")
    assert told.exit_code == 0, told.output
    assert run_zoo("predict", tmp_path / "fit", "--input", table, "--out", tmp_path / "p.csv").exit_code == 0
    assert (pd.read_csv(tmp_path / "p.csv").label == [row[2] for row in rows]).mean() > 0.8


#: Whose likelihood has an exponent of its own.
TEMPERED = LINEAR.replace("with pyro", "with pyro.poutine.scale(scale=0.3), pyro")


@pytest.mark.parametrize("code", [LINEAR, TEMPERED])
def test_minibatches_count_for_all_rows(code, table, tmp_path):
    """Halves of the data, weighed up, have the mean of the whole as their mean."""
    problem = load_problem(str(table), holdout=0)
    model = find_model(f"{written(tmp_path, code)}:model").build(problem.shape)
    draws = {"w": torch.randn(3, 2)}
    whole = log_joint(model, draws, problem.x, problem.y)
    halves = [log_joint(model, draws, problem.x[i::2], problem.y[i::2], 60) for i in (0, 1)]
    assert torch.allclose(whole, sum(halves) / 2, rtol=1e-5)


NOT = "guide '{0}' does not apply to model 'mine.py:model': "
#: Code, guide, words.
CODES = {
    "no import": ("import nonsense_of_mine", "", "cannot be imported: ModuleNotFoundError: No module named"),
    "no syntax": (
        "def model(x, y=None)\n    pass",
        "",
        "cannot be imported: SyntaxError: expected ':' (line 4)",
    ),
    "an error": ("x = 1 / 0", "", "cannot be imported: ZeroDivisionError: division by zero (line 4)"),
    "no such name": ("def other(x, y=None): pass", "", "has no 'model'; what it has: other"),
    "no function": ("model = 3", "", "is no function, but a int"),
    "other arguments": ("def model(x): pass", "", "takes (x): write it as model(x, y=None)"),
    "y is needed": ("def model(x, y): pass", "", "takes (x, y): write it as model(x, y=None)"),
    "fails": ("def model(x, y=None):\n    x @ x", "", "mine.py:model fails when called with [54, 2]: "),
    "counts": (
        LINEAR.replace("dist.Normal(x @ w, 0.1)", "dist.Poisson(torch.exp(x @ w))"),
        "",
        "has the law Poisson for 'y', and regression is graded with Normal, of a target that is standardised",
    ),
    "fails with a target": (
        f"{LINEAR}    assert y is None, 'that there is one'",
        "",
        "fails when called with [54, 2], [54]: AssertionError: that there is one",
    ),
    "two targets": (
        f"{LINEAR}        pyro.sample('z', dist.Normal(x @ w, 1.0), obs=y)",
        "",
        "mine.py:model observes 'z' beside 'y': one target is predicted",
    ),
    "a factor": (f"{LINEAR}    pyro.factor('f', -w.square().sum())", "", "observes 'f' beside 'y'"),
    "no y": ("def model(x, y=None):\n    pyro.sample('w', dist.Normal(0., 1.))", "", "has no site 'y'"),
    "not observed": (LINEAR.replace(", obs=y", ""), "", "does not observe its target"),
    "no plate": (
        LINEAR.replace('pyro.plate("rows", len(x))', "torch.no_grad()"),
        "",
        "not in a plate of the 54 rows",
    ),
    "a number a row": (
        f"{LINEAR}        pyro.sample('z', dist.Normal(0.0, 1.0))",
        "",
        "a number 'z' for every row",
    ),
    "a parameter": (f"{LINEAR}    pyro.param('p', torch.zeros(()))", "", "a parameter 'p' without a prior"),
    "another law": (LINEAR.replace("Normal(x @ w, 0.1)", "Laplace(x @ w, 0.1)"), "", "has the law Laplace"),
    "no spikes": (LINEAR, "spike-slab", f"{NOT}it needs a spike-and-slab prior"),
    "no messages": (LINEAR, "pbp", f"{NOT}messages are passed for"),
    "no matrix": (LINEAR, "mc-dropout", f"{NOT}AutoDropout: no site of the model (w) has"),
    "no network": (LINEAR, "aadm", f"{NOT}it asks more of a model"),
}


def test_an_error_of_several_lines_is_one_line_with_its_reason(tmp_path):
    error = r"ValueError('Error while computing:\n  the reason\n' + 'word ' * 99)"
    code = f"def model(x, y=None):\n    raise {error}"
    model = find_model(f"{written(tmp_path, code)}:model").build(DataShape("regression", 2, None))
    with pytest.raises(UserError) as caught:
        model.check(torch.zeros(3, 2), torch.zeros(3), "regression")
    told = str(caught.value)
    assert "with [3, 2]: ValueError: Error while computing: the reason word word" in told
    assert told.endswith("word ... (line 5)")
    assert "\n" not in told
    assert len(told.partition("[3, 2]: ")[2]) <= 200 + len(" (line 5)")
    assert one_line("") == ""
    assert one_line("word " * 99 + "\nmore") == ("word " * 99).strip() + " ..."  # the first line is not cut


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CODES)
def test_refusals(name, table, tmp_path):
    code, guide, words = CODES[name]
    words = words.format(guide)
    mine = written(tmp_path, code)
    out = tmp_path / "out"
    options = ("--model", f"{mine}:model", "--out", out)
    assert words in refused("fit", table, *options, "--guide", guide or "mean-field")
    assert words in refused("compare", table, *options, "--guides", guide or "mean-field")
    assert not out.exists()


def test_a_mistyped_name_is_told_the_nearest(tmp_path):
    mine = written(tmp_path, "def neigh(x, y=None): pass\ndef other(x, y=None): pass")
    with pytest.raises(UserError, match="mine.py has no 'neihg'; nearest: neigh$"):
        find_model(f"{mine}:neihg")
    for name in ("models/mine:neigh", "models.mine:neigh"):
        with pytest.raises(UserError, match=f"'{name}'; one of your own is named path/to/file.py:model$"):
            find_model(name)


def test_a_class_of_pyro_is_called_a_class(tmp_path):
    mine = written(tmp_path, "from pyro.nn import PyroModule\nclass C(PyroModule): pass")
    with pytest.raises(UserError, match=r"'C' of .*mine.py is a class: make an instance \(model = C\(\)\)"):
        find_model(f"{mine}:C")


@pytest.mark.parametrize(
    ("task", "law", "way"),
    [
        ("binary", "Categorical(logits=torch.zeros(len(x), 2))", "Bernoulli(logits=...) for two classes"),
        ("multiclass", "Bernoulli(logits=x @ w)", "Categorical(logits=...) for several classes"),
    ],
)
def test_another_law_of_classes_is_told_the_way_out(task, law, way, tmp_path):
    mine = written(tmp_path, LINEAR.replace("Normal(x @ w, 0.1)", law))
    model = find_model(f"{mine}:model").build(DataShape(task, 2, 2))
    with pytest.raises(UserError) as caught:
        model.check(torch.zeros(3, 2), torch.zeros(3), task)
    assert str(caught.value).endswith(f": write {way}")


def test_files_that_are_none(table, tmp_path):
    line = refused("fit", table, "--model", "nowhere/mine.py:model", "--out", tmp_path / "out")
    assert "nowhere/mine.py cannot be read: No such file or directory" in line
    mine = written(tmp_path, LINEAR)
    line = refused("fit", table, "--model", mine, "--out", tmp_path / "out")
    assert f"say which function is the model, as in {mine}:model" in line
    line = refused("fit", table, "--model", f"{mine}:model", "--widths", 3, "--out", tmp_path / "out")
    assert "--widths does not apply to model 'mine.py:model'" in line


def test_a_file_may_import_its_neighbour(tmp_path):
    written(tmp_path, LINEAR, "neighbour_of_mine.py")
    mine = written(tmp_path, "from neighbour_of_mine import model")
    assert find_model(f"{mine}:model").name == "mine.py:model"


@pytest.mark.slow
def test_neighbours_of_one_name_are_those_of_their_folder(tmp_path):
    for folder, scale in (("a", 1.0), ("b", 2.0)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "neighbour_of_two.py").write_text(f"SCALE = {scale}")
        code = LINEAR.replace("0.1", "SCALE")
        file = written(tmp_path / folder, "from neighbour_of_two import SCALE\n" + code)
        model = find_model(f"{file}:model").build(DataShape("regression", 2))
        assert model.function.__globals__["SCALE"] == scale


def test_what_lies_deeper_in_the_folder_of_a_file_stays_imported(tmp_path, monkeypatch):
    """An environment in the home directory, where the file is, too."""
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment" / "library_of_two.py").write_text("")
    (tmp_path / "other").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "environment")
    for folder, code in ((tmp_path, "import library_of_two\n"), (tmp_path / "other", "")):
        find_model(f"{written(folder, code + LINEAR)}:model")
    assert "library_of_two" in sys.modules
    del sys.modules["library_of_two"]


def test_a_file_that_draws_numbers_draws_the_same_in_every_process(tmp_path):
    """A fit with random features is used by another process; the caller's own numbers go on as they were."""
    draws = "import random, numpy as np\nDRAWN = [torch.rand(1).item(), np.random.rand(), random.random()]\n"
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        expected = torch.get_rng_state(), np.random.get_state()[1].copy()
        file = written(tmp_path, draws + LINEAR + f"# {seed}\n")
        model = find_model(f"{file}:model").build(DataShape("regression", 2))
        found.append(model.function.__globals__["DRAWN"])
        assert torch.equal(torch.get_rng_state(), expected[0])
        np.testing.assert_array_equal(np.random.get_state()[1], expected[1])
    assert found[0] == found[1]


def test_pyros_sampler_runs_by_itself_for_few_numbers_only(table, tmp_path, monkeypatch):
    make_tiny(monkeypatch)
    many = f"{LINEAR}    pyro.sample('u', dist.Normal(torch.zeros(200), 1.0).to_event(1))"
    board = zoo.compare(table, model=f"{written(tmp_path, many)}:model", guides="mean-field")
    assert list(board.index) == ["mean-field"]
    assert "NUTS over 202 numbers (more than 100)" in board.attrs["notes"][-1]
    assert zoo.compare(table, model=f"{tmp_path / 'mine.py'}:model").index[0] == "mean-field"
    with pytest.raises(UserError, match="has no 'exact' reference"):
        zoo.compare(table, model=f"{tmp_path / 'mine.py'}:model", reference="exact")


@pytest.mark.slow
@pytest.mark.parametrize(("twin", "draws", "sampler"), [("", 120, "pyro"), (TWIN, 500, "numpyro")])
def test_the_truth_is_that_of_the_model(twin, draws, sampler, table, tmp_path, monkeypatch):
    """Both samplers against the posterior in closed form.  So few draws of Pyro's, which are dear, need not
    pass the gates; those of the twin do, and mean field is graded by them.
    """
    make_tiny(monkeypatch)
    monkeypatch.setitem(BUDGETS, "quick", Budget(steps=200, draws=300, warmup=60, mcmc_draws=draws))
    monkeypatch.setattr("zoo.commands.reference.nuts", partial(nuts, retries=0))
    mine = written(tmp_path, (LINEAR + twin).replace("x @ w, 0.1", "x @ w, 1.0"))
    board = zoo.compare(table, model=f"{mine}:model", guides="mean-field", out=tmp_path / "out")
    found = MCMCResult.load(tmp_path / "out" / "reference.nc")
    assert found.settings["sampler"] == sampler
    problem = load_problem(str(table))
    x, y = problem.x.double(), problem.y.double()
    precision = x.T @ x + torch.eye(2)
    mean, sd = torch.linalg.solve(precision, x.T @ y), torch.linalg.inv(precision).diagonal().sqrt()
    w = torch.as_tensor(found.flat()["w"]).double()
    assert ((w.mean(0) - mean).abs() < 4 * sd / (len(w) / 4) ** 0.5).all()
    assert torch.allclose(w.std(0), sd, rtol=0.3)
    if twin:
        assert list(board.status) == ["ok", "ok"]
        assert board.loc["mean-field", "ref_w1"] < 0.4
