"""What a fit gives: a network that has learned, its predictions, draws of its weights, a file."""

import math
from dataclasses import replace

import jax
import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist
from scipy import stats
from torch.distributions import Categorical, MixtureSameFamily, Normal

from guides import ProbabilisticBackpropagation, SpikeSlab
from guides.message_passing import compiled
from guides.message_passing.fitted import FORMAT
from guides.message_passing.messages import FAMILIES
from guides.message_passing.program import propagate
from guides.message_passing.recorder import record
from guides.posterior.draws import Posterior
from tests.guides.message_passing.fits import cases, close, fitted, line, same_fit
from tests.guides.message_passing.networks import INPUTS, NETWORKS, data, gamma, number, observe, pbp, weights

LEARNING = ("pbp", "constant")


@pytest.mark.parametrize("name", cases(LEARNING, [name for name in NETWORKS if name not in LEARNING]))
def test_every_network_learns(name):
    """Finite, no update of the noise refused, and better than the mean where there is something to learn."""
    x, y = data()
    guide = fitted(name)
    law = guide.predictive(x)
    assert torch.isfinite(law.log_prob(y)).all()
    assert guide.refused["noise"] == guide.refused["prior"] == 0
    if name not in ("constant", "scaled"):
        assert ((law.mean - y) ** 2).mean() < 0.7 * y.var()
    close(guide.posterior(400).predictive(x[:7]).mean, law.mean[:7], 0.5)


@pytest.mark.slow
def test_known_function_is_learned():
    """A sanity check on the size of errors: noise 0.2, so 0.04 is the best there is."""
    x, y = data(400)
    guide = ProbabilisticBackpropagation(pbp((20,))).fit(x, y, epochs=20)
    new_x, new_y = data(200, seed=9)
    law = guide.predictive(new_x)
    assert ((law.mean - new_y) ** 2).mean() < 0.06
    assert 0.03 < guide.noise_variance < 0.06
    inside = ((new_y - law.mean).abs() < 1.645 * law.stddev).double().mean()
    assert 0.82 < inside < 0.97


# ------------------------------------------------------------------------------------------ predictions


def test_a_spike_has_the_noise_alone():
    """Of the predictive of spike-and-slab messages; the slab has the message's variance too."""
    guide, x = fitted("pbp without bias", "spike-slab"), data(9, seed=7)[0]
    law, function = guide.predictive(x), guide.predictive(x, noise=False)
    spike, slab = law.component_distribution.scale.unbind(-1)
    close(spike**2, np.full(9, guide.noise_variance))
    close(slab**2, function.scale**2 + guide.noise_variance)
    close(law.mixture_distribution.probs[:, 1], function.probs)


def test_gaussian_predictive_is_the_message():
    guide, x = fitted(), data(9, seed=7)[0]
    recording = record(NETWORKS["pbp"], x)
    rows = {name: torch.from_numpy(value) for name, value in recording.rows.items()}
    message = propagate(recording.program, FAMILIES["gaussian"], guide.sites, rows)
    law, function = guide.predictive(x), guide.predictive(x, noise=False)
    assert isinstance(law, Normal)
    assert law.batch_shape == (9,)
    close(law.mean, message.mean)
    close(law.variance, message.variance + guide.noise_variance)
    close(function.variance, message.variance)
    assert all(torch.equal(s, torch.ones(9).double()) for s in guide.slab_probabilities(x))
    assert len(guide.slab_probabilities(x)) == 2


@pytest.mark.slow
def test_spike_and_slab_predictive_is_the_mixture():
    guide, (x, y) = fitted("pbp without bias", "spike-slab"), data(9, seed=7)
    recording = record(NETWORKS["pbp without bias"], x)
    rows = {name: torch.from_numpy(value) for name, value in recording.rows.items()}
    message = propagate(recording.program, FAMILIES["spike-slab"], guide.sites, rows)
    slab = message.log_slab.exp().expand(9)
    assert slab.min() < 0.999
    law, function = guide.predictive(x), guide.predictive(x, noise=False)
    assert isinstance(law, MixtureSameFamily)
    assert isinstance(function, SpikeSlab)
    s = guide.noise_variance
    density = (1 - slab) * Normal(number(0.0), number(s).sqrt()).log_prob(y).exp()
    density = density + slab * Normal(message.mean, (message.variance + s).sqrt()).log_prob(y).exp()
    close(law.log_prob(y), density.log())
    close(law.mean, slab * message.mean)
    close(function.mean, law.mean)
    close(function.variance + s, law.variance)
    close(guide.slab_probabilities(x)[-1], slab)
    close(guide.slab_probabilities(x)[0], torch.ones(9))
    assert len(guide.slab_probabilities(x)) == 3


