"""The rooms of the house: imports go one way, rooms of methods are siblings, nothing goes in a circle.

Every import statement counts, those inside functions and those for type checkers too.
"""

from __future__ import annotations

import ast
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).parents[1]
PACKAGES = ("data_loaders", "guides", "zoo")

#: What the methods of inference stand on; they do not import each other.
GROUND = {"guides.core", "guides.flows", "guides.posterior"}
METHODS = {f"guides.{room}" for room in ("variational", "message_passing", "truth", "implicit", "bootstrap")}
#: What everything in ``zoo`` may import.
BASE = {"guides", *GROUND, "data_loaders", "zoo", "zoo.errors", "zoo.budgets", "zoo.papers", "zoo.version"}
FITTED = {*BASE, "zoo.models", "zoo.files", "zoo.evaluation"}
#: Room -> rooms that its modules may import beside their own.
MAY_IMPORT = {
    "data_loaders": set(),
    "guides.core": set(),
    "guides.flows": {"guides.core"},
    "guides.posterior": {"guides.core"},
    **dict.fromkeys(METHODS, GROUND),
    "zoo.models": BASE,
    "zoo.files": BASE,
    "zoo.evaluation": {*BASE, "zoo.files"},
    "zoo.fitting": {*FITTED, *METHODS},
    "zoo.registry": {*FITTED, *METHODS, "zoo.fitting"},
    "zoo.commands": {*FITTED, *METHODS, "zoo.fitting", "zoo.registry"},
    "zoo.experiments": {*FITTED, *METHODS, "zoo.fitting"},
    "zoo.cli": {*FITTED, "zoo.fitting", "zoo.registry", "zoo.commands", "zoo.experiments"},
}
#: The public faces import from everywhere below them.
FACES = {"guides", "zoo", "zoo.errors", "zoo.budgets", "zoo.papers", "zoo.version"}


def modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(path: Path) -> set[str]:
    """The modules of this project that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.update(
                name if (name := f"{node.module}.{alias.name}") in MODULES else node.module
                for alias in node.names
            )
    return {name for name in found if name in MODULES}


def room(module: str) -> str:
    parts = module.split(".")
    return parts[0] if parts[0] == "data_loaders" else ".".join(parts[:2])


GRAPH = nx.DiGraph((name, other) for name, path in MODULES.items() for other in imports(path))


def test_the_walk_sees_the_house():
    assert len(MODULES) > 100
    assert GRAPH.number_of_edges() > 300
    assert GRAPH.has_edge("guides", "guides.variational.mean_field")


def test_no_circles():
    circles = [sorted(part) for part in nx.strongly_connected_components(GRAPH) if len(part) > 1]
    assert not circles


def test_imports_go_one_way():
    wrong = [
        f"{module} imports {other}"
        for module, other in GRAPH.edges
        if module not in FACES
        if room(other) != room(module) and room(other) not in MAY_IMPORT[room(module)]
    ]
    assert not wrong
