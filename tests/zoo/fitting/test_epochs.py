"""Training in epochs and predictions of networks that are really drawn, on tiny networks."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from pyro import poutine
from pyro.infer import SVI

from guides import AutoConcrete, AutoMeanField, AutoMNF, AutoSpikeSlab
from guides.core.svi import Step
from guides.posterior.evaluate import log_joint
from zoo.errors import FailedError
from zoo.evaluation.estimates import Estimate
from zoo.experiments.lbbnn.networks import images
from zoo.fitting import epochs
from zoo.fitting.epochs import (
    Training,
    averaged_probabilities,
    bound,
    classes,
    entropy,
    local_reparameterization_probabilities,
    member_probabilities,
    stacked,
    train,
)
from zoo.fitting.reach import half_cosine_change
from zoo.models.bnn import BNN
from zoo.models.lenet import LeNet
from zoo.models.weights import SpikeSlabWeights

NETWORK = BNN(64, widths=(12, 10), outputs=10, likelihood="categorical", weights=SpikeSlabWeights(0.1, 1.0))


@pytest.fixture(scope="module")
def digits():
    return images("digits", 200)


def by_hand(weights, x):
    hidden = x
    for i in (1, 2, 3):
        hidden = F.linear(F.relu(hidden) if i > 1 else hidden, weights[f"w{i}"], weights[f"b{i}"])
    return hidden.softmax(-1)


# ------------------------------------------------------------------------------------------- predictions


def test_members_are_the_networks_that_were_drawn(digits):
    """Every member has one set of weights for all rows, across the pieces too."""
    guide = AutoSpikeSlab(NETWORK)
    guide.setup(digits.x[:5], digits.y[:5])
    draws = guide.draws(6, seed=0)
    found = member_probabilities(NETWORK, draws, digits.x, rows=30)
    expected = torch.stack([by_hand({n: v[i] for n, v in draws.items()}, digits.x) for i in range(6)])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert found.shape == (6, 200, 10)


def test_ensembles_average_probabilities_and_not_their_logarithms(digits):
    guide = AutoSpikeSlab(NETWORK)
    guide.setup(digits.x[:5], digits.y[:5])
    draws = guide.draws(6, seed=0)
    members = member_probabilities(NETWORK, draws, digits.x)
    found = averaged_probabilities(NETWORK, draws, digits.x, rows=70)
    torch.testing.assert_close(found, members.mean(0))
    geometric = members.log().mean(0).softmax(-1)
    assert (found - geometric).abs().max() > 0.01


def test_convolutional_members_are_batched_too(digits):
    model = LeNet(64, 10, SpikeSlabWeights(0.1, 1.0))
    guide = AutoSpikeSlab(model)
    guide.setup(digits.x[:5], digits.y[:5])
    draws = guide.draws(3, seed=0)
    found = member_probabilities(model, draws, digits.x[:8])
    for i in range(3):
        one = {name: value[i] for name, value in draws.items()}
        expected = poutine.condition(model, one)(digits.x[:8], digits.y[:8]).softmax(-1)
        torch.testing.assert_close(found[i], expected, rtol=1e-4, atol=1e-6)


def test_prediction_runs_the_model_once_a_piece(digits):
    """Not once a member."""
    calls = []

    def counted(x, y=None, size=None):
        calls.append(len(x))
        return NETWORK(x, y, size)

    guide = AutoSpikeSlab(NETWORK)
    guide.setup(digits.x[:5], digits.y[:5])
    averaged_probabilities(counted, guide.draws(7, seed=0), digits.x, rows=150)
    assert calls == [150, 50]


def test_passes_by_local_reparameterization_are_no_networks(digits):
    """Two equal rows get different outputs in one pass, and the right mean over many passes."""
    guide = AutoSpikeSlab(NETWORK, init_inclusion=(-0.1, 0.1))
    guide.setup(digits.x[:5], digits.y[:5])
    twins = digits.x[:1].expand(40, -1)
    one = local_reparameterization_probabilities(guide, twins, 1)
    assert (one - one[0]).abs().amax(1)[1:].min() > 1e-4
    drawn = averaged_probabilities(NETWORK, guide.draws(1, seed=0), twins)
    assert (drawn - drawn[0]).abs().max() < 1e-6
    many = local_reparameterization_probabilities(guide, twins, 100).mean(0)
    exact = averaged_probabilities(NETWORK, guide.draws(4000, seed=1), digits.x[:1])[0]
    assert (many - exact).abs().max() < 0.03


def test_passes_leave_the_global_generator_alone(digits):
    guide = AutoSpikeSlab(NETWORK)
    guide.setup(digits.x[:5], digits.y[:5])
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = local_reparameterization_probabilities(guide, digits.x[:9], 2, seed=1)
    assert not first.requires_grad
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, local_reparameterization_probabilities(guide, digits.x[:9], 2, seed=1))
    assert not torch.equal(first, local_reparameterization_probabilities(guide, digits.x[:9], 2, seed=2))


def test_entropy_in_nats():
    p = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    torch.testing.assert_close(entropy(p), torch.tensor([0.0, math.log(2)]))
    assert classes(p).probs.shape == (2, 2)


# ---------------------------------------------------------------------------------------------- training


def test_every_row_is_seen_once_an_epoch_at_the_right_scale(digits):
    seen, sizes = [], []

    def model(x, y=None, size=None):
        seen.append(x[:, :1].clone())
        sizes.append(size)
        return NETWORK(x, y, size)

    x = digits.x.clone()
    x[:, 0] = torch.arange(200.0)

    def forget_the_set_up(epoch):
        if epoch == 0:
            seen.clear(), sizes.clear()
        return {}

    training = Training(2, batch_size=20)
    history = train(model, AutoMeanField(model), (x, digits.y), training, each_epoch=forget_the_set_up)
    assert set(sizes) == {200}
    runs = torch.cat(seen).flatten().tolist()
    assert len(history.losses) == 2
    each = [sorted(dict.fromkeys(part)) for part in (runs[:200], runs[200:])]
    assert each == [list(range(200)), list(range(200))]
    assert runs[:200] != runs[200:]


def test_loss_of_an_epoch_is_of_all_rows_however_many_steps_it_has(digits):
    """Nothing moves; a step's loss is that of all rows, which a tenth of them and its draws estimate."""
    whole, steps = (
        train(
            NETWORK, AutoSpikeSlab(NETWORK, init_scale=0.05), (digits.x, digits.y),
            Training(1, lr=1e-9, batch_size=rows, seed=3),
        ).losses[0]
        for rows in (200, 20)
    )  # fmt: skip
    assert steps == pytest.approx(whole, rel=0.1)


