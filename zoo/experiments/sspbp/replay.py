"""The published program's own random numbers: its splits, its starting means and the order of its rows.

The program seeds numpy's legacy generator once and goes through networks, data sets and repetitions; splits,
starting means and orders all come from that one stream, and nothing else draws from it.  So the stream can be
drawn again, and each of the printed repetitions be fitted from where it started.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from data_loaders import Dataset, Standardizer, load
from data_loaders.splits import split_80_20
from guides import ProbabilisticBackpropagation
from zoo.errors import UserError
from zoo.experiments.engine.declaration import Cell
from zoo.experiments.splits import cut
from zoo.experiments.sspbp.networks import MESSAGES, figures, published_figures
from zoo.fitting.problem import Problem, prepare
from zoo.models.bnn import PBPNetwork

SEED = 0x79B7BFF4
WIDTHS = ((50,), (10, 10), (10,), (100,))
#: In the program's order: name, rows, inputs.  Energy has the heating load among the inputs there, and
#: precipitation is not reported: their numbers are drawn and not used.
SETS = (
    ("boston", 506, 13), ("concrete", 1030, 8), ("energy", 768, 9), ("kin8nm", 8192, 8),
    ("precipitation", 11_918, 2), ("naval", 11_934, 16), ("power_plant", 9568, 4), ("wine_red", 1599, 11),
    ("yacht", 308, 6),
)  # fmt: skip
REPETITIONS, EPOCHS, TEST_SHARE = 5, 40, 0.2
#: PBP as printed, but constant columns are columns of zeros, as everywhere else here.
ZERO_COLUMN = "pbp-zero-column"


class Repetition(NamedTuple):
    """Of one network on one data set.

    :ivar train: rows to train on, ascending; ``test`` likewise in the order drawn
    :ivar starts: method -> starting means by site, ``[out, inputs]``, and the order of rows ``[epochs, n]``
    """

    train: np.ndarray
    test: np.ndarray
    starts: Mapping[str, tuple[dict[str, np.ndarray], np.ndarray]]


def repetition(name: str, widths: tuple[int, ...], bias: bool, number: int) -> Repetition:
    """:raises UserError: for a repetition that the program does not have
    :raises KeyError: for another network
    """
    if number >= REPETITIONS:
        raise UserError(
            f"the published program has {REPETITIONS} repetitions: --trials {REPETITIONS} at most"
        )
    rows, inputs = next(size for found, *size in SETS if found == name)
    rng = np.random.RandomState()
    rng.set_state(_states(bias)[widths, name, number])
    return _draw(rng, (inputs, *widths, 1), rows, bias)


@functools.cache
def _states(bias: bool) -> dict[tuple, Any]:
    """State of the generator before every repetition, by network, data set and number."""
    rng, found = np.random.RandomState(SEED), {}
    for widths in WIDTHS:
        for name, rows, inputs in SETS:
            for number in range(REPETITIONS):
                found[widths, name, number] = rng.get_state()
                _draw(rng, (inputs, *widths, 1), rows, bias)
    return found


def _draw(rng: np.random.RandomState, units: tuple[int, ...], rows: int, bias: bool) -> Repetition:
    test = rng.permutation(rows)[: round(TEST_SHARE * rows)]
    train = np.setdiff1d(np.arange(rows), test)
    starts = {}
    for method in MESSAGES:
        means = dict(_means(rng, units, bias))
        starts[method] = means, np.stack([rng.permutation(len(train)) for _ in range(EPOCHS)])
    return Repetition(train, test, starts)


def _means(
    rng: np.random.RandomState, units: tuple[int, ...], bias: bool
) -> Iterator[tuple[str, np.ndarray]]:
    for i, (out, fan_in) in enumerate(zip(units[1:], units[:-1], strict=True), start=1):
        yield f"w{i}", 1.0 / np.sqrt(fan_in + bias) * rng.randn(out, fan_in + bias)  # to the last bit


def as_numpy_standardises(dataset: Dataset) -> Standardizer:
    """As the program does, whose constant columns are those with an sd of exactly 0.

    The mean of many equal numbers may be off by a rounding error, which is their sd then: a constant column
    of naval becomes a column of ones, another bias.
    """
    x, y = dataset.x_train, dataset.y_train
    sd = x.std(0)
    return Standardizer(x.mean(0), np.where(sd == 0, 1.0, sd), float(y.mean()), float(y.std()))


def replayed(cell: Cell) -> dict[str, float]:
    """RMSE and log likelihood of a printed repetition by the published evaluation; the setting is
    ``bias-10x10`` or ``free-10x10``, the trial the repetition, and the method may be ``ZERO_COLUMN``.
    """
    widths, bias = _network(cell)
    zero_column = cell.method == ZERO_COLUMN
    method = "pbp" if zero_column else cell.method
    found = repetition(cell.dataset, widths, bias, cell.trial)
    scale_of = Standardizer.of if zero_column else as_numpy_standardises
    problem = _problem(cell.dataset, found.train, found.test, scale_of)
    means, order = found.starts[method]
    guide = _guide(problem, method, widths, bias)
    epochs = cell.options["epochs"]
    guide.fit(*problem.train, epochs=epochs, order=order[:epochs], init_means=means)
    if bias or method == "pbp":
        return figures(guide, problem)
    published = published_figures(guide, problem)
    return {name.removesuffix("_published"): value for name, value in published.items()}


def taken_apart(cell: Cell) -> dict[str, float]:
    """The same of PBP where only the split is the printed one (method ``splits``), only starting means and
    orders are (``starts``), or nothing is (``neither``); the trials go round the printed repetitions.
    """
    widths, bias = _network(cell)
    found = repetition(cell.dataset, widths, bias, cell.trial % REPETITIONS)
    train, test = found.train, found.test
    if cell.method != "splits":
        train, test = split_80_20(len(train) + len(test), cell.trial)
    problem, epochs = _problem(cell.dataset, train, test), cell.options["epochs"]
    guide = _guide(problem, "pbp", widths, bias)
    if cell.method == "starts":
        means, order = found.starts["pbp"]
        guide.fit(*problem.train, epochs=epochs, order=order[:epochs], init_means=means)
    else:
        guide.fit(*problem.train, epochs=epochs, seed=cell.seed)
    return figures(guide, problem)


def _network(cell: Cell) -> tuple[tuple[int, ...], bool]:
    """Hidden units, and whether there are biases."""
    kind, _, units = cell.setting.partition("-")
    return tuple(map(int, units.split("x"))), kind == "bias"


def _problem(
    data: str,
    train: np.ndarray,
    test: np.ndarray,
    scale_of: Callable[[Dataset], Standardizer] = as_numpy_standardises,
) -> Problem:
    dataset = cut(load(data, protocol="whole"), train, test)
    return prepare(dataset, torch.float64, scale_of)


def _guide(
    problem: Problem, method: str, widths: tuple[int, ...], bias: bool
) -> ProbabilisticBackpropagation:
    return ProbabilisticBackpropagation(
        PBPNetwork(problem.x.shape[1], widths=widths, bias=bias), MESSAGES[method]
    )
