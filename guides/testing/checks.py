"""What every guide must do: laws that hold whatever the guide is, so that any package can test its own.

Every check takes a :class:`~guides.testing.problems.Case` and raises ``AssertionError``.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable

import pyro
import torch
from pyro import distributions as dist
from pyro.infer import TraceMeanField_ELBO
from scipy.optimize import brentq
from torch import Tensor

from guides.testing.noise import repeats
from guides.testing.problems import (
    NOISE,
    Case,
    data,
    linear_model,
    network,
    normal,
    priors_only,
    product,
    spike_slab,
)
from guides.testing.running import (
    drawn_losses,
    each_batch,
    fit,
    gradients,
    loss_and_gradients,
    mean_of,
    perturb,
    vectorized,
)
from guides.testing.yardsticks import assert_same_mean, z_bound
from guides.truth.conjugate import conjugate_linear_regression
from guides.truth.spike_slab_linear import enumerate_spike_slab

#: Nats that a fit may stop short of the evidence where the guide's family holds the posterior.
GAP = 0.15


def check_guide(make: Callable, prior: Callable = normal) -> None:
    """Every law, for a guide of any package.  Takes some seconds.

    >>> from guides.testing import check_guide, spike_slab
    >>> check_guide(MyGuide)
    >>> check_guide(MySparseGuide, prior=spike_slab)

    A guide is a subclass of :class:`guides.core.flat_guide.FlatGuide`, what ``zoo fit`` can fit by gradient
    descent.  Where a law cannot hold (a guide that is biased by construction misses the posterior), call the
    checks of the others: ``check_gradients(Case("mine", MyGuide))``.

    :param make: ``model -> guide``
    :param prior: of the weights: ``normal`` or ``spike_slab``
    :raises AssertionError: naming the law that is broken
    """
    case = Case(getattr(make, "__name__", "guide"), make, prior)
    for check in CHECKS:
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        try:
            check(case)
        except AssertionError as error:
            raise AssertionError(f"{case}, {check.__name__}: {error}") from error


def check_posterior(case: Case) -> None:
    """On an orthogonal design the posterior is a product: a fit reaches its evidence and its moments.

    The gap of the bound is ``KL(q || posterior)``.  Of all laws with their mean and sd the Gaussians are the
    nearest to a Gaussian, so that for Gaussian weights a gap ``g`` allows a mean off by ``sqrt(2 g)``
    posterior sds, and a ratio ``r`` of the sds with ``(r^2 - 1) / 2 - log r <= g``, whatever the law.  For
    spikes and slabs it allows inclusion probabilities off by ``sqrt(g / 2)`` (Pinsker).
    """
    x, y = data(rows=12, columns=4)
    x = torch.linalg.qr(x)[0] * 2
    model = linear_model(case.prior)
    guide = case.make(model)
    fit(model, guide, x, y, steps=400, lr=0.05, elbo=vectorized(TraceMeanField_ELBO, 20))
    bounds = -drawn_losses(model, guide, x, y, runs=30, particles=100)
    error = float(z_bound() * bounds.std() / 30**0.5)
    exact = _exact_posterior(case, x, y)
    bound, truth = float(bounds.mean()), float(exact.log_evidence)
    assert truth - GAP - error < bound < truth + error, f"bound {bound:.3f}, evidence {truth:.3f}"
    check = _check_inclusion if case.prior is spike_slab else _check_moments
    check(guide.draws(4000, seed=1)["w"], exact, truth - bound + error)


def _exact_posterior(case: Case, x: Tensor, y: Tensor):
    if case.prior is spike_slab:
        laws = {"inclusion_prob": 0.3, "slab_scale": 1 / NOISE, "noise_scale": NOISE}
        return enumerate_spike_slab(x.numpy(), y.numpy(), **laws)
    return conjugate_linear_regression(x.numpy(), y.numpy(), prior_scale=1.0, noise_scale=NOISE)


def _check_moments(draws: Tensor, exact, gap: float) -> None:
    sd = (1 + 4 / NOISE**2) ** -0.5
    ratio = draws.std(0) / sd
    shift = (draws.mean(0) - torch.as_tensor(exact.mean)).abs() / sd
    assert (shift < (2 * gap) ** 0.5 + z_bound(4) * ratio / 4000**0.5).all(), f"means off by {shift} sds"
    fourth = ((draws - draws.mean(0)) / draws.std(0)).pow(4).mean(0)
    slack = z_bound(4) * ratio * ((fourth - 1) / 4 / 4000) ** 0.5  # the standard error of an sd
    low, high = (brentq(lambda r: (r * r - 1) / 2 - math.log(r) - gap, *ends) for ends in ((1e-3, 1), (1, 9)))
    assert ((low - slack < ratio) & (ratio < high + slack)).all(), f"ratios of sds {ratio}"


def _check_inclusion(draws: Tensor, exact, gap: float) -> None:
    found, truth = (draws != 0).double().mean(0), torch.as_tensor(exact.inclusion)
    error = z_bound(4) * 0.5 / 4000**0.5
    assert ((found - truth).abs() < (gap / 2) ** 0.5 + error).all(), f"inclusion {found}, exact {truth}"


def check_gradients(case: Case) -> None:
    """The gradient reaches every parameter."""
    x, y = data()
    model, guide = network(case.prior), case.make(network(case.prior))
    total: dict[str, Tensor] = {}
    for _ in repeats(5):  # a hidden unit may be dead for one draw
        for name, value in gradients(model, guide, guide.elbo(), x, y).items():
            total[name] = total.get(name, torch.zeros(())) + value.abs()
    still = [name for name, value in total.items() if not (value > 0).all()]
    assert not still, f"no gradient reaches {', '.join(still)}"


def check_divergence(case: Case) -> None:
    """Without data the loss, in training or not, is the divergence from the prior: the mean over draws of
    ``log q - log p``.
    """
    model = priors_only(case.prior)
    guide = case.make(model)
    guide.setup()
    perturb(guide)
    draws, log_q = guide.draws_with_log_prob(10_000, seed=1)
    log_p = case.prior([4, 3]).log_prob(draws["w"])
    log_p = log_p + dist.Normal(torch.arange(4.0), 0.5).log_prob(draws["b"]).sum(-1)
    log_p = log_p + dist.Gamma(torch.tensor([2.0, 3.0]), 1.5).log_prob(draws["rate"]).sum(-1)
    elbo = vectorized(TraceMeanField_ELBO, 100)
    training = torch.stack([loss_and_gradients(model, guide, elbo)["loss"] for _ in repeats(25)])
    for loss in (drawn_losses(model, guide), training.double()):
        assert_same_mean((log_q - log_p).double(), loss)


def check_minibatches(case: Case) -> None:
    """The mean over all minibatches is the loss, and the gradient, of all rows."""
    x, y = data(rows=12)
    whole, batches = linear_model(case.prior), linear_model(case.prior, batch_size=3)
    guide = case.make(whole)
    guide.setup(x, y)
    perturb(guide, 0.2)
    elbo = vectorized(TraceMeanField_ELBO, 50)

    def mean_of_batches() -> dict[str, Tensor]:
        return mean_of(each_batch(12, 3, lambda: loss_and_gradients(batches, guide, elbo, x, y)))

    ours = [mean_of_batches() for _ in repeats(20)]
    truth = [loss_and_gradients(whole, guide, elbo, x, y) for _ in repeats(40)]
    for name in truth[0]:
        assert_same_mean(*(torch.stack([run[name] for run in runs]).double() for runs in (ours, truth)))


def check_particles(case: Case) -> None:
    """Vectorised particles have the mean loss and gradient of single runs."""
    x, y = data(rows=6)
    model = product("linear", case.prior)
    guide = case.make(model)
    guide.setup(x, y)
    perturb(guide, 0.2)
    one, many = TraceMeanField_ELBO(), vectorized(TraceMeanField_ELBO, 20)
    single = [loss_and_gradients(model, guide, one, x, y) for _ in repeats(300)]
    together = [loss_and_gradients(model, guide, many, x, y) for _ in repeats(60)]
    for name in single[0]:
        assert_same_mean(*(torch.stack([run[name] for run in runs]).double() for runs in (single, together)))


def check_same_seed(case: Case) -> None:
    """The same seed gives the same fit."""
    x, y = data()
    results = []
    for _ in range(2):
        pyro.set_rng_seed(4)
        guide = case.make(network(case.prior))
        history = fit(network(case.prior), guide, x, y, steps=5)
        results.append((history, guide.draws(3, seed=1)["w1"]))
    assert results[0][0] == results[1][0], "other losses"
    assert torch.equal(results[0][1], results[1][1]), "other draws"


def check_saving(case: Case) -> None:
    """A fit that was saved and loaded into a new guide has the same draws, and another seed has others."""
    x, y = data()
    model, guide = network(case.prior), case.make(network(case.prior))
    fit(model, guide, x, y, steps=3)
    file = io.BytesIO()
    torch.save(guide.state_dict(), file)
    file.seek(0)
    again = case.make(model)
    again.load_state_dict(torch.load(file))
    draws, other = guide.draws(3, seed=1), guide.draws(3, seed=2)
    assert all(torch.equal(value, draws[name]) for name, value in again.draws(3, seed=1).items())
    assert not torch.equal(draws["w1"], other["w1"])


CHECKS = (
    check_posterior,
    check_gradients,
    check_divergence,
    check_minibatches,
    check_particles,
    check_same_seed,
    check_saving,
)
