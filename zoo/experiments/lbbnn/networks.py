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
from typing import Literal, NamedTuple

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
    AutoSpikeSlabMVN,
    FlatPriors,
    init_to_he,
)
from guides.core.flat_guide import FlatGuide
from guides.core.starts import initial_value
from guides.variational.sparse_networks import mean_weights, median_weights
from zoo.experiments.engine.declaration import Cell
from zoo.experiments.lbbnn import kept_networks
from zoo.experiments.lbbnn.options import COLD_RATES, POINT_RATE
from zoo.fitting.devices import check_device
from zoo.fitting.epochs import (
    History,
    Training,
    averaged_probabilities,
    set_up,
    single_network,
    stacked,
    train,
)
from zoo.fitting.reach import own_rates
from zoo.models.bnn import BNN
from zoo.models.lenet import LeNet
from zoo.models.weights import FanIn, GaussianWeights, Scale, SpikeSlabWeights, sd_of_layer
from zoo.seeds import stable_seed

FILES = {"fmnist": "fashion_mnist"}
#: Whose test images stand outside the domain of a data set.
OUTSIDE = {"mnist": "fmnist", "fmnist": "mnist", "kmnist": "mnist"}
CLASSES, DIGIT_LEVELS = 10, 16
#: Passes that an epoch of a budget stands for, where a set has fewer rows than this: digits, and KMNIST where
#: its training images cannot be had.
FEW_ROWS = 10_000
PASSES = {"digits": 20, "kmnist": 4}


@dataclass(frozen=True)
class Prior:
    """Of the weights of all layers, and how a fit starts from it.

    :ivar inclusion: probability; without indicators the weights are Gaussian
    :ivar scale: sd of the slab, or of the Gaussian
    :ivar gaussian_scale: sd of the weights of ``gaussian``; those of the other comparators are N(0, 1)
    :ivar learned: whether inclusion and sds of every layer are chosen by the data (empirical Bayes);
        ``"rates"``: the inclusion by output and input
    :ivar published: whether start and learning rate are those of the thesis's program
    :ivar common: whether logits and sds of a layer also move as one, once its prior is learned
    """

    inclusion: float
    scale: Scale = 1.0
    gaussian_scale: Scale = None
    learned: bool | Literal["rates"] = False
    published: bool = False
    common: bool = False


#: The slab with which weights vary by ``2 / fan_in``, as He, Zhang, Ren and Sun (2015) start networks.
HE = Prior(0.02, FanIn(math.sqrt(2 / 0.02)), FanIn(math.sqrt(2)))
PRIORS = {
    "learned": replace(HE, learned=True),
    "rates": replace(HE, learned="rates"),
    "fixed": HE,
    "pi0.1-sd1": Prior(0.1, 1.0, 1.0),
    "pi0.25-sd1": Prior(0.25, 1.0, 1.0),
    "pi0.1-sd0.1": Prior(0.1, 0.1, 0.1),
    "thesis": Prior(0.05, 1.0, 1.0, published=True),  # THESIS_SCALE is a share of its sd, which is 1
}
PRIORS["default"] = PRIORS["learned"]
PRIORS |= {f"{name}-common": replace(PRIORS[name], common=True) for name in ("default", "rates")}
SPARSE = ("lrt", "lrt-thesis", "mnf", "mnf-early", "concrete", "mvn")
#: Those with a law for every weight: their parameters have different distances to go.
LAWS = (*SPARSE, "gaussian", "group-normal-jeffreys")
#: Those whose loss bounds the evidence.
BOUNDS = (*SPARSE, "gaussian")
POINTS = ("mlp", "deep-ensemble")
#: A fit to a cold posterior is named after the guide that it is fitted with.
COLD = "cold-"
DROPOUT_RATE, ENSEMBLE = 0.2, 5
#: Starts of the guides with a law for every weight: sds as a share of 1/sqrt(fan_in), bounds of the logits.
SPREAD, LOGITS = 0.3, (2.0, 4.0)
#: Start of the sds of logits that are correlated.  Without any the bound is that of independent inclusions,
#: and from wide ones training does not get back to it (``python benchmarks/correlated_inclusion_start.py``).
MVN_SPREAD = 0.5
#: The thesis's: bounds of the means, sds, bounds of the logits.
MEANS, THESIS_SCALE, THESIS_LOGITS = 0.2, 0.01, (0.0, 1.0)
#: The thesis's start of the logits is far from where they go: the rate is such that they can move by so much,
#: within bounds.
THESIS_REACH, THESIS_RATES = 6.0, (2e-4, 5e-3)
#: How many times the learning rate is at which logits and log-sds of a layer move as one, where they do.
COMMON = {"logits": 5.0, "log_scale": 5.0}
#: Rows of a minibatch of theirs; points, dropout and the thesis's recipe take those of ``Training``.
BATCH = 200
#: What the divergence counts at the first step, so that weights are not put out before they are of use.
FIRST_WEIGHT = 0.01
#: The share of the epochs after which the training of the deliberately less accurate control is broken off:
#: when the divergence counts whole, and the prior has begun to be learned.
EARLY = 0.4


