"""Any torch network as a Pyro model."""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI
from torch import nn

from guides import AutoMeanField, AutoMNF, AutoSpikeSlab
from guides.posterior.draws import Posterior
from zoo.errors import UserError
from zoo.models import BNN, SpikeSlabWeights, from_module
from zoo.models.weights import FanIn, GaussianWeights


def perceptron(*sizes: int, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [nn.Linear(a, b) for a, b in zip(sizes, sizes[1:], strict=False)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])


def rows(n: int = 12, d: int = 3, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator), torch.randn(n, generator=generator)


@pytest.mark.parametrize(
    "prior", [GaussianWeights(), SpikeSlabWeights(0.3), GaussianWeights(FanIn((2.0, 1.0)))]
)
@pytest.mark.parametrize("noise_scale", [0.3, None])
def test_density_is_that_of_the_zoos_own_network(prior, noise_scale):
    """Same sites but for their names, a minibatch scaled up alike."""
    x, y = rows()
    bias = FanIn(1.5)
    model = from_module(perceptron(3, 4, 1), prior=prior, noise_scale=noise_scale, bias_scale=bias)
    own = BNN(3, widths=(4,), noise_scale=noise_scale, weights=prior, bias_scale=bias)
    names = {"0.weight": "w1", "0.bias": "b1", "2.weight": "w2", "2.bias": "b2"}
    torch.manual_seed(2)
    drawn = poutine.trace(own).get_trace(x)
    values = {site: drawn.nodes[name]["value"] for site, name in names.items()}
    if noise_scale is None:
        values["noise_precision"] = drawn.nodes["noise_precision"]["value"]
    scores = [
        poutine.trace(poutine.condition(m, data)).get_trace(x, y, 30).log_prob_sum()
        for m, data in (
            (model, values),
            (own, {names.get(site, site): value for site, value in values.items()}),
        )
    ]
    torch.testing.assert_close(*scores)


def test_biases_have_the_sds_of_their_layers():
    x, y = rows()
    trace = poutine.trace(from_module(perceptron(3, 4, 1), bias_scale=(0.5, 2.0))).get_trace(x, y)
    assert {trace.nodes[name]["fn"].base_dist.scale.unique().item() for name in ("0.bias",)} == {0.5}
    assert {trace.nodes[name]["fn"].base_dist.scale.unique().item() for name in ("2.bias",)} == {2.0}


@pytest.mark.parametrize("make", [AutoMeanField, AutoSpikeSlab, AutoMNF])
def test_guides_meet_its_layers_as_random_tensors(make):
    """Local reparameterization, the trained weights as start, drawn networks at once."""
    x, y = rows()
    net = perceptron(3, 4, 1)
    prior = GaussianWeights() if make is AutoMeanField else SpikeSlabWeights()
    model = from_module(net, prior=prior, noise_scale=0.5)
    guide = make(model, init_loc_fn=model.start)
    guide.setup(x, y)
    assert {name for name, site in guide.sites.items() if site.by_moments} >= {"0.weight", "2.weight"}
    if make is AutoMeanField:
        for name, value in net.named_parameters():
            torch.testing.assert_close(guide.median()[name], value.detach())
    svi = SVI(model, guide, guide.optimizer(0.01), guide.elbo())
    assert all(torch.isfinite(torch.tensor(svi.step(x, y))) for _ in range(3))
    draws = guide.draws(5, seed=0)
    functions = Posterior.from_draws(model, draws).function(x)
    for i in range(5):
        weights = {name: value[i] for name, value in draws.items()}
        expected = torch.func.functional_call(net, weights, (x,)).squeeze(-1)
        torch.testing.assert_close(functions[i], expected.detach(), rtol=1e-5, atol=1e-5)


