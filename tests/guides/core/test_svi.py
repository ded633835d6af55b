"""The one loop of stochastic variational inference, and its minibatches."""

from __future__ import annotations

import itertools
import math

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import SVI

from guides import AutoConcrete, AutoMeanField, SpikeSlab
from guides.core.svi import (
    DivergenceError,
    Schedule,
    half_cosine,
    random_rows,
    shuffled_epochs,
    svi_steps,
    unwatched,
)


def density(x, size=None):
    """Rows without a target; their mean is not known."""
    mean = pyro.sample("mean", dist.Normal(torch.zeros(2), 10.0).to_event(1))
    with pyro.plate("data", size or len(x), subsample_size=len(x)):
        pyro.sample("x", dist.Normal(mean, 1.0).to_event(1), obs=x)


def svi_of(model=density, guide=AutoMeanField, **options) -> SVI:
    guide = guide(model, **options)
    return SVI(model, guide, guide.optimizer(), guide.elbo())


def constant(steps: int, lr: float = 0.05) -> Schedule:
    return Schedule(steps, lambda step: lr)


def cosine(steps: int, lr: float = 0.05) -> Schedule:
    return Schedule(steps, lambda step: half_cosine(lr, step, steps))


# ------------------------------------------------------------------------------------------------- steps


@pytest.mark.one_in(2)
@pytest.mark.parametrize("batches", [random_rows, lambda data, size: shuffled_epochs(data, size, seed=0)])
def test_rows_without_a_target_are_fitted(batches):
    x = torch.randn(60, 2) + torch.tensor([3.0, -1.0])
    svi = svi_of()
    losses = [step.loss for step in svi_steps(svi, batches((x,), 20), cosine(200, lr=0.2))]
    exact = x.sum(0) / (60 + 1 / 100)
    assert len(losses) == 200
    torch.testing.assert_close(svi.guide.median()["mean"], exact, atol=0.1, rtol=0)


def test_a_step_is_taken_when_it_is_asked_for_and_not_before():
    """Between two of them a fit can be saved: neither a minibatch nor a number has been drawn ahead."""
    drawn = []

    def batches():
        for x in itertools.repeat(torch.zeros(3, 2)):
            drawn.append(torch.get_rng_state())
            yield (x,)

    steps = svi_steps(svi_of(), batches(), constant(4))
    assert drawn == []
    for count in (1, 2, 3):
        next(steps)
        state = torch.get_rng_state()
        assert len(drawn) == count
    next(steps)
    assert torch.equal(drawn[3], state)
    assert list(steps) == []
    assert len(drawn) == 4


def test_steps_that_were_taken_earlier_are_not_taken_again():
    seen = []
    schedule = Schedule(9, lambda step: seen.append(step) or 0.01)
    steps = svi_steps(svi_of(), itertools.repeat((torch.zeros(3, 2),)), schedule, done=6)
    assert len(list(steps)) == 3
    assert seen == [6, 7, 8]


def selection(x):
    w = pyro.sample("w", SpikeSlab(torch.tensor(0.3)).expand([1, 2]).to_event(2))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal((x @ w.T).squeeze(-1), 1.0), obs=torch.zeros(len(x)))


def test_rate_and_temperature_are_those_of_the_step():
    svi, seen = svi_of(selection, AutoConcrete, temperature=(1.0, 0.01)), []
    schedule = Schedule(3, lambda step: 0.1 * (step + 1), progress=lambda step: step / 2)
    for _ in svi_steps(svi, itertools.repeat((torch.randn(5, 2),)), schedule):
        seen.append((svi.optim.adam.param_groups[0]["lr"], svi.guide.temperature))
    assert seen == [pytest.approx(pair) for pair in ((0.1, 1.0), (0.2, 0.1), (0.3, 0.01))]


@pytest.mark.parametrize(("learned", "whole"), [(False, 39), (True, 39), (False, 60)])
def test_an_annealed_fit_is_compared_at_its_last_temperature(learned, whole):
    """In the steps that are compared, and is the same fit for it, to the last number drawn; also where it is
    broken off before its schedule ends.
    """

    def fit():
        torch.manual_seed(5)
        svi = svi_of(selection, AutoConcrete, temperature=(1.0, 0.2), empirical_bayes=learned)
        return svi, torch.randn(30, 2)

    schedule = Schedule(40, lambda step: half_cosine(0.1, step, 40), progress=lambda step: step / whole)
    svi, x = fit()
    taken = list(svi_steps(svi, itertools.repeat((x,)), schedule))
    expected, final = [], []
    other, x = fit()
    for step in range(40):
        other.optim.set_lr(schedule.learning_rate(step))
        other.guide.anneal(schedule.progress(step))
        if 23 <= step < 25 or step >= 38:  # two at each place; the last tenth begins after 0.6 of them
            at, state = other.guide.temperature, torch.get_rng_state()
            other.guide.temperature = 0.2 ** (39 / whole)
            final.append(float(other.loss(other.model, other.guide, x)))
            other.guide.temperature = at
            torch.set_rng_state(state)
        expected.append(other.step(x))
        final += [expected[-1]] if step < 23 or 25 <= step < 38 else []
    assert [step.loss for step in taken] == expected
    assert [step.final_loss for step in taken] == final
    assert all((step.final_loss != step.loss) == (i in (23, 24, 38)) for i, step in enumerate(taken))
    assert all(map(torch.equal, svi.guide.parameters(), other.guide.parameters()))


