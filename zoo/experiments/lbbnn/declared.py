"""Latent binary Bayesian networks: Hubin and Storvik (2019), Skaaret-Lund (2022), Hubin et al. (2022).

The published programs differ from what they print, and several are wrong (guides.variational.spike_slab and
guides.variational.multiplicative_flow say how); the thesis's accuracies were obtained with a wrong variance.
``published/`` holds what is in print.
"""

from __future__ import annotations

from zoo.experiments.lbbnn import declared_networks, declared_selection, declared_uses

EXPERIMENTS = (
    *declared_selection.EXPERIMENTS,
    *declared_networks.EXPERIMENTS,
    *declared_uses.EXPERIMENTS,
)
