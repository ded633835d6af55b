"""How long the ground truth takes: NUTS on a 1x50 network, 2 chains of 600 + 600, and whether it passes.

Boston housing when ZOO_DATA or the network gives it, else scikit-learn's diabetes; the bar is 3 minutes
on 2 cores.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from data_loaders import DataError
from guides.posterior import function_values, observed_laws
from guides.truth import nuts
from zoo.fitting.problem import load_problem
from zoo.models.bnn import BNN

BAR_SECONDS = 180.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    try:
        problem = load_problem("boston")
    except DataError as error:
        print(f"{error}; using diabetes")
        problem = load_problem("diabetes")
    model = BNN(problem.dataset.num_features)

    def function(draws: dict[str, np.ndarray]) -> np.ndarray:
        tensors = {name: torch.as_tensor(np.array(value)) for name, value in draws.items()}
        return function_values(observed_laws(model, tensors, problem.x_test)).numpy()

    result = nuts(model.twin, (problem.x.numpy(), problem.y.numpy()), function=function, seed=arguments.seed)
    found = result.diagnostics
    verdict = "passed" if result.passed else f"failed: {result.reason}"
    print(
        f"NUTS on {problem.dataset.name}: {result.seconds:.1f} s, "
        f"{result.seconds / BAR_SECONDS:.2f} of the bar, "
        f"{verdict}, R-hat {found['max_rhat']:.4f}, bulk ESS {found['min_ess_bulk']:.0f}, "
        f"{found['divergences']} divergences"
    )


if __name__ == "__main__":
    main()
