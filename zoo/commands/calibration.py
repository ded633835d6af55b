"""A calibration before it is run: what is asked for, checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from guides.posterior.files import json_safe
from zoo.commands.options import check_counts, check_names, check_seed
from zoo.commands.simulation import BOUND_CHANGE, CONVERGED, build, quantity_names
from zoo.errors import UserError, unknown
from zoo.evaluation.calibration import MOST_QUANTITIES
from zoo.experiments.engine.declaration import Cell
from zoo.fitting.devices import CPU, check_device
from zoo.fitting.samplers import CHAINS, ITERATIONS, samplers
from zoo.models.entries import ModelEntry
from zoo.models.options import check_values
from zoo.registry.queries import GUIDES, applicable, check_options, find_guide, find_model, flag

#: Sampler -> what it samples.
SAMPLERS = {
    "exact": "linear regression of known noise (--widths 0 --noise 1) and variable selection of few columns",
    "nuts": "models without spikes",
    "gibbs": "logistic variable selection",
}
CHAINED = {"nuts", "gibbs"}
#: Word for every guide and sampler that applies.
ALL = "all"


@dataclass(frozen=True)
class Calibration:
    """A checked request.

    :ivar methods: names of guides and samplers
    :ivar simulations: of each
    :ivar options: all that a simulation depends on beside model, method, seed and number; JSON-safe
    """

    entry: ModelEntry
    methods: tuple[str, ...]
    simulations: int
    seed: int
    options: dict[str, Any]

    @property
    def model(self) -> Callable:
        return build(self.entry.name, self.options)

    @property
    def quantities(self) -> list[str]:
        return quantity_names(self.model, self.options, self.seed)

    @property
    def metrics(self) -> tuple[str, ...]:
        """What a simulation may measure."""
        return (*self.quantities, CONVERGED, BOUND_CHANGE)

    def cell(self, method: str, trial: int) -> Cell:
        return Cell("calibrate", self.entry.name, method, "default", trial, self.seed, self.options)

    def cells(self) -> list[Cell]:
        """In the order of work: the first of every method first, so that mistakes show early."""
        return [self.cell(name, trial) for trial in range(self.simulations) for name in self.methods]

    def config(self) -> dict:
        """What the output folder belongs to; more methods and simulations add to it."""
        return {"command": "calibrate", "model": self.entry.name, "seed": self.seed, **self.options}


def ask(
    model: str = "bnn",
    guides: Sequence[str] = ("mean-field",),
    *,
    simulations: int = 100,
    draws: int = 99,
    rows: int = 20,
    columns: int = 2,
    correlation: float = 0.0,
    points: int = 3,
    steps: int = 1000,
    seed: int = 0,
    device: str = CPU,
    task: str | None = None,
    noise: float | None = None,
    widths: Sequence[int] | None = None,
    activation: str | None = None,
    inclusion: float | None = None,
    weight_scale: float | Sequence[float] | None = None,
    bias_scale: float | Sequence[float] | None = None,
) -> Calibration:
    """The request of one call, checked; they are the options of the command.

    :param guides: names of guides and samplers, or ``["all"]``
    :param simulations: data sets
    :param draws: of each posterior, among which the truth has a rank
    :param rows: of a data set; ``columns`` are standard normal, every pair with this ``correlation``
    :param points: test points of the function
    :param steps: of the optimiser, a fit
    :param device: where they are taken
    :param noise: fixes the noise sd
    :param widths: hidden units of each layer; ``(0,)`` is no hidden layer

    :raises UserError: for what cannot be done
    """
    check_seed(seed)
    check_device(device)
    entry = find_model(model)
    counts = {"simulations": simulations, "draws": draws, "rows": rows, "columns": columns}
    check_counts(**counts, points=points, steps=steps)
    least = -1 / (columns - 1) if columns > 1 else -1.0
    if not least < correlation < 1:
        raise UserError(f"--correlation of {columns} columns must lie between {least:g} and 1")
    task = entry.tasks[0] if task is None else task
    _check_task(entry, model, task)
    given = {"widths": widths, "activation": activation, "noise_scale": noise, "inclusion": inclusion}
    given |= {"weight_scale": weight_scale, "bias_scale": bias_scale}
    chosen = _chosen(entry, task, given)
    design = {"rows": rows, "columns": columns, "correlation": correlation, "points": points}
    options = {"task": task, "options": json_safe(chosen), **design, "draws": draws, "steps": steps}
    if device != CPU:  # another device draws other random numbers
        options["device"] = device
    methods = _methods(entry, guides, options)
    _check_chains(methods, draws)
    found = Calibration(entry, methods, simulations, seed, options)
    if len(found.quantities) > MOST_QUANTITIES:
        raise UserError(
            f"{len(found.quantities)} quantities are more than can be judged together ({MOST_QUANTITIES}): "
            "lower --points or --columns"
        )
    return found


def _check_task(entry: ModelEntry, model: str, task: str) -> None:
    """Calibrated is a regression, or a classification of two classes, of rows."""
    if task in entry.tasks and task != "multiclass" and entry.traits().inputs == "rows":
        return
    possible = [name for name in entry.tasks if name != "multiclass"]
    if entry.file:
        raise UserError(f"{model} is a model of your own, and these are not calibrated: zoo list names ours")
    if entry.traits().inputs != "rows" or not possible:
        raise UserError(f"model {model!r} does not take rows with a number or a class of two as target")
    raise UserError(f"model {model!r} is calibrated for --task {' or '.join(possible)}, not {task!r}")


def _chosen(entry: ModelEntry, task: str, given: dict[str, Any]) -> dict[str, Any]:
    """Options of the model that were given; widths of 0 are no hidden layer."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if "noise_scale" in chosen and task != "regression":
        raise UserError(f"--noise is for regression only, not for {task}")
    none = list(chosen.get("widths", ())) == [0]
    check_values({name: value for name, value in chosen.items() if not (none and name == "widths")}, flag)
    check_options(entry, [], chosen)
    if "widths" in chosen:
        chosen["widths"] = () if none else tuple(chosen["widths"])
    return chosen


