"""The families of papers in the zoo, by key.  Imports nothing slow: lists show it at once."""

from __future__ import annotations

from dataclasses import dataclass

from zoo.errors import unknown


@dataclass(frozen=True)
class Paper:
    """A family: models, guides and experiments that came with one line of work.

    :ivar key: short name; also the part before the slash in the names of its experiments
    :ivar title: what ``zoo list`` calls it
    :ivar citation: authors, years, titles, places
    """

    key: str
    title: str
    citation: str


PAPERS = {
    paper.key: paper
    for paper in (
        Paper(
            "sspbp",
            "spike-and-slab probabilistic backpropagation",
            "Ott and Williamson 2022, Spike-and-Slab Probabilistic Backpropagation: When Smarter "
            "Approximations Make No Difference (I Can't Believe It's Not Better workshop; chapter 3 of Ott's "
            "dissertation). It extends Hernandez-Lobato and Adams 2015, Probabilistic Backpropagation for "
            "Scalable Learning of Bayesian Neural Networks (ICML).",
        ),
        Paper(
            "lbbnn",
            "latent binary Bayesian neural networks",
            "Hubin and Storvik 2019, Combining Model and Parameter Uncertainty in Bayesian Neural Networks "
            "(arXiv:1903.07594); Skaaret-Lund 2022 (master's thesis, Oslo); Skaaret-Lund, Storvik and Hubin "
            "2023, Sparsifying Bayesian Neural Networks with Latent Binary Variables and Normalizing Flows "
            "(arXiv:2305.03395).",
        ),
        Paper(
            "npl",
            "nonparametric posteriors",
            "Lyddon, Walker and Holmes 2018, Nonparametric Learning from Bayesian Models with Randomized "
            "Objective Functions (NeurIPS); Fong, Lyddon and Holmes 2019, Scalable Nonparametric Sampling "
            "from Multimodal Posteriors with the Posterior Bootstrap (ICML); Ott 2022 (dissertation, "
            "chapter 4).",
        ),
        Paper(
            "sip",
            "posteriors over functions",
            "Rodriguez Santana, Zaldivar and Hernandez-Lobato 2022, Function-space Inference with Sparse "
            "Implicit Processes (ICML).",
        ),
        Paper(
            "graphs",
            "growing graphs",
            "Ott 2022 (dissertation, chapter 5: edge-based generative graph networks); Crane and Dempsey "
            "2018, Edge Exchangeable Models for Interaction Networks (JASA); Li, Vinyals, Dyer, Pascanu and "
            "Battaglia 2018, Learning Deep Generative Models of Graphs (arXiv:1803.03324).",
        ),
    )
}


def find_paper(key: str) -> Paper:
    """:raises UserError: naming the nearest keys"""
    if key not in PAPERS:
        raise unknown("paper", key, PAPERS)
    return PAPERS[key]
