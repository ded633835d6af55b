"""Gates of NUTS, its retries, and chains that are stopped."""

import os
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

from guides.posterior import arviz_io
from guides.truth import mcmc, samplers
from guides.truth.gates import Gates, MCMCResult, judge, load_if_same
from guides.truth.interruption import held_back
from guides.truth.mcmc import nuts
from tests.guides.truth.runs import fake, nothing_to_sample


@pytest.mark.slow
def test_a_sampler_that_hardly_moves_fails():
    def model():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 0.001).expand([50]).to_event(1))  # a narrow ridge

    result = nuts(model, warmup=20, draws=100, max_tree_depth=1, retries=0)
    assert not result.passed
    assert "is not below 1.01" in result.reason
    assert "is not above 400" in result.reason


@pytest.mark.slow
def test_chains_in_different_modes_fail_even_if_each_mixes_well():
    def model():
        x = numpyro.sample("x", dist.ImproperUniform(constraints.real, (), ()))
        numpyro.factor("modes", jnp.logaddexp(-0.5 * (100 * (x - 1)) ** 2, -0.5 * (100 * (x + 1)) ** 2))

    for seed in range(5):  # the first seed whose chains start on different sides
        result = nuts(model, warmup=200, draws=500, retries=0, seed=seed)
        sides = np.sign(result.draws["x"]).mean(1)
        if sides.sum() == 0:
            break
    assert sides.sum() == 0
    assert not result.passed
    assert result.diagnostics["max_rhat"] > 1.5
    # the same chains agree on what the two modes have in common: this is why gates act on functions
    values = mcmc._function_values(result.draws, lambda d: (d["x"] ** 2)[:, None])
    assert judge(values, result.sample_stats["diverging"], Gates())[0]["max_rhat"] < 1.02


def test_a_good_run_passes_at_once(monkeypatch):
    monkeypatch.setattr(mcmc, "numpyro_attempt", fake(calls=(calls := [])))
    result = nuts(nothing_to_sample)
    assert (result.passed, result.reason, len(calls)) == (True, "", 1)
    d = result.diagnostics
    assert d["attempts"] == 1
    assert d["max_rhat"] < 1.01
    assert d["min_ess_bulk"] > 400
    assert d["min_ess_tail"] > 400
    assert d["divergences"] == 0
    assert result.settings["versions"]["jax"] == jax.__version__
    assert result.settings["seed"] == 0


def test_poor_mixing_is_repeated_with_twice_the_draws_and_a_higher_acceptance(monkeypatch):
    monkeypatch.setattr(mcmc, "numpyro_attempt", fake(good_from=1, calls=(calls := [])))
    result = nuts(nothing_to_sample)
    assert [(c.draws, c.target_accept, c.attempt) for c in calls] == [(600, 0.8, 0), (1200, 0.95, 1)]
    assert result.passed
    assert result.diagnostics["attempts"] == 2
    assert result.diagnostics["draws"] == 1200
    assert result.diagnostics["target_accept"] == 0.95
    assert result.settings["draws"] == 600  # as asked for
    poor = nuts(nothing_to_sample, retries=0)
    assert not poor.passed
    assert "is not below 1.01" in poor.reason
    assert "is not above 400" in poor.reason


def test_divergences_are_repeated_with_the_same_number_of_draws(monkeypatch):
    monkeypatch.setattr(mcmc, "numpyro_attempt", fake(good_from=1, divergences=2, calls=(calls := [])))
    result = nuts(nothing_to_sample, target_accept=0.97)
    assert [(c.draws, c.target_accept) for c in calls] == [(600, 0.97), (600, 0.985)]
    assert result.passed
    monkeypatch.setattr(mcmc, "numpyro_attempt", fake(good_from=9, divergences=2))
    result = nuts(nothing_to_sample, retries=2)
    assert not result.passed
    assert result.diagnostics["attempts"] == 3
    assert result.reason == "2 of 1200 draws diverged (0.17%), more than 0.10%"
    # 1 in 1200 is within the limit
    monkeypatch.setattr(mcmc, "numpyro_attempt", fake(good_from=9, divergences=1))
    assert nuts(nothing_to_sample).passed


