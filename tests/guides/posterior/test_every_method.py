"""Every method ends in a posterior that answers the same questions and survives a file."""

from __future__ import annotations

import math

import numpy as np
import numpyro
import numpyro.distributions as ndist
import pyro
import pytest
import torch
from pyro import distributions as dist

from guides import (
    AutoMeanField,
    AutoMNF,
    AutoSpikeSlab,
    AutoSpikeSlabMVN,
    Horseshoe,
    JointSpikeSlab,
    ProbabilisticBackpropagation,
    SpikeSlab,
    fit_ensemble,
)
from guides.implicit import (
    AdversarialVariationalBayes,
    FunctionalBNN,
    GaussianProcess,
    SparseImplicitProcess,
    VariationalImplicitProcess,
)
from guides.posterior import Posterior, log_joint
from guides.truth import (
    Gates,
    conjugate_linear_regression,
    enumerate_spike_slab,
    enumerate_spike_slab_logistic,
    normal_gamma_regression,
    nuts,
    spike_slab_logistic_gibbs,
    spike_slab_logistic_model,
)
from guides.variational.varbvs import VARBVS
from zoo.models.implicit_process import BNNProcess

N, P, DRAWS = 30, 3, 40
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, P))
Y = X @ [1.0, 0.0, -0.5] + 0.3 * RNG.standard_normal(N)
LABELS = (Y > 0).astype(float)
x, y = torch.tensor(X, dtype=torch.float32), torch.tensor(Y, dtype=torch.float32)
GATES = Gates(max_rhat=9.0, min_ess_bulk=0.0, max_divergence_share=1.0)


def regression(x, y=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(P), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 0.3), obs=y)


