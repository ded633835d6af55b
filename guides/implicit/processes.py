"""Implicit processes: priors of functions that can be drawn and not scored.

A process is anything with ``draw(n)``, which gives ``n`` functions at once (:class:`ImplicitProcess`).
:class:`FunctionSite` makes one of any Pyro model that computes a function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import pyro
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from guides.core.modes import evaluating
from guides.core.rng import kept_rng
from guides.posterior.law_of_draws import elementwise

#: ``x: [N, d]`` -> the values ``[n, N]`` of ``n`` functions, differentiable; the same functions every time.
Functions = Callable[[Tensor], Tensor]
Draws = dict[str, Tensor]
Answer = TypeVar("Answer", Tensor, Draws)
#: Share of the largest value of a function by which two runs of it may differ, in float32.
ROUNDING = 1e-4
#: By which torch's laws draw.
IN_PLACE = {torch.Tensor.normal_, torch.Tensor.uniform_, torch.Tensor.exponential_, torch.Tensor.cauchy_}


class ImplicitProcess(Protocol):
    """A law of functions ``f(x) = g(x, z)`` with random ``z``.

    One that is a torch module has its parameters trained with the guide, those that require gradients.
    """

    def draw(self, n: int) -> Functions:
        """``n`` independent functions by torch's global random numbers; each keeps its ``z`` for all inputs.

        Differentiable in the process's parameters.
        """
        ...


class DrawnLaw(dist.TorchDistribution):
    """A law that can be drawn and has no density.

    :param draw: ``n -> [n, D]``
    :param size: D
    """

    arg_constraints = {}
    support = dist.constraints.real_vector

    def __init__(self, draw: Callable[[int], Tensor], size: int):
        self.draw = draw
        super().__init__(event_shape=torch.Size([size]), validate_args=False)

    def sample(self, sample_shape=torch.Size()) -> Tensor:  # noqa: B008 (torch's own signature)
        shape = torch.Size(sample_shape)
        with torch.no_grad():
            return self.draw(shape.numel()).reshape(shape + self.event_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        raise NotImplementedError("an implicit prior can be drawn, and has no density")


class FunctionSite(nn.Module):
    """The functions that a Pyro model computes at a ``pyro.deterministic`` site.

    The latent sites before it are ``z``: their laws may not depend on the inputs, nor their shapes on how
    many there are.  All draws run side by side (``torch.func.vmap``); a model that vmap refuses, for its
    Python looks at a latent value, is run draw by draw.

    :param model: called as ``model(x)`` with ``x: [N, d]``
    :param site: its value is ``[N]``

    Of a model that is a torch module the parameters are trained; ``pyro.param`` statements are refused.
    """

    def __init__(self, model: Callable, site: str = "f"):
        super().__init__()
        self.model, self.site = model, site
        self._entered: list[str] | None = None

    def draw(self, n: int) -> Functions:
        latent: Draws = {}

        def functions(x: Tensor) -> Tensor:
            if not latent:
                latent.update(self.latent(n, x))
            return _over_draws(lambda draw: self._trace(x, draw).nodes[self.site]["value"], n, latent)

        return functions

    def latent(self, n: int, x: Tensor) -> Draws:
        """``n`` draws of the latent sites before the function's, ``{site: [n, *site]}``, by runs on ``x``."""
        self._register(x)
        return _over_draws(lambda draw: self._latent_values(x), n, {})

    def _register(self, x: Tensor) -> None:
        """Parameters of a Pyro module enter Pyro's store when it first runs, which vmap refuses: those draws
        would be made one by one, and be others than the same seed gives later.  So it runs before, and again
        where the store has been cleared.
        """
        store = pyro.get_param_store()
        if self._entered is not None and all(name in store for name in self._entered):
            return
        with torch.no_grad(), kept_rng(), evaluating(self), pyro.validation_enabled(False), poutine.block():
            nodes = self._trace(x[:1], {}).nodes
        self._entered = [name for name, node in nodes.items() if node["type"] == "param"]

    def check(self, x: Tensor) -> None:
        """Looks at runs of the model on a few of ``x: [N, d]``, N at least 2.

        :raises ValueError: the site is missing, is drawn instead of computed or has another shape than
            ``[N]``; a latent site, or its law, depends on the rows; a parameter belongs to no module
        """
        first, *others = places(x)
        with torch.no_grad(), kept_rng(), evaluating(self):
            trace, short = self._trace(first, {}), self._trace(others[0], {})
        self._check_function(trace, first)
        values = {name: trace.nodes[name]["value"] for name in self._latent(trace)}
        if not values:
            raise ValueError(f"site {self.site!r} comes after no latent site: its function is not random")
        _check_shapes(values, short)
        for at in others:
            with torch.no_grad(), kept_rng(), evaluating(self):
                elsewhere = self._trace(at, values)
            _check_laws(values, trace, elsewhere)
        self._check_parameters(trace)

    def _check_function(self, trace: poutine.Trace, x: Tensor) -> None:
        """:raises ValueError: unless the site is there, computed, and ``[N]`` at ``x: [N, d]``"""
        if self.site not in trace or trace.nodes[self.site]["type"] != "sample":
            raise ValueError(
                f"the model has no site {self.site!r}; let it say pyro.deterministic({self.site!r}, f) of "
                "its function's values [N], or pass the name of its own"
            )
        node = trace.nodes[self.site]
        if not isinstance(elementwise(node["fn"]), dist.Delta):
            raise ValueError(
                f"site {self.site!r} is drawn; a function must be computed from latent sites before it "
                "(pyro.deterministic), so that it has one value at every input"
            )
        if node["value"].shape != x.shape[:1]:
            raise ValueError(
                f"site {self.site!r} has shape {list(node['value'].shape)} for inputs {list(x.shape)}; "
                f"it must be [{len(x)}]"
            )

    def _check_parameters(self, trace: poutine.Trace) -> None:
        """:raises ValueError: for a parameter of no module"""
        own = {id(parameter) for parameter in self.parameters()}
        for name, node in trace.nodes.items():
            if node["type"] == "param" and id(_unconstrained(node["value"])) not in own:
                raise ValueError(
                    f"parameter {name!r} is a pyro.param statement, which the guide cannot train or save; "
                    "make the model a torch module with a parameter"
                )

    def _latent(self, trace: poutine.Trace) -> list[str]:
        """Names of the latent sites before the function's own."""
        names = []
        for name, node in trace.nodes.items():
            if name == self.site:
                break
            if node["type"] == "sample" and not (node["is_observed"] or site_is_subsample(node)):
                names.append(name)
        return names

    def _latent_values(self, x: Tensor) -> Draws:
        trace = self._trace(x, {})
        return {name: trace.nodes[name]["value"] for name in self._latent(trace)}

    def _trace(self, x: Tensor, latent: Draws) -> poutine.Trace:
        return poutine.trace(poutine.condition(self.model, latent)).get_trace(x)


