"""Variational implicit processes against Bayesian linear regression on their features."""

from __future__ import annotations

import math
import re
import warnings

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule, PyroSample
from torch import nn

from guides.core.course import Course
from guides.core.settling import LAST_OF_HALF_COSINE, UnsettledWarning
from guides.core.svi import DivergenceError, shuffled_epochs
from guides.implicit import SparseImplicitProcess, VariationalImplicitProcess
from guides.implicit.fitted import check_regression, remembered, warn_unsettled
from guides.posterior import log_joint
from guides.testing import assert_mean
from guides.truth import conjugate_linear_regression
from zoo.models import BNNProcess, NeuralSampler

NOISE = 0.3
X = torch.linspace(-2, 2, 30, dtype=torch.float64).unsqueeze(-1)
Y = X[:, 0].sin() + NOISE * torch.randn(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def network() -> BNNProcess:
    torch.manual_seed(0)
    return BNNProcess(1, (10,), dtype=torch.float64)


def fitted(prior=None, steps: int = 3, lr: float = 1e-2, **options) -> VariationalImplicitProcess:
    options = {"num_functions": 6, "noise_scale": NOISE, **options}
    return VariationalImplicitProcess(prior or network(), **options).fit(X, Y, steps=steps, lr=lr)


def exact(guide: VariationalImplicitProcess):
    """The closed form of ``y - m ~ N(phi' a, noise^2)``, ``a ~ N(0, I)``."""
    mean, phi = (part.detach() for part in guide.features(X))
    found = conjugate_linear_regression(
        phi.mT.numpy(), (Y - mean).numpy(), prior_scale=1.0, noise_scale=NOISE
    )
    return found, mean, phi


def with_exact_law(guide: VariationalImplicitProcess) -> VariationalImplicitProcess:
    found, _, _ = exact(guide)
    root = torch.linalg.cholesky(torch.tensor(found.covariance))
    guide.loc.data = torch.tensor(found.mean)
    guide.raw_root.data = root.tril(-1) + root.diagonal().log().diag()
    return guide


def test_the_exact_posterior_of_the_features_reaches_their_evidence():
    """alpha = 0 is the evidence bound: tight there, and flat."""
    guide = with_exact_law(fitted(alpha=0.0))
    objective = guide.energy(X, Y) - guide.divergence()
    assert objective.item() == pytest.approx(exact(guide)[0].log_evidence, rel=1e-10)
    objective.backward()
    assert guide.loc.grad.abs().max() < 1e-8
    assert guide.raw_root.grad.abs().max() < 1e-8


def test_a_fit_finds_it():
    """The divergence from the exact posterior is what the bound lacks."""
    guide = fitted(network().requires_grad_(False), alpha=0.0, steps=400, lr=0.1)
    evidence = exact(guide)[0].log_evidence
    gap = evidence - (guide.energy(X, Y) - guide.divergence()).item()
    assert -1e-9 < gap < 0.1


def test_with_many_functions_it_is_the_prior_s_gaussian_process():
    """Moments of 1000 draws are those of the process ``a + b x``, and so is its exact posterior."""

    class Line:
        def draw(self, n):
            w = torch.randn(n, 2, dtype=torch.float64)
            return lambda x: w[:, :1] + w[:, 1:] * x[:, 0]

    guide = with_exact_law(fitted(Line(), num_functions=1000, steps=1))
    design = torch.cat((torch.ones_like(X), X), 1)
    line = conjugate_linear_regression(design.numpy(), Y.numpy(), prior_scale=1.0, noise_scale=NOISE)
    law, expected = guide.predictive(X), line.predictive(design.numpy())
    torch.testing.assert_close(law.mean, expected.mean, rtol=0, atol=0.05 * expected.stddev.max().item())
    torch.testing.assert_close(law.stddev, expected.stddev, rtol=0.02, atol=0)


def test_the_functions_keep_their_random_numbers():
    """Whatever else draws between two questions."""
    guide = fitted()
    mean, phi = guide.features(X)
    torch.manual_seed(12345)
    again = guide.features(X)
    torch.testing.assert_close(again, (mean, phi), rtol=0, atol=0)
    assert not torch.equal(fitted(prior_seed=1).features(X)[1], phi)


def test_the_energy_with_alpha_one_is_the_predictive_density():
    """And with one half the log of an integral, here by quadrature."""
    guide = fitted(alpha=1.0)
    torch.testing.assert_close(guide.energy(X, Y), guide.predictive(X).log_prob(Y).sum())
    half = fitted(alpha=0.5)
    law = half.predictive(X, noise=False)
    f = law.mean + law.stddev * torch.linspace(-9, 9, 4001, dtype=torch.float64).unsqueeze(-1)
    terms = 0.5 * torch.distributions.Normal(f, NOISE).log_prob(Y) + law.log_prob(f)
    width = 18 / 4000 * law.stddev
    expected = 2 * (terms.logsumexp(0) + width.log())
    torch.testing.assert_close(half.energy(X, Y), expected.sum(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_everything_moves(alpha):
    prior = NeuralSampler(1, (6,))
    before = [p.clone() for p in prior.parameters()]
    guide = fitted(prior, alpha=alpha, noise_scale=None)
    assert all((a != b).any() for a, b in zip(before, prior.parameters(), strict=True))
    assert guide.loc.abs().sum() > 0
    assert guide.log_noise != -5
    assert all(map(math.isfinite, guide.losses))


@pytest.mark.filterwarnings("ignore::guides.core.settling.UnsettledWarning")
def test_a_divergence_that_is_warmed_up_counts_in_part_at_first():
    """At the second of four steps a half."""
    seen = {}

    def note(step, guide):
        with torch.no_grad():
            seen[step] = guide.divergence().item(), guide.energy(X, Y).item()

    guide = VariationalImplicitProcess(network(), 6, noise_scale=NOISE)
    guide.fit(X, Y, steps=4, lr=0.1, warm_up=1.0, on_step=note)
    divergence, energy = seen[1]
    assert divergence > 0.01
    assert guide.losses[1] == pytest.approx(0.5 * divergence - energy)


def test_minibatches_scale_the_energy_alone():
    guide = fitted()
    parts = torch.stack([3 * guide.energy(X[i : i + 10], Y[i : i + 10]) for i in (0, 10, 20)])
    torch.testing.assert_close(parts.mean(), guide.energy(X, Y))
    # and so does the fit, whose law at its start is the prior: no divergence
    start = VariationalImplicitProcess(network(), 6).fit(X, Y, steps=1, batch_size=10, lr=1e-12)
    rows_x, rows_y, _ = next(shuffled_epochs((X, Y), 10, 0))
    assert start.losses[0] == pytest.approx(-3 * start.energy(rows_x, rows_y).item(), rel=1e-6)


@pytest.mark.filterwarnings("ignore::guides.core.settling.UnsettledWarning")
def test_posterior_and_file(tmp_path):
    guide = fitted(steps=20)
    posterior, law = guide.posterior(20_000), guide.predictive(X)
    drawn = posterior.predictive(X)
    assert ((drawn.mean - law.mean).abs() < 5 * law.stddev / 20_000**0.5).all()
    torch.testing.assert_close(drawn.variance.sqrt(), law.stddev, rtol=0.03, atol=0)
    assert log_joint(posterior.model, posterior.draws(5), X, Y).isfinite().all()
    guide.save(tmp_path / "fit")
    again = VariationalImplicitProcess.load(tmp_path / "fit", network())
    torch.testing.assert_close(again.predictive(X).mean, law.mean, rtol=0, atol=0)
    with pytest.raises(ValueError, match=r"x must be \[m, 1\]"):
        again.predictive(X.repeat(1, 2))
    with pytest.raises(ValueError, match="another prior"):
        VariationalImplicitProcess.load(tmp_path / "fit", BNNProcess(1, (11,)))
    state = torch.random.get_rng_state()
    assert fitted(steps=20).losses == guide.losses
    network()
    torch.random.set_rng_state(state)
    guide.predictive(X)
    assert torch.equal(torch.random.get_rng_state(), state)


class Dropping(nn.Module):
    """A network with dropout and random weights on its last layer, which looks at a latent value if asked to:
    vmap refuses it then, and draws are made one after another.
    """

    def __init__(self, looks: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.dropout, self.looks = nn.Linear(1, 8).double(), nn.Dropout(0.5), looks
        self.seen: list[float] = []

    def forward(self, x, y=None):
        zeros = torch.zeros(8, dtype=torch.float64)
        hidden = self.dropout(self.layer(x).tanh())
        a = pyro.sample("a", dist.Normal(zeros, 1.0).to_event(1))
        if self.looks:
            self.seen.append(a[0].item())
        sign = 1.0 if not self.looks or self.seen[-1] > 0 else -1.0
        f = pyro.deterministic("f", sign * (hidden @ a))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, 1.0), obs=y)


@pytest.mark.parametrize("make", [Dropping, lambda: NeuralSampler(1, (8,), dropout=0.5, dtype=torch.float64)])
def test_dropout_of_a_prior_is_for_the_fit(make, tmp_path):
    """What is predicted at a row depends on no other, and is that of the file."""
    prior, seen = make(), []

    def look(step, guide):
        torch.testing.assert_close(guide.predictive(X[:3]).mean, guide.predictive(X).mean[:3])
        seen.append({part.training for part in guide.modules()})

    guide = VariationalImplicitProcess(prior, 6).fit(X, Y, steps=2, on_step=look)
    assert seen == [{True}] * 2
    assert not any(part.training for part in prior.modules())
    law, posterior = guide.predictive(X), guide.posterior(5)
    functions = posterior.function(X)
    guide.train()  # a user's own doing
    torch.testing.assert_close(guide.predictive(X[:3]).mean, law.mean[:3])
    torch.testing.assert_close(posterior.function(X[:3]), functions[:, :3])
    torch.testing.assert_close(guide.posterior(5).function(X), functions)
    guide.save(tmp_path / "fit")
    again = VariationalImplicitProcess.load(tmp_path / "fit", make().train())
    torch.testing.assert_close(again.predictive(X).mean, law.mean, rtol=0, atol=0)


def test_dropout_is_anew_in_every_step_and_by_the_seed_of_the_fit():
    priors, state = [Dropping() for _ in range(3)], torch.random.get_rng_state()
    guides = [
        VariationalImplicitProcess(prior, 6).fit(X, Y, steps=1, seed=seed)
        for prior, seed in zip(priors, (0, 0, 1), strict=True)
    ]
    assert torch.equal(torch.random.get_rng_state(), state)
    (first,), (again,), (other,) = (guide.losses for guide in guides)
    assert first == again
    assert abs(first - other) > 0.1  # of the same rows, all of them
    guide = guides[0].train()
    assert not torch.equal(guide.features(X)[0], guide.features(X)[0])


def test_functions_drawn_one_after_another_are_the_same_at_all_inputs():
    """Whatever else the model draws for every row, and whether dropout draws too."""
    prior = Dropping(looks=True)
    guide = VariationalImplicitProcess(prior, 4).fit(X, Y, steps=1)
    torch.testing.assert_close(guide.predictive(X[:3]).mean, guide.predictive(X).mean[:3])
    drawn = []
    for mode in (False, True):
        prior.seen.clear()
        guide.train(mode).features(X)
        drawn.append({*prior.seen})
    assert drawn[0] == drawn[1]


class PyroLayer(PyroModule):
    """Its parameters enter Pyro's store when it first runs; and it has the data's site, as models have."""

    def __init__(self):
        super().__init__()
        self.layer = PyroModule[nn.Linear](1, 4, dtype=torch.float64)
        self.w = PyroSample(dist.Normal(torch.zeros(4, dtype=torch.float64), 1.0).to_event(1))

    def forward(self, x):
        f = pyro.deterministic("f", torch.tanh(self.layer(x)) @ self.w)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, 0.1))


