# ---
# jupyter:
#   jupytext:
#     text_representation:
#       format_name: percent
# ---

# %% [markdown]
# # Posteriors without a prior: the bootstrap on your own model, and a density with its uncertainty
#
# Bayes' theorem believes the likelihood. Where it is wrong, the posterior is certain about the wrong thing.
# The posterior bootstrap asks for less: the law of the data is unknown, a Dirichlet process is its prior,
# and a parameter is whatever minimises the expected loss under that law. A draw of the posterior is a
# minimum with random weights on the rows.

# %%
import pyro
import pyro.distributions as dist
import torch

from guides import PosteriorBootstrap, SharedParameterBootstrap
from guides.bootstrap.base_measures import GaussianBase
from guides.bootstrap.training import Training
from zoo.models import FlowDensity

pyro.set_rng_seed(0)

# %% [markdown]
# ## A likelihood that is wrong
#
# A line through points whose noise grows to the right. The model knows one noise for all of them.

# %%
x = 2 * torch.rand(300)
y = 1 + 0.5 * x + 0.5 * x**2 * torch.randn(300)


def model(x, y=None):
    intercept = pyro.sample("intercept", dist.Normal(0.0, 10.0))
    slope = pyro.sample("slope", dist.Normal(0.0, 10.0))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 2.0))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(intercept + slope * x, scale), obs=y)


posterior = PosteriorBootstrap(model).fit(x, y, num_draws=200, steps=1000, lr=0.2)
print(posterior)

# %% [markdown]
# The draws end where every method ends: `posterior.predictive(x)`, `posterior.to_arviz()`,
# `posterior.save(path)`. What the likelihood believes of the intercept is another matter: least squares has a
# standard error from one noise for all, the bootstrap one from the noise that is there.

# %%
design = torch.stack([torch.ones_like(x), x], 1)
residual = y - design @ torch.linalg.lstsq(design, y[:, None]).solution[:, 0]
believed = (residual.var() * torch.linalg.inv(design.T @ design)).diagonal().sqrt()
found = torch.stack([posterior.draws()[name].std() for name in ("intercept", "slope")])
print("sd of intercept and slope, as the likelihood believes:", believed)
print("as the rows say:                                      ", found)
assert found[1] > 1.3 * believed[1]  # on the right, where the slope is decided, there is more noise
assert max(map(abs, posterior.info["last_tenth"])) < 1e-3  # every minimum is settled

# %% [markdown]
# ## What is known beforehand
#
# A prior is a law of rows, not of parameters, and weighs as many rows as `concentration` says: the rows of
# an earlier study (`EmpiricalBase`), a Gaussian (`GaussianBase`), another Pyro model (`PredictiveBase`).
# Here are 300 rows that count for 100.

# %%
earlier = torch.rand(300) + 1
base = GaussianBase(earlier, 3 + 0.1 * torch.randn(300))
informed = PosteriorBootstrap(model, 100.0, base, num_pseudo=100)
informed = informed.fit(x, y, num_draws=50, steps=500, lr=0.2)
print("slope:", posterior.draws()["slope"].mean(), "with the earlier rows:", informed.draws()["slope"].mean())

# %% [markdown]
# ## A density, and how much its latent mean matters
#
# A normalizing flow has thousands of parameters, and minimising anew for every draw would take as many
# trainings. `SharedParameterBootstrap` trains the flow once, with fresh weights and pseudo-observations in
# every step, and then draws only its latent mean, which has a closed form. The pseudo-observations are what
# helps most: they are a regulariser.

# %%
angle = 3.14 * torch.rand(400)
moon = torch.stack([angle.cos(), angle.sin()], 1) + 0.1 * torch.randn(400, 2)
train, held = moon[:200], moon[200:]

flow = FlowDensity(2, blocks=3, hidden=(30,))
bootstrap = SharedParameterBootstrap(flow, concentration=20.0, num_pseudo=100)
density = bootstrap.fit(train, validation=(held,), training=Training(steps=600, lr=5e-3))
means = density.draws(100, seed=1)
print({name: density.info[name] for name in ("steps", "kept_step", "validation")})

# %% [markdown]
# Draws cost next to nothing. They differ in the latent mean alone, the flow is one: the spread is no interval
# for the density, from which a flow of another seed may be farther.

# %%
with torch.no_grad():
    points = torch.tensor([[0.0, 1.0], [1.0, 0.2], [0.0, 0.0], [0.0, -1.0]])
    log_density = flow.log_density(means, flow.encode(points))
for point, low, high in zip(
    points.tolist(), *log_density.quantile(torch.tensor([0.05, 0.95]), 0), strict=True
):
    print(f"log density at {point}: between {low:.2f} and {high:.2f}")
assert (log_density[:, :2].mean(0) > log_density[:, 2:].mean(0).max() + 2).all()

# %% [markdown]
# The same on a table of your own, from the command line:
#
#     zoo fit table.csv --model maf --out out/density
#     zoo predict out/density --input new.csv --out scores.csv
#     zoo sample out/density --rows 1000 --out new-rows.csv
