"""Fits of functions: gradients, warnings, rates and rows of a sparse implicit process; dropout of a fBNN."""

from __future__ import annotations

import warnings

import pyro
import pytest
import torch
from pyro import distributions as dist
from torch import nn

from guides.core.course import Course
from guides.core.rng import seeded_rng
from guides.core.settling import UnsettledWarning
from guides.implicit import (
    DiscriminatorKL,
    FunctionalBNN,
    SaturationWarning,
    SparseImplicitProcess,
    discriminator,
    functional_bnn,
)
from zoo.models import BNNProcess

X = torch.linspace(-2, 2, 40).unsqueeze(-1)
Y = X[:, 0].sin() + 0.2 * torch.randn(40, generator=torch.Generator().manual_seed(0))


def network() -> BNNProcess:
    torch.manual_seed(0)
    return BNNProcess(1, (10,), dtype=torch.float64)


def fitted() -> SparseImplicitProcess:
    return SparseImplicitProcess(network(), 5, hidden=(10,), noise_features=8).fit(
        X, Y, steps=3, batch_size=10
    )


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_the_data_term_has_its_gradient_to_all_behind_it(alpha):
    """Along one direction in every parameter, by central differences: the prior's functions, the inducing
    values and where they are, and the noise.
    """
    well_posed = {"jitter": 1e-2, "init_noise_scale": 0.5}
    guide = SparseImplicitProcess(network(), 5, hidden=(8,), alpha=alpha, num_functions=30, **well_posed)
    guide.fit(X.double(), Y.double(), steps=2)

    def energy() -> torch.Tensor:
        with seeded_rng(1):
            return guide.terms(X.double(), Y.double())[0]

    parameters = dict(guide.named_parameters())
    gradients = torch.autograd.grad(energy(), parameters.values())
    generator, step = torch.Generator().manual_seed(0), 1e-5
    for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
        start = parameter.data.clone()
        along = torch.randn(start.shape, generator=generator, dtype=start.dtype)
        ends = []
        for sign in (1, -1):
            parameter.data = start + sign * step * along
            ends.append(energy().item())
        parameter.data = start
        found = (ends[0] - ends[1]) / (2 * step)
        assert abs(found) > 1e-4, name
        assert (gradient * along).sum().item() == pytest.approx(found, rel=1e-4), name


def test_the_loss_has_the_gradient_of_its_terms():
    guide = fitted()
    guide._classifier.step = lambda u, drawn: None
    parameters = list(guide.parameters())

    def gradients(of) -> tuple[torch.Tensor, ...]:
        with seeded_rng(1):
            return torch.autograd.grad(of(), parameters)

    def loss_of_terms() -> torch.Tensor:
        energy, divergence = guide.terms(X[:10], Y[:10])
        return 0.3 * divergence - 4 * energy

    expected = gradients(loss_of_terms)
    found = gradients(lambda: guide._loss(guide._classifier, X[:10], Y[:10], 40, 0.3))
    torch.testing.assert_close(found, expected)
    assert all((gradient != 0).any() for gradient in found)


def test_a_fit_that_saturates_or_has_not_settled_says_so(monkeypatch):
    """And one that does neither is silent."""
    monkeypatch.setattr(DiscriminatorKL, "saturated", property(lambda classifier: True))
    monkeypatch.setattr(Course, "last_change", lambda course, losses: (1e3, 1.0))
    with pytest.warns() as seen:
        fitted()
    assert {warning.category for warning in seen} == {SaturationWarning, UnsettledWarning}
    assert all(warning.filename == __file__ for warning in seen)
    monkeypatch.setattr(DiscriminatorKL, "saturated", property(lambda classifier: False))
    monkeypatch.setattr(Course, "last_change", lambda course, losses: (0.0, 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted()


def test_a_step_sees_rows_by_batch_size_and_seed_and_its_classifier_learns_at_its_rate(monkeypatch):
    rates, rows = [], []
    judged, energy = discriminator._Classifier.step, SparseImplicitProcess._energy

    def seen(guide, conditional, u, y):
        rows.append(y.tolist())
        return energy(guide, conditional, u, y)

    monkeypatch.setattr(SparseImplicitProcess, "_energy", seen)
    monkeypatch.setattr(
        discriminator._Classifier, "step", lambda self, q, p, lr: rates.append(lr) or judged(self, q, p, lr)
    )
    for seed in (0, 0, 1):
        SparseImplicitProcess(network(), 5, hidden=(10,)).fit(
            X, Y, steps=1, batch_size=11, classifier_lr=0.03, seed=seed
        )
    assert rates == [0.03] * 3
    first, again, other = rows
    assert len(first) == len(other) == 11
    assert first == again != other


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.dropout = nn.Linear(1, 8), nn.Dropout(0.5)

    def forward(self, x):
        hidden = self.dropout(self.layer(x).tanh())
        a = pyro.sample("a", dist.Normal(torch.zeros(8), 1.0).to_event(1))
        pyro.deterministic("f", hidden @ a)


def test_dropout_of_networks_is_for_their_fits(monkeypatch, tmp_path):
    """That of the prior is over when its functions are what the network is compared with."""
    network, prior, modes = Dropping(), Dropping(), []
    forward = Dropping.forward
    monkeypatch.setattr(
        Dropping, "forward", lambda self, x: modes.append((self is prior, self.training)) or forward(self, x)
    )

    def look(step, guide):
        modes.append(step)
        torch.testing.assert_close(guide.predictive(X[:3]).mean, guide.predictive(X).mean[:3])
        assert {part.training for part in guide.modules()} == {True}

    monkeypatch.setattr(functional_bnn, "check_process", lambda *of: None)
    guide = FunctionalBNN(network, prior, num_particles=5)
    guide.fit(X, Y, steps=1, batch_size=10, prior_steps=1, on_step=look)
    of_fits = modes[: modes.index(1)]  # whether it is the prior, and whether it has dropout
    assert of_fits[:2] == [(True, False), (True, True)]  # parameters enter Pyro's store, and the fit begins
    assert of_fits.count((False, False)) == 1  # so of the network
    assert set(of_fits) - {(False, False)} == {(True, True), (False, True), (True, False)}
    assert not any(part.training for part in guide.modules())
    law, state = guide.predictive(X, seed=3), torch.random.get_rng_state()
    posterior = guide.posterior(5)
    functions = posterior.function(X)
    guide.train()  # a user's own doing
    torch.testing.assert_close(guide.predictive(X[:3], seed=3).mean, law.mean[:3])
    torch.testing.assert_close(posterior.function(X[:3]), functions[:, :3])
    assert torch.equal(torch.random.get_rng_state(), state)
    guide.save(tmp_path / "fit")
    again = FunctionalBNN.load(tmp_path / "fit", Dropping().train(), Dropping())
    torch.testing.assert_close(again.predictive(X, seed=3).mean, law.mean, rtol=0, atol=0)
