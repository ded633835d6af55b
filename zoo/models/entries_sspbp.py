"""The models of probabilistic backpropagation, for the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.models.defaults import WIDTHS
from zoo.models.entries import Card, DataShape, ModelEntry

if TYPE_CHECKING:  # slow to import
    from zoo.models.bnn import PBPNetwork


def _shown(*tables: str) -> tuple[str, ...]:
    return tuple(f"sspbp/{table}" for table in tables)


def pbp_bnn(
    shape: DataShape,
    *,
    widths: tuple[int, ...] = WIDTHS,
    noise_scale: float | None = None,
) -> PBPNetwork:
    from zoo.models.bnn import PBPNetwork

    return PBPNetwork(shape.in_features, widths=widths, noise_scale=noise_scale)


def pbp_bnn_no_bias(
    shape: DataShape,
    *,
    widths: tuple[int, ...] = WIDTHS,
    noise_scale: float | None = None,
) -> PBPNetwork:
    from zoo.models.bnn import PBPNetwork

    return PBPNetwork(shape.in_features, widths=widths, noise_scale=noise_scale, bias=False)


ENTRIES = (
    ModelEntry(
        name="pbp-bnn",
        summary="network of PBP: one inferred precision for all weights",
        make=pbp_bnn,
        paper="sspbp",
        tasks=("regression",),
        references=("nuts",),
        weights="hierarchical",
        activation="relu",
        citation="Hernandez-Lobato and Adams 2015, Probabilistic Backpropagation for Scalable Learning of "
        "Bayesian Neural Networks (ICML)",
        experiments=_shown("table-3.3", "table-a1", "table-a2", "table-a3", "reference-program"),
        card=Card(
            law="lambda ~ Gamma(6, 6), gamma ~ Gamma(6, 6) (shape, rate)\n"
            "w ~ N(0, 1/lambda) for every weight of every layer, biases among them\n"
            "h = relu(W [z; 1] / sqrt(fan_in + 1)) in hidden layers, the last one linear\n"
            "y ~ N(f(x), 1/gamma)",
            assumes="standardised columns and target; the same noise everywhere",
            cost="two precisions beside the weights; NUTS takes half a minute on yacht (308 rows, 50 units)",
            fails="permuted and rescaled units give the same function: compare functions, never weights",
        ),
    ),
    ModelEntry(
        name="pbp-bnn-no-bias",
        summary="pbp-bnn without biases, where sspbp differs",
        make=pbp_bnn_no_bias,
        paper="sspbp",
        tasks=("regression",),
        references=("nuts",),
        weights="hierarchical",
        activation="relu",
        experiments=_shown("table-3.2", "table-3.4", "table-a4", "table-a5", "table-a6"),
        card=Card(
            law="as pbp-bnn, with h = relu(W z / sqrt(fan_in)) and no extra unit:\n"
            "a unit can be exactly zero, and f(0) = 0",
            assumes="a target whose mean is 0 at the mean of all columns, as standardising makes it on "
            "average",
            cost="as pbp-bnn",
            fails="without a bias the function goes through 0 at the mean of the columns, whatever the "
            "data say",
        ),
    ),
)
