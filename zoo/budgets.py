"""What a comparison does by default, and how much of it.  Imports nothing: ``--help`` shows it at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

#: Guides that are graded when none are named, where they apply.
BASELINES = ("mean-field", "spike-slab")
#: Methods whose posterior is trusted, once it passes its gates.
REFERENCES = ("nuts", "exact", "gibbs")
#: Optimiser steps of ``zoo fit`` when their number is not given.
STEPS = 10_000


@dataclass(frozen=True)
class Budget:
    """How much work a comparison does.

    :ivar steps: of the optimiser, each guide that has one
    :ivar draws: from each fitted guide
    :ivar warmup: NUTS iterations a chain before the draws
    :ivar mcmc_draws: NUTS draws a chain
    :ivar chains: of NUTS
    """

    steps: int
    draws: int
    warmup: int
    mcmc_draws: int
    chains: int = 2

    @property
    def of_guides(self) -> str:
        return f"{self.steps} steps, {self.draws} draws a guide"

    def __str__(self) -> str:
        nuts = f"NUTS {self.chains} chains of {self.warmup} warm-up + {self.mcmc_draws}"
        return f"{self.of_guides}; {nuts}"


BUDGETS = {
    "quick": Budget(steps=2000, draws=500, warmup=500, mcmc_draws=500),
    "full": Budget(steps=10_000, draws=1000, warmup=600, mcmc_draws=600),
}


def budget_flags(budget: Budget) -> list[str]:
    """How a command line asks for it: by its name, and for its steps where these are other ones."""
    name, named = next(
        (name, named) for name, named in BUDGETS.items() if replace(budget, steps=named.steps) == named
    )
    steps = ["--steps", str(budget.steps)] if budget.steps != named.steps else []
    return ["--budget", name, *steps]


#: As lines of a help text.
BUDGET_LINES = "\n".join(f"  {name}: {budget}" for name, budget in BUDGETS.items())
