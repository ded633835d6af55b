"""What message passing cannot do is refused by name, in one line."""

import pyro
import pytest
import torch
import torch.nn.functional as F
from pyro import distributions as dist
from pyro import poutine

from guides import UnsupportedSiteError
from guides.message_passing.recorder import analyse
from tests.guides.message_passing.networks import INPUTS, data, gamma, number, observe, weights


def output(function):
    """A model from a function of ``x`` that gives the likelihood's mean."""

    def model(x, y=None):
        observe(function(x), y)

    return model


def w(*shape):
    return weights("w", *shape)


def v(*shape):
    return weights("v", *shape)


def twice(x):
    shared = w(INPUTS, INPUTS)
    return (F.relu(x @ shared) @ shared).sum(-1)


def changed_in_place(x):
    hidden = x @ w(INPUTS)
    hidden += 1
    return hidden


def overwritten(x):
    hidden = x @ w(INPUTS, 4)
    hidden[:, 0] = 1.0
    return hidden @ v(4)


OPERATIONS = {
    "tanh": (lambda x: torch.tanh(x @ w(INPUTS, 4)) @ v(4), ["'w'", "`tanh`"]),
    "sigmoid": (lambda x: torch.sigmoid(x @ w(INPUTS, 4)) @ v(4), ["'w'", "`sigmoid`"]),
    "softplus of weights": (lambda x: x @ F.softplus(w(INPUTS)), ["'w'", "`softplus`"]),
    "convolution": (
        lambda x: F.conv1d(x[:, None], w(1, 1, INPUTS)).reshape(len(x)),
        ["'w'", "`conv1d`"],
    ),
    "convolution of hidden units": (
        lambda x: F.conv1d((x @ w(INPUTS, 4))[:, None], v(1, 1, 4)).reshape(len(x)),
        ["'w'", "'v'", "`conv1d`"],
    ),
    "mean over rows": (
        lambda x: (x - (x @ w(INPUTS, 4)).mean(0).mean()) @ v(INPUTS),
        ["'w'", "`mean`", "rows"],
    ),
    "sum over everything": (lambda x: (x @ w(INPUTS)).sum().expand(len(x)), ["'w'", "`sum`", "rows"]),
    "product with a row matrix": (
        lambda x: torch.eye(len(x), dtype=x.dtype) @ (x @ w(INPUTS)),
        ["'w'", "`matmul`", "rows"],
    ),
    "rows in another order": (lambda x: (x @ w(INPUTS)).flip(0), ["'w'", "rows"]),
    "sum with the row before": (lambda x: (x @ w(INPUTS)).roll(1, 0) + x @ v(INPUTS), ["'w'", "rows"]),
    "used twice": (twice, ["'w'", "2 times"]),
    "element used twice": (lambda x: x @ w(2)[torch.tensor([0, 1, 1])], ["'w'", "2 times"]),
    "shared over positions": (
        lambda x: (x.reshape(len(x), INPUTS, 1) @ w(1, 4)).sum((1, 2)),
        ["'w'", "`matmul`", "positions"],
    ),
    "product of weights": (lambda x: x @ (w(INPUTS, 4) @ v(4)), ["'w'", "'v'", "`matmul`"]),
    "gate": (lambda x: (x @ w(INPUTS)) * F.relu(x @ v(INPUTS)), ["'w'", "'v'", "`mul`", "elementwise"]),
    "square": (lambda x: (x @ w(INPUTS)) ** 2, ["'w'", "`pow`"]),
    "divided by": (lambda x: 1 / (x @ w(INPUTS)), ["'w'"]),
    "relu of weights": (lambda x: x @ F.relu(w(INPUTS)), ["'w'", "`relu`", "weights"]),
    "a weight for each row": (lambda x: weights("u", 20)[: len(x)] + x @ w(INPUTS), ["'u'"]),
    "leaky slope above 1": (lambda x: F.leaky_relu(x @ w(INPUTS), 2.0), ["'w'", "slope 2"]),
    "relu6": (lambda x: torch.clamp(x @ w(INPUTS), 0, 6), ["'w'", "`clamp`"]),
    "in place": (changed_in_place, ["'w'", "in place"]),
    "in place relu": (lambda x: F.relu(x @ w(INPUTS), inplace=True), ["'w'", "in place"]),
    "assignment": (overwritten, ["'w'", "in place"]),
    "a number taken out": (lambda x: x[:, 0] * float(w()), ["'w'"]),
    "numpy": (lambda x: x @ torch.as_tensor(w(INPUTS).numpy()), ["'w'", "`numpy`"]),
    "comparison": (lambda x: x[:, 0] if w() > 0 else x[:, 1], ["'w'", "`gt`"]),
    "dropout": (lambda x: F.dropout(x @ w(INPUTS)), ["'w'", "`dropout`"]),
    "no weight": (lambda x: x[:, 0] * 2, ["'y'", "weight"]),
}


