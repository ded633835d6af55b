"""The models: each is a plain Pyro model, most with a NumPyro twin that NUTS can sample.

    from zoo.models import create, names

    model = create("spike-slab-bnn", in_features=13)
    names(paper="lbbnn")

Or build one from its class: ``BNN(13, widths=(20, 20), weights=SpikeSlabWeights(0.1))``.
"""

from zoo.models.bnn import BNN, PBPNetwork
from zoo.models.catalogue import create, names
from zoo.models.latent_binary import SpikeSlabLinear, SpikeSlabLogistic
from zoo.models.lenet import LeNet
from zoo.models.weights import GaussianWeights, SpikeSlabWeights

__all__ = [
    "BNN",
    "GaussianWeights",
    "LeNet",
    "PBPNetwork",
    "SpikeSlabLinear",
    "SpikeSlabLogistic",
    "SpikeSlabWeights",
    "create",
    "names",
]
