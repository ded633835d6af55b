"""Fitted densities: what they answer, and that they are kept."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from guides.bootstrap.base_measures import EmpiricalBase
from guides.bootstrap.training import Training
from guides.bootstrap.weights import dirichlet_weights
from guides.core.svi import DivergenceError
from guides.posterior.files import read_safetensors
from zoo.errors import FailedError, UserError
from zoo.fitting import densities
from zoo.fitting.densities import (
    Effort,
    FittedDensity,
    FlowShape,
    Rows,
    maximum_likelihood,
    shared_bootstrap,
    towards_identity,
    weighted_bootstrap,
)
from zoo.seeds import stable_seed

SHAPE = FlowShape(hidden=(8,))


def rows() -> Rows:
    x = torch.randn(150, 3, generator=torch.Generator().manual_seed(0))
    return Rows(x[:60], x[60:100], x[100:])


def effort(**changed) -> Effort:
    return Effort(**{"training": Training(steps=8, lr=0.01), "draws": 6, **changed})


def test_figures_are_those_of_all_draws_and_rows(monkeypatch):
    fitted, x = shared_bootstrap(rows(), SHAPE, effort()), rows().pool
    found = fitted.log_density(x).double()
    assert found.shape == (6, 50)
    figures = fitted.figures(x)
    assert figures["log_likelihood"] == pytest.approx(found.mean().item())
    assert figures["mixture"] == pytest.approx((found.logsumexp(0) - math.log(6)).mean().item())
    assert figures["draws_sd"] == pytest.approx(found.mean(1).std().item(), rel=1e-4)
    assert figures["median"] == pytest.approx(found.mean(0).median().item())
    assert figures["below_100"] == 0
    of_eighty = fitted.figures(x, units=80.0)
    assert -100 < of_eighty["median"] < -80
    assert of_eighty["below_100"] == (found.mean(0) < -20).double().mean().item()
    monkeypatch.setattr(densities, "HELD", 6 * 7)  # in parts of seven rows
    assert fitted.figures(x) == pytest.approx(figures)
    assert fitted.figures(100 * x)["below_100"] > 0.5
    of_table = fitted.figures(x, units=120.0)  # the share below too is of the table's densities
    assert of_table["below_100"] == 1
    assert of_table["median"] == pytest.approx(figures["median"] - 120)


def test_error_of_the_figures_is_that_of_a_mean_over_rows():
    """``sd / sqrt(N)`` of the rows' means over draws; all rows four times halve it, but for the divisor."""
    flow, x = SHAPE.build(rows().train), rows().pool
    flow.encode(rows().train)
    means = torch.tensor([-1.0, 1.0])[:, None].expand(2, 3)
    fitted = FittedDensity([(flow.eval(), {"mean": means})], {})
    of_rows, error = fitted.log_density(x).double().mean(0), fitted.figures(x)["points_se"]
    assert error == pytest.approx(of_rows.std().item() / math.sqrt(50), rel=1e-6)
    repeated = fitted.figures(x.repeat(4, 1))["points_se"]
    assert repeated == pytest.approx(error / 2 * math.sqrt((49 / 50) / (199 / 200)), rel=1e-6)


def test_answers_of_a_fitted_density_keep_no_gradient():
    """Of long tables they would keep what every row has passed."""
    fitted = shared_bootstrap(rows(), SHAPE, effort(training=Training(steps=1)))
    assert not fitted.log_density(rows().pool).requires_grad
    assert not fitted.sample(3, seed=0).requires_grad
    assert not fitted.members[0][1]["mean"].requires_grad


def test_a_density_is_kept(tmp_path):
    fitted = shared_bootstrap(rows(), FlowShape(hidden=(8,), covariance=True), effort(), concentration=5.0)
    fitted.save(tmp_path / "fit.safetensors", FlowShape(hidden=(8,), covariance=True))
    again = FittedDensity.load(tmp_path / "fit.safetensors")
    x = rows().pool
    torch.testing.assert_close(again.log_density(x), fitted.log_density(x), rtol=0, atol=0)
    assert torch.equal(again.sample(20, seed=3), fitted.sample(20, seed=3))
    assert again.info == {name: value for name, value in fitted.info.items() if name != "losses"}
    assert again.info["steps"] == 8


@pytest.mark.parametrize(
    ("name", "altered"),
    [
        ("mean", torch.zeros(1, 7)),
        ("mean", torch.zeros(0, 3)),
        ("mean", torch.zeros(1, 3).double()),
        ("mean", torch.full((1, 3), math.nan)),
    ],
)
def test_a_density_with_other_numbers_is_named(name, altered, tmp_path):
    path = tmp_path / "fit.safetensors"
    maximum_likelihood(rows(), SHAPE, effort(training=Training(steps=1))).save(path, SHAPE)
    metadata, tensors = read_safetensors(path)
    save_file({**tensors, f"sites.{name}": altered}, path, metadata={"about": metadata["about"]})
    with pytest.raises(UserError, match="is truncated or no density"):
        FittedDensity.load(path)


