"""AutoMNF: its bound against exact evidences, its sites and their axes, gradients, saving."""

import copy
import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import SVI, TraceMeanField_ELBO
from torch.nn import functional as F

from guides import AutoMNF, PathwiseGradientError, UnsupportedSiteError
from guides.core.distributions import SpikeSlab
from guides.posterior.files import load_guide, save_guide
from guides.testing import (
    ELBOS,
    NOISE,
    Noise,
    assert_drawn_particles_are_runs,
    assert_equal_results,
    assert_particles_are_runs,
    assert_same_mean,
    data,
    each_batch,
    fit,
    gradients,
    linear_model,
    loss_and_gradients,
    losses,
    mean_of,
    network,
    normal,
    perturb,
    spike_slab,
    vectorized,
    z_bound,
)
from guides.truth.conjugate import conjugate_linear_regression
from guides.truth.spike_slab_linear import enumerate_spike_slab
from tests.guides.variational.multiplied import each_flow, each_prior, fitted, log_joint, moved

each_elbo = pytest.mark.parametrize("elbo", ELBOS)


# ---------------------------------------------------------------------- the bound


def losses_given(guide, prior, x, y, noise, seen_noise) -> torch.Tensor:
    """The loss written out again from its definition, ``[n]``: given ``z``, from ``noise [n, d]``, likelihood
    and KL have closed forms; the auxiliary density sees activations with ``seen_noise [n]``.
    """
    module, dim = guide.multipliers[0], x.shape[-1]
    start = module.base[0] + module.base[1].exp() * noise
    z = guide.flows["w"](start)
    expected_base = -module.base[1].sum() - 0.5 * dim * (1 + math.log(2 * math.pi))
    log_q = expected_base - guide.flows["w"].log_abs_det_jacobian(start, z)
    loc, scale = z * guide.loc, guide.log_scale.exp()
    own = prior([dim]).base_dist
    law = (
        SpikeSlab(logits=guide.logits, loc=loc, scale=scale)
        if prior is spike_slab
        else dist.Normal(loc, scale)
    )
    kl = torch.distributions.kl_divergence(law, own.expand(loc.shape)).sum(-1)
    errors = (y - law.mean @ x.T).square().sum(-1) + (law.variance @ (x**2).T).sum(-1)
    likelihood = -0.5 * len(y) * math.log(2 * math.pi * NOISE**2) - 0.5 * errors / NOISE**2
    c, a1, b1, a2, b2 = module.auxiliary
    seen = (law.mean @ c + (law.variance @ c**2).sqrt() * seen_noise).tanh()[:, None]
    back = module.auxiliary_flow(z)
    log_r = dist.Normal(a1 + b1 * seen, (0.5 * (a2 + b2 * seen)).exp()).log_prob(back).sum(-1)
    log_r = log_r + module.auxiliary_flow.log_abs_det_jacobian(z, back)
    return kl - likelihood + log_q - log_r


def assert_definition(mean_over, rows: int, guide, prior, x, y) -> None:
    """``mean_over(noise)`` at three draws of ``z`` and activations, each with both signs in ``rows``."""
    of_z, of_seen = torch.randn(3, x.shape[-1]), torch.randn(3, 1)
    signs = [torch.cat([of_z, torch.full((3, rows), sign), of_seen], 1) for sign in (1.0, -1.0)]
    ours = mean_over(Noise(torch.cat(signs)))
    guide.zero_grad()
    truth = losses_given(guide, prior, x, y, of_z, of_seen.squeeze(-1)).mean()
    truth.backward()
    expected = {"loss": truth.detach()} | {name: p.grad for name, p in guide.named_parameters()}
    assert_equal_results(ours, expected, rtol=1e-4)


@pytest.mark.one_in(3)
@each_prior
@each_flow
@each_elbo
def test_loss_and_gradient_are_their_definition(prior, flow, elbo):
    x, y = data()
    model, guide = moved(prior, x, y, flow=flow)

    def mean_over(noise: Noise) -> dict[str, torch.Tensor]:
        return mean_of(noise.each(lambda: loss_and_gradients(model, guide, elbo(), x, y)))

    assert_definition(mean_over, len(x), guide, prior, x, y)


@each_prior
def test_minibatch_bound_is_unbiased(prior):
    x, y = data(rows=12)
    model = linear_model(prior, batch_size=3)
    guide = AutoMNF(model)
    guide.setup(x, y)
    perturb(guide, 0.2)

    def mean_over(noise: Noise) -> dict[str, torch.Tensor]:
        run = lambda: loss_and_gradients(model, guide, guide.elbo(), x, y)  # noqa: E731
        return mean_of(each_batch(12, 3, lambda: mean_of(noise.each(run))))

    assert_definition(mean_over, 3, guide, prior, x, y)


