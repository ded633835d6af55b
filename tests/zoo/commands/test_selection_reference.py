"""Logistic variable selection: graded against all models counted, or against the Gibbs sampler."""

from __future__ import annotations

import csv
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import zoo.commands.selection_reference
from data_loaders import load, load_csv
from guides.posterior.arviz_io import group_names, load_netcdf
from guides.posterior.draws import Posterior
from guides.truth.gates import Gates
from guides.truth.polya_gamma import inclusion_probabilities, spike_slab_logistic_gibbs
from guides.truth.spike_slab_logistic import enumerate_spike_slab_logistic
from tests.zoo.cli_helpers import ALWAYS, DISTANCES, TINY, files, make_tiny, run_zoo, table_of, write_csv
from zoo.budgets import BUDGETS
from zoo.commands.compare import run
from zoo.commands.comparison import plan
from zoo.commands.grading import Scored, grade
from zoo.commands.reference import reference_posterior
from zoo.errors import UserError
from zoo.fitting.problem import prepare
from zoo.registry.queries import GUIDES, check_fit_options
from zoo.seeds import stable_seed

#: Guides that are graded, and steps of those that take any: a few guides fast, all of them slowly.
GRADED = [
    (["spike-slab", "varbvs"], 150),
    pytest.param((["spike-slab", "mnf", "concrete", "mvn", "varbvs"], 300), marks=pytest.mark.slow),
]
BUDGET = replace(TINY, draws=100, warmup=100)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    make_tiny(monkeypatch)


def make_plan(problem, guides, reference, steps=TINY.steps, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BUDGETS, "quick", replace(BUDGET, steps=steps))
        return plan(
            "t", problem, model="spike-slab-logistic", guides=guides, reference=reference, budget="quick",
            seed=0, options=options,
        )  # fmt: skip


def labelled(folder, columns: int = 5, rows: int = 150):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(rows, columns))
    eta = x[:, :3] @ [1.6, -0.9, 0.3] + 0.4
    y = (rng.random(rows) < 1 / (1 + np.exp(-eta))).astype(int)
    lines = [[*map(float, row), label] for row, label in zip(x, y, strict=True)]
    names = ",".join([f"c{i}" for i in range(columns)] + ["y"])
    return write_csv(folder / f"labels{columns}.csv", lines, names)


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    path = labelled(tmp_path_factory.mktemp("labels"))
    return prepare(load_csv(path, protocol="whole", task="binary"))


@pytest.fixture(scope="module", params=GRADED, ids=["few", "all"])
def graded(request, problem, tmp_path_factory):
    guides, steps = request.param
    comparison = make_plan(problem, guides, None, steps)
    out = tmp_path_factory.mktemp("graded") / "out"
    with pytest.MonkeyPatch.context() as patch:
        make_tiny(patch, elbo_draws=200)  # test_compare_selection.py looks at the pictures
        return comparison, {row.method: row for row in run(comparison, out)}, out


def arrays(problem):
    return problem.x.double().numpy(), problem.y.double().numpy()


def test_every_guide_has_its_inclusion_error(graded):
    comparison, rows, out = graded
    assert comparison.reference == "exact"
    assert list(rows) == ["exact", *comparison.guides]
    assert {row.status for row in rows.values()} == {"ok"}
    draws = {f"{name}.nc" for name in ("reference", *comparison.guides)}
    assert files(out) == {*ALWAYS, *draws, "inclusion.csv"} - {"scoreboard.png"}
    for file in draws:
        groups = {"log_likelihood", "posterior_predictive", "observed_data", "prior", "prior_predictive"}
        assert groups < set(group_names(load_netcdf(out / file))), file
    for name, row in table_of(out).items():
        assert all(row[f] for f in ("elbo", "density_mean", "density_half")), name
        assert bool(row["pareto_k"]) == bool(row["ref_pip_rmse"]) == bool(row["ref_w1"]) == (name != "exact")
    assert all(rows[name].ref_pip_rmse < 0.35 for name in comparison.guides)
    assert rows["varbvs"].ref_pip_rmse < 0.1


