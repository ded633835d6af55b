"""Answers of single models, averaged by the models' probabilities."""

import numpy as np


def averaged(logs, moments):
    """Log evidences ``[2^p]``, that of all, inclusion ``[p]``, mean and covariance of the coefficients.

    :param logs: of every model its log evidence, and the same with the model's prior
    :param moments: of every model ``E[w]`` and ``E[w w']``
    """
    evidence, joint = np.array(logs).T
    probs = np.exp(joint - np.logaddexp.reduce(joint))
    mean = sum(w * m for w, (m, _) in zip(probs, moments, strict=True))
    second = sum(w * m for w, (_, m) in zip(probs, moments, strict=True))
    columns = range(len(probs).bit_length() - 1)
    inclusion = np.array([sum(probs[k] for k in range(len(probs)) if k >> j & 1) for j in columns])
    return evidence, np.logaddexp.reduce(joint), inclusion, mean, second - np.outer(mean, mean)