def as_process(prior: ImplicitProcess | Callable, site: str) -> ImplicitProcess:
    """The prior, if it draws functions; of a Pyro model those that it computes at ``site``."""
    return prior if hasattr(prior, "draw") else FunctionSite(prior, site)


def places(x: Tensor) -> list[Tensor]:
    """Inputs ``[m, d]`` that a process is looked at, of ``x: [N, d]``: the first two rows, the first, the
    last three, and the one farthest from the first.

    All are rows of the data, for a process may be made for no others (codes of categories).
    """
    farthest = (x - x[0]).abs().sum(1).argmax()
    return [x[:2], x[:1], x[-3:], x[farthest][None]]


def check_process(process: ImplicitProcess, x: Tensor) -> None:
    """Looks at what a process gives at a few of ``x: [N, d]``, N at least 2, without dropout; random states
    and modes stay as they are.

    :raises ValueError: it is no tensor ``[n, N]``, or functions do not keep their values; of a
        :class:`FunctionSite` as its ``check``
    """
    if isinstance(process, FunctionSite):
        process.check(x)
    with torch.no_grad(), kept_rng(), evaluating(process):
        functions = process.draw(3)
        _check_values(functions(x[:2]), x[:2])
        _check_kept(functions, torch.cat(places(x)))


def _check_values(values: object, x: Tensor) -> None:
    """:raises ValueError: unless three functions' values at ``x: [N, d]`` are a tensor ``[3, N]``"""
    got = f"shape {list(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
    if got != f"shape {[3, len(x)]}":
        raise ValueError(
            f"the process's draw(3) gives {got} at inputs {list(x.shape)}; it must be a tensor "
            f"[3, {len(x)}], a row a function"
        )