def test_inclusion_csv_holds_the_exact_probabilities(graded, problem):
    comparison, rows, out = graded
    with (out / "inclusion.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["method"], line["name"]) for line in lines] == [
        (name, f"c{i}") for name in ("exact", *comparison.guides) for i in range(5)
    ]
    found = [float(line["probability"]) for line in lines[:5]]
    exact = enumerate_spike_slab_logistic(*arrays(problem), inclusion_prob=0.25)
    assert found == pytest.approx(exact.inclusion.tolist(), rel=1e-9)
    for i, name in enumerate(comparison.guides, start=1):
        theirs = np.array([float(line["probability"]) for line in lines[5 * i : 5 * i + 5]])
        error = math.sqrt(np.mean((theirs - exact.inclusion) ** 2))
        assert rows[name].ref_pip_rmse == pytest.approx(error, rel=1e-5)


def test_no_elbo_exceeds_the_evidence(graded, problem):
    comparison, rows, _ = graded
    evidence = rows["exact"].estimate("elbo")
    check = enumerate_spike_slab_logistic(*arrays(problem), inclusion_prob=0.25).importance(
        20_000, seed=stable_seed("check", comparison.seed)
    )
    assert (evidence.value, evidence.se) == pytest.approx((check.log_evidence, check.log_evidence_se))
    for name in comparison.guides:
        bound = rows[name].estimate("elbo")
        slack = 4 * math.hypot(bound.se or 0, evidence.se)
        assert evidence.value - 10 < bound.value < evidence.value + slack, name


def test_note_says_how_good_laplace_is(graded):
    note = graded[1]["exact"].note
    assert note.startswith("all 2^5 models by Laplace's approximation; importance sampling (")
    assert "its ELBO is the log evidence" in note


