"""Independent noise per row is used only where each likelihood term sees one row."""

from __future__ import annotations

import itertools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoGuideList

from guides import AutoMeanField, AutoSpikeSlab, PathwiseGradientError
from guides.core.row_mixing import MOST_EXPERIMENTS, MOST_RATIOS, Asked, RowProbe, mixed_site
from guides.testing import Noise, gradients, mean_of
from tests.guides.core.one_site import observe, weights


def choice(x, y, spike=False):  # x: [N, alternatives, P]
    observe(dist.Categorical(logits=x @ weights(spike, x.shape[-1])), y, len(x))


def paired(x, y, spike=False):
    f = x @ weights(spike, x.shape[-1])
    observe(dist.Bernoulli(logits=f[1:] - f[:-1]), y, len(x) - 1)


def correlated(x, y, spike=False):
    covariance = 0.5 * torch.eye(len(x)) + 0.5
    pyro.sample("y", dist.MultivariateNormal(x @ weights(spike, x.shape[-1]), covariance), obs=y)


def pooled(x, y, spike=False):  # x: [N, members, P]
    f = F.relu(F.linear(x, weights(spike, 4, x.shape[-1]))).mean((1, 2))
    observe(dist.Normal(f, 1.0), y, len(x))


def filtered(x, y, spike=False):  # x: [N, members, P]
    f = F.relu(F.conv1d(x, weights(spike, 2, x.shape[1], 2))).sum((1, 2))
    observe(dist.Normal(f - f.mean(), 1.0), y, len(x))


def normalised(x, y, spike=False):
    f = x @ weights(spike, x.shape[-1])
    observe(dist.Normal((f - f.mean()) / f.std(), 1.0), y, len(x))


def in_a_prior(x, y, spike=False):
    f = x @ weights(spike, x.shape[-1])
    scale = pyro.sample("scale", dist.LogNormal(f.mean(), 0.1))
    observe(dist.Normal(f, scale), y, len(x))


def effect_of_each_row(x, y, spike=False):
    f = x @ weights(spike, x.shape[-1])
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(pyro.sample("z", dist.Normal(f, 0.5)), 1.0), obs=y)


def plain(x, y, spike=False):
    observe(dist.Normal(x @ weights(spike, x.shape[-1]), 1.0), y, len(x))


def as_one_event(x, y, spike=False):
    pyro.sample("y", dist.Normal(x @ weights(spike, x.shape[-1]), 1.0).to_event(1), obs=y)


def counts(x, y, spike=False):
    observe(dist.Poisson(torch.exp(x @ weights(spike, x.shape[-1]))), y, len(x))


def several_outputs(x, y, spike=False):
    law = dist.Normal(F.linear(x, weights(spike, 2, x.shape[-1])), 1.0).to_event(1)
    observe(law, y, len(x))


MIXED = {
    choice: ((20, 3, 4), torch.zeros(20).long()),
    paired: ((20, 4), torch.ones(19)),
    correlated: ((20, 4), torch.zeros(20)),
    pooled: ((20, 3, 4), torch.zeros(20)),
    normalised: ((20, 4), torch.zeros(20)),
    filtered: ((20, 3, 4), torch.zeros(20)),
    in_a_prior: ((20, 4), torch.zeros(20)),
}
SEPARATE = {
    plain: ((300, 4), torch.zeros(300)),
    as_one_event: ((20, 4), torch.zeros(20)),
    counts: ((20, 4), torch.ones(20)),
    several_outputs: ((20, 4), torch.zeros(20, 2)),
    effect_of_each_row: ((20, 4), torch.zeros(20)),
}


@pytest.mark.parametrize("model", MIXED, ids=lambda m: m.__name__)
def test_rows_that_meet_share_the_weights(model):
    shape, y = MIXED[model]
    x = torch.randn(shape)
    guide = AutoMeanField(model)
    guide.setup(x, y)
    assert not guide.sites["w"].by_moments
    with pytest.raises(PathwiseGradientError, match="'w'.*rows.*('y'|'prior of scale')"):
        AutoSpikeSlab(model).setup(x, y, True)


@pytest.mark.parametrize("model", SEPARATE, ids=lambda m: m.__name__)
def test_rows_that_do_not_meet_keep_their_own_noise(model):
    shape, y = SEPARATE[model]
    x = torch.randn(shape)
    for guide, spike in ((AutoMeanField(model), False), (AutoSpikeSlab(model), True)):
        guide.setup(x, y, spike)
        assert guide.sites["w"].by_moments


