"""Latent binary Bayesian neural networks: Skaaret-Lund (2022), Hubin and Storvik (2019)."""
