"""Message passing: probabilistic backpropagation, with Gaussian and with spike-and-slab messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from zoo.models.entries import Card
from zoo.registry.entries import GuideEntry
from zoo.registry.refusals import refuses_messages

if TYPE_CHECKING:  # slow to import
    from zoo.fitting.methods import Method

EPOCHS = 40
PBP = (
    "Hernandez-Lobato and Adams 2015, Probabilistic Backpropagation for Scalable Learning of Bayesian Neural "
    "Networks (ICML)"
)
CODE = "guides.ProbabilisticBackpropagation(model, messages={!r}).fit(x, y, epochs={})"
FORTY = (
    f"counts the data {EPOCHS} times: sharper than the posterior (0.13 to 0.16 of its sd on yacht, "
    "0.30 to 0.33 on boston), though it may predict better"
)
ONCE = "depends on the order of the rows and on the random start, which is part of the prior; learns little"
COMMON = (
    "q: an independent Gaussian for every weight, a Gamma for the noise and the weight precision\n"
    "a row goes through the network as {}, moments matched after every operation\n"
    "Z = evidence of the row;  m' = m + v dlogZ/dm,  v' = v - v^2 ((dlogZ/dm)^2 - 2 dlogZ/dv)\n"
    "after each pass one sweep of expectation propagation over the prior's sites"
)
GAUSSIAN = COMMON.format("a Gaussian (mean, variance)")
SPIKE_SLAB = (
    COMMON.format("a spike and slab (rho, mean, variance)")
    + "\nrelu: rho' = rho Phi(m/sqrt v); linear: pi = 1 - prod(1 - rho), which is 1 wherever there is a bias"
)
ASSUMES = "linear layers, relu or leaky relu, a Gaussian likelihood; any plain Pyro model of that kind"


def _passes(messages: str, epochs: int) -> Callable[[], Method]:
    def make() -> Method:
        from zoo.fitting.message_passing import MessagePassing

        return MessagePassing(messages, epochs)

    return make


def _both(
    name: str, summary: str, messages: str, model: str, law: str, fails: str, citation: str = ""
) -> tuple[GuideEntry, GuideEntry]:
    """The published schedule, and the one pass that counts every row once."""
    short = f"{name}-1-epoch"
    common = {"paper": "sspbp", "model": model, "citation": citation, "refuses": refuses_messages}
    return (
        GuideEntry(
            name,
            f"{summary}, {EPOCHS} passes",
            _passes(messages, EPOCHS),
            code=CODE.format(messages, EPOCHS),
            card=Card(
                law, ASSUMES, "no gradient descent; seconds on the UCI sets", "; ".join((FORTY, fails))
            ),
            note=f"{EPOCHS} passes over the data count it {EPOCHS} times: no approximation of the posterior",
            beside=(short,),
            **common,
        ),
        GuideEntry(
            short,
            f"{name} in one pass: every row counts once",
            _passes(messages, 1),
            code=CODE.format(messages, 1),
            card=Card(law, ASSUMES, f"a fraction of {name}", "; ".join((ONCE, fails))),
            note="one pass",
            **common,
        ),
    )


ENTRIES = (
    *_both(
        "pbp",
        "probabilistic backpropagation",
        "gaussian",
        "pbp-bnn",
        GAUSSIAN,
        "saturated units are no Gaussians",
        PBP,
    ),
    *_both(
        "sspbp",
        "spike-and-slab messages",
        "spike-slab",
        "pbp-bnn-no-bias",
        SPIKE_SLAB,
        "with biases it is pbp, number for number; without them (pbp-bnn-no-bias) it differs little",
    ),
)
