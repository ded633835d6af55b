"""The fitting loop: repeatable, resumable bit for bit, and it stops where a number is no longer finite."""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import replace

import pytest
import torch
from pyro import poutine
from safetensors.torch import save_file

import zoo.fitting.checkpoints
import zoo.fitting.svi
from guides.posterior import log_joint
from tests.marks import SLOW
from tests.zoo.cli_helpers import fresh_process, linear_rows
from zoo.errors import FailedError, UserError
from zoo.fitting.checkpoints import read_checkpoint
from zoo.fitting.svi import Fit, FitSettings, default_batch_size, default_learning_rate
from zoo.models.entries import DataShape
from zoo.registry.queries import GUIDES, MODELS

ROWS = 40
#: All rows and minibatches, one flat vector of parameters and submodules, a schedule of the guide's own; then
#: all other guides.
CASES = [
    ("mean-field", "bnn", None),
    ("spike-slab", "spike-slab-bnn", 16),
    SLOW("mnf", "spike-slab-bnn", 16),
    ("mvn", "spike-slab-linear", 16),
    ("concrete", "spike-slab-bnn", 16),
    SLOW("mean-field", "bnn", 16),
    SLOW("spike-slab", "spike-slab-bnn", None),
    SLOW("spike-slab", "spike-slab-linear", None),
    SLOW("mean-field", "pbp-bnn", 16),
    SLOW("mnf-iaf", "spike-slab-linear", None),
    SLOW("gaussian-mnf", "bnn", None),
    SLOW("mvn", "spike-slab-bnn", None),
    SLOW("horseshoe", "bnn", None),
    SLOW("group-normal-jeffreys", "bnn", 16),
    SLOW("mc-dropout", "bnn", None),
    SLOW("concrete-dropout", "bnn", 16),
]


def make(
    guide: str = "mean-field",
    model: str = "bnn",
    batch_size: int | None = None,
    *,
    target_scale: float = 1.0,
    **settings,
) -> Fit:
    """A fit of a small model on 40 rows; the data are the same at every call."""
    data = torch.tensor(linear_rows(ROWS))
    network = MODELS[model].build(DataShape("regression", 2), {"widths": (4,)})
    settings = {"steps": 25, "seed": 3, "batch_size": batch_size, **settings}
    method = GUIDES[guide].method
    network = method.replace(network)
    return Fit(
        method.build(network), network, (data[:, :2], data[:, 2] * target_scale), FitSettings(**settings)
    )


def parameters(fit: Fit) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for _, p in sorted(fit.guide.named_parameters())])


class Killed(BaseException):
    pass


def run_killed(fit: Fit, at: int, checkpoint, monkeypatch) -> None:
    """Takes the steps before one, checkpoints after each of them."""
    take = fit.svi.step

    def step(*batch) -> float:
        if len(fit.losses) == at:
            raise Killed
        return take(*batch)

    monkeypatch.setattr(fit.svi, "step", step)
    monkeypatch.setattr(zoo.fitting.svi, "SECONDS_BETWEEN_CHECKPOINTS", -1.0)
    with pytest.raises(Killed):
        fit.run(checkpoint=checkpoint)


@pytest.mark.parametrize(("guide", "model", "batch_size"), CASES)
def test_resumed_fit_is_the_uninterrupted_one_bit_for_bit(guide, model, batch_size, tmp_path, monkeypatch):
    whole = make(guide, model, batch_size).run()
    run_killed(make(guide, model, batch_size), 17, tmp_path / "c", monkeypatch)
    resumed = make(guide, model, batch_size)
    torch.rand(5)  # the state of the calling program does not matter
    resumed.run(checkpoint=tmp_path / "c")
    assert resumed.losses == whole.losses
    assert resumed.final_losses == whole.final_losses
    assert (whole.final_losses != whole.losses) == (guide == "concrete")
    assert resumed.last_change() == whole.settings.last_change(whole.final_losses)
    assert torch.equal(parameters(resumed), parameters(whole))


def test_few_steps_have_higher_rates_for_what_has_far_to_go():
    """The first step of Adam is its rate: 0.01, of logits and log sds the highest, 0.1."""
    fit = make("spike-slab", "spike-slab-bnn", steps=1, lr=0.01)
    fit.guide.setup(*fit.data)
    before = {name: value.detach().clone() for name, value in fit.guide.named_parameters()}
    fit.run()
    moved = {name: (p - before[name]).abs().max().item() for name, p in fit.guide.named_parameters()}
    assert moved == pytest.approx({"loc": 0.01, "log_scale": 0.1, "logits": 0.1}, rel=1e-2)


