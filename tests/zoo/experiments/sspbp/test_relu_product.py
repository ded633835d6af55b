"""The study of ``max(X W, 0)``: laws, messages and their distances."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate

from tests.marks import SLOW
from zoo.experiments import Cell
from zoo.experiments.engine.catalogue import find_experiment
from zoo.experiments.engine.declaration import Record
from zoo.experiments.sspbp import declared, relu_product
from zoo.experiments.sspbp.relu_product import Mixture, Pair

#: squared MMD of the laws for PBP and SSPBP, computed independently; unit of the last digit
POPULATION = {
    "X0-W0": ((0.0680, 1e-4), (0.0217, 1e-4)),
    "X1-W3": ((0.0294, 1e-4), (0.0152, 1e-4)),
    "X1-W-3": ((0.2033, 1e-4), (0.00354, 1e-5)),
    "X3-W3": ((0.0029, 1e-4), (0.0046, 1e-4)),
    "X3-W-3": ((0.01733, 1e-5), (0.00025, 1e-5)),
}


#: One pair of a positive and a negative factor at once, the others when there is time.
PAIRS = [name if name == "X1-W-3" else SLOW(name) for name in declared.PAIRS]


@pytest.mark.parametrize("name", declared.PAIRS)
def test_moments_of_the_law(name):
    pair = Pair(*declared.PAIRS[name])
    law, draws = relu_product.law_moments(pair), 1_000_000
    t = relu_product.draw_law(pair, draws, np.random.default_rng(0))
    positive = t[t > 0]
    assert (t > 0).mean() == pytest.approx(law.slab, abs=4 * math.sqrt(law.slab * (1 - law.slab) / draws))
    error = math.sqrt(law.variance / len(positive))
    assert positive.mean() == pytest.approx(law.mean, abs=4 * error)
    spread = (positive - law.mean) ** 2
    assert spread.mean() == pytest.approx(law.variance, abs=4 * spread.std() / math.sqrt(len(positive)))


@pytest.mark.parametrize("name", PAIRS)
def test_density_and_characteristic_function_are_of_one_law(name):
    """The transform of the density, by another quadrature, and the density's mass."""
    pair = Pair(*declared.PAIRS[name])
    law = relu_product.law_moments(pair)
    log_t = np.linspace(-25, 4.5, 4000)
    t = np.exp(log_t)
    weights = relu_product.density_of_law(pair, t) * t * (log_t[1] - log_t[0])
    assert weights.sum() == pytest.approx(law.slab, rel=1e-4)
    frequency = np.array([0.0, 0.3, 1.0, 2.7])
    direct = 1 - law.slab + np.exp(1j * frequency[:, None] * t) @ weights
    np.testing.assert_allclose(relu_product.characteristic_of_law(pair, frequency), direct, atol=2e-4)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("method", declared.METHODS)
def test_population_mmd(name, method):
    pair = Pair(*declared.PAIRS[name])
    value, unit = POPULATION[name][declared.METHODS.index(method)]
    assert relu_product.population_mmd2(pair, relu_product.message(pair, method)) == pytest.approx(
        value, abs=unit
    )


def test_population_mmd_of_two_mixtures_has_a_closed_form(monkeypatch):
    """With a message in the law's place every kernel mean is a Gaussian integral."""
    p, q = Mixture(0.7, 0.4, 0.9), Mixture(0.4, -0.3, 0.5)
    characteristic = relu_product.characteristic_of_mixture
    monkeypatch.setattr(relu_product, "characteristic_of_law", lambda pair, u: characteristic(p, u))

    def kernel(a: Mixture, b: Mixture) -> float:
        def slabs(mean: float, variance: float) -> float:
            return math.exp(-(mean**2) / (1 + 2 * variance)) / math.sqrt(1 + 2 * variance)

        return (
            (1 - a.slab) * (1 - b.slab)
            + a.slab * (1 - b.slab) * slabs(a.mean, a.variance)
            + b.slab * (1 - a.slab) * slabs(b.mean, b.variance)
            + a.slab * b.slab * slabs(a.mean - b.mean, a.variance + b.variance)
        )

    expected = kernel(p, p) + kernel(q, q) - 2 * kernel(p, q)
    assert relu_product.population_mmd2(Pair(0, 0), q) == pytest.approx(expected, rel=1e-10)


def test_biased_mmd_is_the_mean_of_all_kernel_entries():
    rng = np.random.default_rng(0)
    s, t = rng.normal(size=7), rng.normal(size=1203)

    def kernel(a, b):
        return np.exp(-((a[:, None] - b[None, :]) ** 2)).mean()

    assert relu_product.biased_mmd2(s, t) == pytest.approx(kernel(s, s) + kernel(t, t) - 2 * kernel(s, t))
    assert relu_product.biased_mmd2(s, s) == pytest.approx(0, abs=1e-12)


def test_draws_of_a_message_have_its_moments():
    mixture = Mixture(0.3, 1.5, 0.7)
    draws = relu_product.draw_mixture(mixture, 200_000, np.random.default_rng(0))
    assert (draws != 0).mean() == pytest.approx(0.3, abs=0.005)
    assert draws[draws != 0].mean() == pytest.approx(1.5, abs=0.02)
    assert draws[draws != 0].var() == pytest.approx(0.7, abs=0.03)
    total = integrate.quad(
        lambda value: float(relu_product.density_of_mixture(mixture, np.array([value]))[0]), -5, 8
    )
    assert total[0] == pytest.approx(0.3, abs=1e-6)


@pytest.fixture
def transform_once(monkeypatch):
    """The law's characteristic function costs a second: for one pair at always the same frequencies, once."""
    known, transform = {}, relu_product.characteristic_of_law

    def once(pair, frequency):
        if pair not in known:
            known[pair] = transform(pair, frequency)
        return known[pair]

    monkeypatch.setattr(relu_product, "characteristic_of_law", once)


@pytest.mark.usefixtures("transform_once")
def test_cells_of_the_study():
    found = {}
    for method in ("pbp", "sspbp", "same"):
        cell = Cell("sspbp/table-3.1", "X1-W-3", method, "default", 0, options={"draws": 1500})
        found[method] = declared.compare_product(cell)
        assert found[method] == declared.compare_product(cell)
    assert found["pbp"]["mmd2"] == pytest.approx(found["pbp"]["mmd2_population"], abs=0.05)
    assert found["same"]["mmd2"] < 0.01 < found["pbp"]["mmd2"]
    assert found["same"]["mmd2_population"] == 0


def test_figure_is_drawn_from_whatever_cells_there_are(tmp_path):
    experiment = find_experiment("sspbp/figure-3.1")
    records = []
    for combination in list(experiment.combinations())[:5]:
        folder = tmp_path / "-".join(combination)
        folder.mkdir()
        cell = Cell(experiment.name, *combination, 0, options={"points": 50}, folder=folder)
        records.append(Record(cell, "ok", experiment.run(cell), 0.0, folder))
    experiment.finish(tmp_path, [])
    assert not (tmp_path / "figure-3.1.png").exists()
    experiment.finish(tmp_path, records)
    assert (tmp_path / "figure-3.1.png").stat().st_size > 10_000