@pytest.mark.parametrize("messages", cases(["spike-slab"], ["gaussian"]))
def test_nothing_known_at_zero(messages):
    """Without a bias and at the origin the output is a known number; no law breaks down there."""
    x = torch.zeros(2, INPUTS).double()
    guide = fitted("pbp without bias", messages)
    close(guide.predictive(x).mean, [0.0, 0.0])
    assert torch.isfinite(guide.predictive(x).log_prob(torch.zeros(2).double())).all()
    close(guide.predictive(x, noise=False).mean, [0.0, 0.0])


@pytest.mark.slow
def test_categorical_of_certain_slabs_is_proper():
    """With a bias the spike has probability zero, to the last bit."""
    guide, (x, y) = fitted("pbp", "spike-slab"), data(9)
    law = guide.predictive(x)
    assert isinstance(law.mixture_distribution, Categorical)
    close(law.log_prob(y), fitted("pbp").predictive(x).log_prob(y), 1e-9)
    function = guide.predictive(x, noise=False)
    close(function.mean, fitted("pbp").predictive(x, noise=False).mean, 1e-9)
    assert torch.isfinite(function.entropy()).all()


# ------------------------------------------------------------------------------------------------ as draws


def test_draws_have_the_moments_of_the_sites():
    guide = fitted("two_precisions")
    n = 20_000
    draws = guide.draws(n, seed=3)
    assert draws.keys() == {"w", "v", "a", "b", "noise"}
    for name, (mean, variance) in guide.sites.items():
        error = (draws[name].mean(0) - mean) / (variance / n).sqrt()
        assert error.abs().max() < 5
        spread = draws[name].var(0) / variance
        assert (spread - 1).abs().max() < 5 * math.sqrt(2 / n)
    for name, (a, b) in guide.precisions.items():
        assert abs(float(draws[name].mean()) - a / b) < 5 * math.sqrt(a / n) / b
        assert abs(float(draws[name].var()) / (a / b**2) - 1) < 6 * math.sqrt((2 + 6 / a) / n)
    again, other = guide.draws(5, seed=3), guide.draws(5, seed=4)
    assert all(torch.equal(again[k], guide.draws(5, seed=3)[k]) for k in again)
    assert not torch.equal(again["w"], other["w"])


def test_draws_are_none_of_the_starts():
    """With one seed for both, one number was drawn for both, which made single draws too wide."""
    x, y = data()
    guide = ProbabilisticBackpropagation(NETWORKS["pbp"]).fit(x, y, epochs=1, seed=7)
    mean, variance = guide.sites["w1"]
    draw = (guide.draws(1, seed=7)["w1"][0] - mean) / variance.sqrt()
    start = torch.as_tensor(np.random.default_rng(7).standard_normal(mean.shape))
    assert (draw - start).abs().max() > 0.1
    own = guide.draws(1, seed=np.random.default_rng(7))["w1"][0]
    torch.testing.assert_close((own - mean) / variance.sqrt(), start)


def test_log_prob_is_the_density_of_the_draws():
    guide = fitted("two_precisions")
    draws = guide.draws(6)
    expected = 0
    for name, (mean, variance) in guide.sites.items():
        law = stats.norm(mean, variance.sqrt())
        expected = expected + law.logpdf(draws[name]).reshape(6, -1).sum(1)
    for name, (a, b) in guide.precisions.items():
        expected = expected + stats.gamma(a, scale=1 / b).logpdf(draws[name])
    close(guide.log_prob(draws), expected)
    with pytest.raises(ValueError, match="'w' is missing"):
        guide.log_prob({k: v for k, v in draws.items() if k != "w"})


@pytest.mark.parametrize("name", cases(["pbp"], ["needs_y", "modules"]))
def test_posterior_is_one_of_this_package(name, tmp_path):
    guide, (x, y) = fitted(name), data(9, seed=7)
    posterior = guide.posterior(300, seed=2)
    assert isinstance(posterior, Posterior)
    assert len(posterior) == 300
    assert posterior.info["messages"] == "gaussian"
    law = posterior.predictive(x)
    assert torch.isfinite(law.log_prob(y)).all()
    posterior.save(tmp_path / "p.nc", x, observed_data={"y": y})
    loaded = Posterior.load(tmp_path / "p.nc", NETWORKS[name])
    assert all(torch.equal(loaded.sites[k], v) for k, v in posterior.sites.items())
    assert loaded.info["epochs"] == 3
    idata = guide.to_arviz(x, y, n=20)
    assert idata["posterior"].sizes["draw"] == 20
    assert set(guide.to_arviz(n=20)["posterior"].data_vars) == set(guide.draws(1))
    assert "log_likelihood" in idata.groups() or "log_likelihood" in str(idata.groups())