def test_networks_of_the_bound_are_drawn_by_the_seed():
    fit = make(steps=2).run()
    first, again = fit.elbo(3), fit.elbo(3)
    fit.settings = replace(fit.settings, seed=4)
    assert first == again != fit.elbo(3)


def test_adam_of_a_resumed_fit_belongs_to_its_parameters(tmp_path, monkeypatch):
    """A loaded guide may hold its parameters in another order than a fresh one."""
    killed, resumed = make("mvn", "spike-slab-linear"), make("mvn", "spike-slab-linear")
    run_killed(killed, 17, tmp_path / "c", monkeypatch)
    monkeypatch.setattr(resumed.svi, "step", lambda *batch: pytest.fail("took a step"))
    with pytest.raises(pytest.fail.Exception):
        resumed.run(checkpoint=tmp_path / "c")
    for (name, before), (again, after) in zip(
        sorted(killed.guide.named_parameters()), sorted(resumed.guide.named_parameters()), strict=True
    ):
        assert name == again
        states = killed.optimizer.adam.state[before], resumed.optimizer.adam.state[after]
        assert torch.equal(states[0]["exp_avg"], states[1]["exp_avg"]), name


def test_temperature_of_relaxed_indicators_falls_with_the_steps(tmp_path, monkeypatch):
    fit, seen = make("concrete", "spike-slab-bnn", steps=21), []
    step = fit.svi.step
    monkeypatch.setattr(fit.svi, "step", lambda *args: (seen.append(fit.guide.temperature), step(*args))[1])
    fit.run()
    first, last = fit.guide.schedule
    assert seen == pytest.approx([first * (last / first) ** (i / 20) for i in range(21)])
    assert FitSettings(steps=1).progress(0) == 0
    # killed before the last step: the temperature of the next one, not of the checkpoint
    run_killed(make("concrete", "spike-slab-bnn", steps=21), 20, tmp_path / "c", monkeypatch)
    resumed, seen_again = make("concrete", "spike-slab-bnn", steps=21), []
    step_again = resumed.svi.step
    monkeypatch.setattr(
        resumed.svi, "step", lambda *a: (seen_again.append(resumed.guide.temperature), step_again(*a))[1]
    )
    resumed.run(checkpoint=tmp_path / "c")
    assert seen_again == pytest.approx([last])


def test_networks_drawn_for_an_elbo_are_fewer_for_large_problems(monkeypatch):
    fit, seen = make(steps=1).run(), []
    monkeypatch.setattr(fit.svi, "evaluate_loss", lambda *args: seen.append(args) or float(len(seen) % 2))
    work = ROWS * parameters(fit).numel()
    for limit, expected in ((10**12, 1000), (300 * work, 300), (work, 25)):
        seen.clear()
        monkeypatch.setattr(zoo.fitting.svi, "ELBO_WORK", limit)
        fit.elbo()
        assert len(seen) == expected


def test_error_of_an_elbo_is_that_of_a_mean(monkeypatch):
    """Of zeros and ones in turn the variance is ``0.25 S / (S - 1)``, and that of their mean one ``S``-th."""
    fit, losses = make(), itertools.cycle([0.0, 1.0])
    monkeypatch.setattr(fit.svi, "evaluate_loss", lambda *args: next(losses))
    for number in (10, 40):
        bound, error = fit.elbo(number)
        assert bound == -0.5
        assert error == pytest.approx(math.sqrt(0.25 * number / (number - 1)) / math.sqrt(number), rel=1e-6)


def test_finished_fit_is_read_and_not_fitted_again(tmp_path, monkeypatch):
    first = make().run(checkpoint=tmp_path / "c")
    again = make()
    monkeypatch.setattr(again.svi, "step", lambda *batch: pytest.fail("took a step"))
    again.run(checkpoint=tmp_path / "c")
    assert again.losses == first.losses
    assert again.seconds == first.seconds
    assert torch.equal(parameters(again), parameters(first))


def test_same_seed_same_fit_other_seed_other_fit():
    first, same, other = make().run(), make().run(), make(seed=4).run()
    assert same.losses == first.losses
    assert torch.equal(parameters(same), parameters(first))
    assert other.losses[0] != first.losses[0]
    assert not torch.equal(parameters(other), parameters(first))


def test_fit_leaves_the_global_random_state_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    make().run().elbo(2)
    assert torch.equal(torch.rand(3), expected)


