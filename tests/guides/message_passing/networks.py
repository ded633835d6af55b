"""Networks as different people write them in plain Pyro, all of which message passing must understand.

Inputs ``x: [N, 3]``, data ``y: [N]``; everything in float64.
"""

from __future__ import annotations

import math

import pyro
import torch
import torch.nn.functional as F
from pyro import distributions as dist
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn

INPUTS = 3


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def weights(name: str, *shape: int, scale: float | Tensor = 1.0, loc: float = 0.0) -> Tensor:
    scale = torch.as_tensor(scale, dtype=torch.float64)
    law = dist.Normal(torch.full_like(scale, loc), scale).expand(torch.Size(shape)).to_event(len(shape))
    return pyro.sample(name, law)


def observe(output: Tensor, y: Tensor | None, scale: float | Tensor = 0.5) -> None:
    with pyro.plate("data", len(output)):
        pyro.sample("y", dist.Normal(output, scale), obs=y)


def gamma(name: str, concentration: float = 6.0, rate: float = 6.0) -> Tensor:
    return pyro.sample(name, dist.Gamma(number(concentration), number(rate)))


def pbp(widths=(4,), bias: bool = True, inputs: int = INPUTS, noise_scale: float | None = None):
    """The network of probabilistic backpropagation (Hernandez-Lobato and Adams 2015)."""

    def model(x, y=None):
        scale = gamma("lam").rsqrt()
        hidden, sizes = x, (inputs, *widths, 1)
        for i, (fan_in, out) in enumerate(zip(sizes[:-1], sizes[1:], strict=True), start=1):
            if bias:
                hidden = F.pad(hidden, (0, 1), value=1.0)
            w = weights(f"w{i}", out, fan_in + bias, scale=scale)
            hidden = F.linear(hidden, w) / math.sqrt(fan_in + bias)
            if i <= len(widths):
                hidden = F.relu(hidden)
        noise = gamma("gamma").rsqrt() if noise_scale is None else noise_scale
        observe(hidden.squeeze(-1), y, noise)

    return model


def bnn(x, y=None):
    """Bias sites, priors that shrink with the inputs, no division."""
    hidden, sizes = x, (INPUTS, 4, 5, 1)
    for i, (fan_in, out) in enumerate(zip(sizes[:-1], sizes[1:], strict=True), start=1):
        w = weights(f"w{i}", out, fan_in, scale=fan_in**-0.5)
        b = weights(f"b{i}", out)
        hidden = F.linear(hidden, w, b)
        if i < 3:
            hidden = torch.relu(hidden)
    observe(hidden.squeeze(-1), y, pyro.sample("noise", dist.Gamma(number(6.0), number(6.0))) ** -0.5)


def residual(x, y=None):
    """Two branches that are summed, and the input once more at the end."""
    first = torch.relu(x @ weights("enter", INPUTS, 4))
    second = first + torch.relu(first @ weights("inner", 4, 4, scale=0.5) + weights("shift", 4))
    out = torch.cat([second, x], dim=1) @ weights("leave", 4 + INPUTS)
    observe(out, y)


def leaky(x, y=None):
    hidden = F.leaky_relu(F.linear(x, weights("w1", 5, INPUTS)), 0.2)
    hidden = nn.LeakyReLU(0.1)(hidden @ weights("w2", 5, 4)).relu()
    observe((hidden @ weights("v", 4, 1))[:, 0], y)


def split_matrix(x, y=None):
    """One site that holds weights and bias; the second layer's are cut from it too."""
    w = weights("w", 4, INPUTS + 1, scale=0.7)
    v = weights("v", 5)
    hidden = (x @ w[:, :-1].T + w[:, -1]).relu()
    observe(hidden @ v[:4] + v[4], y)


def joined_matrix(x, y=None):
    """Weights and bias that are two sites, joined and used with a column of ones."""
    matrix = torch.cat([weights("w", 4, INPUTS), weights("b", 4)[:, None]], dim=1)
    hidden = torch.clamp(torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], -1) @ matrix.mT, min=0)
    hidden = torch.cat((hidden, hidden.new_ones(len(hidden), 1)), 1)
    observe(torch.mv(hidden, weights("v", 5)), y)


def columns(x, y=None):
    """Data in columns."""
    hidden = torch.relu(weights("w", 4, INPUTS) @ x.T + weights("b", 4, 1))
    observe((weights("v", 1, 4) @ hidden).squeeze(0), y)


