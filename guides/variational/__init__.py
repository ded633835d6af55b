"""Guides that are fitted by stochastic variational inference, and what is done with their fits."""
