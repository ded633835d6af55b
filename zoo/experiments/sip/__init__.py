"""Posteriors over functions: the experiments of the sparse implicit processes."""
