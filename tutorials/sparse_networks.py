# ---
# jupyter:
#   jupytext:
#     text_representation:
#       format_name: percent
# ---

# %% [markdown]
# # Sparse networks and inclusion probabilities, honest and cold
#
# A spike and slab on every weight asks which weights a network needs. Two answers go by the same name in
# the literature: the posterior, and something sharper that predicts better. Here are both on the 8 x 8 digits
# of scikit-learn, told apart; and then a regression where inclusion probabilities can be checked. One minute
# on one core.

# %%
import math

import numpy as np
import pyro
import pyro.distributions as dist
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from guides import AutoSpikeSlab, JointSpikeSlab, SpikeSlab, init_to_he
from guides.core.svi import Schedule, geometric_ramp, half_cosine, random_rows, svi_steps
from guides.posterior import Posterior
from guides.truth import enumerate_spike_slab_logistic

images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(images))
x = torch.as_tensor(images[order] / 16, dtype=torch.float32)
y = torch.as_tensor(labels[order])
x, y, x_test, y_test = x[:1400], y[:1400], x[1400:], y[1400:]


def layer(name, inputs, outputs):
    """Weights with a spike, and a slab whose sd is He's."""
    slab = SpikeSlab(0.1, 0.0, math.sqrt(2 / inputs)).expand([outputs, inputs])
    return pyro.sample(f"{name}.w", slab.to_event(2)), pyro.sample(
        f"{name}.b", dist.Normal(torch.zeros(outputs), 1.0).to_event(1)
    )


def network(x, y=None, size=None):
    hidden = torch.relu(F.linear(x, *layer("first", 64, 30)))
    logits = F.linear(hidden, *layer("second", 30, 10))
    rows = None if size is None else torch.arange(len(x))
    with pyro.plate("data", size or len(x), subsample=rows):
        pyro.sample("y", dist.Categorical(logits=logits), obs=y)
    return logits


# %% [markdown]
# ## A fit that reaches its optimum
#
# A logit that starts at 3 has some way to go before a weight is out, and Adam moves a number by at most the
# sum of its learning rates: logits get a rate of their own. The divergence counts little at first, so that
# weights learn what they are for before most are dropped. Where it ends is the point: at 1 for the posterior.


# %%
def fit(last_weight, steps=1000, seed=0):
    pyro.set_rng_seed(seed)
    guide = AutoSpikeSlab(network, init_loc_fn=init_to_he, init_inclusion=(2.0, 4.0), empirical_bayes=True)
    svi = pyro.infer.SVI(
        network, guide, guide.optimizer(5e-3, factors={"logits": 15, "log_scale": 4}), guide.elbo()
    )
    schedule = Schedule(
        steps,
        learning_rate=lambda step: half_cosine(5e-3, step, steps),
        kl_weight=lambda step: geometric_ramp(0.01, step / steps, share=0.4, last=last_weight),
    )
    losses = [step.loss for step in svi_steps(svi, random_rows((x, y), 200), schedule)]
    return guide, losses


def describe(name, guide):
    posterior = Posterior.from_guide(guide, 20, seed=1)
    probabilities = posterior.predictive(x_test).probs
    accuracy = (probabilities.argmax(-1) == y_test).float().mean()
    nll = -probabilities[torch.arange(len(y_test)), y_test].log().mean()
    with torch.no_grad():  # minus the bound, the divergence counted whole, whatever training did
        loss = guide.elbo().loss(network, guide, x, y) / len(x)
    kept = torch.cat([probs.flatten() for probs in guide.inclusion_probabilities().values()])
    print(
        f"{name:10s} accuracy {accuracy:.3f}, nll {nll:.3f}, bound {-loss:.2f} nats an image, "
        f"{(kept > 0.5).float().mean():.1%} of the weights"
    )
    return accuracy, -loss, (kept > 0.5).float().mean()


honest, losses = fit(1.0)
tenth = len(losses) // 10
change = np.mean(losses[-tenth:]) - np.mean(losses[-2 * tenth : -tenth])
print(f"the last tenth changed the loss by {change:.1f} nats of {np.mean(losses[-tenth:]):.0f}")
cold, _ = fit(0.1)
_, bound, density = describe("posterior", honest)
accuracy, cold_bound, cold_density = describe("cold, 0.1", cold)
assert bound > cold_bound
assert density < cold_density
assert accuracy > 0.9

# %% [markdown]
# The posterior keeps few weights: that is what 1400 images say under this model. The cold one is the answer
# to ten times the data. It predicts better and keeps more weights; its bound says that it is no approximation
# of the posterior, and nobody should read its inclusion probabilities as if it were.

# %% [markdown]
# ## When inclusion probabilities can be believed
#
# Three columns of which two are nearly the same, classes, and all eight models counted. Independent spikes
# and slabs settle for one of the two columns; a joint law of inclusion and weights does not.

# %%
rng = np.random.default_rng(1)
columns = rng.standard_normal((200, 3))
columns[:, 1] = 0.95 * columns[:, 0] + 0.3 * columns[:, 1]
columns = (columns - columns.mean(0)) / columns.std(0)
classes = (rng.random(200) < 1 / (1 + np.exp(-columns[:, 0] - columns[:, 1]))).astype(float)


def selection(x, y=None):
    prior = SpikeSlab(x.new_tensor(0.25), x.new_tensor(0.0), x.new_tensor(1.0))
    w = pyro.sample("w", prior.expand([3]).to_event(1))
    b = pyro.sample("b", dist.Normal(x.new_tensor(0.0), 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w + b), obs=y)


exact = enumerate_spike_slab_logistic(columns, classes, inclusion_prob=0.25)
data = torch.as_tensor(columns), torch.as_tensor(classes)
joint = JointSpikeSlab(selection).fit(*data, steps=1500, seed=0)
pyro.set_rng_seed(0)
apart = AutoSpikeSlab(selection)
svi = pyro.infer.SVI(selection, apart, apart.optimizer(0.03), apart.elbo())
for _ in range(1000):
    svi.step(*(part.float() for part in data))
found = {
    "exact": exact.inclusion,
    "joint": joint.inclusion_probabilities()["w"].numpy(),
    "independent": apart.inclusion_probabilities()["w"].detach().numpy(),
}
for name, probabilities in found.items():
    print(f"{name:12s}", np.round(probabilities, 2))
error = {name: np.abs(value - found["exact"]).max() for name, value in found.items()}
assert error["joint"] < error["independent"]
