"""The posterior bootstrap as a method of the zoo: modes with weights, kept, and given in turn."""

from __future__ import annotations

from dataclasses import asdict

import pyro
import pytest
import torch
from pyro import distributions as dist

from guides import PosteriorBootstrap
from zoo.fitting.bootstrap import Bootstrap
from zoo.fitting.methods import FitFile

pytestmark = pytest.mark.filterwarnings("error")  # the summary says what the library warns of


def line(x, y=None):
    """With a prior that can be felt."""
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 0.1).to_event(1))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def test_draws_are_weighted_modes_kept_and_given_in_turn(tmp_path):
    x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    data, method = (x, x @ torch.tensor([1.0, -1.0])), Bootstrap(num_draws=4)
    settings = method.settings(30, seed=3, steps=20, lr=0.01)
    file = FitFile(tmp_path / "fit.safetensors", {"settings": asdict(settings)})
    fitted = method.fit(line, data, settings, file=file)
    with pytest.warns(UserWarning, match="not at their minimum"):
        expected = PosteriorBootstrap(line, loss="map").fit(*data, num_draws=4, seed=3, steps=20, lr=0.01)
    w = fitted.draws(6, seed=0)["w"]
    assert torch.equal(w[:4], expected.draws()["w"])
    assert torch.equal(w[4:], w[:2])
    assert torch.equal(method.load(file.path, line).draws(6, seed=1)["w"], w)
    assert "4 draws of 20 steps" in fitted.summary
    assert fitted.num_parameters == 8
    changes = 30 * torch.tensor(expected.info["last_tenth"])  # nats of all rows
    assert fitted.bound_change.value == pytest.approx(changes.mean().item())
    assert fitted.bound_change.se == pytest.approx(changes.std().item() / 2)
    assert fitted.elbo is None


def test_two_hundred_draws_by_default():
    assert Bootstrap().settings(30, seed=0).num_draws == 200