def assert_one_line(error, words):
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize(("function", "words"), OPERATIONS.values(), ids=OPERATIONS.keys())
@pytest.mark.parametrize(
    "rows", [9, pytest.param(1, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)]
)
def test_unsupported_operations_are_named(function, words, rows):
    with pytest.raises(UnsupportedSiteError) as error:
        analyse(output(function), *data(rows))
    assert_one_line(error, words)


def two_likelihoods(x, y=None):
    out = x @ weights("w", INPUTS)
    observe(out, y)
    pyro.sample("again", dist.Normal(out, 1.0).to_event(1), obs=y)


def bernoulli(x, y=None):
    pyro.sample("y", dist.Bernoulli(logits=x @ weights("w", INPUTS)).to_event(1), obs=y)


def student(x, y=None):
    pyro.sample("y", dist.StudentT(number(4.0), x @ weights("w", INPUTS), number(1.0)).to_event(1), obs=y)


def discrete(x, y=None):
    pick = pyro.sample("pick", dist.Bernoulli(number(0.5)))
    observe(pick * (x @ weights("w", INPUTS)), y)


def lognormal(x, y=None):
    observe(x @ weights("w", INPUTS), y, pyro.sample("tau", dist.LogNormal(number(0.0), number(1.0))).rsqrt())


def gamma_as_scale(x, y=None):
    observe(x @ weights("w", INPUTS), y, gamma("tau"))


def gamma_as_wrong_weight_scale(x, y=None):
    observe(x @ weights("w", INPUTS, scale=gamma("tau") ** -1), y)


def gamma_clamped(x, y=None):
    observe(x @ weights("w", INPUTS, scale=gamma("tau").clamp(min=1.0).rsqrt()), y)


def gamma_in_network(x, y=None):
    observe((x @ weights("w", INPUTS)) * gamma("tau").rsqrt(), y)


def gamma_as_prior_mean(x, y=None):
    tau = gamma("tau")
    w = pyro.sample("w", dist.Normal(tau, number(1.0)).expand([INPUTS]).to_event(1))
    observe(x @ w, y)


def gamma_of_gamma(x, y=None):
    observe(x @ weights("w", INPUTS), y, pyro.sample("inner", dist.Gamma(number(6.0), gamma("tau"))).rsqrt())


def gamma_for_both(x, y=None):
    scale = gamma("tau").rsqrt()
    observe(x @ weights("w", INPUTS, scale=scale), y, scale)


def gammas_multiplied(x, y=None):
    observe(x @ weights("w", INPUTS, scale=(gamma("tau") * gamma("lam")).rsqrt()), y)


def gamma_for_some_elements(x, y=None):
    scale = torch.stack([gamma("tau").rsqrt(), number(1.0), number(1.0)])
    observe(x @ pyro.sample("w", dist.Normal(torch.zeros_like(scale), scale).to_event(1)), y)


def gamma_vector(x, y=None):
    tau = pyro.sample("tau", dist.Gamma(number(6.0), number(6.0)).expand([INPUTS]).to_event(1))
    w = pyro.sample("w", dist.Normal(torch.zeros_like(tau), tau.rsqrt()).to_event(1))
    observe(x @ w, y)


def hierarchical_mean(x, y=None):
    mu = pyro.sample("mu", dist.Normal(number(0.0), number(1.0)))
    observe(x @ pyro.sample("w", dist.Normal(mu, number(1.0)).expand([INPUTS]).to_event(1)), y)


def learned_noise(x, y=None):
    observe(x @ weights("w", INPUTS), y, weights("s").exp())


def noise_by_row(x, y=None):
    observe(x @ weights("w", INPUTS), y, 0.1 + x[:, 0].abs())


