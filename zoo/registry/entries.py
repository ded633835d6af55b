"""What the registry says about a guide, which is imported when it is to be fitted, and not before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from zoo.models.entries import Card
from zoo.models.traits import Traits, Weights

if TYPE_CHECKING:  # slow to import
    from zoo.fitting.methods import Method


def takes_all(traits: Traits) -> str:
    return ""


@dataclass(frozen=True)
class GuideEntry:
    """One guide.

    :ivar make: how it is fitted: imports the guide and makes its method
    :ivar paper: key of the family that it came with (:mod:`zoo.papers`)
    :ivar model: name of the model that it came with, or of one to show it on if its family has none
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
    make: Callable[[], Method]
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

    @cached_property
    def method(self) -> Method:
        """How it is fitted."""
        return self.make()