def scaled(x, y=None):
    """Scaling before, within and after; a known offset and a known factor for each row."""
    w = weights("w", INPUTS, 4) / math.sqrt(INPUTS)
    hidden = F.relu(2.0 * (x - 0.5) @ w - 0.3) * torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=x.dtype)
    out = (-hidden / 4) @ (0.1 * weights("v", 4) + 0.2)
    observe(1.0 - out * x[:, 0] + x[:, 1], y)


def one_vector(x, y=None):
    """Linear regression with an intercept, written elementwise."""
    w = weights("w", INPUTS, scale=2.0, loc=0.3)
    observe((x * w).sum(-1) + pyro.sample("intercept", dist.Normal(number(1.0), number(3.0))), y)


def constant(x, y=None):
    """No inputs at all: a mean to be learned."""
    observe(weights("mu").expand(len(x)), y)


def pooled(x, y=None):
    """Two halves of a layer, one of them moved about, then an average over units."""
    hidden = F.relu(x @ weights("w", INPUTS, 6))
    left, right = hidden.chunk(2, dim=-1)
    mixed = torch.stack([left.flip(-1), -right], dim=1).flatten(1)
    out = mixed.reshape(len(x), 2, 3).transpose(1, 2).reshape(len(x), -1) @ weights("v", 6, 2)
    observe(out.mean(-1), y)


def plates(x, y=None):
    """Weights in plates instead of ``to_event``, and a random quantity reported on the way."""
    with pyro.plate("units", 4, dim=-1), pyro.plate("inputs", INPUTS, dim=-2):
        w = pyro.sample("w", dist.Normal(number(0.0), number(1.0)))
    total = 0
    for i in pyro.plate("outputs", 4):
        part = torch.relu(x @ w[:, i]) * pyro.sample(f"v{i}", dist.Normal(number(0.0), number(1.0)))
        total = total + part
    pyro.deterministic("f", total)
    pyro.sample("y", dist.Normal(total, 0.5).to_event(1), obs=y)


def two_precisions(x, y=None):
    """A precision for each layer, one of them with a known factor; a noise that is twice as wide."""
    a, b = gamma("a", 5.0, 4.0), gamma("b", 7.0, 3.0)
    hidden = torch.relu(x @ weights("w", INPUTS, 4, scale=1 / torch.sqrt(a)))
    out = hidden @ weights("v", 4, scale=0.5 * b.pow(-0.5), loc=0.1)
    observe(out, y, 2.0 * gamma("noise") ** -0.5)


class Torch(PyroModule):
    """Somebody who writes modules."""

    def __init__(self):
        super().__init__()
        self.first, self.last = PyroModule[nn.Linear](INPUTS, 4), PyroModule[nn.Linear](4, 1)
        self.double()
        for layer in (self.first, self.last):
            prior = dist.Normal(number(0.0), number(1.0))
            layer.weight = PyroSample(prior.expand(layer.weight.shape).to_event(2))
        self.first.bias = PyroSample(dist.Normal(number(0.0), number(1.0)).expand([4]).to_event(1))
        self.activation = nn.ReLU()

    def forward(self, x, y=None):
        output = self.last(self.activation(self.first(x))).squeeze()
        with pyro.plate("data", x.shape[0]):
            return pyro.sample("y", dist.Normal(output, 0.5), obs=y)


def shortcut(x, y=None):
    """A layer that is used with a bias and without; a unit that is 2."""
    plain = x @ weights("w", INPUTS, 4)
    hidden = F.relu(plain + weights("b", 4)) + plain
    observe(F.pad(hidden, (0, 1), value=2.0) @ weights("v", 5), y)


def needs_y(x, y):
    """No default for ``y``, the scale as a tensor."""
    observe(F.relu(x @ weights("u", INPUTS, 4)) @ weights("v", 4), y, torch.tensor(0.5))


NETWORKS = {
    "pbp": pbp(),
    "pbp deep": pbp((4, 5)),
    "pbp without bias": pbp((4, 5), bias=False),
    "modules": Torch(),
    **{
        model.__name__: model
        for model in (
            bnn, residual, leaky, split_matrix, joined_matrix, columns, scaled, one_vector, constant, pooled,
            plates, two_precisions, shortcut, needs_y,
        )
    },
}  # fmt: skip


def data(rows: int = 40, seed: int = 0, inputs: int = INPUTS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inputs, generator=generator, dtype=torch.float64)
    noise = torch.randn(rows, generator=generator, dtype=torch.float64)
    return x, torch.relu(x[:, 0]) - 0.5 * x[:, -1] + 0.2 * noise
