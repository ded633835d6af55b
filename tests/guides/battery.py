"""The variational guides of this package, each with the prior that its weights have in the battery.

A new guide joins by one line in ``CASES``; what is checked is in ``guides.testing``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from guides import AutoConcrete, AutoMeanField, AutoMNF, AutoSpikeSlab, AutoSpikeSlabMVN
from guides.testing import Case, spike_slab


def concrete(model: Callable, **kwargs) -> AutoConcrete:
    """At one temperature, so that every run has the same law."""
    return AutoConcrete(model, temperature=1.0, **kwargs)


CASES = [
    Case("mean-field", AutoMeanField),
    Case("mean-field-draws", lambda model, **kwargs: AutoMeanField(model, lrt=False, **kwargs)),
    Case("mean-field-on-spike-slab", AutoMeanField, spike_slab),
    Case("spike-slab", AutoSpikeSlab, spike_slab),
    Case("spike-slab-on-normal", AutoSpikeSlab),
    Case("mnf", AutoMNF, spike_slab, exact_loss_known=False),
    Case("mnf-on-normal", AutoMNF, exact_loss_known=False),
    Case("concrete", concrete, spike_slab),
    Case("spike-slab-mvn", AutoSpikeSlabMVN, spike_slab, exact_loss_known=False, particles_are_runs=False),
]
each_case = pytest.mark.parametrize("case", CASES, ids=str)
each_exact_case = pytest.mark.parametrize("case", [c for c in CASES if c.exact_loss_known], ids=str)
