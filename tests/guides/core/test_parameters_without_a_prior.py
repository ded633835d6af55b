"""Parameters without a prior are refused where nothing would learn, keep or save them."""

from __future__ import annotations

from collections.abc import Callable

import pyro
import pytest
import torch
from pyro import distributions as dist
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn

from guides import JointSpikeSlab, PosteriorBootstrap, SpikeSlab, fit_ensemble
from guides.core.arguments import check_parameters
from guides.implicit import AdversarialVariationalBayes

X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
Y = X[:, 0] + 0.5


def ensemble(model):
    return fit_ensemble(model, X, Y, members=2, steps=2)


def bootstrap(model):
    return PosteriorBootstrap(model, loss="map").fit(X, Y, num_draws=2, steps=2)


def adversarial(model):
    return AdversarialVariationalBayes(model, num_particles=4, hidden=(4,), noise_features=4).fit(
        X, Y, steps=2
    )


def joint(model):
    return JointSpikeSlab(model, num_particles=4).fit(X, Y, steps=2)


def observe(features: Tensor, y: Tensor | None, law: dist.Distribution, shift: Tensor | float = 0.0) -> None:
    w = pyro.sample("w", law.expand([features.shape[1]]).to_event(1))
    with pyro.plate("data", len(features)):
        pyro.sample("y", dist.Normal(features @ w + shift, 0.5), obs=y)


class Plain(nn.Module):
    """Features of a torch module, weights with a prior after them."""

    def __init__(self, law: Callable):
        super().__init__()
        self.features, self.law = nn.Linear(3, 2), law

    def forward(self, x, y=None):
        weight, bias = self.features.weight.to(x), self.features.bias.to(x)
        observe(x @ weight.T + bias, y, self.law())


class OfPyro(PyroModule):
    """The same of Pyro's modules, whose store has the parameters."""

    def __init__(self, law: Callable):
        super().__init__()
        self.features = PyroModule[nn.Linear](3, 2)
        self.w = PyroSample(lambda _: law().expand([2]).to_event(1))

    def forward(self, x, y=None):
        mean = (x @ self.features.weight.to(x).T) @ self.w
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, 0.5), obs=y)


def slab():
    return dist.Normal(torch.zeros(()), 1.0)


METHODS = [(ensemble, slab), (bootstrap, slab), (adversarial, slab), (joint, lambda: SpikeSlab(probs=0.2))]
each_method = pytest.mark.parametrize(("fit", "law"), METHODS)


@each_method
def test_a_param_statement_is_refused(fit, law):
    def model(x, y=None):
        observe(x, y, law(), pyro.param("b", torch.tensor(0.0)))

    with pytest.raises(ValueError, match="parameter 'b' without a prior.*pyro.sample, or fix it") as refusal:
        fit(model)
    assert "\n" not in str(refusal.value)
    assert "b" not in pyro.get_param_store()


@each_method
@pytest.mark.filterwarnings("ignore::UserWarning")  # of so few steps
@pytest.mark.parametrize("kind", [Plain, OfPyro])
def test_a_module_s_features_are_refused_unless_they_are_fixed(fit, law, kind):
    """Twice: Pyro's store turns ``requires_grad`` on in the first fit, if it is let."""
    model = kind(law)
    with pytest.raises(ValueError, match=r"parameter 'features\.weight' without a prior.*requires_grad_"):
        fit(model)
    model.features.requires_grad_(False)
    before = {name: value.clone() for name, value in model.features.state_dict().items()}
    fit(model)
    fit(model)
    assert not any(p.requires_grad for p in model.features.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.features.state_dict().items())


def test_parameters_that_the_density_does_not_depend_on_are_let_be():
    """A network whose weights are replaced by draws lends its shapes alone."""

    class Templates(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(3, 1, bias=False)

        def forward(self, x, y=None):
            shape = self.net.weight.shape
            w = pyro.sample("w", dist.Normal(torch.zeros(shape), 1.0).to_event(2))
            mean = torch.func.functional_call(self.net, {"weight": w}, x).squeeze(-1)
            with pyro.plate("data", len(x)):
                pyro.sample("y", dist.Normal(mean, 0.5), obs=y)

    model = Templates()
    before = torch.get_rng_state()
    check_parameters(model, (X, Y))
    check_parameters(model.forward, (X,), {"y": Y})
    assert torch.equal(before, torch.get_rng_state())