@pytest.mark.slow
def test_count_is_read_again_and_not_that_of_another_question(graded, tmp_path, monkeypatch):
    comparison, _, _ = graded
    first = reference_posterior(comparison, tmp_path)
    counted = []
    count = enumerate_spike_slab_logistic
    monkeypatch.setattr(
        zoo.commands.selection_reference,
        "enumerate_spike_slab_logistic",
        lambda *args, **kwargs: counted.append(kwargs) or count(*args, **kwargs),
    )
    again = reference_posterior(comparison, tmp_path)
    assert counted == []
    assert (again.note, again.figures, again.status) == (first.note, first.figures, first.status)
    assert torch.equal(again.inclusion["w"], first.inclusion["w"])
    assert all(torch.equal(again.posterior.sites[n], v) for n, v in first.posterior.sites.items())
    reference_posterior(replace(comparison, seed=1), tmp_path)
    reference_posterior(replace(comparison, options={"inclusion": 0.6}), tmp_path)
    assert [kwargs["inclusion_prob"] for kwargs in counted] == [0.25, 0.6]
    content = (tmp_path / "reference.nc").read_bytes()
    (tmp_path / "reference.nc").write_bytes(content[: len(content) // 2])
    reference_posterior(comparison, tmp_path)
    assert len(counted) == 3


@pytest.mark.parametrize(
    ("se", "status"), [(0.0, "failed: Laplace's approximation is off by 0.0"), (0.02, "ok")]
)
def test_laplace_that_is_far_off_beyond_the_error_of_the_check_fails(
    graded, se, status, tmp_path, monkeypatch
):
    comparison, _, _ = graded

    class Wrong:
        def __init__(self, exact):
            self.exact = exact
            self.inclusion = np.clip(exact.inclusion + np.array([0, 0.05, 0, 0, 0]), 0, 1)
            self.inclusion[2] += 0.06

        def importance(self, draws, seed):
            return replace(self.exact.importance(draws, seed=seed), inclusion_se=np.full(5, se))

        def __getattr__(self, name):
            return getattr(self.exact, name)

    count = enumerate_spike_slab_logistic
    monkeypatch.setattr(
        zoo.commands.selection_reference,
        "enumerate_spike_slab_logistic",
        lambda *a, **k: Wrong(count(*a, **k)),
    )
    result = reference_posterior(comparison, tmp_path)
    assert result.status.startswith(status)


def test_density_counts_probabilities_above_one_half():
    probabilities = np.array([0.9, 0.2, 0.6, 0.04])
    found = zoo.commands.selection_reference._info(probabilities, np.zeros(4), None, "")["figures"]
    assert found == {"density_mean": pytest.approx(0.435), "density_half": 0.5}


def test_inclusion_that_rounds_above_one_is_one(graded, problem, tmp_path, monkeypatch):
    """A sum over many models may be 1 + 1e-10: the guides must be graded against it all the same."""
    comparison, _, _ = graded
    info = zoo.commands.selection_reference._info

    def rounded(probabilities, *args):
        return info(probabilities + np.array([1 - probabilities[0] + 1e-10, 0, 0, 0, 0]), *args)

    monkeypatch.setattr(zoo.commands.selection_reference, "_info", rounded)
    truth = reference_posterior(comparison, tmp_path)
    assert truth.inclusion["w"][0] == 1
    row = grade(Scored(problem, replace(truth, method="again")), Scored(problem, truth))
    assert row.status == "ok"


# ------------------------------------------------------------------------------------------------- Gibbs


@pytest.mark.slow
def test_gibbs_agrees_with_the_count_and_carries_its_errors(problem, tmp_path):
    comparison = make_plan(problem, [], "gibbs", inclusion=0.4)
    truth = reference_posterior(comparison, tmp_path)
    assert truth.method == "gibbs"
    exact = enumerate_spike_slab_logistic(*arrays(problem), inclusion_prob=0.4)
    found, mcse = truth.inclusion["w"].numpy(), truth.inclusion_mcse["w"].numpy()
    assert (mcse[1:] > 0).all()
    assert (abs(found - exact.inclusion) < 5 * mcse + 0.01).all()
    again = spike_slab_logistic_gibbs(*arrays(problem), 0.4, warmup=100, draws=400, chains=4, seed=0)
    probabilities, errors = inclusion_probabilities(again)
    np.testing.assert_allclose(found, probabilities)
    np.testing.assert_allclose(mcse, errors)
    # the function is that of some of the draws
    draws = truth.posterior.sites["w"]
    assert draws.shape == (4, 100, 5)
    np.testing.assert_array_equal(draws.numpy(), again.draws["w"][:, ::4].astype(np.float32))
    assert truth.status == ("ok" if again.passed else f"failed: {again.reason}")
    kept = load_netcdf(tmp_path / "reference.nc")  # of all draws, for ArviZ
    assert kept["log_likelihood"]["y"].shape == (4, 400, 150)
    assert {"posterior_predictive", "observed_data", "prior", "prior_predictive"} < set(group_names(kept))


@pytest.mark.slow
def test_gibbs_that_fails_its_gates_is_shown_and_never_used(tmp_path, monkeypatch):
    monkeypatch.setitem(BUDGETS, "quick", replace(TINY, warmup=10, draws=30))
    hard = Gates(max_rhat=1.0001, min_ess_bulk=1e6)
    gibbs = spike_slab_logistic_gibbs
    monkeypatch.setattr(
        zoo.commands.selection_reference,
        "spike_slab_logistic_gibbs",
        lambda *args, **kwargs: gibbs(*args, **kwargs, gates=hard, retries=0),
    )
    table = labelled(tmp_path)
    options = ["--task", "binary", "--model", "spike-slab-logistic", "--guides", "varbvs"]
    result = run_zoo("compare", table, *options, "--reference", "gibbs", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    rows = table_of(tmp_path / "out")
    assert rows["gibbs"]["status"].startswith("failed: split R-hat")
    assert rows["varbvs"]["status"] == "ok"
    assert not any(rows["varbvs"][name] for name in (*DISTANCES, "ref_pip_rmse"))
    assert "gibbs failed: " in result.stderr


@pytest.mark.slow
def test_many_columns_are_graded_by_gibbs(tmp_path, monkeypatch):
    make_tiny(monkeypatch, pictures=True)
    monkeypatch.setitem(BUDGETS, "quick", replace(TINY, warmup=10, draws=30))
    gibbs = spike_slab_logistic_gibbs
    easy = Gates(max_rhat=99, min_ess_bulk=0)
    monkeypatch.setattr(
        zoo.commands.selection_reference,
        "spike_slab_logistic_gibbs",
        lambda *args, **kwargs: gibbs(*args, **kwargs, gates=easy),
    )
    table = labelled(tmp_path, columns=22, rows=60)
    options = ["--task", "binary", "--model", "spike-slab-logistic", "--guides", "varbvs"]
    assert run_zoo("compare", table, *options, "--out", tmp_path / "out").exit_code == 0
    rows = table_of(tmp_path / "out")
    assert list(rows) == ["gibbs", "varbvs"]
    assert rows["varbvs"]["ref_pip_rmse"]
    assert "of inclusion, 4 chains of 120 draws" in rows["gibbs"]["note"]
    assert "inclusion.png" in files(tmp_path / "out")


def test_error_of_the_reference_counts_in_the_error_of_the_distance(graded, problem):
    comparison, _, out = graded
    truth = reference_posterior(comparison, out)
    noisy = replace(truth, inclusion_mcse={"w": torch.full((5,), 0.05, dtype=torch.float64)})
    ours = replace(truth, method="ours", inclusion={"w": truth.inclusion["w"].clamp_max(0.9)})
    with_noise, without = (
        grade(Scored(problem, ours), Scored(problem, t)).estimate("ref_pip_rmse") for t in (noisy, truth)
    )
    assert with_noise.value == without.value
    assert with_noise.se > (without.se or 0)


# ------------------------------------------------------------------------------------- what is run by itself


def test_nuts_runs_by_itself_for_small_models_only(problem):
    def planned(widths, reference):
        return plan(
            "t", problem, model="bnn", guides=["mean-field"], reference=reference, budget="quick", seed=0,
            options={"widths": widths},
        )  # fmt: skip

    small, large = planned((50,), None), planned((400,), None)  # 5 inputs: 351 and 2801 numbers
    assert (small.reference, small.remark) == ("nuts", "")
    assert large.reference == "none"
    assert "NUTS over 2801 numbers" in large.remark
    assert "--reference nuts" in large.remark
    assert planned((400,), "nuts").reference == "nuts"
    assert planned((285,), None).reference == "nuts"  # 1996
    assert planned((286,), None).reference == "none"  # 2003


def test_remark_is_printed(tmp_path, monkeypatch):
    monkeypatch.setitem(BUDGETS, "quick", replace(TINY, steps=3))
    monkeypatch.setattr("zoo.commands.comparison.MOST_LATENT", 5)
    options = ["--task", "binary", "--guides", "map", "--widths", 2, "--out", tmp_path / "out"]
    result = run_zoo("compare", labelled(tmp_path), *options)
    assert result.exit_code == 0, result.output
    assert "note:     no reference: NUTS over 15 numbers" in result.stdout
    assert list(table_of(tmp_path / "out")) == ["map"]


# --------------------------------------------------------------------------------------------------- images


@pytest.mark.slow
def test_images_are_seen_by_lenet(tmp_path, monkeypatch):
    digits = load("digits")
    few = replace(digits, x_train=digits.x_train[:150], y_train=digits.y_train[:150])
    monkeypatch.setattr("zoo.fitting.problem.load", lambda *args, **options: few)
    monkeypatch.setitem(BUDGETS, "quick", replace(TINY, steps=2))
    monkeypatch.setattr("zoo.fitting.svi.ELBO_WORK", 1)
    monkeypatch.setattr("zoo.fitting.svi.FEWEST_ELBO_DRAWS", 2)
    monkeypatch.setattr("zoo.commands.compare.MOST_NUMBERS", 1)
    monkeypatch.setattr("zoo.commands.compare.FEWEST_DRAWS", 25)
    options = ["--model", "lenet", "--guides", "spike-slab,map", "--out", tmp_path / "out"]
    assert run_zoo("compare", "digits", *options).exit_code == 0
    rows = table_of(tmp_path / "out")
    assert [row["model"] for row in rows.values()] == ["spike-slab-lenet", "lenet"]
    assert {row["status"] for row in rows.values()} == {"ok"}
    assert all(row["accuracy"] for row in rows.values())
    assert len(Posterior.load(tmp_path / "out" / "spike-slab.nc", None)) == 25


@pytest.mark.parametrize("command", ["fit", "compare"])
def test_tables_are_no_images(command, tmp_path):
    result = run_zoo(command, "breast_cancer", "--model", "lenet", "--out", tmp_path / "out")
    assert result.exit_code == 2
    table = write_csv(tmp_path / "t.csv", [[0.5 * i, i % 3] for i in range(30)], "a,y")
    result = run_zoo(command, table, "--task", "multiclass", "--model", "lenet", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "model 'lenet' is for images" in result.stderr
    assert not (tmp_path / "out").exists()


def test_guides_of_selection_are_refused_elsewhere(tmp_path):
    result = run_zoo(
        "compare", "digits", "--guides", "varbvs", "--reference", "none", "--out", tmp_path / "o"
    )
    assert result.exit_code == 2
    assert "linear and logistic regression" in result.stderr
    with pytest.raises(UserError, match="--lr does not apply to guide 'varbvs'"):
        check_fit_options(GUIDES["varbvs"], ["lr"])