def test_only_the_layer_whose_rows_meet_loses_its_noise():
    """In a set network the rows of the first layer meet, those of the second are the data."""

    def model(x, y):
        first = pyro.sample("first", dist.Normal(0.0, 1.0).expand([4, 3]).to_event(2))
        second = pyro.sample("second", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
        observe(dist.Normal(torch.tanh(F.linear(x, first)).mean(1) @ second, 1.0), y, len(x))

    guide = AutoMeanField(model)
    guide.setup(torch.randn(10, 5, 3), torch.zeros(10))
    assert not guide.sites["first"].by_moments
    assert guide.sites["second"].by_moments


def test_set_up_leaves_the_random_numbers_alone():
    """The probing runs use a generator state of their own."""
    x, y = torch.randn(30, 4), torch.zeros(30)
    states = []
    for rows in (30, 2):  # another number of probing runs
        pyro.set_rng_seed(3)
        AutoMeanField(plain, lrt=rows > 2).setup(x, y)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_at_the_exact_optimum_of_correlated_residuals_the_gradient_is_zero():
    """Generalised least squares: the mean field's optimum is the posterior mean and 1 / sqrt(diag precision).

    There the gradient of the loss, quadratic in the noise of the three weights, is zero in expectation: in
    the mean over a two-level design.  With noise of its own for every row the gradient of the sds would be
    far off.
    """
    x = torch.randn(40, 3) + 2
    covariance = 0.5 * torch.eye(40) + 0.5
    y = torch.distributions.MultivariateNormal(x @ torch.tensor([1.0, -1.0, 0.5]), covariance).sample()
    precision = torch.eye(3) + x.T @ torch.linalg.solve(covariance, x)
    mean = torch.linalg.solve(precision, x.T @ torch.linalg.solve(covariance, y))
    guide = AutoMeanField(correlated)
    guide.setup(x, y)
    with torch.no_grad():
        guide.loc.copy_(mean)
        guide.log_scale.copy_(precision.diagonal().rsqrt().log())
    runs = list(Noise.two_level(4).each(lambda: gradients(correlated, guide, guide.elbo(), x, y)))
    for name, value in mean_of(runs).items():
        torch.testing.assert_close(value, torch.zeros(3), rtol=0, atol=1e-3)
        assert max(run[name].abs().max() for run in runs) > 0.3


@pytest.mark.parametrize("rows", [2, 3, 6, 7, 11])
def test_any_two_rows_that_meet_are_found_and_a_row_alone_is_not(rows):
    def answer(*chosen):
        def run(probe):
            f = probe("w", torch.full((rows,), -1.0), torch.Size([rows]))
            return {"y": F.relu(f[list(chosen)]).sum()[None]}  # moves in one direction do not show

        return mixed_site(run, {"w"})

    for i, j in itertools.combinations(range(rows), 2):
        assert answer(i, j) == "y"
    for i in range(rows):
        assert answer(i) is None


def test_many_rows_take_part_at_random():
    """Two rows out of a thousand that meet somewhere are told apart by one of the experiments."""

    def run(probe):
        f = probe("w", torch.zeros(1000), torch.Size([1000]))
        return {"y": f[:-1] + f[1:]}

    assert mixed_site(run, {"w"}) == "y"
    separate = mixed_site(lambda probe: {"y": probe("w", torch.zeros(1000), torch.Size([1000]))}, {"w"})
    assert separate is None
    assert math.comb(MOST_EXPERIMENTS, MOST_EXPERIMENTS // 2) < 1000


def test_a_probe_moves_some_rows_of_its_sites_only():
    output = torch.zeros(6, 3)
    parts = []
    for number in range(4):
        moved = RowProbe({"w"}, 4, number)("w", output, torch.Size([6])) != 0
        assert (moved.any(-1) == moved.all(-1)).all()
        parts.append(moved.any(-1))
    assert (torch.stack(parts).sum(0) == 2).all()
    assert len(torch.stack(parts).unique(dim=1).T) == 6
    assert RowProbe({"w"}, 4, 1)("v", output, torch.Size([6])) is output


def test_a_probe_moves_no_row_that_is_alone():
    """It meets every row of another layer."""
    output = torch.ones(1, 3)
    assert RowProbe({"w"}, 2, 0)("w", output, torch.Size([1])) is output


def test_the_seed_of_a_gpu_is_given_back(monkeypatch):
    """The probing runs have a seed of their own: fits with other seeds would have the same noise on a GPU."""
    seeds = {"gpu": "the user's"}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: seeds["gpu"])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: seeds.update(gpu=state))
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: seeds.update(gpu=seed, asked=True))
    AutoMeanField(choice).setup(torch.randn(5, 3, 2), torch.zeros(5))
    assert seeds == {"gpu": "the user's", "asked": True}


