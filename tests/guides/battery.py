"""What every variational guide of this package must do: cases, models with a known answer, yardsticks.

A new guide joins by one line in ``CASES``.  Random comparisons are judged by their own standard errors, at a
family-wise error of ``FAMILY_WISE`` for each test (seeds are fixed, so a passing test keeps passing).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import pyro
import torch
from pyro import distributions as dist
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from scipy import stats
from scipy.linalg import hadamard
from torch import Tensor
from torch.distributions import kl_divergence
from torch.nn import functional as F

from guides import AutoConcrete, AutoMeanField, AutoMNF, AutoSpikeSlab, AutoSpikeSlabMVN, SpikeSlab
from guides.variational.concrete import relaxed_moments

FAMILY_WISE = 1e-5
NOISE = 0.7


# ---------------------------------------------------------------------- yardsticks


def z_bound(comparisons: int = 1) -> float:
    return stats.norm.isf(FAMILY_WISE / (2 * comparisons))


def assert_mean(samples: Tensor, truth: Tensor | float) -> None:
    """``samples [n, ...]``: every mean lies within Monte Carlo error of the truth."""
    _assert_small(samples.mean(0) - truth, samples.var(0) / len(samples), truth)


def assert_same_mean(a: Tensor, b: Tensor) -> None:
    """``a [n, ...]`` and ``b [m, ...]``, independent: equal means within Monte Carlo error."""
    _assert_small(a.mean(0) - b.mean(0), a.var(0) / len(a) + b.var(0) / len(b), b.mean(0))


def _assert_small(error: Tensor, variance: Tensor, size: Tensor | float) -> None:
    """``error`` has mean zero and this variance; where nothing is random, float32 rounds at this size."""
    rounding = 1e-6 * torch.as_tensor(size).abs()
    z = (error.abs() - rounding).clamp_min(0) / variance.sqrt().clamp_min(1e-30)
    assert z.max() < z_bound(z.numel()), f"z = {z.max():.1f}"


def assert_variance(samples: Tensor, truth: Tensor | float) -> None:
    assert_mean((samples - samples.mean(0)) ** 2 * len(samples) / (len(samples) - 1), truth)


def assert_same_moments(a: Tensor, b: Tensor) -> None:
    assert_same_mean(a, b)
    assert_same_mean((a - a.mean(0)) ** 2, (b - b.mean(0)) ** 2)


def assert_share(hits: Tensor, probability: float) -> None:
    """``hits [n, ...]`` of zeros and ones."""
    n = hits.shape[0]
    z = (hits.double().mean(0) - probability).abs().max() / math.sqrt(probability * (1 - probability) / n)
    assert z < z_bound(hits[0].numel()), f"z = {z:.1f}"


# ---------------------------------------------------------------------- noise by table


class Noise:
    """Tables in place of torch's generator: one row of numbers for each particle.

    Run ``i`` of one particle reads row ``i``, and so does particle ``i`` of a vectorised run: their losses
    are the same numbers, with no Monte Carlo error in which a mistake could hide.

    :param normal: ``[particles, numbers]``, for ``torch.randn`` in the order of the calls
    :param uniform: ``[particles, numbers]``, for ``torch.rand``
    """

    def __init__(self, normal: Tensor, uniform: Tensor | None = None):
        self.normal = normal
        self.uniform = normal[:, :0] if uniform is None else uniform

    @classmethod
    def random(cls, particles: int = 5, numbers: int = 500, seed: int = 5) -> Noise:
        generator = torch.Generator().manual_seed(seed)
        tables = (f((particles, numbers), generator=generator) for f in (torch.randn, torch.rand))
        return cls(*tables)

    @classmethod
    def two_level(cls, runs: int) -> Noise:
        """Plus and minus one, in ``runs - 1`` columns that are orthogonal and add up to zero: the mean over
        the runs is the expectation of everything that is quadratic in as many normal numbers.
        """
        return cls(torch.as_tensor(hadamard(runs)[:, 1:], dtype=torch.get_default_dtype()))

    def __len__(self) -> int:
        return len(self.normal)

    @contextmanager
    def of(self, run: int | slice = slice(None)) -> Iterator[None]:
        """The noise of one run, by default of one with all particles vectorised."""
        rows = slice(run, run + 1) if isinstance(run, int) else run
        normal, uniform = _Table(self.normal[rows], torch.randn), _Table(self.uniform[rows], torch.rand)
        with mock.patch.multiple(
            torch, randn=normal, randn_like=normal.like, rand=uniform, rand_like=uniform.like
        ):
            yield

    def each(self, run: Callable):
        """What ``run()`` returns for every particle alone."""
        for i in repeats(len(self)):
            with self.of(i):
                yield run()


class _Table:
    def __init__(self, rows: Tensor, generated: Callable):
        self.rows, self.generated, self.used = rows, generated, 0

    def __call__(self, *shape, generator=None, out: Tensor | None = None, dtype=None, **_) -> Tensor:
        shape = torch.Size(shape if shape and isinstance(shape[0], int) else shape[0])
        if generator is not None:  # a caller with a seed of its own
            return self.generated(shape, generator=generator, dtype=dtype)
        particles = len(self.rows)
        assert particles == 1 or shape[0] == particles, f"{tuple(shape)} has no number for each particle"
        start, self.used = self.used, self.used + shape.numel() // particles
        assert self.used <= self.rows.shape[1], "the table has too few numbers"
        numbers = self.rows[:, start : self.used].reshape(shape)
        return numbers.to(dtype or torch.get_default_dtype()) if out is None else out.copy_(numbers)

    def like(self, tensor: Tensor) -> Tensor:
        return self(tensor.shape, dtype=tensor.dtype)


# ---------------------------------------------------------------------- cases


def normal(shape: list[int], scale: float = 1.0) -> dist.TorchDistribution:
    return dist.Normal(torch.zeros(()), torch.tensor(scale)).expand(shape).to_event(len(shape))


def spike_slab(shape: list[int], scale: float = 1.0) -> dist.TorchDistribution:
    prior = SpikeSlab(torch.tensor(0.3), torch.tensor(0.0), torch.tensor(scale))
    return prior.expand(shape).to_event(len(shape))


@dataclass(frozen=True)
class Case:
    """A guide and the prior that its weights have in the battery.

    :ivar exact_loss_known: elements are independent, with the KL in closed form; guides with latent variables
        of their own have tests of the same laws in their own files
    :ivar particles_are_runs: every vectorised particle draws for itself all that a run draws
    """

    name: str
    make: Callable
    prior: Callable = normal
    exact_loss_known: bool = True
    particles_are_runs: bool = True

    def __str__(self) -> str:
        return self.name


def concrete(model: Callable, **kwargs) -> AutoConcrete:
    """At one temperature, so that every run has the same law."""
    return AutoConcrete(model, temperature=1.0, **kwargs)


CASES = [
    Case("mean-field", AutoMeanField),
    Case("mean-field-draws", lambda model, **kwargs: AutoMeanField(model, lrt=False, **kwargs)),
    Case("mean-field-on-spike-slab", AutoMeanField, spike_slab),
    Case("spike-slab", AutoSpikeSlab, spike_slab),
    Case("spike-slab-on-normal", AutoSpikeSlab),
    Case("mnf", AutoMNF, spike_slab, exact_loss_known=False),
    Case("mnf-on-normal", AutoMNF, exact_loss_known=False),
    Case("concrete", concrete, spike_slab),
    Case("spike-slab-mvn", AutoSpikeSlabMVN, spike_slab, exact_loss_known=False, particles_are_runs=False),
]
ELBOS = [Trace_ELBO, TraceMeanField_ELBO]


# ---------------------------------------------------------------------- models


def data(rows: int = 20, columns: int = 3, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator)
    return x, x[:, 0] - 0.5 * x[:, -1] + NOISE * torch.randn(rows, generator=generator)


def linear_model(prior: Callable, batch_size: int | None = None) -> Callable:
    """``y ~ Normal(x w, NOISE)`` with ``w`` a vector."""

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", prior([x.shape[-1]]))
        with pyro.plate("data", len(x), subsample_size=batch_size) as rows:
            return pyro.sample("y", dist.Normal(x[rows] @ w, NOISE), obs=None if y is None else y[rows])

    return model


def network(prior: Callable, hidden: int = 4) -> Callable:
    """One hidden layer through ``F.linear``, random biases, Gamma noise precision."""

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        w1 = pyro.sample("w1", prior([hidden, x.shape[-1]], 0.7))
        b1 = pyro.sample("b1", normal([hidden]))
        w2 = pyro.sample("w2", prior([1, hidden], 0.5))
        b2 = pyro.sample("b2", normal([1]))
        precision = pyro.sample("precision", dist.Gamma(6.0, 6.0))
        f = F.linear(torch.relu(F.linear(x, w1, b1)), w2, b2).squeeze(-1)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, precision.rsqrt()), obs=y)

    return model


def product(name: str, prior: Callable) -> Callable:
    """``[N, D] -> [N]`` by weights ``w`` (and ``v``, ``b``) in the ways people write a linear layer."""

    def apply(x: Tensor) -> Tensor:
        columns = x.shape[-1]
        shape = {"linear": [1, columns], "matrix": [columns, 1], "layers": [2, columns], "rows": [1, columns]}
        w = pyro.sample("w", prior(shape.get(name, [columns])))
        if name == "layers":
            hidden = torch.tanh(F.linear(x, w, pyro.sample("b", normal([2]))))
            return hidden @ pyro.sample("v", prior([2])) + pyro.sample("c", normal([]))
        if name == "linear":
            return F.linear(x, w, pyro.sample("b", normal([1]))).squeeze(-1)
        if name == "linear-vector":
            return F.linear(x, w)
        if name == "rows":
            return (w @ x.mT).squeeze(-2)
        if name == "rows-vector":
            return w @ x.T
        return (x @ w).squeeze(-1) if name == "matrix" else x @ w

    def model(x: Tensor, y: Tensor | None = None) -> None:
        f = apply(x)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, NOISE), obs=y)

    return model


PRODUCTS = ["vector", "matrix", "linear", "linear-vector", "rows", "rows-vector", "layers"]


def priors_only(prior: Callable) -> Callable:
    """No data: weights in one layer each, and every site with a closed-form KL."""

    def model() -> Tensor:
        w = pyro.sample("w", prior([4, 3]))
        b = pyro.sample("b", dist.Normal(torch.arange(4.0), 0.5).to_event(1))
        output = F.linear(torch.ones(2, 3), w, b)
        with pyro.plate("groups", 2):
            pyro.sample("rate", dist.Gamma(torch.tensor([2.0, 3.0]), 1.5))
        return output

    return model


def moments_in_training(guide, law) -> tuple[Tensor, Tensor]:
    """Mean and variance of weights as the likelihood sees them while gradients are wanted."""
    if not (isinstance(guide, AutoConcrete) and isinstance(law, SpikeSlab)):
        return law.mean, law.variance
    gate, square = relaxed_moments(law.logits, guide.temperature)
    mean = gate * law.loc
    return mean, square * (law.scale**2 + law.loc**2) - mean**2


def exact_loss(guide, prior: Callable, x: Tensor, y: Tensor) -> Tensor:
    """Minus the evidence bound of :func:`linear_model`: the likelihood is quadratic in the weights."""
    law = guide.site_distribution("w")
    return _minus_bound(law, *moments_in_training(guide, law), prior, x, y)


def exact_loss_of_draws(guide, prior: Callable, x: Tensor, y: Tensor) -> Tensor:
    """:func:`exact_loss` of real networks; another one for guides that relax indicators in training."""
    law = guide.site_distribution("w")
    return _minus_bound(law, law.mean, law.variance, prior, x, y)


def _minus_bound(law, mean: Tensor, variance: Tensor, prior: Callable, x: Tensor, y: Tensor) -> Tensor:
    errors = ((y - x @ mean) ** 2).sum() + (x**2 @ variance).sum()
    likelihood = -0.5 * len(y) * math.log(2 * math.pi * NOISE**2) - 0.5 * errors / NOISE**2
    own_prior = prior([x.shape[-1]]).base_dist
    return kl_divergence(law, own_prior).sum() - likelihood


# ---------------------------------------------------------------------- running


def repeats(n: int) -> Iterator[int]:
    """``range(n)``, with Pyro's validation, a third of a step's time, in the first round only."""
    for i in range(n):
        with pyro.validation_enabled(i == 0):
            yield i


def losses(model: Callable, guide, elbo, n: int, *args) -> Tensor:
    return torch.tensor([elbo.loss(model, guide, *args) for _ in repeats(n)], dtype=torch.float64)


def gradients(model: Callable, guide, elbo, *args) -> dict[str, Tensor]:
    guide.zero_grad()
    elbo.loss_and_grads(model, guide, *args)
    return {name: p.grad.clone() for name, p in guide.named_parameters()}


def loss_and_gradients(model: Callable, guide, elbo, *args) -> dict[str, Tensor]:
    """:func:`gradients`, and the loss under the name ``loss``."""
    guide.zero_grad()
    loss = elbo.loss_and_grads(model, guide, *args)
    return {"loss": torch.tensor(loss)} | {name: p.grad.clone() for name, p in guide.named_parameters()}


def mean_of(results: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    results = list(results)
    return {name: torch.stack([r[name] for r in results]).mean(0) for name in results[0]}


def assert_equal_results(ours: dict[str, Tensor], truth: dict[str, Tensor], rtol: float = 2e-5) -> None:
    """The same losses and gradients but for rounding, at the size of each tensor's largest element."""
    assert ours.keys() == truth.keys()
    for name, expected in truth.items():
        atol = rtol * expected.abs().max().item() if expected.numel() else 0.0
        torch.testing.assert_close(ours[name], expected, rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


def vectorized(elbo: type, particles: int):
    return elbo(num_particles=particles, vectorize_particles=True, max_plate_nesting=1)


def assert_particles_are_runs(model: Callable, guide, elbo: type, *args) -> None:
    """A vectorised run has the mean loss and gradient of the sequential runs that have the same noise."""
    noise = Noise.random()
    truth = mean_of(noise.each(lambda: loss_and_gradients(model, guide, elbo(), *args)))
    with noise.of():
        together = loss_and_gradients(model, guide, vectorized(elbo, len(noise)), *args)
    assert_equal_results(together, truth)


@torch.no_grad()
def assert_drawn_particles_are_runs(model: Callable, guide, elbo: type, *args) -> None:
    """The same of the loss without gradients, where weights are drawn."""
    noise, alone = Noise.random(), elbo()
    runs = noise.each(lambda: {"loss": torch.tensor(alone.loss(model, guide, *args))})
    truth = mean_of(runs)
    with noise.of():
        together = vectorized(elbo, len(noise)).loss(model, guide, *args)
    assert_equal_results({"loss": torch.tensor(together)}, truth)


def each_batch(rows: int, size: int, run: Callable) -> Iterator:
    """What ``run()`` returns on each of the minibatches into which a plate of so many rows falls."""
    for start in range(0, rows, size):
        with mock.patch.object(torch, "randperm", lambda n, start=start, **_: torch.arange(n).roll(-start)):
            yield run()


def drawn_losses(model: Callable, guide, *args, runs: int = 25, particles: int = 200) -> Tensor:
    """Means of vectorised particles without gradients, ``[runs]``: of real networks."""
    with torch.no_grad():
        return losses(model, guide, vectorized(TraceMeanField_ELBO, particles), runs, *args)


def fit(model: Callable, guide, *args, steps: int = 600, lr: float = 0.05, elbo=None) -> list[float]:
    """Adam with the learning rate falling linearly to zero."""
    optimizer = guide.optimizer(lr=lr)
    svi = SVI(model, guide, optimizer, elbo or guide.elbo())
    history = []
    for step in repeats(steps):
        optimizer.set_lr(lr * (1 - step / steps))
        history.append(svi.step(*args))
    return history


def perturb(guide, scale: float = 0.5, seed: int = 3) -> None:
    """Moves the parameters somewhere nondescript, so that no symmetry of the start hides a wrong term."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in guide.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter += scale * noise
