"""What the registry says about a guide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from zoo.fitting.methods import Method
from zoo.models.entries import Card
from zoo.models.traits import Traits, Weights


def takes_all(traits: Traits) -> str:
    return ""


@dataclass(frozen=True)
class GuideEntry:
    """One guide.

    :ivar method: how it is fitted
    :ivar paper: key of the family that it came with (:mod:`zoo.papers`)
    :ivar model: name of the model that it came with
    :ivar code: where it is, for those who import it
    :ivar citation: its own, where that is not the family's
    :ivar needs: the kind of weights without which the guide makes no sense, or None
    :ivar refuses: ``traits of a model -> why it cannot be fitted``, empty when it can
    :ivar note: what a reader of its figures must know
    :ivar beside: guides that are graded whenever this one is
    :ivar called: other names of its rows in the experiments
    """

    name: str
    summary: str
    method: Method
    paper: str
    model: str
    code: str
    card: Card
    citation: str = ""
    needs: Weights | None = None
    refuses: Callable[[Traits], str] = takes_all
    note: str = ""
    beside: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
