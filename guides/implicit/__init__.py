"""Guides without a density: what can be drawn is compared by a classifier."""

from guides.implicit.discriminator import DiscriminatorKL, SaturationWarning
from guides.implicit.processes import FunctionSite, ImplicitProcess
from guides.implicit.sparse_implicit_process import SparseImplicitProcess

__all__ = [
    "DiscriminatorKL",
    "FunctionSite",
    "ImplicitProcess",
    "SaturationWarning",
    "SparseImplicitProcess",
]
