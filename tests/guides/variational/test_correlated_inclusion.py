"""Correlated inclusion in use: starts, groups of weights, draws, files; common laws are in the battery."""

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import Predictive, TraceMeanField_ELBO
from torch.nn import functional as F

from guides import AutoSpikeSlabMVN, SpikeSlab, UnsupportedSiteError
from guides.core import moments
from guides.posterior.files import load_guide, save_guide
from guides.testing import (
    NOISE,
    assert_mean,
    assert_same_mean,
    data,
    fit,
    linear_model,
    network,
    normal,
    perturb,
    spike_slab,
)
from tests.guides.variational.correlated import each_kind, full, low_rank, nodes


@each_kind
def test_logits_start_with_the_spread_that_is_asked_for(make):
    """By low rank half of the variance is shared; of a full factor the entries below are a tenth."""
    guide = make(linear_model(spike_slab), init_spread=0.7)
    guide.setup(*data(columns=100))
    law = guide._detached()["w"][3]
    if make is low_rank:
        torch.testing.assert_close(law.diagonal, torch.full((100,), 0.5 * 0.7**2))
        assert_mean(law.factor.double().flatten() ** 2, 0.25 * 0.7**2)
        return
    torch.testing.assert_close(law.factor.diagonal(), torch.full((100,), 0.7))
    rows, columns = torch.tril_indices(100, 100, -1)
    assert_mean(law.factor[rows, columns].double() ** 2, 0.07**2)


@each_kind
def test_the_reverse_density_starts_at_the_parabola_of_the_softplus(make):
    """That in its middle, at ``m``, with the indicators' own pull."""
    guide = make(linear_model(spike_slab))
    guide.setup(*data(columns=5))
    law = guide._detached()["w"][3]
    probs = torch.sigmoid(law.mean)
    torch.testing.assert_close(law.slope, probs)
    torch.testing.assert_close(law.curvature, probs * (1 - probs))
    assert (law.pull == 1).all()


def test_matrix_products_either_way_round_have_the_same_groups():
    x, y = data()

    def model(x, y):
        first = torch.tanh(x @ pyro.sample("a", spike_slab([3, 5])))
        f = F.linear(first, pyro.sample("b", spike_slab([2, 5]))).sum(-1)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, NOISE), obs=y)

    for make in (full, low_rank):
        guide = make(model)
        guide(x, y)
        assert guide.logit_covariance("a").shape == (5, 3, 3)
        assert guide.logit_covariance("b").shape == (2, 5, 5)


@pytest.mark.parametrize("shape", [(1, 4), (3, 2)])
def test_columns_of_a_product_have_a_group_each(shape):
    """``x @ w``, of one input too."""

    def model(x, y):
        w = pyro.sample("w", SpikeSlab(probs=0.5).expand(list(shape)).to_event(2))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal((x @ w).sum(-1), 1.0), obs=y)

    guide = AutoSpikeSlabMVN(model)
    guide.setup(torch.ones(5, shape[0]), torch.zeros(5))
    inputs, units = shape
    assert guide.logit_covariance("w").shape == (units, inputs, inputs)


@each_kind
def test_layers_of_either_way_round_have_groups_of_their_own_sizes(make):
    """``x @ w1`` of three inputs and two units, and ``F.linear`` with two inputs and four units."""

    def model(x, y):
        w1 = pyro.sample("w1", SpikeSlab(probs=0.5).expand([3, 2]).to_event(2))
        w2 = pyro.sample("w2", SpikeSlab(probs=0.5).expand([4, 2]).to_event(2))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(F.linear(torch.tanh(x @ w1), w2).sum(-1), 1.0), obs=y)

    guide = make(model)
    guide.setup(torch.ones(5, 3), torch.zeros(5))
    assert guide.logit_covariance("w1").shape == (2, 3, 3)
    assert guide.logit_covariance("w2").shape == (4, 2, 2)
    assert {name: draws.shape[1:] for name, draws in guide.draws(2).items()} == {"w1": (3, 2), "w2": (4, 2)}


def test_filters_have_a_group_for_every_output_channel():
    def model(images, y):
        f = F.conv2d(images, pyro.sample("w", spike_slab([2, 3, 2, 2]))).sum((-3, -2, -1))
        with pyro.plate("data", len(images)):
            pyro.sample("y", dist.Normal(f, NOISE), obs=y)

    for make in (full, low_rank):
        guide = make(model)
        guide(torch.rand(5, 3, 4, 4), torch.randn(5))
        assert guide.logit_covariance("w").shape == (2, 12, 12)


def test_predictions_in_parallel_have_logits_of_their_own():
    """Logits that are almost wholly one deviation: in or out together, in half of the draws."""
    x, y = data()
    model = linear_model(spike_slab)
    guide = low_rank(model)
    guide.setup(x, y)
    with torch.no_grad():
        guide.logits.zero_()
        for name, value in (("factor", 6.0), ("log_diagonal", -10.0)):
            getattr(guide, name).fill_(value)
    w = Predictive(model, guide=guide, num_samples=2000, parallel=True, return_sites=["w"])(x)["w"]
    inside = (w != 0).double().flatten(1)
    assert_mean(inside, torch.full(inside.shape[1:], 0.5, dtype=torch.float64))


