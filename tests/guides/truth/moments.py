"""Mean and sd of chains with their Monte Carlo standard errors."""

import numpy as np

from guides.posterior import arviz_io


def moments(draws):
    """Mean and sd of [chain, draw, P] with their Monte Carlo standard errors, each [2, P]."""
    value = np.stack([draws.mean((0, 1)), draws.std((0, 1))])
    return value, np.stack([arviz_io.mcse(draws, "mean"), arviz_io.mcse(draws, "sd")])
