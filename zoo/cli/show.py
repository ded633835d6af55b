"""``zoo show NAME``: everything about one model, guide, data set, experiment or paper, in plain text.

A card is a list of ``(heading, text)`` and begins with the kind and the name; each function that makes one
imports what it needs, so that zoo data show and zoo reproduce --list do not wait for torch.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from zoo.cli.lists import width
from zoo.errors import unknown
from zoo.papers import PAPERS

if TYPE_CHECKING:
    from zoo.models.densities import DensityModel
    from zoo.models.graphs.growth_models import GraphModel

Text = list[tuple[str, str]]
Cards = tuple[tuple[Collection[str], Callable[[str], Text]], ...]
#: Columns of the headings.
MARGIN = 12
#: Data sets that experiments call by another name.
IN_EXPERIMENTS = {"fashion_mnist": "fmnist"}


def show_data(name: str) -> None:
    """Prints the card of a data set, a table without a target or a set of graphs; of ``protein`` and
    ``kin40k``, which are both, two.

    :raises UserError: naming the nearest of them
    """
    _print_cards(name, "data set", _data(), "zoo data list names all")


def is_data(name: str) -> bool:
    """Whether it is the name of one of them, and not of a file."""
    return any(name in names for names, _ in _data())


def _data() -> Cards:
    from data_loaders import list_datasets
    from data_loaders.densities import DENSITIES
    from data_loaders.graphs.graph_sets import GRAPH_SETS

    return ((list_datasets(), tell_data_set), (DENSITIES, tell_table), (GRAPH_SETS, tell_graphs))


def show(name: str) -> None:
    """Prints the card of a name, or the cards where it names several things: a data set and a guide
    (``concrete``), a guide and a paper (``sspbp``).

    :raises UserError: naming the nearest of all kinds
    """
    from zoo.experiments.engine.catalogue import experiments
    from zoo.models.densities import DENSITY_MODELS
    from zoo.models.graphs.growth_models import GROWTH_MODELS
    from zoo.registry.queries import GUIDES, MODELS

    kinds = (
        *_data(),
        (experiments(), tell_experiment),
        (MODELS, tell_model),
        (DENSITY_MODELS, tell_density),
        (GROWTH_MODELS, tell_growth),
        (GUIDES, tell_guide),
        (PAPERS, tell_paper),
    )
    _print_cards(name, "name", kinds, "zoo list, zoo data list, zoo reproduce --list name all")


def _print_cards(name: str, kind: str, kinds: Cards, where: str) -> None:
    """:param kinds: the names of every kind, and what makes the card of one"""
    cards = [tell(name) for names, tell in kinds if name in names]
    if not cards:
        raise unknown(kind, name, [known for names, _ in kinds for known in names], where)
    for i, card in enumerate(cards):
        if i:
            print()
        print_card(card)


def print_card(card: Text) -> None:
    """A heading in the margin, its text beside it, every line of it wrapped on its own."""
    for heading, text in card:
        for i, line in enumerate(text.splitlines()):
            wrapped = textwrap.wrap(
                line, width() - MARGIN, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
            )
            for j, part in enumerate(wrapped):
                print(f"{heading if i == j == 0 else '':{MARGIN}}{part}")


def tell_paper(name: str) -> Text:
    """A family, and what came with it."""
    from zoo.experiments.engine.catalogue import experiments
    from zoo.registry.queries import GUIDES, MODELS

    def of_paper(entries: dict) -> str:
        return ", ".join(entry.name for entry in entries.values() if entry.paper == name)

    return [
        ("paper", f"{name}, {PAPERS[name].title}"),
        ("texts", PAPERS[name].citation),
        ("models", of_paper(MODELS)),
        ("guides", of_paper(GUIDES)),
        ("experiments", ", ".join(found for found in experiments() if found.startswith(f"{name}/"))),
        ("use", f"zoo list --paper {name}"),
    ]


def tell_data_set(name: str) -> Text:
    """:raises DataError: naming the nearest data sets"""
    from data_loaders import describe
    from data_loaders.catalogue.lookup import ENTRIES

    d, experimental = describe(name), IN_EXPERIMENTS.get(name, name)
    source = "" if d.file is None or d.downloadable else " (read from the folder that ZOO_DATA names)"
    return [
        ("data set", d.name),
        ("package", ENTRIES.package(name)),
        ("is", f"{d.task}, {d.rows} rows, {d.features} features, target {d.target}"),
        ("splits", f"{d.splits} ({', '.join(d.protocols)})"),
        ("source", d.source + source),
        ("licence", d.licence),
        ("note", "\n".join(d.oddities) or "nothing odd is known"),
        ("published", _published(lambda experiment: experimental in experiment.datasets)),
        ("use", f"zoo compare {name} --out out/{name}"),
    ]


def tell_table(name: str) -> Text:
    """A table without a target."""
    from data_loaders.densities import DENSITIES

    table = DENSITIES[name]
    train, validation, test = table.rows
    return [
        ("table", name),
        (
            "is",
            f"{table.features} columns, no target; {train} rows, {validation} to stop by, {test} to test",
        ),
        ("source", table.source),
        ("licence", table.licence),
        ("note", "\n".join(table.oddities) or "nothing odd is known"),
        ("published", _published(lambda e: e.name.startswith("npl/") and name in e.datasets)),
        ("use", f"zoo fit {name} --model maf --out out/{name}"),
    ]


def tell_graphs(name: str) -> Text:
    """A set of graphs."""
    from data_loaders.graphs.graph_sets import GRAPH_SETS

    known = GRAPH_SETS[name]
    times = "edges with times" if known.temporal else "edges without times"
    source = "" if known.addresses else " (read from the folder that ZOO_DATA names)"
    return [
        ("graphs", name),
        ("is", f"{known.graphs} graphs, {times}, {known.rows} lines of the file"),
        ("source", known.source + source),
        ("licence", known.licence),
        ("note", "\n".join(known.oddities) or "nothing odd is known"),
        ("published", _published(lambda e: e.name.startswith("graphs/") and name in e.datasets)),
        ("use", f'data_loaders.graphs.graph_sets.load_graphs("{name}")'),
    ]


def tell_experiment(name: str) -> Text:
    """:raises UserError: naming the nearest experiments"""
    from zoo.experiments.engine.catalogue import OTHERS, find_experiment
    from zoo.experiments.engine.declaration import AXES
    from zoo.experiments.engine.request import WORDS

    experiment = find_experiment(name)
    card = [
        ("experiment", name),
        ("package", OTHERS.package(name)),
        ("is", experiment.summary),
        ("published", str(experiment.source)),
    ]
    for axis in AXES:
        names = experiment.axis(axis)
        if tuple(names) != ("default",):
            card.append((f"{WORDS[axis]}s", ", ".join(names)))
    card.append(("measures", "\n".join(f"{metric}: {what}" for metric, what in experiment.metrics.items())))
    for budget, effort in experiment.efforts.items():
        trials = "1 trial" if effort.trials == 1 else f"{effort.trials} trials"
        options = "".join(f", {option}={value}" for option, value in effort.options.items())
        card.append((budget, f"{effort.cost} ({trials}{options})"))
    notes = list(dict.fromkeys(experiment.notes.values()))
    card.append(("note", "\n".join(notes)))
    card.append(("numbers", f"{len(experiment.published)} published, errors: {experiment.published_error}"))
    card.append(("use", f"zoo reproduce {name} --out out/{name}"))
    return card


def tell_model(name: str) -> Text:
    """:raises UserError: naming the nearest models"""
    from zoo.registry.queries import GUIDES, MODELS, find_model, flag, limits

    model = find_model(name)
    traits = model.traits()
    applied = {guide.name: limits(guide, model) for guide in GUIDES.values()}
    guides = [f"{g} ({remark})" if remark else g for g, remark in applied.items() if remark is not None]
    options = ", ".join(f"{flag(option)} {_plain(value)}" for option, value in model.options.items())
    return [
        ("model", name),
        ("package", MODELS.package(name)),
        ("is", model.summary),
        ("paper", _cited(model.paper, model.citation)),
        ("law", model.card.law),
        ("data", f"{traits.inputs}; {', '.join(model.tasks)}"),
        ("options", options or "none"),
        ("truth", ", ".join(model.references) or "none"),
        ("assumes", model.card.assumes),
        ("cost", model.card.cost),
        ("fails", model.card.fails),
        ("guides", ", ".join(guides)),
        ("published", ", ".join(model.experiments) or "none"),
        ("use", f"zoo compare DATA --model {name} --out FOLDER\n{_creation(name, model.tasks)}"),
    ]


def tell_density(name: str) -> Text:
    """A model of tables without a target."""
    from zoo.models.densities import DENSITY_MODELS

    model, command = DENSITY_MODELS[name], f"zoo fit table.csv --model {name} --out FOLDER"
    return _without_guide(
        model, "a density of tables without a target", f"{command}\nzoo.models.FlowDensity(columns)"
    )


def tell_growth(name: str) -> Text:
    """A model of graphs."""
    from zoo.models.graphs.growth_models import GROWTH_MODELS

    model, command = GROWTH_MODELS[name], f"zoo fit edges.csv --model {name} --out FOLDER"
    return _without_guide(
        model, "a model of graphs, of a CSV file with a line an edge", f"{command}\n{model.made}"
    )


def _without_guide(model: DensityModel | GraphModel, kind: str, use: str) -> Text:
    return [
        ("model", model.name),
        ("is", f"{model.summary}; {kind}"),
        ("paper", _cited(model.paper, "")),
        ("law", model.card.law),
        ("assumes", model.card.assumes),
        ("cost", model.card.cost),
        ("fails", model.card.fails),
        ("use", use),
    ]


def tell_guide(name: str) -> Text:
    """:raises UserError: naming the nearest guides"""
    from zoo.registry.queries import GUIDES, MODELS, find_guide, where

    guide = find_guide(name)
    called = {name, name.removesuffix("-1-epoch"), *guide.called}
    return [
        ("guide", name),
        ("package", GUIDES.package(name)),
        ("is", guide.summary),
        ("paper", _cited(guide.paper, guide.citation)),
        ("came with", guide.model),
        ("law", guide.card.law),
        ("assumes", guide.card.assumes),
        ("cost", guide.card.cost),
        ("fails", guide.card.fails),
        ("note", guide.note),
        ("models", ", ".join(filter(None, (where(guide, model) for model in MODELS.values())))),
        ("options", ", ".join(f"--{option}" for option in guide.method.takes) or "none"),
        ("published", _published(lambda e: e.name.startswith(f"{guide.paper}/") and called & set(e.methods))),
        ("use", f"zoo compare DATA --model {guide.model} --guides {name} --out FOLDER\n{guide.code}"),
    ]


def _cited(paper: str, citation: str) -> str:
    """A citation of its own beside the family that it came with, or the family's."""
    if paper not in PAPERS:  # of another package
        return f"{paper}: {citation}" if citation else paper
    return f"{citation} (here with {paper})" if citation else f"{paper}: {PAPERS[paper].citation}"


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "(not set)" if value is None else str(value)


def _creation(name: str, tasks: tuple[str, ...]) -> str:
    if tasks == ("multiclass",):
        return f'zoo.models.create("{name}", in_features=784, num_classes=10)'
    return f'zoo.models.create("{name}", in_features=13)'


def _published(concerns: Callable) -> str:
    """The experiments that concern something."""
    from zoo.experiments.engine.catalogue import experiments

    return ", ".join(e.name for e in experiments().values() if concerns(e)) or "none"
