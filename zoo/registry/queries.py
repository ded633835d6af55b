"""Which guide applies to which model, which ground truth a model has, and what may be chosen about them.

Imports nothing slow by itself: the lists ask here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, get_args

from zoo.budgets import BASELINES, REFERENCES
from zoo.errors import UserError, unknown
from zoo.models.catalogue import MODELS, find_model
from zoo.models.entries import NO_OPTIONS, ModelEntry, Options
from zoo.models.traits import Activation
from zoo.registry.entries import GuideEntry
from zoo.registry.guides import GUIDES

if TYPE_CHECKING:
    from data_loaders import Dataset

__all__ = [
    "GUIDES",
    "MODELS",
    "GuideEntry",
    "ModelEntry",
    "applicable",
    "baselines",
    "check_data",
    "check_fit_options",
    "check_options",
    "find_guide",
    "find_model",
    "flag",
    "kinds_of_weights",
    "limits",
    "reference_of",
    "where",
    "with_companions",
]

#: Columns of data that are picks of ends of edges.
PICKS = ("ends", "nodes", "appearances")
#: Kinds of weights in words.
KINDS = {
    "gaussian": "Gaussian",
    "spike-slab": "spike-and-slab",
    "hierarchical": "hierarchical",
    "none": "no",
    "own": "own",
}
#: Options of models that have another name on the command line, where they are in other units.
FLAGS = {"noise_scale": "--noise"}


def find_guide(name: str) -> GuideEntry:
    if name not in GUIDES:
        raise unknown("guide", name, GUIDES)
    return GUIDES[name]


def applicable(
    guide: GuideEntry, model: ModelEntry, task: str = "regression", options: Options = NO_OPTIONS
) -> tuple[ModelEntry, str]:
    """The model that a guide fits when asked for ``model``, and what a reader of its figures must know.

    :raises UserError: when the guide cannot be used there
    """
    entry, remark = _with_prior(guide, model)
    reason = guide.refuses(entry.traits(task, options))
    if reason:
        raise UserError(f"guide {guide.name!r} does not apply to model {model.name!r}: {reason}")
    return entry, "; ".join(filter(None, (remark, guide.note)))


def _with_prior(guide: GuideEntry, model: ModelEntry) -> tuple[ModelEntry, str]:
    """``model``, or the one in its place that has the prior that the guide needs, and a remark then."""
    if guide.needs in (None, model.traits().weights) or model.file:
        return model, ""
    if guide.needs in model.substitutes:
        other = MODELS[model.substitutes[guide.needs]]
        return other, f"fits {other.name}: the guide needs a {KINDS[guide.needs]} prior"
    having = [m.name for m in MODELS.values() if m.traits().weights == guide.needs]
    raise UserError(
        f"guide {guide.name!r} does not apply to model {model.name!r}: it needs {KINDS[guide.needs]} "
        f"weights; models that have them: {', '.join(having)}"
    )


def limits(guide: GuideEntry, model: ModelEntry) -> str | None:
    """Within which a guide applies to a model: another one that it fits instead, tasks and activations where
    some are refused (``as spike-slab-bnn``; ``regression; relu, leaky-relu``); None when all are.
    """
    activations = get_args(Activation) if "activation" in model.options else ("relu",)
    fits: dict[tuple[str, str], ModelEntry] = {}
    for choice in itertools.product(model.tasks, activations):
        with suppress(UserError):
            fits[choice], _ = applicable(guide, model, choice[0], {"activation": choice[1]})
    if not fits:
        return None
    fitted = next(iter(fits.values()))
    remarks = [] if fitted is model else [f"as {fitted.name}"]
    for place, choices in enumerate((model.tasks, activations)):
        accepted = [name for name in choices if any(choice[place] == name for choice in fits)]
        if len(accepted) < len(choices):
            remarks.append(", ".join(accepted))
    return "; ".join(remarks)


def where(guide: GuideEntry, model: ModelEntry) -> str:
    """A model as ``zoo show`` tells it for a guide, ``bnn (as spike-slab-bnn)``; empty if refused."""
    remarks = limits(guide, model)
    if remarks is None:
        return ""
    return f"{model.name} ({remarks})" if remarks else model.name


def kinds_of_weights(guide: GuideEntry) -> str:
    """Those of the models that a guide fits as they are: ``any``, or ``gaussian, hierarchical``."""
    kinds = {model.traits().weights for model in MODELS.values()}
    remarks = {model.name: limits(guide, model) for model in MODELS.values()}
    fitted = {
        MODELS[name].traits().weights
        for name, remark in remarks.items()
        if remark is not None and not remark.startswith("as ")
    }
    return "any" if fitted == kinds else ", ".join(kind for kind in KINDS if kind in fitted)


def with_companions(names: Sequence[str]) -> list[str]:
    """Names of guides, each followed by those that are graded beside it and are not named themselves."""
    found: list[str] = []
    for name in names:
        found += [name, *(other for other in find_guide(name).beside if other not in names)]
    return found


def baselines(model: ModelEntry) -> list[str]:
    """Names of the guides to grade when none are named: those of the baselines that apply.  Of the priors of
    somebody's own model nothing is known yet.
    """
    names = []
    for name in BASELINES:
        if model.file and find_guide(name).needs:
            continue
        with suppress(UserError):
            applicable(find_guide(name), model)
            names.append(name)
    return names


def check_data(model: ModelEntry, dataset: Dataset, data: str) -> None:
    """:raises UserError: when a model has no likelihood for the task of a data set, or sees images only"""
    if dataset.task not in model.tasks:
        raise UserError(f"model {model.name!r} is for {', '.join(model.tasks)}; {data} is {dataset.task}")
    if model.traits().inputs == "images" and dataset.image_shape is None:
        raise UserError(f"model {model.name!r} is for images, and {data} has none: its rows are no pictures")
    if (model.traits().inputs == "picks") != (dataset.feature_names == PICKS):
        raise UserError(f"{data} is no data for model {model.name!r}: hollywood and its picks go together")


def flag(option: str) -> str:
    """An option of a model as the command line calls it."""
    return FLAGS.get(option) or f"--{option.replace('_', '-')}"


def check_options(model: ModelEntry, guides: Iterable[GuideEntry], given: Iterable[str]) -> None:
    """:raises UserError: for an option that neither the model nor one that a guide fits in its place takes"""
    taken = {*model.options, *(option for guide in guides for option in _with_prior(guide, model)[0].options)}
    for option in given:
        if option not in taken:
            has = ", ".join(map(flag, model.options)) or "none of these options"
            raise UserError(f"{flag(option)} does not apply to model {model.name!r}, which takes {has}")


def check_fit_options(guide: GuideEntry, given: Iterable[str]) -> None:
    """:raises UserError: for an option of ``zoo fit`` that changes nothing for this guide"""
    for option in given:
        if option not in guide.method.takes:
            has = ", ".join(f"--{name}" for name in guide.method.takes) or "none of these options"
            raise UserError(f"--{option} does not apply to guide {guide.name!r}, which takes {has}")


def reference_of(model: ModelEntry, wanted: str | None, columns: int = 1) -> str:
    """The reference to compute: ``wanted``, or the best that the model has for data of so many columns, or
    ``none``.

    :raises UserError: for one that the model does not have, or not for so many columns
    """
    from guides.truth.subsets import MAX_COLUMNS

    if wanted == "none":
        return wanted
    possible = [kind for kind in model.references if kind != "exact" or columns <= MAX_COLUMNS]
    instead = f"use --reference {possible[0] if possible else 'none'}"
    if wanted is not None and wanted not in model.references:
        if wanted not in REFERENCES:
            raise unknown("reference", wanted, (*REFERENCES, "none"))
        raise UserError(f"model {model.name!r} has no {wanted!r} reference ({_why_not(wanted)}); {instead}")
    if wanted in possible or (wanted is None and possible):
        return wanted or possible[0]
    if not model.references:
        return "none"
    raise UserError(
        f"the data have {columns} columns: 2^p models are enumerated for p <= {MAX_COLUMNS} only; {instead}"
    )


def _why_not(reference: str) -> str:
    """Of a reference that a model does not have."""
    return {
        "nuts": "its inclusion indicators are discrete, or it has no NumPyro twin",
        "exact": "it has no closed form",
        "gibbs": "it is no logistic regression with spikes and slabs",
    }[reference]
