"""How an experiment is declared: the average of dice, by mean and by median.  Takes a second."""

from __future__ import annotations

from collections.abc import Mapping

from zoo.experiments.engine.declaration import Cell, Effort, Experiment, Published, Source

FACES = {"fair": (1, 2, 3, 4, 5, 6), "loaded": (1, 6, 6, 6, 6, 6)}


def throw(cell: Cell) -> Mapping[str, float]:
    """Throws a die and averages; both methods of a trial see the same throws."""
    import numpy as np  # slow imports stand here: the list of experiments does not wait for them

    rng = np.random.default_rng(cell.split_seed)
    throws = rng.choice(FACES[cell.dataset], size=int(cell.setting) * cell.options["rounds"])
    np.save(cell.folder / "throws.npy", throws)  # a cell may leave files
    average = np.mean(throws) if cell.method == "mean" else np.median(throws)
    return {"average": float(average)}


EXPERIMENTS = (
    Experiment(
        name="example/dice",
        summary="The average of a die; shows how an experiment is declared.",
        source=Source("this package", "zoo/experiments/example.py"),
        run=throw,
        metrics={"average": "average of all throws, in eyes"},
        datasets=("fair", "loaded"),
        methods=("mean", "median"),
        settings=("10", "1000"),
        quick=Effort(trials=3, cost="a second", options={"rounds": 1}),
        full=Effort(trials=20, cost="a few seconds", options={"rounds": 10}),
        published={("fair", "mean", setting, "average"): Published(3.5, 0.0) for setting in ("10", "1000")},
        published_error="none: the exact expectation",
        notes={("*", "median", "*", "*"): "jumps by half an eye"},
    ),
)
