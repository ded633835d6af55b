"""Models of tables without a target, by name.  They have no likelihood to choose and no guide but their own
bootstrap, and so are no entries of the other catalogue.  Imports nothing slow.
"""

from __future__ import annotations

from dataclasses import dataclass

from zoo.models.entries import Card


@dataclass(frozen=True)
class DensityModel:
    """:ivar kind: of the flow, for :class:`zoo.models.normalizing_flow.FlowDensity`"""

    name: str
    kind: str
    summary: str
    card: Card
    paper: str = "npl"


_ASSUMES = (
    "rows that are independent, of at least two columns that are continuous: a column of few values has \
no density"
)
_COST = "a training of some hundred steps, 10 ms a step with 1000 rows; 100 draws cost as much as 25 steps"

DENSITY_MODELS = {
    model.name: model
    for model in (
        DensityModel(
            "maf",
            "maf",
            "masked autoregressive flow: 3 blocks, weighted batch normalisation",
            Card(
                law="z_i = (x_i - m_i(x_1 .. x_i-1)) exp(-a_i(x_1 .. x_i-1)), |a_i| < 3, block after block\n"
                "z ~ N(mean, I), a mean a draw",
                assumes=_ASSUMES,
                cost=_COST + "; a sample costs a pass a column",
                fails="far beyond the data a log density falls as a square: read medians of heavy tails",
            ),
        ),
        DensityModel(
            "realnvp",
            "realnvp",
            "affine couplings in place of autoregressive networks: quick samples",
            Card(
                law="half of the columns are scaled and shifted by a network of the others\n"
                "z ~ N(mean, I), a mean a draw",
                assumes=_ASSUMES,
                cost=_COST,
                fails="three couplings bend less than three autoregressive networks",
            ),
        ),
        DensityModel(
            "spline-flow",
            "spline",
            "autoregressive rational splines: the identity beyond 4 sds",
            Card(
                law="every column by a monotone spline of 8 bins, its knots a network's of those before\n"
                "z ~ N(mean, I), a mean a draw",
                assumes=_ASSUMES,
                cost="several times a step of maf; a sample costs a pass a column",
                fails="beyond 4 sds it has Gaussian tails, whatever the data",
            ),
        ),
    )
}
