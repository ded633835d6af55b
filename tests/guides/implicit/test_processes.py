"""Any Pyro model with a function site as a process that can be drawn."""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule, PyroParam
from torch import nn

from guides.implicit import FunctionalBNN, SparseImplicitProcess, VariationalImplicitProcess
from guides.implicit.processes import DrawnLaw, FunctionSite, check_process
from guides.testing import assert_mean, assert_variance

X = torch.tensor([[0.0], [1.0], [2.0]])


class Line(nn.Module):
    """``f(x) = a + b x``, ``a ~ N(1, 0.5^2)``, ``b ~ N(0, s^2)`` with a parameter ``s``."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x, y=None):
        a = pyro.sample("a", dist.Normal(1.0, 0.5))
        b = pyro.sample("b", dist.Normal(torch.zeros(1), self.scale).to_event(1))
        f = pyro.deterministic("f", a + x @ b)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, 0.1), obs=y)


class Gated(Line):
    """Looks at a latent value in Python, which vmap forbids."""

    def forward(self, x):
        gate = pyro.sample("gate", dist.Normal(0.0, 1.0))
        pyro.deterministic("f", x[:, 0] * (self.scale if gate.item() > 0 else -self.scale))


def test_draws_have_the_law_of_the_model():
    values = FunctionSite(Line()).draw(20_000)(X)
    assert values.shape == (20_000, 3)
    assert_mean(values, 1.0)
    assert_variance(values, 0.25 + 4 * X[:, 0] ** 2)
    torch.testing.assert_close(values[:, 2] - values[:, 1], values[:, 1] - values[:, 0])


@pytest.mark.parametrize("model", [Line, Gated])
def test_functions_keep_their_random_numbers(model):
    functions = FunctionSite(model()).draw(5)
    first = functions(X)
    torch.testing.assert_close(functions(X), first)
    torch.testing.assert_close(functions(X[1:2]), first[:, 1:2])
    assert first[:, 2].unique().numel() > 1
    assert not torch.equal(FunctionSite(model()).draw(5)(X), first)


def test_gradients_reach_parameters_and_inputs():
    process, x = FunctionSite(Line()), X.clone().requires_grad_()
    values = process.draw(50)(x)
    values.var(0).sum().backward()
    (scale,) = process.parameters()
    # var f(x) is proportional to s^2 in its second part
    assert scale.grad > 0
    assert x.grad[2] > 0


def computed(x):
    pyro.sample("z", dist.Normal(0.0, 1.0))
    return x[:, 0]


def drawn(x):
    pyro.sample("f", dist.Normal(x[:, 0], 1.0).to_event(1))


def column(x):
    pyro.deterministic("f", x * pyro.sample("z", dist.Normal(0.0, 1.0)))


def by_rows(x):
    with pyro.plate("rows", len(x)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
    pyro.deterministic("f", x[:, 0] * z)


def stated(x):
    scale = pyro.param("scale", torch.tensor(1.0))
    pyro.deterministic("f", x[:, 0] * pyro.sample("z", dist.Normal(0.0, scale)))


def by_their_mean(x):
    z = pyro.sample("z", dist.Normal(x.mean(), 1.0))
    pyro.deterministic("f", z * x[:, 0])


def fixed(x):
    pyro.deterministic("f", x[:, 0])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (computed, "no site 'f'"),
        (drawn, "site 'f' is drawn"),
        (column, r"shape \[2, 1\]"),
        (by_rows, "site 'z' has a value for every row"),
        (by_their_mean, "the law of site 'z' depends on the inputs"),
        (stated, "parameter 'scale'"),
        (fixed, "not random"),
    ],
)
def test_models_without_a_function_are_refused_by_name(model, message):
    with pytest.raises(ValueError, match=message):
        FunctionSite(model).check(X)


class Wrong:
    """``f(x) = z``, in another shape than ``[n, N]``."""

    def __init__(self, shaped):
        self.shaped = shaped

    def draw(self, n):
        z = torch.randn(n, 1)
        return lambda x: self.shaped(z.expand(n, len(x)))


@pytest.mark.parametrize(
    ("shaped", "message"),
    [
        (lambda f: f.mT, r"gives shape \[2, 3\] at inputs \[2, 1\]; it must be a tensor \[3, 2\]"),
        (lambda f: f.unsqueeze(-1), r"gives shape \[3, 2, 1\]"),
        (lambda f: f[:-1], r"gives shape \[2, 2\]"),
        (lambda f: f.numpy(), "gives a ndarray"),
    ],
)
def test_processes_of_other_shapes_are_refused(shaped, message):
    x, y = torch.randn(20, 1), torch.randn(20)
    for guide in (
        SparseImplicitProcess(Wrong(shaped), 5),
        VariationalImplicitProcess(Wrong(shaped), 5),
        FunctionalBNN(Line(), Wrong(shaped)),
    ):
        with pytest.raises(ValueError, match=message):
            guide.fit(x, y, steps=1)


def test_a_look_at_a_process_takes_no_random_numbers():
    state = torch.random.get_rng_state()
    check_process(Wrong(lambda f: f), X[:2])
    assert torch.equal(torch.random.get_rng_state(), state)


def by_the_largest(x):
    scale = 1 + x[:, 0].abs().max()
    w = pyro.sample("w", dist.Normal(torch.zeros(2), scale).to_event(1))
    pyro.deterministic("f", w[0] + w[1] * x[:, 0])


def by_their_number(x):
    pyro.deterministic("f", len(x) * pyro.sample("z", dist.Normal(0.0, 1.0)) * x[:, 0])


def drawn_beside(x):
    pyro.deterministic("f", pyro.sample("z", dist.Normal(0.0, 1.0)) * x[:, 0] + torch.randn(len(x)))


@pytest.mark.parametrize("x", [X, X.flip(0), torch.tensor([[3.0], [3.0], [1.0], [3.0], [3.0], [3.0]])])
def test_a_law_that_depends_on_the_largest_row_is_refused_wherever_that_is(x):
    """Also in the first row, and where one row alone is smaller."""
    with pytest.raises(ValueError, match="the law of site 'w' depends on the inputs"):
        check_process(FunctionSite(by_the_largest), x)


class Anew:
    """Straight lines that are others at every call."""

    def draw(self, n):
        return lambda x: torch.randn(n, 1) + torch.randn(n, 1) * x[:, 0]


class AnewAwayFromZero:
    def draw(self, n):
        return lambda x: torch.randn(n, 1) * x[:, 0]


class AmongOthers:
    """The same every time, and other ones with other rows."""

    def draw(self, n):
        z = torch.randn(n, 1)
        return lambda x: z * (x[:, 0] - x[:, 0].mean())


class NoisyPart(nn.Module):
    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def draw(self, n):
        z = torch.randn(n, 1)
        return lambda x: self.dropout(z + x[:, 0])


@pytest.mark.parametrize(
    ("process", "message"),
    [
        (Anew(), r"asked twice at inputs \[7, 1\], .*draw them in draw\(n\), not in what it returns"),
        (AnewAwayFromZero(), "asked twice"),
        (AmongOthers(), r"at two rows than at inputs \[7, 1\]"),
        (FunctionSite(drawn_beside), r"asked twice .*in a Pyro model: at latent sites"),
        (FunctionSite(by_their_number), "at two rows"),
    ],
)
def test_functions_that_do_not_keep_their_values_are_refused(process, message):
    x = torch.tensor([[0.0], [0.0], [1.0], [2.0], [3.0]])  # of no slope in its first rows
    with pytest.raises(ValueError, match=message):
        check_process(process, x)


def test_every_guide_refuses_functions_that_are_others_at_every_call():
    x, y = torch.randn(20, 1), torch.randn(20)
    for guide in (
        SparseImplicitProcess(Anew(), 5),
        VariationalImplicitProcess(Anew(), 5),
        FunctionalBNN(Line(), Anew()),
        FunctionalBNN(DrawsAnew(), Line()),
    ):
        with pytest.raises(ValueError, match="must keep their random numbers"):
            guide.fit(x, y, steps=1)


class DrawsAnew(Line):
    """A network whose own way to draw many at once is the wrong one."""

    draw = Anew.draw


def test_a_look_at_a_process_is_without_dropout_and_leaves_modes_and_random_numbers():
    for looked_at in (NoisyPart(), FunctionSite(Line())):
        looked_at.part = nn.Linear(1, 1).eval()  # of another mode than the whole
        modes, state = [part.training for part in looked_at.modules()], torch.random.get_rng_state()
        check_process(looked_at, X)
        assert [part.training for part in looked_at.modules()] == modes
        assert sum(modes) == len(modes) - 1
        assert torch.equal(torch.random.get_rng_state(), state)


def test_a_process_is_looked_at_no_farther_out_than_its_rows():
    """Of one that knows codes from 0 to 2 alone."""

    def of_codes(x):
        effects = pyro.sample("effects", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        pyro.deterministic("f", effects[x[:, 0].long()])

    check_process(FunctionSite(of_codes), X)


def test_rounding_is_no_other_value():
    class Rounded:
        def draw(self, n):
            z = 1000 * torch.randn(n, 1)
            return lambda x: z + 1e-3 * torch.rand(n, len(x))

    check_process(Rounded(), X)


def test_sites_by_another_name():
    def model(x):
        pyro.deterministic("g", x[:, 0] * pyro.sample("z", dist.Normal(0.0, 1.0)))

    process = FunctionSite(model, site="g")
    process.check(X)
    assert process.draw(4)(X).shape == (4, 3)
    FunctionSite(Line()).check(X)


def test_a_drawn_law_has_no_density():
    law = DrawnLaw(lambda n: torch.randn(n, 3), 3)
    assert law.event_shape == (3,)
    assert law.sample((2, 4)).shape == (2, 4, 3)
    assert law.sample().shape == (3,)
    with pytest.raises(NotImplementedError, match="no density"):
        law.log_prob(torch.zeros(3))


def test_what_is_computed_before_the_function_is_no_latent_site():
    """A deterministic site has a value for every row, and may."""

    def model(x):
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        pyro.deterministic("f", pyro.deterministic("slope", b * x[:, 0]) + 1)

    process = FunctionSite(model)
    process.check(X)
    assert process.latent(4, X).keys() == {"b"}


class Positive(PyroModule):
    """A parameter that Pyro keeps positive is the module's own."""

    def __init__(self):
        super().__init__()
        self.scale = PyroParam(torch.tensor(2.0), dist.constraints.positive)

    def forward(self, x):
        pyro.deterministic("f", x[:, 0] * pyro.sample("z", dist.Normal(0.0, self.scale)))