def test_precision_that_nothing_uses_keeps_its_prior():
    def model(x, y=None):
        gamma("idle", 3.0, 2.0)
        observe(x @ weights("w", INPUTS), y)

    guide = ProbabilisticBackpropagation(model).fit(*data(), epochs=2)
    assert guide.precisions == {"idle": (3.0, 2.0)}
    assert guide.draws(3)["idle"].shape == (3,)


def test_a_weight_precision_that_is_no_gamma_is_stood_in_for():
    """The optimal Gamma factor beside these weights, against numbers: E_q[log p(w | t) + log p(t)]."""
    guide, kept = ProbabilisticBackpropagation(NETWORKS["pbp"]), fitted("pbp")._fitted
    state = kept.state._replace(precisions={"lam": compiled.Precision(-3.0, -2.0)})
    guide._fitted = replace(kept, state=state)
    concentration, rate = guide.precisions["lam"]
    t = np.linspace(0.5, 1.5, 5)
    squares = sum((m.square() + v).sum().item() for m, v in guide.sites.values())
    count = sum(m.numel() for m, _ in guide.sites.values())
    expected = stats.gamma(6.0, scale=1 / 6.0).logpdf(t) + 0.5 * count * np.log(t) - 0.5 * t * squares
    ours = stats.gamma(concentration, scale=1 / rate).logpdf(t)
    np.testing.assert_allclose(ours - ours[0], expected - expected[0], rtol=1e-10)
    assert guide.draws(3)["lam"].gt(0).all()
    assert guide.log_prob(guide.draws(3)).isfinite().all()


@pytest.mark.parametrize("improper", [(-3.0, 2.0), (3.0, -2.0), (3.0, 0.0)])
def test_the_stand_in_is_in_units_of_the_prior(improper):
    """``w = loc + factor u``, and only the weights of this precision count."""
    name = "two_precisions"
    guide, kept = ProbabilisticBackpropagation(NETWORKS[name]), fitted(name)._fitted
    precisions = kept.state.precisions | {"b": compiled.Precision(*improper)}
    guide._fitted = replace(kept, state=kept.state._replace(precisions=precisions))
    mean, variance = guide.sites["v"]
    squares = (((mean - 0.1).square() + variance) / 0.25).sum().item()
    close(guide.precisions["b"], (7.0 + 4 / 2, 3.0 + squares / 2))
    assert guide.precisions["a"] == tuple(map(float, kept.state.precisions["a"]))


# ------------------------------------------------------------------------------------------------- on disk


@pytest.mark.parametrize(
    ("name", "messages"),
    cases([("two_precisions", "gaussian")], [("pbp without bias", "spike-slab"), ("scaled", "gaussian")]),
)
def test_saved_and_loaded(name, messages, tmp_path):
    guide, (x, y) = fitted(name, messages), data(9, seed=7)
    guide.save(tmp_path / "guide.safetensors")
    loaded = ProbabilisticBackpropagation.load(tmp_path / "guide.safetensors", NETWORKS[name])
    same_fit(guide, loaded)
    whole, read = (jax.tree.leaves(g._fitted.state) for g in (guide, loaded))
    assert all(np.array_equal(a, b) for a, b in zip(whole, read, strict=True))
    assert (loaded.messages, loaded.dtype, loaded.epochs) == (messages, torch.float64, 3)
    assert (loaded.seconds, loaded.refused, loaded.rows_seen) == (guide.seconds, guide.refused, 120)
    assert torch.equal(guide.predictive(x).mean, loaded.predictive(x).mean)
    assert all(torch.equal(v, loaded.draws(3)[k]) for k, v in guide.draws(3).items())
    again = ProbabilisticBackpropagation(NETWORKS[name], messages).fit(*data(), epochs=3).partial_fit(x, y)
    same_fit(loaded.partial_fit(x, y), again)
    assert list(tmp_path.iterdir()) == [tmp_path / "guide.safetensors"]


def test_files_that_are_none_of_ours(tmp_path):
    path = tmp_path / "guide.safetensors"
    fitted().save(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="truncated or no saved"):
        ProbabilisticBackpropagation.load(path, NETWORKS["pbp"])
    path.write_text("hello")
    with pytest.raises(ValueError, match="truncated or no saved"):
        ProbabilisticBackpropagation.load(path, NETWORKS["pbp"])


def test_a_fit_of_another_format_is_none_of_ours(tmp_path):
    path = tmp_path / "guide.safetensors"
    fitted().save(path)
    path.write_bytes(path.read_bytes().replace(FORMAT.encode(), FORMAT[:-1].encode() + b"1"))
    with pytest.raises(ValueError, match="truncated or no saved message passing fit .'format'"):
        ProbabilisticBackpropagation.load(path, NETWORKS["pbp"])


def test_seeds_from_numpy_can_be_saved(tmp_path):
    x, y = data()
    guide = ProbabilisticBackpropagation(line()).fit(x[:, 0], y, epochs=1, seed=np.int64(3))
    guide.save(tmp_path / "g")
    assert ProbabilisticBackpropagation.load(tmp_path / "g", line()).posterior(1).info["seed"] == 3


