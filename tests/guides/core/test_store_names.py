"""Parameters in Pyro's store: saved and loaded there, found by name, and never shared by two guides."""

from __future__ import annotations

import copy
import gc
import io

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.infer import SVI, Trace_ELBO

from guides import AutoMeanField, AutoMNF, AutoSpikeSlab, SpikeSlab


def model(x, y=None):
    w = pyro.sample("w", SpikeSlab(0.5).expand([3]).to_event(1))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)


def data():
    x = torch.randn(30, 3, generator=torch.Generator().manual_seed(1))
    return x, x[:, 0] - x[:, 2]


def step(guide, optimizer=None, steps=1):
    x, y = data()
    optimizer = optimizer or pyro.optim.Adam({"lr": 0.05})
    svi = SVI(model, guide, optimizer, Trace_ELBO())
    for _ in range(steps):
        svi.step(x, y)
    return optimizer


def test_store_holds_the_guides_own_parameters():
    guide = AutoSpikeSlab(model)
    step(guide)
    store = dict(pyro.get_param_store().named_parameters())
    own = {f"AutoSpikeSlab.{name}" for name, _ in guide.named_parameters()}
    assert set(store) == own | {"AutoSpikeSlab.layout"}
    assert all(store[f"AutoSpikeSlab.{name}"] is parameter for name, parameter in guide.named_parameters())


def test_submodules_too():
    guide = AutoMNF(model)
    step(guide)
    own = {f"AutoMNF.{name}" for name in guide.state_dict() if name != "_extra_state"}
    assert set(pyro.get_param_store()) == own | {"AutoMNF.layout"}


@pytest.mark.parametrize("flow", ["rnvp", "iaf"])
def test_which_coordinates_a_flow_moves_is_saved_with_its_parameters(flow, tmp_path):
    """Another partition with these parameters is another law, whatever the seed of the next process."""
    guide = AutoMNF(model, flow=flow, init_z_scale=0.6)
    step(guide, steps=20)
    pyro.get_param_store().save(tmp_path / "store.pt")
    state = {name: value.clone() for name, value in guide.state_dict().items() if name != "_extra_state"}
    for seed in range(3):
        pyro.clear_param_store()
        pyro.get_param_store().load(tmp_path / "store.pt")
        pyro.set_rng_seed(seed)
        loaded = AutoMNF(model, flow=flow, init_z_scale=0.6)
        step(loaded, pyro.optim.SGD({"lr": 0.0}))
        for name, value in state.items():
            assert torch.equal(loaded.state_dict()[name], value), name
            assert loaded.state_dict()[name].dtype == value.dtype, name


def test_two_guides_of_one_class_have_names_of_their_own():
    first, second = AutoSpikeSlab(model), AutoSpikeSlab(model)
    step(first)
    before = first.loc.detach().clone()
    step(second, steps=3)
    assert torch.equal(first.loc, before)
    assert {name.split(".")[0] for name in pyro.get_param_store()} == {"AutoSpikeSlab", "AutoSpikeSlab_1"}
    twin = copy.deepcopy(first)
    step(twin)
    assert torch.equal(first.loc, before)


def test_a_guide_that_is_gone_leaves_nothing_to_the_next():
    gone = AutoSpikeSlab(model)
    step(gone, steps=20)
    del gone
    gc.collect()
    fresh = AutoSpikeSlab(model)
    fresh.setup(*data())
    start = fresh.loc.detach().clone()
    step(fresh, pyro.optim.SGD({"lr": 0.0}))
    assert torch.equal(fresh.loc, start)


def test_store_saves_and_loads(tmp_path):
    guide = AutoSpikeSlab(model)
    step(guide, steps=5)
    fitted = {name: parameter.detach().clone() for name, parameter in guide.named_parameters()}
    pyro.get_param_store().save(tmp_path / "store.pt")
    pyro.clear_param_store()
    pyro.get_param_store().load(tmp_path / "store.pt")
    again = AutoSpikeSlab(model)
    again(*data())
    assert {name: True for name in fitted} == {
        n: torch.equal(p, fitted[n]) for n, p in again.named_parameters()
    }
    step(again)  # and SVI trains the guide's own
    assert not torch.equal(again.loc, fitted["loc"])
    assert pyro.get_param_store()["AutoSpikeSlab.loc"] is again.loc