def twin(x, y=None):
    w = numpyro.sample("w", ndist.Normal(0.0, 1.0).expand([P]).to_event(1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", ndist.Normal(x @ w, 0.3), obs=y)


def sparse(x, y=None):
    w = pyro.sample("w", SpikeSlab(0.5, torch.zeros(P), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 0.3), obs=y)


def layered(x, y=None):
    w1 = pyro.sample("w1", dist.Normal(torch.zeros(4, P), 1.0).to_event(2))
    w2 = pyro.sample("w2", dist.Normal(torch.zeros(1, 4), 1.0).to_event(2))
    output = torch.nn.functional.linear(torch.relu(torch.nn.functional.linear(x, w1)), w2).squeeze(-1)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(output, 0.3), obs=y)


def from_guide(guide):
    guide.setup(x, y)
    return Posterior.from_guide(guide, DRAWS)


def backpropagation():
    return ProbabilisticBackpropagation(layered).fit(x, y, epochs=1).posterior(DRAWS)


def by_varbvs(family, targets, **options):
    return VARBVS(family, starts=1, **options).fit(X, targets).posterior(DRAWS)


def by_nuts(**options):
    data = {"pyro": (x, y), "numpyro": (X, Y)}[options["backend"]]
    short = {"warmup": 10, "draws": DRAWS // 2, "gates": GATES, "retries": 0}
    return nuts(args=data, **short, **options).posterior(regression)


def by_gibbs():
    run = spike_slab_logistic_gibbs(X, LABELS, draws=DRAWS // 2, warmup=10, chains=2, gates=GATES)
    return run.posterior(spike_slab_logistic_model(P))


METHODS = {
    "a guide": lambda: from_guide(AutoMeanField(regression)),
    "a guide of spikes and slabs": lambda: from_guide(AutoSpikeSlab(sparse)),
    "a guide of a rewritten model": lambda: from_guide(AutoMeanField(Horseshoe(["w"])(regression))),
    "an ensemble": lambda: fit_ensemble(regression, x, y, members=DRAWS // 10, steps=2),
    "probabilistic backpropagation": backpropagation,
    "varbvs": lambda: by_varbvs("linear", Y),
    "varbvs on a grid": lambda: by_varbvs("linear", Y, inclusion_prob=[0.2, 0.5], bias_scale=0),
    "varbvs, logistic": lambda: by_varbvs("logistic", LABELS, bias_scale=math.inf),
    "conjugate": lambda: conjugate_linear_regression(X, Y, prior_scale=1.0, noise_scale=0.3).posterior(DRAWS),
    "normal-gamma": lambda: normal_gamma_regression(X, Y).posterior(DRAWS),
    "enumeration": lambda: enumerate_spike_slab(X, Y).posterior(DRAWS),
    "enumeration, known noise": lambda: enumerate_spike_slab(X, Y, noise_scale=0.3).posterior(DRAWS),
    "enumeration, logistic": lambda: enumerate_spike_slab_logistic(X, LABELS).posterior(DRAWS),
    "gibbs": by_gibbs,
    "nuts": lambda: by_nuts(model=twin, backend="numpyro"),
    "nuts of pyro": lambda: by_nuts(model=regression, backend="pyro"),
}
CHAINS = {"gibbs": 2, "nuts": 2, "nuts of pyro": 2}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "nuts" else ()) for name in METHODS]
)
def test_all_questions_and_the_file(name, tmp_path):
    posterior = METHODS[name]()
    logistic = isinstance(posterior.predictive(x), dist.Bernoulli)
    data = torch.tensor(LABELS if logistic else Y, dtype=torch.float32)
    size = len(posterior)
    assert all(len(value) == size for value in posterior.draws().values())
    assert all(len(value) == 3 for value in posterior.draws(3).values())
    assert posterior.info["method"]
    values = posterior.function(x)
    assert values.shape == (size, N)
    law, noiseless = posterior.predictive(x), posterior.predictive(x, noise=False)
    assert law.batch_shape == noiseless.batch_shape == (N,)
    assert law.log_prob(data.to(values.dtype)).isfinite().all()
    torch.testing.assert_close(noiseless.mean, values.mean(0))
    # the sites are those of the model: all of them have a density, and no other is left to draw
    assert log_joint(posterior.model, posterior.draws(), x, data).shape == (size,)
    idata = posterior.to_arviz(x, observed_data={"y": data})
    chains = CHAINS.get(name, 1)
    assert idata["posterior"].sizes["chain"] == chains
    assert idata["log_likelihood"]["y"].shape == (chains, size // chains, N)
    assert bool(posterior.sample_stats) == (name in CHAINS)
    posterior.save(tmp_path / "fit.nc", x, observed_data={"y": data})
    again = Posterior.load(tmp_path / "fit.nc", posterior.model)
    assert again.info == posterior.info
    assert_same(again.sites, posterior.sites)
    assert_same(again.sample_stats, posterior.sample_stats)
    torch.testing.assert_close(again.predictive(x).mean, law.mean, rtol=0, atol=0)
    assert set(again.to_arviz().attrs) == set(idata.attrs)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
        assert np.asarray(found[name]).dtype == np.asarray(value).dtype


def test_models_of_enumerations_are_their_densities():
    """Bayes: log joint - log posterior density is the evidence, at any point."""
    exact = conjugate_linear_regression(X, Y, prior_scale=[0.5, 1.0, 2.0], noise_scale=0.3)
    draws = exact.posterior(5).draws()
    law = dist.MultivariateNormal(torch.tensor(exact.mean), precision_matrix=torch.tensor(exact.precision))
    evidence = log_joint(exact.model, draws, X, torch.tensor(Y)) - law.log_prob(draws["w"])
    np.testing.assert_allclose(evidence, exact.log_evidence, rtol=1e-10)
    exact = normal_gamma_regression(X, Y, prior_scale=0.7, a=2.0, b=1.5)
    draws = exact.posterior(5).draws()
    tau, precision = draws["noise_precision"], torch.tensor(exact.precision)
    law = dist.MultivariateNormal(torch.tensor(exact.mean), precision_matrix=precision * tau[:, None, None])
    density = law.log_prob(draws["w"]) + dist.Gamma(exact.a, exact.b).log_prob(tau)
    np.testing.assert_allclose(
        log_joint(exact.model, draws, X, torch.tensor(Y)) - density, exact.log_evidence, rtol=1e-6
    )


@pytest.mark.parametrize("noise_scale", [None, 0.4])
def test_model_of_the_enumeration_of_spikes_and_slabs(noise_scale):
    """Within a model of columns the posterior is Gaussian: Bayes gives that model's evidence back."""
    q = np.array([0.3, 0.5, 0.6])
    options = {"slab_scale": 1.3, "a": 2.0, "b": 1.5, "noise_scale": noise_scale}
    exact = enumerate_spike_slab(X, Y, inclusion_prob=q, **options)
    draws = exact.posterior(20, seed=1).draws()
    joint = log_joint(exact.model, draws, X, torch.tensor(Y))
    for i in range(20):
        inside = draws["w"][i] != 0
        columns, number = X[:, inside.numpy()], int((inside * 2 ** torch.arange(P)).sum())
        given = normal_gamma_regression(columns, Y, prior_scale=1.3, a=2.0, b=1.5)
        law = dist.Gamma(given.a, given.b)
        tau = draws["noise_precision"][i] if noise_scale is None else torch.tensor(noise_scale**-2.0)
        density = law.log_prob(tau) if noise_scale is None else 0.0
        root = torch.tensor(given.precision) * tau
        density += dist.MultivariateNormal(torch.tensor(given.mean), precision_matrix=root).log_prob(
            draws["w"][i][inside]
        )
        prior = np.log(np.where(inside, q, 1 - q)).sum()
        assert joint[i] - density - prior == pytest.approx(exact.model_log_evidence[number], rel=1e-6)


def test_model_of_logistic_selection():
    model = spike_slab_logistic_model(P, [0.2, 0.3, 0.4], [1.0, 2.0, 3.0], 1.5)
    w, b = torch.tensor([[0.5, 0.0, -1.0]], dtype=torch.float64), torch.tensor([0.3], dtype=torch.float64)
    found = log_joint(model, {"w": w, "b": b}, X, torch.tensor(LABELS))
    eta = torch.tensor(X) @ w[0] + b
    expected = math.log(0.2) + dist.Normal(0.0, 1.0).log_prob(w[0, 0]) + math.log(0.7) + math.log(0.4)
    expected += dist.Normal(0.0, 3.0).log_prob(w[0, 2]) + dist.Normal(0.0, 1.5).log_prob(b[0])
    expected += torch.nn.functional.logsigmoid((2 * torch.tensor(LABELS) - 1) * eta).sum()
    torch.testing.assert_close(found[0], expected)


@pytest.mark.parametrize("noise", [True, False])
def test_closed_forms_predict_what_their_draws_predict(noise):
    for exact in (
        conjugate_linear_regression(X, Y, prior_scale=1.0, noise_scale=0.3),
        normal_gamma_regression(X, Y, a=3.0),
    ):
        law = exact.predictive(X[:4], noise)
        drawn = exact.posterior(20_000).predictive(X[:4], noise=noise)
        error = law.stddev / 20_000**0.5
        assert ((law.mean - drawn.mean).abs() < 5 * error).all()
        torch.testing.assert_close(law.stddev, drawn.variance.sqrt(), rtol=0.03, atol=0)


@pytest.mark.parametrize("n", [0, -1, 2.5, True, x])
def test_no_method_draws_a_number_that_is_no_count(n):
    """Torch would say that it cannot make such a tensor, or give a posterior without draws."""
    message = f"must be a positive whole number, got {'a Tensor' if n is x else n}$"
    process = GaussianProcess(P)
    guides = [
        AutoMeanField(regression),
        AutoSpikeSlab(sparse),
        AutoMNF(sparse),
        AutoSpikeSlabMVN(sparse),
        JointSpikeSlab(sparse),
        VARBVS(),
        ProbabilisticBackpropagation(layered),
        AdversarialVariationalBayes(regression),
        SparseImplicitProcess(process, 5),
        VariationalImplicitProcess(process),
        FunctionalBNN(BNNProcess(P), process),
        Posterior.from_draws(regression, {"w": torch.zeros(7, P)}),
    ]
    for guide in guides:
        with pytest.raises(ValueError, match=f"^n {message}"):
            guide.draws(n)
    for guide in guides[8], guides[10]:
        with pytest.raises(ValueError, match=f"^num_samples {message}"):
            guide.predictive(x, num_samples=n)
    fitted = AutoMeanField(regression)
    fitted(x, y)
    with pytest.raises(ValueError, match=f"^n {message}"):
        Posterior.from_guide(fitted, n)
