"""Models and guides by name."""
