"""Data that are not rows and their target: a density is fitted, kept, read again and graded; lists too."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from types import SimpleNamespace

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist

from data_loaders import Standardizer
from guides import AutoMeanField
from guides.posterior import Posterior
from tests.zoo.cli_helpers import ALWAYS, COLUMNS, TINY, files, make_tiny, table_of
from zoo.commands import compare
from zoo.commands.comparison import Comparison
from zoo.commands.predict import held_out
from zoo.fitting.methods import FitFile
from zoo.fitting.problem import Problem
from zoo.fitting.svi import Fit, FitSettings, made_up_data, read_checkpoint
from zoo.models.entries import LIKELIHOODS, Card, ModelEntry
from zoo.models.traits import Traits
from zoo.registry.queries import GUIDES

ROWS = 40


@dataclass(frozen=True)
class GaussianRows:
    """``x_i ~ N(loc, scale^2)``, ``loc ~ N(0, 1)``, ``scale ~ HalfCauchy(1)``; rows in a tensor or a list.

    :ivar calls: for every call the number of its rows, and of all rows
    """

    columns: int
    calls: list

    @property
    def traits(self) -> Traits:
        return Traits("gaussian", "normal")

    def __call__(self, x: torch.Tensor | list, size: int | None = None) -> None:
        self.calls.append((len(x), size or len(x)))
        loc = pyro.sample("loc", dist.Normal(torch.zeros(self.columns), 1.0).to_event(1))
        scale = pyro.sample("scale", dist.HalfCauchy(torch.ones(())))
        rows = x if isinstance(x, torch.Tensor) else torch.stack(x)
        with pyro.plate("data", size or len(x), subsample=None if size is None else torch.arange(len(x))):
            pyro.sample("x", dist.Normal(loc, scale[..., None]).to_event(1), obs=rows)


@pytest.fixture
def model() -> GaussianRows:
    return GaussianRows(2, [])


@pytest.fixture
def problem() -> Problem:
    """Not centred, so that there is something to find."""
    rows = torch.as_tensor(np.random.default_rng(0).normal(0.7, 0.5, (ROWS + 10, 2)), dtype=torch.float32)
    record = SimpleNamespace(
        name="cloud",
        task="density",
        num_features=2,
        num_classes=0,
        split=0,
        protocol="standard",
        target_name="",
        recipe=None,
        oddities=(),
        feature_names=("a", "b"),
    )
    scale = Standardizer(np.zeros(2), np.ones(2), 0.0, 1.0)
    return Problem(record, scale, (rows[:ROWS],), (rows[ROWS:],))


@pytest.mark.parametrize("guide", ["mean-field", "map"])
def test_a_density_is_fitted_in_minibatches_kept_and_read_again(guide, problem, model, tmp_path):
    method = GUIDES[guide].method
    settings = method.settings(problem.size, seed=1, steps=150, lr=0.05, batch_size=20)
    file = FitFile(tmp_path / "fit.safetensors", {"settings": asdict(settings)})
    fitted = method.fit(model, problem.train, settings, file=file)
    assert model.calls.count((20, ROWS)) >= 150
    draws = fitted.draws(200, seed=3)
    (x,) = problem.train
    torch.testing.assert_close(draws["loc"].mean(0), x.mean(0), atol=0.15, rtol=0)
    torch.testing.assert_close(draws["scale"].mean(), (x - x.mean(0)).std(), atol=0.15, rtol=0)
    assert method.about(file.path) == file.about
    again = method.load(file.path, GaussianRows(2, [])).draws(200, seed=3)
    assert all(torch.equal(again[name], value) for name, value in draws.items())
    assert held_out(problem, fitted, seed=0) == "40 rows fitted, 10 held out"


@pytest.mark.slow
def test_the_scoreboard_of_a_density_has_what_needs_no_target(problem, model, tmp_path, monkeypatch):
    make_tiny(monkeypatch, pictures=True)
    monkeypatch.setitem(LIKELIHOODS, "density", "normal")  # as a family of densities would
    entry = ModelEntry(
        "gaussian-rows",
        "",
        lambda shape: model,
        "lbbnn",
        ("density",),
        (),
        "gaussian",
        Card("law", "", "", ""),
    )
    comparison = Comparison("cloud", problem, entry, {}, ("mean-field", "map"), "none", TINY, seed=0)
    rows = compare.run(comparison, tmp_path / "out")
    assert [row.status for row in rows] == ["ok", "ok"]
    table = table_of(tmp_path / "out")
    found = {method: {name for name in COLUMNS[4:] if row[name]} for method, row in table.items()}
    common = {"num_parameters", "fit_seconds", "bound_change"}
    assert found == {"mean-field": {*common, "elbo", "pareto_k"}, "map": common}
    assert files(tmp_path / "out") == ALWAYS | {"mean-field.nc", "map.nc"}
    kept = Posterior.load(tmp_path / "out" / "mean-field.nc", model)
    assert {name: tuple(value.shape) for name, value in kept.draws().items()} == {
        "loc": (60, 2),
        "scale": (60,),
    }
    calls = len(model.calls)
    assert compare.run(comparison, tmp_path / "out") == rows
    assert len(model.calls) == calls  # what is kept is used


def test_a_fit_keeps_what_its_arguments_look_like(tmp_path):
    """Supports of sites are seen again on made-up data of the same kind."""

    def model(x, labels, cases):
        pyro.sample("loc", dist.Normal(x.new_zeros(()), 1.0))

    data = torch.ones(5, 3, 2, dtype=torch.float64), torch.ones(5, dtype=torch.int64), ["a"] * 5
    Fit(AutoMeanField(model), model, data, FitSettings(steps=1)).run(checkpoint=tmp_path / "fit.safetensors")
    x, labels, cases = made_up_data(read_checkpoint(tmp_path / "fit.safetensors")[0])
    assert torch.equal(x, torch.zeros(2, 3, 2, dtype=torch.float64))
    assert torch.equal(labels, torch.zeros(2, dtype=torch.int64))
    assert (x.dtype, labels.dtype, cases) == (torch.float64, torch.int64, [])


@pytest.mark.parametrize("guide", ["mean-field", "map"])
@pytest.mark.parametrize("batch_size", [None, 8])
def test_a_list_is_fitted_as_its_tensor_is(guide, batch_size, problem, model, monkeypatch):
    monkeypatch.setattr("zoo.fitting.svi.ELBO_DRAWS", 25)
    method, (x,) = GUIDES[guide].method, problem.train
    settings = method.settings(ROWS, seed=0, steps=5, batch_size=batch_size)
    tensor, cases = (method.fit(model, (data,), settings) for data in (x, list(x)))
    for name, value in tensor.draws(4, seed=0).items():
        assert torch.equal(cases.draws(4, seed=0)[name], value)
    if tensor.elbo:
        assert cases.elbo() == tensor.elbo()
    assert {size for _, size in model.calls} == {ROWS}
