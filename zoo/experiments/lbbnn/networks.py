"""The networks of the latent binary experiments on images: data, priors, starts, and one shared way to fit.

A fit is a function of data set, method, setting, trial and options alone: experiments that look at the same
networks fit them again with the same seed, and get the same ones, or find them where
:mod:`zoo.experiments.lbbnn.kept_networks` has kept them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from data_loaders import load
from guides import (
    AutoConcrete,
    AutoConcreteDropout,
    AutoDropout,
    AutoGroupNormalJeffreys,
    AutoMeanField,
    AutoMNF,
    AutoSpikeSlab,
    FlatPriors,
)
from guides.core.flat_guide import FlatGuide
from guides.core.sites import initial_value
from guides.variational.sparse_networks import mean_weights, median_probability_model
from zoo.errors import UserError
from zoo.experiments.engine.declaration import Cell
from zoo.experiments.lbbnn import kept_networks
from zoo.fitting.epochs import (
    History,
    Training,
    averaged_probabilities,
    set_up,
    single_network,
    stacked,
    train,
)
from zoo.models.bnn import BNN
from zoo.models.lenet import LeNet
from zoo.models.weights import GaussianWeights, SpikeSlabWeights
from zoo.seeds import stable_seed

FILES = {"fmnist": "fashion_mnist"}
#: Whose test images stand outside the domain of a data set.
OUTSIDE = {"mnist": "fmnist", "fmnist": "mnist", "kmnist": "mnist"}
CLASSES, DIGIT_LEVELS = 10, 16
#: digits has so few rows that an epoch is 16 steps: an epoch of a budget stands for that many.
DIGITS_EPOCHS = 20
#: Prior inclusion probability and sd of the slab; without inclusion the weights are N(0, sd^2).
PRIORS = {
    "default": (0.1, 1.0),
    "pi0.1-sd1": (0.1, 1.0),
    "pi0.25-sd1": (0.25, 1.0),
    "pi0.1-sd0.1": (0.1, 0.1),
    "thesis": (0.05, 1.0),
}
SPARSE = ("lrt", "lrt-thesis", "mnf", "mnf-early", "concrete")
POINTS = ("mlp", "deep-ensemble")
DROPOUT_RATE, ENSEMBLE = 0.2, 5
#: Starts of the guides with a law for every weight: bounds of the means, sds, bounds of the logits.
MEANS, SCALE, LOGITS = 0.2, 1e-3, (-15.0, 5.0)
THESIS_SCALE, THESIS_LOGITS = 0.01, (0.0, 1.0)
#: First learning rate of Adam; it falls to zero along a half cosine.
RATE = 1e-3
#: Adam moves a logit by about the sum of the learning rates at most.  With inclusions the rate is such that
#: this sum is REACH, within bounds: however short the training, useless weights can fall below one half.
REACH, LOWEST_RATE, HIGHEST_RATE = 6.0, 1e-4, 3e-3
#: The share of the epochs after which the training of the deliberately less accurate control is broken off.
EARLY = 0.1


class Images(NamedTuple):
    """``x: [n, pixels]`` in [0, 1], ``y: [n]``; the images to test on; pixels of an edge."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    side: int


