"""The models of growing graphs that can be graded on rows, for the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.models.entries import Card, DataShape, ModelEntry

if TYPE_CHECKING:  # slow to import
    from zoo.models.graphs.hollywood_process import HollywoodModel


def hollywood(shape: DataShape) -> HollywoodModel:
    from zoo.models.graphs.hollywood_process import HollywoodModel

    return HollywoodModel()


ENTRIES = (
    ModelEntry(
        name="hollywood",
        summary="parameters of a Hollywood process, from its graphs",
        make=hollywood,
        paper="graphs",
        tasks=("binary",),
        references=("nuts",),
        weights="none",
        inputs="picks",
        citation="Crane and Dempsey 2018, Edge Exchangeable Models for Interaction Networks (JASA)",
        card=Card(
            law="alpha ~ Gamma(1, 0.2) (shape, rate), sigma ~ Beta(1, 1)\n"
            "P(a new node) = (alpha + sigma N) / (M + alpha) after M ends of edges on N nodes\n"
            "P(node i) = (D(i) - sigma) / (M + alpha), D(i): earlier appearances of node i",
            assumes="alpha > 0; edges whose order carries no information but the counts",
            cost="two numbers; NUTS takes a quarter of a minute on the set hollywood (990 picks)",
            fails="a graph tells little of alpha: its posterior is wide and skewed",
        ),
    ),
)
