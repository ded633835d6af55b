"""What every guide stands on: moments, distributions, random tensors, the laws of sites, the flat guide."""
