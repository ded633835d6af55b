"""What a guide may ask of a model: each model answers for itself, so that no guide has to know its class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from zoo.models.likelihoods import Likelihood

#: Weights of a known prior sd; with a spike and slab; Gaussian given a precision that is inferred.
Weights = Literal["gaussian", "spike-slab", "hierarchical"]


@dataclass(frozen=True)
class Traits:
    """:ivar weights: the kind of prior of its weights
    :ivar likelihood: of ``y``
    :ivar inputs: ``rows`` of any columns, which meet linear layers, or ``images``, which meet convolutions
    :ivar activation: of the hidden layers, empty where there are none
    :ivar selects: whether its site ``w`` has a weight for every column of the data
    """

    weights: Weights
    likelihood: Likelihood
    inputs: Literal["rows", "images"] = "rows"
    activation: str = ""
    selects: bool = False