def _check_kept(functions: Functions, x: Tensor) -> None:
    """:raises ValueError: where functions have other values at ``x: [N, d]`` the second time, or at two rows
    without the others
    """
    values = functions(x)
    if not _alike(functions(x), values):
        where = f"asked twice at inputs {list(x.shape)}, functions of a process's draw(3) give other values"
    elif not (_alike(functions(x[:2]), values[:, :2]) and _alike(functions(x[-2:]), values[:, -2:])):
        where = (
            f"functions of a process's draw(3) give other values at two rows than at inputs {list(x.shape)} "
            "that hold these, where a value must depend on its own row alone"
        )
    else:
        return
    raise ValueError(
        f"{where}; functions must keep their random numbers: draw them in draw(n), not in what it returns "
        "(in a Pyro model: at latent sites); a process with dropout must be a torch module, to be without it"
    )


def _alike(a: Tensor, b: Tensor) -> bool:
    """Up to rounding, which follows the largest of the numbers; NaN is NaN."""
    return torch.allclose(a, b, rtol=0, atol=ROUNDING * b.nan_to_num().abs().max().item(), equal_nan=True)


def _check_shapes(values: Draws, short: poutine.Trace) -> None:
    """:raises ValueError: where a latent value, ``{site: [*site]}``, has another shape with fewer rows"""
    for name, value in values.items():
        if value.shape != short.nodes[name]["value"].shape:
            raise ValueError(
                f"site {name!r} has a value for every row of the inputs; a function's latent sites are "
                "shared by all rows"
            )


def _check_laws(values: Draws, *runs: poutine.Trace) -> None:
    """:raises ValueError: where the law of a latent value, ``{site: [*site]}``, differs between two runs"""
    for name, value in values.items():
        if not torch.equal(*(run.nodes[name]["fn"].log_prob(value) for run in runs)):
            raise ValueError(
                f"the law of site {name!r} depends on the inputs, so functions would change with the "
                "rows they are seen at; give it one that does not"
            )


def _unconstrained(value: Tensor) -> Tensor:
    """The parameter behind what a ``pyro.param`` statement gives."""
    return value.unconstrained() if hasattr(value, "unconstrained") else value


def _over_draws(question: Callable[[Draws], Answer], n: int, draws: Draws) -> Answer:
    """The answers to a question asked of ``n`` draws, stacked; what is random in it differs."""

    def of_draw(draw: Draws, zero: Tensor) -> Answer:
        with _RandomInPlace(zero):
            return question(draw)

    with pyro.validation_enabled(False), poutine.block():
        try:
            return vmap(of_draw, randomness="different")(draws, torch.zeros(n))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # an error of the model's own comes again from the loop
            return _stacked([question({name: v[i] for name, v in draws.items()}) for i in range(n)])


def _stacked(answers: list[Answer]) -> Answer:
    if isinstance(answers[0], Tensor):
        return torch.stack(answers)
    return {name: torch.stack([answer[name] for answer in answers]) for name in answers[0]}


class _RandomInPlace(TorchFunctionMode):
    """Lets torch's laws, which fill new tensors with random numbers, do so under vmap: it can only if the
    tensor is one of each draw.

    :param zero: of a draw
    """

    def __init__(self, zero: Tensor):
        super().__init__()
        self.zero = zero

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in IN_PLACE:
            args = (torch.zeros_like(args[0]) + self.zero.to(args[0]), *args[1:])
        return function(*args, **(kwargs or {}))
