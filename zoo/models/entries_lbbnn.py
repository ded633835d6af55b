"""The models of latent binary Bayesian neural networks, and the plain ones they are compared with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zoo.models.defaults import ACTIVATION, INCLUSION, LOGISTIC_INCLUSION, WIDTHS
from zoo.models.entries import LIKELIHOODS, Card, DataShape, ModelEntry

#: One number for all layers, or one a layer.
Sizes = float | tuple[float, ...]

if TYPE_CHECKING:  # slow to import
    from zoo.models.bnn import BNN
    from zoo.models.latent_binary import SpikeSlabLinear, SpikeSlabLogistic
    from zoo.models.lenet import LeNet

#: Images, dense networks.
DENSE = ("digits", "mnist", "fmnist", "kmnist", "decisions", "entropy", "training", "cost")


def _shown(*names: str) -> tuple[str, ...]:
    return tuple(f"lbbnn/{name}" for name in names)


def bnn(
    shape: DataShape,
    *,
    widths: tuple[int, ...] = WIDTHS,
    activation: str = ACTIVATION,
    noise_scale: float | None = None,
    weight_scale: Sizes = 1.0,
    bias_scale: Sizes | None = None,
) -> BNN:
    """``weight_scale`` and ``bias_scale`` are sds in units of ``1/sqrt(fan_in)``; biases N(0, 1) if None."""
    from zoo.models.bnn import BNN
    from zoo.models.weights import FanIn, GaussianWeights

    return BNN(
        shape.in_features,
        widths=widths,
        activation=activation,
        noise_scale=noise_scale,
        likelihood=LIKELIHOODS[shape.task],
        outputs=shape.num_classes if shape.task == "multiclass" else 1,
        weights=GaussianWeights(None if weight_scale == 1.0 else FanIn(weight_scale)),
        bias_scale=1.0 if bias_scale is None else FanIn(bias_scale),
    )


def spike_slab_bnn(
    shape: DataShape,
    *,
    widths: tuple[int, ...] = WIDTHS,
    activation: str = ACTIVATION,
    noise_scale: float | None = None,
    inclusion: float = INCLUSION,
    weight_scale: Sizes = 1.0,
    bias_scale: Sizes | None = None,
) -> BNN:
    """Scales as in :func:`bnn`; that of weights is their slab's."""
    from zoo.models.weights import SpikeSlabWeights

    network = {"widths": widths, "activation": activation, "noise_scale": noise_scale}
    plain = bnn(shape, **network, weight_scale=weight_scale, bias_scale=bias_scale)
    return replace(plain, weights=SpikeSlabWeights(inclusion, plain.weights.scale))


def spike_slab_linear(shape: DataShape, *, inclusion: float = INCLUSION) -> SpikeSlabLinear:
    from zoo.models.latent_binary import SpikeSlabLinear

    return SpikeSlabLinear(shape.in_features, inclusion)


def spike_slab_logistic(shape: DataShape, *, inclusion: float = LOGISTIC_INCLUSION) -> SpikeSlabLogistic:
    from zoo.models.latent_binary import SpikeSlabLogistic

    return SpikeSlabLogistic(shape.in_features, inclusion)


def lenet(shape: DataShape) -> LeNet:
    from zoo.models.lenet import LeNet

    return LeNet(shape.in_features, shape.num_classes)


def spike_slab_lenet(shape: DataShape, *, inclusion: float = INCLUSION) -> LeNet:
    from zoo.models.lenet import LeNet
    from zoo.models.weights import SpikeSlabWeights

    return LeNet(shape.in_features, shape.num_classes, SpikeSlabWeights(inclusion))