def noise_of_weights(x, y=None):
    observe(x @ weights("w", INPUTS), y, 1 + F.relu(x @ weights("s", INPUTS)))


def extra_factor(x, y=None):
    out = x @ weights("w", INPUTS)
    pyro.factor("penalty", number(-1.0))
    observe(out, y)


def subsampled(x, y=None):
    w = weights("w", INPUTS)
    with pyro.plate("data", len(x), subsample_size=2) as index:
        pyro.sample("y", dist.Normal(x[index] @ w, 0.5), obs=y[index])


def scaled_likelihood(x, y=None):
    w = weights("w", INPUTS)
    with poutine.scale(scale=2.0):
        observe(x @ w, y)


def masked(x, y=None):
    w = weights("w", INPUTS)
    with poutine.mask(mask=torch.arange(len(x)) > 0):
        observe(x @ w, y)


def two_outputs(x, y=None):
    pyro.sample("y", dist.Normal(x @ weights("w", INPUTS, 2), 0.5).to_event(2), obs=torch.stack([y, y], 1))


def column_output(x, y=None):
    """The classic: [N, 1] against [N] would broadcast to [N, N]."""
    pyro.sample("y", dist.Normal(x @ weights("w", INPUTS, 1), 0.5).to_event(2), obs=y)


def column_output_in_plate(x, y=None):
    observe(x @ weights("w", INPUTS, 1), y)


def y_as_column(x, y=None):
    pyro.sample("y", dist.Normal(x @ weights("w", INPUTS), 0.5).to_event(1), obs=y[:, None])


def latent_of_every_row(x, y=None):
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Normal(number(0.0), number(1.0)))
        pyro.sample("y", dist.Normal(x[:, 0] + z, 0.5), obs=y)


def nothing_observed(x, y=None):
    weights("w", INPUTS)


def mean_without_weights(x, y=None):
    weights("w", INPUTS)
    observe(x[:, 0], y)


MODELS = {
    two_likelihoods: ["'again'", "second likelihood"],
    bernoulli: ["'y'", "Bernoulli"],
    student: ["'y'", "StudentT"],
    discrete: ["'pick'", "Bernoulli"],
    lognormal: ["'tau'", "LogNormal"],
    gamma_as_scale: ["'y'", "'tau'"],
    gamma_as_wrong_weight_scale: ["'w'", "'tau'"],
    gamma_clamped: ["'w'", "'tau'"],
    gamma_in_network: ["'tau'"],
    gamma_as_prior_mean: ["'tau'"],
    gamma_of_gamma: ["'tau'"],
    gamma_for_both: ["'tau'", "'w'"],
    gammas_multiplied: ["'w'", "'tau'", "'lam'"],
    gamma_for_some_elements: ["'w'", "'tau'"],
    gamma_vector: ["'tau'", "(3,)"],
    hierarchical_mean: ["'w'", "prior"],
    learned_noise: ["'s'", "`exp`"],
    noise_by_row: ["'y'", "differs between rows"],
    noise_of_weights: ["'y'", "scale depends on weights"],
    extra_factor: ["'penalty'", "factor"],
    subsampled: ["'data'", "subsamples"],
    scaled_likelihood: ["'y'", "scaled"],
    masked: ["'y'", "masked"],
    two_outputs: ["'y'", "one output"],
    column_output: ["'y'", "shape"],
    column_output_in_plate: ["'y'", "shape"],
    y_as_column: ["'y'", "shape"],
    latent_of_every_row: ["'z'", "number of rows", "outside the plate"],
    nothing_observed: ["no likelihood"],
    mean_without_weights: ["'y'", "mean does not depend on any weight"],
}


@pytest.mark.parametrize(("model", "words"), MODELS.items(), ids=lambda m: getattr(m, "__name__", ""))
def test_unsupported_models_are_named(model, words):
    with pytest.raises(UnsupportedSiteError) as error:
        analyse(model, *data(9))
    assert_one_line(error, words)


def test_errors_of_the_model_itself_come_through():
    def model(x, y=None):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        analyse(model, *data(9))

    with pytest.raises(ValueError, match="cannot be multiplied"):
        analyse(output(lambda x: x @ w(INPUTS + 1)), *data(9))
