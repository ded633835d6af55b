"""A convolutional network in the manner of LeNet-5 (LeCun et al. 1998), Gaussian or spike-and-slab.

The layers are those of the latent binary networks' papers (Hubin et al.): two convolutions with 32 and 48
filters of 5 x 5, mean pooling, and dense layers of 256, 84 and one unit a class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pyro
import torch.nn.functional as F
from pyro import distributions as dist
from torch import Tensor

from zoo.models.likelihoods import observe
from zoo.models.traits import Traits
from zoo.models.weights import GaussianWeights, Scale, WeightPrior, check_scale, sd_of_layer

FILTERS, KERNEL, DENSE = (32, 48), 5, (256, 84)
#: Images below this side would be used up by the filters: there they are framed with zeros, which keeps
#: their size.
SMALLEST_BARE = 16


@dataclass(frozen=True)
class LeNet:
    """conv 5x5, ReLU, mean pooling 2x2, twice; flattened; dense 256, ReLU, 84, ReLU, one output a class.

    :param in_features: pixels of a square image, given row by row: 784 (28 x 28) or 64 (8 x 8, framed)
    :param outputs: number of classes
    :param weights: the law of weights and filters
    :param bias_scale: sd of the biases
    :raises ValueError: for a number of pixels that is no square, or too small for the filters

    Sites: ``w1: [32, 1, 5, 5]``, ``b1: [32]``, ``w2: [48, 32, 5, 5]``, ``b2``, ``w3: [256, .]``, ``b3``,
    ``w4``, ``b4``, ``w5``, ``b5``; observed ``y: [N]``, labels.
    """

    in_features: int
    outputs: int = 10
    weights: WeightPrior = field(default_factory=GaussianWeights)
    bias_scale: Scale = 1.0

    def __post_init__(self) -> None:
        if self.side**2 != self.in_features:
            raise ValueError(f"{self.in_features} pixels are no square image")
        if self._pooled < 1:
            raise ValueError(f"an image of {self.side} x {self.side} pixels is too small for two poolings")
        for scale in (self.weights.scale, self.bias_scale):
            check_scale(scale, len(self.layers))

    @property
    def traits(self) -> Traits:
        return Traits(self.weights.kind, "categorical", inputs="images", activation="relu")

    @property
    def side(self) -> int:
        """Pixels of an edge."""
        return math.isqrt(self.in_features)

    @property
    def padding(self) -> int:
        """Frame of zeros around an image, in pixels."""
        return 0 if self.side >= SMALLEST_BARE else KERNEL // 2

    @property
    def _pooled(self) -> int:
        """Edge of what the second pooling gives."""
        side = self.side
        for _ in FILTERS:
            side = (side + 2 * self.padding - KERNEL + 1) // 2
        return side

    @property
    def layers(self) -> list[tuple[int, ...]]:
        """Shapes of the weights: filters ``(out, in, 5, 5)``, then matrices ``(out, in)``."""
        channels = (1, *FILTERS)
        filters = [(out, into, KERNEL, KERNEL) for into, out in zip(channels, FILTERS, strict=False)]
        sizes = (FILTERS[-1] * self._pooled**2, *DENSE, self.outputs)
        return filters + [(out, into) for into, out in zip(sizes, sizes[1:], strict=False)]

    def __call__(self, x: Tensor, y: Tensor | None = None, size: int | None = None) -> Tensor:
        """The Pyro model on images ``x: [N, pixels]``; ``size``: rows of the whole data set if ``x`` is a
        minibatch.  Returns logits ``[N, outputs]``.
        """
        hidden = x.reshape(len(x), 1, self.side, self.side)
        for i, shape in enumerate(self.layers, start=1):
            weight = pyro.sample(f"w{i}", self.weights.pyro(shape, x, i - 1))
            biases = dist.Normal(x.new_zeros(()), sd_of_layer(self.bias_scale, i - 1, shape))
            bias = pyro.sample(f"b{i}", biases.expand(shape[:1]).to_event(1))
            if len(shape) > 2:
                hidden = mean_pooling(F.relu(F.conv2d(hidden, weight, bias, padding=self.padding)))
                continue
            hidden = F.linear(hidden.flatten(-3) if i == len(FILTERS) + 1 else hidden, weight, bias)
            if i < len(self.layers):
                hidden = F.relu(hidden)
        observe("categorical", hidden, y, len(x), size, None)
        return hidden


def mean_pooling(maps: Tensor) -> Tensor:
    """Means of 2 x 2 positions, ``[..., channels, side, side]``.

    A filter of quarters for each channel: numbers are those of ``F.avg_pool2d``, which on a CPU took twice as
    long, a fifth of a training step.
    """
    channels = maps.shape[-3]
    quarters = maps.new_full((channels, 1, 2, 2), 0.25)
    pooled = F.conv2d(maps.flatten(0, -4), quarters, stride=2, groups=channels)
    return pooled.unflatten(0, maps.shape[:-3])
