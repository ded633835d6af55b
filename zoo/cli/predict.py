"""The commands ``zoo predict`` and ``zoo sample``: what a saved fit is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zoo.cli.options import SeedOption
from zoo.cli.progress import progress_bar_or_lines
from zoo.cli.tell import complain
from zoo.commands.options import check_counts, check_seed
from zoo.errors import UserError
from zoo.fitting.threads import one_torch_thread

PREDICT_HELP = """Predicts new rows with a saved fit, in original units.

Regression: columns mean, sd, q5, q50 and q95 of the predictive distribution, noise included. Classes: columns
label, prob_0, prob_1, ..., or with the names of the classes. The file has the columns of the fit in any
order, as they were given to zoo fit; dropped ones and the target may be missing. A category that no training
row has is 0 in all inputs of its column. A line says so; others tell which missing values are filled in, and
which columns had one value in all training rows and have others here.

Densities: columns log_density (of the mixture of all draws, in nats) and q5, q50, q95 of the draws' log
densities. Draws differ in the mean of the latent law alone, the flow is one: these are no interval for the
density, from which another seed of zoo fit may be farther. Where there is no terminal, a line every ten
seconds tells how far it is. An --out that is there is replaced if it holds predictions, and refused if it
holds anything else.

\b
Example:
  zoo predict out/houses --input new.csv --out predictions.csv
"""

SAMPLE_HELP = """Draws new rows from a density that zoo fit has saved, each from a draw of its posterior.

From a model of graphs (edge-graph) it draws as many graphs, with the numbers of edges of training graphs, and
their times; the file has a line an edge.

\b
Examples:
  zoo sample out/density --rows 1000 --out new.csv
  zoo sample out/edges --rows 100 --out graphs.csv
"""


@one_torch_thread()
def predict_command(
    folder: Annotated[Path, typer.Argument(help="The --out folder of zoo fit.")],
    table: Annotated[
        Path, typer.Option("--input", help="CSV file with the feature columns of the fit, in any order.")
    ],
    out: Annotated[Path, typer.Option("--out", help="CSV file to write, one line a row.")],
    draws: Annotated[
        int, typer.Option("--draws", help="Networks drawn, where the guide has no closed form.")
    ] = 1000,
    seed: SeedOption = 0,
    device: Annotated[
        str,
        typer.Option("--device", help="cpu, cuda or cuda:N: where networks that are drawn are evaluated."),
    ] = "cpu",
) -> None:
    """See ``PREDICT_HELP``."""
    from zoo.commands import density
    from zoo.commands.graphs import is_edge_fit
    from zoo.commands.predict import predict
    from zoo.fitting.devices import check_device

    check_counts(draws=draws)
    check_seed(seed)
    check_device(device)
    if is_edge_fit(folder):
        raise UserError(f"{folder} holds a model of graphs: zoo sample draws them")
    with progress_bar_or_lines() as progress:
        if density.is_density(folder):
            if device != "cpu":
                raise UserError(f"--device does not apply to {folder}, a density: it is scored on the CPU")
            rows = density.predict(folder, table, out, progress=progress)
            print(f"{rows} rows scored; written to {out}")
            return
        rows = predict(
            folder, table, out, draws=draws, seed=seed, device=device, progress=progress, tell=complain
        )
    print(f"{rows} rows predicted; written to {out}")


@one_torch_thread()
def sample_command(
    folder: Annotated[Path, typer.Argument(help="The --out folder of zoo fit --model maf, or edge-graph.")],
    out: Annotated[Path, typer.Option("--out", help="CSV file to write, one line a row.")],
    rows: Annotated[int, typer.Option("--rows", help="How many rows, or graphs.")] = 1000,
    seed: SeedOption = 0,
) -> None:
    """See ``SAMPLE_HELP``."""
    from zoo.commands.density import sample
    from zoo.commands.graphs import is_edge_fit, sample_edges

    check_counts(rows=rows)
    check_seed(seed)
    if is_edge_fit(folder):
        edges = sample_edges(folder, out, rows, seed)
        print(f"{rows} graphs of {edges} edges in all drawn; written to {out}")
        return
    sample(folder, out, rows=rows, seed=seed)
    print(f"{rows} rows drawn; written to {out}")
