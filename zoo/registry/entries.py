"""What the registry says about one model or guide, and what a user may choose about a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from zoo.fitting.methods import Method


@dataclass(frozen=True)
class ModelOptions:
    """What a user may choose about a model.

    :ivar widths: hidden units of each layer
    :ivar activation: ``relu``, ``leaky-relu`` or ``tanh``
    :ivar noise_scale: known noise on the standardised target, or None to infer it
    :ivar inclusion: prior inclusion probability of a spike-and-slab weight; None for the model's own
    """

    widths: tuple[int, ...] = (50,)
    activation: str = "relu"
    noise_scale: float | None = None
    inclusion: float | None = None

    def to_dict(self) -> dict:
        """JSON-safe."""
        return {**asdict(self), "widths": list(self.widths)}

    @classmethod
    def from_dict(cls, saved: dict) -> ModelOptions:
        """The inverse of :meth:`to_dict`."""
        return cls(**{**saved, "widths": tuple(saved["widths"])})


@dataclass(frozen=True)
class ModelEntry:
    """One model.

    :ivar build: ``(task, in_features, num_classes, options) -> model``
    :ivar references: the ground truths it has, the best first
    :ivar options: names of the command line's options that it takes
    :ivar substitutes: prior family a guide may need -> name of the model that has it in this one's place
    :ivar selects: whether its site ``w`` has a weight for every column of the data
    :ivar sees_images: whether its inputs have to be images
    """

    name: str
    summary: str
    build: Callable[[str, int, int, ModelOptions], Callable]
    tasks: tuple[str, ...]
    references: tuple[str, ...]
    priors: frozenset[str]
    options: tuple[str, ...]
    substitutes: dict[str, str] = field(default_factory=dict)
    selects: bool = False
    sees_images: bool = False

    def example(self, task: str, options: ModelOptions) -> Callable:
        """A small one, to ask questions that do not depend on the data."""
        return self.build(task, 64 if self.sees_images else 1, 2, options)


def takes_all(model: Callable) -> str:
    return ""


@dataclass(frozen=True)
class GuideEntry:
    """One guide.

    :ivar method: how it is fitted
    :ivar needs: the family of priors without which the guide makes no sense, or None
    :ivar refuses: ``model -> why it cannot be fitted``, empty when it can
    :ivar note: what a reader of its figures must know
    :ivar beside: guides that are graded whenever this one is
    """

    name: str
    summary: str
    method: Method
    needs: str | None = None
    refuses: Callable[[Callable], str] = takes_all
    note: str = ""
    beside: tuple[str, ...] = ()
