"""A fit is silent and comes through data of any kind; what cannot be fitted is refused in one line."""

import math
from contextlib import nullcontext
from dataclasses import replace

import jax
import numpy as np
import pyro
import pytest
import torch
import torch.nn.functional as F
from pyro import distributions as dist
from pyro import poutine

from guides import ProbabilisticBackpropagation, UnsupportedSiteError
from guides.message_passing import fit_together
from tests.guides.message_passing.fits import SHARED, both_families, cases, close, fitted, same_fit
from tests.guides.message_passing.networks import INPUTS, NETWORKS, data, gamma, observe, pbp, weights


def test_a_fit_is_silent_and_changes_nothing_global(capfd):
    numpy_state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()
    guide = ProbabilisticBackpropagation(NETWORKS["pbp without bias"], "spike-slab").fit(*data(), epochs=3)
    guide.predictive(data()[0]), guide.draws(3), guide.posterior(3)
    assert torch.equal(torch_state, torch.get_rng_state())
    assert np.array_equal(numpy_state, np.random.get_state()[1])
    assert not jax.config.jax_enable_x64
    assert jax.numpy.zeros(1).dtype == jax.numpy.float32
    assert torch.get_default_dtype() == torch.float32
    assert capfd.readouterr() == ("", "")
    assert not pyro.get_param_store().keys()


def test_a_noise_that_cannot_be_told_is_told():
    """A target in thousands, whose noise precision is 1e-7 where the prior says about 1."""
    x, y = data()
    with pytest.warns(UserWarning, match=r"\d+ of 80 updates of the noise were refused.*standardise y"):
        guide = ProbabilisticBackpropagation(NETWORKS["pbp"]).fit(x, 3000 * y, epochs=2)
    assert guide.refused["noise"] > 0.01 * 2 * len(y)


@pytest.mark.parametrize(("refused", "told"), [(1, False), (2, True)])
def test_a_refusal_in_a_thousand_is_not_told(refused, told, monkeypatch):
    """Neither those of earlier calls."""
    x, y = data()
    guide = ProbabilisticBackpropagation(NETWORKS["pbp"]).fit(x, y, epochs=1)
    monkeypatch.setattr(ProbabilisticBackpropagation, "refused", {"noise": 500 + refused, "weights": 0})
    with pytest.warns(UserWarning, match="2 of 1000 updates") if told else nullcontext():
        guide._warn_of_refusals(1000, {"noise": 500})


def test_weights_that_cannot_be_told_are_told():
    """A target in hundreds of thousands, whose noise is said to be one tenth: no update counts, and the
    start is all that is predicted.
    """
    x, y = data()
    with pytest.warns(UserWarning, match="9.% of the updates of weights were refused.*standardise y"):
        ProbabilisticBackpropagation(pbp(noise_scale=0.1)).fit(x, 1e5 * y, epochs=1)


def test_refusals_are_told_where_fits_run_together_too():
    x, y = data()
    guides = [ProbabilisticBackpropagation(pbp(noise_scale=0.1)) for _ in range(2)]
    with pytest.warns(UserWarning, match="updates of weights were refused") as told:
        fit_together(guides, [(x, y), (x, 1e5 * y)], epochs=1, seeds=[0, 1])
    assert len(told) == 1


def test_a_few_refusals_among_many_passes_are_not_told(monkeypatch):
    """The share is one of the updates of all passes."""
    x, y = data()
    guide = ProbabilisticBackpropagation(pbp(noise_scale=0.1))
    monkeypatch.setattr(ProbabilisticBackpropagation, "refused", {"noise": 0, "weights": 84})
    fit_together([guide], [(x, y)], epochs=20, seeds=[0])
    guide.fit(x, y, epochs=20)
    with pytest.warns(UserWarning, match="10% of the updates"):
        guide.fit(x, y, epochs=1)


def test_refusals_of_rows_before_are_not_told_again():
    x, y = data()
    guide = ProbabilisticBackpropagation(NETWORKS["pbp"]).partial_fit(x, y)
    state = guide._fitted.state
    many = np.full_like(state.refused.noise, 10_000)
    counts = state.refused._replace(weights=many, noise=many)
    guide._fitted = replace(guide._fitted, state=state._replace(refused=counts))
    guide.partial_fit(x, y)
    assert guide.refused["noise"] == 10_000


def test_a_refused_fit_leaves_the_old_one():
    x, y = data()
    guide = ProbabilisticBackpropagation(NETWORKS["pbp"]).fit(x, y, epochs=1)
    before = guide.sites["w1"].mean.clone()
    with pytest.raises(ValueError, match="NaN"):
        guide.fit(x, torch.full_like(y, math.nan))
    assert torch.equal(guide.sites["w1"].mean, before)
    guide.sites["w1"].mean.zero_()  # what is handed out is a copy
    assert torch.equal(guide.sites["w1"].mean, before)


