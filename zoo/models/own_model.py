"""A Pyro model that somebody else has written, as the zoo calls its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from guides.core.distributions import SpikeSlab, base_prior
from guides.core.rng import kept_rng
from guides.posterior.law_of_draws import elementwise
from zoo.errors import UserError, where

#: Task -> law of its target; predictions are mixtures of these in closed form.
LAWS = {"regression": dist.Normal, "binary": dist.Bernoulli, "multiclass": dist.Categorical}
#: Task -> what else its law should be told of.
ADVICE = {
    "regression": ", of a target that is standardised",
    "binary": ": write Bernoulli(logits=...) for two classes",
    "multiclass": ": write Categorical(logits=...) for several classes",
}
#: Of the observed site.
TARGET = "y"


class OwnModel:
    """``function(x, y=None)`` with a site ``y`` in a plate of the rows.

    :ivar twin: its NumPyro version, or None
    :ivar takes_size: whether the function counts a minibatch by itself; if not, its observations are weighed
        up to the whole data set
    :ivar checksum: of the file
    """

    def __init__(
        self, name: str, function: Callable, twin: Callable | None, takes_size: bool, checksum: str
    ) -> None:
        self.name, self.function, self.twin, self.takes_size, self.checksum = (
            name, function, twin, takes_size, checksum,
        )  # fmt: skip

    def __call__(self, x: Tensor, y: Tensor | None = None, size: int | None = None) -> object:
        """The Pyro model.

        :param size: rows of the whole data set, when ``x`` and ``y`` are a minibatch of it
        """
        if size is None:
            return self.function(x, y)
        if self.takes_size:
            return self.function(x, y, size=size)
        with _Weighed(size / len(x)):
            return self.function(x, y)

    def check(self, x: Tensor, y: Tensor, task: str) -> None:
        """Runs the model once on data and once without a target.

        :raises UserError: when it fails, or is no model whose rows are independent given numbers that they
            share, with one target a row
        """
        free = self._trace(x)
        for name, node in free.nodes.items():
            if node["type"] == "param":
                self._refuse(f"has a parameter {name!r} without a prior: make it a pyro.sample, or fix it")
        if TARGET not in free.nodes or free.nodes[TARGET]["type"] != "sample":
            self._refuse(
                f"has no site {TARGET!r}: write pyro.sample({TARGET!r}, law, obs=y) in a plate of the rows"
            )
        target = free.nodes[TARGET]
        if target["is_observed"]:
            self._refuse("observes its target when it is called without one: write obs=y")
        law = elementwise(target["fn"])
        if not isinstance(law, LAWS[task]):
            kind, wanted = type(law).__name__, LAWS[task].__name__
            self._refuse(
                f"has the law {kind} for {TARGET!r}, and {task} is graded with {wanted}{ADVICE[task]}"
            )
        given = self._trace(x, y)
        if not given.nodes[TARGET]["is_observed"]:
            self._refuse(f"does not observe its target: write pyro.sample({TARGET!r}, law, obs=y)")
        self._check_alone(given)
        self._check_rows(given, len(x))

    def has_spikes(self, x: Tensor) -> bool:
        """Whether one of its priors is a spike and slab."""
        nodes = self._trace(x).nodes.values()
        return any(n["type"] == "sample" and isinstance(base_prior(n["fn"]), SpikeSlab) for n in nodes)

    def _trace(self, *args: Tensor) -> poutine.Trace:
        try:
            with kept_rng(), torch.no_grad(), poutine.block():
                trace = poutine.trace(self).get_trace(*args)
                trace.compute_log_prob()
                return trace
        except (Exception, SystemExit) as error:
            file = Path(inspect.getsourcefile(inspect.unwrap(self.function)) or "")
            shapes = ", ".join(str(list(value.shape)) for value in args)
            raise UserError(f"{self.name} fails when called with {shapes}: {where(error, file)}") from error

    def _check_alone(self, trace: poutine.Trace) -> None:
        """That nothing but the target is observed; points, of pyro.deterministic, are."""
        for name, node in trace.nodes.items():
            if node["type"] != "sample" or not node["is_observed"] or name == TARGET:
                continue
            if not isinstance(elementwise(node["fn"]), dist.Delta):
                self._refuse(
                    f"observes {name!r} beside {TARGET!r}: one target is predicted, leave {name!r} out"
                )

    def _check_rows(self, trace: poutine.Trace, rows: int) -> None:
        frames = {frame.name for frame in trace.nodes[TARGET]["cond_indep_stack"] if frame.size == rows}
        shape = list(trace.nodes[TARGET]["fn"].batch_shape)
        if not frames or shape != [rows]:
            self._refuse(
                f"has {TARGET!r} of shape {shape}, not in a plate of the {rows} rows: write with "
                f"pyro.plate('data', len(x)) around it"
            )
        for name, node in trace.nodes.items():
            if node["type"] != "sample" or node["is_observed"] or site_is_subsample(node):
                continue
            if frames & {frame.name for frame in node["cond_indep_stack"]}:
                self._refuse(f"has a number {name!r} for every row: new rows would have none; marginalise it")

    def _refuse(self, why: str) -> None:
        raise UserError(f"{self.name} {why}")


class _Weighed(Messenger):
    """The observations count ``factor`` times."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def _pyro_sample(self, msg: dict) -> None:
        if msg["is_observed"]:
            msg["scale"] = msg["scale"] * self.factor
