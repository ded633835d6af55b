"""Guides for any Pyro model, and the posteriors they are graded against."""

from guides.autoguide import UnsupportedSiteError
from guides.distributions import SpikeSlab
from guides.mean_field import AutoMeanField
from guides.random_tensors import PathwiseGradientError, RandomTensor
from guides.spike_slab import AutoSpikeSlab

__all__ = [
    "AutoMeanField",
    "AutoSpikeSlab",
    "PathwiseGradientError",
    "RandomTensor",
    "SpikeSlab",
    "UnsupportedSiteError",
]