@pytest.mark.slow
def test_training_learns_and_its_seed_decides(digits):
    def fitted(seed, epochs):
        torch.manual_seed(0)
        guide = AutoSpikeSlab(NETWORK, init_scale=0.05)
        training = Training(epochs, lr=0.01, batch_size=50, seed=seed)
        return guide, train(NETWORK, guide, (digits.x, digits.y), training)

    _, history = fitted(1, epochs=30)
    assert history.losses[-1] < 0.8 * history.losses[0]
    (guide, history), (again, same), (_, other) = fitted(1, 4), fitted(1, 4), fitted(2, 4)
    assert same.losses == history.losses
    assert torch.equal(guide.loc, again.loc)
    assert other.losses != history.losses


def test_training_has_rates_and_common_moves(digits):
    """The first step of Adam is its rate: means move by it, logits by four times that, or by nine where those
    of a layer also move as one.
    """

    def moved(**changes) -> dict[str, float]:
        guide = AutoSpikeSlab(NETWORK)
        training = Training(1, lr=0.01, batch_size=200, factors={"logits": 4.0}, **changes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            guide.setup(digits.x, digits.y, 200)
        before = {name: parameter.detach().clone() for name, parameter in guide.named_parameters()}
        train(NETWORK, guide, (digits.x, digits.y), training)
        return {name: (p - before[name]).abs().max().item() for name, p in guide.named_parameters()}

    assert moved() == pytest.approx({"loc": 0.01, "log_scale": 0.01, "logits": 0.04}, rel=1e-3)
    assert moved(common={"logits": 5.0})["logits"] == pytest.approx(0.09, rel=1e-3)


def test_learning_rate_falls_along_a_cosine():
    schedule = Training(3, lr=0.4, batch_size=20).schedule(50)  # two steps an epoch
    assert schedule.steps == 6
    assert [schedule.learning_rate(step) for step in (0, 3, 6)] == pytest.approx([0.4, 0.2, 0.0])


@pytest.mark.parametrize("epochs", [1, 3])
def test_temperature_is_annealed_from_step_to_step(digits, epochs, monkeypatch):
    """Also where there is one epoch only; the first step is at 1, the last one at 0.1."""
    guide, temperatures, step = AutoConcrete(NETWORK, temperature=(1.0, 0.1)), [], SVI.step
    monkeypatch.setattr(SVI, "step", lambda *args: temperatures.append(guide.temperature) or step(*args))
    train(NETWORK, guide, (digits.x, digits.y), Training(epochs, batch_size=40))
    steps = 5 * epochs
    assert temperatures == pytest.approx([10 ** (-i / (steps - 1)) for i in range(steps)])


def test_training_that_is_broken_off_has_the_schedule_of_the_whole():
    whole, part = (Training(10, batch_size=20, stop_after=epochs).schedule(50) for epochs in (None, 4))
    assert (whole.steps, part.steps) == (20, 8)
    for step in range(part.steps):
        assert part.learning_rate(step) == whole.learning_rate(step)
        assert part.progress(step) == whole.progress(step)
    for wrong in (0, 11):
        with pytest.raises(ValueError, match=f"stop_after must lie between 1 and 10, not {wrong}"):
            Training(10, stop_after=wrong)


def test_what_diverges_is_told(digits):
    x = digits.x.clone()
    x[150] = math.nan
    with pytest.raises(FailedError, match="step [01]: the loss is nan, site .* is not finite; "):
        train(NETWORK, AutoMNF(NETWORK), (x, digits.y), Training(1))
    for ramp in (0.0, 1.5, math.nan):
        with pytest.raises(ValueError, match="ramp must be a share of the training"):
            Training(10, ramp=ramp)
    for wrong in ({"epochs": 0}, {"batch_size": 0}, {"lr": 0.0}, {"lr": math.nan}):
        with pytest.raises(ValueError, match="must be (a )?positive"):
            Training(**{"epochs": 1, **wrong})


def test_divergence_rises_by_equal_factors_to_its_weight(digits):
    """In the first part; the bound that is reported afterwards has the whole divergence."""
    guide, seen, found = AutoSpikeSlab(NETWORK), [], {}
    step = SVI.step

    def noting(svi, *args):
        seen.append(svi.guide.kl_weight)
        return step(svi, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SVI, "step", noting)
        plan = Training(4, batch_size=40, kl_weights=(0.01, 0.25), ramp=0.4)
        train(NETWORK, guide, (digits.x, digits.y), plan)
    assert seen == pytest.approx([0.01 * 25 ** min(1.0, i / 8) for i in range(20)])
    for weight in (0.25, 1.0):
        guide.kl_weight = weight
        found[weight] = bound(guide, (digits.x, digits.y), rows=60, networks=1)
    assert found[0.25] == found[1.0]


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 0.1), (0.1, 1.0), (0.1, 0.1)])
def test_the_divergence_counts_whole_only_where_both_weights_are_one(weights):
    weight = Training(4, batch_size=40, kl_weights=weights).schedule(200).kl_weight
    assert (weight is None) == (weights == (1.0, 1.0))
    if weight is not None:
        assert (weight(0), weight(19)) == pytest.approx(weights)


