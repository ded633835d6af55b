"""Training of a model of growing graphs: Adam on the log-likelihood, best parameters by other graphs."""

from __future__ import annotations

import copy
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Protocol

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from data_loaders.graphs.edge_lists import EdgeList, from_networkx, has_times
from guides.core.svi import half_cosine
from zoo.errors import FailedError, UserError
from zoo.fitting.methods import UNWATCHED, Watch
from zoo.models.graphs.edge_batches import batches, in_batches
from zoo.models.graphs.edge_graph import EdgeGraphModel
from zoo.seeds import stable_seed

#: Graphs whose likelihood is taken together, where there is no gradient.
AT_ONCE = 64


class GrowthModel(Protocol):
    """A torch module with a likelihood of growing graphs.

    :ivar window: messages pass along the last so many edges only; None: along all
    :ivar steady: whether gradients pass a round of messages scaled down where they would grow
    """

    window: int | None
    steady: bool

    def log_prob_of_batch(self, graphs: Sequence[EdgeList]) -> Tensor:
        """``[n]``, nats."""
        ...


@dataclass(frozen=True)
class GraphTraining:
    """How to train.

    :ivar epochs: at most
    :ivar lr: first learning rate; falls to zero along a half cosine over all epochs
    :ivar batch: graphs at a time, fewer where memory would not do
    :ivar clip: largest norm of the gradient of the mean log-likelihood of an edge
    :ivar patience: epochs without a better validation log-likelihood after which it stops
    :ivar seed: of the order of batches
    """

    epochs: int = 60
    lr: float = 5e-3
    batch: int = 8
    clip: float = 1.0
    patience: int = 30
    seed: int = 0

    def __post_init__(self) -> None:
        counts = self.epochs, self.batch, self.patience
        if not all(isinstance(count, Integral) and count >= 1 for count in counts):
            raise UserError("epochs, graphs at a time and patience are whole and 1 or more")
        if not (0 <= self.lr < math.inf and self.clip > 0):
            raise UserError("a learning rate is finite and not negative, and a norm to clip at is positive")
        if not (isinstance(self.seed, Integral) and self.seed >= 0):
            raise UserError(f"a seed is a whole number and not negative, not {self.seed}")


@dataclass
class GraphFit:
    """What became of a training.

    :ivar training, validation: nats an edge of each epoch; lower is better
    :ivar gradient: largest norm of each epoch, before clipping
    :ivar skipped: steps that were not taken, their gradient not being finite
    :ivar best: epoch whose parameters were kept, from 1
    :ivar seconds: wall-clock time
    """

    training: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    gradient: list[float] = field(default_factory=list)
    skipped: int = 0
    best: int = 0
    seconds: float = 0.0

    @property
    def change(self) -> float:
        """Nats an edge that validation graphs still gained or lost over the last tenth of the epochs that
        were run, in which the learning rate is small unless training stopped early: near zero it does not
        tell that more epochs would not help.
        """
        tenth = max(1, len(self.validation) // 10)
        return self.validation[-1] - self.validation[-1 - tenth] if len(self.validation) > tenth else math.nan

    @property
    def ended(self) -> dict[str, float]:
        """:attr:`change` as a figure; none after a single epoch, which has nothing to change from."""
        return {} if math.isnan(self.change) else {"change": self.change}


def train(
    model: GrowthModel,
    training: Sequence[EdgeList],
    validation: Sequence[EdgeList],
    settings: GraphTraining = GraphTraining(),  # noqa: B008  (frozen)
    watch: Watch = UNWATCHED,
) -> GraphFit:
    """Leaves the model with the parameters of its best epoch.

    A step follows minus the log-likelihood of a batch over its number of edges.  Graphs of like length stand
    together in a batch, the same ones in every epoch, so that an edge of a short graph counts more than one
    of a long graph.

    A step whose gradient is not finite is left out, and from then on the model is ``steady``: through
    thousands of rounds of messages a gradient may overflow.

    :raises UserError: no graphs, or one that is too large
    :raises FailedError: a likelihood that is not finite, or an epoch without a gradient that is
    """
    if not training or not validation:
        raise UserError("training needs graphs, and others to validate")
    start, fit, best = time.perf_counter(), GraphFit(), math.inf
    list(batches(validation, AT_ONCE, model.window))  # those that are too large are told before an epoch
    groups = list(batches(training, settings.batch, model.window))
    optimiser = torch.optim.Adam(model.parameters(), settings.lr)
    steps = settings.epochs * len(groups)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda i: half_cosine(1.0, i, steps))
    order, kept, advance = random.Random(settings.seed), None, watch.start(settings.epochs)
    for epoch in range(1, settings.epochs + 1):
        order.shuffle(groups)
        total, norms = 0.0, []
        for group in groups:
            loss, norm = _step(model, [training[i] for i in group], optimiser, settings.clip)
            if not math.isfinite(loss):
                raise FailedError(f"the likelihood is not finite in epoch {epoch}: lower lr")
            schedule.step()
            total += loss
            norms.append(norm)
        finite = [norm for norm in norms if math.isfinite(norm)]
        if not finite:
            raise FailedError(f"no gradient of epoch {epoch} is finite")
        fit.training.append(total / sum(map(len, training)))
        fit.validation.append(nats_an_edge(model, validation))
        fit.gradient.append(max(finite))
        fit.skipped += len(norms) - len(finite)
        advance()
        if fit.validation[-1] < best:
            best, fit.best = fit.validation[-1], epoch
            kept = copy.deepcopy(model.state_dict())
        if epoch - fit.best >= settings.patience:
            break
    model.load_state_dict(kept)
    fit.seconds = time.perf_counter() - start
    return fit


