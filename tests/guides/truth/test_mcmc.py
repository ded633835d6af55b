"""NUTS against exact posteriors, what it refuses, and the cache."""

import os
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pyro
import pyro.distributions as pdist
import pytest
import torch

from guides.posterior import arviz_io
from guides.testing import z_bound
from guides.truth import mcmc, sampled_sites, samplers
from guides.truth.conjugate import conjugate_linear_regression
from guides.truth.gates import MCMCResult
from guides.truth.mcmc import nuts
from tests.guides.truth.moments import moments
from tests.guides.truth.runs import LOOSE, fake, nothing_to_sample

# ------------------------------------------------------------------------------------------- exact posteriors

PRIOR_MEAN, PRIOR_SD = np.array([3.0, -1.0, 40.0]), np.array([2.0, 0.5, 10.0])


def linear(X, y, loc, scale, noise=0.7, bias=True):
    """Weights with a prior that is neither centred nor unit, as one event and as single numbers."""
    w = numpyro.sample("w", dist.Normal(loc[:2], scale[:2]).to_event(1))
    b = numpyro.sample("b", dist.Normal(loc[2], scale[2])) if bias else 0.0
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(X[:, :2] @ w + b, noise), obs=y)


def linear_data():
    rng = np.random.default_rng(0)
    X = np.c_[rng.standard_normal((12, 2)) @ [[1, 0.7], [0, 0.7]], np.ones(12)]
    return X, X @ [1.0, 0.0, 30.0] + 0.7 * rng.standard_normal(12)


def assert_is_the_exact_posterior(result):
    X, y = linear_data()
    exact = conjugate_linear_regression(X, y - X @ PRIOR_MEAN, prior_scale=PRIOR_SD, noise_scale=0.7)
    draws = np.concatenate([result.draws["w"], result.draws["b"][..., None]], -1)
    value, error = moments(draws)
    sd = np.sqrt(np.diag(exact.covariance))
    z = (value - [exact.mean + PRIOR_MEAN, sd]) / error
    assert np.abs(z).max() < z_bound(3 * z.size), z
    deviations = (draws - draws.mean((0, 1))) / sd
    products = np.stack([deviations[..., i] * deviations[..., j] for i, j in ((0, 1), (0, 2), (1, 2))], -1)
    correlation = (exact.covariance / np.outer(sd, sd))[[0, 0, 1], [1, 2, 2]]
    assert np.abs((products.mean((0, 1)) - correlation) / arviz_io.mcse(products)).max() < z_bound(9)


@pytest.fixture(scope="module", autouse=True)
def programs_are_kept(tmp_path_factory):
    """A program that was compiled once in this module is read from a file afterwards."""
    options = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("programs")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: getattr(jax.config, name) for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="module")
def exact_run():
    X, y = linear_data()
    before = jax.config.jax_enable_x64, jax.local_device_count()
    # torch tensors and keyword arguments, static ones among them, are fine
    args = (torch.tensor(X), torch.tensor(y))
    kwargs = {"loc": PRIOR_MEAN, "scale": PRIOR_SD, "bias": True}
    result = nuts(linear, args, kwargs, draws=1500, float64=True, seed=2)
    assert (jax.config.jax_enable_x64, jax.local_device_count()) == before
    return result


@pytest.mark.slow
def test_noncentred_sampling_returns_the_centred_exact_posterior(exact_run):
    assert exact_run.passed, exact_run.reason
    assert set(exact_run.draws) == {"w", "b"}
    assert exact_run.draws["w"].shape == (2, 1500, 2)
    assert exact_run.draws["w"].dtype == np.float64
    assert exact_run.flat()["w"].shape == (3000, 2)
    np.testing.assert_array_equal(exact_run.flat()["b"][1500:], exact_run.draws["b"][1])
    assert_is_the_exact_posterior(exact_run)