@pytest.mark.slow
def test_single_precision():
    """Weights in float32, inputs of any kind; near the result in float64."""
    x, y = data()
    exact = fitted()
    guide = ProbabilisticBackpropagation(NETWORKS["pbp"], dtype=torch.float32).fit(x, y, epochs=3)
    assert guide.sites["w1"].mean.dtype == torch.float32
    close(guide.predictive(x).mean, exact.predictive(x).mean, 1e-3)
    assert guide.draws(2)["w1"].dtype == torch.float64  # as the model has them


@pytest.mark.slow
def test_models_and_data_in_single_precision(tmp_path):
    """The usual dtype of Pyro models; the fit itself is in float64."""

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([INPUTS, 4]).to_event(2))
        scale = pyro.sample("lam", dist.Gamma(6.0, 6.0)).rsqrt()
        v = pyro.sample("v", dist.Normal(0.0, scale).expand([4]).to_event(1))
        scale = pyro.sample("tau", dist.Gamma(6.0, 6.0)).rsqrt()
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(F.relu(x @ w) @ v, scale), obs=y)

    x, y = (t.float() for t in data())
    guide = ProbabilisticBackpropagation(model).fit(x, y, epochs=2)
    assert guide.sites["w"].mean.dtype == torch.float64
    assert guide.predictive(x).mean.dtype == torch.float64
    assert guide.draws(2)["w"].dtype == torch.float32
    guide.posterior(5).predictive(x)
    numbers = ProbabilisticBackpropagation(model).fit(x.numpy(), y.numpy(), epochs=2)
    same_fit(guide, numbers)
    guide.save(tmp_path / "g")
    assert ProbabilisticBackpropagation.load(tmp_path / "g", model).draws(2)["w"].dtype == torch.float32


@pytest.mark.filterwarnings("ignore:.*updates of .* were refused")
@pytest.mark.parametrize(
    ("name", "messages"),
    cases([SHARED[1]], [("pbp", "gaussian"), ("pbp", "spike-slab"), ("pbp without bias", "gaussian")]),
)
def test_dull_data(name, messages):
    """A constant target, constant inputs, equal rows: nothing breaks."""
    x, y = data()
    dull = torch.cat([x[:, :2], torch.ones(40, 1).double()], 1)
    for inputs, targets in ((x, torch.ones(40)), (dull, y), (0 * x, y), (x, 1e6 * y)):
        guide = ProbabilisticBackpropagation(NETWORKS[name], messages).fit(inputs, targets, epochs=3)
        assert all(torch.isfinite(part).all() for site in guide.sites.values() for part in site)
        assert math.isfinite(guide.noise_variance)
        assert torch.isfinite(guide.predictive(x).log_prob(targets[0].double())).all()


@pytest.mark.slow
@both_families
@pytest.mark.parametrize("name", ["pbp", "pbp without bias"])
def test_one_row(name, messages):
    x, y = data()
    guide = ProbabilisticBackpropagation(NETWORKS[name], messages).fit(x[:1], y[:1], epochs=3)
    assert all(torch.isfinite(part).all() for site in guide.sites.values() for part in site)
    assert math.isfinite(guide.noise_variance)
    assert torch.isfinite(guide.predictive(x).log_prob(y[0])).all()


X, Y = data()
FIT_ERRORS = {
    "NaN in x": (dict(x=X * math.nan), "x has 120 values that are NaN or infinite, the first in row 0"),
    "infinite y": (dict(y=torch.where(torch.arange(40) == 3, math.inf, Y)), "y has 1 values .* row 3"),
    "shape of y": (dict(y=Y[:, None]), r"y must have shape \[N\], got \(40, 1\)"),
    "rows": (dict(y=Y[1:]), "x has 40 rows and y has 39"),
    "no rows": (dict(x=X[:0], y=Y[:0]), "at least one row"),
    "no epochs": (dict(epochs=0), "epochs must be a positive whole number, got 0"),
    "no batch": (dict(batch_size=0), "batch_size must be a positive whole number, got 0"),
    "order shape": (dict(order=np.zeros((1, 40), int)), r"order must be integers of shape .* = \(2, 40\)"),
    "order dtype": (dict(order=np.zeros((2, 40))), "order must be integers"),
    "order range": (dict(order=np.full((2, 40), 40)), "order must hold row numbers 0 to 39"),
    "negative order": (dict(order=np.full((2, 40), -1)), "order must hold row numbers 0 to 39"),
    "unknown site": (dict(init_means={"w9": np.zeros(3)}), "no weight site 'w9', but w1, w2"),
    "wrong mean": (dict(init_means={"w1": np.zeros(3)}), r"site 'w1' has shape \(4, 4\), got \(3,\)"),
    "NaN mean": (dict(init_means={"w1": np.full((4, 4), math.nan)}), "'w1' has values that are not finite"),
    "no mean": (dict(init_means={"w1": np.full((4, 4), math.inf)}), "'w1' has values that are not finite"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "words"), FIT_ERRORS.values(), ids=FIT_ERRORS.keys())
