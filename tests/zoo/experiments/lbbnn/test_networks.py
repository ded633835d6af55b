"""The networks of the experiments on images: starts, priors, rates, seeds, and networks that are kept."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from pyro.infer import SVI

from guides.core.flat_guide import FlatGuide
from zoo.errors import UserError
from zoo.experiments import Cell
from zoo.experiments.lbbnn import kept_networks, networks
from zoo.experiments.lbbnn.metrics import CORRELATED, CORRELATED_SETTING, METHODS
from zoo.experiments.lbbnn.networks import fit, images, make_guide, make_model, outside
from zoo.experiments.lbbnn.options import COLD_RATES, RATES
from zoo.fitting import epochs
from zoo.fitting.cluster_tasks import own_code
from zoo.fitting.reach import REACHES, own_rates
from zoo.models.bnn import BNN
from zoo.models.lenet import LeNet
from zoo.models.weights import SpikeSlabWeights, sd_of_layer

OPTIONS = {"epochs": 1, "members": 4, "widths": "12-10", "rows": 200, "device": "cpu", **RATES}
NETWORK = BNN(64, widths=(12, 10), outputs=10, likelihood="categorical", weights=SpikeSlabWeights(0.1, 1.0))


def cell(
    method: str = "lrt", setting: str = "default", trial: int = 0, experiment: str = "x", **options
) -> Cell:
    return Cell(experiment, "digits", method, setting, trial, options={**OPTIONS, **options})


@pytest.fixture(scope="module")
def digits():
    return images("digits", 200)


@pytest.fixture(autouse=True)
def _few_epochs(monkeypatch):
    monkeypatch.setitem(networks.PASSES, "digits", 3)


# --------------------------------------------------------------------------------------------- the fits


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A folder of kept networks, and those that were fitted for it."""
    return tmp_path_factory.mktemp("networks"), {}


@pytest.fixture
def fitted_once(shelf, monkeypatch):
    """``method -> FittedNetworks``, with the default options: fitted and kept by the first test that asks."""
    folder, known = shelf
    monkeypatch.setenv(kept_networks.VARIABLE, str(folder))

    def of(method: str = "lrt"):
        if method not in known:
            known[method] = fit(cell(method, CORRELATED_SETTING if method == CORRELATED else "default"))
        return known[method]

    return of


@pytest.mark.one_in(3)
@pytest.mark.parametrize("method", [*METHODS, CORRELATED])
def test_every_method_fits_and_draws(method, fitted_once):
    fitted = fitted_once(method)
    draws = fitted.draws(4)
    expected = {"deep-ensemble": networks.ENSEMBLE}.get(method, 4)
    assert draws["w1"].shape == (expected, 12, 64)
    different = (draws["w1"][0] != draws["w1"][1]).any().item()
    assert different == (method != "mlp")
    ensemble = fitted.ensemble(fitted.data.x_test, 4)
    assert ensemble.shape == (180, 10)
    torch.testing.assert_close(ensemble.sum(1), torch.ones(180))
    assert (fitted.mean_network(fitted.data.x_test) is None) == (method == "deep-ensemble")
    sparse = method in ("lrt", "mnf", "concrete", CORRELATED)
    assert (fitted.median_network(fitted.data.x_test) is not None) == sparse


@pytest.mark.slow
def test_same_fit_in_every_experiment_and_another_in_every_trial():
    first, again, other = fit(cell()), fit(cell(experiment="y")), fit(cell(trial=1))
    assert torch.equal(first.guides[0].loc, again.guides[0].loc)
    assert not torch.equal(first.guides[0].loc, other.guides[0].loc)
    assert torch.equal(first.draws(3)["w1"], again.draws(3)["w1"])


@pytest.mark.slow
def test_early_network_is_the_same_one_stopped_early():
    """Number for number: its learning rate has not fallen yet."""
    late, early = fit(cell("mnf", epochs=5)), fit(cell("mnf-early", epochs=5))
    assert late.seed == early.seed
    assert (len(late.history.losses), len(early.history.losses)) == (15, 6)
    assert early.history.losses == late.history.losses[:6]


