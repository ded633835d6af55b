"""Average ranks of the methods over data sets and trials, as in the published table 1."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from zoo.experiments.engine.declaration import Record
from zoo.files.tables import write_text

#: Metric -> whether more of it is better.
MORE_IS_BETTER = {"rmse": False, "log_likelihood": True, "crps": False}


def average_ranks(
    records: Sequence[Record], methods: Sequence[str]
) -> tuple[dict[str, dict[str, float]], int]:
    """Metric -> method -> mean rank, 1 for the best of all methods, and over how many races.

    A race is a data set and a trial in which every method has finished; one that failed comes last.
    """
    races: dict[tuple[str, int], dict[str, Mapping[str, float]]] = defaultdict(dict)
    for record in records:
        races[record.cell.dataset, record.cell.trial][record.cell.method] = (
            record.metrics if record.ok else {}
        )
    whole = [race for race in races.values() if set(race) == set(methods)]
    ranks: dict[str, dict[str, float]] = {}
    if not whole:
        return ranks, 0
    for metric, more in MORE_IS_BETTER.items():
        sign = -1 if more else 1
        places = [[sign * race[name].get(metric, sign * np.inf) for name in methods] for race in whole]
        mean = np.mean([rankdata(row) for row in places], axis=0)
        ranks[metric] = dict(zip(methods, mean.tolist(), strict=True))
    return ranks, len(whole)


def write_ranks(
    out: Path,
    records: Sequence[Record],
    methods: Sequence[str],
    printed: Mapping[str, Mapping[str, str]],
) -> None:
    """``ranks.md`` and ``ranks.png``; nothing before a race is over.

    :param printed: metric -> method -> as published
    """
    from zoo.experiments.sip.plots import plot_ranks

    ranks, races = average_ranks(records, methods)
    if not races:
        return
    lines = [
        f"# Average ranks over {races} races of {len(methods)} methods",
        "",
        "A race is a data set and a split; 1 is best.  Published: 8 data sets, 20 splits.",
    ]
    for metric, found in ranks.items():
        lines += ["", f"## {metric}", "", "| method | ours | published |", "|:--|--:|--:|"]
        for name in sorted(found, key=found.get):
            lines.append(f"| {name} | {found[name]:.2f} | {printed.get(metric, {}).get(name, '')} |")
    write_text(out / "ranks.md", "\n".join(lines) + "\n")
    plot_ranks(out, ranks)
