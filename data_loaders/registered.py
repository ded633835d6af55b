"""Names with an entry each: those of this package, and those that other packages register by entry points.

    [options.entry_points]
    posterior_zoo.guides =
        my-guide = my_package.zoo:MY_GUIDE

The groups are `posterior_zoo.models`, `.guides`, `.datasets` and `.experiments`; the name of an entry point
is that of the entry it leads to. Other packages are imported when a name is looked up that is not ours, or
all names are. A name of ours, or of a package before in the alphabet, is not replaced. What cannot be used is
left out, and a line of the log says which package it is from.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Generic, TypeVar

from data_loaders.errors import short_reason

if TYPE_CHECKING:  # slow to import
    from importlib.metadata import EntryPoint

E = TypeVar("E")
log = logging.getLogger("posterior_zoo")


class Registered(Generic[E]):
    """What other packages register in one group.

    `group` is "guides", say, and `kind` the class of an entry.
    """

    def __init__(self, group: str, kind: type[E]) -> None:
        self.group, self.kind = group, kind
        self._found: dict[str, tuple[E, str]] | None = None

    def entries(self, taken: Collection[str]) -> dict[str, E]:
        """Name to entry; names that are taken, and what cannot be used, are told and left out, once."""
        if self._found is None:
            self._found = {}  # what is imported now may look here
            self._load(taken, self._found)
        return {name: entry for name, (entry, _) in self._found.items()}

    def package(self, name: str) -> str:
        """Name and version of the package that an entry is from; nothing where it is none of these."""
        known = self._found or {}
        return known[name][1] if name in known else ""

    def _load(self, taken: Collection[str], found: dict[str, tuple[E, str]]) -> None:
        from importlib.metadata import entry_points

        points = entry_points(group=f"posterior_zoo.{self.group}")
        found_in = [(point.dist.name, point.dist.version, point) for point in points if point.dist]
        for name, version, point in sorted(found_in, key=lambda found: (found[0], found[2].name)):
            package = f"{name} {version}"
            owner = "posterior-zoo" if point.name in taken else self.package(point.name)
            entry, problem = (None, f"{owner} has that name") if owner else self._entry(point)
            if entry is None:
                what = f"{self.group[:-1]} {point.name!r}"
                log.warning("zoo: package %s: %s is left out: %s", package, what, problem)
            else:
                found[point.name] = entry, package

    def _entry(self, point: EntryPoint) -> tuple[E | None, str]:
        """The entry, or why it is none."""
        try:
            entry = point.load()
        except (Exception, SystemExit) as error:  # whatever a package does when it is imported
            return None, short_reason(error)
        if not isinstance(entry, self.kind):
            return None, f"it is of type {type(entry).__name__}, not {self.kind.__name__}"
        called = getattr(entry, "name", "")
        return (entry, "") if called == point.name else (None, f"its entry is called {called!r}")


class Catalogue(Mapping[str, E]):
    """Name to entry, ours first; `ours` are those of this package."""

    def __init__(self, group: str, kind: type[E], ours: dict[str, E]) -> None:
        self.ours = ours
        self._others = Registered(group, kind)

    def __getitem__(self, name: str) -> E:
        return self.ours[name] if name in self.ours else self._others.entries(self.ours)[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.ours
        yield from self._others.entries(self.ours)

    def __len__(self) -> int:
        return len(self.ours) + len(self._others.entries(self.ours))

    def package(self, name: str) -> str:
        """Name and version of the package that has registered an entry; nothing for one of ours."""
        return "" if name in self.ours or name not in self else self._others.package(name)
