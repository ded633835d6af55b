"""Average ranks of the methods over data sets and trials, as in the published table 1."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import friedmanchisquare, rankdata

from zoo.experiments.engine.declaration import Published, Record
from zoo.experiments.engine.lines import FAR, Line, Summary, summary, z_text
from zoo.files.tables import markdown_table, write_text

#: Metric -> whether more of it is better.
MORE_IS_BETTER = {"rmse": False, "log_likelihood": True, "crps": False}


def average_ranks(
    records: Sequence[Record], methods: Sequence[str]
) -> tuple[dict[str, dict[str, Summary]], int]:
    """Metric -> method -> its ranks over the races, 1 for the best of all methods, and how many races."""
    data_sets, ranks = _races(records, methods)
    if not data_sets:
        return {}, 0
    return {
        metric: {name: summary(found[:, i].tolist()) for i, name in enumerate(methods)}
        for metric, found in ranks.items()
    }, len(data_sets)


def _races(records: Sequence[Record], methods: Sequence[str]) -> tuple[list[str], dict[str, np.ndarray]]:
    """Of every race its data set, and metric -> ``[races, methods]``, the ranks.

    A race is a data set and a trial in which every method has finished; one that failed comes last.
    """
    races: dict[tuple[str, int], dict[str, Mapping[str, float]]] = defaultdict(dict)
    for record in records:
        races[record.cell.dataset, record.cell.trial][record.cell.method] = (
            record.metrics if record.ok else {}
        )
    whole = {place: race for place, race in races.items() if set(race) == set(methods)}
    ranks = {}
    for metric, more in MORE_IS_BETTER.items():
        sign = -1 if more else 1
        rows = [[sign * race[name].get(metric, sign * np.inf) for name in methods] for race in whole.values()]
        ranks[metric] = np.array([rankdata(row) for row in rows])
    return [dataset for dataset, _ in whole], ranks


def chance(records: Sequence[Record], methods: Sequence[str]) -> dict[str, float]:
    """Metric -> p value of Friedman's test that all methods are alike, by the mean ranks on every data set:
    splits of one set are no independent races.  Nothing for fewer than three methods or two sets, or where
    all are level.
    """
    data_sets, ranks = _races(records, methods)
    if len(methods) < 3 or len(set(data_sets)) < 2:
        return {}
    means = {metric: pd.DataFrame(found).groupby(data_sets).mean() for metric, found in ranks.items()}
    with np.errstate(invalid="ignore"):
        found = {
            metric: float(friedmanchisquare(*table.to_numpy().T).pvalue) for metric, table in means.items()
        }
    return {metric: p for metric, p in found.items() if not np.isnan(p)}


def write_ranks(
    out: Path,
    records: Sequence[Record],
    methods: Sequence[str],
    printed: Mapping[str, Mapping[str, Published]],
    settled: float,
) -> None:
    """``ranks.md`` and ``ranks.png``; nothing before a race is over.

    :param printed: metric -> method -> what is published
    :param settled: how much ``bound_change`` of a fit that has ended is at most, either way
    """
    from zoo.experiments.sip.plots import plot_ranks

    ranks, races = average_ranks(records, methods)
    if not races:
        return
    by_chance = chance(records, methods)
    lines = [
        f"# Average ranks over {races} races of {len(methods)} methods",
        "",
        "Of the fits of `zoo reproduce sip/uci`, whose page has command, seed and versions. A race is a data "
        "set and a split; 1 is best. Ours: mean ± standard error over the races. Published: 8 data sets, 20 "
        "splits; what is printed after ± is defined nowhere, so z takes it for a standard error. The spread "
        "between sets, which both have in common, is in our error: z is rather too small.",
        *_unsettled(records, settled),
    ]
    for metric, found in ranks.items():
        beside = printed.get(metric, {})
        compared = [
            Line("", name, "", metric, found[name], beside.get(name))
            for name in sorted(found, key=lambda name: found[name].mean)
        ]
        lines += ["", f"## {metric}", "", _table(compared), *_verdict(compared)]
        if metric in by_chance:
            told = f"p = {by_chance[metric]:.2g}"
            lines += ["", f"Friedman's test, over the sets, that all methods are alike: {told}."]
    write_text(out / "ranks.md", "\n".join(lines) + "\n")
    plot_ranks(
        out, {metric: {name: rank.mean for name, rank in found.items()} for metric, found in ranks.items()}
    )


def _unsettled(records: Sequence[Record], settled: float) -> list[str]:
    """How many fits had not settled, of all that say how they ended; of none nothing."""
    changes = [(r.cell.method, r.metrics["bound_change"]) for r in records if "bound_change" in r.metrics]
    moving = Counter(method for method, change in changes if abs(change) > settled)
    if not moving:
        return []
    named = ", ".join(f"{method} {count}" for method, count in moving.most_common())
    return ["", f"{moving.total()} of {len(changes)} fits had not settled ({named}): ranks of this budget."]


def _table(lines: Sequence[Line]) -> str:
    columns = {
        "method": [line.method for line in lines],
        "ours": [_rank(line.ours) for line in lines],
        "published": [str(line.published or "") for line in lines],
        "z": [z_text(line) for line in lines],
    }
    return markdown_table(pd.DataFrame(columns), "lrrr")


def _rank(found: Summary) -> str:
    return f"{found.mean:.2f}" if found.se is None else f"{found.mean:.2f} ± {found.se:.2f}"


def _verdict(lines: Sequence[Line]) -> list[str]:
    """How many ranks are far from the print, of the methods that have a z, and which; of none nothing."""
    measured = [line for line in lines if line.z is not None]
    if not measured:
        return []
    far = [f"{line.method} (z {line.z:.1f})" for line in measured if line.far]
    named = f": {', '.join(far)}, which is not explained" if far else ""
    return ["", f"|z| > {FAR:g} in {len(far)} of {len(measured)}{named}."]