def test_learning_rate_falls_along_a_half_cosine():
    settings = FitSettings(steps=100, lr=0.2)
    assert settings.learning_rate(0) == 0.2
    assert settings.learning_rate(50) == pytest.approx(0.1)
    assert settings.learning_rate(100) == pytest.approx(0, abs=1e-12)
    fit = make(steps=10, lr=0.2).run()
    assert fit.optimizer.adam.param_groups[0]["lr"] == fit.settings.learning_rate(9)


def test_few_steps_reach_as_far_as_many_within_bounds():
    reach = [sum(map(FitSettings(n, default_learning_rate(n)).learning_rate, range(n))) for n in (2000, 5000)]
    assert reach == pytest.approx([50, 50], rel=0.01)
    assert [default_learning_rate(n) for n in (1, 10_000, 100_000)] == [0.05, 0.01, 0.01]
    assert GUIDES["mean-field"].method.settings(100, 0, steps=2000).lr == 0.05
    assert GUIDES["mean-field"].method.settings(100, 0, steps=2000, lr=0.2).lr == 0.2


def test_minibatches_only_where_there_are_many_rows():
    assert default_batch_size(1000) is None
    assert default_batch_size(1001) == 500


def test_a_minibatch_counts_for_the_whole_data_set():
    """The likelihood of 16 of 40 rows is scaled by 40 / 16, the prior is not."""
    fit = make(batch_size=16)
    trace = poutine.trace(fit.model).get_trace(*next(fit.batches))
    assert trace.nodes["y"]["scale"] == ROWS / 16
    assert trace.nodes["w1"]["scale"] == 1.0
    assert len(trace.nodes["y"]["value"]) == 16


@pytest.mark.parametrize("draws", [100, SLOW(400)])
@pytest.mark.slow
def test_elbo_is_the_mean_of_the_loss_with_its_standard_error(draws):
    fit = make(steps=200).run()
    value, error = fit.elbo(draws)
    again, other_error = fit.elbo(4 * draws)
    assert abs(value - again) < 4 * math.hypot(error, other_error)
    assert error / other_error == pytest.approx(2, rel=0.3)
    # the last steps hardly move any more: their losses scatter around minus the ELBO
    tail = torch.tensor(fit.losses[-40:])
    assert abs(-tail.mean() - again) < 4 * tail.std() / math.sqrt(40)


def test_log_joint_is_prior_plus_likelihood():
    fit = make(steps=1).run()
    draws = fit.guide.draws(5, seed=0)
    values = log_joint(fit.model, draws, *fit.data)
    x, y = fit.data
    for i in range(5):
        w1, b1, w2, b2 = (draws[name][i] for name in ("w1", "b1", "w2", "b2"))
        tau = draws["noise_precision"][i]
        mean = (torch.relu(x @ w1.T + b1) @ w2.T + b2).squeeze(-1)
        normal, gamma = torch.distributions.Normal, torch.distributions.Gamma(6.0, 6.0)
        expected = (
            normal(0, 2**-0.5).log_prob(w1).sum()
            + normal(0, 0.5).log_prob(w2).sum()
            + normal(0, 1).log_prob(torch.cat([b1, b2])).sum()
            + gamma.log_prob(tau)
            + normal(mean, tau**-0.5).log_prob(y).sum()
        )
        assert torch.isclose(values[i], expected, rtol=1e-5)


# ------------------------------------------------------------------------------------------ divergence


@pytest.mark.parametrize(
    ("guide", "model", "site"),
    [
        ("mean-field", "bnn", "w1"),
        ("spike-slab", "spike-slab-bnn", "w1"),
        ("mean-field", "pbp-bnn", "weight_precision"),
        ("mean-field", "spike-slab-linear", "noise_precision"),
    ],
)
def test_divergence_names_step_site_and_remedy(guide, model, site):
    fit = make(guide, model, lr=1e6)
    with pytest.raises(FailedError, match=rf"step [1-9]\d*: the loss .*{site}.*rate .now 1e\+06"):
        fit.run()
    assert all(map(math.isfinite, fit.losses))
    assert len(fit.losses) >= 1


def test_start_that_overflows_does_not_blame_the_learning_rate():
    fit = make(target_scale=1e30)
    with pytest.raises(FailedError, match="step 0: the loss is inf, site 'y' .*outliers"):
        fit.run()