@pytest.mark.parametrize("function", [lambda d: d["x"], lambda d: d["x"][:, 0]])
def test_functions_of_one_or_many_values(monkeypatch, function):
    monkeypatch.setattr(mcmc, "numpyro_attempt", fake())
    assert nuts(nothing_to_sample, function=function).passed


def test_gates_act_on_what_the_modes_have_in_common(monkeypatch):
    def two_modes(x):
        return x / 100 + np.array([1.0, -1.0])[:, None, None]

    monkeypatch.setattr(mcmc, "numpyro_attempt", fake(values=two_modes))
    assert nuts(nothing_to_sample, retries=0).diagnostics["max_rhat"] > 1.5
    assert nuts(nothing_to_sample, function=lambda d: d["x"] ** 2, retries=0).passed


def test_constant_and_infinite_function_values(monkeypatch):
    monkeypatch.setattr(mcmc, "numpyro_attempt", fake())

    def with_column(value):
        def function(draws):
            out = draws["x"].copy()
            out[:, 1] = value(len(out))
            return out

        return nuts(nothing_to_sample, function=function, retries=0)

    constant = with_column(lambda n: 1.0)
    assert constant.passed
    assert constant.diagnostics["constant_values"] == 1
    stuck = with_column(lambda n: np.arange(n) // (n // 2))  # each chain constant, at another value
    assert not stuck.passed
    assert stuck.diagnostics["max_rhat"] == np.inf
    for bad in (np.nan, np.inf):
        result = with_column(lambda n, bad=bad: np.where(np.arange(n) == 7, bad, 0.5))
        assert not result.passed
        assert result.reason == "1 of 3 function values are not finite"
    nothing = nuts(nothing_to_sample, function=lambda d: np.ones((len(d["x"]), 2)), retries=0)
    assert nothing.reason == "no function value ever moves"
    with pytest.raises(ValueError, match="one row a draw"):
        nuts(nothing_to_sample, function=lambda d: d["x"][:5])


def test_where_nothing_moves_all_else_that_failed_is_told_too():
    values = np.ones((2, 20, 2))
    values[1, 7, 0] = np.nan
    found, problems = judge(values, np.ones((2, 20), bool), Gates())
    assert found["constant_values"] == 1
    assert problems["values"] == "1 of 2 function values are not finite"
    assert problems["divergences"].startswith("40 of 40 draws diverged")


def test_a_chain_that_fails_stops_the_others():
    seen = []

    def chain(state, tick):
        if state == 0:
            raise RuntimeError("boom")
        for _ in range(10_000):
            seen.append(state)
            tick(1)
            time.sleep(0.005)

    with samplers._Bar(False, 1, "") as bar, pytest.raises(RuntimeError, match="boom"):
        samplers._side_by_side(chain, [0, 1], bar, threading.Event())
    assert len(seen) < 1000


def test_ctrl_c_stops_the_chains_and_is_raised_once():
    """However often it comes; it is not raised where compiled programs would meet it."""
    started = [threading.Event(), threading.Event()]
    seen = []

    def chain(state, tick):
        started[state].set()
        for _ in range(10_000):
            seen.append(state)
            tick(1)
            time.sleep(0.005)

    def press():
        assert all(event.wait(10) for event in started)
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.02)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=press).start()
        with samplers._Bar(False, 1, "") as bar, pytest.raises(KeyboardInterrupt), held_back() as interrupted:
            samplers._side_by_side(chain, [0, 1], bar, interrupted)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(seen) < 1000


def test_ctrl_c_in_a_block_is_raised_at_its_end():
    done = []

    def block():
        with held_back() as interrupted:
            signal.raise_signal(signal.SIGINT)
            done.append(interrupted.is_set())

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            block()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a program with a rule of its own
        block()
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == [True, False]


def test_blocks_of_draws_take_half_a_second():
    assert samplers._next_size(1, 1e-4) == 4  # no leaps: the first draws may be quicker than the others
    assert samplers._next_size(20, 0.01) == 25
    assert samplers._next_size(25, 2.5) == 5
    assert samplers._next_size(1, 40.0) == 1


