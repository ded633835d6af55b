"""The ways to fit a model to data, and what all of them answer afterwards."""
