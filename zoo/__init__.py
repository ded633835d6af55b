"""posterior-zoo: models, registry, evaluation and the command line.  Imports nothing slow by itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from zoo.given import plain, several_columns, several_names, several_widths
from zoo.version import __version__

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["__version__", "calibrate", "compare", "leaderboard"]


def compare(
    data: str | Path,
    *,
    model: str = "bnn",
    guides: Sequence[str] | str | None = None,
    reference: str | None = None,
    fresh_reference: bool = False,
    budget: str = "quick",
    steps: int | None = None,
    seed: int = 0,
    split: int = 0,
    splits: int = 1,
    seeds: int = 1,
    jobs: int = 1,
    cluster: str | None = None,
    out: str | Path | None = None,
    target: str | None = None,
    task: str | None = None,
    noise: float | None = None,
    widths: Sequence[int] | int | None = None,
    activation: str | None = None,
    inclusion: float | None = None,
    weight_scale: float | Sequence[float] | None = None,
    bias_scale: float | Sequence[float] | None = None,
    holdout: float | None = None,
    drop: Sequence[str] | str = (),
    categories: Sequence[str] | str = (),
    missing: Literal["refuse", "impute"] = "refuse",
    device: str = "cpu",
) -> pd.DataFrame:
    """Fits guides, computes the ground truth, and returns the scoreboard: ``zoo compare`` for notebooks.

    >>> board = zoo.compare("boston", model="pbp-bnn", guides=["mean-field", "pbp"], reference="nuts")
    >>> board.loc["pbp", ["rmse", "rmse_se", "ref_w1"]]
    >>> board["ref_w1"].sort_values()

    :param data: name of a data set, or path of a CSV file with a header
    :param model: name of a model, or ``path/to/file.py:model`` of one's own (``zoo fit --help`` shows one)
    :param guides: names, or one; None for the baselines that apply to the model
    :param reference: ``nuts``, ``exact``, ``gibbs``, ``none``, or None for the best that can be had
    :param fresh_reference: run NUTS although the package has its draws for these data and settings
    :param budget: ``quick`` or ``full``
    :param steps: of the optimiser, each guide that has one; those of the budget by default
    :param split: which train/test split of the data set, from 0
    :param splits: how many, from ``split`` on; so are ``seeds``.  With more than one of either, figures are
        means over all, their errors those over splits (over seeds with one split), and
        ``attrs["differences"]`` lists every pair of methods, paired (:mod:`zoo.evaluation.repeats`)
    :param jobs: processes side by side, for several splits or seeds; -1 is one a core
    :param cluster: other machines instead, which share ``out``: ``dask://HOST:PORT``,
        ``ray://HOST:PORT`` or ``auto`` (:func:`zoo.fitting.clusters.workers`)
    :param out: folder as ``--out`` of the command, with which a call goes on where one like it has stopped;
        None keeps nothing
    :param target: of a CSV file, the target column; the last by default
    :param task: of a CSV file, ``regression``, ``binary`` or ``multiclass``; left out, numbers are regression
        and texts are classes
    :param noise: fixes the noise sd, in units of the target
    :param widths: hidden units of each layer, or of the only one
    :param activation: ``relu``, ``leaky-relu`` (slope 0.2) or ``tanh``
    :param inclusion: prior inclusion probability of spike-and-slab weights
    :param weight_scale: prior sd of weights (of their slab) in units of ``1/sqrt(inputs)``, 1 by default; one
        number for all layers, or one a layer
    :param bias_scale: the same of biases; None: sd 1 in every layer
    :param holdout: share of the rows that is held out: 0, 0.1 (by default) or 0.2
    :param drop: columns of a CSV file to leave out, or one
    :param categories: columns of a CSV file whose numbers are names, or one
    :param missing: values of a CSV file: ``refuse``, or ``impute`` by median or most frequent text
    :param device: ``cpu``, ``cuda`` or ``cuda:N``: where guides are fitted that take steps
    :return: a row a method, with the name of the method as index and the columns of ``scoreboard.csv``; then
        ``<figure>_se`` and ``<figure>_floor`` of those figures whose standard error or noise floor has no
        column there.  A figure that does not exist is missing.  ``attrs["notes"]`` holds what should be
        known about the data and the request, ``attrs["verdict"]`` the scoreboard in sentences.  A fit that
        fails is a row whose status says why
    :raises ValueError: for bad input, in one line (:class:`zoo.errors.UserError`, ``data_loaders.DataError``)
    """
    import tempfile

    from data_loaders import TableOptions
    from zoo.commands.compare import run
    from zoo.commands.comparison import ask
    from zoo.commands.options import check_alone
    from zoo.commands.repeated import compare_often, frame
    from zoo.evaluation.scoreboard import wide_frame
    from zoo.evaluation.verdict import verdict
    from zoo.fitting.clusters import workers

    plain(splits=splits, seeds=seeds, jobs=jobs, cluster=cluster, out=out, missing=missing)
    (name,) = several_names("data", [data])
    wishes: dict[str, Any] = {
        "model": several_names("model", [model])[0],
        "guides": None if guides is None else several_names("guides", guides),
        "reference": reference,
        "budget": budget,
        **({} if steps is None else {"steps": steps}),
        "seed": seed,
        "split": split,
        "target": target,
        "task": task,
        "noise": noise,
        "widths": several_widths(widths),
        "activation": activation,
        "inclusion": inclusion,
        "weight_scale": weight_scale,
        "bias_scale": bias_scale,
        "holdout": holdout,
        "table": TableOptions(several_columns(drop), several_columns(categories), missing),
        "device": str(device),
        "fresh_reference": fresh_reference,
    }
    wishes = plain(**wishes)
    with tempfile.TemporaryDirectory() as folder:
        place = folder if out is None else out
        if (splits, seeds) != (1, 1):
            with workers(jobs, cluster) as many:
                often = compare_often(name, place, splits=splits, seeds=seeds, workers=many, **wishes)
            return frame(often)
        check_alone(jobs, cluster)
        comparison = ask(name, **wishes)
        rows = run(comparison, place)
    board = wide_frame(rows)
    board.attrs["notes"] = list(comparison.notes)
    board.attrs["verdict"] = verdict(rows)
    return board


def leaderboard(
    datasets: Sequence[str | Path] | str,
    *,
    guides: Sequence[str] | str = "all",
    model: str = "bnn",
    splits: int = 1,
    seeds: int = 1,
    seed: int = 0,
    jobs: int = 1,
    cluster: str | None = None,
    budget: str = "quick",
    steps: int | None = None,
    device: str = "cpu",
    out: str | Path | None = None,
) -> pd.DataFrame:
    """Ranks guides on several data sets by distance to trusted posteriors: ``zoo leaderboard`` for notebooks.

    >>> board = zoo.leaderboard(["diabetes", "yacht"], guides=["mean-field", "bootstrap"])
    >>> board[["rank", "rank_se", "ref_w1", "cpu_seconds"]]

    :param datasets: names or paths of CSV files, or one
    :param guides: names, or one, or ``all``: those that refuse a data set are listed with their reason
    :param splits: how many splits of each, from 0 on
    :param seeds: how many seeds, from ``seed`` on
    :param jobs: processes side by side; -1 is one a core.  They change no result
    :param cluster: other machines instead, which share ``out``: ``dask://HOST:PORT``,
        ``ray://HOST:PORT`` or ``auto`` (:func:`zoo.fitting.clusters.workers`)
    :param budget: ``quick`` or ``full``
    :param steps: of the optimiser, each guide that has one; those of the budget by default
    :param device: ``cpu``, ``cuda`` or ``cuda:N``: where guides are fitted that take steps
    :param out: folder as ``--out`` of the command; None keeps nothing
    :return: a row a guide, best rank first, with the name of the guide as index and the columns of
        ``leaderboard.csv``.  ``attrs["verdict"]`` holds sentences, ``attrs["when"]`` pairs of question and
        answer
    :raises ValueError: for bad input, in one line (:class:`zoo.errors.UserError`, ``data_loaders.DataError``)
    """
    import tempfile

    from zoo.commands.leaderboard import ALL, plan, run
    from zoo.fitting.clusters import workers

    many = plain(splits=splits, seeds=seeds, seed=seed, budget=budget)
    many |= {} if steps is None else plain(steps=steps)
    plain(jobs=jobs, cluster=cluster, out=out)
    asked = plan(
        several_names("datasets", datasets),
        ALL if isinstance(guides, str) and guides == ALL else several_names("guides", guides),
        model=several_names("model", [model])[0],
        device=str(device),
        **many,
    )
    with tempfile.TemporaryDirectory() as folder, workers(jobs, cluster) as found:
        board = run(asked, folder if out is None else out, found)
    table = board.table.set_index("guide")
    table.attrs["verdict"], table.attrs["when"] = board.words, board.when
    return table


def calibrate(
    model: str = "bnn",
    guides: Sequence[str] | str = "mean-field",
    *,
    out: str | Path | None = None,
    jobs: int = 1,
    cluster: str | None = None,
    **options: Any,
) -> pd.DataFrame:
    """Simulation-based calibration of guides and samplers: ``zoo calibrate`` for notebooks.

    >>> table = zoo.calibrate("bnn", ["exact", "mean-field"], widths=0, noise=1.0, correlation=0.9)
    >>> table[table["verdict"] != "uniform"][["method", "quantity", "verdict", "spread"]]

    :param guides: names of guides and of the samplers ``exact``, ``nuts`` and ``gibbs``, or one; ``"all"``
    :param out: folder as ``--out`` of the command, with which a call goes on where one like it has stopped;
        None keeps nothing
    :param jobs: processes side by side; -1 is one a core
    :param cluster: other machines instead, which share ``out``: ``dask://HOST:PORT``,
        ``ray://HOST:PORT`` or ``auto`` (:func:`zoo.fitting.clusters.workers`)
    :param options: those of the command: ``simulations``, ``draws``, ``rows``, ``columns``, ``correlation``,
        ``points``, ``steps``, ``seed``, ``task``, ``noise``, ``widths``, ``activation``, ``inclusion``,
        ``weight_scale``, ``bias_scale`` and ``device``, see :func:`zoo.commands.calibration.ask`
    :return: a row a method and quantity, the columns of ``calibration.csv``
        (:func:`zoo.commands.calibrate.summary`)
    :raises ValueError: for bad input, in one line (:class:`zoo.errors.UserError`)
    """
    import tempfile
    from inspect import signature

    from zoo.commands.calibrate import run
    from zoo.commands.calibration import ask
    from zoo.fitting.clusters import workers

    options = plain(**options)
    plain(jobs=jobs, cluster=cluster, out=out)
    unknown = options.keys() - signature(ask).parameters.keys()
    if unknown:
        raise TypeError(f"calibrate() got an unexpected keyword argument {min(unknown)!r}")
    if "widths" in options:
        options["widths"] = several_widths(options["widths"])
    if "device" in options:
        options["device"] = str(options["device"])
    (name,) = several_names("model", [model])
    calibration = ask(name, several_names("guides", guides), **options)
    with tempfile.TemporaryDirectory() as folder, workers(jobs, cluster) as found:
        return run(calibration, folder if out is None else out, workers=found)
