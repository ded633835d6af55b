"""The models of latent binary Bayesian neural networks, and the plain ones they are compared with."""

from __future__ import annotations

from dataclasses import replace

from zoo.models.bnn import BNN
from zoo.models.entries import Card, DataShape, ModelEntry
from zoo.models.latent_binary import SpikeSlabLinear, SpikeSlabLogistic
from zoo.models.lenet import LeNet
from zoo.models.likelihoods import Likelihood
from zoo.models.weights import SpikeSlabWeights

LIKELIHOODS: dict[str, Likelihood] = {
    "regression": "normal",
    "binary": "bernoulli",
    "multiclass": "categorical",
}

#: Images, dense networks.
DENSE = ("digits", "mnist", "fmnist", "kmnist", "decisions", "entropy", "training", "cost")


def _shown(*names: str) -> tuple[str, ...]:
    return tuple(f"lbbnn/{name}" for name in names)


def bnn(
    shape: DataShape,
    *,
    widths: tuple[int, ...] = BNN.widths,
    activation: str = BNN.activation,
    noise_scale: float | None = BNN.noise_scale,
) -> BNN:
    return BNN(
        shape.in_features,
        widths=widths,
        activation=activation,
        noise_scale=noise_scale,
        likelihood=LIKELIHOODS[shape.task],
        outputs=shape.num_classes if shape.task == "multiclass" else 1,
    )


def spike_slab_bnn(
    shape: DataShape,
    *,
    widths: tuple[int, ...] = BNN.widths,
    activation: str = BNN.activation,
    noise_scale: float | None = BNN.noise_scale,
    inclusion: float = SpikeSlabWeights.inclusion,
) -> BNN:
    plain = bnn(shape, widths=widths, activation=activation, noise_scale=noise_scale)
    return replace(plain, weights=SpikeSlabWeights(inclusion))


def spike_slab_linear(shape: DataShape, *, inclusion: float = SpikeSlabLinear.inclusion) -> SpikeSlabLinear:
    return SpikeSlabLinear(shape.in_features, inclusion)


def spike_slab_logistic(
    shape: DataShape, *, inclusion: float = SpikeSlabLogistic.inclusion
) -> SpikeSlabLogistic:
    return SpikeSlabLogistic(shape.in_features, inclusion)


def lenet(shape: DataShape) -> LeNet:
    return LeNet(shape.in_features, shape.num_classes)


def spike_slab_lenet(shape: DataShape, *, inclusion: float = SpikeSlabWeights.inclusion) -> LeNet:
    return LeNet(shape.in_features, shape.num_classes, SpikeSlabWeights(inclusion))


ENTRIES = (
    ModelEntry(
        name="bnn",
        summary="fully connected network, Gaussian weights",
        make=bnn,
        paper="lbbnn",
        tasks=tuple(LIKELIHOODS),
        references=("nuts",),
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
        experiments=_shown(*DENSE, "variance", "pictures", "export"),
        card=Card(
            law="w = 0 with probability 1 - inclusion, else w ~ N(0, 1/fan_in), independent\n"
            "biases, layers and likelihood as in bnn",
            assumes="as bnn; the inclusion probability of the prior is known",
            cost="three numbers a weight in a mean field: inclusion, mean, sd",
            fails="no ground truth: its indicators are discrete and too many to enumerate; grade its "
            "parts on "
            "spike-slab-linear and spike-slab-logistic",
        ),
    ),
    ModelEntry(
        name="spike-slab-linear",
        summary="linear regression, spike and slab on every column",
        make=spike_slab_linear,
        paper="lbbnn",
        tasks=("regression",),
        references=("exact",),
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
        experiments=_shown("simulation", "correlations"),
        card=Card(
            law="w_j = 0 with probability 1 - inclusion, else w_j ~ N(0, 1);  b ~ N(0, 1)\n"
            "y ~ Bernoulli(sigmoid(b + x w))",
            assumes="standardised columns",
            cost="exact: Laplace's approximation of all 2^p models up to 20 columns, checked by importance "
            "sampling; more columns: a Gibbs sampler with Polya-Gamma variables",
            fails="as spike-slab-linear; nearly separable classes leave a posterior that Laplace "
            "approximates "
            "badly (the check says so)",
        ),
    ),
    ModelEntry(
        name="lenet",
        summary="convolutional network for images (LeNet-5)",
        make=lenet,
        paper="lbbnn",
        tasks=("multiclass",),
        references=(),
        citation="after LeCun et al. 1998, Gradient-Based Learning Applied to Document Recognition; the "
        "layers "
        "are those of the latent binary networks' papers",
        substitutes={"spike-slab": "spike-slab-lenet"},
        experiments=_shown("cnn"),
        card=Card(
            law="conv 5x5 of 32, relu, mean pooling 2x2; conv 5x5 of 48, relu, pooling; dense 256, relu, 84, "
            "relu, one output a class\n"
            "w ~ N(0, 1/fan_in), b ~ N(0, 1);  y ~ Categorical(softmax f(x))",
            assumes="square images of one channel, pixels row by row; below 16 x 16 they get a frame of "
            "zeros",
            cost="258,582 weights and biases at 28 x 28 and ten classes",
            fails="no ground truth: no NumPyro twin; guides give positions of one image independent noise",
        ),
    ),
    ModelEntry(
        name="spike-slab-lenet",
        summary="lenet with a spike and slab on every weight",
        make=spike_slab_lenet,
        paper="lbbnn",
        tasks=("multiclass",),
        references=(),
        experiments=_shown("cnn"),
        card=Card(
            law="w = 0 with probability 1 - inclusion, else w ~ N(0, 1/fan_in); the rest as in lenet",
            assumes="as lenet; the inclusion probability of the prior is known",
            cost="three numbers a weight in a mean field: inclusion, mean, sd",
            fails="as lenet",
        ),
    ),
)
