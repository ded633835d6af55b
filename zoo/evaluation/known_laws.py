"""What nobody can beat: rows of the scoreboard for data whose law is known."""

from __future__ import annotations

import torch
from torch.distributions import Categorical, Distribution, MixtureSameFamily, Normal

from data_loaders import LAWS, Dataset
from data_loaders.toy import ToyLaw
from zoo.evaluation.metrics import predictive_figures
from zoo.evaluation.scoreboard import Row

#: Sd of a law that has none somewhere.
LEAST_SD = 1e-6
TRUE, GAUSSIAN = "true-law", "best-gaussian"


def oracles(law: ToyLaw, x: torch.Tensor) -> dict[str, Distribution]:
    """Method -> predictive distribution at ``x: [N]`` in original units: the law itself, and the Gaussian
    with its mean and sd at every x, the best that a method can do whose predictive is Gaussian.
    """
    places = x.double().numpy()
    centres = torch.as_tensor(law.branches(places))
    noise = torch.as_tensor(law.noise(places)).clamp_min(LEAST_SD).unsqueeze(-1).expand_as(centres)
    mean, sd = torch.as_tensor(law.mean(places)), torch.as_tensor(law.sd(places))
    return {
        TRUE: MixtureSameFamily(Categorical(torch.ones_like(centres)), Normal(centres, noise)),
        GAUSSIAN: Normal(mean, sd.clamp_min(LEAST_SD)),
    }


def oracle_rows(dataset: Dataset) -> list[Row]:
    """Of a data set whose law is known, on its test rows; none for another."""
    if dataset.name not in LAWS or not len(dataset.y_test):
        return []
    x, y = torch.as_tensor(dataset.x_test[:, 0]), torch.as_tensor(dataset.y_test)
    return [
        Row.from_figures(name, "law", predictive_figures(predictive, y, "regression", 1.0, method=name))
        for name, predictive in oracles(LAWS[dataset.name], x).items()
    ]