def test_bound_a_row_is_that_of_drawn_networks(digits):
    guide = AutoSpikeSlab(NETWORK)
    guide.setup(digits.x[:5], digits.y[:5])
    found = bound(guide, (digits.x, digits.y), rows=7, networks=1)
    draws, log_q = guide.draws_with_log_prob(200, seed=1)
    exact = (log_joint(NETWORK, draws, digits.x, digits.y) - log_q) / len(digits.y)
    error = math.hypot(found.se, exact.std().item() / math.sqrt(200))
    assert abs(found.value - exact.mean().item()) < 4 * error < abs(found.value)


def test_bound_comes_from_enough_networks(digits, monkeypatch):
    """However few rows there are: one network in a hundred may decide, where a weight that counts is out."""
    guide, pieces, loss = AutoSpikeSlab(NETWORK), [], SVI.evaluate_loss
    guide.setup(digits.x[:5], digits.y[:5])

    def noting(svi, x, *args):
        pieces.append(len(x))
        return loss(svi, x, *args)

    monkeypatch.setattr(SVI, "evaluate_loss", noting)
    for rows in (200, 199, 49):
        bound(guide, (digits.x[:rows], digits.y[:rows]))
        assert len(pieces) >= min(rows, 50)
        assert sum(pieces) == rows
        pieces.clear()
    bound(guide, (digits.x, digits.y), networks=2, rows=60)
    assert max(pieces) == 60


def test_bound_weighs_pieces_by_their_rows(digits, monkeypatch):
    """Seven rows and one: 7/8 and 1/8 of what they say of a row, and the error that goes with it."""
    guide = AutoSpikeSlab(NETWORK)
    guide.setup(digits.x[:5], digits.y[:5])
    monkeypatch.setattr(SVI, "evaluate_loss", lambda svi, x, y, size: size * (1.0 if len(x) == 7 else 9.0))
    found = bound(guide, (digits.x[:8], digits.y[:8]), rows=7, networks=1)
    assert found.value == pytest.approx(-(7 * 1 + 1 * 9) / 8)
    assert found.se == pytest.approx(math.hypot(7 / 8 * (1 - 2), 1 / 8 * (9 - 2)))
    assert bound(guide, (digits.x[:7], digits.y[:7]), networks=1) == Estimate(-1.0)  # one piece has no error


