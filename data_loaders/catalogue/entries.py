"""The form in which the catalogue holds its facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from data_loaders.records import Task, Whole

_SPLIT = ("standard", "80/20", "whole")
_WHOLE = ("standard", "whole")


@dataclass(frozen=True)
class Entry:
    """One set of the catalogue.

    `family` names the module that assembles it, `file` its place in a ZOO_DATA folder and `sha256` that
    file's digest. `addresses` are the original raw files in the order the parser `form` takes them (empty: no
    public plain file is known, so `source` says where the set comes from) and `content` is the digest of
    their parsed numbers. `splits` counts the standard splits; 1 with `whole` set means that all rows train,
    with `official` that the set comes with a split of its own. `image_shape` is (height, width) of images;
    inputs that are `prescaled` are not standardised.
    The family "images" differs: `file` is a pattern and `addresses` are folders, each with all the files.
    A set that another package registers (:mod:`data_loaders.registered`) has a function `read` that gives all
    its rows, in raw units; `family` is then any text.
    """

    name: str
    family: str
    task: Task
    rows: int
    features: int
    target: str
    licence: str
    source: str
    feature_names: tuple[str, ...] = ()
    splits: int = 1
    whole: bool = False
    official: bool = False
    file: str | None = None
    sha256: str = ""
    addresses: tuple[str, ...] = ()
    form: str = ""
    content: str = ""
    oddities: tuple[str, ...] = ()
    image_shape: tuple[int, int] | None = None
    prescaled: bool = False
    read: Callable[[], Whole] | None = None

    @property
    def protocols(self) -> tuple[str, ...]:
        """The protocols under which the set can be loaded."""
        return _WHOLE if self.whole or self.official else _SPLIT