@pytest.mark.parametrize("about", [None, '{"shape": ', "{}", "[]", "whole"])
def test_a_damaged_density_is_named(about, tmp_path):
    """By its file: without what it is about, with half of that, or without the numbers of its flow."""
    path = tmp_path / "fit.safetensors"
    if about == "whole":
        maximum_likelihood(rows(), SHAPE, effort(training=Training(steps=1))).save(path, SHAPE)
        about = read_safetensors(path)[0]["about"]
    save_file({"sites.mean": torch.zeros(3)}, path, metadata=None if about is None else {"about": about})
    with pytest.raises(UserError, match=r"^.*fit\.safetensors is truncated or no density \(.*fit again$"):
        FittedDensity.load(path)


def test_naive_draws_are_flows_of_their_own():
    fitted = weighted_bootstrap(rows(), SHAPE, effort(draws=3))
    assert len(fitted.members) == 3
    assert fitted.sample(40, seed=0).shape == (40, 3)
    found = fitted.log_density(rows().pool)
    assert not torch.equal(found[0], found[1])


def test_naive_draws_have_weights_of_their_own(monkeypatch):
    """The same in every step of a training."""
    seen, real = [], densities.train

    def kept(objective, laws, *others):
        first, second = itertools.islice(laws, 2)
        assert torch.equal(first.weights, second.weights)
        seen.append(first.weights)
        return real(objective, itertools.repeat(first), *others)

    monkeypatch.setattr(densities, "train", kept)
    weighted_bootstrap(rows(), SHAPE, effort(draws=3))
    weights = torch.stack(seen)
    torch.testing.assert_close(weights.sum(1), torch.ones(3))
    # a Dirichlet weight's sd is nearly its mean
    assert (weights.std(1) > 0.5 / 60).all()
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(weights, 2))


def test_naive_draws_have_starts_of_their_own(monkeypatch):
    seen, real = [], densities.train

    def kept(objective, *others):
        seen.append(next(objective.module.parameters()).detach().clone())
        return real(objective, *others)

    monkeypatch.setattr(densities, "train", kept)
    for seed in (0, 1):
        weighted_bootstrap(rows(), SHAPE, effort(draws=2, seed=seed, training=Training(steps=1, lr=0.01)))
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(seen, 2))


def test_means_are_drawn_by_the_seed(monkeypatch):
    seeds, real = [], densities.local_draws

    def kept(flow, laws, draws, seed):
        seeds.append(seed)
        return real(flow, laws, draws, seed)

    monkeypatch.setattr(densities, "local_draws", kept)
    for seed in (0, 0, 1):
        shared_bootstrap(rows(), SHAPE, effort(seed=seed, training=Training(steps=1, lr=0.01)))
    assert seeds[0] == seeds[1] != seeds[2]


def test_validation_rows_decide_what_is_kept():
    fitted = maximum_likelihood(rows(), SHAPE, effort())
    found = fitted.log_density(rows().validation).mean().item()
    assert fitted.info["validation"] == pytest.approx(found, rel=1e-6)


def test_means_are_drawn_with_the_pseudo_observations():
    """Of one point, which weighs as much as the rows: ``E mean = (n zbar + a z) / (n + a)``."""
    point = torch.tensor([[4.0, -4.0, 4.0]])
    fitted = shared_bootstrap(
        rows(), SHAPE, effort(draws=200), concentration=60.0, base=EmpiricalBase((point,))
    )
    ((flow, sites),) = fitted.members
    with torch.no_grad():
        z, far = flow.encode(rows().train)[0], flow.encode(point)[0]
    expected = (z.mean(0) + far[0]) / 2
    second = (z.square().mean(0) + far[0].square()) / 2
    sd = ((second - expected.square()) / 121).sqrt()
    assert ((sites["mean"].mean(0) - expected).abs() < 4.5 * sd / 200**0.5).all()
    assert (far - z.mean(0)).abs().max() > 2  # it is seen at all


def test_samples_are_of_all_draws():
    flow = SHAPE.build(rows().train)
    flow.encode(rows().train)
    means = torch.tensor([-9.0, 9.0])[:, None].expand(2, 3)
    fitted = FittedDensity([(flow.eval(), {"mean": means})], {})
    with torch.no_grad():
        z = flow.encode(fitted.sample(200, seed=0))[0]
    above = z[:, 0] > 0
    assert 65 < above.sum() < 135
    # one draw after the other would change once; of 199 neighbours half do, 4 standard errors
    assert 70 < above.diff().sum() < 130


