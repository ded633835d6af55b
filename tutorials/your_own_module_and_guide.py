# ---
# jupyter:
#   jupytext:
#     text_representation:
#       format_name: percent
# ---

# %% [markdown]
# # Your own network, your own guide, graded
#
# You have a trained `torch.nn.Module` and would like to know how sure it is. One line makes a Pyro model of
# it; any guide fits it, one of ours, one of Pyro's or one that you write here; and a posterior that can be
# trusted says how good each of them is. Half a minute on one core.

# %%
import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from pyro.infer import SVI, Trace_ELBO
from torch import nn

from guides import AutoMeanField
from guides.core.distributions import base_prior
from guides.posterior import Posterior
from guides.truth import conjugate_linear_regression
from zoo.evaluation.distances import compare_functions
from zoo.models import from_module

torch.manual_seed(0)
x = torch.linspace(-2, 2, 60)[:, None]
y = torch.sin(2 * x[:, 0]) + 0.2 * torch.randn(60)
x_test = torch.linspace(-3, 3, 40)[:, None]

net = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 6), nn.Tanh(), nn.Linear(6, 1))
optimizer = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(800):
    optimizer.zero_grad()
    (net(x)[:, 0] - y).square().mean().backward()
    optimizer.step()

# %% [markdown]
# ## The network as a Pyro model
#
# `layers="last"`: the other layers stay as trained, their outputs are features. All weights become random
# with `layers="all"`; layers can be named too.

# %%
model = from_module(net, layers="last", noise_scale=0.2)
with torch.no_grad():
    nodes = pyro.poutine.trace(model).get_trace(x, y).nodes
latent = [name for name, node in nodes.items() if node["type"] == "sample" and not node["is_observed"]]
shapes = {name: nodes[name]["value"].shape for name in latent if name != "data"}
print(shapes)

# %% [markdown]
# ## The truth
#
# A random last layer with known noise is a linear regression in the features: its posterior has a closed
# form. With more random layers the truth is NUTS, as in the tutorial on grading a guide; the rest stays.

# %%
with torch.no_grad():
    columns = torch.cat((net[:-1](x), torch.ones(len(x), 1)), 1)  # features, and the bias
scales = torch.cat(
    [base_prior(nodes[name]["fn"]).scale.expand(shape).flatten() for name, shape in shapes.items()]
)
exact = conjugate_linear_regression(
    columns.double().numpy(), y.double().numpy(), prior_scale=scales.double().numpy(), noise_scale=0.2
)
with torch.no_grad():
    test_columns = torch.cat((net[:-1](x_test), torch.ones(len(x_test), 1)), 1).double()
reference = torch.as_tensor(exact.draws(2000)["w"]) @ test_columns.T
print(f"log evidence {exact.log_evidence:.2f} nats")

# %% [markdown]
# ## Two guides: one of ours, and one of your own
#
# A guide is any Pyro function that samples the model's sites. This one gives all numbers a joint Gaussian:
# its covariance is a Cholesky factor that `pyro.param` keeps.

# %%
sizes = [shape.numel() for shape in shapes.values()]


def my_guide(x, y=None):
    trained = torch.cat([net[-1].weight[0], net[-1].bias]).detach()
    loc = pyro.param("my.loc", trained)
    root = pyro.param("my.root", 0.1 * torch.eye(sum(sizes)), constraint=constraints.lower_cholesky)
    joint = dist.MultivariateNormal(loc, scale_tril=root)
    whole = pyro.sample("my.joint", joint, infer={"is_auxiliary": True})
    for (name, shape), part in zip(shapes.items(), whole.split(sizes, -1), strict=True):
        pyro.sample(name, dist.Delta(part.reshape(shape), event_dim=len(shape)))


def fitted(guide, optimizer, loss, steps):
    pyro.set_rng_seed(0)
    svi = SVI(model, guide, optimizer, loss)
    losses = [svi.step(x, y) for _ in range(steps)]
    print(f"minus the bound: {sum(losses[-100:]) / 100:.2f} nats")


pyro.clear_param_store()
ours = AutoMeanField(model, init_loc_fn=model.start)  # starts at the trained weights
fitted(ours, ours.optimizer(0.02), ours.elbo(), 1500)
fitted(my_guide, pyro.optim.ClippedAdam({"lr": 0.02, "lrd": 0.9975}), Trace_ELBO(num_particles=4), 1500)

# %% [markdown]
# ## The grades
#
# Draws of any guide become a `Posterior`; distances are in the truth's own standard deviations.

# %%
with torch.no_grad():
    traces = [pyro.poutine.trace(my_guide).get_trace(x) for _ in range(1000)]
drawn = {name: torch.stack([t.nodes[name]["value"] for t in traces]) for name in shapes}
posteriors = {"AutoMeanField": Posterior.from_guide(ours, 1000), "mine": Posterior.from_draws(model, drawn)}
grades = {}
for name, posterior in posteriors.items():
    grades[name] = compare_functions(reference, posterior.function(x_test), name).figures()
    print(name, {figure: f"{e.value:.2f} +- {e.se:.2f}" for figure, e in grades[name].items()})
assert grades["mine"]["ref_w1"].value < grades["AutoMeanField"]["ref_w1"].value

# %% [markdown]
# The features of a trained network are correlated, and independent Gaussians cannot say so: the joint one is
# at the noise of the draws. To put such a guide on the scoreboard, README says how to register it.
