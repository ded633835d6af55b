"""The rooms of the house: imports go one way, rooms of methods are siblings, nothing goes in a circle.

Every import statement counts, those inside functions and those for type checkers too; so does every text that
is the name of a module, for some are imported by their names (the catalogue of experiments, ``Deferred``).
What is imported from the public face ``guides`` counts as imported from the module that it comes from.
"""

from __future__ import annotations

import ast
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("data_loaders", "guides", "zoo")

#: What the methods of inference stand on; they do not import each other.
GROUND = {"guides.core", "guides.flows", "guides.posterior"}
METHODS = {f"guides.{room}" for room in ("variational", "message_passing", "truth", "implicit", "bootstrap")}
#: All methods, and the face that names them.
GUIDES = {"guides", *METHODS}
#: What everything in ``zoo`` may import.
BASE = {
    *GROUND,
    "data_loaders",
    "zoo",
    "zoo.errors",
    "zoo.budgets",
    "zoo.given",
    "zoo.papers",
    "zoo.seeds",
    "zoo.version",
}
FITTED = {*BASE, "zoo.models", "zoo.files", "zoo.evaluation"}
#: Room -> rooms that its modules may import beside their own.
MAY_IMPORT = {
    "data_loaders": set(),
    "guides.core": set(),
    "guides.flows": {"guides.core"},
    "guides.posterior": {"guides.core"},
    **dict.fromkeys(METHODS, GROUND),
    "guides.testing": {*GROUND, *METHODS},
    "zoo.models": BASE,
    "zoo.files": BASE,
    "zoo.evaluation": {*BASE, "zoo.files"},
    "zoo.fitting": {*FITTED, *GUIDES},
    "zoo.registry": {*FITTED, *GUIDES, "zoo.fitting"},
    "zoo.commands": {*FITTED, *GUIDES, "zoo.fitting", "zoo.registry", "zoo.experiments"},
    "zoo.experiments": {*FITTED, *GUIDES, "zoo.fitting"},
    "zoo.__main__": {"zoo.cli"},
    "zoo.cli": {*FITTED, "zoo.fitting", "zoo.registry", "zoo.commands", "zoo.experiments"},
}
#: Modules that are named in part: relative to these.
NAMED_IN = ("", "zoo.experiments.")
#: The public faces import from everywhere below them.
FACES = {"guides", "zoo", "zoo.errors", "zoo.budgets", "zoo.given", "zoo.papers", "zoo.seeds", "zoo.version"}


def modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


#: Where the names of the public face come from.
ORIGINS = {
    alias.asname or alias.name: node.module
    for node in ast.parse(MODULES["guides"].read_text()).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}


def imports(code: str) -> set[str]:
    """The modules of this project that a text of Python imports."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.update(_origin(node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            found.update(f"{package}{node.value}" for package in NAMED_IN)
    return {name for name in found if name in MODULES}


def _origin(module: str, name: str) -> str:
    """The module behind ``from module import name``."""
    if module == "guides" and name in ORIGINS:
        return ORIGINS[name]
    return whole if (whole := f"{module}.{name}") in MODULES else module


def room(module: str) -> str:
    parts = module.split(".")
    return parts[0] if parts[0] == "data_loaders" else ".".join(parts[:2])


@pytest.fixture(scope="module")
def graph():
    return nx.DiGraph((name, other) for name, path in MODULES.items() for other in imports(path.read_text()))


def test_the_walk_sees_the_house(graph):
    assert len(MODULES) > 100
    assert graph.number_of_edges() > 300
    assert graph.has_edge("guides", "guides.variational.mean_field")
    assert graph.has_edge("zoo.experiments.engine.catalogue", "zoo.experiments.lbbnn.declared")
    assert graph.has_edge("zoo.experiments.lbbnn.declared_networks", "zoo.experiments.lbbnn.images")
    assert graph.has_edge("zoo.experiments.sspbp.networks", "guides.message_passing")


@pytest.mark.parametrize(
    ("code", "module"),
    [
        ("from guides import AutoMNF", "guides.variational.multiplicative_flow"),
        ("from guides import SpikeSlab as Law", "guides.core.distributions"),
        ("from guides.core import svi", "guides.core.svi"),
        ("def f():\n    import guides.core.svi", "guides.core.svi"),
        ("import guides\nguides.AutoMNF", "guides"),
        ('run = Deferred("lbbnn.images", "table")', "zoo.experiments.lbbnn.images"),
        ('import_module("zoo.registry.queries")', "zoo.registry.queries"),
    ],
)
def test_the_walk_sees_imports_of_every_kind(code, module):
    assert imports(code) == {module}


def test_no_circles(graph):
    circles = [sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1]
    assert not circles


def test_imports_go_one_way(graph):
    wrong = [
        f"{module} imports {other}"
        for module, other in graph.edges
        if module not in FACES
        if room(other) != room(module) and room(other) not in MAY_IMPORT[room(module)]
    ]
    assert not wrong
