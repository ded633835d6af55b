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
from pyro.infer import SVI, Trace_ELBO, TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoDelta, AutoDiscreteParallel, AutoGuideList
from pyro.nn import PyroModule, PyroParam
from torch import nn
from torch.distributions import constraints

from guides import AutoMeanField, AutoSpikeSlab, PathwiseGradientError, SpikeSlab
from guides.core.row_mixing import (
    MOST_EXPERIMENTS,
    MOST_RATIOS,
    RETURN_VALUE,
    Asked,
    RowProbe,
    Watched,
    _fixed,
    changed,
    mixed_site,
)
from guides.testing import Noise, gradients, mean_of


def weights(spike: bool, *shape: int):
    prior = SpikeSlab(0.5, 0.0, 1.0) if spike else dist.Normal(0.0, 1.0)
    return pyro.sample("w", prior.expand(shape).to_event(len(shape)))


def observe(law, y, rows: int, name: str = "y"):
    with pyro.plate(f"rows of {name}", rows):
        pyro.sample(name, law, obs=y)


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


def test_terms_of_a_return_value_are_all_tensors_in_it():
    """In dictionaries, tuples and lists; whole numbers are none."""
    parts = [torch.full((2,), float(i)) for i in range(4)]
    watched = Watched(lambda: {"a": parts[0], "b": (parts[1], [{"c": parts[2]}, 7]), "d": torch.arange(2)})
    watched()
    assert list(watched.terms) == [f"{RETURN_VALUE} {i}" for i in range(3)]
    assert all(torch.equal(term, part) for term, part in zip(watched.terms.values(), parts, strict=False))


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


def test_priors_are_scored_where_their_numbers_are():
    """A device that every machine has stands for a GPU: nothing is computed there."""
    prior = dist.Normal(torch.zeros(3, device="meta"), torch.ones(3, device="meta"), validate_args=False)
    (score,) = _fixed(prior, torch.empty(3, device="meta"))
    assert (score.device.type, score.shape) == ("meta", (3,))


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


