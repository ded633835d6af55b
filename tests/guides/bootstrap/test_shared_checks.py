"""What a shared bootstrap refuses and warns of before it trains, and what its draws start from and leave."""

from __future__ import annotations

import copy
import threading

import pyro
import pytest
import torch
from pyro import distributions as dist
from torch import nn

from guides import SharedParameterBootstrap
from guides.bootstrap.base_measures import EmpiricalBase
from guides.bootstrap.shared_parameters import SharedPosterior
from guides.bootstrap.training import Training
from guides.core.settling import UnsettledWarning
from tests.guides.bootstrap.test_shared_parameters import Affine, ByOptimisation, rows
from zoo.models.normalizing_flow import FlowDensity


class Shifted(ByOptimisation):
    """Rows about a local mean, with something that it should not have."""

    def __init__(self, features: int, wrong: str = ""):
        super().__init__(features)
        self.wrong, self.norm = wrong, nn.BatchNorm1d(features).double() if wrong == "norm" else None

    def forward(self, x):
        if self.wrong == "norm":
            x = self.norm(x)
        if self.wrong == "unseen":
            pyro.sample("unseen", dist.Normal(0.0, 1.0))
        centre = x.mean() if self.wrong == "together" else 0.0
        offset = pyro.param("offset", torch.zeros(())) if self.wrong == "parameter" else 0.0
        mean = pyro.sample("mean", dist.Normal(torch.zeros(x.shape[1]).to(x), 1e3).to_event(1))
        with pyro.plate("data", len(x)):
            law = dist.Normal(mean + offset + centre, self.log_scale.exp())
            pyro.sample("x", law.to_event(1), obs=x)


def brief(model, *data, **kwargs) -> SharedPosterior:
    return SharedParameterBootstrap(model, **kwargs).fit(*data, training=Training(steps=2))


def test_another_fit_of_the_module_leaves_a_posterior_alone():
    model = Shifted(2)
    first = brief(model, rows())
    before, state = first.draws(3)["mean"], first.model.log_scale.clone()
    brief(model, 5 * rows() + 20)
    assert torch.equal(first.draws(3)["mean"], before)
    assert torch.equal(first.model.log_scale, state)


def test_a_module_that_cannot_be_copied_is_refused_before_any_training():
    model = Shifted(2)
    model.lock = threading.Lock()
    before = model.log_scale.clone()
    with pytest.raises(TypeError, match="the model cannot be copied.*leave such an attribute out"):
        brief(model, rows())
    assert torch.equal(model.log_scale, before)


def test_a_parameter_that_is_not_the_modules_is_refused_before_any_training():
    with pytest.raises(ValueError, match="parameter 'offset' without a prior, which is not one of the mod"):
        brief(Shifted(2, "parameter"), rows())


def test_a_local_site_that_no_row_sees_is_refused():
    with pytest.raises(ValueError, match="does not depend on site 'unseen'"):
        brief(Shifted(2, "unseen"), rows())


def test_batch_norm_without_weights_is_warned_of():
    with pytest.warns(UserWarning, match="norm .BatchNorm1d. does not know the weights of the rows: take"):
        brief(Shifted(2, "norm"), rows())


def test_rows_that_are_used_together_are_warned_of():
    base = EmpiricalBase((rows(6) + 1e4,))
    with pytest.warns(UserWarning, match="site 'x' has another density with pseudo-observations"):
        brief(Shifted(2, "together"), rows(), concentration=50.0, base_measure=base, num_pseudo=20)


def test_draws_start_where_the_training_ended():
    """A thousand steps of 0.05 would not get from zero to rows at a hundred."""
    x = rows() + 100
    found = SharedParameterBootstrap(Shifted(2)).fit(x, training=Training(steps=30, lr=0.02))
    mean = found.draws(20)["mean"]  # an UnsettledWarning is an error here
    assert ((mean.mean(0) - x.mean(0)).abs() < 4.5 * mean.std(0) / len(mean) ** 0.5).all()


def test_draws_take_as_many_steps_as_they_are_told():
    found = brief(Shifted(2), rows() + 100)
    with pytest.warns(UnsettledWarning):
        found.draws(3, steps=2, lr=1e-3)
    with pytest.warns(UnsettledWarning):
        found.posterior(3, steps=2, lr=1e-3)


@pytest.mark.parametrize("training", [True, False])
def test_draws_leave_a_flow_as_it_is(training):
    """Its statistics, and the mode of every part of it."""
    flow = FlowDensity(3, blocks=2).double()
    found = brief(flow, rows(features=3))
    first, state = found.draws(2)["mean"], copy.deepcopy(flow.state_dict())
    flow.train(training)
    again = found.draws(2)["mean"]
    torch.testing.assert_close(again, first, rtol=0, atol=0)
    assert all(part.training == training for part in flow.modules())
    for name, value in flow.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=0, atol=0)


def test_validation_is_a_tuple_of_the_models_arguments():
    with pytest.raises(TypeError, match="validation must be a tuple of the model's arguments, not a Tensor"):
        SharedParameterBootstrap(Affine(2)).fit(rows(), validation=rows(seed=1))
    with pytest.raises(ValueError, match="the validation: .* at least two"):
        SharedParameterBootstrap(ByOptimisation(2)).fit(rows(), validation=(rows(1),))
    with pytest.raises(TypeError, match="argument 0 of the model is a ndarray, not a tensor"):
        brief(Affine(2), rows().numpy())
