"""Ott and Williamson: spike-and-slab probabilistic backpropagation."""
