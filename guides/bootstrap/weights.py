"""Random weights on data: draws of a Dirichlet process, up to its truncation.

    F~ = sum_i W_i delta(x_i),   W ~ Dirichlet(1, ..., 1, a/m, ..., a/m)

over ``n`` rows of data and ``m`` pseudo-observations from the base measure, which together weigh what the
concentration ``a`` gives them: their share is Beta(a, n).  With ``a = 0`` these are the weights of the
Bayesian bootstrap (Rubin 1981; Fong, Lyddon and Holmes 2019, algorithm 1).
"""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor

from guides.core.checks import check_counts

#: Pseudo-observations by default: the truncation of the process that Fong et al. (2019) use.
NUM_PSEUDO = 500


def check_process(concentration: float, base_measure: object, num_pseudo: int | None) -> int:
    """Pseudo-observations of a draw, none with a concentration of zero; :raises ValueError: out of range"""
    if not (isinstance(concentration, Real) and 0 <= concentration < math.inf):
        raise ValueError(f"concentration must be a number of rows, zero or more; got {concentration!r}")
    if num_pseudo is not None:
        check_counts(num_pseudo=num_pseudo)
    if concentration == 0 and (base_measure is not None or num_pseudo is not None):
        raise ValueError("a base measure and pseudo-observations need a concentration above zero")
    return (num_pseudo or NUM_PSEUDO) if concentration else 0


def dirichlet_weights(
    num_draws: int, rows: int, num_pseudo: int, concentration: float, generator: torch.Generator
) -> Tensor:
    """Weights ``[num_draws, rows + num_pseudo]``, float64; every draw sums to one.

    Of Gamma variables, in float64: with ``a/m = 0.2`` many of a pseudo-observation's underflow in float32.
    """
    shape = torch.ones(rows + num_pseudo, dtype=torch.float64)
    shape[rows:] = concentration / max(num_pseudo, 1)
    # torch's Gamma sampler itself takes a generator; its distribution class does not
    gammas = torch._standard_gamma(shape.expand(num_draws, -1), generator=generator)
    return gammas / gammas.sum(-1, keepdim=True)