def _step(
    model: GrowthModel, graphs: Sequence[EdgeList], optimiser: torch.optim.Optimizer, clip: float
) -> tuple[float, float]:
    """Minus the log-likelihood of a batch, nats, and the norm of the gradient for an edge before clipping; if
    that is not finite no parameter moves, and the model is steady from then on.
    """
    edges = sum(map(len, graphs))
    loss = -model.log_prob_of_batch(graphs).sum() / edges
    optimiser.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    if not norm.isfinite():
        model.steady = True
        optimiser.zero_grad()
    optimiser.step()
    return loss.item() * edges, norm.item()


@torch.no_grad()
def nats(model: GrowthModel, graphs: Sequence[EdgeList]) -> np.ndarray:
    """Minus the log-likelihood of every graph: ``[n]``."""
    return -in_batches(model.log_prob_of_batch, graphs, AT_ONCE, model.window).double().numpy()


def nats_an_edge(model: GrowthModel, graphs: Sequence[EdgeList]) -> float:
    """Minus the log-likelihood over the number of edges."""
    value = float(nats(model, graphs).sum() / sum(map(len, graphs)))
    if not math.isfinite(value):
        raise FailedError("the likelihood of the validation graphs is not finite: lower lr")
    return value


def median_gap(graphs: Sequence[EdgeList]) -> float:
    """The median of positive gaps between edges that follow one another; 1 where there is none.

    The unit of time of a model that weighs messages by the age of edges.
    """
    gaps = np.concatenate([np.diff(graph.times) for graph in graphs])
    return float(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 1.0


def fit_graphs(
    graphs: Sequence[EdgeList | nx.Graph],
    model: EdgeGraphModel | None = None,
    settings: GraphTraining = GraphTraining(),  # noqa: B008  (frozen)
    watch: Watch = UNWATCHED,
) -> tuple[EdgeGraphModel, GraphFit]:
    """A model trained on graphs of one's own, of which a tenth, one at least, validates.

    :param graphs: edge lists, or networkx graphs whose edges come by their attribute ``time``, else node by
        node and not as they were added (:func:`data_loaders.graphs.edge_lists.edge_list` keeps an order)
    :param model: an :class:`EdgeGraphModel` by default; its unit of time is set
    :raises UserError: fewer than two graphs, or networkx graphs of which some have times
    """
    found = [graph if isinstance(graph, EdgeList) else from_networkx(graph) for graph in graphs]
    timed = {has_times(graph) for graph in graphs if not isinstance(graph, EdgeList)}
    if len(timed) > 1:  # a unit of time would be that of some
        raise UserError("some of the graphs have edges with an attribute time, and others have not")
    if len(found) < 2:
        raise UserError(
            f"training needs graphs, and others to validate: two at least, not {len(found)} (a file "
            "tells them apart by its column graph)"
        )
    order = np.random.default_rng(settings.seed).permutation(len(found))
    held_out = max(1, len(found) // 10)
    model = EdgeGraphModel(seed=stable_seed("make", settings.seed)) if model is None else model
    model.unit.fill_(median_gap(found))
    parts = [found[i] for i in order[held_out:]], [found[i] for i in order[:held_out]]
    return model, train(model, *parts, settings, watch)
