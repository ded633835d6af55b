"""Losses, gradients and fits of a guide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from unittest import mock

import pyro
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from torch import Tensor

from guides.testing.noise import Noise, repeats
from guides.testing.yardsticks import assert_equal_results

ELBOS = [Trace_ELBO, TraceMeanField_ELBO]


def losses(model: Callable, guide, elbo, n: int, *args) -> Tensor:
    return torch.tensor([elbo.loss(model, guide, *args) for _ in repeats(n)], dtype=torch.float64)


def set_up(guide, *args) -> None:
    """Makes the parameters; those of Pyro's own guides and of functions are made by a first run."""
    if hasattr(guide, "setup"):
        guide.setup(*args)
    else:
        with poutine.block():
            guide(*args)


def parameters(guide) -> dict[str, Tensor]:
    """What is trained, by name; of a guide that is a function, all that is in Pyro's store."""
    owner = guide if isinstance(guide, torch.nn.Module) else pyro.get_param_store()
    return dict(owner.named_parameters())


def gradients(model: Callable, guide, elbo, *args) -> dict[str, Tensor]:
    results = loss_and_gradients(model, guide, elbo, *args)
    return {name: results[name] for name in parameters(guide)}


def loss_and_gradients(model: Callable, guide, elbo, *args) -> dict[str, Tensor]:
    """:func:`gradients`, and the loss under the name ``loss``."""
    for parameter in parameters(guide).values():
        parameter.grad = None
    loss = elbo.loss_and_grads(model, guide, *args)
    found = parameters(guide)
    gradients = {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in found.items()}
    return {"loss": torch.tensor(loss)} | gradients


def mean_of(results: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    results = list(results)
    return {name: torch.stack([r[name] for r in results]).mean(0) for name in results[0]}


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


class ScaleOfData(TraceMeanField_ELBO):
    """The loss, which also notes by what the plate of ``y`` scales its data.

    :ivar scales: all that were seen
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.scales: set[float] = set()

    def _get_trace(self, model, guide, args, kwargs):
        model_trace, guide_trace = super()._get_trace(model, guide, args, kwargs)
        self.scales.add(float(model_trace.nodes["y"]["scale"]))
        return model_trace, guide_trace


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
        for parameter in parameters(guide).values():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter += scale * noise
