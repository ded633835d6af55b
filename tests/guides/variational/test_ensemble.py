"""Points and ensembles: modes that are known, seeds and generators of members, what is refused."""

import math

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions as dist

from guides import fit_ensemble
from guides.testing import NOISE, data, linear_model, network, normal
from guides.truth.conjugate import conjugate_linear_regression
from guides.variational import ensemble
from tests.guides.variational.one_unit import layer


@pytest.mark.slow
def test_map_and_maximum_likelihood_of_a_linear_model():
    x, y = data()
    model = linear_model(normal)
    options = {"members": 1, "steps": 400, "lr": 0.1}
    exact = conjugate_linear_regression(x.numpy(), y.numpy(), prior_scale=1.0, noise_scale=NOISE)
    posterior = fit_ensemble(model, x, y, **options)
    np.testing.assert_allclose(posterior.draws()["w"][0].numpy(), exact.mean, atol=2e-3)
    least = fit_ensemble(model, x, y, prior=False, **options)
    np.testing.assert_allclose(
        least.draws()["w"][0].numpy(), torch.linalg.lstsq(x, y[:, None]).solution[:, 0], atol=2e-3
    )
    assert posterior.info["method"] == "map"
    assert least.info["method"] == "maximum-likelihood"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::guides.core.settling.UnsettledWarning")
def test_deep_ensemble_has_members_of_its_own_seeds():
    x, y = data()
    model = network(normal)
    ensemble = fit_ensemble(model, x, y, members=3, steps=40, lr=0.05)
    draws, again = ensemble.draws(), fit_ensemble(model, x, y, members=3, steps=40, lr=0.05).draws()
    assert len(ensemble) == 3
    assert torch.equal(draws["w1"], again["w1"])
    for others in ({"members": 1, "seed": 2}, {"members": 3, "seed": 1}):
        other = fit_ensemble(model, x, y, steps=1, lr=1e-9, **others).draws()["w1"]
        start = fit_ensemble(model, x, y, members=3, steps=1, lr=1e-9).draws()["w1"]
        assert not any(torch.allclose(a, b, atol=1e-4) for a in start for b in other)
    assert not torch.equal(draws["w1"][0], draws["w1"][1])
    assert ensemble.info["method"] == "deep-ensemble"
    assert ensemble.predictive(x).batch_shape == (20,)
    assert ensemble.function(x).std(0).mean() > 1e-3
    assert np.isfinite(ensemble.info["losses"]).all()


def test_ensemble_leaves_the_generators_of_its_caller():
    import random

    x, y = data()
    options = {"members": 2, "steps": 3, "seed": 4}
    before = fit_ensemble(layer, x, y, **options).draws()["w"]
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    state = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    again = fit_ensemble(layer, x, y, **options).draws()["w"]
    with pytest.raises(RuntimeError, match="member 0, step 0: the loss is inf"):
        fit_ensemble(layer, 1e25 * x, y, steps=1, members=1)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == state
    assert torch.equal(before, again)


def test_ensembles_of_other_seeds_or_sizes_share_no_member():
    x, y = data()
    options = {"steps": 1, "lr": 1e-9}
    found = [
        fit_ensemble(layer, x, y, members=n, seed=s, **options) for n, s in ((1, 0), (2, 0), (2, 1), (1, 2))
    ]
    starts = torch.cat([ensemble.draws()["w"].flatten(1) for ensemble in found])
    assert torch.cdist(starts, starts).fill_diagonal_(1).min() > 1e-3


def test_a_member_that_stays_where_it_starts_is_no_fault_of_the_model():
    """Its unit is off; the other member's is on, and learns."""

    def model(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(torch.relu(w) * x, NOISE), obs=y)

    starts, x = iter([-1.0, 1.0]), torch.linspace(0.1, 1, 10)
    options = {
        "members": 2,
        "steps": 3,
        "prior": False,
        "init_loc_fn": lambda site: torch.tensor(next(starts)),
    }
    w = fit_ensemble(model, x, 2 * x, **options).draws()["w"]
    assert w[0] == -1
    assert w[1] > 1


def test_ensemble_refuses():
    x, y = data()
    runs = []

    def breaking(x, y):
        """Not finite in the eighth step of the second member; one run looks for parameters, and the first
        of a member makes its start.
        """
        runs.append(x)
        layer(x * (math.nan if len(runs) == 1 + (1 + 10) + 1 + 8 else 1.0), y)

    with pytest.raises(ValueError, match="members"):
        fit_ensemble(layer, x, y, members=0)
    with pytest.raises(ValueError, match="the model observes nothing: pass its data"):
        fit_ensemble(layer, x, steps=2)
    with pytest.raises(RuntimeError, match="member 0, step 0: the loss is inf; .* outliers"):
        fit_ensemble(layer, 1e25 * x, y, steps=1, members=1)
    with pytest.raises(RuntimeError, match=r"member 1, step 7: .*lower the learning rate .now 0\.02"):
        fit_ensemble(breaking, x, y, members=2, steps=10, lr=0.02)


def test_losses_of_members_are_those_at_their_ends(monkeypatch):
    """Of one number with a closed form; and their last tenth is counted in rates that fall."""
    seen, real = [], ensemble.last_change

    def noted(losses, rates):
        seen.append(list(rates))
        return real(losses, rates)

    monkeypatch.setattr(ensemble, "last_change", noted)

    def model(y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 1):
            pyro.sample("y", dist.Normal(w, 1.0), obs=y)

    found = fit_ensemble(model, torch.tensor([2.0]), members=2, steps=300, lr=0.1)
    assert found.info["losses"] == pytest.approx([1 + math.log(2 * math.pi)] * 2, abs=1e-4)
    assert len(seen) == 2
    assert seen[0][0] == pytest.approx(0.1)
    assert seen[0][-1] < 1e-3 < seen[0][150] < 0.09
