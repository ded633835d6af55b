"""What every guide must do: laws that hold whatever the guide is, so that any package can test its own.

Every check takes a :class:`~guides.testing.problems.Case` and raises ``AssertionError``.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable

import pyro
import torch
from pyro import distributions as dist
from pyro.infer import Importance, TraceMeanField_ELBO
from pyro.poutine.guide import GuideMessenger
from scipy import stats
from scipy.optimize import brentq
from torch import Tensor

from guides.core.pyro_traces import PARTICLES
from guides.core.sites import UnsupportedSiteError
from guides.testing.noise import repeats
from guides.testing.problems import (
    NOISE,
    Case,
    constrained,
    constrained_data,
    constrained_evidence,
    constrained_posterior,
    data,
    linear_model,
    local_model,
    network,
    normal,
    priors_only,
    product,
    spike_slab,
)
from guides.testing.running import (
    ScaleOfData,
    drawn_losses,
    each_batch,
    fit,
    gradients,
    loss_and_gradients,
    mean_of,
    perturb,
    set_up,
    vectorized,
)
from guides.testing.yardsticks import assert_same_mean, z_bound
from guides.truth.conjugate import conjugate_linear_regression
from guides.truth.spike_slab_linear import enumerate_spike_slab

#: Nats that a fit may stop short of the evidence where the guide's family holds the posterior.
GAP = 0.15


def check_guide(make: Callable, prior: Callable = normal) -> None:
    """Every law, for a guide of any package.  Takes 10 to 20 seconds.

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
    """On an orthogonal design the posterior is a product: a fit reaches its evidence and its moments, and
    draws that are weighed by ``p(y, w) / q(w)`` have the evidence for a mean.  A guide whose draws cannot be
    weighed gets a warning with its reason.

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
    draws, gap = guide.draws(4000, seed=1)["w"], truth - bound + error
    _check_weights(case, model, guide, truth, gap, x, y)
    if case.prior is spike_slab:
        _check_inclusion(draws, exact, gap)
    else:
        _check_moments((draws - torch.as_tensor(exact.mean)) * (1 + 4 / NOISE**2) ** 0.5, gap)


def _exact_posterior(case: Case, x: Tensor, y: Tensor):
    if case.prior is spike_slab:
        laws = {"inclusion_prob": 0.3, "slab_scale": 1 / NOISE, "noise_scale": NOISE}
        return enumerate_spike_slab(x.numpy(), y.numpy(), **laws)
    return conjugate_linear_regression(x.numpy(), y.numpy(), prior_scale=1.0, noise_scale=NOISE)


def _check_weights(case: Case, model: Callable, guide, evidence: float, gap: float, *args) -> None:
    """Of posterior mass that draws miss, ``sqrt(gap / 2)`` at most (Pinsker), a sample sees nothing."""
    try:
        run = Importance(model, guide=guide, num_samples=300).run(*args)
    except NotImplementedError as refusal:
        warnings.warn(f"draws of {case} are not weighed: {refusal}", stacklevel=3)
        return
    ratios = (torch.stack(list(run.log_weights)).double() - evidence).exp()
    error = z_bound() * float(ratios.std()) / len(ratios) ** 0.5
    found = float(ratios.mean())
    assert abs(found - 1) < error + max(gap / 2, 0.0) ** 0.5 + 1e-3, (
        f"weighed draws have {found:.3f} times the evidence"
    )


def _check_moments(scores: Tensor, gap: float) -> None:
    """``scores [n, k]``: draws in the units of a posterior of which they are standard normal."""
    n, k = scores.shape
    sd, shift = scores.std(0), scores.mean(0).abs()
    assert (shift < (2 * gap) ** 0.5 + z_bound(k) * sd / n**0.5).all(), f"means off by {shift} sds"
    fourth = ((scores - scores.mean(0)) / sd).pow(4).mean(0)
    slack = z_bound(k) * sd * ((fourth - 1) / 4 / n) ** 0.5  # the standard error of an sd
    low, high = (brentq(lambda r: (r * r - 1) / 2 - math.log(r) - gap, *ends) for ends in ((1e-3, 1), (1, 9)))
    assert ((low - slack < sd) & (sd < high + slack)).all(), f"ratios of sds {sd}"


def _check_inclusion(draws: Tensor, exact, gap: float) -> None:
    found, truth = (draws != 0).double().mean(0), torch.as_tensor(exact.inclusion)
    error = z_bound(4) * 0.5 / 4000**0.5
    assert ((found - truth).abs() < (gap / 2) ** 0.5 + error).all(), f"inclusion {found}, exact {truth}"


def check_constrained(case: Case) -> None:
    """At constrained sites densities count the Jacobian of the map from the real line.

    The loss has the mean of ``log q - log p`` over draws, and a fit reaches posteriors in closed form, which
    Gaussians on the real line miss by less than 0.03 nats in all.  A draw's normal score is the quantile of a
    standard normal at its own level in the posterior: in these scores the posterior is standard normal, and
    a gap allows what it allows in :func:`check_posterior`.  A guide that refuses such sites is not checked;
    a warning gives its reason.
    """
    data = constrained_data()
    try:
        guide = case.make(constrained)
        set_up(guide, *data)
    except (UnsupportedSiteError, NotImplementedError) as refusal:
        warnings.warn(f"{case} is not checked at constrained sites: {refusal}", stacklevel=2)
        return
    exact, evidence = constrained_posterior(*data), constrained_evidence(*data)

    def draws_and_divergences() -> tuple[dict[str, Tensor], Tensor]:
        """Draws, and what is averaged for the divergence from the posterior, ``[n]``."""
        draws, log_q = guide.draws_with_log_prob(4000, seed=1)
        log_p = sum(torch.as_tensor(law.logpdf(draws[name].double())) for name, law in exact.items())
        return draws, log_q.double() - log_p

    perturb(guide)
    _assert_losses(constrained, guide, draws_and_divergences()[1] - evidence, *data)
    fit(constrained, guide, *data, steps=400, lr=0.05, elbo=vectorized(TraceMeanField_ELBO, 20))
    draws, divergences = draws_and_divergences()
    gap, error = float(divergences.mean()), float(z_bound() * divergences.std() / 4000**0.5)
    assert -error < gap < GAP + error, f"divergence from the posterior {gap:.3f}"
    quantiles = (stats.norm.ppf(law.cdf(draws[name].double())) for name, law in exact.items())
    scores = [torch.as_tensor(values) for values in quantiles]
    _check_moments(torch.stack(scores, -1), gap + error)


def _assert_losses(model: Callable, guide, samples: Tensor, *args, particles: int = 100) -> None:
    """The loss, in training or not, has the mean of ``samples``."""
    elbo = vectorized(TraceMeanField_ELBO, particles)
    training = [loss_and_gradients(model, guide, elbo, *args)["loss"] for _ in repeats(25)]
    for loss in (drawn_losses(model, guide, *args), torch.stack(training).double()):
        assert_same_mean(samples.double(), loss)


def check_gradients(case: Case) -> None:
    """The gradient reaches every parameter."""
    x, y = data()
    model = network(case.prior)
    guide = case.make(model)
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
    log_p = log_p + dist.Normal(0.0, 2.0).log_prob(draws["shift"]).sum(-1)
    _assert_losses(model, guide, log_q - log_p)


def check_training(case: Case) -> None:
    """In training the loss has the mean of that of draws, whatever a guide takes in place of them (moments of
    layers): with data that a linear model has a quadratic likelihood of.

    A guide that relaxes its indicators has another loss in training, and is not for this check.
    """
    x, y = data()
    model = linear_model(case.prior)
    guide = case.make(model)
    # near the least squares errors are of weights' variances, which draws away from there would hide
    fit(model, guide, x, y, steps=100, lr=0.1, elbo=vectorized(TraceMeanField_ELBO, 20))
    # so many particles that a variance a tenth too large is seen
    drawn = drawn_losses(model, guide, x, y, particles=2000)
    _assert_losses(model, guide, drawn, x, y, particles=2000)


def check_local_latents(case: Case) -> None:
    """The mean over all minibatches is the loss of all rows where each row has a latent value of its own.

    A guide that refuses such sites is not checked; a warning gives its reason.
    """
    _, y = data(rows=12)
    whole, batches = local_model(), local_model(batch_size=3)
    guide, of_batches = case.make(whole), case.make(batches)
    try:
        set_up(guide, y)
        set_up(of_batches, y)
    except (ValueError, NotImplementedError) as refusal:  # the sites are not supported
        warnings.warn(f"{case} is not checked with latent values of rows: {refusal}", stacklevel=2)
        return
    perturb(guide, 0.2)
    of_batches.load_state_dict(guide.state_dict())
    _assert_batches(whole, guide, batches, of_batches, vectorized(TraceMeanField_ELBO, 50), y)


def check_minibatches(case: Case) -> None:
    """The mean over all minibatches is the loss, and the gradient, of all rows.

    ``case.make`` may give any guide of Pyro, a function too.
    """
    x, y = data(rows=12)
    whole, batches = linear_model(case.prior), linear_model(case.prior, batch_size=3)
    guide, of_batches = case.make(whole), case.make(batches)
    set_up(guide, x, y)
    perturb(guide, 0.2)
    set_up(of_batches, x, y)
    if isinstance(guide, torch.nn.Module):  # a function's parameters are shared already
        of_batches.load_state_dict(guide.state_dict())
    # only random tensors multiply all rows for all particles at once
    particles = {"vectorize_particles": isinstance(guide, GuideMessenger), "max_plate_nesting": 1}
    elbo = ScaleOfData(50 if particles["vectorize_particles"] else 5, **particles)
    for _ in each_batch(12, 3, lambda: elbo.loss(batches, of_batches, x, y)):
        pass
    assert elbo.scales == {4.0}, f"the rows of a quarter count {elbo.scales} times, not 4"
    _assert_batches(whole, guide, batches, of_batches, elbo, x, y)


def _assert_batches(whole: Callable, guide, batches: Callable, of_batches, elbo, *args) -> None:
    """Loss and gradients of 12 rows are the mean of those of minibatches of 3."""

    def batch() -> dict[str, Tensor]:
        return loss_and_gradients(batches, of_batches, elbo, *args)

    ours = [mean_of(each_batch(12, 3, batch)) for _ in repeats(20)]
    truth = [loss_and_gradients(whole, guide, elbo, *args) for _ in repeats(40)]
    _assert_same_means(ours, truth)


def check_particles(case: Case) -> None:
    """Vectorised particles have the mean loss and gradient of single runs, and draws of their own."""
    x, y = data(rows=6)
    model = product("linear", case.prior)
    guide = case.make(model)
    guide.setup(x, y)
    perturb(guide, 0.2)
    one, many = TraceMeanField_ELBO(), vectorized(TraceMeanField_ELBO, 20)
    single = [loss_and_gradients(model, guide, one, x, y) for _ in repeats(300)]
    together = [loss_and_gradients(model, guide, many, x, y) for _ in repeats(60)]
    _assert_same_means(single, together)
    _assert_own_draws(case)


def _assert_own_draws(case: Case) -> None:
    """Particles that share a draw have the right means all the same, but average nothing."""
    particles = 20
    guide = case.make(priors_only(case.prior))
    guide.setup()
    perturb(guide)
    with torch.no_grad():
        one, other = guide(), guide()
        with pyro.plate(PARTICLES, particles, dim=-2):
            together = guide()
    random = {name: value for name, value in together.items() if not bool((one[name] == other[name]).all())}
    shared = [n for n, v in random.items() if len(v) < particles or bool((v == v[:1]).all())]
    assert not shared, f"vectorised particles share one draw of {', '.join(shared)}"


def _assert_same_means(*sides: list[dict[str, Tensor]]) -> None:
    """Of loss and gradients of some runs."""
    for name in sides[0][0]:
        assert_same_mean(*(torch.stack([run[name] for run in runs]).double() for runs in sides))


def check_same_seed(case: Case) -> None:
    """The same seed gives the same fit."""
    x, y = data()
    results = []
    for _ in range(2):
        pyro.set_rng_seed(4)
        model = network(case.prior)
        guide = case.make(model)
        history = fit(model, guide, x, y, steps=5)
        results.append((history, guide.draws(3, seed=1)["w1"]))
    assert results[0][0] == results[1][0], "other losses"
    assert torch.equal(results[0][1], results[1][1]), "other draws"


def check_saving(case: Case) -> None:
    """A fit that was saved and loaded into a new guide has the same numbers, those included that only its
    training looks at, and the same draws; another seed has others.
    """
    x, y = data()
    model = network(case.prior)
    guide = case.make(model)
    fit(model, guide, x, y, steps=3)
    file = io.BytesIO()
    torch.save(guide.state_dict(), file)
    file.seek(0)
    again = case.make(model)
    again.load_state_dict(torch.load(file))
    lost = _lost(guide.state_dict(), again.state_dict())
    draws, other = guide.draws(3, seed=1), guide.draws(3, seed=2)
    changed = [name for name, value in again.draws(3, seed=1).items() if not torch.equal(value, draws[name])]
    assert not changed, f"loaded, it has other draws of {', '.join(changed)} with the same seed"
    assert not torch.equal(draws["w1"], other["w1"]), "the same draws with another seed"
    assert not lost, f"loaded, it has lost the numbers of {', '.join(lost)}"


def _lost(before: dict, after: dict) -> list[str]:
    """Names of the tensors that a state does not have, or has other numbers of."""

    def kept(name: str, value: Tensor) -> bool:
        same_shape = name in after and after[name].shape == value.shape
        return same_shape and torch.allclose(value, after[name], rtol=0, atol=0, equal_nan=True)

    return [n for n, v in before.items() if isinstance(v, Tensor) and not kept(n, v)]


CHECKS = (
    check_posterior,
    check_constrained,
    check_gradients,
    check_divergence,
    check_training,
    check_minibatches,
    check_local_latents,
    check_particles,
    check_same_seed,
    check_saving,
)