def images(name: str, rows: int | None = None, device: str = "cpu") -> Images:
    """A data set in its official split.

    :param rows: take the first training rows only
    :raises UserError: when the device is not there
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"there is no device {device} here: leave it out, or take device=cpu")
    data = load(FILES.get(name, name))
    unit = 1.0 if data.prescaled else DIGIT_LEVELS
    parts = (data.x_train[:rows] / unit, data.y_train[:rows], data.x_test / unit, data.y_test)
    x, y, x_test, y_test = (torch.as_tensor(part).to(device) for part in parts)
    return Images(x.float(), y, x_test.float(), y_test, math.isqrt(data.num_features))


def checksum(data: Images) -> str:
    """Of the images that train a network, and their labels."""
    digest = hashlib.sha256()
    for part in (data.x, data.y):
        digest.update(repr(tuple(part.shape)).encode() + part.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def outside(name: str, device: str = "cpu") -> Tensor:
    """Images that a network trained on ``name`` has seen nothing of, ``[m, pixels]``: the test images of
    another set; of digits its own, with their pixels in another order.
    """
    if name in OUTSIDE:
        return images(OUTSIDE[name], 0, device).x_test
    x = images(name, 0, device).x_test
    return x[:, torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(0))]


@dataclass(frozen=True)
class Fitted:
    """Networks that have been fitted; several guides are the members of a deep ensemble."""

    model: Callable
    guides: list[FlatGuide]
    data: Images
    history: History
    seed: int

    def draws(self, members: int) -> dict[str, Tensor]:
        """Networks ``{name: [members, *site]}``; a deep ensemble has as many as it has."""
        if len(self.guides) > 1:
            return stacked(self.guides)
        return self.guides[0].draws(members, seed=stable_seed("draws", self.seed))

    def ensemble(self, x: Tensor, members: int) -> Tensor:
        """Averaged probabilities of drawn networks, ``[N, K]``."""
        return averaged_probabilities(self.model, self.draws(members), x)

    def mean_network(self, x: Tensor) -> Tensor | None:
        """Probabilities of the posterior mean network, ``[N, K]``; None where that is no network."""
        if len(self.guides) > 1:
            return None
        return averaged_probabilities(self.model, single_network(mean_weights(self.guides[0])), x)

    def median_network(self, x: Tensor) -> Tensor | None:
        """Probabilities of the median probability network, ``[N, K]``; None without inclusions."""
        guide = self.guides[0]
        if not isinstance(guide, AutoSpikeSlab):
            return None
        weights = mean_weights(median_probability_model(guide))
        return averaged_probabilities(self.model, single_network(weights), x)


def fit(
    cell: Cell,
    *,
    convolutional: bool = False,
    each_epoch: Callable[[Fitted, int], Mapping[str, float]] | None = None,
) -> Fitted:
    """The networks of a cell.

    Options: ``epochs``, ``widths`` ("400-600"), ``rows`` (training images, 0 for all), ``device`` ("cpu",
    "cuda").
    """
    options = cell.options
    data = images(cell.dataset, options["rows"] or None, options["device"])
    method = "mnf" if cell.method == "mnf-early" else cell.method
    seed = stable_seed("lbbnn", cell.base_seed, cell.dataset, method, cell.setting, convolutional, cell.trial)
    model = make_model(cell.method, cell.setting, data, () if convolutional else widths_of(cell))
    histories, fitted = [], Fitted(model, [], data, History(), seed)
    made_by = {"model": repr(model), "method": method, "setting": cell.setting, "images": checksum(data)}
    for member in range(ENSEMBLE if cell.method == "deep-ensemble" else 1):
        training = training_of(cell, len(data.x), stable_seed("member", seed, member))
        torch.manual_seed(stable_seed("make", training.seed))
        guide = make_guide(cell.method, model, cell.setting)
        fitted.guides.append(guide)
        path = kept_networks.place(**made_by, **asdict(training), device=str(data.x.device))
        history = kept_networks.find(path, guide) if each_epoch is None else None
        if history is None:
            call = None if each_epoch is None else lambda epoch: each_epoch(fitted, epoch)
            history = train(guide.model, guide, (data.x, data.y), training, each_epoch=call)
            kept_networks.keep(path, guide, history)
        else:
            set_up(guide, (data.x, data.y), training)
        histories.append(history)
    for history in histories:
        fitted.history.seconds.extend(history.seconds)
    fitted.history.losses, fitted.history.figures = histories[-1].losses, histories[-1].figures
    return fitted


def training_of(cell: Cell, rows: int, seed: int) -> Training:
    """How long and how fast a cell's method is trained on so many rows."""
    epochs = cell.options["epochs"] * (DIGITS_EPOCHS if cell.dataset == "digits" else 1)
    training = Training(epochs, lr=RATE, seed=seed)
    if cell.method in SPARSE:
        steps = epochs * max(1, rows // training.batch_size)
        training = replace(training, lr=min(max(2 * REACH / steps, LOWEST_RATE), HIGHEST_RATE))
    if cell.method == "mnf-early":
        training = replace(training, stop_after=max(1, round(EARLY * epochs)))
    return training


def widths_of(cell: Cell) -> tuple[int, ...]:
    return tuple(map(int, cell.options["widths"].split("-")))


def make_model(method: str, setting: str, data: Images, widths: tuple[int, ...]) -> Callable:
    """The network with the prior that method and setting call for.

    :param widths: hidden units of each layer; none for the convolutional network
    """
    inclusion, scale = PRIORS[setting]
    sparse = method in SPARSE
    weights = SpikeSlabWeights(inclusion, scale) if sparse else GaussianWeights(scale)
    if not widths:
        return LeNet(data.side**2, CLASSES, weights)
    return BNN(data.side**2, widths=widths, outputs=CLASSES, likelihood="categorical", weights=weights)


def make_guide(method: str, model: Callable, setting: str) -> FlatGuide:
    """The guide of a method.

    :param setting: names the prior; "thesis" also has the thesis's start of sds and inclusion logits
    """
    prior_scale = PRIORS[setting][1]
    scale, logits = (THESIS_SCALE, THESIS_LOGITS) if setting == "thesis" else (SCALE, LOGITS)
    start = {"init_loc_fn": uniform_start, "init_scale": scale / prior_scale}
    sparse = {**start, "init_inclusion": logits}
    makers: dict[str, Callable[[], FlatGuide]] = {
        "lrt": lambda: AutoSpikeSlab(model, **sparse),
        "lrt-thesis": lambda: AutoSpikeSlab(model, **sparse, variance="thesis"),
        "mnf": lambda: AutoMNF(model, **sparse),
        "mnf-early": lambda: AutoMNF(model, **sparse),
        "concrete": lambda: AutoConcrete(model, **sparse),
        "gaussian": lambda: AutoMeanField(model, **start),
        "group-normal-jeffreys": lambda: AutoGroupNormalJeffreys(model, **start),
        "concrete-dropout": lambda: AutoConcreteDropout(model, init_loc_fn=he_start),
        "mc-dropout": lambda: AutoDropout(model, rate=DROPOUT_RATE, init_loc_fn=he_start),
        # Nothing is dropped and nothing regularised: maximum likelihood.
        **{name: lambda: AutoDropout(FlatPriors()(model), sites=(), init_loc_fn=he_start) for name in POINTS},
    }
    return makers[method]()


def uniform_start(site: dict) -> Tensor:
    """``U(-0.2, 0.2)`` for weights and biases, as in the published programs."""
    return torch.empty_like(initial_value(site)).uniform_(-MEANS, MEANS)


def he_start(site: dict) -> Tensor:
    """He, Zhang, Ren and Sun (2015): weights ``N(0, 2 / fan_in)``, biases zero."""
    value = torch.zeros_like(initial_value(site))
    if value.dim() < 2:
        return value
    return value.normal_(0.0, math.sqrt(2 / math.prod(value.shape[1:])))
