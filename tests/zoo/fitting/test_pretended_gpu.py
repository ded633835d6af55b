"""Guides on a GPU that is pretended: no operation mixes its tensors with the CPU's, and the fit is the same.

(On a real one: ``test_devices.py``, and ``tests/zoo/experiments/lbbnn/test_images_on_gpu.py``.)
"""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro import distributions as dist

from guides.implicit import AdversarialVariationalBayes, SparseImplicitProcess, VariationalImplicitProcess
from tests.pretended_gpu import pretended_gpu
from tests.zoo.cli_helpers import linear_rows
from zoo.fitting.devices import moved
from zoo.fitting.methods import Variational
from zoo.fitting.svi import FitSettings
from zoo.models import create
from zoo.registry.guides import GUIDES
from zoo.registry.queries import find_guide

BY_STEPS = [name for name in GUIDES if isinstance(find_guide(name).method, Variational)]


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    table = torch.tensor(linear_rows(20))
    return table[:, :2], table[:, 2] / table[:, 2].std()


def test_tensors_of_two_devices_do_not_meet():
    with pretended_gpu():
        here, there = torch.ones(3), torch.ones(3, device="cuda")
        assert ((here + 1).device.type, (2 * there).sum().device.type) == ("cpu", "cuda")
        assert torch.equal((there + torch.tensor(1.0)).cpu(), here + 1)  # a number of the CPU may meet it
        with pytest.raises(RuntimeError, match="at least two devices"):
            here + there
        places = torch.tensor([2, 0])
        assert there[places].device.type == "cuda"
        with pytest.raises(RuntimeError, match="at least two devices"):
            here[places.to("cuda")]
        weight = torch.nn.Linear(3, 1).to(there).weight
        (weight @ there).backward()
        assert weight.grad.device.type == "cuda"
        with pytest.raises(RuntimeError, match="at least two devices"):
            weight.grad + here
    assert (here + there).sum() == 6


@pytest.mark.parametrize("name", BY_STEPS)
def test_a_fit_on_a_gpu_is_that_of_the_cpu(name):
    guide = find_guide(name)
    model = create("spike-slab-bnn" if guide.needs == "spike-slab" else "bnn", in_features=2, widths=(3,))
    settings = FitSettings(steps=2, lr=0.05)
    here = guide.method.fit(model, rows(), settings)
    with pretended_gpu():
        there = guide.method.fit(model, moved(rows(), "cuda"), settings)
        draws = there.draws(5, 1)
        assert {value.device.type for value in draws.values()} == {"cpu"}
    assert list(there.losses) == pytest.approx(list(here.losses), rel=1e-5)
    for site, values in here.draws(5, 1).items():
        torch.testing.assert_close(draws[site], values, rtol=1e-4, atol=1e-5)


def test_adversarial_guides_draw_where_the_data_are():
    def model(x, y=None):
        one = x.new_ones(())
        w = pyro.sample("w", dist.Normal(0 * one, one).expand([2]).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(x @ w, one), obs=y)

    def counts(y):
        rate = pyro.sample("rate", dist.Gamma(torch.ones((), device=y.device), 1.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Poisson(rate), obs=y)

    def fit(x, y):
        return AdversarialVariationalBayes(model, num_particles=10).fit(x, y, steps=2)

    here = fit(*rows())
    with pretended_gpu():
        there = fit(*moved(rows(), "cuda"))
        draws = there.draws(5)["w"]
        assert draws.device.type == "cuda"
        assert torch.equal(draws.cpu(), here.draws(5)["w"])
        whole = AdversarialVariationalBayes(counts, num_particles=10).fit(
            torch.ones(9).long().to("cuda"), steps=2
        )
        assert whole.draws(5)["rate"].device.type == "cuda"


@pytest.mark.parametrize(
    "make",
    [
        lambda prior: VariationalImplicitProcess(prior, num_functions=5),
        lambda prior: SparseImplicitProcess(prior, num_inducing=4, num_functions=12, num_particles=6),
    ],
    ids=["vip", "sip"],
)
def test_guides_of_functions_predict_where_the_data_are(make):
    def prior(x):
        one = x.new_ones(())
        w = pyro.sample("w", dist.Normal(0 * one, one).expand([2]).to_event(1))
        return pyro.deterministic("f", torch.tanh(x @ w))

    x, y = rows()
    here = make(prior).fit(x, y, steps=2, batch_size=10).predictive(x[:3]).mean
    with pretended_gpu():
        x, y = moved((x, y), "cuda")
        there = make(prior).fit(x, y, steps=2, batch_size=10).predictive(x[:3]).mean
        assert there.device.type == "cuda"
        there = there.cpu()
    torch.testing.assert_close(there, here, rtol=1e-5, atol=1e-6)
