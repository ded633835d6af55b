"""Data that are not rows and their target: rows alone are fitted, kept and read again; lists too."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist

from guides import AutoMeanField
from zoo.fitting.checkpoints import read_checkpoint
from zoo.fitting.methods import FitFile
from zoo.fitting.svi import Fit, FitSettings, made_up_data
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
def rows() -> torch.Tensor:
    """Not centred, so that there is something to find."""
    return torch.as_tensor(np.random.default_rng(0).normal(0.7, 0.5, (ROWS, 2)), dtype=torch.float32)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("guide", ["mean-field", "map"])
def test_rows_alone_are_fitted_in_minibatches_kept_and_read_again(guide, rows, model, tmp_path):
    method = GUIDES[guide].method
    settings = method.settings(ROWS, seed=1, steps=150, lr=0.05, batch_size=20)
    file = FitFile(tmp_path / "fit.safetensors", {"settings": asdict(settings)})
    fitted = method.fit(model, (rows,), settings, file=file)
    assert model.calls.count((20, ROWS)) >= 150
    draws = fitted.draws(200, seed=3)
    torch.testing.assert_close(draws["loc"].mean(0), rows.mean(0), atol=0.15, rtol=0)
    torch.testing.assert_close(draws["scale"].mean(), (rows - rows.mean(0)).std(), atol=0.15, rtol=0)
    assert method.about(file.path) == file.about
    again = method.load(file.path, GaussianRows(2, [])).draws(200, seed=3)
    assert all(torch.equal(again[name], value) for name, value in draws.items())


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
def test_a_list_is_fitted_as_its_tensor_is(guide, batch_size, rows, model, monkeypatch):
    monkeypatch.setattr("zoo.fitting.svi.ELBO_DRAWS", 25)
    method = GUIDES[guide].method
    settings = method.settings(ROWS, seed=0, steps=5, batch_size=batch_size)
    tensor, cases = (method.fit(model, (data,), settings) for data in (rows, list(rows)))
    for name, value in tensor.draws(4, seed=0).items():
        assert torch.equal(cases.draws(4, seed=0)[name], value)
    if tensor.elbo:
        assert cases.elbo() == tensor.elbo()
    assert {size for _, size in model.calls} == {ROWS}