@pytest.mark.parametrize("covariance", [False, True])
def test_without_a_mean_the_latent_law_is_the_standard_gaussian(covariance):
    for fit in (maximum_likelihood, shared_bootstrap):
        shape = FlowShape(hidden=(8,), covariance=covariance)
        ((_, sites),) = fit(rows(), shape, effort(training=Training(steps=1)), mean=False).members
        expected = {"mean": torch.zeros(1, 3)}
        if covariance:
            expected |= {"scale": torch.ones(1, 3), "correlation": torch.eye(3)[None]}
        assert sites.keys() == expected.keys()
        assert all(torch.equal(sites[name], value) for name, value in expected.items())


def test_a_single_draw_and_a_single_row_have_no_spread():
    fitted = maximum_likelihood(rows(), SHAPE, effort(training=Training(steps=1)))
    figures = fitted.figures(rows().pool)
    assert figures["draws_sd"] == 0.0
    assert figures["mixture"] == pytest.approx(figures["log_likelihood"], rel=1e-12)
    assert math.isnan(fitted.figures(rows().pool[:1])["points_se"])


def test_steps_are_those_of_all_trainings_and_every_one_is_told(monkeypatch):
    progress, told, real = [], [], densities.train

    def kept(*arguments):
        progress.append(real(*arguments))
        return progress[-1]

    monkeypatch.setattr(densities, "train", kept)
    fitted = weighted_bootstrap(rows(), SHAPE, effort(draws=3, restarts=2, training=Training(steps=2)))
    assert (len(progress), fitted.info) == (3 * 2, {"steps": 3 * 2})
    fitted = shared_bootstrap(
        rows(), SHAPE, effort(training=Training(steps=8, lr=0.5)), on_step=lambda: told.append(1)
    )
    assert len(told) == fitted.info["steps"] == len(progress[-1].losses) == 8
    assert fitted.info["losses"] == progress[-1].losses
    assert fitted.info["kept_step"] == progress[-1].scores.index(max(progress[-1].scores)) < 7


def test_the_fitted_mean_is_that_of_the_rows():
    fitted = maximum_likelihood(rows(), SHAPE, effort(), mean=True)
    ((flow, sites),) = fitted.members
    with torch.no_grad():
        torch.testing.assert_close(sites["mean"][0], flow.encode(rows().train)[0].mean(0))
    ((_, sites),) = maximum_likelihood(rows(), SHAPE, effort()).members
    assert not sites["mean"].any()


def test_the_best_start_is_kept(monkeypatch):
    """Of three, the one that scores best on the validation rows."""
    scores, real = [], densities.train

    def kept(*arguments):
        progress = real(*arguments)
        scores.append(progress.score)
        return progress

    monkeypatch.setattr(densities, "train", kept)
    together = maximum_likelihood(rows(), SHAPE, effort(seed=1, restarts=3))
    assert len(set(scores)) == 3
    assert scores.index(max(scores)) != 2  # nor is it the last by chance
    assert together.info["validation"] == max(scores)


def test_the_identity_is_learned_where_the_data_are(monkeypatch):
    """Of uniform rows in the box of the data."""
    monkeypatch.setattr(densities, "IDENTITY_STEPS", 1)
    flow, seen, data = SHAPE.build(rows().train), [], rows().train + 7
    encode = flow.encode
    monkeypatch.setattr(flow, "encode", lambda x: seen.append(x) or encode(x))
    towards_identity(flow, data)
    low, high = data.amin(0), data.amax(0)
    share = (seen[0] - low) / (high - low)
    assert share.amin() >= 0
    assert share.amax() <= 1
    assert (share.mean(0) - 0.5).abs().max() < 4.5 * (1 / 12 / densities.IDENTITY_ROWS) ** 0.5


def test_a_shape_is_built_as_it_says(monkeypatch):
    """And of rows of float64 in float64; a file that is read is not trained towards the identity again."""
    asked = []
    monkeypatch.setattr(densities, "towards_identity", lambda flow, data: asked.append((flow, data)))
    data = rows().train.double()
    shape = FlowShape("spline", blocks=2, hidden=(8,), batch_norm=False, covariance=True)
    flow = shape.build(data)
    assert [type(step.transform).__name__ for step in flow.steps] == ["SplineAutoregressive"] * 2
    assert flow.covariance
    assert {parameter.dtype for parameter in flow.parameters()} == {torch.float64}
    assert asked == []
    narrow = FlowShape(hidden=(2,)).build(data)  # hidden layers are as wide as the table
    assert len(narrow.steps[0].network.layers[0].weight) == 3
    flow = replace(SHAPE, identity=True).build(data)
    assert asked == [(flow, data)]


