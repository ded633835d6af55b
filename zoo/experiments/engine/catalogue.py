"""All experiments by name.  A module is imported when it is asked for, and must not import torch."""

from __future__ import annotations

from importlib import import_module

from data_loaders.registered import Registered
from zoo.errors import unknown
from zoo.experiments.engine.declaration import Experiment

#: Modules that declare ``EXPERIMENTS``, one a paper, in the order of the list.
MODULES = (
    "zoo.experiments.example",
    "zoo.experiments.sspbp.declared",
    "zoo.experiments.lbbnn.declared",
    "zoo.experiments.sip.declared",
    "zoo.experiments.npl.declared",
    "zoo.experiments.graphs.declared",
)
#: Of other packages.
OTHERS = Registered("experiments", Experiment)


def experiments() -> dict[str, Experiment]:
    """Name -> experiment; :raises ValueError: when two have the same name"""
    found: dict[str, Experiment] = {}
    for module in MODULES:
        for experiment in import_module(module).EXPERIMENTS:
            if experiment.name in found:
                raise ValueError(f"two experiments are called {experiment.name}")
            found[experiment.name] = experiment
    return found | OTHERS.entries(found)


def find_experiment(name: str) -> Experiment:
    """:raises UserError: naming the nearest experiments"""
    known = experiments()
    if name not in known:
        raise unknown("experiment", name, known)
    return known[name]
