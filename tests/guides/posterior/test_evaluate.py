"""All draws at once against one after the other, for models that allow it and models that do not."""

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro import poutine
from torch.distributions import kl_divergence

from guides import SpikeSlab
from guides.posterior import evaluate, predictive
from guides.posterior.evaluate import log_joint, observed_laws, over_draws
from guides.posterior.law_of_draws import LawsOfDraws
from guides.testing import normal

S, N = 6, 5


def plain(x, y=None):
    """A network with unknown noise."""
    w1 = pyro.sample("w1", normal([4, 2]))
    w2 = pyro.sample("w2", normal([4]))
    tau = pyro.sample("tau", dist.Gamma(2.0, 2.0))
    output = torch.relu(x @ w1.T) @ w2
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(output, tau.rsqrt()), obs=y)
    return output


def branching(x, y=None):
    """Looks at a latent value."""
    w = pyro.sample("w", normal([2]))
    output = x @ w if w[0] > 0 else -(x @ w)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(output, 0.5), obs=y)


def counting(x, y=None):
    """A plate as long as the data and a latent value say; the same for all draws here."""
    w = pyro.sample("w", normal([2]))
    size = min(len(x), int((x[:, 0] ** 2 >= 0).sum()), int(100 + w[0].item()))
    with pyro.plate("data", size):
        pyro.sample("y", dist.Bernoulli(logits=x[:size] @ w), obs=y)


def of_the_data(x, y=None):
    """A plate as long as the data say."""
    w = pyro.sample("w", normal([2]))
    keep = x[x[:, 0] > 0]
    with pyro.plate("kept", len(keep)):
        pyro.sample("y", dist.Categorical(logits=torch.stack((keep @ w, -(keep @ w)), -1)), obs=y)


MODELS = {model.__name__: model for model in (plain, branching, counting, of_the_data)}
AT_ONCE = ("plain", "of_the_data")


def problem(name):
    """Draws from the prior, and inputs."""
    model, x = MODELS[name], torch.randn(N, 2, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    traces = [poutine.trace(model).get_trace(x) for _ in range(S)]
    names = [name for name, node in traces[0].nodes.items() if node["type"] == "sample"]
    latent = [name for name in names if name not in ("y", "data", "kept")]
    return model, {n: torch.stack([t.nodes[n]["value"] for t in traces]) for n in latent}, x, traces


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch):
    """Some pieces."""
    monkeypatch.setattr(evaluate, "NUMBERS_AT_ONCE", 4 * N * 4)


@pytest.mark.parametrize("name", MODELS)
def test_every_draw_has_its_own_likelihood(name):
    model, draws, x, traces = problem(name)
    calls = []

    def counted(*args):
        calls.append(args)
        return model(*args)

    laws = observed_laws(counted, draws, x)
    expected = [trace.nodes["y"]["fn"] for trace in traces]
    for parameter in ("loc", "scale") if isinstance(expected[0], dist.Normal) else ("logits",):
        wanted = torch.stack([getattr(law, parameter) for law in expected])
        torch.testing.assert_close(getattr(laws, parameter), wanted, rtol=1e-5, atol=1e-6)
    assert (len(calls) < S) == (name in AT_ONCE)  # a silent fall back to the loop would be slow


@pytest.mark.parametrize("name", MODELS)
def test_log_joint_is_that_of_a_trace(name):
    model, draws, x, traces = problem(name)
    y = traces[0].nodes["y"]["value"]
    found = log_joint(model, draws, x, y)
    for i, value in enumerate(found):
        one = poutine.condition(model, {n: v[i] for n, v in draws.items()})
        torch.testing.assert_close(
            value, poutine.trace(one).get_trace(x, y).log_prob_sum(), rtol=1e-5, atol=1e-5
        )


def test_pieces_are_as_large_as_said(monkeypatch):
    seen = []

    def question(draw):
        seen.append(torch.zeros(()).add(draw["w"]))
        return draw["w"] * 2, draw["w"].sum()

    draws = {"w": torch.arange(20.0).reshape(10, 2)}
    doubled, sums = over_draws(question, draws, at_once=4)
    assert len(seen) == 3
    assert torch.equal(doubled, 2 * draws["w"])
    assert torch.equal(sums, draws["w"].sum(1))
    assert evaluate.number_at_once(question, draws) == 4 * N * 4 // 2
    monkeypatch.setattr(evaluate, "NUMBERS_AT_ONCE", 1)  # fewer than a draw makes
    assert evaluate.number_at_once(question, draws) == 1