@pytest.mark.slow
@each_prior
@each_flow
def test_loss_is_unbiased(prior, flow):
    """With the noise as it comes, in training."""
    x, y = data()
    model, guide = moved(prior, x, y, flow=flow)
    with torch.no_grad():
        truth = losses_given(guide, prior, x, y, torch.randn(20_000, 3), torch.randn(20_000)).double()
    runs = [loss_and_gradients(model, guide, TraceMeanField_ELBO(), x, y)["loss"] for _ in range(300)]
    assert_same_mean(torch.stack(runs).double(), truth)


@pytest.mark.slow
def test_reported_loss_of_spikes_and_slabs_is_a_bound():
    """It is the mean log ratio of drawn weights, also where the auxiliary density tells an empty network from
    the others; Gaussian activations, as in training, are many nats off here.
    """
    x, y = torch.zeros(2, 3), torch.zeros(2)  # a likelihood without noise
    model, guide = moved(spike_slab, x, y)
    with torch.no_grad():
        guide.multipliers[0].auxiliary[0] = 5.0  # c
        guide.multipliers[0].auxiliary[2] = 2.0  # b1
        guide.logits.fill_(-1.5)
    svi = SVI(model, guide, guide.optimizer(), guide.elbo())
    bounds = torch.tensor([-svi.evaluate_loss(x, y) for _ in range(300)], dtype=torch.float64)
    draws, log_q = guide.draws_with_log_prob(10_000, seed=1)
    ratios = (log_joint(spike_slab, x, y, draws["w"]) - log_q).double()
    assert_same_mean(ratios, bounds)
    training = -losses(model, guide, TraceMeanField_ELBO(), 100, x, y)
    assert ratios.mean() - training.mean() > 5


@pytest.mark.slow
@each_flow
@pytest.mark.parametrize("seed", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 4))])
def test_bound_stays_below_the_exact_evidence(flow, seed):
    """Gaussian weights: the auxiliary activations' law is exact.  Before, early and late in training."""
    x, y = data(rows=8, seed=seed)
    exact = conjugate_linear_regression(x.numpy(), y.numpy(), prior_scale=1.0, noise_scale=NOISE)
    model = linear_model(normal)
    guide = AutoMNF(model, flow=flow, hidden=(8,), init_z_scale=0.3)
    elbo = guide.elbo(200, vectorize_particles=True, max_plate_nesting=1)
    for steps in (0, 10, 70):
        fit(model, guide, x, y, steps=steps, lr=0.05)
        bounds = -losses(model, guide, elbo, 20, x, y)
        assert bounds.mean() < exact.log_evidence + 4.5 * bounds.std() / math.sqrt(20)
        draws, log_q = guide.draws_with_log_prob(4000, seed=seed)
        weights = (log_joint(normal, x, y, draws["w"]) - log_q).double()
        assert_same_mean(weights, bounds)  # the mean of the log ratio is the bound


@pytest.mark.slow
def test_drawn_bound_of_spikes_and_slabs_stays_below_the_exact_evidence():
    x, y = data(rows=8)
    exact = enumerate_spike_slab(
        x.numpy(), y.numpy(), inclusion_prob=0.3, slab_scale=1 / NOISE, noise_scale=NOISE
    )
    for steps in (1, 150):
        _, guide = fitted(spike_slab, x, y, steps=steps)
        draws, log_q = guide.draws_with_log_prob(8000, seed=1)
        weights = (log_joint(spike_slab, x, y, draws["w"]) - log_q).double()
        assert weights.mean() < exact.log_evidence + 4.5 * weights.std() / math.sqrt(8000)
    assert weights.mean() > exact.log_evidence - 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_tighter_than_mean_field_where_the_posterior_is_correlated(seed):
    """The best mean-field bound has a closed form: the evidence less half of log prod diag - log det.

    Independence is a stationary point of the loss: from narrow multipliers, and with a few rows that hardly
    correlate, training stays there.
    """
    generator = torch.Generator().manual_seed(0)
    both, own = (torch.randn(10, columns, generator=generator) for columns in (1, 2))
    x = 0.98 * both + (1 - 0.98**2) ** 0.5 * own
    y = x.sum(-1) + NOISE * torch.randn(10, generator=generator)
    exact = conjugate_linear_regression(x.numpy(), y.numpy(), prior_scale=1.0, noise_scale=NOISE)
    precision = torch.eye(2) + x.T @ x / NOISE**2
    mean_field = exact.log_evidence - 0.5 * (precision.diagonal().log().sum() - precision.logdet()).item()
    pyro.set_rng_seed(seed)
    model = linear_model(normal)
    guide = AutoMNF(model, init_z_scale=0.6)
    fit(model, guide, x, y, steps=800, lr=0.02, elbo=vectorized(TraceMeanField_ELBO, 10))
    draws, log_q = guide.draws_with_log_prob(20_000, seed=1)
    bound = (log_joint(normal, x, y, draws["w"]) - log_q).double()
    error = bound.std().item() / math.sqrt(20_000)
    assert mean_field + z_bound() * error < bound.mean() < exact.log_evidence
    error = z_bound() / math.sqrt(20_000)  # of a correlation that is none, as of the weights of mean field
    assert torch.corrcoef(draws["w"].T)[0, 1] < -0.2 - error


