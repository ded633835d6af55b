"""Shared parameters: the closed forms that an identity flow has, laws of large samples, and what is kept."""

from __future__ import annotations

import copy
import math
from contextlib import suppress

import pyro
import pytest
import torch
from pyro import distributions as dist
from torch import nn

from guides import SharedParameterBootstrap
from guides.bootstrap import shared_parameters
from guides.bootstrap.base_measures import EmpiricalBase, GaussianBase
from guides.bootstrap.shared_parameters import Laws, SharedPosterior, _ByOptimisation, frozen, local_draws
from guides.bootstrap.training import InClosedForm, Law, Progress, Training, train
from guides.bootstrap.weights import dirichlet_weights
from guides.core.rng import stream_seed
from guides.core.svi import DivergenceError
from zoo.models.normalizing_flow import FlowDensity

DRAWS = 4000


class Affine(nn.Module):
    """``z = x exp(-log_scale)``, ``z ~ N(mean, 1)``: the flow of which everything is known."""

    def __init__(self, features: int):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(features, dtype=torch.float64))

    def encode(self, x):
        return x * torch.exp(-self.log_scale), -self.log_scale.sum().expand(x.shape[:-1])

    def local(self, weights, z):
        return {"mean": (weights.unsqueeze(-2).to(z) @ z).squeeze(-2)}

    def log_density(self, sites, encoded):
        z, log_det = encoded
        return dist.Normal(sites["mean"].unsqueeze(-2), 1.0).to_event(1).log_prob(z) + log_det

    def forward(self, x):
        mean = pyro.sample("mean", dist.Normal(torch.zeros(x.shape[1]).to(x), 10.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample(
                "x", dist.Normal(mean * self.log_scale.exp(), self.log_scale.exp()).to_event(1), obs=x
            )


class ByOptimisation(nn.Module):
    """The same model without a closed form."""

    def __init__(self, features: int):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(features, dtype=torch.float64))

    forward = Affine.forward


def rows(count: int = 40, features: int = 2, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, features, generator=generator, dtype=torch.float64) * 1.5 + 0.5


def moments(x: torch.Tensor, prior: torch.Tensor, a: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean of a Dirichlet-weighted mean, and second moment of the mixture of rows and base measure."""
    total = len(x) + a
    mean = (x.sum(0) + a * prior.mean(0)) / total
    return mean, (x.T @ x + a * prior.T @ prior / len(prior)) / total


@pytest.mark.parametrize("a", [0.0, 5.0, 80.0])
def test_means_of_an_identity_flow_have_the_moments_of_the_process(a):
    x, prior, m = rows(), rows(6, seed=1) + 3, 300
    laws = Laws((x,), a, EmpiricalBase((prior,)) if a else None, m if a else 0)
    mean = local_draws(Affine(2), laws, DRAWS)["mean"]
    centre, second = moments(x, prior, a)
    total = len(x) + a
    covariance = (second - centre[:, None] * centre) / (total + 1)
    # of the truncation: the drawn base measure has a mean of its own
    spread = torch.cov(prior.T, correction=0) / m * (a / total) ** 2 * (1 - 1 / (total + 1))
    covariance = covariance + spread
    error = (covariance.diagonal() / DRAWS).sqrt()
    assert ((mean.mean(0) - centre).abs() < 4.5 * error).all()
    apart = mean - centre
    products = torch.einsum("bi,bj->bij", apart, apart)
    assert ((products.mean(0) - covariance).abs() < 4.5 * products.std(0) / DRAWS**0.5).all()


def test_draws_are_minimisers_of_their_weighted_losses():
    """With pseudo-observations, against one draw at a time."""
    x, laws = rows(), Laws((rows(),), 10.0, GaussianBase(rows()), 20)
    found = local_draws(Affine(2), laws, 3, seed=5)["mean"]
    weights, (pseudo,) = laws.draw(3, torch.Generator().manual_seed(stream_seed("draws", 5)))
    for b in range(3):
        torch.testing.assert_close(found[b], weights[b] @ torch.cat([x, pseudo[b]]))


@pytest.mark.parametrize("a", [0.0, 50.0])
def test_means_of_whitened_rows_spread_as_one_over_the_root_of_n(a):
    """NUTS target too: with a flat prior the mean has posterior ``N(zbar, I / n)``."""
    x = rows(1000, 3)
    white = (x - x.mean(0)) @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(x.T, correction=0))).T
    base = EmpiricalBase((white,)) if a else None
    mean = local_draws(Affine(3), Laws((white,), a, base, 500 if a else 0), 2000)["mean"]
    # the drawn base measure adds (a / (n + a))^2 / 500
    sd = math.sqrt(1 / (1001 + a) + (a / (1000 + a)) ** 2 / 500)
    assert mean.std(0).mean().item() == pytest.approx(sd, rel=0.04)


def test_log_density_at_the_mean_is_above_the_mean_log_density_by_jensens_gap():
    x, model, features = rows(500, 10), Affine(10), 10
    white = (x - x.mean(0)) @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(x.T, correction=0))).T
    mean = local_draws(model, Laws((white,), 0.0, None, 0), 3000)["mean"]
    encoded = model.encode(rows(50, 10, seed=3))
    scores = model.log_density({"mean": mean}, encoded).mean(-1)
    gap = model.log_density({"mean": mean.mean(0)}, encoded).mean() - scores.mean()
    assert gap.item() == pytest.approx(0.5 * torch.cov(mean.T).trace().item(), rel=1e-3)
    assert gap.item() == pytest.approx(features / (2 * 501), rel=0.03)


@pytest.mark.slow
def test_draws_by_optimisation_are_of_the_process_that_was_trained_with():
    """Its concentration and base measure count as in closed form; the rows alone have another mean."""
    x, prior, count = rows(), rows(6, seed=1) + 3, 60
    laws = Laws((x,), 80.0, EmpiricalBase((prior,)), 100)
    mean = SharedPosterior(ByOptimisation(2), (x,), laws, {}, None).draws(count)["mean"]
    centre, _ = moments(x, prior, 80.0)
    assert ((mean.mean(0) - centre).abs() < 4.5 * mean.std(0) / count**0.5).all()
    in_closed_form = local_draws(Affine(2), laws, DRAWS)["mean"].std(0)
    assert ((mean.std(0) / in_closed_form).log().abs() < 4.5 / (2 * count) ** 0.5).all()


# ------------------------------------------------------------------------------------------------- training


@pytest.mark.slow
@pytest.mark.parametrize("model", [Affine, ByOptimisation])
def test_shared_scales_are_the_expected_weighted_ones(model):
    """``E var_W = var (n / (n + 1))`` of an affine flow, where its gradient vanishes in the mean."""
    x, made = rows(60), model(2)
    training = Training(steps=200, lr=0.01)
    fitted = SharedParameterBootstrap(made).fit(x, training=training, seed=1)
    expected = (x.var(0, False) * 60 / 61).log() / 2
    torch.testing.assert_close(made.log_scale.detach(), expected, rtol=0, atol=0.06)
    sites = fitted.draws(40, seed=2)["mean"]
    weights = dirichlet_weights(40, 60, 0, 0.0, torch.Generator().manual_seed(stream_seed("draws", 2)))
    torch.testing.assert_close(sites, weights @ (x * torch.exp(-made.log_scale.detach())), rtol=0, atol=2e-3)


def test_a_constant_law_is_its_weighted_maximum_likelihood():
    """The weighted likelihood bootstrap of a Gaussian: ``s^2 = sum_i w_i (x_i - m)^2``."""
    x = rows(30)
    weights = dirichlet_weights(1, 30, 0, 0.0, torch.Generator().manual_seed(3))[0]
    mean = weights @ x
    expected = (weights @ (x - mean) ** 2).log() / 2
    made = Affine(2)
    train(InClosedForm(made), iter([Law(weights, (x,))] * 400), Training(400, 0.05, weight_decay=0.0))
    torch.testing.assert_close(made.log_scale.detach(), expected, rtol=0, atol=1e-3)


def test_weight_decay_is_a_gaussian_pull_to_zero():
    """Of ``t + s^2 exp(-2 t) / 2 + decay t^2 / 2`` the minimum: ``1 - s^2 exp(-2 t) + decay t = 0``."""
    x, made, weights = 3 * rows(30), Affine(2), torch.full((30,), 1 / 30, dtype=torch.float64)
    train(InClosedForm(made), iter([Law(weights, (x,))] * 400), Training(400, 0.05, weight_decay=0.5))
    scale = made.log_scale.detach()
    slope = 1 - x.var(0, False) * torch.exp(-2 * scale) + 0.5 * scale
    torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=2e-3)
    assert (scale < x.std(0).log() - 0.05).all()


@pytest.mark.parametrize("held", [None, (rows(20).float(),)])
def test_statistics_of_a_training_are_those_of_the_law(held):
    """Also after it; of rows that count by their weights, not by their number."""
    x, flow = rows(30).float(), FlowDensity(2, hidden=(5,), blocks=2)
    weights = dirichlet_weights(1, 30, 0, 0.0, torch.Generator().manual_seed(3))[0].float()
    train(InClosedForm(flow, held), iter([Law(weights, (x,))]), Training(steps=1))
    with torch.no_grad():
        torch.testing.assert_close(flow.steps[1].mean, weights @ flow.steps[0](x)[0])
    assert not flow.training


def test_every_step_has_weights_and_pseudo_observations_of_its_own():
    """Never a fixed pool, beside rows that stay."""
    x = rows()
    stream = Laws((x,), 10.0, GaussianBase(x), 20).stream(torch.Generator().manual_seed(1))
    first, second = next(stream), next(stream)
    assert torch.equal(first.rows[0][:40], x)
    assert torch.equal(second.rows[0][:40], x)
    assert (first.rows[0][40:] != second.rows[0][40:]).all()
    assert (first.weights[:40] != second.weights[:40]).all()


def test_every_draw_has_weights_and_pseudo_observations_of_its_own():
    """Those drawn together too, of which each passes the shared parameters."""
    x = rows()
    weights, (pseudo,) = Laws((x,), 10.0, GaussianBase(x), 20).draw(2, torch.Generator().manual_seed(1))
    assert pseudo.shape == (2, 20, 2)
    assert (pseudo[0] != pseudo[1]).all()
    assert (weights[0, :40] != weights[1, :40]).all()


def test_weights_of_whole_numbers_are_whole_numbers_not():
    counts = torch.tensor([3, 0, 5, 1])
    law = next(Laws((counts,), 0.0, None, 0).stream(torch.Generator().manual_seed(1)))
    expected = dirichlet_weights(1, 4, 0, 0.0, torch.Generator().manual_seed(1))[0]
    torch.testing.assert_close(law.weights, expected.float())


def test_a_score_outside_the_numbers_is_never_the_best():
    class Blind(InClosedForm):
        """In the first step."""

        def score(self, sites):
            seen.append(super().score(sites))
            return math.nan if len(seen) == 1 else seen[-1]

    seen = []
    progress = train(
        Blind(Affine(2), (rows(9),)), iter([Law(torch.ones(40) / 40, (rows(),))] * 5), Training(steps=5)
    )
    assert progress.best > 0
    assert progress.score == max(seen[1:])


def test_training_stops_early_and_keeps_the_best():
    x, held = rows(20, 2).float(), rows(200, 2, seed=4).float()
    flow = FlowDensity(2, hidden=(30,))
    fitted = SharedParameterBootstrap(flow).fit(
        x, validation=(held,), training=Training(steps=400, lr=0.01, patience=10)
    )
    progress = fitted.progress
    assert len(progress.scores) == progress.best + 11 < 400
    assert progress.score == max(progress.scores) == fitted.info["validation"]
    assert not flow.training


def test_starts_are_compared_by_their_validation(monkeypatch):
    ends = []

    def noted(objective, *others):
        progress = train(objective, *others)
        ends.append([value.clone() for value in objective.module.state_dict().values()])
        return progress

    monkeypatch.setattr(shared_parameters, "train", noted)
    x, held = rows(30).float(), rows(30, seed=4).float()
    torch.manual_seed(2)
    flow = FlowDensity(2, hidden=(10,))
    fitted = SharedParameterBootstrap(flow, 20.0).fit(
        x, validation=(held,), training=Training(steps=15), restarts=3, seed=2
    )
    assert len(set(fitted.info["starts"])) == 3
    assert fitted.info["starts"].index(max(fitted.info["starts"])) != 2  # nor is it the last by chance
    assert fitted.info["validation"] == max(fitted.info["starts"])
    best = ends[fitted.info["starts"].index(fitted.info["validation"])]
    assert all(map(torch.equal, flow.state_dict().values(), best))


def test_a_start_that_leaves_the_numbers_is_no_candidate(monkeypatch):
    """The first start is the model as it is; of three the second alone ends well, and it is left."""
    begins, ends = [], []

    def first_and_last_diverge(objective, *others):
        begins.append(copy.deepcopy(objective.module.state_dict()))
        progress = train(objective, *others)
        ends.append((progress.score, copy.deepcopy(objective.module.state_dict())))
        if len(ends) != 2:
            raise DivergenceError(f"step {len(ends)}: the loss is nan")
        return progress

    monkeypatch.setattr(shared_parameters, "train", first_and_last_diverge)
    x, held = rows(30).float(), rows(30, seed=4).float()
    flow = FlowDensity(2, hidden=(10,))
    before = copy.deepcopy(flow.state_dict())
    bootstrap, words = SharedParameterBootstrap(flow), {"validation": (held,), "training": Training(steps=3)}
    fitted = bootstrap.fit(x, restarts=3, **words)
    assert all(map(torch.equal, begins[0].values(), before.values()))
    assert not torch.equal(
        begins[1]["steps.0.network.layers.0.weight"], before["steps.0.network.layers.0.weight"]
    )
    score, state = ends[1]
    assert fitted.info["starts"] == [score] == [fitted.info["validation"]]
    assert all(map(torch.equal, flow.state_dict().values(), state.values()))
    with pytest.raises(DivergenceError, match="step 5: the loss is nan"):
        bootstrap.fit(x, restarts=2, **words)


def test_same_seed_same_posterior_and_nothing_else_moves():
    x, found = rows(30).float(), []
    for seed in (1, 1, 2):
        torch.manual_seed(0)
        flow = FlowDensity(2, hidden=(10,))
        before = torch.get_rng_state()
        fitted = SharedParameterBootstrap(flow, 5.0, num_pseudo=10).fit(
            x, training=Training(steps=5), seed=seed
        )
        assert torch.equal(torch.get_rng_state(), before)
        found.append(fitted.draws(4, seed=7)["mean"])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_a_posterior_like_every_other(tmp_path):
    x = rows(30).float()
    posterior = (
        SharedParameterBootstrap(FlowDensity(2, hidden=(10,)))
        .fit(x, training=Training(steps=5))
        .posterior(50)
    )
    assert posterior.draws()["mean"].shape == (50, 2)
    posterior.save(tmp_path / "fit.nc")
    again = type(posterior).load(tmp_path / "fit.nc", posterior.model)
    assert torch.equal(again.draws()["mean"], posterior.draws()["mean"])
    assert again.info["method"] == "shared-parameter-bootstrap"


def test_draws_are_none_of_the_trainings():
    """With one seed for both."""
    x, seen = rows(), []

    class Watched(Affine):
        def local(self, weights, z):
            seen.append(weights.reshape(-1, len(x))[0])
            return super().local(weights, z)

    SharedParameterBootstrap(Watched(2)).fit(x, training=Training(steps=3), seed=4).draws(1, seed=4)
    assert len(seen) >= 4
    assert all((seen[-1] - other).abs().max() > 1e-3 for other in seen[:-1])


# ------------------------------------------------------------------------------------------------- refusals


def test_what_cannot_be_shared():
    with frozen(model := Affine(2)), pytest.raises(ValueError, match="no parameters to share"):
        SharedParameterBootstrap(model)
    with pytest.raises(ValueError, match="no parameters to share: use PosteriorBootstrap"):
        SharedParameterBootstrap(Affine(2).forward)
    for wrong in (-1.0, math.nan):
        with pytest.raises(ValueError, match="concentration must be a number of rows"):
            SharedParameterBootstrap(Affine(2), wrong)
    with pytest.raises(ValueError, match="restarts must be a positive whole number"):
        SharedParameterBootstrap(Affine(2)).fit(rows(), restarts=0)
    with pytest.raises(ValueError, match=r"method reset_parameters of .* the model \(Affine\) has none"):
        SharedParameterBootstrap(Affine(2)).fit(rows(), restarts=2)
    with pytest.raises(ValueError, match="lr must be positive"):
        Training(lr=0.0)


def test_rows_that_cannot_be_trained_on():
    x = rows()
    with pytest.raises(ValueError, match=r"rows of shape \(3,\) where the data have \(2,\)"):
        SharedParameterBootstrap(Affine(2), 1.0, EmpiricalBase((torch.zeros(5, 3),))).fit(x)
    with pytest.raises(ValueError, match="column 1 of the rows is constant"):
        SharedParameterBootstrap(Affine(2), 1.0).fit(x * torch.tensor([1.0, 0.0]))
    with pytest.raises(ValueError, match="at least two"):
        SharedParameterBootstrap(Affine(2)).fit(x[:1])
    far = rows(9)
    far[4, 0] = 1e200
    with pytest.raises(DivergenceError, match="score is -inf and never finite: a validation row is far"):
        SharedParameterBootstrap(Affine(2)).fit(x, validation=(far,), training=Training(steps=3))
    far[4, 0] = math.nan
    with pytest.raises(ValueError, match="argument 0 of the validation is not finite in row 4"):
        SharedParameterBootstrap(Affine(2)).fit(x, validation=(far,))
    x[3, 1] = math.nan
    with pytest.raises(ValueError, match="not finite in row 3"), pyro.validation_enabled(False):
        SharedParameterBootstrap(Affine(2)).fit(x)


def test_a_loss_that_leaves_the_numbers_is_named():
    x = 1e200 * rows()
    with pytest.raises(DivergenceError, match="step 0: the loss is inf"):
        SharedParameterBootstrap(Affine(2)).fit(x, training=Training(steps=3))


def test_rows_held_out_score_alike_with_and_without_a_closed_form():
    """Their mean log density, more of which is better, whatever the rows of training are."""
    held, sites = rows(30, seed=4), {"mean": torch.tensor([0.3, 0.1], dtype=torch.float64)}
    closed = InClosedForm(Affine(2), (held,)).score(sites)
    assert closed == pytest.approx(dist.Normal(sites["mean"], 1.0).log_prob(held).sum(1).mean().item())
    assert _ByOptimisation(ByOptimisation(2), (rows(),), (held,), None).score(sites) == pytest.approx(closed)
    assert _ByOptimisation(ByOptimisation(2), (rows(),), None, None).score(sites) is None


def test_the_default_of_weight_decay_is_that_of_the_published_flows():
    assert Training().weight_decay == 1e-6


def test_what_is_told_of_a_training_is_the_step_that_was_kept():
    x, held = rows(20).float(), rows(200, seed=4).float()
    fitted = SharedParameterBootstrap(FlowDensity(2, hidden=(10,))).fit(
        x, validation=(held,), training=Training(steps=60, lr=0.05, patience=5)
    )
    scores = fitted.progress.scores
    assert fitted.info["kept_step"] == scores.index(max(scores)) < fitted.info["steps"] - 1
    assert fitted.info["steps"] == len(scores)


def test_a_step_of_the_inner_optimisation_is_at_its_minimum():
    """Of a Gaussian's mean: the weighted one, to rounding, from wherever it started."""
    x = rows()
    weights = dirichlet_weights(1, len(x), 0, 0.0, torch.Generator().manual_seed(0))[0]
    objective = _ByOptimisation(ByOptimisation(2), (x,), None, None)
    _, sites = objective.loss(Law(weights, (x,)))
    torch.testing.assert_close(sites["mean"], weights @ x, rtol=0, atol=1e-6)


def test_without_rows_held_out_the_smaller_loss_is_the_better_start():
    assert Progress(losses=[3.0, 1.0]).score == -1.0
    assert Progress(losses=[3.0, 1.0], scores=[-2.0, -5.0], best=0).score == -2.0
    flow = FlowDensity(2, hidden=(10,))
    torch.manual_seed(0)
    fitted = SharedParameterBootstrap(flow).fit(rows(30).float(), training=Training(steps=8), restarts=3)
    assert len(set(fitted.info["starts"])) == 3
    assert fitted.progress.losses[-1] == -max(fitted.info["starts"])


def test_no_gradient_passes_through_the_local_sites():
    """Where they are not at the minimum too, there twice the mean: they are numbers to the shared ones."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(3.0))

        def encode(self, x):
            return (self.scale * x,)

        def local(self, weights, z):
            return {"mean": 2 * weights @ z}

        def log_density(self, sites, encoded):
            return -0.5 * (encoded[0] - sites["mean"]).square()

    x, weights, module = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0.5, 0.25, 0.25]), Scaled()
    loss, sites = InClosedForm(module).loss(Law(weights, (x,)))
    assert sites["mean"] == 12
    torch.testing.assert_close(loss, 0.5 * weights @ (3 * x - 12).square())
    loss.backward()
    torch.testing.assert_close(module.scale.grad, weights @ ((3 * x - 12) * x))


def test_parameters_are_frozen_for_a_while():
    """Those that were trained are again, also after an error; those that were fixed stay so."""
    module = nn.Linear(2, 1)
    module.bias.requires_grad_(False)
    with suppress(ZeroDivisionError), frozen(module):
        assert not module.weight.requires_grad
        raise ZeroDivisionError
    assert module.weight.requires_grad
    assert not module.bias.requires_grad


def test_every_start_but_the_first_is_a_new_one():
    """From where ``reset_parameters`` puts it, not from where the last training ended."""

    class Restarted(Affine):
        def __init__(self):
            super().__init__(2)
            self.begun = []

        def reset_parameters(self):
            with torch.no_grad():
                self.log_scale.fill_(2.0)

        def encode(self, x):
            if self.training and torch.is_grad_enabled():
                self.begun.append(self.log_scale[0].item())
            return super().encode(x)

    model = Restarted()
    SharedParameterBootstrap(model).fit(rows(), training=Training(steps=2, lr=0.1), restarts=3)
    assert len(model.begun) == 6
    assert model.begun[::2] == [0.0, 2.0, 2.0]
