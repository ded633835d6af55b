"""Rows that meet in a sum over classes share the weights; those that no sum joins have noise of their own."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from pyro import poutine
from pyro.infer import TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoDiscreteParallel, AutoGuideList

from guides import AutoMeanField, AutoSpikeSlab, PathwiseGradientError, SpikeSlab
from tests.guides.core.one_site import weights


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