# ---------------------------------------------------------------------- which sites, which axis


def test_sites_and_their_axes():
    def model(x, images):
        w1 = pyro.sample("w1", normal([4, 3]))
        b1 = pyro.sample("b1", normal([4]))
        w2 = pyro.sample("w2", spike_slab([4, 2]))
        v = pyro.sample("v", spike_slab([2]))
        filters = pyro.sample("filters", spike_slab([5, 1, 3, 3]))
        h = torch.tanh(torch.tanh(F.linear(x, w1, b1)) @ w2) @ v
        maps = torch.tanh(F.conv2d(images, filters)).sum((1, 2, 3))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(h + maps, 1.0), obs=torch.zeros(len(x)))

    guide = AutoMNF(model)
    args = torch.randn(6, 3), torch.randn(6, 1, 4, 4)
    guide.setup(*args)
    assert {name: site.multiplied for name, site in guide.sites.items()} == {
        "w1": 1, "b1": None, "w2": 0, "v": 0, "filters": 0,
    }  # fmt: skip
    lengths = [len(module.contraction) for module in guide.multipliers]
    assert dict(zip(guide.flows, lengths, strict=True)) == {"w1": 3, "w2": 4, "v": 2, "filters": 5}
    fit(model, guide, *args, steps=3)
    assert guide.draws(2)["filters"].shape == (2, 5, 1, 3, 3)


def used_twice(prior):
    """A model with two products of one weight."""

    def model(x, y):
        w = pyro.sample("w", prior([3]))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w + (x**2) @ w, 1.0), obs=y)

    return model


def test_refusals():
    with pytest.raises(ValueError, match="flow must be one of rnvp, iaf"):
        AutoMNF(network(normal), flow="planar")
    with pytest.raises(ValueError, match="init_z_scale"):
        AutoMNF(network(normal), init_z_scale=0.0)
    with pytest.raises(ValueError, match="init_z must be finite"):
        AutoMNF(network(normal), init_z=math.nan)
    with pytest.raises(ValueError, match=r"hidden must be a collection.*write hidden=\(50,\)"):
        AutoMNF(network(normal), hidden=50)
    x, y = data()
    with pytest.raises(PathwiseGradientError, match="'w'"):
        AutoMNF(used_twice(spike_slab)).setup(x, y)
    guide = AutoMNF(network(normal))
    guide.setup(x, y)
    with pytest.raises(NotImplementedError, match="'w1'.*draws_with_log_prob"):
        guide.site_distribution("w1")
    assert guide.site_distribution("b1").mean.shape == (4,)


def test_gaussian_weights_used_twice_are_drawn_with_their_multipliers():
    x, y = data()
    model = used_twice(normal)
    guide = AutoMNF(model)
    history = fit(model, guide, x, y, steps=40, lr=0.1)
    assert guide.sites["w"].multiplied == 0
    assert not guide.sites["w"].by_moments
    assert sum(history[-10:]) < sum(history[:10])


def test_sites_in_a_subsampled_plate_have_no_multipliers():
    x, y = data(rows=6)

    def model(x, y, size):
        with pyro.plate("data", len(x), subsample_size=size) as rows:
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z + x[rows, 0], 1.0), obs=y[rows])
        v = pyro.sample("v", normal([3]))
        with pyro.plate("again", len(x)):
            pyro.sample("y2", dist.Normal(x @ v, 1.0), obs=y)

    guide = AutoMNF(model)
    guide.setup(x, y, 2)
    assert {name: site.multiplied for name, site in guide.sites.items()} == {"z": None, "v": 0}
    fit(model, guide, x, y, 2, steps=2)