def test_training_tells_what_the_bound_gained_last(digits, monkeypatch):
    every, step = [], SVI.step
    monkeypatch.setattr(SVI, "step", lambda svi, *args: every.append(step(svi, *args)) or every[-1])
    training = Training(10, lr=0.02, batch_size=50, factors={"logits": 5.0})
    history = train(NETWORK, AutoSpikeSlab(NETWORK), (digits.x, digits.y), training)
    assert 0 < history.change < history.losses[0] - history.losses[-1]
    assert history.change == pytest.approx(half_cosine_change(every).value)


def test_training_at_a_falling_temperature_is_compared_at_the_last_one(digits, monkeypatch):
    taken, steps = [], epochs.svi_steps
    monkeypatch.setattr(
        epochs, "svi_steps", lambda *parts, **at: (taken.append(step) or step for step in steps(*parts, **at))
    )
    history = train(NETWORK, AutoConcrete(NETWORK), (digits.x, digits.y), Training(8, batch_size=50))
    final = half_cosine_change([step.final_loss for step in taken])
    assert history.change == pytest.approx(final.value)
    assert history.change != pytest.approx(half_cosine_change([step.loss for step in taken]).value)


def test_seed_of_a_training_decides_order_and_noise(digits):
    def of(seed: int) -> tuple[list[float], float]:
        seen, noise = [], []

        def model(x, y=None, size=None):
            seen.append(x[0, 0].item())
            return NETWORK(x, y, size)

        x = digits.x[:60].clone()
        x[:, 0] = torch.arange(60.0)
        training = Training(1, batch_size=20, seed=seed)
        train(
            model,
            AutoMeanField(model),
            (x, digits.y[:60]),
            training,
            each_epoch=lambda epoch: noise.append(torch.rand(()).item()) or {},
        )
        return seen, noise[0]

    (order, noise), again, (other_order, other_noise) = of(1), of(1), of(2)
    assert again == (order, noise)
    assert order != other_order
    assert noise != other_noise


def test_order_and_noise_have_seeds_of_their_own(digits, monkeypatch):
    """Or the numbers that place the rows would be those of the noise."""
    seeds = []
    for name in ("seeded_rng", "shuffled_epochs"):
        own = getattr(epochs, name)
        monkeypatch.setattr(
            epochs, name, lambda *parts, own=own, **at: (seeds.append(parts[-1]), own(*parts, **at))[1]
        )
    train(NETWORK, AutoMeanField(NETWORK), (digits.x[:20], digits.y[:20]), Training(1, batch_size=10))
    assert len(seeds) == len(set(seeds)) == 2


def test_members_are_stacked_with_noise_of_their_own(digits):
    """Twice the same guide gives two networks."""
    guide = AutoMeanField(NETWORK)
    guide.setup(digits.x[:5], digits.y[:5])
    first, second = stacked([guide, guide])["w1"]
    assert not torch.equal(first, second)


def test_an_epoch_has_the_mean_loss_of_its_steps(digits, monkeypatch):
    """And what is looked at after it is told how many epochs are done."""
    steps = [Step(loss, loss, 1.0) for loss in (10.0, 20.0, 40.0, 60.0)]
    monkeypatch.setattr(epochs, "svi_steps", lambda *parts, **at: iter(steps))
    data = digits.x[:50], digits.y[:50]
    training = Training(2, batch_size=20)  # two steps an epoch, the last ten of 50 rows are left out
    history = train(NETWORK, AutoMeanField(NETWORK), data, training, each_epoch=lambda done: {"done": done})
    assert history.losses == [15.0, 50.0]
    assert history.figures == [{"done": 0}, {"done": 1}, {"done": 2}]


def test_fewer_rows_than_a_minibatch_are_one():
    assert [Training(1, batch_size=100).steps_an_epoch(rows) for rows in (50, 100, 199, 200)] == [1, 1, 1, 2]


def test_bounds_are_those_of_the_seed_and_have_no_error_of_one_network(digits):
    guide = AutoSpikeSlab(NETWORK)
    guide.setup(digits.x[:5], digits.y[:5])
    data = digits.x[:4], digits.y[:4]
    first, again, other = (bound(guide, data, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert bound(guide, data, networks=1).se is None
    assert bound(guide, data, networks=2).se > 0


def test_training_needs_rows(digits):
    with pytest.raises(ValueError, match="no rows to train on"):
        train(NETWORK, AutoSpikeSlab(NETWORK), (digits.x[:0], digits.y[:0]), Training(1))
