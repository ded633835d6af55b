"""What a guide may ask of a model, so that no guide has to know its class.  Imports nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Likelihood = Literal["normal", "bernoulli", "categorical"]
Activation = Literal["relu", "leaky-relu", "tanh"]
#: Weights of a known prior sd; with a spike and slab; Gaussian given a precision that is inferred; a model
#: without weights, whose few parameters have meanings of their own; a model of somebody's own, of which
#: nothing is known before it is tried.
Weights = Literal["gaussian", "spike-slab", "hierarchical", "none", "own"]
Inputs = Literal["rows", "images", "picks", "own"]


@dataclass(frozen=True)
class Traits:
    """:ivar weights: the kind of prior of its weights
    :ivar likelihood: of ``y``
    :ivar inputs: ``rows`` of any columns, which meet linear layers, ``images``, which meet convolutions, or
        ``picks`` of ends of edges; ``own``: what somebody's own model does with rows
    :ivar activation: of the hidden layers, empty where there are none
    :ivar selects: whether its site ``w`` has a weight for every column of the data
    """

    weights: Weights
    likelihood: Likelihood
    inputs: Inputs = "rows"
    activation: str = ""
    selects: bool = False
