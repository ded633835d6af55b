"""Counts of drawn graphs against their probabilities."""

import numpy as np
from scipy.stats import chisquare


def assert_counts(found: np.ndarray, expected: np.ndarray) -> None:
    """By the chi-squared test of as many kinds as are expected five times; the rest is one."""
    groups = np.where(expected >= 5, np.arange(len(expected)), expected.argmax())
    pooled = [np.bincount(groups, counts, len(groups))[np.unique(groups)] for counts in (found, expected)]
    assert chisquare(*pooled).pvalue > 1e-3
