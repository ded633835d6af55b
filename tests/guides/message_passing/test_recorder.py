"""A recorded program does what the model does."""

import functools

import jax
import numpy as np
import pyro
import pytest
import torch
import torch.nn.functional as F
from pyro import distributions as dist
from pyro import poutine

from guides.message_passing.arrays import double_precision
from guides.message_passing.gathers import gather
from guides.message_passing.messages import GAUSSIAN, SPIKE_SLAB
from guides.message_passing.program import propagate
from guides.message_passing.recorder import analyse, record
from tests.guides.message_passing.networks import INPUTS, NETWORKS, data, number, observe, pbp, weights

SLOW = pytest.mark.slow
each_network = pytest.mark.parametrize("model", NETWORKS.values(), ids=NETWORKS.keys())


def random_weights(recording):
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(prior.shape, generator=generator, dtype=torch.float64)
        for name, prior in recording.weights.items()
    }


def output_of(model, x, y, values):
    """The likelihood's mean when the model is run on numbers."""
    gammas = dict.fromkeys(("lam", "gamma", "noise", "a", "b"), number(1.0))
    with poutine.block(), pyro.validation_enabled(False):
        trace = poutine.trace(poutine.condition(model, gammas | values)).get_trace(x, y)
    law = trace.nodes["y"]["fn"]
    while isinstance(law, torch.distributions.Independent):
        law = law.base_dist
    return law.loc


def rows_of(recording):
    return {name: torch.from_numpy(value) for name, value in recording.rows.items()}


def message_of(recording, values, variance=0.0, family=GAUSSIAN):
    """What comes out where the weights are normal around values."""
    moments = {name: (value, torch.full_like(value, variance)) for name, value in values.items()}
    return propagate(recording.program, family, moments, rows_of(recording))


@pytest.mark.one_in(4)
@each_network
@pytest.mark.parametrize("rows", [1, 4, pytest.param(3, marks=SLOW), pytest.param(6, marks=SLOW)])
@pytest.mark.parametrize("family", [GAUSSIAN, SPIKE_SLAB], ids=lambda f: f.name)
def test_program_computes_the_network(model, rows, family):
    """With weights known exactly the message is the output of the model itself.

    For as few or as many rows as a layer has units too.
    """
    x, y = data(rows)
    recording = record(model, x, y)
    values = random_weights(recording)
    mean, variance = family.mean_and_variance(message_of(recording, values, family=family))
    expected = output_of(model, x, y, values).reshape(rows)
    torch.testing.assert_close(mean.expand(rows), expected, rtol=1e-10, atol=1e-10)
    assert variance.abs().max() < 1e-9
    np.testing.assert_array_equal(recording.y, y)


@pytest.mark.one_in(3)
@each_network
def test_programs_are_the_same_for_all_rows_and_without_data(model):
    """One structure, one compilation: the program knows nothing of the rows it was recorded with."""
    x, y = data(11)
    first = record(model, x, y).program
    for rows in (1, 4, 6, 11):
        for other in (record(model, *data(rows, seed=3)), record(model, data(rows, seed=4)[0])):
            assert other.program == first
            assert hash(other.program) == hash(first)
            assert (other.program.digest, other.program.known_numbers) == (first.digest, first.known_numbers)


def test_different_programs_differ():
    x, y = data(11)
    programs = [record(model, x, y).program for model in NETWORKS.values()]
    assert len({(p.digest, p.known_numbers) for p in programs}) == len(programs)