def _methods(entry: ModelEntry, names: Sequence[str], options: dict[str, Any]) -> tuple[str, ...]:
    sampled = samplers(build(entry.name, options))
    if list(names) == [ALL]:
        return (*sampled, *(name for name in GUIDES if _applies(name, entry, options)))
    check_names("guide", names)
    for name in names:
        if name in SAMPLERS and name not in sampled:
            having = ", ".join(sampled) or "none"
            raise UserError(
                f"{name!r} does not sample model {entry.name!r} with these options: it is for "
                f"{SAMPLERS[name]}; the model has: {having}"
            )
        if name not in SAMPLERS:
            if name not in GUIDES:
                raise unknown("guide or sampler", name, (*SAMPLERS, *GUIDES))
            _check_guide(name, entry, options)
    return tuple(names)


def _check_chains(methods: Sequence[str], draws: int) -> None:
    """Chains have no more draws than iterations."""
    most = CHAINS * ITERATIONS
    for name in set(methods) & CHAINED:
        if draws > most:
            raise UserError(f"--draws {draws} are more than the {most} that the chains of {name!r} have")


def _applies(name: str, entry: ModelEntry, options: dict[str, Any]) -> bool:
    with suppress(UserError):
        _check_guide(name, entry, options)
        return True
    return False


def _check_guide(name: str, entry: ModelEntry, options: dict[str, Any]) -> None:
    """:raises UserError: for a guide that does not fit this very model: the truth would be of another"""
    fitted, _ = applicable(find_guide(name), entry, options["task"], options["options"])
    if fitted is not entry:
        raise UserError(
            f"guide {name!r} fits {fitted.name} in place of {entry.name}: use --model {fitted.name}"
        )
