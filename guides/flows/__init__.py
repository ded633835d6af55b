"""Normalizing flows."""