ENTRIES = (
    ModelEntry(
        name="bnn",
        summary="fully connected network, Gaussian weights",
        make=bnn,
        paper="lbbnn",
        tasks=tuple(LIKELIHOODS),
        references=("nuts",),
        weights="gaussian",
        citation="Blundell et al. 2015, Weight Uncertainty in Neural Networks (ICML)",
        substitutes={"spike-slab": "spike-slab-bnn"},
        experiments=_shown(*DENSE),
        card=Card(
            law="w ~ N(0, 1/fan_in), b ~ N(0, 1), independent\n"
            "h = activation(W z + b) in hidden layers, the last one linear\n"
            "y ~ N(f(x), 1/gamma) with gamma ~ Gamma(6, 6), or Bernoulli(sigmoid f), or "
            "Categorical(softmax f)",
            assumes="standardised columns (and target); the same noise everywhere",
            cost="NUTS runs by itself up to 2000 numbers: half a minute on boston with 50 units (752 "
            "numbers)",
            fails="permuted units give the same function: compare functions, never weights",
        ),
    ),
    ModelEntry(
        name="spike-slab-bnn",
        summary="bnn with a spike and slab on every weight (LBBNN)",
        make=spike_slab_bnn,
        paper="lbbnn",
        tasks=tuple(LIKELIHOODS),
        references=(),
        weights="spike-slab",
        experiments=_shown(*DENSE, "variance", "pictures", "export"),
        card=Card(
            law="w = 0 with probability 1 - inclusion, else w ~ N(0, 1/fan_in), independent\n"
            "biases, layers and likelihood as in bnn",
            assumes="as bnn; the inclusion probability of the prior is known",
            cost="three numbers a weight in a mean field: inclusion, mean, sd",
            fails="no ground truth: its indicators are discrete and too many to enumerate; grade its parts "
            "on spike-slab-linear and spike-slab-logistic",
        ),
    ),
    ModelEntry(
        name="spike-slab-linear",
        summary="linear regression, spike and slab on every column",
        make=spike_slab_linear,
        paper="lbbnn",
        tasks=("regression",),
        references=("exact",),
        weights="spike-slab",
        selects=True,
        card=Card(
            law="tau ~ Gamma(1, 1) (shape, rate)\n"
            "w_j = 0 with probability 1 - inclusion, else w_j ~ N(0, 1/tau)\n"
            "y ~ N(x w, 1/tau), no intercept",
            assumes="standardised columns and target",
            cost="exact: all 2^p models in closed form, up to 20 columns (15 columns: 0.2 s)",
            fails="correlated columns share their inclusion: a median model may leave out both of two twins",
        ),
    ),
    ModelEntry(
        name="spike-slab-logistic",
        summary="logistic regression, spike and slab on every column",
        make=spike_slab_logistic,
        paper="lbbnn",
        tasks=("binary",),
        references=("exact", "gibbs"),
        weights="spike-slab",
        selects=True,
        experiments=_shown("simulation", "correlations"),
        card=Card(
            law="w_j = 0 with probability 1 - inclusion, else w_j ~ N(0, 1);  b ~ N(0, 1)\n"
            "y ~ Bernoulli(sigmoid(b + x w))",
            assumes="standardised columns",
            cost="exact: Laplace's approximation of all 2^p models up to 20 columns, checked by importance "
            "sampling; more columns: a Gibbs sampler with Polya-Gamma variables",
            fails="as spike-slab-linear; nearly separable classes leave a posterior that Laplace "
            "approximates badly (the check says so)",
        ),
    ),
    ModelEntry(
        name="lenet",
        summary="convolutional network for images (LeNet-5)",
        make=lenet,
        paper="lbbnn",
        tasks=("multiclass",),
        references=(),
        weights="gaussian",
        inputs="images",
        activation="relu",
        citation="after LeCun et al. 1998, Gradient-Based Learning Applied to Document Recognition; the "
        "layers are those of the latent binary networks' papers",
        substitutes={"spike-slab": "spike-slab-lenet"},
        experiments=_shown("cnn"),
        card=Card(
            law="conv 5x5 of 32, relu, mean pooling 2x2; conv 5x5 of 48, relu, pooling; dense 256, relu, 84, "
            "relu, one output a class\n"
            "w ~ N(0, 1/fan_in), b ~ N(0, 1);  y ~ Categorical(softmax f(x))",
            assumes="square images of one channel, pixels row by row; below 16 x 16 they get a frame of "
            "zeros",
            cost="258,582 weights and biases at 28 x 28 and ten classes",
            fails="no ground truth: no NumPyro twin",
        ),
    ),
    ModelEntry(
        name="spike-slab-lenet",
        summary="lenet with a spike and slab on every weight",
        make=spike_slab_lenet,
        paper="lbbnn",
        tasks=("multiclass",),
        references=(),
        weights="spike-slab",
        inputs="images",
        activation="relu",
        experiments=_shown("cnn"),
        card=Card(
            law="w = 0 with probability 1 - inclusion, else w ~ N(0, 1/fan_in); the rest as in lenet",
            assumes="as lenet; the inclusion probability of the prior is known",
            cost="three numbers a weight in a mean field: inclusion, mean, sd",
            fails="as lenet",
        ),
    ),
)