def test_a_plate_that_is_subsampled_later_is_refused():
    x, y = data(rows=6)

    def model(x, y, size):
        with pyro.plate("columns", 3, subsample_size=size) as columns:
            w = pyro.sample("w", normal([]))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x[:, columns] @ w, 1.0), obs=y)

    guide = AutoMNF(model)
    guide.setup(x, y, None)
    with pytest.raises(UnsupportedSiteError, match="'w'.*'columns'"):
        guide.elbo().loss_and_grads(model, guide, x, y, 2)


# ---------------------------------------------------------------------- numbers, gradients, saving


@each_flow
@each_prior
def test_gradient_reaches_every_parameter(flow, prior):
    x, y = data()
    model, guide = moved(prior, x, y, flow=flow)
    total = {}
    for _ in range(4):
        for name, value in gradients(model, guide, guide.elbo(), x, y).items():
            total[name] = total.get(name, 0) + value.abs()
    assert {name.split(".")[0] for name in total} >= {"loc", "log_scale", "multipliers"}
    for name, value in total.items():
        assert (value > 0).any(), name
        if flow == "rnvp":
            assert (value > 0).all(), name


@pytest.mark.parametrize("logit", [-60.0, 60.0])
def test_kl_is_finite_for_extreme_logits(logit):
    x, y = data()
    model, guide = moved(spike_slab, x, y)
    with torch.no_grad():
        guide.logits.fill_(logit)
    for value in gradients(model, guide, guide.elbo(), x, y).values():
        assert value.isfinite().all()
    assert losses(model, guide, guide.elbo(), 3, x, y).isfinite().all()


@each_flow
def test_saving_and_copying(flow, tmp_path):
    x, y = data()
    model = network(spike_slab)
    guide = AutoMNF(model, flow=flow, hidden=(7, 6), num_flows=3)
    fit(model, guide, x, y, steps=3)
    save_guide(guide, tmp_path / "guide.safetensors")
    loaded = load_guide(AutoMNF(model), tmp_path / "guide.safetensors")  # options travel along
    clone = copy.deepcopy(guide)
    expected, log_q = guide.draws_with_log_prob(3, seed=1)
    for other in (loaded, clone):
        draws, value = other.draws_with_log_prob(3, seed=1)
        assert all(torch.equal(draws[name], expected[name]) for name in draws)
        assert torch.equal(value, log_q)
    fit(model, loaded, x, y, steps=2)
    fresh = AutoMNF(model, flow=flow, hidden=(7, 6), num_flows=3)
    fresh.setup(x, y)
    kept = list(fresh.parameters())
    fresh.load_state_dict(guide.state_dict())
    assert all(a is b for a, b in zip(kept, fresh.parameters(), strict=True))  # an optimiser may hold them
    assert torch.equal(fresh.draws(3, seed=1)["w1"], expected["w1"])


@each_prior
@each_elbo
def test_vectorized_particles_are_sequential_runs(prior, elbo):
    x, y = data(rows=6)
    model, guide = moved(prior, x, y, 0.2)
    assert_particles_are_runs(model, guide, elbo, x, y)
    assert_drawn_particles_are_runs(model, guide, elbo, x, y)


def test_starts_as_mean_field_would():
    """Around z = 1 with the auxiliary density fitted to it, the flow costs next to nothing."""
    x, y = data()
    model = linear_model(normal)
    guide = AutoMNF(model, init_z_scale=0.05)
    guide.setup(x, y)
    with torch.no_grad():
        cost = losses_given(guide, normal, x, y, torch.randn(4000, 3), torch.randn(4000)).mean()
        law = dist.Normal(guide.loc, guide.log_scale.exp())
        errors = ((y - x @ law.mean) ** 2).sum() + (x**2 @ law.variance).sum()
        likelihood = -0.5 * len(y) * math.log(2 * math.pi * NOISE**2) - 0.5 * errors / NOISE**2
        plain = torch.distributions.kl_divergence(law, dist.Normal(0.0, 1.0)).sum() - likelihood
    assert cost.item() == pytest.approx(plain.item(), abs=1.5)


@pytest.mark.parametrize("layer", [F.linear, lambda x, w: x @ w.T])
def test_a_layer_of_one_unit_has_a_multiplier_for_every_input(layer):
    def model(x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(1, 4), 1.0).to_event(2))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(layer(x, w).squeeze(-1), 1.0), obs=y)

    guide = AutoMNF(model)
    guide.setup(torch.randn(9, 4), torch.randn(9))
    assert guide.sites["w"].multiplied == 1
    assert guide.multipliers[0].base.shape == (2, 4)