def test_only_latent_normal_sites_are_noncentred():
    """Which sites are latent, and which of them are non-centred: Normal ones, and no others."""
    X, y = linear_data()
    names, normals = sampled_sites.twin_sites(linear, (jnp.array(X), jnp.array(y), PRIOR_MEAN, PRIOR_SD), {})
    assert names == normals == ["w", "b"]

    def others():
        numpyro.sample("gamma", dist.Gamma(2.0, 1.0))
        numpyro.sample("normal", dist.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
        numpyro.sample("lognormal", dist.LogNormal(0.0, 1.0))
        numpyro.sample("observed", dist.Normal(0.0, 1.0), obs=0.0)
        numpyro.deterministic("square", 1.0)

    assert sampled_sites.twin_sites(others, (), {}) == (["gamma", "normal", "lognormal"], ["normal"])


@pytest.mark.parametrize("length", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_nuts_of_pyro_returns_the_exact_posterior(length):
    """The short run is checked for all but that."""

    def model(X, y, loc, scale):
        w = pyro.sample("w", pdist.Normal(loc[:2], scale[:2]).to_event(1))
        b = pyro.sample("b", pdist.Normal(loc[2], scale[2]))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", pdist.Normal(X[:, :2] @ w + b, 0.7), obs=y)

    X, y = (torch.tensor(v, dtype=torch.float32) for v in linear_data())
    args = (X, y, torch.tensor(PRIOR_MEAN).float(), torch.tensor(PRIOR_SD).float())
    torch.manual_seed(5)
    state = torch.get_rng_state()
    # with 150 iterations of warm-up one machine in a few gets a step size that mixes badly
    settings = {"warmup": 250 if length == 200 else 10, "draws": length, "gates": LOOSE, "retries": 0}
    result = nuts(model, args, backend="pyro", float64=True, **settings)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_default_dtype() == torch.float32
    assert result.draws["w"].shape == (2, length, 2)
    assert result.draws["w"].dtype == np.float64
    assert not np.array_equal(result.draws["w"][0], result.draws["w"][1])
    assert result.settings["versions"]["pyro-ppl"] == pyro.__version__
    if length == 200:
        assert result.passed, result.reason
        assert_is_the_exact_posterior(result)


def test_another_attempt_of_pyro_has_draws_of_its_own():
    def model():
        pyro.sample("w", pdist.Normal(0.0, 1.0))

    plan = samplers.Plan(5, 4, 2, 0.8, 5, False, seed=0, float64=False)
    first, again = (samplers.pyro_attempt(model, (), {}, plan, False)[0]["w"] for _ in range(2))
    other = samplers.pyro_attempt(model, (), {}, replace(plan, attempt=1), False)[0]["w"]
    np.testing.assert_array_equal(first, again)
    assert not np.isin(other, first).any()


def test_every_chain_has_random_numbers_of_its_own():
    """Of a sampler that is compiled and run for real, if only for a few draws."""

    def model():
        numpyro.sample("x", dist.Cauchy(0.0, 1.0))

    plan = samplers.Plan(5, 10, 3, 0.8, max_tree_depth=2, dense_mass=False, seed=0, float64=False)
    draws = samplers.numpyro_attempt(model, (), {}, plan, show=False)[0]["x"]
    assert draws.shape == (3, 10)
    assert (np.ptp(draws, axis=1) > 0).all()
    assert len({chain.tobytes() for chain in draws}) == 3


@pytest.mark.slow
def test_chains_do_not_depend_on_the_number_of_cores_and_follow_the_seed(monkeypatch, capsys):
    def model():
        # bounds made by jax inside the model: a kernel must not carry them from one trace to the next
        numpyro.sample("u", dist.Uniform(jnp.zeros(2) * 1.0, jnp.ones(2) + 1).to_event(1))

    settings = {"warmup": 40, "draws": 30, "chains": 3, "retries": 0}
    result = nuts(model, progress=True, **settings)
    assert capsys.readouterr() == ("", "")  # no bar where stderr is no terminal
    draws = result.draws["u"]
    assert draws.shape == (3, 30, 2)
    assert draws.dtype == np.float32
    assert draws.min() > 0
    assert draws.max() < 2
    assert len({chain.tobytes() for chain in draws}) == 3
    assert not result.passed  # far too short
    assert result.sample_stats["diverging"].shape == (3, 30)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    np.testing.assert_array_equal(nuts(model, **settings).draws["u"], draws)
    assert not np.array_equal(nuts(model, **settings, seed=1).draws["u"], draws)


# --------------------------------------------------------------------------------------------------- refusals


@pytest.mark.slow
def test_models_that_nuts_cannot_serve_are_refused_by_name():
    def discrete():
        numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("gate", dist.Bernoulli(0.5))

    def nothing():
        numpyro.sample("y", dist.Normal(0.0, 1.0), obs=1.0)

    def minibatch():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", 10, subsample_size=5):
            numpyro.sample("y", dist.Normal(x, 1.0), obs=jnp.zeros(5))

    def impossible():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.factor("never", -jnp.inf * (1 + x**2))

    for model, words in ((discrete, "'gate' is discrete"), (nothing, "no latent site"),
                         (minibatch, "'rows' uses 5 of 10"), (impossible, "no starting point")):  # fmt: skip
        with pytest.raises(ValueError, match=words) as caught:
            nuts(model)
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="at least 2"):
        nuts(nothing, chains=1)
    with pytest.raises(ValueError, match="'numpyro' or 'pyro', not 'stan'"):
        nuts(nothing, backend="stan")


def test_a_pyro_model_for_the_numpyro_backend_is_told():
    def model(x, y):
        w = pyro.sample("w", pdist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("y", pdist.Normal(x @ w, 1.0).to_event(1), obs=y)

    with pytest.raises(TypeError, match="backend='numpyro' runs NumPyro models; for a Pyro model say 'pyro'"):
        nuts(model, (torch.zeros(3, 2), torch.zeros(3)), warmup=4, draws=4)


def test_pyro_models_that_nuts_cannot_serve_are_refused_by_name():
    def discrete():
        pyro.sample("x", pdist.Normal(0.0, 1.0))
        pyro.sample("gate", pdist.Bernoulli(0.5))

    def minibatch():
        x = pyro.sample("x", pdist.Normal(0.0, 1.0))
        with pyro.plate("rows", 10, subsample_size=5):
            pyro.sample("y", pdist.Normal(x, 1.0), obs=torch.zeros(5))

    for model, words in ((discrete, "'gate' is discrete"), (minibatch, "'rows' uses 5 of 10"),
                         (lambda: None, "no latent site")):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            nuts(model, backend="pyro")


# ------------------------------------------------------------------------------------------------------ cache


def same(a: MCMCResult, b: MCMCResult) -> bool:
    arrays = all(np.array_equal(a.draws[k], b.draws[k]) for k in a.draws)
    stats_equal = np.array_equal(a.sample_stats["diverging"], b.sample_stats["diverging"])
    facts = all(
        getattr(a, k) == getattr(b, k) for k in ("diagnostics", "settings", "seconds", "passed", "reason")
    )
    return arrays and stats_equal and facts and a.draws.keys() == b.draws.keys()


@pytest.mark.parametrize("good_from", [0, 9])
def test_the_same_question_is_answered_from_the_file(monkeypatch, tmp_path, good_from):
    monkeypatch.setattr(mcmc, "numpyro_attempt", fake(good_from=good_from, calls=(calls := [])))
    path = tmp_path / "reference.nc"
    x = np.arange(3.0)
    first = nuts(nothing_to_sample, (x,), cache=path)
    made = len(calls)
    again = nuts(nothing_to_sample, (x.copy(),), cache=path)
    assert len(calls) == made
    assert same(first, again)
    assert again.passed == (good_from == 0)  # a failed reference is shown as failed
    assert bool(again.reason) == (good_from == 9)
    assert same(MCMCResult.load(path), first)


PRIOR = {"scale": 1.0}


def with_a_prior():
    raise AssertionError(f"fake samplers do not ask for {PRIOR['scale']}")


def test_a_model_that_uses_another_number_is_sampled_again(monkeypatch, tmp_path):
    monkeypatch.setattr(mcmc, "numpyro_attempt", fake(calls=(calls := [])))
    for scale in (1.0, 1.0, 5.0):
        monkeypatch.setitem(PRIOR, "scale", scale)
        nuts(with_a_prior, cache=tmp_path / "reference.nc")
    assert len(calls) == 2


@pytest.mark.slow
def test_another_question_is_not(monkeypatch, tmp_path):
    monkeypatch.setattr(mcmc, "numpyro_attempt", fake(calls=(calls := [])))
    path = tmp_path / "reference.nc"
    x = np.arange(3.0)

    def other():
        raise AssertionError("another model")

    base = {"model": nothing_to_sample, "args": (x,), "draws": 50, "retries": 0, "cache": path}
    changes = [{"args": (x + 1e-9,)}, {"kwargs": {"a": 1}}, {"seed": 1}, {"warmup": 601}, {"model": other},
               {"function": lambda d: d["x"]}, {"gates": LOOSE}, {"float64": True}]  # fmt: skip
    nuts(**base)
    answer = path.read_bytes()
    for change in changes:
        path.write_bytes(answer)
        before = len(calls)
        nuts(**(base | change))
        assert len(calls) == before + 1, change
    path.write_bytes(answer)
    nuts(**base)
    assert len(calls) == before + 1


@pytest.mark.parametrize("damage", ["truncated", "text", "another library's"])
def test_a_damaged_file_is_replaced(monkeypatch, tmp_path, damage):
    monkeypatch.setattr(mcmc, "numpyro_attempt", fake(calls=(calls := [])))
    path = tmp_path / "reference.nc"
    first = nuts(nothing_to_sample, cache=path)
    if damage == "another library's":
        arviz_io.save_netcdf(arviz_io.to_arviz({"x": np.zeros((2, 9))}), path)
        with pytest.raises(ValueError, match="reference.nc.*not of an MCMC run"):
            MCMCResult.load(path)
    else:
        path.write_bytes(path.read_bytes()[:3000] if damage == "truncated" else b"text")
    second = nuts(nothing_to_sample, cache=path)
    assert len(calls) == 2
    np.testing.assert_array_equal(first.draws["x"], second.draws["x"])
    assert same(second, nuts(nothing_to_sample, cache=path))
    assert os.listdir(tmp_path) == ["reference.nc"]


def test_killed_while_saving_leaves_the_old_reference(monkeypatch, tmp_path):
    monkeypatch.setattr(mcmc, "numpyro_attempt", fake())
    path = tmp_path / "reference.nc"
    first = nuts(nothing_to_sample, cache=path)

    def killed(idata, filename):
        filename.write_bytes(b"half a file")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(arviz_io, "_write", killed)
        with pytest.raises(KeyboardInterrupt):
            nuts(nothing_to_sample, seed=1, cache=path)
    assert same(MCMCResult.load(path), first)
    assert os.listdir(tmp_path) == ["reference.nc"]


@pytest.mark.slow
def test_a_real_run_survives_the_file(exact_run, tmp_path):
    path = exact_run.save(tmp_path / "run.nc")
    assert same(MCMCResult.load(path), exact_run)

    def model(X):
        w = pyro.sample("w", pdist.Normal(torch.zeros(2), 1.0).to_event(1))
        b = pyro.sample("b", pdist.Normal(0.0, 1.0))
        pyro.sample("y", pdist.Normal(X @ w + b, 0.7).to_event(1))

    posterior = MCMCResult.load(path).posterior(model)
    X = torch.tensor(linear_data()[0][:, :2])
    mean = exact_run.flat()["w"] @ X.numpy().T + exact_run.flat()["b"][:, None]
    np.testing.assert_allclose(posterior.predictive(X).mean, mean.mean(0))
    assert posterior.info["diagnostics"] == exact_run.diagnostics
    idata = arviz_io.load_netcdf(path)
    assert idata["posterior"]["w"].dims == ("chain", "draw", "w_dim_0")
    assert arviz_io.decode_attrs(idata)["is_mcmc"] == "true"
    assert {"lp", "energy", "n_steps", "step_size", "acceptance_rate"} <= set(idata["sample_stats"].data_vars)


# --------------------------------------------------------------------------------------------- a real network


@pytest.mark.slow
def test_a_network_passes_on_its_predictions():
    rng = np.random.default_rng(0)
    x = np.linspace(-2, 2, 40)[:, None]
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.standard_normal(40)

    def model(x, y):
        w1 = numpyro.sample("w1", dist.Normal(0.0, 1.0).expand([1, 10]).to_event(2))
        b1 = numpyro.sample("b1", dist.Normal(0.0, 1.0).expand([10]).to_event(1))
        w2 = numpyro.sample("w2", dist.Normal(0.0, 10**-0.5).expand([10]).to_event(1))
        tau = numpyro.sample("tau", dist.Gamma(6.0, 6.0))
        f = jax.nn.relu(x @ w1 + b1) @ w2
        numpyro.sample("y", dist.Normal(f, tau**-0.5), obs=y)

    def predictions(d):
        return np.einsum("snh,sh->sn", np.maximum(x @ d["w1"] + d["b1"][:, None], 0), d["w2"])

    result = nuts(model, (x, y), function=predictions, draws=1500)
    assert result.passed, result.reason
    assert result.diagnostics["values"] == 40


def test_lp_is_the_log_joint_density():
    """Of a standard normal, which non-centring leaves as it is."""

    def model(y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(w, 1.0), obs=y)

    result = nuts(model, (1.5,), warmup=50, draws=50, retries=0)
    w = result.draws["w"]
    expected = -0.5 * w**2 - 0.5 * (1.5 - w) ** 2 - np.log(2 * np.pi)
    np.testing.assert_allclose(result.sample_stats["lp"], expected, rtol=0, atol=1e-5)
