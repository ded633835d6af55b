"""A training in epochs that was interrupted goes on as if it had not been, on tiny networks."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from pyro.infer import SVI

from guides import (
    AutoConcrete,
    AutoConcreteDropout,
    AutoDropout,
    AutoGroupNormalJeffreys,
    AutoMeanField,
    AutoMNF,
    AutoSpikeSlab,
    AutoSpikeSlabMVN,
)
from guides.core.svi import shuffled_epochs
from zoo.errors import UserError
from zoo.experiments.lbbnn.networks import images
from zoo.fitting import epochs
from zoo.fitting.epochs import Training, train
from zoo.models.bnn import BNN
from zoo.models.weights import GaussianWeights, SpikeSlabWeights

NETWORK = BNN(64, widths=(12, 10), outputs=10, likelihood="categorical", weights=SpikeSlabWeights(0.1, 1.0))
GAUSSIAN = BNN(64, widths=(12, 10), outputs=10, likelihood="categorical", weights=GaussianWeights(1.0))
RESUMED = {
    "spike-slab": lambda: AutoSpikeSlab(NETWORK, empirical_bayes=True),
    "rates": lambda: AutoSpikeSlab(NETWORK, empirical_bayes="rates"),
    "mnf": lambda: AutoMNF(NETWORK, empirical_bayes=True),
    "mvn": lambda: AutoSpikeSlabMVN(NETWORK, init_spread=0.5),
    "concrete": lambda: AutoConcrete(NETWORK, temperature=(1.0, 0.1)),
    "gaussian": lambda: AutoMeanField(GAUSSIAN, empirical_bayes=True),
    "group-normal-jeffreys": lambda: AutoGroupNormalJeffreys(GAUSSIAN),
    "concrete-dropout": lambda: AutoConcreteDropout(GAUSSIAN),
    "dropout": lambda: AutoDropout(GAUSSIAN, rate=0.2),
}
#: Five steps an epoch; logits and log sds move as one, the divergence counts more from step to step.
PLAN = Training(4, lr=0.01, batch_size=40, seed=3, factors={"logits": 4.0}, kl_weights=(0.01, 1.0), ramp=0.4)


@pytest.fixture(scope="module")
def digits():
    return images("digits", 200)


class Killed(BaseException):
    pass


def looked(guide, done: int) -> dict[str, float]:
    return {"done": done, "sum": sum(p.detach().sum().item() for p in guide.parameters())}


def trained(
    name: str, data, file=None, *, plan: Training = PLAN, stop: Callable | None = None, every=-1.0, at=12
):
    """A guide, its history, and how many steps it took; ``stop`` is called before step ``at`` is taken.

    :param every: seconds between checkpoints
    """
    torch.manual_seed(1)
    guide, step, taken = RESUMED[name](), SVI.step, []

    def counted(svi, *args):
        taken.append(1)
        if stop is not None and len(taken) == at + 1:
            stop()
        return step(svi, *args)

    common = {"log_scale": 5.0, "logits": 5.0} if name == "spike-slab" else {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SVI, "step", counted)
        patch.setattr(epochs, "SECONDS_BETWEEN_CHECKPOINTS", every)
        each = partial(looked, guide)
        history = train(
            guide.model, guide, data, replace(plan, common=common), each_epoch=each, checkpoint=file
        )
    return guide, history, len(taken)


def kill() -> None:
    raise Killed


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", RESUMED)
def test_an_interrupted_training_is_the_uninterrupted_one_bit_for_bit(name, digits, tmp_path):
    data, file = (digits.x, digits.y), tmp_path / "checkpoint"
    whole, history, _ = trained(name, data)
    with pytest.raises(Killed):
        trained(name, data, file, stop=kill)
    torch.rand(5)  # the state of the calling program does not matter
    resumed, found, taken = trained(name, data, file)
    assert taken == 20 - 12
    assert found == history
    state = resumed.state_dict()
    for key, value in whole.state_dict().items():
        assert key == "_extra_state" or torch.equal(state[key], value), key


def test_what_says_whether_a_training_has_settled_survives_an_interruption(digits, tmp_path):
    """The loss at the last temperature of step 12, by which the last tenth begins, is in the checkpoint."""
    data, file = (digits.x, digits.y), tmp_path / "checkpoint"
    _, history, _ = trained("concrete", data)
    with pytest.raises(Killed):
        trained("concrete", data, file, stop=kill, at=15)
    _, found, taken = trained("concrete", data, file)
    assert (taken, found.change) == (5, history.change)


def test_ctrl_c_keeps_the_step_that_it_came_in(digits, tmp_path):
    data, file = (digits.x, digits.y), tmp_path / "checkpoint"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            trained("dropout", data, file, stop=lambda: signal.raise_signal(signal.SIGINT), every=1e9)
    finally:
        signal.signal(signal.SIGINT, before)
    _, _, taken = trained("dropout", data, file)
    assert taken == 20 - 13


def test_checkpoints_of_other_trainings_are_refused(digits, tmp_path):
    data, file = (digits.x, digits.y), tmp_path / "checkpoint"
    with pytest.raises(Killed):
        trained("dropout", data, file, stop=kill)
    for other in ({"lr": 0.02}, {"seed": 4}):
        with pytest.raises(UserError, match="checkpoint belongs to another training: choose another file"):
            trained("dropout", data, file, plan=replace(PLAN, **other))
    with pytest.raises(UserError, match="belongs to another training"):
        trained("dropout", (digits.x[:160], digits.y[:160]), file)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="checkpoint is truncated"):
        trained("dropout", data, file)


@pytest.mark.parametrize("done", [0, 3, 4, 11])
def test_minibatches_go_on_where_they_were_left(done):
    data = (torch.arange(50.0),)
    every = list(itertools.islice(shuffled_epochs(data, 12, 5), 15))
    rest = list(itertools.islice(shuffled_epochs(data, 12, 5, done=done), 15 - done))
    for (x, rows), (expected, _) in zip(rest, every[done:], strict=True):
        assert torch.equal(x, expected)
        assert rows == 50