class Gated(PyroModule):
    """Errors that follow each other, by a coefficient that starts at zero: then no two rows meet."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind, zero = kind, torch.zeros(1)
        if kind == "parameter":
            self.rho = nn.Parameter(zero)
        elif kind == "constrained":
            self.rho = PyroParam(zero, constraints.interval(-1.0, 1.0))
        elif kind == "module":
            self.inner = nn.ParameterList([nn.Parameter(zero)])

    def coefficient(self) -> torch.Tensor:
        if self.kind == "statement":
            return pyro.param("rho", torch.zeros(1))
        return self.inner[0] if self.kind == "module" else self.rho

    def forward(self, x, y):
        if self.kind == "module":
            pyro.module("inner", self.inner)
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        f = x @ w
        mean = torch.cat([f[:1], f[1:] + self.coefficient() * (y[:-1] - f[:-1])])
        observe(dist.Normal(mean, 1.0), y, len(x))


@pytest.mark.parametrize("kind", ["statement", "parameter", "constrained", "module"])
def test_what_a_trained_gate_hides_at_zero_is_seen(kind):
    """And the gate is as it was afterwards."""
    model, x, y = Gated(kind), torch.randn(20, 2), torch.randn(20)
    guide = AutoMeanField(model)
    guide.setup(x, y)
    assert not guide.sites["w"].by_moments
    assert (model.coefficient() == 0).all()


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


def test_a_change_is_one_beyond_rounding():
    """Of a term in proportion, and of one that is zero too."""
    before = torch.tensor([0.0, -1000.0, 0.0, -1000.0, 0.0], dtype=torch.float64)
    after = before + torch.tensor([9e-7, -9e-4, 2e-6, 2e-3, math.nan])
    assert changed(before, after).tolist() == [False, False, True, True, True]


def test_set_up_leaves_running_statistics_alone():
    norm = nn.BatchNorm1d(3, affine=False)

    def model(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
        observe(dist.Normal(norm(F.linear(x, w)).sum(-1), 1.0), y, len(x))

    x, y = torch.randn(9, 2), torch.zeros(9)
    guide = AutoMeanField(model)
    guide.setup(x, y)
    assert norm.num_batches_tracked == 0
    assert (norm.running_var == 1).all()
    guide(x, y)
    assert norm.num_batches_tracked == 1


def test_statistics_of_a_functional_call_are_its_own():
    """The module's are not touched, and the call's are put back."""
    norm = nn.BatchNorm1d(3, affine=False)
    buffers = {name: value.clone() for name, value in norm.named_buffers()}
    own = norm.running_mean

    def model(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
        f = torch.func.functional_call(norm, buffers, F.linear(x, w))
        observe(dist.Normal(f.sum(-1), 1.0), y, len(x))

    AutoMeanField(model).setup(torch.randn(9, 2), torch.zeros(9))
    assert norm.running_mean is own
    assert (own == 0).all()
    assert (buffers["running_mean"] == 0).all()


def test_a_parameter_at_the_edge_of_its_support_hides_nothing_and_refuses_nothing():
    """A gate that may not be negative starts at minus infinity in unconstrained space."""

    def model(x, y, spike=True):
        gate = pyro.param("gate", torch.zeros(2), constraint=constraints.nonnegative)
        observe(dist.Normal((x * (1 + gate)) @ weights(spike, 2), 1.0), y, len(x))

    guide = AutoSpikeSlab(model)
    guide.setup(torch.randn(9, 2), torch.zeros(9))
    assert guide.sites["w"].by_moments
    assert (pyro.param("gate") == 0).all()


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


def test_a_term_that_is_no_number_any_more_has_changed():
    """A moved row may leave the range of a law, and its term is then NaN; rounding is no change."""
    before = torch.tensor([0.0, 5.0, 5.0, 5.0, 5.0])
    after = torch.tensor([0.0, 5.0 + 1e-6, 5.1, torch.nan, torch.inf])
    assert changed(before, after).tolist() == [False, False, True, True, True]


# ------------------------------------------------------------------------------------- sums over classes


def class_of_a_row(x, y):
    f = F.linear(x, weights(False, 1, 1)).squeeze(-1)
    with pyro.plate("rows", len(x)):
        k = pyro.sample("k", dist.Bernoulli(0.4))
        pyro.sample("y", dist.Normal(f + 2 * k, 0.5), obs=y)


def odds_of_a_row(x, y):
    """The layer gives the odds of the class."""
    f = F.linear(x, weights(False, 1, 1)).squeeze(-1)
    with pyro.plate("rows", len(x)):
        k = pyro.sample("k", dist.Bernoulli(logits=f))
        pyro.sample("y", dist.Normal(2 * k, 0.5), obs=y)


def class_of_all(x, y):
    k = pyro.sample("k", dist.Bernoulli(0.4))
    f = F.linear(x, weights(False, 1, 1)).squeeze(-1)
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(f + 2 * k, 0.5), obs=y)


def class_of_a_group(x, y):
    """Two groups of repeated measurements."""
    f = F.linear(x.reshape(-1, 2, 1), weights(False, 1, 1)).squeeze(-1)
    with pyro.plate("groups", 2, dim=-1):
        k = pyro.sample("k", dist.Bernoulli(0.4))
        with pyro.plate("times", len(x) // 2, dim=-2):
            pyro.sample("y", dist.Normal(f + 2 * k, 0.5), obs=y.reshape(-1, 2))


def class_in_the_input(x, y):
    """An enumeration runs the layer on a row for either class."""
    w = weights(False, 1, 1)
    with pyro.plate("rows", len(x)):
        k = pyro.sample("k", dist.Bernoulli(0.4))
        pyro.sample("y", dist.Normal(F.linear(x * (1 - 2 * k).unsqueeze(-1), w).squeeze(-1), 0.5), obs=y)


def class_chooses_a_row(x, y):
    """The layer gives the centre of either class: one row of it for each class, both in the sum."""
    f = F.linear(torch.tensor([[1.0], [-1.0]]), weights(False, 1, 1)).squeeze(-1)
    with pyro.plate("rows", len(x)):
        k = pyro.sample("k", dist.Bernoulli(0.4))
        pyro.sample("y", dist.Normal(torch.where(k == 0, f[..., :1], f[..., 1:]), 0.5), obs=y)


def class_without_a_layer(x, y, without=0.0):
    """One of the classes looks at no row of the layer; what is returned says nothing of the others."""
    f = F.linear(x, weights(False, 1, 1)).squeeze(-1)
    k = pyro.sample("k", dist.Bernoulli(0.4))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(torch.where(k == without, 0.0, f), 0.5), obs=y)
    return f


def other_class_without_a_layer(x, y):
    return class_without_a_layer(x, y, without=1.0)


def states_in_a_chain(x, y):
    f, state = F.linear(x, weights(False, 1, 1)).squeeze(-1), 0
    stay = torch.tensor([[0.8, 0.2], [0.3, 0.7]])
    for t in pyro.markov(range(len(x))):
        state = pyro.sample(f"k_{t}", dist.Categorical(stay[state]))
        pyro.sample(f"y_{t}", dist.Normal(f[t] + 2 * state, 0.5), obs=y[t])


def beside_classes(model, make=AutoMeanField):
    """A guide of the weights alone, of a model whose classes Pyro sums over."""
    model = config_enumerate(model)
    guide = AutoGuideList(model)
    guide.append(make(poutine.block(model, expose=["w"])))
    return model, guide


def rows_of_classes():
    return torch.ones(6, 1), torch.tensor([0.1, 2.3, 1.7, 0.9, -0.3, 1.1])


@pytest.mark.parametrize(
    ("model", "own"),
    [
        (class_of_a_row, True), (odds_of_a_row, True), (class_of_all, False), (class_of_a_group, False),
        (class_in_the_input, False), (class_chooses_a_row, False), (class_without_a_layer, False),
        (other_class_without_a_layer, False), (states_in_a_chain, False),
    ],
)  # fmt: skip
def test_rows_that_meet_in_a_sum_over_classes(model, own):
    _, guide = beside_classes(model)
    guide(*rows_of_classes())
    assert guide[0].sites["w"].by_moments == own


@pytest.mark.parametrize("make", [AutoMeanField, AutoSpikeSlab])
@pytest.mark.parametrize("of_the_layer", [False, True])
def test_a_class_that_only_the_prior_of_another_guides_site_knows_joins_no_rows(make, of_the_layer):
    def model(x, y):
        w, k = weights(make is AutoSpikeSlab, 1, 1), pyro.sample("k", dist.Bernoulli(0.4))
        with pyro.plate("rows", len(x)):
            z = pyro.sample("z", dist.Normal(2 * k, 1.0))
            f = F.linear(z.unsqueeze(-1) if of_the_layer else x, w).squeeze(-1)
            pyro.sample("y", dist.Normal(f + z, 0.5), obs=y)

    _, guide = beside_classes(model, make)
    guide(*rows_of_classes())
    assert guide[0].sites["w"].by_moments


@pytest.mark.parametrize("special", range(10))
def test_one_class_of_many_that_differs_joins_rows(special):
    def model(x, y):
        f = F.linear(x, weights(False, 1, 1)).squeeze(-1)
        k = pyro.sample("k", dist.Categorical(torch.ones(10)))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(f + 2.0 * (k == special), 0.5), obs=y)

    _, guide = beside_classes(model)
    guide(*rows_of_classes())
    assert not guide[0].sites["w"].by_moments


def test_two_classes_of_many_that_look_at_rows_join_them():
    """Random choices of forty classes hardly show both; classes of unlike odds all show something."""

    def model(x, y):
        f = F.linear(torch.tensor([[1.0], [-1.0]]), weights(False, 1, 1)).squeeze(-1)
        with pyro.plate("rows", len(x)):
            k = pyro.sample("k", dist.Categorical(torch.arange(1.0, 41)))
            mean = torch.where(k == 3, f[..., :1], torch.where(k == 33, f[..., 1:], 0.1 * k))
            pyro.sample("y", dist.Normal(mean, 0.5), obs=y)

    _, guide = beside_classes(model)
    guide(*rows_of_classes())
    assert not guide[0].sites["w"].by_moments


def test_classes_that_only_matter_together_join_rows():
    def model(x, y):
        f = F.linear(x, weights(False, 1, 1)).squeeze(-1)
        classes = [pyro.sample(f"k_{i}", dist.Bernoulli(0.5)) for i in range(5)]
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(f + 2 * math.prod(classes), 0.5), obs=y)

    _, guide = beside_classes(model)
    guide(*rows_of_classes())
    assert not guide[0].sites["w"].by_moments


def test_counts_that_nothing_enumerates_are_not_summed_over():
    def model(x, y):
        f = F.linear(x, weights(False, 1, 1)).squeeze(-1)
        with pyro.plate("rows", len(x)):
            k = pyro.sample("k", dist.Binomial(torch.arange(1.0, 7), 0.3))
            pyro.sample("y", dist.Normal(f + k, 0.5), obs=y)

    _, guide = beside_classes(model)
    guide(*rows_of_classes())
    assert guide[0].sites["w"].by_moments


@pytest.mark.parametrize(("of_both", "own"), [(False, True), (True, False)])
def test_classes_of_two_plates_are_two_sums(of_both, own):
    """Unless a class of both plates' rows joins them."""

    def model(x, y):
        f = F.linear(x, weights(False, 1, 1)).squeeze(-1)
        g = pyro.sample("g", dist.Bernoulli(0.4)) if of_both else 0.0
        for name, rows in (("a", slice(0, 2)), ("b", slice(2, 6))):
            with pyro.plate(name, len(y[rows])):
                k = pyro.sample(f"k_{name}", dist.Bernoulli(0.4))
                pyro.sample(f"y_{name}", dist.Normal(f[..., rows] + 2 * k + g, 0.5), obs=y[rows])

    _, guide = beside_classes(model)
    guide(*rows_of_classes())
    assert guide[0].sites["w"].by_moments == own