@pytest.mark.parametrize(
    ("method", "setting", "epochs", "rows", "rate"),
    [
        ("lrt", "default", 20, 60_000, 1e-2),
        ("gaussian", "default", 20, 60_000, 1e-2),
        ("mnf", "pi0.1-sd1", 500, 60_000, 1e-2),
        ("lrt", "thesis", 250, 60_000, 2e-4),
        ("lrt", "default", 20, 8_000, 1e-2),
        ("lrt", "thesis", 20, 60_000, 1e-3),
        ("mlp", "default", 20, 8_000, 1e-3),
        ("mnf-early", "default", 20, 60_000, 1e-2),
        ("cold-lrt", "learned-kl0.1", 20, 60_000, 5e-3),
        ("lrt", "rates-common", 20, 60_000, 1e-2),
    ],
)
def test_learning_rates(method, setting, epochs, rows, rate):
    place = Cell("x", "mnist", method, setting, 0, options={**OPTIONS, "epochs": epochs})
    training = networks.training_of(place, rows, 7)
    assert training.lr == pytest.approx(rate)
    steps = epochs * rows // training.batch_size
    assert training.batch_size == (100 if method == "mlp" or setting == "thesis" else networks.BATCH)
    if method == "mlp" or setting == "thesis":
        assert (training.factors, training.kl_weights) == ({}, (1.0, 1.0))
    else:
        assert training.factors == own_rates(rate, steps, times=1 if "cold" in method else 4)
        assert training.kl_weights == (0.01, 0.1 if "cold" in method else 1.0)
    assert training.common == (networks.COMMON if setting == "rates-common" else {})
    assert (training.epochs, training.seed) == (epochs, 7)
    assert training.taken == (8 if method == "mnf-early" else epochs)
    assert training.taken > training.ramp * epochs  # or it would end as a cold posterior


@pytest.mark.parametrize(
    ("options", "rate", "times"),
    [({}, 0.01, 4), ({"rate": 0.005, "reach": 1.0}, 5e-3, 1), ({"rate": 0.02, "reach": 2.0}, 0.02, 2)],
)
def test_rate_and_reach_may_be_set(options, rate, times):
    """6000 steps: at a first rate of r a parameter can go 3000 r far."""
    place = Cell("x", "mnist", "lrt", "default", 0, options={**OPTIONS, "epochs": 20, **options})
    training = networks.training_of(place, 60_000, 7)
    rates = {name: training.lr * factor for name, factor in training.factors.items()}
    assert training.lr == rate
    assert rates == pytest.approx({name: max(rate, times * far / 3000) for name, far in REACHES.items()})


def test_cold_posteriors_keep_their_rates_whatever_the_options_say():
    def training(rates):
        place = Cell("x", "mnist", "cold-mnf", "fixed-kl0.1", 0, options={**OPTIONS, "epochs": 20, **rates})
        return networks.training_of(place, 60_000, 7)

    assert training({"rate": 0.02, "reach": 8.0}) == training(COLD_RATES)


@pytest.mark.parametrize(
    ("dataset", "setting", "rows", "passes"),
    [
        ("digits", "default", 1617, 3), ("kmnist", "default", 8_000, 4), ("kmnist", "default", 60_000, 1),
        ("kmnist", "thesis", 8_000, 1), ("mnist", "default", 200, 1),
    ],
)  # fmt: skip
def test_few_rows_are_passed_more_often_in_an_epoch(dataset, setting, rows, passes):
    place = Cell("x", dataset, "lrt", setting, 0, options={**OPTIONS, "epochs": 5})
    assert networks.training_of(place, rows, 7).epochs == 5 * passes


def test_nothing_that_is_random_in_a_fit_shares_a_seed(monkeypatch, seeds_given):
    """Not the draws with the fit either: their noise was correlated with the means' start."""
    seeds, make, orders = seeds_given, FlatGuide._generator, epochs.shuffled_epochs
    monkeypatch.setattr(FlatGuide, "_generator", lambda self, seed: (seeds.append(seed), make(self, seed))[1])
    monkeypatch.setattr(
        epochs,
        "shuffled_epochs",
        lambda data, size, seed, **kwargs: (seeds.append(seed), orders(data, size, seed, **kwargs))[1],
    )
    fit(cell()).draws(2)
    seeds = [seed for seed in seeds if seed]  # 0: of set-up runs that are compared with each other
    assert len(seeds) == len(set(seeds)) == 4  # the guide, its fit, the orders of the rows, the draws


def test_members_of_a_deep_ensemble_differ(fitted_once):
    fitted = fitted_once("deep-ensemble")
    assert len({guide.loc.sum().item() for guide in fitted.guides}) == networks.ENSEMBLE


