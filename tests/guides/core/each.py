"""What the tests of guides inside Pyro run over, where it is not the battery: the two simplest guides."""

import pytest
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO

from guides import AutoMeanField, AutoSpikeSlab

each_guide = pytest.mark.parametrize("make", [AutoMeanField, AutoSpikeSlab])
each_guide_and_elbo = pytest.mark.parametrize(
    ("make", "elbo"),
    [
        (AutoMeanField, Trace_ELBO),
        pytest.param(AutoMeanField, TraceMeanField_ELBO, marks=pytest.mark.slow),
        pytest.param(AutoSpikeSlab, Trace_ELBO, marks=pytest.mark.slow),
        (AutoSpikeSlab, TraceMeanField_ELBO),
    ],
)
