"""The command line ``zoo``.  What is slow to import is imported by the command that needs it."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand

from zoo.cli.calibrate import CALIBRATE_HELP, calibrate_command
from zoo.cli.compare import COMPARE_HELP, compare_command
from zoo.cli.fit import FIT_HELP, fit_command
from zoo.cli.leaderboard import LEADERBOARD_HELP, leaderboard_command
from zoo.cli.options import CategoriesOption, DataName, DropOption, table_options
from zoo.cli.predict import PREDICT_HELP, SAMPLE_HELP, predict_command, sample_command
from zoo.cli.reference import REFERENCE_HELP, reference_command
from zoo.cli.report import REPORT_HELP, report_command
from zoo.cli.reproduce import REPRODUCE_HELP, reproduce_command
from zoo.cli.tell import complain
from zoo.errors import FailedError, UserError, enough_memory
from zoo.version import __version__

app = typer.Typer(
    name="zoo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Bayesian deep-learning models in Pyro, their guides, and how far each guide is from the truth.\n\n"
    "\b\nThe main job is to grade guides against a posterior that can be trusted:\n"
    "  zoo compare diabetes --out out/diabetes    two guides against NUTS, a minute\n\n"
    "\b\nWhich guide to use when, and whether its posteriors are right:\n"
    "  zoo leaderboard --datasets diabetes,yacht --out out/board\n"
    "  zoo calibrate --guide exact,mean-field --widths 0 --noise 1 --out out/linear\n\n"
    "\b\nWhat there is, a line each, and everything about one of them:\n"
    "  zoo list                       papers, models, guides\n"
    "  zoo list --paper sspbp         what came with one family of papers\n"
    "  zoo data list                  data sets\n"
    "  zoo reproduce --list           published tables and figures\n"
    "  zoo show NAME                  one of them: its law, assumptions, cost,\n"
    "                                 known failures, what goes with it\n"
    "  zoo COMMAND --help             explains a command, with examples\n\n"
    "Data sets that do not ship with the packages are downloaded; the environment variable ZOO_DATA names a "
    "folder to read them from instead. Exit codes: 0 success, 1 a fit that failed, 2 bad input, "
    "130 interrupted.",
)
#: Options that name a file or folder.
PATHS = ("--out", "--input")
REMEDIES = (
    "a list has commas and no spaces (a,b), a name with spaces stands in quotes, and an option that may be "
    "repeated is named each time"
)
data_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The data sets: list them, look at one, download one.",
)
app.add_typer(data_app, name="data")


def main() -> None:
    """Runs the command of `sys.argv`; Ctrl-C means nothing to its end."""
    try:
        app()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command is over: Ctrl-C must not break its end


def friendly(command: Callable) -> Callable:
    """One clear line for what a user can mend: exit code 2 for bad input, 1 for a fit that diverged."""

    @functools.wraps(command)
    def wrapped(*args, **kwargs):
        try:
            from data_loaders import DataError

            try:
                with enough_memory():
                    return command(*args, **kwargs)
            except (UserError, DataError) as error:
                complain(error)
                raise typer.Exit(2) from None
            except FailedError as error:
                complain(error)
                raise typer.Exit(1) from None
        except KeyboardInterrupt as stop:
            complain(str(stop) or "interrupted")
            raise typer.Exit(130) from None

    return wrapped


class Command(TyperCommand):
    """One that refuses empty names of files and data, which typer takes for the working directory, and says
    how what a word too many was meant for is written.
    """

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        if name := _empty_name(args):
            complain(f"{name} is an empty name: is a shell variable in its place not set?")
            raise typer.Exit(2)
        ctx.allow_extra_args = True  # they are refused below, with the remedy
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            complain(f"{rest[0]!r} is a word too many: {REMEDIES} ({ctx.command_path} --help)")
            raise typer.Exit(2)
        return rest


def _empty_name(args: list[str]) -> str:
    """Which of the words of a command line is an empty name; empty if none is."""
    for before, text in zip(["", *args], args, strict=False):
        if text in [f"{path}=" for path in PATHS]:
            return text.removesuffix("=")
        if not text and before in PATHS:
            return before
        if not text and not before.startswith("-"):
            return "an argument"
    return ""


def _version(asked: bool) -> None:
    if asked:
        print(f"posterior-zoo {__version__}")
        raise typer.Exit


@app.callback()
def _global(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command("list", cls=Command)
@friendly
def list_command(
    paper: Annotated[
        str | None, typer.Option("--paper", help="Only what came with this family of papers, by its key.")
    ] = None,
) -> None:
    """Papers, models and guides, a line each."""
    from zoo.cli.lists import list_models_and_guides

    list_models_and_guides(paper)


@app.command("show", cls=Command)
@friendly
def show_command(
    name: Annotated[str, typer.Argument(help="Name of a model, guide, data set or experiment.")],
) -> None:
    """Everything about one model, guide, data set or experiment."""
    from zoo.cli.show import show

    show(name)


@data_app.command("list", cls=Command)
@friendly
def data_list() -> None:
    """All data sets, a line each."""
    from zoo.cli.lists import list_data

    list_data()


@data_app.command("show", cls=Command)
@friendly
def data_show(
    name: Annotated[str, typer.Argument(help="Name of a data set (zoo data list), or a CSV file.")],
    drop: DropOption = None,
    categories: CategoriesOption = None,
) -> None:
    """Size, source, licence, oddities and published tables of one data set; of a CSV file, what zoo fit
    takes every column for, and what keeps it from using one.
    """
    from zoo.cli.show import is_data, show_data

    if not is_data(name) and (name.endswith(".csv") or Path(name).exists()):  # as for zoo fit
        from zoo.cli.lists import list_columns

        list_columns(name, table_options(drop, categories, "refuse"))
        return
    show_data(name)


@data_app.command("fetch", cls=Command)
@friendly
def data_fetch(name: DataName) -> None:
    """Makes sure a data set is at hand, checks it, and prints where it is."""
    from data_loaders import fetch

    print(fetch(name))


COMMANDS = (
    ("compare", COMPARE_HELP, "Grades guides against the ground truth: the main job.", compare_command),
    ("fit", FIT_HELP, None, fit_command),
    ("predict", PREDICT_HELP, None, predict_command),
    ("sample", SAMPLE_HELP, None, sample_command),
    ("leaderboard", LEADERBOARD_HELP, "Ranks every guide on several data sets.", leaderboard_command),
    ("calibrate", CALIBRATE_HELP, "Grades posteriors on data from the model itself.", calibrate_command),
    ("reproduce", REPRODUCE_HELP, "Runs a published experiment beside its numbers.", reproduce_command),
    ("reference", REFERENCE_HELP, "Keeps a NUTS reference in a file, for zoo compare.", reference_command),
    ("report", REPORT_HELP, "Writes one page of HTML from folders of results.", report_command),
)
for name, text, short, command in COMMANDS:
    app.command(name, cls=Command, help=text, short_help=short)(friendly(command))

if __name__ == "__main__":
    main()