@pytest.mark.parametrize(("method", "variance"), [("lrt", "exact"), ("lrt-thesis", "thesis")])
def test_variance_of_the_guides(method, variance):
    guide = make_guide(method, NETWORK, "thesis")
    assert guide.variance == variance
    assert guide.init_inclusion == (0, 1)


def test_priors(digits):
    model = make_model("lrt", "pi0.25-sd1", digits, (12,))
    assert model.weights == SpikeSlabWeights(0.25, 1.0)
    assert make_model("gaussian", "pi0.1-sd0.1", digits, (12,)).weights.scale == 0.1
    assert make_model("mc-dropout", "default", digits, (12,)).weights.scale == 1.0
    assert isinstance(make_model("mnf", "default", digits, ()), LeNet)
    model = make_model("cold-mnf", "learned-kl0.3", digits, (12,))
    assert model == make_model("lrt", "default", digits, (12,))
    sd = sd_of_layer(model.weights.scale, 1, (10, 12))
    assert model.weights.inclusion * sd**2 == pytest.approx(2 / 12)  # weights vary as He starts them


@pytest.mark.parametrize("method", ["lrt", "mvn"])
@pytest.mark.parametrize("setting", ["default", "pi0.1-sd0.1", "fixed"])
def test_starts_are_near(digits, setting, method):
    guide = make_guide(method, make_model(method, setting, digits, (12,)), setting)
    assert (guide.learned_priors is not None) == (setting == "default")
    torch.manual_seed(0)
    guide.setup(digits.x[:5], digits.y[:5])
    spread = guide.site_distribution("w1").scale
    torch.testing.assert_close(spread, torch.full_like(spread, 0.3 / 8))  # 64 inputs
    assert 2 <= guide.logits.min() < guide.logits.max() <= 4
    loc = guide._detached()["w1"][0]
    assert loc.std().item() == pytest.approx(math.sqrt(2 / 64), rel=0.1)
    assert (guide._detached()["b1"][0] == 0).all()


