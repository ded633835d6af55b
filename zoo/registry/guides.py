"""The guides by name: how each is fitted, and which models it refuses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor

from guides import (
    AutoConcrete,
    AutoConcreteDropout,
    AutoDropout,
    AutoGroupNormalJeffreys,
    AutoMeanField,
    AutoMNF,
    AutoSpikeSlab,
    AutoSpikeSlabMVN,
    Horseshoe,
)
from zoo.fitting.message_passing import MessagePassing, refuses_messages
from zoo.fitting.methods import Variational
from zoo.fitting.point_estimates import PointEstimates
from zoo.fitting.variable_selection import VariationalSelection
from zoo.models.bnn import PBPNetwork
from zoo.models.latent_binary import VariableSelection
from zoo.models.weights import GaussianWeights, SpikeSlabWeights
from zoo.registry.entries import GuideEntry

EPOCHS, MEMBERS = 40, 5

# ------------------------------------------------------------------------------------------ what is refused


def refuses_spikes(model: Callable) -> str:
    """Why a guide for Gaussian weights cannot fit a model."""
    if isinstance(model, VariableSelection) or isinstance(getattr(model, "weights", None), SpikeSlabWeights):
        return "it is for Gaussian weights, and these have a spike and slab"
    return ""


def refuses_unknown_scales(model: Callable) -> str:
    """Why a guide that takes the place of Gaussian weights of known sd cannot fit a model."""
    if isinstance(model, PBPNetwork):
        return "it is for weights whose prior sd is known, and here it is inferred"
    return refuses_spikes(model) or ("" if _has_gaussian_weights(model) else "it is for Gaussian weights")


def _has_gaussian_weights(model: Callable) -> bool:
    return isinstance(getattr(model, "weights", None), GaussianWeights)


def refuses_networks(model: Callable) -> str:
    """Why variable selection cannot be done with a model."""
    if isinstance(model, VariableSelection):
        return ""
    return "it is for linear and logistic regression (spike-slab-linear, spike-slab-logistic)"


# --------------------------------------------------------------------------------------------- the horseshoe


def with_horseshoe(model: Callable) -> Callable:
    """The model with horseshoe weights."""
    return Horseshoe()(model)


def product_weights(draws: dict[str, Tensor]) -> dict[str, Tensor]:
    """Draws of the factors ``w_raw, w_local, w_global`` of horseshoe weights -> draws of ``w``."""
    result = {
        name: value for name, value in draws.items() if not name.endswith(("_raw", "_local", "_global"))
    }
    for name, raw in draws.items():
        if name.endswith("_raw"):
            weight = name.removesuffix("_raw")
            shrink = draws[f"{weight}_global"]
            result[weight] = raw * draws[f"{weight}_local"] * shrink.reshape(-1, *(1,) * (raw.dim() - 1))
    return result


# ------------------------------------------------------------------------------------------------- the list


def _message_passing(name: str, summary: str, messages: str) -> tuple[GuideEntry, GuideEntry]:
    """The published schedule, and the one pass that counts every row once."""
    short = f"{name}-1-epoch"
    return (
        GuideEntry(
            name,
            f"{summary}; {EPOCHS} passes, and beside it in a comparison {short}",
            MessagePassing(messages, EPOCHS),
            refuses=refuses_messages,
            note=f"{EPOCHS} passes over the data count it {EPOCHS} times: no approximation of the posterior",
            beside=(short,),
        ),
        GuideEntry(
            short,
            f"{name} in one pass",
            MessagePassing(messages, 1),
            refuses=refuses_messages,
            note="one pass",
        ),
    )


def _points(build: Callable) -> Variational:
    """Dropout: points have no density, and no divergence from a prior."""
    return Variational(build, bounds=False, has_density=False)


GUIDES = {
    entry.name: entry
    for entry in (
        GuideEntry(
            "mean-field",
            "independent Gaussians, Bayes by backprop with local reparameterization",
            Variational(AutoMeanField),
        ),
        GuideEntry(
            "spike-slab",
            "independent spikes and slabs (LBBNN-LRT)",
            Variational(AutoSpikeSlab),
            needs="spike_slab",
        ),
        GuideEntry(
            "mnf",
            "spikes and slabs that share multipliers from a normalizing flow, RNVP (LBBNN-MNF)",
            Variational(AutoMNF),
            needs="spike_slab",
        ),
        GuideEntry(
            "mnf-iaf",
            "mnf with an inverse autoregressive flow (LBBNN-FLOW)",
            Variational(partial(AutoMNF, flow="iaf")),
            needs="spike_slab",
        ),
        GuideEntry(
            "gaussian-mnf",
            "multiplicative normalizing flows on Gaussian weights (Louizos and Welling)",
            Variational(AutoMNF),
            refuses=refuses_spikes,
        ),
        GuideEntry(
            "concrete",
            "independent spikes and slabs, trained by relaxed indicators (LBBNN-GP-MF)",
            Variational(AutoConcrete),
            needs="spike_slab",
        ),
        GuideEntry(
            "mvn",
            "spikes and slabs with correlated inclusion: Gaussian logits of rank 4 a unit",
            Variational(AutoSpikeSlabMVN),
            needs="spike_slab",
        ),
        GuideEntry(
            "varbvs",
            "coordinate ascent for variable selection (Carbonetto and Stephens)",
            VariationalSelection(),
            needs="spike_slab",
            refuses=refuses_networks,
        ),
        GuideEntry(
            "horseshoe",
            "horseshoe weights, each factor by mean field",
            Variational(
                AutoMeanField,
                bounds=False,
                has_density=False,
                replace=with_horseshoe,
                translate=product_weights,
            ),
            refuses=refuses_unknown_scales,
            note="a horseshoe is the prior of its weights: no bound on the evidence of this model",
        ),
        GuideEntry(
            "group-normal-jeffreys",
            "one log-uniform scale for each input (Louizos, Ullrich and Welling; BNN-HP-MF)",
            Variational(AutoGroupNormalJeffreys, bounds=False, has_density=False),
            refuses=refuses_unknown_scales,
            note="the prior of its scales is improper: no bound on an evidence",
        ),
        GuideEntry(
            "mc-dropout",
            "inputs of every layer dropped with probability 0.1, the rest a point",
            _points(AutoDropout),
            refuses=refuses_unknown_scales,
            note="points and masks have no density: no bound on the evidence",
        ),
        GuideEntry(
            "concrete-dropout",
            "dropout with learnt rates (BNN-GP-CMF)",
            _points(AutoConcreteDropout),
            refuses=refuses_unknown_scales,
            note="points and masks have no density: no bound on the evidence",
        ),
        GuideEntry(
            "map",
            "one network at a mode of the posterior density",
            PointEstimates(1),
            refuses=refuses_unknown_scales,
            note="a point",
        ),
        GuideEntry(
            "deep-ensemble",
            f"{MEMBERS} networks at modes of the posterior density, each from a start of its own",
            PointEstimates(MEMBERS),
            refuses=refuses_unknown_scales,
            note=f"{MEMBERS} points",
        ),
        *_message_passing("pbp", "probabilistic backpropagation (Gaussian messages)", "gaussian"),
        *_message_passing(
            "sspbp",
            "the same with spike-and-slab messages: other than pbp only without bias (pbp-bnn-no-bias)",
            "spike-slab",
        ),
    )
}
