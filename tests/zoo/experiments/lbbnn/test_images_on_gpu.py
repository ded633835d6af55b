"""The image experiments on a GPU: the loss and gradients of the CPU, and figures that the CPU has too."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from guides.variational.sparse_networks import mean_weights
from tests.zoo.experiments.lbbnn.tiny_cells import OPTIONS
from zoo.experiments import Cell
from zoo.experiments.lbbnn import images, networks
from zoo.experiments.lbbnn.metrics import CORRELATED, CORRELATED_SETTING, METHODS
from zoo.fitting.epochs import averaged_probabilities, bound, single_network

GPU = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch finds none")

#: Every method, with a prior that it is fitted under; lrt and mnf with learned ones too.
FITS = [
    *((name, "thesis") for name in ("lrt-thesis", "lrt", "mnf", "concrete")),
    *((name, "default") for name in METHODS),
    ("lrt", "rates"),
    ("lrt", "default-common"),
    ("cold-mnf", "fixed-kl0.1"),
    (CORRELATED, CORRELATED_SETTING),
]


#: What draws random numbers: functions that make a tensor, and methods that fill one.
FRESH = ("randn", "rand", "randn_like", "rand_like", "normal", "bernoulli", "randperm")
IN_PLACE = ("normal_", "uniform_", "bernoulli_", "exponential_")


@pytest.fixture
def noise_of_the_cpu(monkeypatch):
    """Random numbers are drawn on the CPU wherever they are wanted, so that two devices have the same."""

    def fresh(function):
        def drawn(*args, out=None, device=None, **kwargs):
            like = next((v for v in (*args, out) if isinstance(v, Tensor)), None)
            device = device or ("cpu" if like is None else like.device)
            values = function(*(v.cpu() if isinstance(v, Tensor) else v for v in args), **kwargs)
            return values.to(device) if out is None else out.copy_(values)

        return drawn

    def in_place(function):
        def filled(self, *args, **kwargs):
            with torch.no_grad():
                return self.copy_(function(torch.empty_like(self, device="cpu"), *args, **kwargs))

        return filled

    for name in FRESH:
        monkeypatch.setattr(torch, name, fresh(getattr(torch, name)))
    for name in IN_PLACE:
        monkeypatch.setattr(Tensor, name, in_place(getattr(Tensor, name)))


def loss_and_gradients(method: str, setting: str, device: str) -> tuple[float, dict[str, Tensor]]:
    """Of the second of two runs: then a learned prior has moved."""
    data = networks.images("digits", 200, device)
    torch.manual_seed(0)
    model = networks.make_model(method, setting, data, (12, 10))
    guide = networks.make_guide(method, model, setting)
    guide.setup(data.x[:50], data.y[:50], 200)
    for _ in range(2):
        guide.zero_grad()
        loss = guide.elbo().loss_and_grads(guide.model, guide, data.x[:50], data.y[:50], 200)
    return loss, {name: parameter.grad.cpu() for name, parameter in guide.named_parameters()}


@pytest.mark.parametrize(("method", "setting"), FITS, ids=lambda value: value)
def test_loss_and_gradients_are_those_of_the_cpu(method, setting, noise_of_the_cpu):
    here, there = (loss_and_gradients(method, setting, device) for device in ("cpu", GPU))
    assert_nothing_was_drawn_there()
    assert there[0] == pytest.approx(here[0], rel=1e-4)
    assert here[1]
    assert there[1].keys() == here[1].keys()
    for name, gradient in here[1].items():
        torch.testing.assert_close(
            there[1][name], gradient, rtol=1e-3, atol=1e-4 * gradient.abs().max().item()
        )


def assert_nothing_was_drawn_there() -> None:
    """Since the seed 0: or some noise was not the CPU's, and two devices would differ by chance."""
    state = torch.cuda.get_rng_state()
    torch.cuda.manual_seed(0)
    assert torch.equal(state, torch.cuda.get_rng_state())


@pytest.mark.parametrize(("method", "setting"), FITS, ids=lambda value: value)
def test_the_cpu_finds_the_same_figures_of_a_fit(method, setting, tmp_path):
    """Of its networks, drawn and mean; its density; and its bound, within the error of both."""
    cell = Cell("x", "digits", method, setting, 0, options={**OPTIONS, "device": GPU}, folder=tmp_path)
    figures = (images.variance_table if setting == "thesis" else images.table)(cell)
    assert all(math.isfinite(value) for value in figures.values())
    fitted = networks.fit(cell)
    guide, one_image = fitted.guides[0], 1.1 / len(fitted.data.y_test)
    assert {parameter.device.type for parameter in guide.parameters()} == {GPU}
    x, y, *test = (part.cpu() for part in fitted.data[:4])
    draws = {name: value.cpu() for name, value in fitted.draws(OPTIONS["members"]).items()}
    ensemble = images.scores(averaged_probabilities(fitted.model, draws, test[0]), test[1])
    assert figures["accuracy"] == pytest.approx(ensemble["accuracy"], abs=one_image)
    assert figures["nll"] == pytest.approx(ensemble["nll"], rel=0.01)
    if method == "deep-ensemble":  # several guides
        return
    copy = networks.make_guide(method, fitted.model, setting)
    copy.load_state_dict({k: v.cpu() if isinstance(v, Tensor) else v for k, v in guide.state_dict().items()})
    copy.setup(x[:50], y[:50], len(x))
    mean = averaged_probabilities(fitted.model, single_network(mean_weights(copy)), test[0])
    assert figures["accuracy_mean"] == pytest.approx(images.scores(mean, test[1])["accuracy"], abs=one_image)
    if hasattr(copy, "density"):
        assert figures["density_mean"] == pytest.approx(copy.density()[0], rel=1e-3)
    if "bound" in figures:
        here, there = (
            bound(one, (x.to(d), y.to(d)), networks=500) for one, d in ((copy, "cpu"), (guide, GPU))
        )
        assert there.value == pytest.approx(here.value, abs=5 * math.hypot(here.se, there.se))
        assert figures["bound"] == pytest.approx(here.value, abs=5 * math.hypot(here.se, there.se))


def test_set_up_leaves_the_seed_of_the_gpu_alone():
    """It asks whether rows mix by runs with a seed of their own."""
    data = networks.images("digits", 200, GPU)
    drawn = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        guide = networks.make_guide("lrt", networks.make_model("lrt", "thesis", data, (12, 10)), "thesis")
        guide.setup(data.x[:50], data.y[:50], 200)
        drawn.append(torch.rand(5, device=GPU))
    assert not torch.equal(*drawn)
