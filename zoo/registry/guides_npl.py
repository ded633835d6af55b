"""Nonparametric posteriors: the posterior bootstrap."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.models.entries import Card
from zoo.registry.entries import GuideEntry
from zoo.registry.refusals import refuses_spikes

if TYPE_CHECKING:  # slow to import
    from zoo.fitting.methods import Method


def _bootstrap() -> Method:
    from zoo.fitting.bootstrap import Bootstrap

    return Bootstrap()


ENTRIES = (
    GuideEntry(
        "bootstrap",
        "posterior bootstrap: 200 reweighted modes",
        _bootstrap,
        paper="npl",
        model="bnn",
        code="guides.PosteriorBootstrap(model, loss='map').fit(x, y)",
        refuses=refuses_spikes,
        called=("bootstrap-mle", "bootstrap-map", "bootstrap-prior"),
        note="another posterior: of the law of the data, not of the model",
        card=Card(
            law="W ~ Dirichlet(1 .. 1);  w_b = argmax sum_i W_i log p(y_i | x_i, w) + log p(w) / n",
            assumes="rows that are independent; a density of points (no spike and slab)",
            cost="200 optimisations side by side",
            fails="a network has many modes: the spread is that of starts and rows together; it is no "
            "approximation of Bayes' posterior",
        ),
    ),
)
