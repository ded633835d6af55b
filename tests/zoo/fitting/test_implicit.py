"""The implicit guides as methods of the zoo: fitted, kept, read again, graded."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import zoo.fitting.implicit as implicit
from zoo.budgets import BUDGETS, Budget
from zoo.commands import compare, comparison, predict
from zoo.errors import FailedError, UserError
from zoo.fitting.methods import FitFile
from zoo.fitting.problem import load_problem
from zoo.models import BNN
from zoo.registry.queries import GUIDES, MODELS, applicable

NAMES = ("sip-bnn", "sip-ns", "vip", "fbnn-bnn", "fbnn-gp", "avb", "aadm")
X = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
Y = X[:, 0] - X[:, 1]


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    for name in ("INDUCING", "INDUCING_OF_MORE"):
        monkeypatch.setattr(implicit, name, 5)
    for name in ("WIDTHS", "VIP_WIDTHS"):
        monkeypatch.setattr(implicit, name, (6,))


def test_a_summary_says_whether_its_divergence_can_be_believed():
    assert implicit._judged({}) == ""
    assert implicit._judged({"classifier_loss": 0.4, "saturated": False}) == ", classifier's loss 0.4"
    assert implicit._judged({"classifier_loss": 0.01, "saturated": True}).endswith("counts too little")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in ("fbnn-bnn", "fbnn-gp", "sip-ns") else name
        for name in NAMES
    ],
)
def test_fitted_kept_and_read_again(name, tmp_path):
    method, model = GUIDES[name].method, BNN(2, widths=(4,))
    settings = method.settings(len(X), seed=3, steps=4)
    file = FitFile(tmp_path / "fit.safetensors", {"of": name})
    fitted = method.fit(model, (X, Y), settings, file=file)
    assert len(fitted.losses) == 4
    assert "4 steps" in fitted.summary
    gained = float(re.search(r"([-+][\d.e+-]+) nats (of likelihood )?gained", fitted.summary)[1])
    # four steps: before the last tenth of the learning is the third, whose rate is the last one that counts
    assert gained == pytest.approx(fitted.losses[2] - fitted.losses[3], rel=0.05, abs=0.05)
    # of a functional BNN the losses are minus the likelihood alone
    assert (fitted.bound_change is None) == name.startswith("fbnn")
    law = fitted.predictor(20, 0)(X)
    assert law.log_prob(Y.to(law.mean)).isfinite().all()
    draws = fitted.draws(3, 1)
    again = method.load(file.path, model)
    torch.testing.assert_close(again.predictor(20, 0)(X).mean, law.mean, rtol=0, atol=0)
    for site, value in again.draws(3, 1).items():
        torch.testing.assert_close(value, draws[site], rtol=0, atol=0)
    assert again.bound_change == fitted.bound_change
    assert method.about(file.path) == {"of": name}
    assert method.fit(model, (X, Y), settings).losses == fitted.losses
    other = method.settings(len(X), seed=4, steps=4)
    assert method.fit(model, (X, Y), other).losses != fitted.losses


def test_alpha_is_one_for_one_column():
    for name in ("sip-bnn", "vip", "aadm"):
        make = GUIDES[name].method.make
        assert make(BNN(1), 30).settings.alpha == 1
        assert make(BNN(2), 30).settings.alpha == 0.5
    assert GUIDES["avb"].method.make(BNN(1), 30).settings.alpha == 0


def test_learning_rates():
    method = GUIDES["sip-ns"].method
    assert method.lr(BNN(1), 400, 2000) == method.lr(BNN(2), 10_000, 2000) == 5e-3
    assert method.lr(BNN(2), 400, 10_000) == pytest.approx(implicit.SAMPLER_REACH * 400 / 10_000)
    assert method.settings(30, 0).lr is None
    assert method.settings(30, 0, lr=0.1).lr == 0.1
    fast = GUIDES["sip-bnn"].method
    assert fast.lr(BNN(1), 400, 2000) == 5e-3
    assert fast.lr(BNN(2), 400, 2000) == fast.lr(BNN(2), 10_000, 10_000) == 1e-2
    published = 5000 * 400 / 10 * 1e-4  # epochs, steps of one, rate
    assert fast.lr(BNN(2), 400, 10_000) == pytest.approx(published / 10_000)
    vip = GUIDES["vip"].method
    assert vip.lr(BNN(2), 400, 500) == vip.lr(BNN(2), 400, 2000) == 5e-3
    assert vip.lr(BNN(2), 400, 10_000) == 1e-3


def test_what_keeps_the_neural_sampler_from_learning_rows_is_for_several_columns():
    """In one column the defaults find two branches."""
    method, one, two = GUIDES["sip-ns"].method, BNN(1), BNN(2)
    for model, noise, dropout, options in (
        (one, math.exp(-2.5), 0.0, {}),
        (two, implicit.SAMPLER_NOISE, implicit.SAMPLER_DROPOUT, {"noise_lr": implicit.SAMPLER_NOISE_RATE}),
    ):
        guide = method.make(model, 30)
        assert guide.settings.init_noise_scale == noise
        rates = {module.p for module in guide.prior.modules() if isinstance(module, torch.nn.Dropout)}
        assert rates == ({dropout} if dropout else set())
        assert method.fit_options(model) == options
    many = method.make(two, implicit.SAMPLER_ROWS).prior.modules()
    assert not any(isinstance(module, torch.nn.Dropout) for module in many)


@pytest.mark.parametrize("rows", [1, 1000])
def test_a_file_is_read_however_many_rows_it_learned(rows, tmp_path, monkeypatch):
    """With dropout and without."""
    monkeypatch.setattr(implicit, "SAMPLER_ROWS", rows)
    method, model, path = GUIDES["sip-ns"].method, BNN(2), tmp_path / "fit.safetensors"
    found = method.fit(model, (X, Y), method.settings(len(X), seed=0, steps=2)).closed_form
    found.save(path)
    again = method.read(path, model)
    assert torch.equal(again.predictive(X).mean, found.predictive(X).mean)


def test_the_noise_of_the_neural_sampler_has_its_own_rate():
    method, two = GUIDES["sip-ns"].method, BNN(2)
    settings = method.settings(len(X), seed=0, steps=2)
    assert method.fit(two, (X, Y), settings).closed_form.facts["noise_lr"] == implicit.SAMPLER_NOISE_RATE


def test_functional_bnns_take_small_batches_and_a_prior_of_few_numbers():
    method = GUIDES["fbnn-bnn"].method
    assert [GUIDES[name].method.settings(500, 0).batch_size for name in NAMES[3:6]] == [20, 20, 100]
    assert {parameter.numel() for parameter in method.make(BNN(2), 30).prior.parameters()} == {1}


@pytest.mark.parametrize("name", ["vip", "fbnn-gp", "avb"])
def test_what_is_told_of_a_fit(name):
    """Parameters that are trained are counted, draws are those of the seed; a functional BNN's losses, which
    are not all that it minimises, have no change of a bound.
    """
    asked = []

    def posterior(n, seed=0):
        asked.append((n, seed))
        return SimpleNamespace(model="functions", draws=lambda: {"f": (n, seed)})

    trained, fixed = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(4), False)
    found = SimpleNamespace(
        losses=[9.0, 8.0, 7.0, 5.0],
        facts={"seconds": 2.5, "steps": 4},
        posterior=posterior,
        parameters=lambda: iter([trained, fixed]),
    )
    fitted, nats = GUIDES[name].method.fitted("sites", found), "nats"
    if name == "fbnn-gp":
        nats = "nats of likelihood"
    assert fitted.summary == f"4 steps in 2.5 s, +2 {nats} gained in the last tenth"
    assert (fitted.num_parameters, fitted.seconds, fitted.losses) == (3, 2.5, found.losses)
    assert (fitted.bound_change is None) == (name == "fbnn-gp")
    assert (fitted.model, fitted.closed_form) == (("sites", None) if name == "avb" else ("functions", found))
    assert fitted.draws(5, 7) == {"f": (5, 7)}


def test_batches_are_as_wished_and_no_larger_than_the_data():
    method = GUIDES["vip"].method
    sizes = [method.settings(500, 0, batch_size=size).batch_size for size in (None, 7, 900)]
    assert sizes == [100, 7, 500]
    assert method.settings(30, 0).batch_size == 30


def test_priors_have_the_published_layers_and_parameters_of_every_weight(monkeypatch):
    monkeypatch.setattr(implicit, "WIDTHS", (6,))
    monkeypatch.setattr(implicit, "VIP_WIDTHS", (3,))
    model = BNN(2)
    shapes = {
        "sip-bnn": [(6, 2), (1, 6)],
        "vip": [(3, 2), (1, 3)],
    }
    for name, expected in shapes.items():
        prior = GUIDES[name].method.make(model, 30).prior
        assert [tuple(layer.weight_mean.shape) for layer in prior.layers] == expected
    assert GUIDES["vip"].method.make(model, 30).settings.num_functions == implicit.FUNCTIONS == 20


def test_one_column_has_inducing_inputs_of_its_own(monkeypatch):
    monkeypatch.setattr(implicit, "INDUCING", 4)
    monkeypatch.setattr(implicit, "INDUCING_OF_MORE", 6)
    for name in ("sip-bnn", "sip-ns"):
        assert [GUIDES[name].method.make(BNN(d), 30).settings.num_inducing for d in (1, 2)] == [4, 6]


def test_the_seed_decides_where_a_prior_starts():
    method, starts = GUIDES["vip"].method, []

    def noted(model, rows):
        starts.append(torch.rand(()).item())
        return method.make(model, rows)

    for seed in (1, 1, 2):
        replace(method, make=noted).fit(BNN(2), (X, Y), method.settings(30, seed, steps=1))
    assert starts[0] == starts[1] != starts[2]


def test_a_fixed_noise_is_handed_on():
    for name in ("sip-bnn", "sip-ns", "vip", "fbnn-bnn", "fbnn-gp"):
        assert GUIDES[name].method.make(BNN(2, noise_scale=0.3), 30).settings.noise_scale == 0.3


def test_data_that_nothing_can_be_learned_from_are_a_failed_row():
    method = GUIDES["sip-bnn"].method
    with pytest.raises(FailedError, match="constant"):
        method.fit(BNN(2), (X, torch.ones(30)), method.settings(30, 0, steps=2))
    with pytest.raises(FailedError, match="step"):
        method.fit(BNN(2), (X, Y), method.settings(30, 0, steps=50, lr=1e5))


def test_where_they_apply():
    for name in NAMES[:5]:
        with pytest.raises(UserError, match="plain network"):
            applicable(GUIDES[name], MODELS["pbp-bnn"], "regression")
        with pytest.raises(UserError, match="likelihood is bernoulli"):
            applicable(GUIDES[name], MODELS["bnn"], "binary")
    assert applicable(GUIDES["avb"], MODELS["pbp-bnn"], "regression")[0].name == "pbp-bnn"
    with pytest.raises(UserError, match="spike"):
        applicable(GUIDES["aadm"], MODELS["spike-slab-linear"], "regression")


@pytest.mark.slow
def test_scoreboard(tmp_path, monkeypatch):
    """Twice the same, the second time from files; with the rows of the known law of the data."""
    monkeypatch.setitem(BUDGETS, "quick", Budget(steps=5, draws=20, warmup=5, mcmc_draws=5))
    asked = comparison.ask("piecewise", guides=["sip-bnn", "vip", "fbnn-gp", "aadm"], reference="none")
    monkeypatch.setattr(compare, "write_plots", lambda *args: None)
    rows = compare.run(asked, tmp_path / "out")
    assert [row.method for row in rows] == [*asked.guides, "true-law", "best-gaussian"]
    assert all(row.status == "ok" and math.isfinite(row.log_likelihood) for row in rows)
    assert "no approximation of its posterior" in rows[0].note
    monkeypatch.setattr(implicit.Implicit, "run", None)
    assert compare.run(asked, tmp_path / "out") == rows


def test_fit_and_predict_a_table(tmp_path):
    table = tmp_path / "rows.csv"
    lines = [f"{a:.6f},{b:.6f},{y:.6f}" for (a, b), y in zip(X.tolist(), Y.tolist(), strict=True)]
    table.write_text("\n".join(["a,b,y", *lines]) + "\n")
    words = {"model": "bnn", "options": {}, "seed": 0, "wishes": {"steps": 3}}
    predict.fit(str(table), load_problem(str(table)), guide="sip-bnn", out=tmp_path / "fit", **words)
    assert predict.predict(tmp_path / "fit", table, tmp_path / "out.csv") == 30
    assert (tmp_path / "out.csv").read_text().startswith("mean,sd,q5,q50,q95")
