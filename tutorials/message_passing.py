# ---
# jupyter:
#   jupytext:
#     text_representation:
#       format_name: percent
# ---

# %% [markdown]
# # Message passing, and why a bias makes the spike and slab vanish
#
# Probabilistic backpropagation fits a Bayesian network without drawing a single weight. Every weight has a
# Gaussian; a data point travels through the network as a *distribution*, whose mean and variance are matched
# after every operation; and the derivative of the evidence of its target tells every weight its new mean
# and variance. One pass over the data is one pass of such updates.

# %%
import math

import pyro
import pyro.distributions as dist
import torch
import torch.nn.functional as F

from guides import ProbabilisticBackpropagation
from guides.message_passing.messages import GAUSSIAN, SPIKE_SLAB, GaussianMessage, SpikeSlabMessage

# %% [markdown]
# ## One update, exactly
#
# With one weight and known noise nothing is approximated: one pass is Bayesian linear regression.


# %%
def one_weight(x, y=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(1), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


generator = torch.Generator().manual_seed(0)
x = torch.randn(20, 1, generator=generator)
y = 0.7 * x[:, 0] + 0.5 * torch.randn(20, generator=generator)

fit = ProbabilisticBackpropagation(one_weight).fit(x, y, epochs=1)
precision = 1 + (x**2).sum() / 0.25
exact_mean, exact_variance = (x[:, 0] @ y / 0.25 / precision).item(), 1 / precision.item()
mean, variance = (moment.item() for moment in fit.sites["w"])
print(f"message passing: mean {mean:.6f}, variance {variance:.6f}")
print(f"closed form:     mean {exact_mean:.6f}, variance {exact_variance:.6f}")
assert math.isclose(mean, exact_mean, rel_tol=1e-5)
assert math.isclose(variance, exact_variance, rel_tol=1e-5)

# %% [markdown]
# Forty passes would use every row forty times, and the variance shows it. That is how the method is
# published, and a network needs the passes to learn; but what it gives is then no posterior, it is sharper.
# Grade the predictions of `epochs=40`, and do not read its variances as those of a posterior.

# %%
forty = ProbabilisticBackpropagation(one_weight).fit(x, y, epochs=40)
print(f"variance after 40 passes: {forty.sites['w'].variance.item():.6f}, a 40th of the data's share")
assert forty.sites["w"].variance.item() < variance / 30

# %% [markdown]
# ## What happens at a ReLU
#
# A Gaussian enters, and what leaves is a point mass at zero and half a Gaussian. PBP keeps its mean and
# variance only. SSPBP keeps the point mass, and a Gaussian for the rest.

# %%
entering_mean, entering_variance = torch.tensor([-0.5]), torch.tensor([1.0])
gaussian = GAUSSIAN.relu(GaussianMessage(entering_mean, entering_variance))
one, none = torch.zeros(1), torch.full((1,), -math.inf)
slab = SPIKE_SLAB.relu(SpikeSlabMessage(one, none, entering_mean, entering_variance))
draws = torch.relu(entering_mean + torch.randn(200_000, generator=generator))
print(
    f"draws:  P(exactly 0) {(draws == 0).float().mean():.3f}, mean {draws.mean():.3f}, sd {draws.std():.3f}"
)
print(f"PBP:    P(exactly 0) 0, mean {gaussian.mean.item():.3f}, sd {gaussian.variance.sqrt().item():.3f}")
print(f"SSPBP:  P(exactly 0) {slab.log_spike.exp().item():.3f}, slab mean {slab.mean.item():.3f}")
assert abs(slab.log_spike.exp().item() - (draws == 0).float().mean()) < 4 * 0.5 / math.sqrt(200_000)

# %% [markdown]
# ## The bias
#
# A layer adds up its inputs. Its output is exactly zero only when *all* of them are. A bias is an input that
# is always one: it is never zero, so neither is the sum. The spike vanishes in every linear layer, and SSPBP
# and PBP are then the same algorithm, to the last digits. Without biases they differ.


# %%
def network(bias):
    def model(x, y=None):
        hidden = x
        for i, out in enumerate((3, 3, 1), start=1):
            hidden = F.pad(hidden, (0, 1), value=1.0) if bias else hidden
            shape = (out, hidden.shape[1])
            w = pyro.sample(f"w{i}", dist.Normal(torch.zeros(()), 1.0).expand(shape).to_event(2))
            hidden = F.linear(hidden, w) / math.sqrt(shape[1])
            hidden = torch.relu(hidden) if i < 3 else hidden.squeeze(-1)
        precision = pyro.sample("noise_precision", dist.Gamma(torch.tensor(6.0), torch.tensor(6.0)))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(hidden, precision.rsqrt()), obs=y)

    return model


x = torch.randn(150, 2, generator=generator)
y = torch.relu(x[:, 0]) - torch.relu(x[:, 1]) + 0.1 * torch.randn(150, generator=generator)
for bias in (True, False):
    fits = {
        messages: ProbabilisticBackpropagation(network(bias), messages).fit(x, y, seed=1)
        for messages in ("gaussian", "spike-slab")
    }
    means = [fit.predictive(x).mean for fit in fits.values()]
    apart = (means[0] - means[1]).abs().max()
    layers = [f"{p.mean():.3f}" for p in fits["spike-slab"].slab_probabilities(x)]
    print(f"bias {bias}: predictions differ by {apart:.1e}; slab probability by layer {', '.join(layers)}")
    assert (apart < 1e-8) == bias

# %% [markdown]
# ## Any feed-forward model
#
# The model is run once and its operations are recorded: linear layers, ReLU and leaky ReLU, sums,
# concatenation. A residual network needs nothing special. What cannot be passed is refused by name.


# %%
def residual(x, y=None, activation=torch.relu):
    w1 = pyro.sample("w1", dist.Normal(torch.zeros(2, 2), 1.0).to_event(2))
    w2 = pyro.sample("w2", dist.Normal(torch.zeros(1, 2), 1.0).to_event(2))
    hidden = x + activation(F.linear(x, w1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(F.linear(hidden, w2).squeeze(-1), 0.3), obs=y)


fit = ProbabilisticBackpropagation(residual).fit(x, y, epochs=5)
error = (fit.predictive(x).mean - y).square().mean().sqrt()
print(f"residual network: RMSE {error:.2f} of a target with sd {y.std():.2f}")
try:
    ProbabilisticBackpropagation(lambda x, y=None: residual(x, y, torch.tanh)).fit(x, y)
except ValueError as refusal:
    print("refused:", refusal)
else:
    raise AssertionError("tanh must be refused")