def test_parameters_under_constraints_are_trained_as_others():
    process = FunctionSite(Positive())
    process.check(X)
    values = process.draw(50)(X)
    values.var(0).sum().backward()
    (scale,) = process.parameters()
    assert scale.grad > 0


@pytest.mark.parametrize("model", [Line(), Gated()])
def test_a_look_at_a_model_takes_no_random_numbers(model):
    state = torch.random.get_rng_state()
    FunctionSite(model).check(X)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_model_that_needs_too_much_memory_is_not_run_draw_by_draw():
    runs = []

    def model(x):
        runs.append(1)
        raise torch.OutOfMemoryError("too much")

    with pytest.raises(torch.OutOfMemoryError):
        FunctionSite(model).draw(5)(X)
    assert len(runs) == 1


@pytest.mark.parametrize(
    "law", [dist.Normal(0.0, 1.0), dist.Uniform(0.0, 1.0), dist.Exponential(1.0), dist.Cauchy(0.0, 1.0)]
)
def test_all_draws_run_side_by_side(law):
    """Also of laws that fill new tensors in place."""
    runs = []

    def model(x):
        runs.append(1)
        pyro.deterministic("f", x[:, 0] * pyro.sample("z", law))

    process = FunctionSite(model)
    for more in (3, 2):  # of the latent sites, and of the function; before, for parameters to enter the store
        before = len(runs)
        values = process.draw(20)(X)
        assert len(runs) - before == more
        assert values[:, 1].unique().numel() == 20


def test_a_process_is_asked_at_rows_of_the_data_alone():
    """Such as the codes of categories, which have no mean."""

    class ByCode:
        def draw(self, n):
            z = torch.randn(n, 3)
            return lambda x: z[:, [[0.0, 5.0, 9.0].index(code) for code in x[:, 0].tolist()]]

    check_process(ByCode(), torch.tensor([[0.0], [5.0], [9.0], [5.0]]))
