"""Flows: their inverse and their determinant, densities that are densities, and no old values."""

from __future__ import annotations

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine

from guides import AutoMeanField
from guides.flows.weighted_batch_norm import EPSILON, WeightedBatchNorm, weighted_rows
from guides.truth import nuts
from zoo.models.normalizing_flow import LARGEST_LOG_SCALE, PRIOR_SD, FlowDensity, Flowing, _root

KINDS = ("maf", "realnvp", "spline")
each_kind = pytest.mark.parametrize("kind", KINDS)


def rows(count: int = 50, features: int = 3, seed: int = 0) -> torch.Tensor:
    x = torch.randn(count, features, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.cat([x[:, :1], x[:, 1:] + 0.5 * x[:, :1] ** 2], 1)


def flow(kind: str = "maf", features: int = 3, **options) -> FlowDensity:
    """With statistics of some rows, and far from the identity."""
    made = FlowDensity(features, hidden=(20,), kind=kind, **options).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    made.encode(rows(features=features))
    return made.eval()


@each_kind
def test_decoding_is_the_inverse_of_encoding(kind):
    made, x = flow(kind), rows(seed=1)
    torch.testing.assert_close(made.decode(made.encode(x)[0]), x, rtol=0, atol=1e-6)


@each_kind
def test_log_determinants_are_those_of_autograd(kind):
    made, x = flow(kind), rows(4, seed=1)
    for row, found in zip(x, made.encode(x)[1], strict=True):
        jacobian = torch.autograd.functional.jacobian(lambda one: made.encode(one[None])[0][0], row)
        torch.testing.assert_close(found, torch.linalg.slogdet(jacobian)[1])


@pytest.mark.parametrize(("kind", "covariance"), [*((kind, False) for kind in KINDS), ("maf", True)])
def test_densities_integrate_to_one(kind, covariance):
    made, step = flow(kind, 2, blocks=2, covariance=covariance), 0.05
    axis = torch.arange(-8, 8, step, dtype=torch.float64)
    with torch.no_grad():
        z = made.encode(rows(features=2))[0]
        sites = made.local(torch.full((len(z),), 1 / len(z)).double(), z)
        grid = torch.cartesian_prod(axis, axis)
        total = sum(made.log_density(sites, made.encode(part)).exp().sum() for part in grid.split(5000))
    assert abs(total.item() * step**2 - 1) < 2e-3


@each_kind
def test_the_same_tensor_has_another_value_after_a_step(kind):
    """Pyro's compositions remember what they saw."""
    made, x = FlowDensity(3, hidden=(20,), kind=kind), rows().float()
    optimizer, values = torch.optim.Adam(made.parameters(), lr=0.01), []
    for _ in range(3):
        optimizer.zero_grad()
        values.append(made.log_density({"mean": torch.zeros(3)}, made.encode(x)).mean())
        (-values[-1]).backward()
        optimizer.step()
    assert values[0] < values[1] < values[2]


def test_columns_depend_on_those_before_them_alone():
    made, x = flow(blocks=1), rows(4)
    moved = x.clone()
    moved[:, 1] += 1.0
    z, other = made.encode(x)[0], made.encode(moved)[0]
    assert torch.equal(z[:, 0], other[:, 0])
    assert (z[:, 1:] != other[:, 1:]).all()


@each_kind
def test_columns_are_turned_from_block_to_block(kind):
    """One block leaves the first column without the last one, two do not."""
    moved = rows(4)
    moved[:, -1] += 1.0
    for blocks, depends in ((1, False), (2, True)):
        made = flow(kind, blocks=blocks)
        first, other = made.encode(rows(4))[0][:, 0], made.encode(moved)[0][:, 0]
        assert (first != other).all() == depends


def test_log_scales_are_bounded():
    made = flow(blocks=2, batch_norm=False)
    far = 1e6 * rows()
    assert made.encode(far)[1].abs().max() <= 2 * 3 * LARGEST_LOG_SCALE


@pytest.mark.parametrize("sign", [-1, 1])
def test_log_scales_of_couplings_are_bounded(sign):
    """Of the two columns that one scales, both far beyond."""
    made = flow("realnvp", blocks=1)
    last = made.steps[0].transform.nn.layers[-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.fill_(sign * 100.0)
    assert (made.encode(rows())[1] == sign * 2 * LARGEST_LOG_SCALE).all()


def test_small_log_scales_are_those_of_the_network():
    """``b tanh(a / b) = a - a^3 / (3 b^2) + ...``"""
    (step,) = FlowDensity(3, blocks=1, hidden=(20,)).double().steps
    x = rows()
    raw, found = step.network(x)[1], -step(x)[1]
    assert raw.abs().max() > 0.1
    expected = (raw - raw**3 / (3 * LARGEST_LOG_SCALE**2)).sum(-1)
    torch.testing.assert_close(found, expected, rtol=0, atol=raw.abs().max().item() ** 5 / 100)


def test_splines_leave_alone_what_is_outside_of_four():
    made = flow("spline", blocks=1)
    inside, outside = (torch.full((1, 3), x, dtype=torch.float64) for x in (3.9, 4.1))
    assert (made.encode(inside)[0] != inside).all()
    assert torch.equal(made.encode(outside)[0], outside)


@each_kind
def test_every_second_block_runs_backwards(kind):
    steps = FlowDensity(3, blocks=4, hidden=(20,), kind=kind, batch_norm=False).steps
    if kind == "maf":
        assert [step.order.tolist() for step in steps] == [[0, 1, 2], [2, 1, 0]] * 2
    else:
        assert [step.backwards for step in steps] == [False, True] * 2


# --------------------------------------------------------------------------------------- weighted statistics


def test_weighted_statistics_are_those_of_repeated_rows():
    x, counts = rows(6), torch.tensor([1, 3, 2, 1, 0, 5])
    repeated, weighted = WeightedBatchNorm(3).double(), WeightedBatchNorm(3).double()
    expected, _ = repeated(x.repeat_interleave(counts, 0))
    with weighted_rows(counts / counts.sum()):
        y, log_det = weighted(x)
    torch.testing.assert_close(y.repeat_interleave(counts, 0), expected)
    torch.testing.assert_close(
        log_det, -0.5 * (x.repeat_interleave(counts, 0).var(0, False) + EPSILON).log().sum()
    )
    torch.testing.assert_close(weighted.variance, repeated.variance)


def test_a_normalisation_that_is_reset_has_no_scale_and_no_shift():
    made, x = WeightedBatchNorm(3).double(), rows()
    with torch.no_grad():
        made.log_scale.fill_(0.7)
        made.shift.fill_(-2.0)
    made.reset_parameters()
    y, log_det = made(x)
    torch.testing.assert_close(y, (x - x.mean(0)) / (x.var(0, False) + EPSILON).sqrt())
    torch.testing.assert_close(log_det, -0.5 * (x.var(0, False) + EPSILON).log().sum())


def test_rows_of_weight_zero_change_nothing():
    x, more = rows(), 100 * rows(7, seed=3)
    alone, beside = (flow().train() for _ in range(2))
    beside.load_state_dict(alone.state_dict())
    weights = torch.full((50,), 1 / 50, dtype=torch.float64)
    found = []
    for made, seen, law in (
        (alone, x, weights),
        (beside, torch.cat([x, more]), torch.cat([weights, torch.zeros(7).double()])),
    ):
        with weighted_rows(law):
            encoded = made.encode(seen)
            sites = made.local(law, encoded[0])
            loss = -(law * made.log_density(sites, encoded)).sum()
        loss.backward()
        found.append((loss, *(p.grad for p in made.parameters()), *made.buffers()))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_pass_through_the_statistics():
    norm, x = WeightedBatchNorm(2).double(), rows(5, 2).requires_grad_()
    with torch.no_grad():
        norm.log_scale.copy_(torch.tensor([0.3, -0.2]))
    weights = torch.tensor([0.1, 0.4, 0.2, 0.05, 0.25], dtype=torch.float64)

    def outcome(x, log_scale, shift):
        values = {"log_scale": log_scale, "shift": shift}
        with weighted_rows(weights):
            return torch.func.functional_call(norm, values, (x,))

    assert torch.autograd.gradcheck(outcome, (x, norm.log_scale, norm.shift))


def test_evaluation_uses_the_statistics_of_the_last_call():
    norm = WeightedBatchNorm(3).double()
    y, log_det = norm(rows())
    norm.eval()
    again, same = norm(rows())
    torch.testing.assert_close(again, y)
    torch.testing.assert_close(same, log_det)
    torch.testing.assert_close(norm.inverse(y), rows())


# ------------------------------------------------------------------------------------------ latent Gaussian


@pytest.mark.parametrize("covariance", [False, True])
def test_local_sites_minimise_the_weighted_loss(covariance):
    made, x = flow(covariance=covariance), rows()
    weights = torch.distributions.Dirichlet(torch.ones(50).double()).sample()
    encoded = made.encode(x)
    sites = {name: value.detach().requires_grad_() for name, value in made.local(weights, encoded[0]).items()}
    loss = -(weights * made.log_density(sites, encoded)).sum()
    mean, *others = torch.autograd.grad(loss, list(sites.values()))
    assert mean.abs().max() < 1e-8
    if others:  # along scale; the correlation's own constraint binds its rows
        assert others[0].abs().max() < 1e-4
        spread = (weights @ (encoded[0] - sites["mean"]) ** 2).sqrt()
        torch.testing.assert_close(sites["scale"], spread, rtol=1e-4, atol=0)
        torch.testing.assert_close(sites["correlation"].norm(dim=-1), torch.ones_like(spread))


def test_a_covariance_of_fewer_rows_than_columns_has_a_root():
    made, x = flow(covariance=True), rows(2)
    weights = torch.tensor([0.25, 0.75], dtype=torch.float64)
    z = made.encode(x)[0]
    root, apart = _root(made.local(weights, z)), z[1] - z[0]
    torch.testing.assert_close(root @ root.mT, 3 / 16 * torch.outer(apart, apart), rtol=1e-4, atol=1e-5)
    assert (root.diagonal() > 0).all()


@pytest.mark.parametrize("covariance", [False, True])
def test_many_values_of_the_sites_at_once(covariance):
    made, x = flow(covariance=covariance), rows()
    weights = torch.distributions.Dirichlet(torch.ones(50).double()).sample((4,))
    encoded = made.encode(x)
    together = made.log_density(made.local(weights, encoded[0]), encoded)
    for row, law in zip(together, weights, strict=True):
        torch.testing.assert_close(row, made.log_density(made.local(law, encoded[0]), encoded))


@pytest.mark.parametrize("covariance", [False, True])
def test_a_pyro_model(covariance):
    made, x = flow(covariance=covariance), rows()
    trace = poutine.trace(made).get_trace(x)
    latent = {name: trace.nodes[name]["value"] for name in trace.stochastic_nodes if name != "data"}
    assert set(latent) == {"mean", *(("scale", "correlation") if covariance else ())}
    trace.compute_log_prob()
    assert trace.nodes["x"]["log_prob"].shape == (50,)
    torch.testing.assert_close(trace.nodes["x"]["log_prob"], made.log_density(latent, made.encode(x)))
    wide = torch.distributions.Normal(0.0, PRIOR_SD).log_prob(latent["mean"]).sum()
    torch.testing.assert_close(trace.nodes["mean"]["log_prob"], wide)
    if covariance:
        wide = torch.distributions.LogNormal(0.0, 1.0).log_prob(latent["scale"]).sum()
        torch.testing.assert_close(trace.nodes["scale"]["log_prob"], wide)
        flat = torch.distributions.LKJCholesky(3, torch.tensor(1.0, dtype=torch.float64))
        expected = flat.log_prob(latent["correlation"].double())
        torch.testing.assert_close(trace.nodes["correlation"]["log_prob"].double(), expected)
    with torch.no_grad():
        drawn = pyro.poutine.condition(made, latent)(2000)
    assert drawn.shape == (2000, 3)
    z = made.encode(drawn)[0]
    torch.testing.assert_close(z.mean(0), latent["mean"], rtol=0.1, atol=0.6)


def test_latent_draws_have_the_covariance():
    """Of a triangular root L it is L L' and not L' L: each entry to 4.5 standard errors."""
    root, number = torch.tensor([[1.0, 0.0], [1.2, 0.5]], dtype=torch.float64), 20_000
    scale, mean = root.norm(dim=1), torch.tensor([3.0, -1.0], dtype=torch.float64)
    sites = {"mean": mean, "scale": scale, "correlation": root / scale[:, None]}
    torch.manual_seed(0)
    z, expected = flow(features=2, covariance=True).latent(sites, number), root @ root.mT
    variances = expected.diagonal()
    assert ((z.mean(0) - mean).abs() < 4.5 * (variances / number).sqrt()).all()
    error = ((variances * variances[:, None] + expected**2) / number).sqrt()
    assert ((z.T.cov() - expected).abs() < 4.5 * error).all()


@pytest.mark.parametrize("batch_norm", [True, False])
def test_batches_are_normalised_between_the_blocks_where_wanted(batch_norm):
    steps = FlowDensity(3, blocks=4, batch_norm=batch_norm).steps
    normalised = [isinstance(step, WeightedBatchNorm) for step in steps]
    assert normalised == ([False, *[True, False] * 3] if batch_norm else [False] * 4)


def test_flows_that_cannot_be():
    with pytest.raises(ValueError, match="at least two columns"):
        FlowDensity(1)
    with pytest.raises(ValueError, match="at least as many units as there are columns, 30"):
        FlowDensity(30, hidden=(20,))
    with pytest.raises(ValueError, match="at least as many units as there are columns, 3"):
        FlowDensity(3, hidden=(20, 2))
    with pytest.raises(ValueError, match="at least one hidden layer"):
        FlowDensity(3, hidden=())
    with pytest.raises(ValueError, match="blocks"):
        FlowDensity(3, blocks=0)


@pytest.mark.slow
def test_nuts_of_the_mean_is_its_closed_form():
    """With the flow known, ``N(sum z / (n + 0.01), I / (n + 0.01))``: what the bootstrap agrees with."""
    made, x = flow(features=2).requires_grad_(False), rows(60, 2)
    result = nuts(made, (x,), backend="pyro", warmup=100, draws=200, retries=0, float64=True)
    mean = result.posterior(made).draws()["mean"]
    precision = 60 + 1 / PRIOR_SD**2
    expected = made.encode(x)[0].sum(0) / precision
    # 400 draws, correlated a little
    assert ((mean.mean(0) - expected).abs() < 4.5 * (1 / precision / 150) ** 0.5).all()
    assert ((mean.std(0) * precision**0.5 - 1).abs() < 4.5 / 300**0.5).all()


@pytest.mark.parametrize("covariance", [False, True])
def test_latent_values_at_once_have_the_densities_of_one_after_the_other(covariance):
    """Sites before the plate of rows, ``[S, 1, ...]``, as vectorized particles and draws have them."""
    made, x = flow(features=2, covariance=covariance), rows(5, 2)
    alone = [poutine.trace(made).get_trace(1) for _ in range(3)]
    names = ["mean", "scale", "correlation"][: 3 if covariance else 1]
    sites = {name: torch.stack([t.nodes[name]["value"] for t in alone]) for name in names}
    expected = torch.stack(
        [
            made.log_density({name: value[i] for name, value in sites.items()}, made.encode(x))
            for i in range(3)
        ]
    )
    at_once = {name: value.unsqueeze(1) for name, value in sites.items()}
    law = Flowing(made, at_once, torch.Size([3, 5]))
    torch.testing.assert_close(law.log_prob(x), expected)
    torch.manual_seed(0)
    found = made.encode(law.rsample())[0]
    torch.manual_seed(0)
    noise = torch.randn(3, 5, 2).double()
    for i in range(3):
        root = (
            (sites["scale"][i].unsqueeze(-1) * sites["correlation"][i])
            if covariance
            else torch.eye(2).double()
        )
        torch.testing.assert_close(found[i], sites["mean"][i] + noise[i] @ root.mT)


def test_particles_at_once_have_the_loss_of_one_after_the_other():
    made, x = flow(features=2).float(), rows(5, 2).float()
    guide = AutoMeanField(made)
    guide.setup(x)
    with torch.no_grad():
        guide.log_scale.fill_(-15.0)
    one = guide.elbo().loss(made, guide, x)
    assert guide.elbo(num_particles=4, vectorize_particles=True).loss(made, guide, x) == pytest.approx(
        one, rel=1e-4
    )


def test_a_number_of_rows_may_be_one_of_numpy():
    model = FlowDensity(2)
    assert model(np.int64(5)).shape == model(5).shape == (5, 2)