def test_another_model_does_not_fit_a_saved_fit(tmp_path):
    fitted().save(tmp_path / "guide.safetensors")
    loaded = ProbabilisticBackpropagation.load(tmp_path / "guide.safetensors", pbp((5,)))
    with pytest.raises(ValueError, match="other weight sites"):
        loaded.predictive(data()[0])
    with pytest.raises(ValueError, match="other weight sites"):
        loaded.partial_fit(*data())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"unit": torch.nn.functional.leaky_relu}, "does something else"),
        ({"factor": 7.0}, "does something else"),
        ({"noise": 9.0}, "has other Gamma sites"),
        ({"unit_of_noise": 2.0}, "has another noise"),
        ({"unit_of_noise": 1.01}, "has another noise"),
    ],
)
def test_a_model_of_the_same_weights_does_not_either(change, words, tmp_path):
    """Its predictions were its own function of weights that were fitted to another, without a word."""
    x, y = data()
    ProbabilisticBackpropagation(_small()).fit(x, y, epochs=1).save(tmp_path / "g")
    same, other = (ProbabilisticBackpropagation.load(tmp_path / "g", _small(**c)) for c in ({}, change))
    for rows in (1, 2, len(x)):
        assert same.predictive(x[:rows]).mean.shape == (rows,)
        with pytest.raises(ValueError, match=f"the model {words} with these rows than"):
            other.predictive(x[:rows])
    for ask in (other.partial_fit, other.to_arviz):
        with pytest.raises(ValueError, match=words):
            ask(x, y)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(3))
def test_the_last_digits_of_known_numbers_do_not_make_another_model(seed):
    """Those of single and double precision do not; one number of a hundred that is another does, and so does
    another order of them.
    """

    def model_of(numbers):
        def model(x, y=None):
            w = pyro.sample("w", dist.Normal(torch.zeros(100, dtype=x.dtype), 1.0).to_event(1))
            v = pyro.sample("v", dist.Normal(torch.zeros(x.shape[1], 100, dtype=x.dtype), 1.0).to_event(2))
            with pyro.plate("data", len(x)):
                hidden = torch.relu(x @ v)
                pyro.sample("y", dist.Normal(hidden @ (w * numbers.to(x).sqrt()), 1.0), obs=y)

        return model

    x, y = data()
    numbers = torch.rand(100, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    fit = ProbabilisticBackpropagation(model_of(numbers)).fit(x.double(), y.double(), epochs=1)
    law, rough = fit.predictive(x.double()), fit.predictive(x.float())
    torch.testing.assert_close(rough.mean, law.mean, rtol=1e-4, atol=1e-4)
    given = numbers.clone()
    for others in (given + 0.05 * (torch.arange(100) == 7), given.flip(0)):
        numbers.copy_(others)
        with pytest.raises(ValueError, match="does something else"):
            fit.predictive(x.double())


def _small(unit=torch.relu, factor=1.0, noise=None, unit_of_noise=1.0):
    def model(x, y=None):
        w1 = pyro.sample("w1", dist.Normal(torch.zeros(3, x.shape[1]), 1.0).to_event(2))
        w2 = pyro.sample("w2", dist.Normal(torch.zeros(1, 3), 1.0).to_event(2))
        scale = noise or unit_of_noise * pyro.sample("tau", dist.Gamma(torch.tensor(6.0), 6.0)).rsqrt()
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(factor * (unit(x @ w1.T) @ w2.T).squeeze(-1), scale), obs=y)

    return model


def test_a_noise_precision_counts_in_units_of_its_scale():
    """The variance is ``9 / tau``, whose mean is ``9 b / (a - 1)``."""
    guide = ProbabilisticBackpropagation(_small(unit_of_noise=3.0)).fit(*data(), epochs=1)
    concentration, rate = guide.precisions["tau"]
    assert guide.noise_variance == pytest.approx(9 * rate / (concentration - 1))


@pytest.mark.parametrize("proper", [(0.5, 2.0), (3.0, 0.1)])
def test_a_weight_precision_that_is_a_gamma_stays(proper):
    """One whose inverse has no mean, too."""
    guide, kept = ProbabilisticBackpropagation(NETWORKS["pbp"]), fitted("pbp")._fitted
    state = kept.state._replace(precisions={"lam": compiled.Precision(*proper)})
    guide._fitted = replace(kept, state=state)
    assert guide.precisions["lam"] == proper


def test_an_output_with_a_bias_is_never_zero():
    """A spike of no weight at all, and not of a rounded one."""
    law = fitted("pbp", "spike-slab").predictive(data()[0], noise=False)
    assert (law.probs == 1).all()
