"""A comparison before it is run: what is asked for, checked."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample

from data_loaders import describe, list_datasets
from guides.core.rng import kept_rng, seeded_rng
from guides.posterior.arviz_io import group_names, load_netcdf, save_netcdf, with_groups
from guides.posterior.draws import Posterior
from guides.posterior.files import json_safe
from zoo.budgets import Budget, budget_flags
from zoo.commands.options import check_names, check_seed, find_budget, model_options
from zoo.commands.own_models import check_own
from zoo.errors import UserError
from zoo.files.output import folder_versions
from zoo.fitting.devices import CPU, check_device
from zoo.fitting.problem import HOLDOUTS, Problem, load_problem
from zoo.models.entries import Options
from zoo.registry.queries import (
    ModelEntry,
    applicable,
    baselines,
    check_data,
    find_guide,
    find_model,
    reference_of,
    with_companions,
)
from zoo.seeds import stable_seed

#: ArviZ groups with a number for every draw and every row have at most this many, of evenly spaced draws; if
#: these would be fewer than the latter, the groups stay out of the .nc files.
LARGEST_GROUP, FEWEST_DRAWS = 5_000_000, 100
#: Latent numbers of a model for which NUTS runs without being asked for.
MOST_LATENT = 2000
#: The same of a model without a NumPyro twin: a step of Pyro's sampler takes milliseconds.
MOST_WITHOUT_TWIN = 100
#: Protocol of the split that nobody has to ask for.
STANDARD = HOLDOUTS[0.1]


@dataclass(frozen=True)
class Comparison:
    """A checked request: everything that can be refused has been.

    :ivar data: the name or the path that the user gave
    :ivar guides: those that were asked for, and those that stand beside them
    :ivar reference: ``nuts``, ``exact``, ``gibbs`` or ``none``
    :ivar remark: what the user should know about the request
    :ivar device: where guides are fitted that take steps; all else is done on the CPU
    :ivar fresh_reference: whether NUTS runs although the package has its draws; no other comparison for that
    """

    data: str
    problem: Problem
    entry: ModelEntry
    options: Options
    guides: tuple[str, ...]
    reference: str
    budget: Budget
    seed: int
    remark: str = ""
    device: str = CPU
    fresh_reference: bool = False

    def config(self) -> dict:
        """What the output folder belongs to, JSON-safe."""
        return {
            "command": "compare",
            "data": self.data,
            **self._rows(),
            "fingerprint": self.problem.fingerprint(),
            "model": self.entry.name,
            **({"model_file": dict(self.entry.file)} if self.entry.file else {}),
            "options": json_safe({**self.entry.options, **self.options}),
            "guides": list(self.guides),
            "reference": self.reference,
            "budget": asdict(self.budget),
            "seed": self.seed,
            **({"device": self.device} if self.device != CPU else {}),
        }

    def _rows(self) -> dict:
        """Which rows are fitted to which target; a fingerprint tells no reader."""
        dataset = self.problem.dataset
        rows: dict[str, Any] = {"split": dataset.split}
        if not self._usual_holdout():
            rows["protocol"] = dataset.protocol
        if self._is_own_file():
            rows["target"] = dataset.target_name
            if dataset.recipe:
                rows["table"] = dataset.recipe.to_dict()
        return rows

    def facts(self, out: Path, splits: int = 1, seeds: int = 1) -> list[str]:
        """How its results are made, a line each.

        :param splits: over how many from its own on it is repeated; so are ``seeds``
        """
        options = json_safe({**self.entry.options, **self.options})
        model = ", ".join(f"{name} {value}" for name, value in options.items() if value is not None)
        dataset = self.problem.dataset
        work = str(self.budget) if self.reference == "nuts" else self.budget.of_guides
        places = f"{_range('split', dataset.split, splits)}, {_range('seed', self.seed, seeds)}"
        fits = f"one fit of each guide, {places}" if splits == seeds == 1 else places
        return [
            *([f"made by: `{self._command(out, splits, seeds)}`"] if self._by_name() else []),
            f"data {self._data()}; model {self.entry.name}" + (f", {model}" if model else ""),
            f"reference {self.reference}; {work}; {fits}",
            ", ".join(f"{name} {number}" for name, number in folder_versions(out).items()),
        ]

    def _data(self) -> str:
        """``houses, target price, 20 % held out``; what is known of a data set by its name is left out."""
        dataset = self.problem.dataset
        words = [dataset.name]
        words += [f"target {dataset.target_name}"] if self._is_own_file() else []
        if self._is_own_file() or not self._usual_holdout():
            words.append(f"{100 * _share(dataset.protocol):g} % held out")
        return ", ".join(words)

    def _is_own_file(self) -> bool:
        """Whether the data are a file of the user's."""
        return self.data not in list_datasets()

    def _usual_holdout(self) -> bool:
        """Whether as many rows are held out as nobody has to ask for."""
        return self.problem.dataset.protocol == STANDARD or (
            not self._is_own_file() and describe(self.data).whole
        )

    def _by_name(self) -> bool:
        """Whether names alone ask for it: no file of the user's, no option."""
        return not (self._is_own_file() or self.options or self.entry.file)

    def _command(self, out: Path, splits: int, seeds: int) -> str:
        words = ["zoo", "compare", self.data, "--model", self.entry.name, "--guides", ",".join(self.guides)]
        words += ["--reference", self.reference, *budget_flags(self.budget)]
        words += ["--split", str(self.problem.dataset.split)] if self.problem.dataset.split else []
        share = _share(self.problem.dataset.protocol)
        words += [] if self._usual_holdout() else ["--holdout", f"{share:g}"]
        words += ["--seed", str(self.seed)] if self.seed else []
        words += ["--splits", str(splits)] if splits > 1 else []
        words += ["--seeds", str(seeds)] if seeds > 1 else []
        words += ["--device", self.device] if self.device != CPU else []
        words += ["--fresh-reference"] if self.fresh_reference else []
        return shlex.join([*words, "--out", str(out)])

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know: oddities of the data, and the remark."""
        return self.problem.dataset.oddities + ((self.remark,) if self.remark else ())

    def fitted_model(self, guide: str) -> tuple[ModelEntry, str]:
        """The model that a guide fits here, and the note in its row."""
        return applicable(find_guide(guide), self.entry, self.problem.task, self.options)

    def build(self, entry: ModelEntry) -> Callable:
        """The Pyro model of an entry for this data set."""
        return entry.build(self.problem.shape, self.options)

    def save(self, posterior: Posterior, path: Path) -> None:
        """Writes a posterior as netCDF, with the ArviZ groups that :meth:`_with_groups` adds.

        :raises OSError: when it cannot be written
        """
        save_netcdf(self._with_groups(posterior.to_arviz(), posterior, path.stem), path)

    def complete(self, path: Path, posterior: Posterior) -> None:
        """Gives a file of draws that was written by others the groups of :meth:`save`, unless it has them.

        :param posterior: the draws in the file
        """
        idata = load_netcdf(path)
        if "log_likelihood" not in group_names(idata):
            save_netcdf(self._with_groups(idata, posterior, path.stem), path)

    def _with_groups(self, idata: Any, posterior: Posterior, name: str) -> Any:
        """An ArviZ object with ``log_likelihood``, ``posterior_predictive``, ``observed_data``, ``prior`` and
        ``prior_predictive`` of the training data, except where they are many, or a draw is not finite.

        :param name: of what was drawn from: its groups have random numbers of their own
        """
        problem, sites = self.problem, posterior.sites
        most = LARGEST_GROUP // problem.size
        if most < FEWEST_DRAWS:
            return idata
        if not all(value.isfinite().all() for value in sites.values()):
            return idata
        step = -(-len(posterior) // most)
        thinned = replace(posterior, sites={name: value[:, ::step] for name, value in sites.items()})
        numbers = sum(value[0, 0].numel() for value in sites.values())
        prior = min(self.budget.draws, max(1, LARGEST_GROUP // max(numbers, problem.size)))
        with seeded_rng(stable_seed("groups", self.seed, name)):
            groups = thinned.groups(problem.x, observed_data={"y": problem.y}, prior=prior)
        priors = {name: groups.pop(name) for name in ("prior", "prior_predictive")}
        draws = np.arange(next(iter(sites.values())).shape[1])[::step]
        return with_groups(with_groups(idata, groups, coords={"draw": draws}), priors)


def _share(protocol: str) -> float:
    """Of the rows that are held out."""
    return next(share for share, name in HOLDOUTS.items() if name == protocol)


def _range(what: str, first: int, count: int) -> str:
    return f"{what} {first}" if count == 1 else f"{what}s {first} to {first + count - 1}"


def ask(
    data: str,
    *,
    model: str = "bnn",
    guides: Sequence[str] | None = None,
    reference: str | None = None,
    budget: str = "quick",
    steps: int | None = None,
    seed: int = 0,
    split: int = 0,
    target: str | None = None,
    task: str | None = None,
    noise: float | None = None,
    widths: Sequence[int] | None = None,
    activation: str | None = None,
    inclusion: float | None = None,
    weight_scale: float | Sequence[float] | None = None,
    bias_scale: float | Sequence[float] | None = None,
    device: str = CPU,
    fresh_reference: bool = False,
    **columns: Any,
) -> Comparison:
    """The request of one call, its data loaded, and everything checked; :func:`zoo.compare` says what the
    arguments are.

    :param columns: ``holdout`` and ``table`` of :func:`zoo.fitting.problem.load_problem`
    :raises UserError: for what cannot be done
    :raises DataError: for data that are not there, or cannot be read
    """
    check_seed(seed)
    problem = load_problem(
        data, split=split, target=target, task=task, dtype=find_model(model).dtype, **columns
    )
    names = baselines(find_model(model)) if guides is None else guides
    given = {"widths": widths, "activation": activation, "noise_scale": noise, "inclusion": inclusion}
    given |= {"weight_scale": weight_scale, "bias_scale": bias_scale}
    return plan(
        data,
        problem,
        model=model,
        guides=names,
        reference=reference,
        budget=budget,
        steps=steps,
        seed=seed,
        options=model_options(problem, model, names, given),
        device=device,
        fresh_reference=fresh_reference,
    )


def plan(
    data: str,
    problem: Problem,
    *,
    model: str,
    guides: Sequence[str],
    reference: str | None,
    budget: str,
    seed: int,
    options: Options,
    steps: int | None = None,
    device: str = CPU,
    fresh_reference: bool = False,
) -> Comparison:
    """Checks a request before anything is written.

    :param reference: ``nuts``, ``exact``, ``gibbs``, ``none``, or None for the best that can be had
    :param fresh_reference: NUTS runs although the package has its draws
    :raises UserError: for an unknown name, or a guide, model, reference and data that do not go together
    """
    entry = find_model(model)
    check_data(entry, problem.dataset, data)
    check_device(device)
    check_own(entry, problem, guides)
    for name in guides:
        applicable(find_guide(name), entry, problem.task, options)
    if guides:
        check_names("guides", guides)
    work = find_budget(budget, steps)
    kind, remark = reference_of(entry, reference, problem.dataset.num_features), ""
    if kind == "nuts" and reference is None:
        kind, remark = _nuts_or_none(entry, problem, options)
    if not guides and kind == "none":
        raise UserError("nothing to do: name a guide (--guides) or a reference (--reference)")
    rows = tuple(with_companions(guides))
    comparison = Comparison(
        data, problem, entry, options, rows, kind, work, seed, remark, device, fresh_reference
    )
    comparison.build(entry)  # refuses options that the model cannot have
    return comparison


def _nuts_or_none(entry: ModelEntry, problem: Problem, options: Options) -> tuple[str, str]:
    """NUTS where nobody has asked for it, unless it would take hours; then none, and a remark."""
    model = entry.build(problem.shape, options)
    with kept_rng(), torch.no_grad():
        nodes = poutine.trace(model).get_trace(problem.x[:1]).nodes.values()
    latent = [node for node in nodes if node["type"] == "sample" and not node["is_observed"]]
    latent = [node for node in latent if node["name"] != "y" and not site_is_subsample(node)]
    count = sum(node["value"].numel() for node in latent)
    most = MOST_WITHOUT_TWIN if getattr(model, "twin", None) is None else MOST_LATENT
    if count <= most:
        return "nuts", ""
    return "none", (
        f"no reference: NUTS over {count} numbers (more than {most}) would take hours; "
        "--reference nuts insists"
    )