def test_a_set_up_with_one_row_is_asked_again_with_several():
    """One row meets no other; of five, all meet in one term."""

    def model(x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("y", dist.Normal((x @ w).sum(), 1.0), obs=y)

    x, y = torch.randn(5, 2, generator=torch.Generator().manual_seed(0)), torch.tensor(1.0)
    guide = AutoMeanField(model)
    guide.setup(x[:1], y)
    assert guide.sites["w"].by_moments
    guide(x, y)
    assert not guide.sites["w"].by_moments


def test_other_numbers_of_rows_for_each_datum_are_asked_about():
    """Rows that were alone in their bags share them later; with as many in each nobody asks again."""
    asked = []

    def model(x, bag, y):
        asked.append(len(x))
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        observe(dist.Normal(torch.zeros(len(y)).index_add(0, bag, x @ w), 1.0), y, len(y))

    guide = AutoMeanField(model)
    guide.setup(torch.randn(6, 2), torch.arange(6), torch.zeros(6))
    asked.clear()
    guide(torch.randn(4, 2), torch.arange(4), torch.zeros(4))
    assert asked == [4]
    assert guide.sites["w"].by_moments
    guide(torch.randn(12, 2), torch.arange(6).repeat_interleave(2), torch.zeros(6))
    assert not guide.sites["w"].by_moments


def test_rows_that_met_once_are_not_forgotten():
    """Where another call has been asked about between two of the same kind."""

    def model(x, y, z=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(1, 2), 1.0).to_event(2))
        v = pyro.sample("v", dist.Normal(torch.zeros(1, 2), 1.0).to_event(2))
        f = F.linear(x, w).squeeze(-1)
        if z is None:
            f = f - f.mean()
        else:
            observe(dist.Normal(f, 1.0), z, len(x), "z")
        observe(dist.Normal(f + F.linear(x, v).squeeze(-1), 1.0), y, len(x))

    x, y = torch.randn(6, 2), torch.randn(6)
    guide = AutoMeanField(model)
    guide(x, y)
    assert [site.by_moments for site in guide.sites.values()] == [False, True]
    guide(x, y, torch.randn(6))
    guide(x, y)
    assert not guide.sites["w"].by_moments


def test_what_a_run_shows_from_outside_is_known_beside_what_it_showed_within():
    """Of one row and data ``y`` within, and of twelve rows for six numbers of ``z`` from outside."""
    asked = Asked()
    asked.note({"y"}, 1, [1], 6)
    assert not asked.covers({"z"}, 6, [12])
    asked.note_cause({"z"}, 6, [12])
    assert asked.covers({"y", "z"}, 6, [12])
    assert not asked.covers({"y", "z"}, 6, [18])
    asked.note_cause({"z"}, 6, [6])
    assert asked.rows == 12


def test_a_guide_in_a_list_is_asked_again_too():
    """A datum that is no row, and so another number of rows for each datum in a smaller batch."""

    def model(x, y):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        pyro.sample("anchor", dist.Normal(b, 1.0), obs=torch.tensor(0.5))
        observe(dist.Normal(x @ w + b, 1.0), y, len(x))

    both = AutoGuideList(model)
    own = AutoMeanField(poutine.block(model, hide=["b"]))
    both.append(own)
    both.append(AutoDelta(poutine.block(model, expose=["b"])))
    svi = SVI(model, both, pyro.optim.Adam({"lr": 0.01}), Trace_ELBO())
    for rows in (20, 20, 10, 5):
        svi.step(torch.randn(rows, 2), torch.zeros(rows))
        assert own.sites["w"].by_moments


def test_what_was_asked_about_is_not_asked_again():
    asked = Asked()
    asked.note({"y"}, 20, [20], 20)
    assert asked.covers({"y"}, 10, [10])
    assert asked.covers({"y"}, 10, [0])  # weights were drawn: no layer used moments
    assert asked.covers({"y"}, 10, [1])
    assert asked.covers(set(), 0, [10])  # predictions have no data
    assert not asked.covers({"y"}, 10, [20])
    assert not asked.covers({"y", "z"}, 10, [10])
    for ratio in range(2, MOST_RATIOS + 1):
        asked.note({"y"}, 20, [10 * ratio], 10)
    assert asked.covers({"y"}, 10, [999])
    single = Asked()
    single.note({"y"}, 1, [1], 1)
    assert not single.covers({"y"}, 5, [5])