def test_last_layer_alone():
    """The rest are features: the evidence is that of linear regression on them."""
    x, y = rows(20)
    net = perceptron(3, 5, 1)
    model = from_module(net, layers="last", noise_scale=0.7)
    assert model.shapes == {"2.weight": (1, 5), "2.bias": (1,)}
    features = torch.cat((net[:2](x), torch.ones(20, 1)), 1).detach().double()
    variances = torch.tensor([1 / 5] * 5 + [1.0], dtype=torch.float64)
    covariance = features * variances @ features.T + 0.49 * torch.eye(20, dtype=torch.float64)
    evidence = torch.distributions.MultivariateNormal(torch.zeros(20, dtype=torch.float64), covariance)
    # log p(y) = log p(y | w) + log p(w) - log p(w | y), at any w
    precision = torch.diag(1 / variances) + features.T @ features / 0.49
    posterior = torch.distributions.MultivariateNormal(
        torch.linalg.solve(precision, features.T @ y.double() / 0.49), precision_matrix=precision
    )
    w = torch.linspace(-1, 1, 6, dtype=torch.float64)
    values = {"2.weight": w[None, :5].float(), "2.bias": w[5:].float()}
    joint = poutine.trace(poutine.condition(model, values)).get_trace(x, y).log_prob_sum()
    assert joint.item() - posterior.log_prob(w).item() == pytest.approx(
        evidence.log_prob(y.double()).item(), abs=1e-3
    )


def test_images_with_normalisation():
    """Filters are sampled, normalisations keep their numbers; at the trained weights it is the network."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(2 * 36, 4)
    )
    x = torch.randn(6, 1, 8, 8)
    net(x)  # running moments
    model = from_module(net, likelihood="categorical")
    assert set(model.shapes) == {"0.weight", "0.bias", "5.weight", "5.bias"}
    own = {name: net.get_parameter(name).detach() for name in model.shapes}
    labels = torch.tensor([0, 1, 2, 3, 0, 1])
    output = poutine.condition(model, own)(x, labels)
    torch.testing.assert_close(output, net.eval()(x).detach())


def test_network_given_is_left_alone():
    net = perceptron(3, 4, 1)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    model = from_module(net)
    pyro.poutine.trace(model).get_trace(*rows())
    assert net.training
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert not any("weight" in vars(module) for module in model.net.modules())  # nor is the copy changed


def test_a_network_may_squeeze_its_output():
    x, y = rows()
    plain = perceptron(3, 4, 1)
    squeezed = torch.nn.Sequential(*plain, torch.nn.Flatten(0))
    totals = []
    for net in (plain, squeezed):
        pyro.set_rng_seed(0)
        totals.append(pyro.poutine.trace(from_module(net)).get_trace(x, y).log_prob_sum())
    assert totals[0] == totals[1]
    assert from_module(squeezed)(x[:1]).shape == (1,)


def test_what_cannot_be_done_is_said():
    net = perceptron(3, 4, 2)
    with pytest.raises(UserError, match=r"one output a row, this one gives \[12, 2\] for 12 rows"):
        from_module(net)(*rows())
    with pytest.raises(UserError, match="net must be a torch network .* not the class Linear"):
        from_module(nn.Linear)
    with pytest.raises(UserError, match="net must be a torch network .* not a function"):
        from_module(rows)
    for prior in 1.0, SpikeSlabWeights, torch.distributions.Normal(0.0, 1.0):
        with pytest.raises(UserError, match=r"prior must be GaussianWeights\(scale\) or SpikeSlabWeights"):
            from_module(net, prior=prior)
    with pytest.raises(UserError, match="unknown layer '1'"):
        from_module(net, layers=["1"])
    with pytest.raises(UserError, match="layers must be 'all', 'last'"):
        from_module(net, layers="first")
    with pytest.raises(UserError, match="nothing would be random"):
        from_module(net, layers=[])
    with pytest.raises(UserError, match="unknown likelihood 'poisson'"):
        from_module(net, likelihood="poisson")
    with pytest.raises(UserError, match="no layer with a matrix"):
        from_module(nn.BatchNorm1d(3))
    with pytest.raises(ValueError, match="noise_scale"):
        from_module(net, noise_scale=-1.0)
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    with pytest.raises(UserError, match="one parameter in two places"):
        from_module(tied)
    with pytest.raises(UserError, match="layer '0' computes its weight from other numbers"):
        from_module(nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 1))))
    with pytest.raises(UserError, match="parameter '0.weight' has no shape yet"):
        from_module(nn.Sequential(nn.LazyLinear(1)))
    pruned = nn.Sequential(nn.Linear(3, 1))
    nn.utils.prune.l1_unstructured(pruned[0], "weight", amount=1)
    with pytest.raises(UserError, match="layer '0' is pruned: call torch.nn.utils.prune.remove"):
        from_module(pruned)
    nn.utils.prune.remove(pruned[0], "weight")
    from_module(pruned)
    with pytest.raises(UserError, match="layer '0', Embedding, has no inputs"):
        from_module(nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 1)))