@each_kind
def test_updates_of_the_covariance_change_the_samples(make):
    x, y = data()
    model = linear_model(spike_slab)
    guide = make(model)
    guide.setup(x, y)
    before, networks = guide.draws(400, seed=1)["w"] != 0, []
    for _ in range(2):
        pyro.set_rng_seed(0)
        samples = Predictive(model, guide=guide, num_samples=30, return_sites=["w"])(x)
        networks.append(samples["w"] != 0)
        with torch.no_grad():
            guide.factor += 3.0
    assert not torch.equal(guide.draws(400, seed=1)["w"] != 0, before)
    assert not torch.equal(*networks)


@pytest.mark.slow
@each_kind
def test_draws_have_the_inclusion_and_the_marginals_that_are_reported(make):
    x, y = data()
    model = network(spike_slab)
    guide = make(model)
    guide.setup(x, y)
    perturb(guide, 0.5)
    draws = guide.draws(4000, seed=2)
    for name, probs in guide.inclusion_probabilities().items():
        assert_mean((draws[name] != 0).double(), probs.double())
        assert_mean(draws[name].double(), guide.site_distribution(name).mean.double())
    pyro.set_rng_seed(3)
    samples = Predictive(model, guide=guide, num_samples=100)(x)
    assert_same_mean((samples["w1"].squeeze(1) != 0).double(), (draws["w1"] != 0).double())
    with torch.no_grad():  # vectorized particles without gradients: each has logits of its own
        guide(x, y)
        particles = guide.trace.nodes["w1"]["fn"].expand((3000,)).draw("test") != 0
    assert_same_mean(particles.double(), (draws["w1"] != 0).double())
    pairs = [(on[:, 0, :1] & on[:, 0, 1:]).double() for on in (particles, draws["w1"] != 0)]
    assert_same_mean(*pairs)
    assert guide.log_prob({name: value[:50] for name, value in draws.items()}).shape == (50,)


@each_kind
def test_importance_weights_are_unbiased(make):
    """Prior over law averages to one, as does each pattern's share to the prior's probability of it."""
    x, y = data(columns=2)
    guide = make(linear_model(spike_slab), init_spread=1.0, init_inclusion=(-1.0, 0.0))
    guide.setup(x, y)
    with torch.no_grad():
        guide.loc.zero_()
        guide.log_scale.fill_(0.1)
    draws, log_q = guide.draws_with_log_prob(20_000, seed=1)
    weights = (spike_slab([2]).log_prob(draws["w"]) - log_q).exp().double()
    on = (draws["w"] != 0).double()
    shares = torch.stack([weights, weights * on[:, 0], weights * on.prod(-1)], -1)
    assert_mean(shares, torch.tensor([1.0, 0.3, 0.09]).double())


@each_kind
def test_draws_are_scored_with_the_reverse_density_in(make):
    """Without ``r(lambda | gamma)`` importance weights are unbiased just the same (then ``r = q(lambda)``),
    but their logarithms belong to another bound than that of training.
    """
    guide = make(linear_model(spike_slab), init_spread=2.0, init_inclusion=(-0.5, 0.5))
    guide.setup(*data(columns=2))
    perturb(guide, 0.3)
    _, log_q = guide.draws_with_log_prob(40_000, seed=1)
    _, log_scale, _, law = guide._detached()["w"]
    grid, weights = nodes(2, 24)
    deviation = grid.float() @ torch.linalg.cholesky(law.covariance).T
    logits = law.mean + deviation
    probs = torch.sigmoid(logits)
    ratio = law.log_ratio(probs, deviation, probs * (1 - probs)) @ weights.float()
    assert ratio.abs() > 0.1
    entropy = moments.spike_slab_entropy(logits, log_scale).sum(-1) @ weights.float()
    assert_mean(log_q.double(), (ratio - entropy).item())


@each_kind
def test_saved_and_loaded_fits_agree(make, tmp_path):
    x, y = data()
    model = network(spike_slab)
    guide = make(model)
    fit(model, guide, x, y, steps=3)
    save_guide(guide, tmp_path / "guide.safetensors")
    loaded = load_guide(AutoSpikeSlabMVN(model), tmp_path / "guide.safetensors")
    assert loaded.rank == guide.rank
    loaded.setup(x, y)
    assert torch.equal(loaded.draws(3, seed=1)["w1"], guide.draws(3, seed=1)["w1"])
    torch.testing.assert_close(loaded.logit_covariance("w1"), guide.logit_covariance("w1"))


def test_wrong_arguments_and_sites():
    model = linear_model(spike_slab)
    for wrong in (0, 1.5, "2"):
        with pytest.raises(ValueError, match="rank must be a positive int"):
            AutoSpikeSlabMVN(model, rank=wrong)
    with pytest.raises(ValueError, match="init_spread"):
        AutoSpikeSlabMVN(model, init_spread=0.0)

    def local(x, y):
        with pyro.plate("data", len(x), subsample_size=2) as rows:
            w = pyro.sample("w", spike_slab([]))
            pyro.sample("y", dist.Normal(x[rows, 0] * w, NOISE), obs=y[rows])

    with pytest.raises(
        UnsupportedSiteError, match="'w' lies in the subsampled plate 'data'.*use AutoSpikeSlab"
    ):
        AutoSpikeSlabMVN(local)(*data())
    model = linear_model(normal)
    gaussians = AutoSpikeSlabMVN(model)  # no spike and slab: a mean-field guide
    gaussians(*data())
    assert gaussians.inclusion_probabilities() == {}
    assert TraceMeanField_ELBO().loss(model, gaussians, *data()) > 0