def test_what_is_cold_is_called_so():
    for method, setting in (("lrt", "learned-kl0.1"), ("cold-lrt", "learned-kl1"), ("cold-mnf", "default")):
        with pytest.raises(ValueError, match="what is cold is called so"):
            networks.training_of(Cell("x", "mnist", method, setting, 0, options=OPTIONS), 1000, 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_device_that_is_not_there_is_told():
    with pytest.raises(UserError, match="option device cuda: this machine has no such device"):
        fit(cell(device="cuda"))


def test_images_are_scaled_and_the_outside_is_another_set(digits):
    assert (digits.x.min(), digits.x.max(), digits.side) == (0, 1, 8)
    assert digits.x.shape == (200, 64)
    assert digits.x_test.shape == (180, 64)
    strange = outside("digits")
    assert not torch.equal(strange, digits.x_test)
    assert torch.equal(strange.sort(1).values, digits.x_test.sort(1).values)


# ------------------------------------------------------------------------------------------ kept networks


@pytest.fixture
def kept_folder(tmp_path, monkeypatch):
    monkeypatch.setenv(kept_networks.VARIABLE, str(tmp_path))
    return tmp_path


def no_training(*args, **kwargs):
    raise AssertionError("this network was there")


KEPT = [
    name if name in ("lrt", "mnf", "deep-ensemble") else pytest.param(name, marks=pytest.mark.slow)
    for name in METHODS
]


@pytest.mark.parametrize("method", KEPT)
def test_a_kept_network_is_the_one_that_was_fitted(method, fitted_once, monkeypatch):
    fitted = fitted_once(method)
    monkeypatch.setattr(networks, "train", no_training)
    found = fit(cell(method, experiment="y"))
    assert len(found.guides) == len(fitted.guides)
    assert found.history == fitted.history
    x = fitted.data.x_test
    torch.testing.assert_close(found.ensemble(x, 4), fitted.ensemble(x, 4), rtol=0, atol=0)
    mean, kept = fitted.mean_network(x), found.mean_network(x)
    if mean is not None:
        torch.testing.assert_close(kept, mean, rtol=0, atol=0)


def test_an_interrupted_fit_goes_on(kept_folder, fitted_once, monkeypatch):
    """To the same network; what it was kept in is gone then."""
    whole = fitted_once()
    monkeypatch.setenv(kept_networks.VARIABLE, str(kept_folder))
    monkeypatch.setattr(epochs, "SECONDS_BETWEEN_CHECKPOINTS", -1.0)
    steps, step = [], SVI.step

    def killed(svi, *args):
        steps.append(1)
        if len(steps) == 2:
            raise SystemExit
        return step(svi, *args)

    monkeypatch.setattr(SVI, "step", killed)
    with pytest.raises(SystemExit):
        fit(cell())
    assert [file.suffix for file in kept_folder.iterdir()] == [".unfinished"]
    steps.append(1)  # not again
    resumed = fit(cell())
    assert resumed.history == whole.history
    for name, value in whole.guides[0].state_dict().items():
        if name != "_extra_state":
            assert torch.equal(resumed.guides[0].state_dict()[name], value), name
    assert sorted(file.suffix for file in kept_folder.iterdir()) == [".json", ".safetensors"]


@pytest.mark.slow
def test_a_network_looked_at_in_every_epoch_is_the_same_one(kept_folder, monkeypatch):
    """And is kept for the others."""
    plain = fit(cell())

    def look(fitted, epoch):
        return {"sum": fitted.draws(2)["w1"].sum().item()}

    looked = fit(cell(), each_epoch=look)
    monkeypatch.setattr(networks, "train", no_training)
    for other in (looked, fit(cell())):
        for name, value in plain.guides[0].state_dict().items():
            if name != "_extra_state":
                torch.testing.assert_close(other.guides[0].state_dict()[name], value, rtol=0, atol=0)


@pytest.mark.parametrize(
    "change",
    [
        {"trial": 1},
        {"method": "lrt-thesis"},
        {"setting": "pi0.25-sd1"},
        {"epochs": 2},
        {"rows": 190},
        {"widths": "12-11"},
    ],
)
def test_what_was_made_otherwise_is_not_found(change, fitted_once, monkeypatch):
    fitted_once()
    monkeypatch.setattr(networks, "train", no_training)
    with pytest.raises(AssertionError, match="was there"):
        fit(cell(**change))


def test_other_code_makes_other_networks(fitted_once, monkeypatch):
    fitted_once()
    monkeypatch.setattr(kept_networks, "own_code", lambda: replace(own_code(), source="other"))
    monkeypatch.setattr(networks, "train", no_training)
    with pytest.raises(AssertionError, match="was there"):
        fit(cell())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_a_damaged_network_is_made_again(suffix, kept_folder):
    expected = fit(cell()).guides[0].state_dict()
    (file,) = kept_folder.glob(f"*{suffix}")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    found = fit(cell()).guides[0].state_dict()
    torch.testing.assert_close(
        {k: v for k, v in found.items() if k != "_extra_state"},
        {k: v for k, v in expected.items() if k != "_extra_state"},
        rtol=0,
        atol=0,
    )
    if suffix == ".safetensors":
        assert file.read_bytes() == whole


def test_a_damaged_checkpoint_is_made_again(kept_folder):
    """What a crash of the machine has left would stop every later call of a grid."""
    expected = fit(cell())
    (file,) = kept_folder.glob("*.json")
    file.unlink()
    file.with_suffix(".unfinished").touch()
    assert fit(cell()).history == expected.history
    assert sorted(file.suffix for file in kept_folder.iterdir()) == [".json", ".safetensors"]


def test_nothing_is_kept_unless_a_folder_is_named(monkeypatch):
    monkeypatch.delenv(kept_networks.VARIABLE, raising=False)
    assert kept_networks.place(a=1) is None
    kept_networks.keep(None, None, None)
    assert kept_networks.find(None, None) is None


def test_other_images_make_other_networks(fitted_once, monkeypatch):
    fitted_once()
    data = images("digits", 200)
    monkeypatch.setattr(networks, "images", lambda *args: data._replace(y=data.y.flip(0)))
    monkeypatch.setattr(networks, "train", no_training)
    with pytest.raises(AssertionError, match="was there"):
        fit(cell())


def test_a_folder_that_cannot_be_is_refused_before_training(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv(kept_networks.VARIABLE, str(file))
    monkeypatch.setattr(networks, "train", no_training)
    with pytest.raises(UserError, match="ZOO_NETWORKS names .*file, which cannot be written"):
        fit(cell())
