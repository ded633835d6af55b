# ---
# jupyter:
#   jupytext:
#     text_representation:
#       format_name: percent
# ---

# %% [markdown]
# # Grade a guide against NUTS
#
# How good is a variational posterior? Ask a sampler that can be trusted, make sure that it can, and compare
# *functions*: the weights of a network have symmetric modes, its predictions have not.

# %%
import warnings

import arviz as az
import matplotlib
import numpy as np
import pyro
import torch

from data_loaders import Standardizer, generate_piecewise
from guides import AutoMeanField
from guides.posterior import Posterior, function_values, observed_laws
from guides.truth import nuts
from zoo.evaluation.distances import compare_functions
from zoo.fitting.svi import Fit, FitSettings
from zoo.models.bnn import BNN

matplotlib.use("Agg")
warnings.filterwarnings("ignore", module="arviz")

data = generate_piecewise(150, seed=0)
scale = Standardizer.fit(data.x_train, data.y_train)
x = torch.as_tensor(scale.transform_x(data.x_train), dtype=torch.float32)
x_test = torch.as_tensor(scale.transform_x(np.linspace(-4, 5, 50)[:, None]), dtype=torch.float32)
y = torch.as_tensor(scale.transform_y(data.y_train), dtype=torch.float32)
model = BNN(1, widths=(10,))

# %% [markdown]
# ## The ground truth
#
# Every model of the zoo has a NumPyro twin: the same density, sampled by NUTS. The gates (R-hat, effective
# sample size, divergences) act on the function at the test points.


# %%
def function(draws):
    tensors = {name: torch.as_tensor(np.array(value)) for name, value in draws.items()}
    return function_values(observed_laws(model, tensors, x_test)).numpy()


result = nuts(model.twin, (x.numpy(), y.numpy()), function=function, warmup=500, draws=500, seed=0)
print("passed" if result.passed else f"failed: {result.reason}")
print({name: round(float(value), 3) for name, value in result.diagnostics.items()})

# %% [markdown]
# ## Diagnostics with ArviZ
#
# Trace, rank, ESS, energy and posterior predictive plots. Where chains settle in different orders of the
# hidden units, R-hat of the weights is bad while R-hat of the function is good: symmetry, not failure.

# %%
reference = result.posterior(model)
idata = reference.to_arviz(x, observed_data={"y": y})
summary = az.summary(idata, var_names=["b2", "noise_precision"])
print(summary)
weights_rhat = float(az.rhat(idata, var_names=["w1"])["w1"].max())
print(f"largest R-hat of a weight {weights_rhat:.2f}, of the function {result.diagnostics['max_rhat']:.3f}")

# %%
az.plot_trace(idata, var_names=["noise_precision"])
az.plot_rank(idata, var_names=["noise_precision"])
az.plot_ess(idata, var_names=["noise_precision"])
az.plot_energy(idata)
az.plot_ppc(idata, num_pp_samples=50)

# %% [markdown]
# ## The guide

# %%
pyro.set_rng_seed(0)
guide = AutoMeanField(model)
fit = Fit(guide, model, (x, y), FitSettings(steps=4000, seed=0)).run()
approximation = Posterior.from_guide(guide, 1000, seed=0)
elbo, elbo_se = fit.elbo()
print(f"ELBO {elbo:.1f} +- {elbo_se:.1f} nats after {fit.seconds:.0f} s")

# %% [markdown]
# ## The grades
#
# In units of the reference's own standard deviation, each with its Monte Carlo standard error. The floor is
# what as many draws of the reference's own law would get.

# %%
distances = compare_functions(reference.function(x_test), approximation.function(x_test), "mean-field")
for name, estimate in distances.figures().items():
    print(f"{name:15s} {estimate.value:.3f} +- {estimate.se:.3f}  (floor {estimate.floor:.3f})")

# %% [markdown]
# ## Leave-one-out
#
# Pointwise predictive accuracy of both posteriors from the training data alone.

# %%
compared = {
    "nuts": az.loo(idata),
    "mean-field": az.loo(approximation.to_arviz(x, observed_data={"y": y})),
}
for name, loo in compared.items():
    worst = float(loo.pareto_k.max())
    print(f"{name:10s} elpd {loo.elpd_loo:.1f} +- {loo.se:.1f}, largest Pareto k {worst:.2f}")