def test_store_of_another_model_is_refused(tmp_path):
    step(AutoSpikeSlab(model))
    pyro.get_param_store().save(tmp_path / "store.pt")
    pyro.clear_param_store()
    pyro.get_param_store().load(tmp_path / "store.pt")

    def larger(x, y=None):
        w = pyro.sample("w", SpikeSlab(0.5).expand([3]).to_event(1))
        b = pyro.sample("b", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(x @ w + b, 0.5), obs=y)

    with pytest.raises(ValueError, match=r"'AutoSpikeSlab.loc' with shape \(3,\), this guide's has \(4,\)"):
        AutoSpikeSlab(larger)(*data())


def test_store_loaded_into_a_living_guide_is_taken_over(tmp_path):
    """As early stopping does it; and whatever is asked next, training or draws, sees the same numbers."""
    guide = AutoSpikeSlab(model)
    step(guide, steps=5)
    store, best = pyro.get_param_store(), guide.loc.detach().clone()
    store.save(tmp_path / "store.pt")
    state = copy.deepcopy(store.get_state())
    for restore in (lambda: store.load(tmp_path / "store.pt"), lambda: store.set_state(state)):
        step(guide, steps=5)
        assert not torch.equal(guide.loc, best)
        restore()
        assert torch.equal(guide.site_distribution("w").loc, best)
        step(guide, pyro.optim.SGD({"lr": 0.0}))
        assert torch.equal(guide.loc, best)
        assert store["AutoSpikeSlab.loc"] is guide.loc


def test_sites_in_another_order_are_another_model(tmp_path):
    def two(first, second):
        def ordered(x, y=None):
            sites = {name: pyro.sample(name, dist.Normal(0.0, 1.0)) for name in (first, second)}
            with pyro.plate("data", len(x)):
                pyro.sample("y", dist.Normal(sites["a"] + 2 * sites["b"], 0.5).expand([len(x)]), obs=y)

        return ordered

    AutoMeanField(two("a", "b"))(*data())
    pyro.get_param_store().save(tmp_path / "store.pt")
    pyro.clear_param_store()
    pyro.get_param_store().load(tmp_path / "store.pt")
    with pytest.raises(
        ValueError, match="holds AutoMeanField of a model with other sites, or in another order"
    ):
        AutoMeanField(two("b", "a"))(*data())


def test_names_of_guides_that_are_gone_are_used_again():
    for _ in range(3):
        step(AutoSpikeSlab(model))
        gc.collect()
    kept = AutoSpikeSlab(model)
    step(kept)
    assert {name.split(".")[0] for name in pyro.get_param_store()} == {"AutoSpikeSlab"}
    assert pyro.get_param_store()["AutoSpikeSlab.loc"] is kept.loc


def test_guide_goes_on_after_the_store_is_cleared():
    guide = AutoSpikeSlab(model)
    step(guide)
    pyro.clear_param_store()
    before = guide.loc.detach().clone()
    step(guide)
    assert not torch.equal(guide.loc, before)
    assert "AutoSpikeSlab.loc" in pyro.get_param_store()


def test_optimizer_state_and_rates_by_name():
    rates = {"AutoSpikeSlab.logits": 0.0}
    guide = AutoSpikeSlab(model)
    guide.setup(*data())
    before = {name: parameter.detach().clone() for name, parameter in guide.named_parameters()}
    optimizer = step(guide, pyro.optim.Adam(lambda name: {"lr": rates.get(name, 0.05)}))
    moved = {name for name, parameter in guide.named_parameters() if not torch.equal(parameter, before[name])}
    assert moved == set(before) - {"logits"}
    assert set(optimizer.get_state()) == set(pyro.get_param_store()) - {"AutoSpikeSlab.layout"}


def test_whole_guide_pickles():
    file = io.BytesIO()
    guide = AutoMeanField(module_level_model)
    guide(*data())
    torch.save(guide, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded.loc, guide.loc)


def module_level_model(x, y=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(x @ w, 0.5), obs=y)