def test_a_kept_density_is_not_trained_towards_the_identity_again(monkeypatch, tmp_path):
    shape, asked = replace(SHAPE, identity=True), []
    monkeypatch.setattr(densities, "towards_identity", lambda *parts: asked.append(parts))
    fitted = maximum_likelihood(rows(), shape, effort(training=Training(steps=1)))
    fitted.save(tmp_path / "fit.safetensors", shape)
    FittedDensity.load(tmp_path / "fit.safetensors")
    assert len(asked) == 1


@pytest.mark.slow
def test_the_start_can_be_the_identity(monkeypatch):
    monkeypatch.setattr(densities, "IDENTITY_STEPS", 250)
    torch.manual_seed(0)
    flow = FlowShape(hidden=(8,), batch_norm=False).build(rows().train)
    with torch.no_grad():
        before = (flow.encode(rows().train)[0] - rows().train).square().mean()
    towards_identity(flow, rows().train)
    with torch.no_grad():
        assert (flow.encode(rows().train)[0] - rows().train).square().mean() < 0.5 * before


def test_a_start_that_leaves_the_numbers_is_no_candidate(monkeypatch):
    calls, real = [], densities.train

    def first_and_last_diverge(*arguments):
        calls.append(real(*arguments))
        if len(calls) != 2:
            raise DivergenceError(f"step {len(calls)}: the loss is nan")
        return calls[-1]

    monkeypatch.setattr(densities, "train", first_and_last_diverge)
    training = Training(steps=2, lr=0.01)
    found = maximum_likelihood(rows(), SHAPE, effort(restarts=3, training=training))
    assert (len(calls), found.info["validation"]) == (3, calls[1].score)
    with pytest.raises(FailedError, match="step 5: the loss is nan"):
        maximum_likelihood(rows(), SHAPE, effort(restarts=2, training=training))


def test_rows_that_overflow_are_a_failure_with_its_reason():
    huge = Rows(*(1e30 * part for part in (rows().train, rows().validation)))
    with pytest.raises(FailedError, match="step 0: the loss is"):
        maximum_likelihood(huge, SHAPE, effort())


def test_a_column_without_variance_is_refused():
    flat = Rows(*(part * torch.tensor([1.0, 0.0, 1.0]) for part in (rows().train, rows().validation)))
    with pytest.raises(ValueError, match="column 1 of the training rows is constant"):
        shared_bootstrap(flat, SHAPE, effort())


@pytest.mark.parametrize("kind", ["realnvp", "spline"])
def test_other_flows(kind):
    fitted = shared_bootstrap(rows(), FlowShape(kind, hidden=(8,)), effort(), concentration=5.0)
    assert fitted.log_density(rows().pool).isfinite().all()


def test_restarts_have_random_laws_of_their_own(monkeypatch):
    """And the same ones again by the same seed."""
    seen, real = [], densities.train

    def kept(objective, laws, *others):
        first = next(laws)
        seen.append(first.weights)
        return real(objective, itertools.chain([first], laws), *others)

    monkeypatch.setattr(densities, "train", kept)
    for _ in range(2):
        shared_bootstrap(rows(), SHAPE, effort(restarts=2, training=Training(steps=1, lr=0.01)))
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(seen[1], seen[3])
    assert not torch.equal(seen[0], seen[1])


def test_hidden_layers_are_at_least_as_wide_as_the_table():
    """Else units of some columns would be missing from an autoregressive network."""

    def count(hidden: int) -> int:
        shape = FlowShape(hidden=(hidden,))
        return sum(p.numel() for p in shape.build(torch.randn(20, 7)).parameters())

    assert count(2) == count(7) < count(8)


def test_a_latent_mean_of_the_weighted_bootstrap_is_that_of_the_member_s_weights():
    found = weighted_bootstrap(rows(), SHAPE, effort(draws=2), mean=True)
    generator = torch.Generator().manual_seed(stable_seed("weights", 0))
    weights = dirichlet_weights(2, 60, 0, 0.0, generator).float()
    for own, (flow, sites) in zip(weights, found.members, strict=True):
        with torch.no_grad():
            z = flow.encode(rows().train)[0]
        torch.testing.assert_close(sites["mean"], (own @ z)[None], rtol=1e-4, atol=1e-5)
        assert (own @ z - z.mean(0)).abs().max() > 0.01  # which that of all rows alike is not
