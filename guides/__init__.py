"""Guides for any Pyro model, and the posteriors they are graded against."""

from guides.bootstrap.posterior_bootstrap import PosteriorBootstrap
from guides.bootstrap.shared_parameters import SharedParameterBootstrap
from guides.core.distributions import SpikeSlab
from guides.core.flat_guide import UnsupportedSiteError
from guides.core.random_tensors import PathwiseGradientError
from guides.core.settling import UnsettledWarning
from guides.core.starts import init_to_he
from guides.core.svi import DivergenceError
from guides.message_passing import ProbabilisticBackpropagation
from guides.variational.concrete import AutoConcrete
from guides.variational.correlated_inclusion import AutoSpikeSlabMVN
from guides.variational.dropout import AutoConcreteDropout, AutoDropout
from guides.variational.ensemble import FlatPriors, fit_ensemble
from guides.variational.group_sparsity import AutoGroupNormalJeffreys, Horseshoe
from guides.variational.joint_spike_slab import JointSpikeSlab
from guides.variational.mean_field import AutoMeanField
from guides.variational.multiplicative_flow import AutoMNF
from guides.variational.spike_slab import AutoSpikeSlab

__all__ = [
    "AutoConcrete",
    "AutoConcreteDropout",
    "AutoDropout",
    "AutoGroupNormalJeffreys",
    "AutoMNF",
    "AutoMeanField",
    "AutoSpikeSlab",
    "AutoSpikeSlabMVN",
    "DivergenceError",
    "FlatPriors",
    "Horseshoe",
    "JointSpikeSlab",
    "PathwiseGradientError",
    "PosteriorBootstrap",
    "ProbabilisticBackpropagation",
    "SharedParameterBootstrap",
    "SpikeSlab",
    "UnsettledWarning",
    "UnsupportedSiteError",
    "fit_ensemble",
    "init_to_he",
]
