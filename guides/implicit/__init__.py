"""Guides without a density: what can be drawn is compared by a classifier."""

from guides.implicit.adversarial import AADM, AdversarialVariationalBayes
from guides.implicit.discriminator import DiscriminatorKL, SaturationWarning
from guides.implicit.functional_bnn import FunctionalBNN
from guides.implicit.gaussian_process import GaussianProcess
from guides.implicit.processes import FunctionSite, ImplicitProcess
from guides.implicit.sparse_implicit_process import SparseImplicitProcess
from guides.implicit.variational_implicit_process import VariationalImplicitProcess

__all__ = [
    "AADM",
    "AdversarialVariationalBayes",
    "DiscriminatorKL",
    "FunctionSite",
    "FunctionalBNN",
    "GaussianProcess",
    "ImplicitProcess",
    "SaturationWarning",
    "SparseImplicitProcess",
    "VariationalImplicitProcess",
]