def test_a_spike_and_slab_of_rows_that_meet_in_a_sum_is_refused():
    def model(x, y):
        k = pyro.sample("k", dist.Bernoulli(0.4))
        f = x @ weights(True, 1)
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(f + 2 * k, 0.5), obs=y)

    _, guide = beside_classes(model, AutoSpikeSlab)
    with pytest.raises(PathwiseGradientError, match="meet in one term of 'the sum over k'"):
        guide(*rows_of_classes())


def test_rows_that_meet_in_a_chain_are_found_in_few_runs():
    """Whatever the states are: with one choice of them, and not once more for the only layer there is."""
    runs = []

    def counted(x, y):
        runs.append(1)
        states_in_a_chain(x, y)

    _, guide = beside_classes(counted)
    guide(*rows_of_classes())
    assert not guide[0].sites["w"].by_moments
    assert len(runs) < 40


def test_a_class_that_only_the_loss_is_told_to_sum_over_joins_rows():
    """Of a guide that was built on the model without ``config_enumerate`` around it."""
    x, y = rows_of_classes()
    guide = AutoGuideList(class_of_all)
    guide.append(AutoMeanField(poutine.block(class_of_all, expose=["w"])))
    TraceEnum_ELBO(max_plate_nesting=1).differentiable_loss(config_enumerate(class_of_all), guide, x, y)
    assert not guide[0].sites["w"].by_moments


