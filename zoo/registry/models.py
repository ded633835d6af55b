"""The models by name."""

from __future__ import annotations

from collections.abc import Callable

from zoo.models.bnn import BNN, PBPNetwork
from zoo.models.latent_binary import SpikeSlabLinear, SpikeSlabLogistic, VariableSelection
from zoo.models.lenet import LeNet
from zoo.models.weights import GaussianWeights, SpikeSlabWeights, WeightPrior
from zoo.registry.entries import ModelEntry, ModelOptions

LIKELIHOODS = {"regression": "normal", "binary": "bernoulli", "multiclass": "categorical"}
TASKS = tuple(LIKELIHOODS)


def _gaussian(options: ModelOptions) -> WeightPrior:
    return GaussianWeights()


def _spike_slab(options: ModelOptions) -> WeightPrior:
    return SpikeSlabWeights(**_inclusion(options))


def _inclusion(options: ModelOptions) -> dict[str, float]:
    """The inclusion that was chosen; nothing leaves the model its own."""
    return {} if options.inclusion is None else {"inclusion": options.inclusion}


def _network(weights: Callable[[ModelOptions], WeightPrior]) -> Callable:
    def build(task: str, in_features: int, num_classes: int, options: ModelOptions) -> BNN:
        return BNN(
            in_features,
            widths=options.widths,
            activation=options.activation,
            noise_scale=options.noise_scale,
            likelihood=LIKELIHOODS[task],
            outputs=num_classes if task == "multiclass" else 1,
            weights=weights(options),
        )

    return build


def _lenet(weights: Callable[[ModelOptions], WeightPrior]) -> Callable:
    def build(task: str, in_features: int, num_classes: int, options: ModelOptions) -> LeNet:
        return LeNet(in_features, num_classes, weights(options))

    return build


def _pbp_network(bias: bool) -> Callable:
    def build(task: str, in_features: int, num_classes: int, options: ModelOptions) -> PBPNetwork:
        return PBPNetwork(in_features, widths=options.widths, noise_scale=options.noise_scale, bias=bias)

    return build


def _selection(maker: Callable[..., VariableSelection]) -> Callable:
    def build(task: str, in_features: int, num_classes: int, options: ModelOptions) -> VariableSelection:
        return maker(in_features, **_inclusion(options))

    return build


MODELS = {
    entry.name: entry
    for entry in (
        ModelEntry(
            "bnn",
            "fully connected network, weights N(0, 1/fan_in), biases N(0, 1), noise precision Gamma(6, 6)",
            _network(_gaussian),
            TASKS,
            ("nuts",),
            frozenset({"normal"}),
            ("widths", "activation", "noise"),
            {"spike_slab": "spike-slab-bnn"},
        ),
        ModelEntry(
            "pbp-bnn",
            "probabilistic backpropagation: weight precision Gamma(6, 6), layers / sqrt(fan_in + 1)",
            _pbp_network(bias=True),
            ("regression",),
            ("nuts",),
            frozenset({"normal"}),
            ("widths", "noise"),
        ),
        ModelEntry(
            "pbp-bnn-no-bias",
            "pbp-bnn without bias weights, layers / sqrt(fan_in): spike-and-slab messages differ here",
            _pbp_network(bias=False),
            ("regression",),
            ("nuts",),
            frozenset({"normal"}),
            ("widths", "noise"),
        ),
        ModelEntry(
            "spike-slab-bnn",
            "bnn with a spike and slab on every weight",
            _network(_spike_slab),
            TASKS,
            (),
            frozenset({"normal", "spike_slab"}),
            ("widths", "activation", "noise", "inclusion"),
        ),
        ModelEntry(
            "spike-slab-linear",
            "linear regression with a spike and slab on every column, noise precision Gamma(1, 1)",
            _selection(SpikeSlabLinear),
            ("regression",),
            ("exact",),
            frozenset({"spike_slab"}),
            ("inclusion",),
            selects=True,
        ),
        ModelEntry(
            "spike-slab-logistic",
            "logistic regression with a spike and slab N(0, 1) on every column, intercept N(0, 1)",
            _selection(SpikeSlabLogistic),
            ("binary",),
            ("exact", "gibbs"),
            frozenset({"normal", "spike_slab"}),
            ("inclusion",),
            selects=True,
        ),
        ModelEntry(
            "lenet",
            "convolutional network for images in the manner of LeNet-5, weights N(0, 1/fan_in)",
            _lenet(_gaussian),
            ("multiclass",),
            (),
            frozenset({"normal"}),
            (),
            {"spike_slab": "spike-slab-lenet"},
            sees_images=True,
        ),
        ModelEntry(
            "spike-slab-lenet",
            "lenet with a spike and slab on every weight",
            _lenet(_spike_slab),
            ("multiclass",),
            (),
            frozenset({"normal", "spike_slab"}),
            ("inclusion",),
            sees_images=True,
        ),
    )
}
