"""The guides of latent binary Bayesian networks, and what these are compared with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from zoo.models.entries import Card
from zoo.registry.entries import GuideEntry
from zoo.registry.refusals import refuses_networks, refuses_spikes, refuses_unknown_scales

if TYPE_CHECKING:  # slow to import
    from zoo.fitting.methods import Method

MEMBERS = 5
#: Of a 784-400-600-10 network (zoo reproduce lbbnn/cost).
EPOCH = "an epoch on MNIST takes {} times that of a deterministic network; {}"
SPARSE = "a spike-and-slab prior; weights of linear or convolutional layers, rows meet in no likelihood term"
NO_BOUND = "points and masks have no density: no bound on the evidence"


def _variational(guide: str, *, proper: bool = True, **options: str) -> Callable[[], Method]:
    """Stochastic variational inference with a guide of the package ``guides``, which takes the options.

    :param proper: whether its loss bounds the evidence, and its draws have a density; points have neither
    """

    def make() -> Method:
        import guides
        from zoo.fitting.methods import Variational

        build = partial(getattr(guides, guide), **options)
        return Variational(build, bounds=proper, has_density=proper)

    return make


def _horseshoe() -> Method:
    from guides import AutoMeanField
    from zoo.fitting.horseshoe import product_weights, with_horseshoe
    from zoo.fitting.methods import Variational

    return Variational(
        AutoMeanField, bounds=False, has_density=False, replace=with_horseshoe, translate=product_weights
    )


def _selection() -> Method:
    from zoo.fitting.variable_selection import VariationalSelection

    return VariationalSelection()


def _joint_selection() -> Method:
    from zoo.fitting.variable_selection import JointSelection

    return JointSelection()


def _points(members: int) -> Callable[[], Method]:
    """Networks at modes."""

    def make() -> Method:
        from zoo.fitting.point_estimates import PointEstimates

        return PointEstimates(members)

    return make


SPARSE_GUIDES = (
    GuideEntry(
        "spike-slab",
        "independent spikes and slabs (LBBNN-LRT)",
        _variational("AutoSpikeSlab"),
        paper="lbbnn",
        model="spike-slab-bnn",
        code="guides.AutoSpikeSlab",
        needs="spike-slab",
        called=("lrt",),
        card=Card(
            law="q(w) = (1 - alpha) [w = 0] + alpha N(w; mu, sigma^2), independent\n"
            "E w = alpha mu,  Var w = alpha (sigma^2 + (1 - alpha) mu^2)\n"
            "a layer's output is drawn with these moments (local reparameterization); KL in closed form",
            assumes=SPARSE + "; outputs are Gaussian only for many inputs",
            cost=EPOCH.format(2.8, "three numbers a weight"),
            fails="decides for one of two correlated columns, which one depends on the start; with few rows "
            "the bound prefers the prior to the data; the thesis prints a wrong variance (alpha^2 sigma^2, "
            "zoo reproduce lbbnn/variance shows what that does)",
        ),
    ),
    GuideEntry(
        "mnf",
        "spikes and slabs and a flow (LBBNN-MNF)",
        _variational("AutoMNF"),
        paper="lbbnn",
        model="spike-slab-bnn",
        code="guides.AutoMNF",
        needs="spike-slab",
        card=Card(
            law="z = flow of a Gaussian: one number an input (a filter in a convolution)\n"
            "q(w_ij | z) = (1 - alpha_ij) [w = 0] + alpha_ij N(w; z_i mu_ij, sigma_ij^2)\n"
            "bound with an auxiliary density r(z | w): KL(q(w | z) || p) + log q(z) - log r(z | w)",
            assumes=SPARSE,
            cost=EPOCH.format(4.0, "the flows add a third to the parameters there"),
            fails="looser than it need be by E KL(q(z | w) || r(z | w)); the published programs evaluate r "
            "at one coordinate only, and equation 3.7's log-determinant is not that of its map",
        ),
    ),
    GuideEntry(
        "mnf-iaf",
        "mnf with an autoregressive flow (LBBNN-FLOW)",
        _variational("AutoMNF", flow="iaf"),
        paper="lbbnn",
        model="spike-slab-bnn",
        code='guides.AutoMNF(model, flow="iaf")',
        needs="spike-slab",
        card=Card(
            law="as mnf, the flow z' = g z + (1 - g) t with g, t from a masked autoregressive network",
            assumes=SPARSE,
            cost="as mnf; its log density (Pareto k) inverts the flow one coordinate after another",
            fails="as mnf",
        ),
    ),
    GuideEntry(
        "concrete",
        "relaxed spikes and slabs (LBBNN-GP-MF)",
        _variational("AutoConcrete"),
        paper="lbbnn",
        model="spike-slab-bnn",
        code="guides.AutoConcrete",
        citation="Hubin and Storvik 2019, with the concrete distribution of Maddison, Mnih and Teh 2017 "
        "(ICLR) and Jang, Gu and Poole 2017 (ICLR)",
        needs="spike-slab",
        card=Card(
            law="q as in spike-slab; in training w = g b with b ~ N(mu, sigma^2),\n"
            "g = sigmoid((logit alpha - logit u) / T), u uniform; T falls from 1 to 0.1",
            assumes="a spike-and-slab prior; any use of a weight, also twice or where rows meet",
            cost=EPOCH.format(3.0, "three numbers a weight"),
            fails="biased by the temperature: relaxed indicators vary less than real ones; the gradient's "
            "variance grows as 1/T",
        ),
    ),
    GuideEntry(
        "mvn",
        "spikes and slabs with correlated inclusion",
        _variational("AutoSpikeSlabMVN"),
        paper="lbbnn",
        model="spike-slab-bnn",
        code="guides.AutoSpikeSlabMVN",
        citation="Hubin and Storvik 2019, Combining Model and Parameter Uncertainty in Bayesian Neural "
        "Networks (arXiv:1903.07594)",
        needs="spike-slab",
        card=Card(
            law="for every output unit: lambda ~ N(m, diag(d) + V V'), gamma ~ Bernoulli(sigmoid(lambda))\n"
            "w = gamma b, b ~ N(mu, sigma^2)\n"
            "bound with a Gaussian r(lambda | gamma), which the published programs leave out",
            assumes=SPARSE,
            cost="O(n r^2) a unit of n inputs and rank r; r is 4",
            fails="without r correlation can only lower the bound; where exactly one of two columns is in, "
            "the Gaussian r loses 0.19 of the log 2 nats to be won",
        ),
    ),
    GuideEntry(
        "joint-spike-slab",
        "spikes and slabs with a joint law",
        _joint_selection,
        paper="lbbnn",
        model="spike-slab-logistic",
        code="guides.JointSpikeSlab",
        citation="this package; the indicators' law is that of Frey, Hinton and Dayan 1996 (NeurIPS), their "
        "gradient that of Salimans and Knowles 2014 (arXiv:1401.1022)",
        needs="spike-slab",
        refuses=refuses_networks,
        card=Card(
            law="gamma_j | gamma_<j ~ Bernoulli(sigmoid(a_j + sum_i B_ji (gamma_i - 1/2)))\n"
            "w_G | gamma ~ N(P_GG^-1 h_G, P_GG^-1),  G: the weights that are in\n"
            "gradient of the indicators by draws that measure each other; slabs reparameterised",
            assumes="linear or logistic regression (in Python any likelihood); at most 300 latent numbers",
            cost="O(S (N p + p^3)) a step of S = 32 draws, float64: some 2 times a fit of spike-slab",
            fails="one P for all models: where the likelihood's curvature differs much from model to model "
            "the slabs are approximate, and the bound stops short of the evidence",
        ),
    ),
    GuideEntry(
        "varbvs",
        "coordinate ascent for variable selection",
        _selection,
        paper="lbbnn",
        model="spike-slab-logistic",
        code="guides.variational.varbvs.VARBVS",
        citation="Carbonetto and Stephens 2012, Scalable Variational Inference for Bayesian Variable "
        "Selection in Regression (Bayesian Analysis 7)",
        needs="spike-slab",
        refuses=refuses_networks,
        card=Card(
            law="q(w_j) = (1 - alpha_j) [w_j = 0] + alpha_j N(w_j; mu_j, s_j^2); the intercept given w "
            "exactly\n"
            "logistic likelihood: the quadratic bound of Jaakkola and Jordan",
            assumes="linear or logistic regression",
            cost="the best of 10 starts, seconds",
            fails="decides for one of two correlated columns; linear: noise is a point, so no bound on the "
            "evidence; logistic: a looser bound than the other guides'",
        ),
    ),
)
GAUSSIAN_GUIDES = (
    GuideEntry(
        "mean-field",
        "independent Gaussians, Bayes by backprop",
        _variational("AutoMeanField"),
        paper="lbbnn",
        model="bnn",
        code="guides.AutoMeanField",
        citation="Blundell et al. 2015, Weight Uncertainty in Neural Networks (ICML); Kingma, Salimans and "
        "Welling 2015, Variational Dropout and the Local Reparameterization Trick (NeurIPS)",
        called=("gaussian",),
        card=Card(
            law="q(w) = N(mu, sigma^2), independent; precisions log-normal\n"
            "a layer's output is drawn with its Gaussian moments; KL in closed form",
            assumes="continuous sites (a spike and slab gets a Gaussian that never visits the spike)",
            cost=EPOCH.format(2.6, "two numbers a weight"),
            fails="close in prediction, far from the posterior: on boston its mean is off by more than one "
            "posterior sd, which it overstates by a third",
        ),
    ),
    GuideEntry(
        "gaussian-mnf",
        "multiplicative normalizing flows (MNF)",
        _variational("AutoMNF"),
        paper="lbbnn",
        model="bnn",
        code="guides.AutoMNF",
        citation="Louizos and Welling 2017, Multiplicative Normalizing Flows for Variational Bayesian "
        "Neural Networks (ICML)",
        refuses=refuses_spikes,
        card=Card(
            law="q(w_ij | z) = N(w; z_i mu_ij, sigma_ij^2), z and bound as in mnf",
            assumes="Gaussian weights in linear or convolutional layers",
            cost="mean-field and the flows",
            fails="looser than it need be by E KL(q(z | w) || r(z | w))",
        ),
    ),
    GuideEntry(
        "horseshoe",
        "horseshoe weights, each factor by mean field",
        _horseshoe,
        paper="lbbnn",
        model="bnn",
        code="guides.AutoMeanField(guides.Horseshoe()(model))",
        citation="Carvalho, Polson and Scott 2010, The Horseshoe Estimator for Sparse Signals "
        "(Biometrika 97)",
        refuses=refuses_unknown_scales,
        note="a horseshoe is the prior of its weights: no bound on the evidence of this model",
        card=Card(
            law="w = w_raw w_local w_global;  w_raw ~ N(0, s^2), w_local ~ HalfCauchy(1) an input, "
            "w_global ~ HalfCauchy(1)\nq: Gaussian w_raw, log-normal scales",
            assumes="Gaussian weights whose prior sd is known: their prior is replaced",
            cost="mean-field and one scale an input",
            fails="another prior than the model's: no bound on its evidence, and no distance from its "
            "posterior that would be the guide's fault alone",
        ),
    ),
    GuideEntry(
        "group-normal-jeffreys",
        "a log-uniform scale an input (BNN-HP-MF)",
        _variational("AutoGroupNormalJeffreys", proper=False),
        paper="lbbnn",
        model="bnn",
        code="guides.AutoGroupNormalJeffreys",
        citation="Louizos, Ullrich and Welling 2017, Bayesian Compression for Deep Learning (NeurIPS)",
        refuses=refuses_unknown_scales,
        note="the prior of its scales is improper: no bound on an evidence",
        card=Card(
            law="w = z w~,  w~ ~ N(0, s^2),  p(z_i) ~ 1/|z_i| an input;  q: Gaussian z and w~\n"
            "KL of z by the fitted approximation of Molchanov, Ashukha and Vetrov (2017)",
            assumes="Gaussian weights whose prior sd is known: their prior is replaced",
            cost=EPOCH.format(3.1, "two numbers a weight"),
            fails="an improper prior: no evidence, no bound. Hubin and Storvik call it a horseshoe; it "
            "is none",
        ),
    ),
    GuideEntry(
        "mc-dropout",
        "dropout with probability 0.1",
        _variational("AutoDropout", proper=False),
        paper="lbbnn",
        model="bnn",
        code="guides.AutoDropout",
        citation="Gal and Ghahramani 2016, Dropout as a Bayesian Approximation (ICML)",
        refuses=refuses_unknown_scales,
        note=NO_BOUND,
        card=Card(
            law="w = M diag(z), z_i ~ Bernoulli(1 - p): all weights of an input are on or off together\n"
            "loss: likelihood + (1 - p)/2 |M|^2 / s^2 - K H(p)",
            assumes="Gaussian weights whose prior sd is known",
            cost=EPOCH.format(2.5, "one number a weight"),
            fails="its spread depends on p, not on the data",
        ),
    ),
    GuideEntry(
        "concrete-dropout",
        "dropout with learnt rates (BNN-GP-CMF)",
        _variational("AutoConcreteDropout", proper=False),
        paper="lbbnn",
        model="bnn",
        code="guides.AutoConcreteDropout",
        citation="Gal, Hron and Kendall 2017, Concrete Dropout (NeurIPS)",
        refuses=refuses_unknown_scales,
        note=NO_BOUND,
        card=Card(
            law="as mc-dropout, with a rate p for every layer learnt through masks relaxed at "
            "temperature 0.1",
            assumes="Gaussian weights whose prior sd is known",
            cost=EPOCH.format(2.8, "one number a weight"),
            fails="one rate a layer; biased by the temperature",
        ),
    ),
    GuideEntry(
        "map",
        "one network at a posterior mode",
        _points(1),
        paper="lbbnn",
        model="bnn",
        code="guides.fit_ensemble(model, x, y, members=1)",
        refuses=refuses_unknown_scales,
        note="a point",
        card=Card(
            law="argmax over w of log p(y | x, w) + log p(w)",
            assumes="Gaussian weights whose prior sd is known",
            cost="one optimisation",
            fails="no uncertainty about the function at all",
        ),
    ),
    GuideEntry(
        "deep-ensemble",
        f"{MEMBERS} networks at modes, from {MEMBERS} starts",
        _points(MEMBERS),
        paper="lbbnn",
        model="bnn",
        code=f"guides.fit_ensemble(model, x, y, members={MEMBERS})",
        citation="Lakshminarayanan, Pritzel and Blundell 2017, Simple and Scalable Predictive Uncertainty "
        "Estimation using Deep Ensembles (NeurIPS)",
        refuses=refuses_unknown_scales,
        note=f"{MEMBERS} points",
        card=Card(
            law=f"{MEMBERS} times map from independent starts; every member counts equally",
            assumes="Gaussian weights whose prior sd is known",
            cost=f"{MEMBERS} optimisations",
            fails="its spread comes from the starts, not from the posterior",
        ),
    ),
)
ENTRIES = (GAUSSIAN_GUIDES[0], *SPARSE_GUIDES, *GAUSSIAN_GUIDES[1:])
