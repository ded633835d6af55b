"""Pages made while the site is built, from what the code says of itself: the gallery, the programming
interface, the tutorials; and what pages of results lack to be part of a site.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from pathlib import Path

import jupytext

from guides.posterior.files import write_atomically
from zoo.cli import show
from zoo.models.densities import DENSITY_MODELS
from zoo.models.graphs.growth_models import GROWTH_MODELS
from zoo.papers import PAPERS
from zoo.registry.queries import GUIDES, MODELS

HERE = Path(__file__).parent
#: Where the pages are written, beside the sources that are kept.
MADE = "made"
#: What has a meaning in Markdown.
SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$@])")
#: Headings of a card that are lines of code.
CODE = ("use",)
#: Headings of a card that the page says otherwise.
LEFT_OUT = ("model", "guide", "paper")
#: Page -> what it shows, and its modules.
INTERFACE = {
    "variational": (
        "Guides by gradient descent",
        [
            "guides.variational.mean_field",
            "guides.variational.spike_slab",
            "guides.variational.multiplicative_flow",
            "guides.variational.concrete",
            "guides.variational.correlated_inclusion",
            "guides.variational.correlated_logits",
            "guides.variational.joint_spike_slab",
            "guides.variational.joint_law",
            "guides.variational.dropout",
            "guides.variational.group_sparsity",
            "guides.variational.ensemble",
            "guides.variational.varbvs",
            "guides.variational.hyper_priors",
            "guides.variational.sparse_networks",
            "guides.variational.orderings",
        ],
    ),
    "message_passing": ("Message passing", ["guides.message_passing.backpropagation"]),
    "implicit": (
        "Posteriors over functions",
        [
            "guides.implicit.sparse_implicit_process",
            "guides.implicit.variational_implicit_process",
            "guides.implicit.functional_bnn",
            "guides.implicit.adversarial",
            "guides.implicit.discriminator",
            "guides.implicit.processes",
            "guides.implicit.gaussian_process",
        ],
    ),
    "bootstrap": (
        "Nonparametric posteriors and flows",
        [
            "guides.bootstrap.posterior_bootstrap",
            "guides.bootstrap.shared_parameters",
            "guides.bootstrap.base_measures",
            "guides.bootstrap.training",
            "guides.flows.gated",
            "guides.flows.weighted_batch_norm",
        ],
    ),
    "truth": (
        "Ground truth",
        [
            "guides.truth",
            "guides.truth.conjugate",
            "guides.truth.g_prior",
            "guides.truth.gates",
            "guides.truth.mcmc",
            "guides.truth.polya_gamma",
            "guides.truth.spike_slab_linear",
            "guides.truth.spike_slab_logistic",
        ],
    ),
    "posterior": (
        "Posteriors",
        [
            "guides.posterior",
            "guides.posterior.draws",
            "guides.posterior.evaluate",
            "guides.posterior.predictive",
            "guides.posterior.fitted_guide",
            "guides.posterior.regressions",
            "guides.posterior.arviz_io",
            "guides.posterior.files",
        ],
    ),
    "core": (
        "What guides stand on",
        [
            "guides.core.distributions",
            "guides.core.random_tensors",
            "guides.core.flat_guide",
            "guides.core.svi",
            "guides.core.sites",
            "guides.core.starts",
            "guides.core.settling",
        ],
    ),
    "testing": (
        "Testing a guide",
        [
            "guides.testing",
            "guides.testing.checks",
            "guides.testing.problems",
            "guides.testing.yardsticks",
            "guides.testing.noise",
            "guides.testing.running",
        ],
    ),
    "data_loaders": (
        "Data",
        [
            "data_loaders",
            "data_loaders.loading",
            "data_loaders.records",
            "data_loaders.catalogue.entries",
            "data_loaders.registered",
            "data_loaders.tables.csv_tables",
            "data_loaders.densities",
            "data_loaders.standardise",
            "data_loaders.toy",
            "data_loaders.errors",
        ],
    ),
    "models": (
        "Models",
        [
            "zoo.models",
            "zoo.models.catalogue",
            "zoo.models.bnn",
            "zoo.models.weights",
            "zoo.models.latent_binary",
            "zoo.models.lenet",
            "zoo.models.torch_module",
            "zoo.models.implicit_process",
            "zoo.models.normalizing_flow",
            "zoo.models.graphs.edge_graph",
            "zoo.models.graphs.deepgmg",
            "zoo.models.graphs.hollywood_process",
        ],
    ),
    "zoo": (
        "Comparisons, experiments, figures",
        [
            "zoo",
            "zoo.evaluation.scoreboard",
            "zoo.evaluation.verdict",
            "zoo.evaluation.metrics",
            "zoo.evaluation.distances",
            "zoo.evaluation.pareto",
            "zoo.evaluation.graphs",
            "zoo.models.entries",
            "zoo.registry.entries",
            "zoo.registry.queries",
            "zoo.experiments.engine.declaration",
            "zoo.experiments.engine.request",
            "zoo.experiments.engine.runner",
            "zoo.commands.web_page",
            "zoo.errors",
        ],
    ),
}


def write(docs: Path) -> None:
    """All of them; a page that would not change keeps its date, so that Sphinx does not read it again."""
    made = docs / MADE
    pages = {
        "gallery/models.md": _models(docs),
        "gallery/guides.md": _guides(docs),
        **{f"interface/{name}.md": _interface(*page) for name, page in INTERFACE.items()},
        **{f"tutorials/{path.stem}.md": _tutorial(path) for path in (docs.parent / "tutorials").glob("*.py")},
    }
    for name, text in pages.items():
        path = made / name
        if not path.exists() or path.read_text("utf-8") != text:
            write_atomically(path, lambda target, text=text: Path(target).write_text(text, "utf-8"))
    for path in made.rglob("*.md"):
        if path.relative_to(made).as_posix() not in pages:
            path.unlink()


# ---------------------------------------------------------------------------------------------- the gallery


def _models(docs: Path) -> str:
    tell = {name: show.tell_model for name in MODELS}
    tell |= {name: show.tell_density for name in DENSITY_MODELS}
    tell |= {name: show.tell_growth for name in GROWTH_MODELS}
    entries = {**MODELS, **DENSITY_MODELS, **GROWTH_MODELS}
    papers = {name: entry.paper for name, entry in entries.items()}
    return _gallery("Models", {name: show_card(name) for name, show_card in tell.items()}, papers, docs)


def _guides(docs: Path) -> str:
    cards = {name: show.tell_guide(name) for name in GUIDES}
    return _gallery("Guides", cards, {name: GUIDES[name].paper for name in cards}, docs)


def _gallery(heading: str, cards: dict[str, show.Text], papers: dict[str, str], docs: Path) -> str:
    """A section a paper, with what was drawn for its experiments; a card a name."""
    parts = [f"# {heading}", "What `zoo show NAME` tells, by the family of papers it came with."]
    for paper, about in PAPERS.items():
        names = [name for name in cards if papers[name] == paper]
        if names:
            title = about.title[0].upper() + about.title[1:]
            parts += [f"## {plain(title)}", plain(about.citation), *_pictures(docs, paper)]
            parts += [part for name in names for part in _card(name, cards[name])]
    return "\n\n".join(parts) + "\n"


def _pictures(docs: Path, paper: str) -> Iterable[str]:
    """What its results have drawn, each under the page that says what it is."""
    for path in sorted((docs / "results" / paper).glob("*.png")):
        pages = [page for page in path.parent.glob("*.md") if path.stem.startswith(page.stem)]
        target = max(pages, key=lambda page: len(page.stem)).name if pages else None
        words = f"[{path.stem}](../../results/{paper}/{target})" if target else path.stem
        yield f"![{path.stem}](../../results/{paper}/{path.name})\n\n{words}"


def _card(name: str, card: show.Text) -> Iterable[str]:
    yield f"### {name}"
    facts = dict(card)
    yield plain(facts.pop("is"))
    lines = [_fact(heading, text) for heading, text in facts.items() if text and heading not in LEFT_OUT]
    yield "\n\n".join(lines)


def _fact(heading: str, text: str) -> str:
    if heading in CODE:
        lines = "\n".join(f"  {line}" for line in text.splitlines())
        return f"{heading}\n: ```text\n{lines}\n  ```"
    if heading == "published":
        return f"{heading}\n: " + ", ".join(map(_experiment, text.split(", ")))
    return f"{heading}\n: " + "\\\n  ".join(plain(line) for line in text.splitlines())


def _experiment(name: str) -> str:
    """Linked to its page of results, where there is one."""
    page = f"results/{name}.md"
    return f"[{plain(name)}](../../{page})" if (HERE / page).exists() else plain(name)


def plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    return SPECIAL.sub(r"\\\1", text)


# -------------------------------------------------------------------------------- interface and tutorials


def _interface(title: str, modules: Iterable[str]) -> str:
    parts = [f"# {title}"]
    for module in modules:
        options = ["   :no-members:"] if module in FACES else []
        directive = [f".. automodule:: {module}", *options]
        parts += [f"## `{module}`", "```{eval-rst}", *directive, "```"]
    return "\n".join(parts) + "\n"


#: Modules that only name what others define: their text without their members.
FACES = ("guides.truth", "guides.posterior", "guides.testing", "data_loaders", "zoo.models")


def _tutorial(path: Path) -> str:
    """The script as a page; it is run by the tests, not here."""
    notebook = jupytext.read(path, fmt="py:percent")
    cells = [
        cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```"
        for cell in notebook.cells
        if cell.source.strip()
    ]
    title, *others = cells
    where = f"This page is the script `tutorials/{path.name}`, which the tests run from top to bottom."
    return "\n\n".join([title, where, *others]) + "\n"


# ------------------------------------------------------------------------------------------------- results


def complete(app, name: str, source: list[str]) -> None:
    """Pages of results stand in the repository as programs have left them: one without a title gets its
    name, and the first page a list of all of them.
    """
    if not name.startswith("results/"):
        return
    if name == "results/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\nboston\ncalibration\nleaderboard*\n*/*\n```\n"
    elif not source[0].startswith("# "):
        source[0] = f"# {name.removeprefix('results/')}\n\n{source[0]}"


def is_constant(app, what: str, name: str, thing, skip: bool, options) -> bool | None:
    """Whether a member of a module is left out: what is neither a class nor a function."""
    if what == "module" and not (inspect.isclass(thing) or inspect.isroutine(inspect.unwrap(thing))):
        return True
    return None


def literal_blocks(app, what, name, thing, options, lines: list[str]) -> None:
    """Code in a docstring is indented; what Sphinx takes for a quotation becomes a block of code."""
    last, inside, found = "", False, []
    for line in lines:
        indented = line.startswith("    ")
        begins = indented and not inside and found[-1:] == [""]
        if begins and not last.startswith((" ", ":", "* ", "- ", "..")) and not last.endswith("::"):
            found += ["::", ""]
            inside = True
        elif line.strip() and not indented:
            inside = False
        found.append(line)
        last = line if line.strip() else last
    lines[:] = found