def draws_of_k(x, y):
    pyro.sample("k", dist.Bernoulli(pyro.param("odds", torch.tensor(0.5))))


@pytest.mark.parametrize("annotated", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("drawn", [False, True])
def test_a_class_of_another_guide_is_not_summed_over(annotated, first, drawn):
    """A sum over the guide's own values stands outside of the logarithm."""
    model = config_enumerate(class_of_all) if annotated else class_of_all
    other = draws_of_k if drawn else AutoDiscreteParallel(poutine.block(model, expose=["k"]))
    ours = AutoMeanField(poutine.block(model, expose=["w"]))
    guide = AutoGuideList(model)
    for part in (other, ours) if first else (ours, other):
        guide.append(part)
    guide(*rows_of_classes())
    assert ours.sites["w"].by_moments


def log_likelihood(model, w, x, y):
    """Of weights ``[S]``, with the classes summed over, by hand."""
    of_signs = model in (class_in_the_input, class_chooses_a_row)
    signs = (1.0, -1.0) if of_signs else (1.0, 1.0)
    shifts = (0.0, 0.0) if of_signs else (0.0, 2.0)
    terms = torch.stack(
        [
            dist.Normal(sign * w[:, None] * x[:, 0] + shift, 0.5).log_prob(y)
            for sign, shift in zip(signs, shifts, strict=True)
        ]
    )
    if model is class_of_a_group:
        terms = terms.reshape(2, len(w), -1, 2).sum(2)
    elif model is class_of_all:
        terms = terms.sum(-1, keepdim=True)
    log_odds = torch.tensor([0.6, 0.4]).log()[:, None, None]
    return (terms + log_odds).logsumexp(0).sum(-1)


def law_and_its_points(guide):
    """The law that the guide of one weight is given, and 4000 points of equal probability of it."""
    law = dist.Normal(0.3, 0.8)
    with torch.no_grad():
        guide.loc.fill_(law.loc)
        guide.log_scale.fill_(law.scale.log())
    return law, law.icdf((torch.arange(4000) + 0.5) / 4000)


@pytest.mark.parametrize(
    "model",
    [class_of_a_row, class_of_all, class_of_a_group, class_in_the_input, class_chooses_a_row],
    ids=lambda m: m.__name__,
)
def test_the_loss_with_a_sum_over_classes_is_that_of_shared_weights(model):
    x, y = rows_of_classes()
    summed, guide = beside_classes(model)
    guide(x, y)
    law, w = law_and_its_points(guide[0])
    losses = -log_likelihood(model, w, x, y) - dist.Normal(0.0, 1.0).log_prob(w) - law.entropy()
    elbo = TraceEnum_ELBO(max_plate_nesting=2, num_particles=2000, vectorize_particles=True)
    loss = elbo.differentiable_loss(summed, guide, x, y).item()
    error = 1.5 * losses.std() / 2000**0.5  # rows with noise of their own, where they do not meet, add some
    assert abs(loss - losses.mean()) < 4 * error


def test_a_spike_and_slab_prior_of_either_class_scores_draws():
    """Of a Gaussian guide: the sum over the class is that of densities, by quadrature."""

    @config_enumerate
    def model(x, y):
        k = pyro.sample("k", dist.Bernoulli(0.4))
        scale = (0.2 + 2 * k).reshape(k.shape + (1, 1))
        w = pyro.sample("w", SpikeSlab(0.5, torch.zeros(1, 1), scale).to_event(2))
        f = F.linear(x, w).squeeze(-1)
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(f, 0.5), obs=y)

    x, y = rows_of_classes()
    guide = AutoGuideList(model)
    guide.append(AutoMeanField(poutine.block(model, expose=["w"])))
    guide(x, y)
    law, w = law_and_its_points(guide[0])
    slabs = [math.log(p) + dist.Normal(0.0, sd).log_prob(w) for p, sd in ((0.6, 0.2), (0.4, 2.2))]
    prior = math.log(0.5) + torch.stack(slabs).logsumexp(0)
    losses = -dist.Normal(w[:, None] * x[:, 0], 0.5).log_prob(y).sum(-1) - prior - law.entropy()
    elbo = TraceEnum_ELBO(max_plate_nesting=1, num_particles=2000, vectorize_particles=True)
    loss = elbo.differentiable_loss(model, guide, x, y).item()
    assert abs(loss - losses.mean()) < 4 * losses.std() / 2000**0.5