def test_the_bar_counts_every_draw(monkeypatch, capsys):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with samplers._Bar(True, 10, "NUTS") as bar:
        bar.add(4)
        bar.add(6)
        assert bar.progress.tasks[0].completed == 10
    assert "NUTS" in capsys.readouterr().err
    with samplers._Bar(False, 10, "NUTS") as bar:
        bar.add(4)
    assert capsys.readouterr() == ("", "")


def test_the_worst_of_all_values_is_what_counts():
    """Two values that are independent from draw to draw, and one that is the mean of ten in a row."""
    x = np.random.default_rng(0).standard_normal((2, 700, 3))
    x[..., 2] = np.stack([np.convolve(chain, np.ones(10) / 10, "same") for chain in x[..., 2]])
    found, problems = judge(x, np.zeros((2, 700), bool), Gates(max_rhat=2.0))
    each = [judge(x[..., k : k + 1], np.zeros((2, 700), bool), Gates())[0] for k in range(3)]
    for name, worst in (("max_rhat", max), ("min_ess_bulk", min), ("min_ess_tail", min)):
        assert found[name] == worst(one[name] for one in each)
    assert found["min_ess_bulk"] < 400 < min(one["min_ess_bulk"] for one in each[:2])
    assert list(problems) == ["ess"]


def test_a_stored_result_answers_the_question_that_it_was_stored_for(tmp_path):
    draws = {"x": np.arange(8.0).reshape(2, 4)}
    settings = {"sampler": "numpyro"}
    result = MCMCResult(draws, {"diverging": np.zeros((2, 4), bool)}, {"draws": 4}, settings, 1.5, True, "")
    path = result.save(tmp_path / "reference.nc", fingerprint="this question")
    np.testing.assert_array_equal(load_if_same(path, "this question").draws["x"], draws["x"])
    assert load_if_same(path, "another question") is None
    assert load_if_same(tmp_path / "nowhere.nc", "this question") is None


@pytest.mark.parametrize(
    ("rhat", "bulk", "failed"),
    [
        (1.009, 401.0, set()),
        (1.01, 401.0, {"rhat"}),
        (1.009, 400.0, {"ess"}),
        (np.nan, 401.0, {"rhat"}),
        (1.009, np.nan, {"ess"}),
    ],
)
def test_what_is_at_a_bound_or_no_number_fails(monkeypatch, rhat, bulk, failed):
    monkeypatch.setattr(arviz_io, "rhat", lambda values: np.array([rhat]))
    monkeypatch.setattr(arviz_io, "ess", lambda values, kind: np.array([bulk]))
    values = np.arange(20.0).reshape(2, 10, 1)
    assert judge(values, np.zeros((2, 10), dtype=bool), Gates())[1].keys() == failed


def test_a_run_at_the_higher_acceptance_goes_half_way_to_one(monkeypatch):
    monkeypatch.setattr(mcmc, "numpyro_attempt", fake(good_from=1, calls=(calls := [])))
    nuts(nothing_to_sample, target_accept=0.95)
    assert [c.target_accept for c in calls] == [0.95, pytest.approx(0.975)]


def test_more_draws_are_no_remedy_for_divergences(monkeypatch):
    """Where R-hat fails beside them, the same number is drawn again at a higher acceptance."""

    def drifting(x):
        return x + np.linspace(0, 3, x.shape[1])[:, None]

    attempt = fake(values=drifting, divergences=9, good_from=9, calls=(calls := []))
    monkeypatch.setattr(mcmc, "numpyro_attempt", attempt)
    result = nuts(nothing_to_sample)
    assert "R-hat" in result.reason
    assert "diverged" in result.reason
    assert [(c.draws, c.target_accept) for c in calls] == [(600, 0.8), (600, 0.95)]


@pytest.mark.parametrize(("divergences", "passed"), [(1, True), (2, False)])
def test_one_draw_in_a_thousand_may_diverge(monkeypatch, divergences, passed):
    monkeypatch.setattr(mcmc, "numpyro_attempt", fake(good_from=9, divergences=divergences))
    assert nuts(nothing_to_sample, draws=500, retries=0).passed == passed