class Images(NamedTuple):
    """``x: [n, pixels]`` in [0, 1], ``y: [n]``; the images to test on; pixels of an edge."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    side: int


def images(name: str, rows: int | None = None, device: str = "cpu", held_out: float = 0.0) -> Images:
    """A data set in its official split.

    :param rows: take the first training rows only
    :param held_out: leave out this share of these at the end, for :func:`validation`
    :raises UserError: when the device is not there
    """
    check_device(device, "option device")
    data = load(FILES.get(name, name))
    unit = 1.0 if data.prescaled else DIGIT_LEVELS
    x, y = data.x_train[:rows], data.y_train[:rows]
    end = len(x) - round(held_out * len(x))
    parts = (x[:end] / unit, y[:end], data.x_test / unit, data.y_test)
    x, y, x_test, y_test = (torch.as_tensor(part).to(device) for part in parts)
    return Images(x.float(), y, x_test.float(), y_test, math.isqrt(data.num_features))


def validation(name: str, rows: int | None, device: str, held_out: float) -> tuple[Tensor, Tensor]:
    """The training images that were held out ``[., pixels]``, and their labels."""
    kept, whole = (images(name, rows, device, share) for share in (held_out, 0.0))
    return whole.x[len(kept.x) :], whole.y[len(kept.x) :]


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
class FittedNetworks:
    """Networks that have been fitted; several guides are the members of a deep ensemble.

    :ivar history: of the last of them
    """

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
        return averaged_probabilities(self.model, single_network(median_weights(guide)), x)


def fit(
    cell: Cell,
    *,
    convolutional: bool = False,
    each_epoch: Callable[[FittedNetworks, int], Mapping[str, float]] | None = None,
) -> FittedNetworks:
    """The networks of a cell.

    Options: ``epochs``, ``widths`` ("400-600"), ``rows`` (training images, 0 for all), ``device`` ("cpu",
    "cuda"), where there is a choice to make ``held_out`` (share of them to choose by), and of posteriors
    with a law for every weight, unless the recipe is the thesis's, ``rate`` and ``reach``
    (:data:`zoo.experiments.lbbnn.options.RATES`).
    """
    options = cell.options
    data = images(cell.dataset, options["rows"] or None, options["device"], options.get("held_out", 0))
    method = "mnf" if cell.method == "mnf-early" else cell.method
    seed = stable_seed("lbbnn", cell.base_seed, cell.dataset, method, cell.setting, convolutional, cell.trial)
    model = make_model(cell.method, cell.setting, data, () if convolutional else widths_of(cell))
    guides: list[FlatGuide] = []

    def look(epoch: int) -> Mapping[str, float]:
        return each_epoch(FittedNetworks(model, guides, data, History(), seed), epoch)

    made_by = {"model": repr(model), "method": method, "setting": cell.setting, "images": checksum(data)}
    for member in range(ENSEMBLE if cell.method == "deep-ensemble" else 1):
        training = training_of(cell, len(data.x), stable_seed("member", seed, member))
        torch.manual_seed(stable_seed("make", training.seed))
        guide = make_guide(cell.method, model, cell.setting)
        guides.append(guide)
        path = kept_networks.place(**made_by, **asdict(training), device=str(data.x.device))
        history = kept_networks.find(path, guide) if each_epoch is None else None
        if history is None:
            call = None if each_epoch is None else look
            checkpoint = kept_networks.unfinished(path) if each_epoch is None else None
            rows = data.x, data.y
            history = train(guide.model, guide, rows, training, each_epoch=call, checkpoint=checkpoint)
            kept_networks.keep(path, guide, history)
        else:
            set_up(guide, (data.x, data.y), training)
    return FittedNetworks(model, guides, data, history, seed)


def training_of(cell: Cell, rows: int, seed: int) -> Training:
    """How long and how fast a cell's method is trained on so many rows."""
    published = prior_of(cell.setting).published
    passes = PASSES.get(cell.dataset, 1) if rows < FEW_ROWS and not published else 1
    epochs = cell.options["epochs"] * passes
    training = Training(epochs, lr=POINT_RATE, seed=seed)
    method, weight = cell.method.removeprefix(COLD), kl_weight(cell.setting)
    if (weight < 1) != cell.method.startswith(COLD):
        raise ValueError(f"{cell.method} at weight {weight} of the divergence: what is cold is called so")
    if method in LAWS and published:
        lowest, highest = THESIS_RATES
        rate = 2 * THESIS_REACH / (epochs * max(1, rows // training.batch_size))
        training = replace(training, lr=min(max(rate, lowest), highest))
    elif method in LAWS:
        rates = COLD_RATES if weight < 1 else cell.options
        training = replace(training, lr=rates["rate"], batch_size=BATCH)
        factors = own_rates(rates["rate"], epochs * max(1, rows // BATCH), rates["reach"])
        training = replace(training, factors=factors, kl_weights=(min(FIRST_WEIGHT, weight), weight))
        if prior_of(cell.setting).common:
            training = replace(training, common=COMMON)
    if cell.method == "mnf-early":
        training = replace(training, stop_after=max(1, round(EARLY * epochs)))
    return training


def prior_of(setting: str) -> Prior:
    """Of a setting, which may name a weight of the divergence behind it: ``fixed-kl0.1``."""
    return PRIORS[setting.partition("-kl")[0]]


def kl_weight(setting: str) -> float:
    """That weight; 1 where none is named."""
    return float(setting.partition("-kl")[2] or 1)


def widths_of(cell: Cell) -> tuple[int, ...]:
    return tuple(map(int, cell.options["widths"].split("-")))


def make_model(method: str, setting: str, data: Images, widths: tuple[int, ...]) -> BNN | LeNet:
    """The network with the prior that method and setting call for.

    :param widths: hidden units of each layer; none for the convolutional network
    """
    prior = prior_of(setting)
    sparse = method.removeprefix(COLD) in SPARSE
    if sparse:
        weights = SpikeSlabWeights(prior.inclusion, prior.scale)
    else:
        weights = GaussianWeights(prior.gaussian_scale if method == "gaussian" else 1.0)
    if not widths:
        return LeNet(data.side**2, CLASSES, weights)
    return BNN(data.side**2, widths=widths, outputs=CLASSES, likelihood="categorical", weights=weights)


def make_guide(method: str, model: BNN | LeNet, setting: str) -> FlatGuide:
    """The guide of a method.

    :param setting: names the prior; "thesis" also has the thesis's start of sds and inclusion logits
    """
    prior = prior_of(setting)
    start, logits = {"init_loc_fn": init_to_he, "init_scale": narrow_start(model)}, LOGITS
    if prior.published:
        start, logits = {"init_loc_fn": uniform_start, "init_scale": THESIS_SCALE}, THESIS_LOGITS
    laws = {**start, "empirical_bayes": prior.learned}
    sparse = {**laws, "init_inclusion": logits}
    makers: dict[str, Callable[[], FlatGuide]] = {
        "lrt": lambda: AutoSpikeSlab(model, **sparse),
        "lrt-thesis": lambda: AutoSpikeSlab(model, **sparse, variance="thesis"),
        "mnf": lambda: AutoMNF(model, **sparse),
        "mnf-early": lambda: AutoMNF(model, **sparse),
        "concrete": lambda: AutoConcrete(model, **sparse),
        "mvn": lambda: AutoSpikeSlabMVN(model, **sparse, init_spread=MVN_SPREAD),
        "gaussian": lambda: AutoMeanField(model, **start, empirical_bayes=bool(prior.learned)),
        "group-normal-jeffreys": lambda: AutoGroupNormalJeffreys(model, **start),
        "concrete-dropout": lambda: AutoConcreteDropout(model, init_loc_fn=init_to_he),
        "mc-dropout": lambda: AutoDropout(model, rate=DROPOUT_RATE, init_loc_fn=init_to_he),
        # Nothing is dropped and nothing regularised: maximum likelihood.
        **{
            name: lambda: AutoDropout(FlatPriors()(model), sites=(), init_loc_fn=init_to_he)
            for name in POINTS
        },
    }
    return makers[method.removeprefix(COLD)]()


def uniform_start(site: dict) -> Tensor:
    """``U(-0.2, 0.2)`` for weights and biases, as in the published programs."""
    return torch.empty_like(initial_value(site)).uniform_(-MEANS, MEANS)


def narrow_start(model: BNN | LeNet) -> float:
    """Start of the sds as a share of the prior's, so that in the layer of most inputs they are SPREAD /
    sqrt(inputs).
    """
    layer, shape = max(enumerate(model.layers), key=lambda pair: math.prod(pair[1][1:]))
    return SPREAD * math.prod(shape[1:]) ** -0.5 / sd_of_layer(model.weights.scale, layer, shape)
