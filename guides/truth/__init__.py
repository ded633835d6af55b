"""Ground truth."""
