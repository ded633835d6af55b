"""Posteriors."""