@pytest.mark.parametrize("make", [VariationalImplicitProcess, SparseImplicitProcess])
def test_a_model_that_draws_more_than_its_function_leaves_the_random_numbers_alone(make):
    prior, state = PyroLayer(), torch.random.get_rng_state()
    guide = make(prior, 5).fit(X, Y, steps=1)
    guide.predictive(X)
    guide.posterior(3).function(X)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_pyro_module_has_its_functions_from_the_first_run_on(tmp_path):
    prior = PyroLayer()
    guide, at = fitted(prior), X[:3]
    mean, state = guide.predictive(at).mean, torch.random.get_rng_state()
    pyro.clear_param_store()
    torch.testing.assert_close(guide.predictive(at).mean, mean)
    guide.posterior(5).function(at)
    assert torch.equal(torch.random.get_rng_state(), state)
    guide.save(tmp_path / "fit")
    pyro.clear_param_store()
    loaded = VariationalImplicitProcess.load(tmp_path / "fit", PyroLayer())
    torch.testing.assert_close(loaded.predictive(at).mean, mean)


def test_a_fit_sees_the_rows_of_its_batch_size_in_the_order_of_its_seed(monkeypatch):
    rows: list[list] = []
    real = VariationalImplicitProcess.energy
    monkeypatch.setattr(
        VariationalImplicitProcess, "energy", lambda guide, x, y: rows.append(y.tolist()) or real(guide, x, y)
    )
    for seed in (0, 0, 1):
        VariationalImplicitProcess(network(), 6).fit(X, Y, steps=1, batch_size=11, seed=seed)
    first, again, other = rows
    assert len(first) == len(other) == 11
    assert first == again != other


