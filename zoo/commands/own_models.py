"""Models of one's own: tried on the data before the work starts, and found again by their fits."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from zoo.errors import UserError, one_line
from zoo.fitting.problem import Problem
from zoo.models.own_files import file_checksum, own_entry
from zoo.models.own_model import OwnModel
from zoo.registry.queries import GuideEntry, ModelEntry, find_guide, find_model


def check_own(entry: ModelEntry, problem: Problem, guides: Sequence[str], train: tuple | None = None) -> None:
    """Runs a model of one's own, and takes one step of each guide on it; does nothing for other models.

    :param train: the training rows, where they are to be fitted
    :raises UserError: for a model that fails, or a guide that cannot fit it
    """
    if not entry.file:
        return
    model = entry.build(problem.shape)
    train = problem.train if train is None else train
    model.check(*train, problem.task)
    for guide in map(find_guide, guides):
        reason = _try(guide, model, train)
        if reason:
            raise UserError(f"guide {guide.name!r} does not apply to model {entry.name!r}: {reason}")


def _try(guide: GuideEntry, model: OwnModel, train: tuple) -> str:
    """Why a guide cannot fit a model; empty when it has taken a step and drawn."""
    if guide.needs == "spike-slab" and not model.has_spikes(train[0]):
        return "it needs a spike-and-slab prior (guides.SpikeSlab), and none of its sites has one"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            settings = guide.method.settings(len(train[0]), 0, steps=1)
            guide.method.fit(model, train, settings).draws(1, 0)
    except AttributeError:
        return "it asks more of a model than that it is called with x and y"
    except Exception as error:  # of whatever kind: the guide was not written for this model
        return one_line(str(error)) or type(error).__name__
    return ""


def kept_model(about: Mapping, folder: Path) -> ModelEntry:
    """The model of a fit, from what its file is about.

    :raises UserError: for a model of one's own whose file has changed since
    """
    kept = about.get("model_file")
    if kept is None:
        return find_model(about["model"])
    if file_checksum(Path(kept["path"])) != kept["sha256"]:
        raise UserError(
            f"{kept['path']} has changed since the fit in {folder}: bring the old file back, or fit again"
        )
    return own_entry(f"{kept['path']}:{about['model'].rpartition(':')[2]}")
