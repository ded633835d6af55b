"""Nonparametric posteriors: every draw minimises a loss with random weights on the data."""