def test_bad_input_is_one_line(changes, words):
    arguments = {"x": X, "y": Y, "epochs": 2} | changes
    with pytest.raises(ValueError, match=words) as error:
        ProbabilisticBackpropagation(NETWORKS["pbp"]).fit(arguments.pop("x"), arguments.pop("y"), **arguments)
    assert "\n" not in str(error.value)


def test_other_errors():
    x, y = data()
    with pytest.raises(ValueError, match="messages must be"):
        ProbabilisticBackpropagation(pbp(), "laplace")
    with pytest.raises(ValueError, match=r"dtype must be torch\.float64 or torch\.float32"):
        ProbabilisticBackpropagation(pbp(), dtype=torch.float16)
    guide = ProbabilisticBackpropagation(pbp())
    assert (guide.seconds, guide.epochs, guide.rows_seen) == (0, 0, 0)
    questions = (
        lambda: guide.sites,
        lambda: guide.predictive(x),
        lambda: guide.draws(2),
        lambda: guide.refused,
    )
    for ask in questions:
        with pytest.raises(RuntimeError, match="not fitted yet"):
            ask()
    with pytest.raises(ValueError, match="NaN"):
        fitted().predictive(x * math.nan)
    with pytest.raises(ValueError, match="batch_size must be a positive whole number, got 0"):
        fitted().partial_fit(x, y, batch_size=0)

    def wide_gamma(concentration):
        def model(x, y=None):
            observe(x @ weights("w", INPUTS), y, gamma("tau", concentration, 1.0).rsqrt())

        return model

    for concentration in (0.5, 1.0):
        words = rf"site 'tau': .* concentration above 1, not Gamma\({concentration:g}, 1\)"
        with pytest.raises(ValueError, match=words):
            ProbabilisticBackpropagation(wide_gamma(concentration)).fit(x, y)

    def logarithm(x, y=None):
        observe(x.log() @ weights("w", INPUTS), y)

    for wrong in (x, x.abs() * (x > x.min())):  # NaN and, of one zero, minus infinity
        with pytest.raises(ValueError, match="what the model computes from x"):
            ProbabilisticBackpropagation(logarithm).fit(wrong, y)

    def tanh(x, y=None):
        observe(torch.tanh(x @ weights("w", INPUTS)), y)

    with pytest.raises(UnsupportedSiteError, match="'w'.*`tanh`"):
        ProbabilisticBackpropagation(tanh).fit(x, y)


@pytest.mark.parametrize("handler", [poutine.scale(scale=10.0), poutine.mask(mask=torch.tensor(False))])
@pytest.mark.parametrize("at", ["w", "lam"])
def test_priors_that_count_in_part_are_refused(handler, at):
    def model(x, y=None):
        with handler if at == "lam" else nullcontext():
            scale = pyro.sample("lam", dist.Gamma(6.0, 6.0)).rsqrt()
        with handler if at == "w" else nullcontext():
            w = pyro.sample("w", dist.Normal(0.0, scale).expand([INPUTS]).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)

    x, y = data()
    with pytest.raises(UnsupportedSiteError, match=f"site '{at}': a scaled or masked prior"):
        ProbabilisticBackpropagation(model).fit(x.float(), y.float(), epochs=1)


def test_a_target_that_the_model_transforms_is_scored_as_it_is_seen():
    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(INPUTS, dtype=torch.float64), 1.0).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 0.5), obs=None if y is None else y.log())

    x, y = data()
    guide = ProbabilisticBackpropagation(model).fit(x, y.exp(), epochs=1)
    idata = guide.to_arviz(x, y.exp(), n=20)
    expected = guide.posterior(20).log_likelihood(x, observed_data={"y": y})["y"]
    close(torch.from_numpy(idata.log_likelihood["y"].values[0]), expected, 1e-12)


def test_a_prior_that_counts_whole_under_a_handler_is_fine():
    def model(x, y=None):
        with poutine.scale(scale=torch.tensor(1.0)), poutine.mask(mask=torch.tensor(True)):
            w = pyro.sample("w", dist.Normal(torch.zeros(INPUTS, dtype=torch.float64), 1.0).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)

    x, y = data()
    guide = ProbabilisticBackpropagation(model).fit(x, y, epochs=1)
    found = guide.to_arviz(x.numpy(), y.numpy(), n=5)  # arrays are taken as by every posterior
    assert found.log_likelihood["y"].shape == (1, 5, len(y))
