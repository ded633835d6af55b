"""Ground truth: posteriors that can be trusted, to grade approximations against.

Take the first that applies.

1. *Linear regression with Gaussian weights* has a closed form: :func:`conjugate_linear_regression` with known
   noise, :func:`normal_gamma_regression` with unknown noise.
2. *Variable selection with up to 20 columns* is an enumeration of all 2^p models: exact for linear regression
   under a spike and slab (:func:`enumerate_spike_slab`) or Zellner's g-prior (:func:`enumerate_g_prior`),
   Laplace's approximation, checked by importance sampling, for logistic regression
   (:func:`enumerate_spike_slab_logistic`).
3. *Logistic variable selection with more columns*: :func:`spike_slab_logistic_gibbs`; its inclusion
   probabilities with their errors are :func:`inclusion_probabilities`.
4. *Any model with continuous latent sites*: :func:`nuts`, by NumPyro for a NumPyro model, by Pyro for a small
   Pyro model.

Markov chains (3, 4) give an :class:`MCMCResult` that has passed its :class:`Gates` or says why not:
``result.posterior(model)`` predicts, for the chains of 3 with :func:`spike_slab_logistic_model`.  The others
predict by ``result.posterior(n)``, except the g-prior, which is about models only.  JAX is imported when NUTS
first runs.
"""

from guides.truth.conjugate import (
    ConjugateRegression,
    NormalGamma,
    conjugate_linear_regression,
    normal_gamma_regression,
)
from guides.truth.g_prior import GPriorModels, enumerate_g_prior
from guides.truth.gates import Gates, MCMCResult
from guides.truth.mcmc import nuts
from guides.truth.polya_gamma import inclusion_probabilities, spike_slab_logistic_gibbs
from guides.truth.spike_slab_linear import SpikeSlabPosterior, enumerate_spike_slab
from guides.truth.spike_slab_logistic import (
    ImportanceCheck,
    SpikeSlabLogisticPosterior,
    enumerate_spike_slab_logistic,
    spike_slab_logistic_model,
)

__all__ = [
    "ConjugateRegression",
    "GPriorModels",
    "Gates",
    "ImportanceCheck",
    "MCMCResult",
    "NormalGamma",
    "SpikeSlabLogisticPosterior",
    "SpikeSlabPosterior",
    "conjugate_linear_regression",
    "enumerate_g_prior",
    "enumerate_spike_slab",
    "enumerate_spike_slab_logistic",
    "inclusion_probabilities",
    "normal_gamma_regression",
    "nuts",
    "spike_slab_logistic_gibbs",
    "spike_slab_logistic_model",
]