def test_draws_have_the_covariance_of_the_law():
    """Of coefficients that hang together: the root stands on the right side of the noise."""
    guide = with_exact_law(fitted())
    drawn, covariance = guide.draws(40_000)["a"], torch.tensor(exact(guide)[0].covariance)
    products = (drawn - guide.loc.detach())[:, :, None] * (drawn - guide.loc.detach())[:, None, :]
    assert_mean(products, covariance)
    root = guide._root().detach()
    assert (root.mT @ root - covariance).abs().max() > 0.01  # what the wrong side would give


def test_any_pyro_model():
    def wave(x):
        a = pyro.sample("a", dist.Normal(torch.zeros(2, dtype=torch.float64), 1.0).to_event(1))
        pyro.deterministic("wave", a[0] * x[:, 0].sin() + a[1] * x[:, 0].cos())

    guide = VariationalImplicitProcess(wave, 5, site="wave").fit(X, Y, steps=2)
    assert guide.predictive(X).mean.isfinite().all()
    torch.testing.assert_close(guide.features(X)[1][:, 3:9], guide.features(X[3:9])[1])


def test_divergence_names_the_step():
    with pytest.raises(DivergenceError, match="step [0-9]+: .*lower the learning rate"):
        VariationalImplicitProcess(network()).fit(X, Y, steps=50, lr=1e6)


