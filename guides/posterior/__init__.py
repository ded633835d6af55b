"""Posteriors: what every method ends in, questions to many draws at once, and files.

* :class:`Posterior`: draws of a model's latent sites; answers ``draws``, ``function``, ``predictive``,
  ``log_likelihood``, ``to_arviz``, ``save`` and ``load`` for every method and likelihood alike.
* :func:`observed_laws`, :func:`function_values`, :func:`mixture`, :func:`empirical`: the steps from draws to
  a predictive distribution; :func:`log_joint`, :func:`log_likelihood`: how likely draws are, and each
  observation; :func:`over_draws`: any other question to all draws at once.
* :func:`linear_regression`, :func:`logistic_regression`: the models of closed forms and enumerations.
* :func:`save_guide`, :func:`load_guide`: the parameters of a fitted guide, to draw from it again or to go on.

Labelled arrays, netCDF files and convergence diagnostics are in :mod:`guides.posterior.arviz_io`.
"""

from guides.posterior.draws import Posterior
from guides.posterior.evaluate import log_joint, log_likelihood, observed_laws, over_draws
from guides.posterior.files import load_guide, save_guide
from guides.posterior.predictive import empirical, function_values, mixture
from guides.posterior.regressions import linear_regression, logistic_regression

__all__ = [
    "Posterior",
    "empirical",
    "function_values",
    "linear_regression",
    "load_guide",
    "log_joint",
    "log_likelihood",
    "logistic_regression",
    "mixture",
    "observed_laws",
    "over_draws",
    "save_guide",
]
