"""Kept results: used as they were left, and not at all when anything about them is another."""

from __future__ import annotations

import shutil

import pytest
import torch

import zoo.files.kept
from guides.posterior.draws import Posterior
from zoo.files.kept import load_kept, seal_posterior


def model(x, y=None): ...


DRAWS = {"w": torch.arange(60, dtype=torch.float32).reshape(20, 3) / 7, "b": torch.linspace(-1, 1, 20)}
INFO = {"method": "pbp", "figures": {"elbo": [-3.25, 0.125]}, "inclusion": {"w": [0.5, 1.0, 0.0]}}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    path = tmp_path_factory.mktemp("kept") / "pbp.nc"
    posterior = Posterior.from_draws(model, DRAWS, dict(INFO))
    seal_posterior(posterior)
    posterior.save(path)
    return path


def test_whole_result_is_read(kept):
    found = load_kept(kept, model)
    assert {key: found.info[key] for key in INFO} == INFO
    assert all(torch.equal(found.draws()[name], value) for name, value in DRAWS.items())


def test_result_that_is_not_there(tmp_path):
    assert load_kept(tmp_path / "pbp.nc", model) is None


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_truncated_result(share, kept, tmp_path):
    content = kept.read_bytes()
    (tmp_path / "pbp.nc").write_bytes(content[: int(share * len(content))])
    assert load_kept(tmp_path / "pbp.nc", model) is None


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "alter",
    [
        lambda posterior: posterior.info["figures"]["elbo"].__setitem__(0, -2.25),
        lambda posterior: posterior.info.update(method="sspbp"),
        lambda posterior: posterior.info["inclusion"]["w"].__setitem__(0, 0.6),
        lambda posterior: posterior.sites["b"].flatten().__setitem__(3, 0.0),
        lambda posterior: posterior.info.pop("sha256"),
    ],
)
def test_altered_figure_or_draw(alter, kept, tmp_path):
    posterior = Posterior.load(kept, model)
    posterior.save(tmp_path / "pbp.nc")
    assert load_kept(tmp_path / "pbp.nc", model) is not None
    alter(posterior)
    posterior.save(tmp_path / "pbp.nc")
    assert load_kept(tmp_path / "pbp.nc", model) is None


@pytest.mark.parametrize("name", ["note", "status", "mcse", "settings", "state", "versions"])
def test_all_that_a_result_says_is_sealed(name):
    """But for what another call of the same work may say otherwise, as the time that it took."""
    posterior = Posterior.from_draws(model, DRAWS, {**INFO, name: "one", "cpu_seconds": 1.0})
    before = zoo.files.kept._checksum(posterior)
    posterior.info["cpu_seconds"] = 2.0
    assert zoo.files.kept._checksum(posterior) == before
    posterior.info[name] = "another"
    assert zoo.files.kept._checksum(posterior) != before


def test_result_of_other_versions(kept, tmp_path, monkeypatch):
    shutil.copy(kept, tmp_path / "pbp.nc")
    monkeypatch.setattr(zoo.files.kept, "versions", lambda: {"torch": "0"})
    assert load_kept(tmp_path / "pbp.nc", model) is None