def test_the_global_generator_is_left_alone_and_gradients_are_not_kept():
    model, draws, x, _ = problem("plain")
    draws = {name: value.requires_grad_() for name, value in draws.items()}
    before = torch.get_rng_state()
    laws = observed_laws(model, draws, x)
    assert torch.equal(before, torch.get_rng_state())
    assert not laws.loc.requires_grad


def test_a_named_site_among_several_and_other_sites_are_drawn():
    def model(x):
        w = pyro.sample("w", normal([2]))
        with pyro.plate("data", len(x)):
            shift = pyro.sample("shift", dist.Normal(10.0, 0.1))
            pyro.sample("y", dist.Normal(x @ w + shift, 1.0))

    x, draws = torch.zeros(N, 2), {"w": torch.zeros(S, 2)}
    laws = observed_laws(model, draws, x, site="y")
    assert (laws.loc - 10).abs().max() < 1
    assert len(laws.loc.unique()) == S * N  # noise of its own for every draw and row


def test_deterministic_sites_are_not_predicted():
    def model(x):
        w = pyro.deterministic("w", 2 * pyro.sample("half", normal([2])))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 1.0))

    x, half = torch.randn(N, 2), torch.randn(S, 2)
    torch.testing.assert_close(observed_laws(model, {"half": half}, x).loc, 2 * half @ x.T)


def test_errors_of_the_model_are_its_own():
    def model(x):
        w = pyro.sample("w", normal([3]))
        pyro.sample("y", dist.Normal(x @ w, 1.0).to_event(1))

    with pytest.raises(RuntimeError, match="size"):
        observed_laws(model, {"w": torch.zeros(S, 3)}, torch.zeros(N, 2))


# ------------------------------------------------------------------------------------------------- devices


def elsewhere(*shape):
    """Numbers on a device that is not the CPU and keeps only their shapes, which every machine has."""
    return torch.ones(shape, device="meta")


@pytest.mark.parametrize(
    "laws",
    [
        dist.Normal(elsewhere(S, N), elsewhere(S, N), validate_args=False),
        dist.Bernoulli(probs=elsewhere(S, N), validate_args=False),
        dist.Delta(elsewhere(S, N), validate_args=False),
        LawsOfDraws([dist.Normal(elsewhere(N), elsewhere(N), validate_args=False)] * S),
    ],
    ids=lambda laws: type(laws).__name__,
)
def test_a_mixture_stays_on_the_device_of_its_draws(laws):
    with pyro.validation_enabled(False):  # which asks for numbers
        mixture = predictive.mixture(laws)
        numbers = [mixture.mean] if isinstance(laws, dist.Delta) else [mixture.mean, mixture.sample()]
    assert {(value.shape, value.device.type) for value in numbers} == {((N,), "meta")}


def test_a_law_that_no_density_has_costs_infinity_where_its_numbers_are():
    atom = SpikeSlab(elsewhere(N), elsewhere(N), elsewhere(N), validate_args=False)
    divergence = kl_divergence(atom, dist.Normal(elsewhere(N), elsewhere(N), validate_args=False))
    assert (divergence.shape, divergence.device.type) == ((N,), "meta")


def test_ordered_classes_are_mixed_by_their_probabilities():
    """Its law is a Categorical that is made of other numbers."""
    x, cuts, w = torch.randn(4), torch.tensor([-0.5, 0.7]), torch.randn(5)

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.OrderedLogistic(w * x, cuts), obs=y)

    laws = observed_laws(model, {"w": w}, x)
    expected = torch.stack([dist.OrderedLogistic(draw * x, cuts).probs for draw in w])
    torch.testing.assert_close(laws.probs, expected)


def test_a_factor_is_nothing_to_predict():
    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.factor("more", -w.abs())
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    w, x = torch.randn(3), torch.ones(2)
    torch.testing.assert_close(observed_laws(model, {"w": w}, x).mean, w[:, None].expand(3, 2))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda draws: draws.pop("tau"), "no draws of 'tau'"),
        (lambda draws: draws.update(slope=draws["tau"]), "no site for draws of 'slope'"),
    ],
)
def test_a_joint_density_needs_a_value_of_every_site(change, words):
    model, draws, x, _ = problem("plain")
    change(draws)
    with pytest.raises(ValueError, match=words):
        log_joint(model, draws, x, torch.zeros(len(x)))