def test_comparing_leaves_running_statistics_alone():
    """Every step counts once, and an annealed fit of no steps is none."""
    torch.manual_seed(5)
    normalised = torch.nn.BatchNorm1d(2)
    svi = svi_of(lambda x: selection(normalised(x)), AutoConcrete, temperature=(1.0, 0.2))
    svi.guide.setup(torch.randn(30, 2))
    before = normalised.num_batches_tracked.item()
    for steps in (40, 0):
        schedule = Schedule(steps, lambda step: 0.01, progress=lambda step: step / 39)
        list(svi_steps(svi, itertools.repeat((torch.randn(30, 2),)), schedule))
    assert normalised.num_batches_tracked.item() == before + 40


def test_divergence_names_step_site_and_remedy():
    good, bad = torch.zeros(3, 2), torch.full((3, 2), math.nan)
    steps = svi_steps(svi_of(), iter([(good,), (good,), (bad,)]), constant(5, lr=0.3))
    with unwatched():
        next(steps), next(steps)
        with pytest.raises(DivergenceError, match=r"step 2: .* nan, site 'x' .*lower .*rate .now 0\.3"):
            next(steps)
        with pytest.raises(DivergenceError, match="step 0: .* nan, site 'x' .* outliers"):
            next(svi_steps(svi_of(), iter([(bad,)]), constant(5)))


def test_last_step_may_not_break_a_parameter():
    svi = svi_of()
    steps = svi_steps(
        svi, itertools.repeat((torch.zeros(3, 2),)), Schedule(2, lambda step: [0.1, math.inf][step])
    )
    next(steps)
    with pytest.raises(DivergenceError, match="step 1: .* parameter .* not finite; lower .*rate"):
        next(steps)


def test_half_cosine():
    assert [half_cosine(0.2, step, 100) for step in (0, 50, 100)] == pytest.approx([0.2, 0.1, 0])
    assert half_cosine(0.2, 1 / 3) == pytest.approx(0.15)


# ------------------------------------------------------------------------------------------- minibatches


def test_random_rows_stay_together_and_come_with_their_number():
    x = torch.arange(10.0)
    batches = random_rows((x, -x), 4)
    seen = set()
    for a, b, size in itertools.islice(batches, 50):
        assert size == 10
        assert len(a) == 4
        assert torch.equal(a, -b)
        seen.update(a.tolist())
    assert seen == set(x.tolist())


@pytest.mark.parametrize("batches", [random_rows, lambda data, size: shuffled_epochs(data, size, seed=0)])
@pytest.mark.parametrize("arguments", [1, 2, 3])
def test_minibatches_of_any_arguments_are_those_of_two_tensors(batches, arguments):
    """The random stream does not depend on how many arguments there are, nor on what they are."""
    x = torch.arange(10.0)
    torch.manual_seed(0)
    expected = [rows.tolist() for rows, _, _ in itertools.islice(batches((x, -x), 4), 6)]
    for data in ((x,) * arguments, (x.tolist(),) * arguments):
        torch.manual_seed(0)
        for kept, batch in zip(expected, batches(data, 4), strict=False):
            *parts, size = batch
            assert (len(parts), size) == (arguments, 10)
            assert [list(part) for part in parts] == [kept] * arguments


@pytest.mark.parametrize("size", [None, 10, 11])
def test_all_rows_are_the_data_itself(size):
    data = torch.arange(10.0), torch.zeros(10)
    state = torch.get_rng_state()
    (batch,) = itertools.islice(random_rows(data, size), 1)
    assert batch == data
    assert torch.equal(torch.get_rng_state(), state)


def test_an_epoch_meets_every_row_once_in_an_order_of_its_own():
    x, state = torch.arange(10.0), torch.get_rng_state()
    batches = list(itertools.islice(shuffled_epochs((x, -x), 5, seed=3), 4))
    assert all(torch.equal(a, -b) and size == 10 for a, b, size in batches)
    rows = torch.cat([batch[0] for batch in batches])
    assert torch.equal(rows[:10].sort().values, x)
    assert torch.equal(rows[10:].sort().values, x)
    assert not torch.equal(rows[:10], rows[10:])
    assert torch.equal(torch.get_rng_state(), state)
    again = itertools.islice(shuffled_epochs((x, -x), 5, seed=3), 4)
    assert torch.equal(rows, torch.cat([batch[0] for batch in again]))


def test_a_last_minibatch_that_is_smaller_is_left_out():
    x = torch.arange(10.0)
    for size, expected in ((4, [4, 4, 4]), (10, [10, 10, 10]), (12, [10, 10, 10])):
        batches = itertools.islice(shuffled_epochs((x,), size, seed=0), 3)
        assert [len(batch[0]) for batch in batches] == expected
    first = [batch[0].tolist() for batch in itertools.islice(shuffled_epochs((x,), 4, seed=0), 2)]
    assert len({*first[0], *first[1]}) == 8
