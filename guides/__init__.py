"""Guides for any Pyro model, and the posteriors they are graded against."""

from guides.autoguide import UnsupportedSiteError
from guides.concrete import AutoConcrete
from guides.correlated_inclusion import AutoSpikeSlabMVN
from guides.distributions import SpikeSlab
from guides.dropout import AutoConcreteDropout, AutoDropout
from guides.ensemble import FlatPriors, fit_ensemble
from guides.group_sparsity import AutoGroupNormalJeffreys, Horseshoe
from guides.mean_field import AutoMeanField
from guides.message_passing import ProbabilisticBackpropagation
from guides.multiplicative_flow import AutoMNF
from guides.random_tensors import PathwiseGradientError, RandomTensor
from guides.spike_slab import AutoSpikeSlab

__all__ = [
    "AutoConcrete",
    "AutoConcreteDropout",
    "AutoDropout",
    "AutoGroupNormalJeffreys",
    "AutoMNF",
    "AutoMeanField",
    "AutoSpikeSlab",
    "AutoSpikeSlabMVN",
    "FlatPriors",
    "Horseshoe",
    "PathwiseGradientError",
    "ProbabilisticBackpropagation",
    "RandomTensor",
    "SpikeSlab",
    "UnsupportedSiteError",
    "fit_ensemble",
]