@pytest.mark.parametrize(("steps", "settled"), [(30, False), (600, True)])
def test_a_fit_that_ends_on_its_way_is_a_warning(steps, settled):
    """By nats a row, in the last tenth of the learning."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        guide = VariationalImplicitProcess(network(), 6).fit(X, Y, steps=steps, lr=0.02)
    assert [warning.category for warning in seen] == ([] if settled else [UnsettledWarning])
    if not settled:
        said = float(re.search(r"fell by (\S+) nats", str(seen[0].message))[1])
        tail = guide.losses[int(LAST_OF_HALF_COSINE * steps)] - guide.losses[-1]
        assert said == pytest.approx(tail, rel=0.3)
        assert said > 0.02 * len(X)


@pytest.mark.parametrize("factor", [1e-4, 1e8])
@pytest.mark.filterwarnings("ignore::guides.core.settling.UnsettledWarning")
def test_a_target_in_other_units_is_a_warning(factor):
    with pytest.warns(UserWarning, match="y has a sd of .*standardise it"):
        VariationalImplicitProcess(network(), 6).fit(X, factor * Y, steps=2)


def test_refusals():
    with pytest.raises(ValueError, match="alpha must lie in"):
        VariationalImplicitProcess(network(), alpha=-1.0)
    with pytest.raises(ValueError, match="num_functions"):
        VariationalImplicitProcess(network(), 1)
    with pytest.raises(ValueError, match="noise_scale"):
        VariationalImplicitProcess(network(), noise_scale=0.0)
    with pytest.raises(ValueError, match="constant"):
        VariationalImplicitProcess(network()).fit(X, torch.ones(30))
    guide = fitted(steps=1)
    for x in (X[:, 0], X.repeat(1, 2)):
        with pytest.raises(ValueError, match=r"x must be \[m, 1\]"):
            guide.predictive(x)
    for number in (math.nan, math.inf):
        with pytest.raises(ValueError, match="^x must be finite$"):
            guide.predictive(X.clone().fill_(number))
    with pytest.raises(ValueError, match=r"x must be \[m, 1\], one row at least; got \[0, 1\]"):
        guide.predictive(X[:0])
    with pytest.raises(RuntimeError, match="not fitted"):
        VariationalImplicitProcess(network()).predictive(X)


def test_a_grid_that_is_filled_anew_has_answers_anew():
    guide = fitted()
    posterior, grid = guide.posterior(4), torch.zeros(3, 1, dtype=torch.float64)
    found = [posterior.function(grid.fill_(value)) for value in (-1.0, 1.0)]  # nothing is asked in between
    for value, answers in zip((-1.0, 1.0), found, strict=True):
        torch.testing.assert_close(answers, posterior.function(torch.full_like(grid, value)))


@pytest.mark.parametrize(
    ("fall", "noise", "warned"), [(0.3, 0.0, True), (0.1, 0.0, False), (0.35, 1.0, False), (0.45, 1.0, True)]
)
def test_a_loss_falls_where_it_does_so_beyond_its_noise(fall, noise, warned):
    """Of ten rows, 0.02 nats each: means of fifty steps up and down by one have an error of 0.2 between
    them, and twice that is no fall.
    """
    course = Course(1000, 0.1, 0.0, 0, None)
    losses = [fall * (step < 800) + noise * (-1) ** step for step in range(1000)]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warn_unsettled(losses, course, 10)
        warn_unsettled([-loss for loss in losses], course, 10)
    assert len(seen) == 2 * warned


@pytest.mark.parametrize(("sd", "warned"), [(0.019, True), (0.021, False), (49.0, False), (51.0, True)])
def test_where_units_of_a_target_begin_to_matter(sd, warned):
    y = (sd * (Y - Y.mean()) / Y.std()).double()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        check_regression(X.double(), y)
    assert bool(seen) == warned


def test_what_is_remembered_of_missing_inputs_and_of_many_grids_at_once():
    asked: list[int] = []
    ask = remembered(lambda x: asked.append(1) or x.sum())
    missing = torch.tensor([math.nan])
    assert all(ask(missing).isnan() for _ in range(3))
    assert len(asked) == 1
    twice = torch.func.vmap(lambda x: ask(x) + ask(x))(torch.ones(4, 2))
    torch.testing.assert_close(twice, torch.full((4,), 4.0))
