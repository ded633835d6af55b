"""Why a guide cannot fit a model, from the model's traits; empty when it can.

Of somebody's own model no weights are known: a guide for Gaussian ones is tried on it.
"""

from __future__ import annotations

from zoo.models.traits import Traits


def refuses_spikes(traits: Traits) -> str:
    """Of a guide for Gaussian weights."""
    if traits.weights == "spike-slab":
        return "it is for Gaussian weights, and these have a spike and slab"
    return "it is for Gaussian weights, and the model has no weights" if traits.weights == "none" else ""


def refuses_unknown_scales(traits: Traits) -> str:
    """Of a guide that takes the place of Gaussian weights of known sd."""
    if traits.weights == "hierarchical":
        return "it is for weights whose prior sd is known, and here it is inferred"
    return refuses_spikes(traits) or (
        "" if traits.weights in ("gaussian", "own") else "it is for Gaussian weights"
    )


def refuses_networks(traits: Traits) -> str:
    """Of variable selection."""
    if traits.selects:
        return ""
    return "it is for linear and logistic regression (spike-slab-linear, spike-slab-logistic)"


def refuses_messages(traits: Traits) -> str:
    """Of message passing."""
    if traits.weights not in ("gaussian", "hierarchical") or traits.inputs != "rows":
        return "messages are passed for Gaussian weights in linear layers, and its weights are others"
    if traits.likelihood != "normal":
        return f"messages end in a Gaussian likelihood, and its likelihood is {traits.likelihood}"
    if traits.activation not in ("relu", "leaky-relu"):
        return f"messages pass relu and leaky-relu only, and its activation is {traits.activation}"
    return ""