#: Every operation, and every way to find the weights.
QUICK = [("pooled", GAUSSIAN), ("scaled", GAUSSIAN), ("leaky", SPIKE_SLAB), ("shortcut", SPIKE_SLAB)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "family"),
    [
        pytest.param(name, family, marks=[] if (name, family) in QUICK else pytest.mark.slow)
        for name in NETWORKS
        for family in (GAUSSIAN, SPIKE_SLAB)
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_compiled_and_interpreted_messages_agree(name, family):
    """One row in JAX, a batch of rows in torch."""
    model = NETWORKS[name]
    x, y = data(5)
    recording = record(model, x, y)
    moments = {name: (value, 0.1 + value**2) for name, value in random_weights(recording).items()}
    batch = propagate(recording.program, family, moments, rows_of(recording))
    with double_precision():
        arrays = {n: tuple(jax.numpy.asarray(t.numpy()) for t in pair) for n, pair in moments.items()}
        one = jax.jit(functools.partial(propagate, recording.program, family))
        for i in range(5):
            row = {name: jax.numpy.asarray(value[i]) for name, value in recording.rows.items()}
            for a, b in zip(batch, one(arrays, row), strict=True):
                np.testing.assert_allclose(a.expand(5)[i].numpy(), np.asarray(b), rtol=1e-11, atol=1e-12)


def test_moments_against_draws():
    """Where the network is linear in independent quantities, propagation is exact."""
    x, y = data(6)
    for name in ("one_vector", "constant"):
        recording = record(NETWORKS[name], x, y)
        values = random_weights(recording)
        message = message_of(recording, values, 0.3)
        features = torch.ones(6, 1, dtype=torch.float64)
        if name == "one_vector":
            features = torch.cat([x, features], 1)
        vector = torch.cat([v.reshape(-1) for v in values.values()])
        torch.testing.assert_close(message.mean.expand(6), features @ vector)
        torch.testing.assert_close(message.variance.expand(6), 0.3 * (features**2).sum(1))


def test_moments_of_scaled_weights():
    """A factor that all weights share moves to the input, others stay; variances take its square."""
    factor = torch.tensor([1.0, -2.0, 0.5]).double()

    def model(x, y=None):
        w = weights("w", INPUTS) * factor + 1.0
        u = weights("u", INPUTS) / 4
        joined = torch.cat([w, 3 * weights("b", 1)])
        observe(F.pad(x, (0, 1), value=1.0) @ joined + x @ u, y)

    x, y = data(6)
    recording = record(model, x, y)
    values = random_weights(recording)
    for family in (GAUSSIAN, SPIKE_SLAB):
        message = message_of(recording, values, 0.3, family)
        mean = x @ (values["w"] * factor + 1) + 3 * values["b"] + x @ values["u"] / 4
        torch.testing.assert_close(message.mean, mean)
        torch.testing.assert_close(message.variance, 0.3 * (x**2 @ (factor**2 + 1 / 16) + 9))


def test_a_factor_multiplies_what_was_added_to_the_weights_too():
    def model(x, y=None):
        observe(x @ ((weights("w", INPUTS) + 1.5) * -2.0), y)

    x, y = data(6)
    recording = record(model, x, y)
    values = random_weights(recording)
    message = message_of(recording, values, 0.3)
    torch.testing.assert_close(message.mean, x @ (-2 * values["w"] - 3))
    torch.testing.assert_close(message.variance, x**2 @ torch.full((INPUTS,), 4 * 0.3).double())


def a_column_of_twos(x, y=None):
    """Weights that something is added to, beside a number that is not one."""
    hidden = F.relu(x @ weights("w", INPUTS, 4))
    observe(F.pad(hidden, (0, 1), value=2.0) @ (weights("v", 5) + 1.5), y)


def used_with_and_without_a_factor(x, y=None):
    f = x @ weights("w", INPUTS)
    observe(F.relu(f) + 3 * f, y)


def in_another_order(x, y=None):
    hidden = F.relu(x @ weights("w", INPUTS, 4))
    observe(hidden.flip(-1) @ weights("v", 4), y)


def product_with_factors(x, y=None):
    ones = torch.ones(len(x), 4, dtype=torch.float64)
    hidden = torch.addmm(ones, x, weights("w", INPUTS, 4), beta=0.5, alpha=-2.0)
    observe(F.relu(hidden) @ weights("v", 4), y)


@pytest.mark.parametrize(
    "model", [a_column_of_twos, used_with_and_without_a_factor, in_another_order, product_with_factors]
)
def test_what_is_simplified_is_the_same_network(model):
    """Factors and orders that no network of ``NETWORKS`` has."""
    x, y = data(6)
    recording = record(model, x, y)
    values = random_weights(recording)
    torch.testing.assert_close(message_of(recording, values).mean, output_of(model, x, y, values))


def test_gathers_and_their_derivatives():
    """Elements that are asked for twice, once and never."""
    index = np.array([[3, 0, 3], [1, 3, 0]])
    x = torch.randn(2, 5, dtype=torch.float64)
    pull = torch.randn(2, 2, 3, dtype=torch.float64)
    leaf = x.clone().requires_grad_()
    expected = gather(leaf, index)
    torch.testing.assert_close(expected, x[:, torch.as_tensor(index)])
    expected.backward(pull)
    with double_precision():

        @jax.jit
        def both(x, pull):
            found, pull_back = jax.vjp(lambda x: gather(x, index), x)
            return found, pull_back(pull)[0]

        found, gradient = both(*(jax.numpy.asarray(a.numpy()) for a in (x, pull)))
        np.testing.assert_array_equal(found, expected.detach())
        np.testing.assert_allclose(gradient, leaf.grad, rtol=1e-14)


def test_a_sum_with_itself_is_twice_the_same():
    def model(x, y=None):
        hidden = F.relu(x @ weights("w", INPUTS, 4)) @ weights("v", 4)
        observe(hidden + hidden, y)

    x, y = data(6)
    recording = record(model, x, y)
    moments = {n: (v, torch.full_like(v, 0.3)) for n, v in random_weights(recording).items()}
    whole = propagate(recording.program, GAUSSIAN, moments, rows_of(recording))

    def half(x, y=None):
        observe(F.relu(x @ weights("w", INPUTS, 4)) @ weights("v", 4), y)

    part = propagate(record(half, x, y).program, GAUSSIAN, moments, rows_of(recording))
    torch.testing.assert_close(whole.mean, 2 * part.mean)
    torch.testing.assert_close(whole.variance, 4 * part.variance)


def test_a_bias_is_part_of_its_linear_layer():
    """No joining in the loop: the hidden layers of both styles become one operation with a bias."""
    for model in (pbp((4, 5)), NETWORKS["bnn"]):
        operations = [node.operation for node in record(model, *data(9)).program.nodes]
        assert "concatenate" not in operations
        assert "add" not in operations
        assert operations.count("linear") == 3


def test_spike_and_slab_knows_that_a_bias_leaves_no_spike():
    x, y = data(9)
    for model, has_bias in ((pbp(bias=True), True), (pbp(bias=False), False), (NETWORKS["residual"], False)):
        recording = record(model, x, y)
        message = message_of(recording, random_weights(recording), 1.0, SPIKE_SLAB)
        assert bool((message.log_slab == 0).all()) == (has_bias or model is NETWORKS["residual"])


def test_priors_and_precisions():
    x, y = data(9)
    found = analyse(NETWORKS["two_precisions"], x, y)
    links = {n: (p.precision, p.shape) for n, p in found.weights.items()}
    assert links == {"w": ("a", (3, 4)), "v": ("b", (4,))}
    np.testing.assert_allclose(found.weights["v"].factor, 0.5)
    np.testing.assert_allclose(found.weights["v"].loc, 0.1)
    assert (found.noise_precision, found.noise_scale) == ("noise", 2.0)
    assert {n: (g.concentration, g.rate) for n, g in found.gammas.items()} == {
        "a": (5.0, 4.0),
        "b": (7.0, 3.0),
        "noise": (6.0, 6.0),
    }
    fixed = analyse(NETWORKS["one_vector"], x, y)
    assert fixed.noise_precision is None
    assert fixed.noise_scale == 0.5
    assert fixed.weights["w"].precision is None
    np.testing.assert_allclose(fixed.weights["w"].factor, 2.0)


def test_inputs_of_weights_count_the_bias():
    program = record(NETWORKS["split_matrix"], *data(9)).program
    assert {n: set(a.ravel()) for n, a in program.inputs_of_weights.items()} == {"w": {4.0}, "v": {5.0}}
    program = record(pbp((7,)), *data(9)).program
    assert {n: set(a.ravel()) for n, a in program.inputs_of_weights.items()} == {"w1": {4.0}, "w2": {8.0}}


def test_what_must_be_told_apart():
    x, y = data(9)
    assert {name: record(model, x, y).program.has_symmetry for name, model in NETWORKS.items()} == {
        name: name not in ("one_vector", "constant") for name in NETWORKS
    }

    def deep_linear(x, y=None):
        observe(x @ weights("w", INPUTS, 4) @ weights("v", 4), y)

    assert record(deep_linear, x, y).program.has_symmetry


def test_recording_changes_nothing_global():
    state, default = torch.get_rng_state(), torch.get_default_dtype()
    validation = dist.Normal(0.0, 1.0)._validate_args
    x64 = jax.config.jax_enable_x64

    def model(x, y=None):
        jitter = torch.randn(3)  # a model may draw what it likes
        observe(x @ weights("w", INPUTS) + 0 * jitter.sum(), y)

    analyse(model, *data(9))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_default_dtype() == default
    assert dist.Normal(0.0, 1.0)._validate_args == validation
    assert jax.config.jax_enable_x64 == x64


def test_sites_outside_are_not_seen():
    """A recording inside somebody's trace leaves no site there."""
    with poutine.trace() as trace:
        record(NETWORKS["bnn"], *data(9))
    assert not trace.trace.nodes


def test_explicit_validation_of_arguments_does_no_harm():
    def model(x, y=None):
        out = x @ weights("w", INPUTS)
        pyro.sample("y", dist.Normal(out, 0.5, validate_args=True).to_event(1), obs=y)

    assert record(model, *data(9)).observed == "y"


def joined_weights(x, y=None):
    """No site has a dimension of eight, but what is multiplied has."""
    hidden = torch.cat([F.relu(x @ weights("a", INPUTS, 3)), F.relu(x @ weights("b", INPUTS, 5))], 1)
    observe(hidden @ torch.cat([weights("u", 3), weights("v", 5)]), y)


def reshaped_weights(x, y=None):
    hidden = F.relu(x @ weights("a", INPUTS, 2, 4).reshape(INPUTS, 8))
    observe(hidden @ (weights("v", 2, 4).reshape(8) / 3), y)


@pytest.mark.parametrize("model", [joined_weights, reshaped_weights])
def test_as_many_rows_as_units_that_no_site_has(model):
    programs = [analyse(model, *data(rows)).program for rows in (7, 8, 9)]
    assert programs[0] == programs[1] == programs[2]


@pytest.mark.parametrize("rows", [1, 4])
def test_data_have_the_shape_of_the_rows_that_were_given(rows):
    """Also where rows are repeated for the recording: a single one, or as many as a weight is wide."""
    x, y = data(rows)
    recording = record(NETWORKS["pbp"], x, y)
    assert recording.y_shape == recording.y.shape == (rows,)


@pytest.mark.parametrize(("operation", "sign"), [(torch.add, 3.0), (torch.sub, -3.0)])
def test_alpha_counts_in_sums(operation, sign):
    def network(sums):
        def model(x, y=None):
            w1 = pyro.sample("w1", dist.Normal(torch.zeros(4, INPUTS), 1.0).to_event(2))
            b = pyro.sample("b", dist.Normal(torch.zeros(4), 1.0).to_event(1))
            w2 = pyro.sample("w2", dist.Normal(torch.zeros(1, 4), 1.0).to_event(2))
            observe(F.linear(torch.relu(sums(F.linear(x, w1), b)), w2).squeeze(-1), y)

        return record(model, data()[0]).program

    scaled = network(lambda h, b: operation(h, b, alpha=3.0))
    assert scaled == network(lambda h, b: h + sign * b)
    assert scaled != network(lambda h, b: h + b)
