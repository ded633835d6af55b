"""Posteriors over functions: sparse implicit processes, and what they were compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from zoo.models.entries import Card
from zoo.models.traits import Traits
from zoo.registry.entries import GuideEntry
from zoo.registry.refusals import refuses_spikes

if TYPE_CHECKING:  # slow to import
    from zoo.fitting.methods import Method

VIP = "Ma, Li and Hernandez-Lobato 2019, Variational Implicit Processes (ICML)"
FBNN = "Sun, Zhang, Shi and Grosse 2019, Functional Variational Bayesian Neural Networks (ICLR)"
AVB = "Mescheder, Nowozin and Geiger 2017, Adversarial Variational Bayes (ICML)"
AADM = (
    "Rodriguez Santana and Hernandez-Lobato 2022, Adversarial alpha-divergence minimization for Bayesian "
    "approximate inference (Neurocomputing)"
)
#: What a reader of distances to a reference must know.
OWN_PRIOR = "a trained prior of functions in place of the model's: no approximation of its posterior"
ONE_COLUMN = "with one column of x alpha is 1: it learns the predictive density, grade it by log likelihood"
REGRESSION = "regression, standardised columns and target; Gaussian noise, the same everywhere"


def refuses_classes(traits: Traits) -> str:
    """Of a guide whose functions take the place of a network's."""
    if traits.weights != "gaussian" or traits.inputs != "rows" or traits.selects:
        return "its functions take the place of a plain network's (bnn)"
    if traits.likelihood != "normal":
        return f"its functions have Gaussian noise, and the likelihood is {traits.likelihood}"
    return ""


def _method(name: str) -> Callable[[], Method]:
    def make() -> Method:
        from zoo.fitting.implicit import METHODS

        return METHODS[name]()

    return make


def _sip(name: str, summary: str, law: str, fails: str) -> GuideEntry:
    return GuideEntry(
        name,
        summary,
        _method(name),
        paper="sip",
        model="bnn",
        code="guides.implicit.SparseImplicitProcess(prior, 50).fit(x, y)",
        refuses=refuses_classes,
        note=f"{OWN_PRIOR}; {ONE_COLUMN}",
        card=Card(
            law=f"{law}\n"
            "q(f, u) = p(f | u) q(u): u at 50 (one column: 20) inputs that move, from a network of noise\n"
            "p(f | u): Gaussian, by the moments of five times as many drawn functions\n"
            "maximised: alpha energy - (KL(q || p) + KL(p || q)) / 2, by a classifier",
            assumes=REGRESSION,
            cost="some 40 ms of CPU time a step of 100 rows, whatever their number; a third in one column",
            fails=fails,
        ),
    )


ENTRIES = (
    _sip(
        "sip-bnn",
        "sparse implicit process, prior a network",
        "f: a 50-50 network whose weights' means and sds are trained",
        "no bound; the classifier saturates in most fits, its divergence is a penalty then; parameters of "
        "single weights overfit small data (boston, 10,000 steps with --lr 0.01: log likelihood -79), so the "
        "learning rate times the steps is as published at most: 0.05 a row",
    ),
    _sip(
        "sip-ns",
        "sparse implicit process, a neural sampler",
        "f(x) = a(x)' v(e), e ~ N(0, I) of 10 dimensions: two networks",
        "its functions span ten dimensions: the divergence at more inducing inputs is infinite, and the "
        "classifier always saturated; with several columns it learns small tables by heart: dropout 0.2 "
        "below 2000 rows and a bound on learning rate times steps, 0.04 a row, keep it from that (boston in "
        "`zoo reproduce sip/uci`: log likelihood -2.34, sip-bnn -2.24)",
    ),
    GuideEntry(
        "vip",
        "variational implicit process: 20 functions",
        _method("vip"),
        paper="sip",
        model="bnn",
        code="guides.implicit.VariationalImplicitProcess(prior, 20).fit(x, y)",
        citation=VIP,
        refuses=refuses_classes,
        note=OWN_PRIOR,
        card=Card(
            law="f = m + phi' a,  phi_s = (f_s - m) / sqrt(S - 1) of S = 20 functions drawn once\n"
            "q(a) = N(mu, Sigma), full; alpha energy and KL in closed form\n"
            "prior: a 10-10 network whose weights' means and sds are trained",
            assumes=REGRESSION,
            cost="5 ms a step of 100 rows",
            fails="20 functions span little; long fits learn a small table by heart until no noise is left: "
            "the more steps, the smaller its learning rate; its predictive is one Gaussian a row",
        ),
    ),
    *(
        GuideEntry(
            name,
            summary,
            _method(name),
            paper="sip",
            model="bnn",
            code=f"guides.implicit.FunctionalBNN(network, {code}).fit(x, y)",
            citation=FBNN,
            refuses=refuses_classes,
            note=OWN_PRIOR,
            card=Card(
                law="f: a 50-50 network, an independent Gaussian on every weight\n"
                f"prior: {words}, fitted by evidence first\n"
                "gradient of KL(q || p) at 20 rows and 10 random inputs, by spectral estimates of scores",
                assumes=REGRESSION,
                cost="10 ms a step of 20 rows",
                fails="the gradient is biased, the more inputs the more; no bound, and no value to watch",
            ),
        )
        for name, summary, code, words in (
            (
                "fbnn-bnn",
                "functional BNN, prior a network",
                "BNNProcess(13)",
                "a 50-50 network, one mean and one sd a layer",
            ),
            (
                "fbnn-gp",
                "functional BNN, prior a Gaussian process",
                "GaussianProcess(13)",
                "a Gaussian process, a length for every column",
            ),
        )
    ),
    GuideEntry(
        "avb",
        "weights from a network of noise (AVB)",
        _method("avb"),
        paper="sip",
        model="bnn",
        code="guides.implicit.AdversarialVariationalBayes(model).fit(x, y)",
        citation=AVB,
        refuses=refuses_spikes,
        note="a classifier estimates its divergence: no bound on the evidence",
        card=Card(
            law="w = network(e), e ~ N(0, I) of 100 dimensions\n"
            "maximised: E log p(y | w) - KL(q || p), the KL by adaptive contrast: a classifier of whitened "
            "draws and the Gaussian with their moments",
            assumes="real, positive or unit-interval sites, whatever the model",
            cost="10 ms a step of 100 rows on boston",
            fails="its divergence is an estimate: no bound, and 10,000 steps can end farther from the "
            "posterior than 2000 (boston: W1 0.52 and 0.35 sds of NUTS); with fewer than five draws a "
            "weight a classifier has to find the correlations, and is saturated; with more weights than "
            "noise dimensions or units q has no density",
        ),
    ),
    GuideEntry(
        "aadm",
        "avb with an alpha energy (AADM)",
        _method("aadm"),
        paper="sip",
        model="bnn",
        code="guides.implicit.AADM(model, alpha=0.5).fit(x, y)",
        citation=AADM,
        refuses=refuses_spikes,
        note=f"another posterior: alpha is 1/2; {ONE_COLUMN}",
        card=Card(
            law="as avb, with (1/alpha) log E p(y | w)^alpha a row in place of E log p(y | w)",
            assumes="as avb",
            cost="as avb",
            fails="as avb; alpha = 1 learns the predictive density and not the posterior",
        ),
    ),
)
