# ---
# jupyter:
#   jupytext:
#     text_representation:
#       format_name: percent
# ---

# %% [markdown]
# # A guide on your own Pyro model
#
# The guides of this package need nothing but a Pyro model. Here is one that none of our modules knows: a
# Poisson regression with ten candidate columns of which three matter, and a spike and slab on every weight.

# %%
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Predictive

from guides import AutoMeanField, AutoSpikeSlab, SpikeSlab

pyro.set_rng_seed(0)
x = torch.randn(300, 10)
true_weights = torch.tensor([0.8, -0.6, 0.5] + [0.0] * 7)
y = torch.poisson(torch.exp(0.5 + x @ true_weights))


def model(x, y=None):
    intercept = pyro.sample("intercept", dist.Normal(0.0, 1.0))
    weights = pyro.sample("weights", SpikeSlab(0.2, 0.0, 1.0).expand([10]).to_event(1))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Poisson(torch.exp(intercept + x @ weights)), obs=y)


# %% [markdown]
# ## Fit
#
# `AutoSpikeSlab` gives the spike-and-slab site a spike-and-slab posterior and the Normal site a Gaussian one.
# It goes into Pyro's own `SVI`. The weights are never drawn during the fit: `x @ weights` is drawn instead,
# from the Gaussian with the right mean and variance.

# %%
guide = AutoSpikeSlab(model)
svi = SVI(model, guide, guide.optimizer(lr=0.02), guide.elbo())
losses = [svi.step(x, y) for _ in range(1500)]
print(f"loss: {sum(losses[:50]) / 50:.1f} at the start, {sum(losses[-50:]) / 50:.1f} at the end (nats)")

# %% [markdown]
# ## Look at the posterior
#
# The inclusion probabilities are the point of a spike and slab.

# %%
inclusion = guide.inclusion_probabilities()["weights"]
for i, (probability, weight) in enumerate(zip(inclusion, true_weights, strict=True)):
    print(f"weight {i}: inclusion probability {probability:.2f}, true value {weight:+.1f}")
assert (inclusion[:3] > 0.9).all()
assert (inclusion[3:] < 0.5).all()

# %% [markdown]
# ## Predict
#
# Pyro's `Predictive` draws real weights, exact zeros included, and predicts with them.

# %%
draws = Predictive(model, guide=guide, num_samples=200)(x)
weights = draws["weights"].reshape(200, 10)
print("share of exact zeros:", (weights == 0).float().mean(0))
print(f"mean count: {y.mean():.2f} observed, {draws['y'].mean():.2f} predicted")

# %% [markdown]
# ## Save and load
#
# A guide is a torch module. `state_dict` holds the whole fit, and a fresh guide can load it without being
# called first (one of a model with sites such as a HalfNormal needs `copy.setup(x, y)` then, and says so).

# %%
copy = AutoSpikeSlab(model)
copy.load_state_dict(guide.state_dict())
assert torch.equal(copy.inclusion_probabilities()["weights"], inclusion)

# %% [markdown]
# ## Two fits side by side
#
# Every guide has names of its own in Pyro's parameter store (`AutoSpikeSlab.loc`, `AutoSpikeSlab_1.loc` ...),
# so a second guide on the same model does not touch the first. The Gaussian mean field cannot switch weights
# off. Its bound shows what that costs.

# %%
gaussian = AutoMeanField(model)
svi_gaussian = SVI(model, gaussian, gaussian.optimizer(lr=0.02), gaussian.elbo())
for _ in range(1500):
    svi_gaussian.step(x, y)


def bound(svi):
    values = torch.tensor([-svi.evaluate_loss(x, y) for _ in range(200)])
    return values.mean(), values.std() / 200**0.5


for name, fit in (("spike and slab", svi), ("Gaussian", svi_gaussian)):
    mean, se = bound(fit)
    print(f"ELBO of the {name} guide: {mean:.1f} +- {se:.1f} nats")

# %% [markdown]
# ## Groups, and new rows
#
# In a hierarchical model the groups are parameters: a guide that was fitted with 8 of them has 8, and
# `Predictive` on rows of two groups must still make a plate of 8. Take the number of groups from outside and
# index into it; a plate whose size follows from the rows (`int(group.max()) + 1`) would ask for another
# posterior, which the guide refuses by name.

# %%
groups, group = 8, torch.randint(8, (300,))
shift = torch.randn(8)
rate = torch.exp(0.5 + shift[group])
counts = torch.poisson(rate)


def hierarchy(group, y=None):
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    spread = pyro.sample("spread", dist.Gamma(2.0, 2.0))
    with pyro.plate("groups", groups):
        effect = pyro.sample("effect", dist.Normal(mean, spread))
    with pyro.plate("data", len(group)):
        return pyro.sample("y", dist.Poisson(effect[..., group].exp()), obs=y)


guide = AutoMeanField(hierarchy)
svi = SVI(hierarchy, guide, guide.optimizer(lr=0.02), guide.elbo())
for _ in range(600):
    svi.step(group, counts)
new_rows = torch.tensor([3, 3, 5])
predicted = Predictive(hierarchy, guide=guide, num_samples=1000, return_sites=["y"])(new_rows)["y"]
print("predicted means:", predicted.mean(0), "true rates:", torch.exp(0.5 + shift[new_rows]))
assert (predicted.mean(0) / torch.exp(0.5 + shift[new_rows]) - 1).abs().max() < 0.5
