# ---
# jupyter:
#   jupytext:
#     text_representation:
#       format_name: percent
# ---

# %% [markdown]
# # Functions instead of weights
#
# A posterior over a network's weights is a detour: what predicts is the function. A *sparse implicit process*
# keeps a prior of functions that can be drawn and not scored, and a posterior of the function's values at a
# few inducing inputs that comes out of a network of noise. No family of densities bounds it.
#
# Here is a set with two branches: at every x the target is near one of two waves, each half of the time.

# %%
import warnings

import matplotlib.pyplot as plt
import torch

from data_loaders import LAWS
from guides import UnsettledWarning
from guides.implicit import SaturationWarning, SparseImplicitProcess, VariationalImplicitProcess
from zoo.fitting.reach import half_cosine_change
from zoo.models import BNNProcess

law = LAWS["bimodal"]
(x_raw, y_raw), (x_test, y_test) = law.draw(1000, seed=0), law.draw(800, seed=1)
x_sd, y_mean, y_sd = x_raw.std(), y_raw.mean(), y_raw.std()


def inputs(x):
    return torch.as_tensor(x / x_sd, dtype=torch.float32).unsqueeze(-1)


x, y = inputs(x_raw), torch.as_tensor((y_raw - y_mean) / y_sd, dtype=torch.float32)

# %% [markdown]
# ## Two methods, one prior
#
# The prior is a network whose weights have means and sds that are trained along. `alpha = 1` asks for the
# density of the data under the *mixture* of all drawn functions, so that they may divide the data among
# themselves; with `alpha = 0` every function would have to explain all of them.
#
# The variational implicit process turns the same prior into a linear model of twenty drawn functions: its
# predictive is one Gaussian at every x.

# %%
torch.manual_seed(0)
sip = SparseImplicitProcess(BNNProcess(1, (50, 50)), 20, alpha=1.0, num_functions=100, num_particles=100)
vip = VariationalImplicitProcess(BNNProcess(1, (50, 50), sharing="layer"), alpha=1.0)
with warnings.catch_warnings():  # what they warn of is printed
    warnings.simplefilter("ignore", SaturationWarning)
    warnings.simplefilter("ignore", UnsettledWarning)
    sip.fit(x, y, steps=2000, batch_size=50)
    vip.fit(x, y, steps=1000)
for guide in (sip, vip):
    name, tenth = type(guide).__name__, half_cosine_change(guide.losses)
    print(f"{name}: the last tenth of the learning still gained {tenth.value / len(x):.3f} nats a row")

# %% [markdown]
# ## What they score
#
# No predictive that is Gaussian at every x passes the Gaussian with the true mean and variance there; the law
# itself shows what there is to gain. The posterior of a network with Gaussian noise (NUTS) has -3.10.

# %%
targets = torch.as_tensor((y_test - y_mean) / y_sd)


def log_likelihood(guide) -> float:
    predictive = guide.predictive(inputs(x_test))
    return predictive.log_prob(targets).mean().item() - float(torch.as_tensor(y_sd).log())


mean, sd = torch.as_tensor(law.mean(x_test)), torch.as_tensor(law.sd(x_test))
best = torch.distributions.Normal(mean, sd).log_prob(torch.as_tensor(y_test)).mean().item()
scores = {"sparse": log_likelihood(sip), "variational": log_likelihood(vip), "best Gaussian": best}
scores["the law"] = law.log_density(x_test, y_test).mean()
for name, score in scores.items():
    print(f"{name:14} {score:6.2f} nats a row")
assert scores["sparse"] > -2.6 > best

# %% [markdown]
# ## The picture
#
# Draws of the target, given x, on the data.

# %%
grid = torch.linspace(-4, 4, 200).numpy()
figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
for axis, guide in zip(axes, (sip, vip), strict=True):
    drawn = guide.predictive(inputs(grid)).sample((30,)) * y_sd + y_mean
    axis.plot(x_raw, y_raw, ".", color="0.8", ms=3)
    axis.plot(grid, drawn.T, ".", color="#1f5fa8", ms=2, alpha=0.4)
    axis.set(title=type(guide).__name__, xlabel="x")
axes[0].set_ylabel("y: data, and draws given x")
plt.show()

# %% [markdown]
# ## How far to believe it
#
# The divergence of the posterior from the prior is what a classifier makes of their draws. Here it tells them
# apart almost surely (its loss is near 0; log 2 = 0.69 would be a guess): the divergence is a penalty then,
# and neither it nor the objective is a bound on anything. Compare such methods by what they predict.

# %%
for name in ("classifier_loss", "saturated", "retained_variance", "noise_variance"):
    print(f"{name}: {sip.facts[name]}")
