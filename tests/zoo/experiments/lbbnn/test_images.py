"""The image cells of the latent binary experiments, on tiny networks."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from guides.variational.sparse_networks import median_weights
from tests.marks import SLOW
from tests.zoo.experiments.lbbnn.tiny_cells import BY_NAME, assert_declared
from zoo.evaluation.estimates import Estimate
from zoo.experiments.engine.declaration import Record
from zoo.experiments.lbbnn import images, metrics, networks, plots
from zoo.experiments.lbbnn.networks import FittedNetworks, fit
from zoo.fitting.epochs import NETWORKS, History

pytestmark = pytest.mark.usefixtures("small_and_real")


def test_table_of_a_sparse_network(cell):
    place = cell()
    figures = images.table(place)
    assert_declared("mnist", figures)
    assert set(figures) == set(metrics.TABLE)
    fitted = fit(place)
    x, y = fitted.data.x_test, fitted.data.y_test
    with np.load(place.folder / "predictions.npz") as file:
        saved = torch.as_tensor(file["probabilities"]).float()
        assert (file["labels"] == y.numpy()).all()
    assert saved.dtype == torch.float32
    assert figures["accuracy"] == pytest.approx((fitted.ensemble(x, 4).argmax(1) == y).double().mean().item())
    torch.testing.assert_close(saved, fitted.ensemble(x, 4), atol=1e-3, rtol=1e-3)
    nll = -fitted.ensemble(x, 4)[torch.arange(len(y)), y].log().mean().item()
    assert figures["nll"] == pytest.approx(nll, rel=1e-4)
    alpha = torch.cat([p.flatten() for p in fitted.guides[0].inclusion_probabilities().values()])
    assert figures["density_mean"] == pytest.approx(alpha.mean().item(), rel=1e-5)
    assert figures["density_half"] == pytest.approx((alpha > 0.5).double().mean().item())
    assert figures["density_paths"] <= figures["density_half"]
    passes = len(fitted.history.losses) // place.options["epochs"]
    assert passes > 1
    last = fitted.history.losses[-passes:]
    assert figures["bound_trained"] == pytest.approx(-sum(last) / passes / len(fitted.data.x))


def test_bounds_of_few_rows_come_from_many_networks(cell, monkeypatch):
    fitted, asked = fit(cell()), []
    monkeypatch.setattr(images, "bound", lambda *_, networks, **__: asked.append(networks) or Estimate(0.0))
    for few in (len(fitted.data.x) + 1, len(fitted.data.x)):
        monkeypatch.setattr(images, "FEW_ROWS", few)
        images.settling(cell(), fitted)
    assert asked == [images.MANY_NETWORKS, NETWORKS]


@pytest.mark.parametrize("method", ["gaussian", "mlp", "deep-ensemble"])
def test_figures_that_do_not_exist_are_left_out(cell, method):
    figures = images.table(cell(method))
    assert_declared("digits", figures)
    assert not any("density" in name or "median" in name for name in figures)
    assert ("bound" in figures) == ("bound_trained" in figures) == (method == "gaussian")
    assert math.isfinite(figures["bound_change"])
    assert ("accuracy_mean" in figures) == (method != "deep-ensemble")


@pytest.mark.slow
def test_convolutional_table(cell):
    figures = images.convolutional_table(cell("lrt", widths="lenet", rows=100))
    assert_declared("cnn", figures)
    assert set(figures) == set(BY_NAME["lbbnn/cnn"].metrics)


@pytest.mark.parametrize("method", ["lrt-thesis", SLOW("mnf"), SLOW("concrete")])
def test_variance_table_tells_passes_from_networks(cell, method):
    figures = images.variance_table(cell(method, "thesis"))
    assert_declared("variance", figures)
    assert_declared("thesis", figures)
    assert set(figures) == set(BY_NAME["lbbnn/variance"].metrics)
    assert figures["nll"] != figures["nll_lrt"]


class Known(FittedNetworks):
    """Networks whose predictions are given."""

    def ensemble(self, x, members):
        return x.softmax(-1)


def known(monkeypatch, logits, outside, y):
    """Two-class predictions inside and outside the domain."""
    data = networks.Images(logits, y, logits, y, 2)
    fitted = Known(None, [], data, History(change=2.0 * len(y)), 0)
    monkeypatch.setattr(images, "fit", lambda cell: fitted)
    monkeypatch.setattr(images, "outside", lambda name, device: outside)


def test_decisions_by_hand(cell, monkeypatch):
    probabilities = torch.tensor([[0.99, 0.01], [0.02, 0.98], [0.04, 0.96], [0.945, 0.055], [0.6, 0.4]])
    outside = torch.tensor([[0.5, 0.5], [0.97, 0.03], [0.9, 0.1], [0.3, 0.7]])
    known(monkeypatch, probabilities.log(), outside.log(), torch.tensor([0, 1, 0, 0, 1]))
    figures = images.decisions(cell())
    assert_declared("decisions", figures)
    assert figures == pytest.approx(
        {"decided": 0.6, "accuracy_decided": 2 / 3, "accuracy_all": 0.6, "decided_outside": 0.25}
        | {"bound_change": 2.0}
    )


def test_nothing_decided_has_no_accuracy(cell, monkeypatch):
    known(monkeypatch, torch.zeros(3, 2), torch.zeros(3, 2), torch.tensor([0, 1, 0]))
    assert "accuracy_decided" not in images.decisions(cell())


def test_entropies_by_hand(cell, monkeypatch):
    place = cell()
    inside, outside = torch.tensor([[9.0, 0], [2.0, 0]]), torch.tensor([[0.0, 0], [3.0, 0]])
    known(monkeypatch, inside, outside, torch.tensor([0, 1]))
    figures = images.entropies(place)
    assert_declared("entropy", figures)

    def entropy(logit):
        p = 1 / (1 + math.exp(-logit))
        return -p * math.log(p) - (1 - p) * math.log(1 - p)

    values = [entropy(9), entropy(2), math.log(2), entropy(3)]
    assert figures["entropy_inside"] == pytest.approx(sum(values[:2]) / 2, rel=1e-4)
    assert figures["entropy_outside"] == pytest.approx(sum(values[2:]) / 2, rel=1e-4)
    assert figures["auroc"] == pytest.approx(roc_auc_score([0, 0, 1, 1], values)) == 0.75
    with np.load(place.folder / "entropies.npz") as file:
        np.testing.assert_allclose(file["outside"], values[2:], rtol=2e-3)


def test_training_curve_has_a_point_an_epoch_and_one_before(cell):
    place = cell()
    figures = images.training_curve(place)
    assert_declared("training", figures)
    with np.load(place.folder / "curves.npz") as file:
        assert len(file["losses"]) == 3
        curve = file["ensemble_test"]
    assert len(curve) == 4
    assert figures["nll_ensemble_test"] == curve[-1]
    assert figures["nll_best"] == curve.min()
    assert curve[0] != curve[1]


def test_pictures_are_the_extremes_of_every_class(cell):
    place = cell("mlp")
    figures = images.pictures(place)
    assert_declared("pictures", figures)
    fitted = fit(place)
    p = fitted.ensemble(fitted.data.x_test, 4)
    value = -(p * p.log()).sum(1)
    for name, pick in (("low", 0), ("high", -1)):  # from the extreme inwards
        with np.load(place.folder / f"{name}.npz") as file:
            assert file["images"].shape == (10, images.SHOWN, 8, 8)
            for label in (0, 7):
                of_class = value[fitted.data.y_test == label].sort().values
                assert file["entropy"][label][0] == pytest.approx(of_class[pick].item(), rel=1e-4)
                assert np.diff(file["entropy"][label]).sum() * (1 if name == "low" else -1) > 0
    assert figures["entropy_low"] < figures["entropy_high"]


def test_export_gives_the_same_function_in_less_room(cell, monkeypatch):
    monkeypatch.setattr(networks, "LOGITS", (-15.0, 5.0))  # nothing would be out after six steps
    figures = images.export(cell(widths="60-40"))
    assert_declared("export", figures)
    assert set(figures) == set(BY_NAME["lbbnn/export"].metrics)
    assert max(figures["difference_sparse"], figures["difference_small"]) < 1e-5
    assert figures["kilobytes_sparse"] < figures["kilobytes_dense"]
    assert figures["units_small"] <= 100


def test_cost_is_relative_to_a_plain_network(cell):
    figures = images.cost(cell())
    assert_declared("cost", figures)
    assert figures["relative"] == pytest.approx(figures["seconds"] / figures["seconds_plain"])
    assert images.cost(cell("mlp"))["parameters"] == 65 * 12 + 13 * 10 + 11 * 10


def test_median_network_uses_the_slabs_means(cell):
    fitted = fit(cell())
    x = fitted.data.x_test
    kept = median_weights(fitted.guides[0])
    hidden = x
    for i in (1, 2, 3):
        hidden = (hidden.relu() if i > 1 else hidden) @ kept[f"w{i}"].T + kept[f"b{i}"]
    torch.testing.assert_close(fitted.median_network(x), hidden.softmax(-1), rtol=1e-4, atol=1e-5)


def test_seconds_are_of_an_epoch_by_a_clock_that_ticks_once_a_look(cell, monkeypatch):
    """A step of one second, two of them an epoch of 200 rows."""
    ticks = itertools.count()
    monkeypatch.setattr(images, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
    figures = images.cost(cell())
    assert (figures["seconds"], figures["seconds_plain"], figures["relative"]) == (2, 2, 1)


def test_the_frontier_is_chosen_by_images_held_out_and_reported_on_test_images(cell, monkeypatch):
    """An ensemble that is always right, on labels that are right for three and for one in four."""
    first = torch.tensor([1.0, 0.0]).expand(4, 2)
    data = SimpleNamespace(x_test=first, y_test=torch.tensor([0, 0, 0, 1]))
    fitted = SimpleNamespace(data=data, ensemble=lambda x, members: x)
    monkeypatch.setattr(images, "fit", lambda cell: fitted)
    monkeypatch.setattr(images, "validation", lambda *asked: (first, torch.tensor([0, 1, 1, 1])))
    for name in ("densities", "settling"):
        monkeypatch.setattr(images, name, lambda *args, **options: {})
    figures = images.frontier(cell("lrt", held_out=0.25))
    assert (figures["accuracy"], figures["accuracy_validation"]) == (0.75, 0.25)


def test_images_that_are_held_out_are_those_that_train_nothing():
    x, y = networks.validation("digits", 200, "cpu", 0.25)
    kept, whole = networks.images("digits", 200, "cpu", 0.25), networks.images("digits", 200)
    assert (len(x), len(kept.x)) == (50, 150)
    assert torch.equal(torch.cat([kept.x, x]), whole.x)
    assert torch.equal(torch.cat([kept.y, y]), whole.y)


@pytest.mark.slow
def test_frontier_scores_images_that_were_held_out(cell, tmp_path):
    place = cell("cold-lrt", "learned-kl0.1", held_out=0.25)
    figures = images.frontier(place)
    assert set(figures) == set(BY_NAME["lbbnn/frontier"].metrics) - {"bound_trained"}  # of another objective
    fitted = fit(place)
    x, y = networks.validation("digits", 200, "cpu", 0.25)
    whole = networks.images("digits", 200)
    assert (len(x), len(fitted.data.x)) == (50, 150)
    assert torch.equal(torch.cat([fitted.data.x, x]), whole.x)
    right = fitted.ensemble(x, 4).argmax(1) == y
    assert figures["accuracy_validation"] == pytest.approx(right.double().mean().item())
    record = Record(place, "ok", figures, 1.0, tmp_path)
    plots.plot_frontier(tmp_path, [record, replace(record, cell=replace(place, trial=1))])
    assert (tmp_path / "frontier-digits.png").read_bytes().startswith(b"\x89PNG")


def test_milliseconds_are_of_a_thousand_rows(monkeypatch):
    """By a clock that ticks a millisecond a look."""
    ticks = itertools.count()
    monkeypatch.setattr(images, "time", SimpleNamespace(perf_counter=lambda: 1e-3 * next(ticks)))
    assert images._milliseconds(lambda x: x, torch.zeros(250, 3)) == pytest.approx(4.0)
    assert images._milliseconds(lambda x: x, torch.zeros(2000, 3)) == pytest.approx(1.0)
