"""The models: each is a plain Pyro model, most with a NumPyro twin that NUTS can sample.

    from zoo.models import create, names

    model = create("spike-slab-bnn", in_features=13)
    names(paper="lbbnn")

Or build one from its class: ``BNN(13, widths=(20, 20), weights=SpikeSlabWeights(0.1))``.  A class, and torch
with it, is imported when it is first asked for: the catalogue does not wait for them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.models.bnn import BNN, PBPNetwork
    from zoo.models.catalogue import create, names
    from zoo.models.graphs.deepgmg import DeepGMG
    from zoo.models.graphs.edge_graph import EdgeGraphModel
    from zoo.models.graphs.hollywood_process import HollywoodModel, HollywoodProcess
    from zoo.models.implicit_process import BNNProcess, NeuralSampler
    from zoo.models.latent_binary import SpikeSlabLinear, SpikeSlabLogistic
    from zoo.models.lenet import LeNet
    from zoo.models.normalizing_flow import FlowDensity
    from zoo.models.torch_module import from_module
    from zoo.models.weights import FanIn, GaussianWeights, SpikeSlabWeights

__all__ = [
    "BNN",
    "BNNProcess",
    "FanIn",
    "FlowDensity",
    "DeepGMG",
    "EdgeGraphModel",
    "GaussianWeights",
    "HollywoodModel",
    "HollywoodProcess",
    "LeNet",
    "NeuralSampler",
    "PBPNetwork",
    "SpikeSlabLinear",
    "SpikeSlabLogistic",
    "SpikeSlabWeights",
    "create",
    "from_module",
    "names",
]

#: Name -> its module.
_HOMES = {
    "BNN": "bnn",
    "BNNProcess": "implicit_process",
    "FanIn": "weights",
    "FlowDensity": "normalizing_flow",
    "DeepGMG": "graphs.deepgmg",
    "EdgeGraphModel": "graphs.edge_graph",
    "GaussianWeights": "weights",
    "HollywoodModel": "graphs.hollywood_process",
    "HollywoodProcess": "graphs.hollywood_process",
    "LeNet": "lenet",
    "NeuralSampler": "implicit_process",
    "PBPNetwork": "bnn",
    "SpikeSlabLinear": "latent_binary",
    "SpikeSlabLogistic": "latent_binary",
    "SpikeSlabWeights": "weights",
    "create": "catalogue",
    "from_module": "torch_module",
    "names": "catalogue",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