def test_last_step_that_breaks_the_parameters_is_seen(tmp_path):
    """No loss follows the last step: without a look at the parameters NaN would be saved as a fit."""
    fit = make(steps=5)
    adam_step = fit.optimizer.__call__

    class Breaking(type(fit.optimizer)):
        def __call__(self, params, *args, **kwargs):
            adam_step(params, *args, **kwargs)
            if len(fit.losses) == 4:
                fit.guide.loc.data[0] = math.nan

    fit.optimizer.__class__ = Breaking
    with pytest.raises(FailedError, match="step 4: .*not finite"):
        fit.run(checkpoint=tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_divergence_leaves_validation_as_it_was():
    before = torch.distributions.Distribution._validate_args
    with pytest.raises(FailedError):
        make(lr=1e6).run()
    assert torch.distributions.Distribution._validate_args is before is True


# ----------------------------------------------------------------------------------------- checkpoints


def test_checkpoint_of_another_fit_is_refused_and_kept(tmp_path):
    make().run(checkpoint=tmp_path / "c", about={"data": "a"})
    before = (tmp_path / "c").read_bytes()
    for other, about in ((make(lr=0.02), {"data": "a"}), (make(), {"data": "b"})):
        with pytest.raises(UserError, match="belongs to another fit"):
            other.run(checkpoint=tmp_path / "c", about=about)
    assert (tmp_path / "c").read_bytes() == before


def test_file_of_another_program_is_refused(tmp_path):
    save_file({"x": torch.zeros(3)}, tmp_path / "c", metadata={"format": "pt"})
    with pytest.raises(UserError, match="no fit of this program"):
        read_checkpoint(tmp_path / "c")


def test_checkpoint_that_breaks_off_leaves_the_one_before(tmp_path, monkeypatch):
    """As the next test, in this process: what was half written is gone, and the fit goes on."""
    saved = []

    def break_off(tensors, target, metadata):
        saved.append(target)
        save_file(tensors, target, metadata=metadata)
        if len(saved) == 18:
            os.truncate(target, os.path.getsize(target) // 2)
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(zoo.fitting.svi, "SECONDS_BETWEEN_CHECKPOINTS", -1.0)
        patch.setattr(zoo.fitting.checkpoints, "save_file", break_off)
        with pytest.raises(Killed):
            make().run(checkpoint=tmp_path / "c")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    _, tensors = read_checkpoint(tmp_path / "c")
    assert len(tensors["losses"]) == 17
    assert make().run(checkpoint=tmp_path / "c").losses == make().run().losses


@pytest.mark.slow
def test_kill_while_saving_leaves_a_whole_checkpoint(tmp_path):
    """SIGKILL while the second checkpoint is written: the first one stands, or the second, and resumes."""
    code = """
import os, signal, sys
from pathlib import Path
import zoo.fitting.checkpoints
import zoo.fitting.svi
from tests.zoo.fitting.test_svi import make

zoo.fitting.svi.SECONDS_BETWEEN_CHECKPOINTS = -1.0
save, saved = zoo.fitting.checkpoints.save_file, []

def killed(tensors, target, metadata):
    saved.append(target)
    if len(saved) < 18 or stage == "after":
        save(tensors, target, metadata=metadata)
    if len(saved) == 18:
        if stage == "during":
            save(tensors, target, metadata=metadata)
            os.truncate(target, os.path.getsize(target) // 2)
        os.kill(os.getpid(), signal.SIGKILL)

zoo.fitting.checkpoints.save_file = killed
for stage in ("before", "during", "after"):
    process = os.fork()
    if process == 0:
        make().run(checkpoint=Path(sys.argv[1]) / stage)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL, stage
"""
    result = fresh_process(code, tmp_path)
    assert result.returncode == 0, result.stderr
    whole = make().run()
    for stage in ("before", "during", "after"):
        _, tensors = read_checkpoint(tmp_path / stage)
        assert len(tensors["losses"]) == 17
        resumed = make().run(checkpoint=tmp_path / stage)
        assert resumed.losses == whole.losses
        assert torch.equal(parameters(resumed), parameters(whole))


def test_a_checksum_is_of_names_shapes_and_kinds_too():
    value = torch.zeros(2, 3)
    files = [{"a": value}, {"b": value}, {"a": value.T}, {"a": value.int()}]
    sums = [zoo.fitting.checkpoints._checksum("a fit", tensors) for tensors in files]
    assert len({*sums, zoo.fitting.checkpoints._checksum("another", files[0])}) == 5


def test_the_bound_has_random_numbers_of_its_own(seeds_given):
    """Networks of the noise that the fit has met would know what it has fitted."""
    fit = make(steps=1)
    seeds_given.clear()
    fit.run()
    of_fit = set(seeds_given)
    seeds_given.clear()
    fit.elbo(2)
    assert seeds_given
    assert not of_fit & set(seeds_given)
