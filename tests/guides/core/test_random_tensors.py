"""Random tensors: layers against sampled networks, views, and what is refused."""

import math

import pytest
import torch
from torch.nn import functional as F

from guides import PathwiseGradientError
from guides.core.layer_noise import row_shape
from guides.core.purpose import Purpose
from guides.core.random_tensors import RandomTensor
from guides.testing import (
    Noise,
    assert_mean,
    assert_same_moments,
    assert_share,
    assert_variance,
    z_bound,
)
from tests.guides.core.one_site import KINDS, each_kind, make_law, weight


def exact_moments(law, function) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of an affine function of independent weights: by its Jacobian."""
    mean, variance = law.mean.detach(), law.variance.detach()
    jacobian = torch.autograd.functional.jacobian(function, mean).flatten(-mean.dim())
    return function(mean), jacobian.square() @ variance.flatten().to(jacobian)


def moments_of_output(kind: str, shape, function) -> tuple[torch.Tensor, torch.Tensor]:
    """Of what a layer draws: the output where the noise is zero, and the square of what noise one adds."""
    with Noise(torch.zeros(1, 400)).of(0):
        mean = function(weight(kind, shape)).detach()
    with Noise(torch.ones(1, 400)).of(0):
        return mean, (function(weight(kind, shape)).detach() - mean).square()


def assert_moments(ours, truth) -> None:
    for value, expected in zip(ours, truth, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------------- layers

LAYERS = {
    "linear": ((2, 6), lambda x, w: F.linear(x, w)),
    "linear-fixed-bias": ((2, 6), lambda x, w: F.linear(x, w, torch.tensor([5.0, -5.0]))),
    "linear-by-name": ((2, 6), lambda x, w: F.linear(input=x, weight=w)),
    "linear-vector": ((6,), lambda x, w: F.linear(x, w)),
    "matmul": ((6, 2), lambda x, w: x @ w),
    "matmul-vector": ((6,), lambda x, w: x @ w),
    "torch.matmul": ((6, 2), lambda x, w: torch.matmul(x, w)),
    "mm": ((6, 2), lambda x, w: torch.mm(x, w)),
    "mv": ((6,), lambda x, w: torch.mv(x, w)),
    "mv-left": ((2, 6), lambda x, w: torch.mv(w, x[0])),
    "dot": ((6,), lambda x, w: torch.dot(x[0], w)),
    "left": ((2, 6), lambda x, w: w @ x.T),
    "left-vector": ((6,), lambda x, w: w @ x.T),
    "scaled": ((2, 6), lambda x, w: F.linear(x, 2 * w / 3)),
    "columns-scaled": ((2, 6), lambda x, w: F.linear(x, w * torch.arange(6.0))),
    "shifted": ((2, 6), lambda x, w: F.linear(x, 1 - w)),
    "reshaped": ((12,), lambda x, w: x @ w.view(6, 2)),
    "part": ((3, 6), lambda x, w: F.linear(x, w[:2])),
    "three-dims": ((2, 6), lambda x, w: F.linear(x.view(4, 1, 6), w)),
}


@pytest.mark.parametrize("name", LAYERS)
@each_kind
def test_layer_has_the_moments_of_sampled_networks(name, kind):
    shape, layer = LAYERS[name]
    x = torch.randn(4, 6)
    law = make_law(kind, shape)
    assert_moments(
        moments_of_output(kind, shape, lambda w: layer(x, w)), exact_moments(law, lambda w: layer(x, w))
    )


@each_kind
def test_layer_gives_each_row_noise_of_its_own(kind):
    output = (torch.ones(6000, 6) @ weight(kind, (6,))).detach().view(3000, 2)
    centred = output - output.mean(0)
    assert_mean(centred.prod(-1), 0.0)
    assert_variance(output, make_law(kind, (6,)).variance.sum())


@each_kind
def test_particles_have_noise_of_their_own(kind):
    output = torch.randn(4, 6) @ weight(kind, (6, 2), leading=(5, 1))
    assert output.shape == (5, 4, 2)
    assert (output[1:] != output[:1]).all()
    unbatched = torch.randn(6) @ weight(kind, (6,), leading=(5,))
    assert unbatched.shape == (5,)


def test_gaussian_layer_is_gaussian_exactly():
    x = torch.randn(1, 6)
    law = make_law("gaussian", (6,))
    output = (x.expand(4000, 6) @ law.rsample()).unsqueeze(-1)
    scale = (x**2 @ law.variance).sqrt()
    standard = (output - x @ law.mean) / scale
    for level in (0.05, 0.5, 0.95):
        bound = math.sqrt(2) * torch.erfinv(torch.tensor(2 * level - 1))
        assert_share((standard < bound).double(), level)


def test_spike_slab_layer_covers_sampled_networks():
    """With 200 inputs the Gaussian output is right in mean, variance and 90 % interval (a limit theorem)."""
    x = torch.rand(3, 200)
    shape = (200,)
    law = make_law("spike-slab", shape)
    truth = law.sample([6000]) @ x.T
    output = (x.repeat(3000, 1) @ weight("spike-slab", shape)).detach().view(3000, 3)
    assert_same_moments(output, truth)
    mean, scale = x @ law.mean, (x**2 @ law.variance).sqrt()
    inside = ((truth - mean).abs() < 1.644854 * scale).double()
    assert_share(inside, 0.9)
    printed = (x**2 @ (torch.sigmoid(law.logits) ** 2 * torch.exp(2 * law.log_scale))).sqrt()
    assert ((truth - mean).abs() < 1.644854 * printed).double().mean() < 0.7  # the thesis' alpha^2 sigma^2


@each_kind
def test_bias_site_joins_the_layer(kind):
    x = torch.randn(3, 6)
    bias = make_law("gaussian", (2,), seed=5)
    ours = moments_of_output(
        kind, (2, 6), lambda w: F.linear(x, w, make_law("gaussian", (2,), seed=5).rsample())
    )
    mean, variance = exact_moments(make_law(kind, (2, 6)), lambda w: F.linear(x, w))
    assert_moments(ours, (mean + bias.mean, variance + bias.variance))


def test_layers_have_the_law_of_sampled_networks():
    """The moments again by drawing, with the noise as it comes."""
    x = torch.randn(1, 6)
    for kind in KINDS:
        drawn = make_law(kind, (2, 6)).sample([6000]) @ x[0]
        output = F.linear(x.expand(6000, 6), weight(kind, (2, 6))).detach()
        assert_same_moments(output, drawn)


@each_kind
def test_gradient_of_a_layer_is_that_of_the_moments(kind):
    """At noise zero the output is the mean; its gradient reaches every parameter."""
    law = make_law(kind, (2, 6))
    inputs = [law.loc, law.log_scale] + ([law.logits] if kind == "spike-slab" else [])
    for tensor in inputs:
        tensor.requires_grad_()
    F.linear(torch.randn(4, 6), law.rsample()).pow(2).sum().backward()
    assert all((tensor.grad != 0).all() for tensor in inputs)


def test_rows_without_variance_are_certain():
    law = make_law("gaussian", (6,))
    law.loc.requires_grad_()
    output = torch.zeros(2, 6) @ law.rsample()
    output.sum().backward()
    torch.testing.assert_close(output.detach(), torch.zeros(2), rtol=0, atol=1e-8)
    assert law.loc.grad.isfinite().all()


# ---------------------------------------------------------------------- views

# Views of a shape that may have particles on its left.
VIEWS = {
    "transpose": lambda w: w.transpose(-1, -2),
    "mT": lambda w: w.mT,
    "view": lambda w: w.view(w.shape[:-2] + (-1,)),
    "reshape": lambda w: w.reshape(w.shape[:-1] + (2, 2)),
    "flatten": lambda w: torch.flatten(w, -2),
    "index": lambda w: w[..., 1, :],
    "slice": lambda w: w[..., 1:3],
    "new axis": lambda w: w[..., None, :],
    "unsqueeze": lambda w: w.unsqueeze(-2).squeeze(-2),
    "movedim": lambda w: w.movedim(-1, -2),
    "scale": lambda w: 3 * w,
    "scale by tensor": lambda w: torch.arange(1.0, 5.0) * w,
    "divide": lambda w: w / 2,
    "shift": lambda w: w + 2,
    "reverse": lambda w: 2 - w,
    "minus": lambda w: w - torch.ones(3, 4),
    "negate": lambda w: -w,
    "chain": lambda w: (2 * w.T - 1)[..., 1:, :].flatten(-2) / 3,
    "double": lambda w: w.double(),
}


@pytest.mark.parametrize("name", VIEWS)
@each_kind
def test_view_has_its_moments_and_the_same_draw(name, kind):
    view = VIEWS[name]
    w = weight(kind, (3, 4))
    v = view(w)
    assert isinstance(v, RandomTensor)
    mean, variance = exact_moments(w.law, view)
    assert v.shape == mean.shape
    assert v.dtype == mean.dtype
    torch.testing.assert_close(v.mean_.detach(), mean)
    torch.testing.assert_close(v.variance_.detach().to(variance), variance)
    w.law.uses.is_over = True
    torch.testing.assert_close(v.numbers("test"), view(w.numbers("test")))
    particles = weight(kind, (3, 4), leading=(5, 1))
    particles.law.uses.is_over = True
    many = view(particles)
    assert many.shape == (5, 1, *v.shape)
    numbers = particles.numbers("test")
    torch.testing.assert_close(many.numbers("test")[3, 0], view(numbers[3, 0]))


PARTICLES_MIX = {
    "flatten": lambda w: torch.flatten(w),
    "reshape": lambda w: w.reshape(12, 5),
    "first particle": lambda w: w[0],
    "reversed": lambda w: w.movedim(0, -1),
    "swapped": lambda w: w.reshape(5, 1, 4, 3).permute(1, 0, 3, 2),
}


@pytest.mark.parametrize("name", PARTICLES_MIX)
@each_kind
def test_view_across_particles_is_that_of_the_draws(name, kind):
    """As of any tensor of that shape: no particle can be told apart any more."""
    view, particles = PARTICLES_MIX[name], weight(kind, (3, 4), leading=(5, 1))
    particles.law.uses.is_over = True
    mixed = view(particles)
    assert not isinstance(mixed, RandomTensor)
    torch.testing.assert_close(mixed, view(particles.numbers("test")))


@each_kind
def test_draw_is_one_for_the_whole_run(kind):
    with torch.no_grad():
        w = weight(kind, (3, 4), by_moments=False)
        x = torch.eye(4)
        numbers = torch.exp(w).log()
        torch.testing.assert_close(F.linear(x, w), numbers.T)
        torch.testing.assert_close(x @ w.T, numbers.T)
        torch.testing.assert_close(w[[0, 0]], numbers[[0, 0]])
        assert (numbers == 0).any() == (kind == "spike-slab")


# ---------------------------------------------------------------------- other operations

OTHERS = {
    "mul": lambda w, v: (torch.arange(6.0).view(2, 3) * w).sum(-1),
    "exp": lambda w, v: torch.exp(w),
    "einsum": lambda w, v: torch.einsum("i,i->", w, torch.arange(3.0)),
    "pow": lambda w, v: w**2,
    "add": lambda w, v: w + v,
    "div": lambda w, v: w / (v + 9),
    "rdiv": lambda w, v: 1 / (w + 3),
    "getitem": lambda w, v: w[torch.tensor([0, 0, 2])],
    "expand": lambda w, v: w.expand(2, 3),
    "cat": lambda w, v: torch.cat([w, torch.ones(1)]),
    "stack": lambda w, v: torch.stack([w, w]),
    "where": lambda w, v: torch.where(torch.tensor([True, False, True]), w, 0.0),
    "sum": lambda w, v: w.sum(),
    "positive": lambda w, v: +w,
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_operations_draw_a_gaussian_with_its_gradient(name):
    function = OTHERS[name]
    laws = [make_law("gaussian", (3,), by_moments=False, seed=seed) for seed in (0, 2)]
    leaves = [law.loc.requires_grad_() for law in laws]
    noise = Noise.random(particles=1)
    with noise.of(0):
        result = function(*(law.rsample() for law in laws))
    assert not isinstance(result, RandomTensor)
    table = noise.normal[0, :6].view(2, 3)
    drawn = function(*(law.loc + law.log_scale.exp() * eps for law, eps in zip(laws, table, strict=True)))
    torch.testing.assert_close(result, drawn)
    ours, truth = (torch.autograd.grad(t.sum(), leaves, allow_unused=True) for t in (result, drawn))
    assert ours[0].abs().sum() > 0
    torch.testing.assert_close(ours, truth)


@pytest.mark.parametrize("name", OTHERS)
def test_other_operations_on_a_spike_slab_are_refused_by_name(name):
    w, v = weight("spike-slab", (3,)), torch.ones(3)
    if name in ("add", "div"):
        v = weight("gaussian", (3,), by_moments=False)
    with pytest.raises(PathwiseGradientError, match=rf"site 'w': `{name}` .*no pathwise gradient.*F\.linear"):
        OTHERS[name](w, v)
    with torch.no_grad():
        OTHERS[name](weight("spike-slab", (3,)), torch.ones(3))


IN_PLACE = {
    "mul_": lambda w: w.mul_(2),
    "add_": lambda w: torch.Tensor.add_(w, 1),
    "setitem": lambda w: w.__setitem__(0, 1.0),
    "out": lambda w: torch.exp(w, out=torch.empty(3)),
    "data": lambda w: setattr(w, "data", torch.zeros(3)),
}


@pytest.mark.parametrize("name", IN_PLACE)
@each_kind
def test_changing_a_weight_in_place_is_refused(name, kind):
    with pytest.raises(TypeError, match="site 'w': .*in place"):
        IN_PLACE[name](weight(kind, (3,)))


def test_augmented_assignment_makes_a_new_tensor():
    w = old = weight("gaussian", (3,))
    w += 1
    assert isinstance(w, RandomTensor)
    torch.testing.assert_close(w.mean_, old.mean_ + 1)


@each_kind
def test_draws_that_would_lose_the_gradient_are_refused(kind):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, w):
            return w**2

        @staticmethod
        def backward(ctx, grad):
            return grad

    with pytest.raises(PathwiseGradientError, match="gradient would be lost"):
        Square.apply(weight(kind, (3,)))
    w = weight(kind, (3,))
    with torch.no_grad(), pytest.raises(PathwiseGradientError, match="gradient would be lost"):
        torch.exp(w)


@pytest.mark.parametrize("purpose", [Purpose.DRAWS, Purpose.STRUCTURE, Purpose.WEIGHED_DRAWS])
def test_spikes_are_drawn_where_no_gradient_is_asked_for(purpose):
    """Though gradients are enabled, as Pyro leaves them in ``Predictive``."""
    w = weight("spike-slab", (200,), purpose=purpose)
    if purpose is Purpose.WEIGHED_DRAWS:
        with pytest.raises(PathwiseGradientError, match="no pathwise gradient"):
            w.exp()
    else:
        assert (w.exp() == 1).any()


def test_code_below_python_is_caught():
    with torch._C.DisableTorchFunctionSubclass():
        for call in (torch.exp, lambda w: torch.stack([w])):
            with pytest.raises(PathwiseGradientError, match="site 'w'"):
                call(weight("gaussian", (3,)))
            with torch.no_grad():
                assert call(weight("gaussian", (3,))).shape[-1] == 3


def test_a_product_of_two_random_weights_is_drawn():
    """The rows of a weight are no data: noise for each of them would be wrong once rows are mixed."""
    shape = (3, 2)
    noise = Noise.random(particles=1)
    with noise.of(0):
        product = weight("gaussian", shape) @ weight("gaussian", (2,), seed=4)
    first, second = make_law("gaussian", shape), make_law("gaussian", (2,), seed=4)
    numbers = first.loc + first.log_scale.exp() * noise.normal[0, :6].view(shape)
    vector = second.loc + second.log_scale.exp() * noise.normal[0, 6:8]
    torch.testing.assert_close(product, numbers @ vector)
    with pytest.raises(PathwiseGradientError, match="`matmul`"):
        weight("gaussian", shape) @ weight("spike-slab", (2,))


@each_kind
def test_local_variables_keep_the_rows_of_their_plate(kind):
    """The rows of a site inside the data plate are data."""
    codes = weight("gaussian", (4, 2), plates=1, by_moments=False)
    assert (codes @ weight(kind, (2, 3))).shape == (4, 3)


# ---------------------------------------------------------------------- a weight used twice


def test_two_products_of_one_weight_share_their_noise():
    """Var(x w + x w) = 4 Var(x w), where independent noise would give 2."""
    x = torch.ones(1, 6)
    w = weight("gaussian", (6,), by_moments=False)
    torch.testing.assert_close(x @ w + x @ w, 2 * x @ w.numbers("test"))
    particles = weight("gaussian", (6,), by_moments=False, leading=(3000,))
    outputs = torch.ones(6) @ particles + torch.ones(6) @ particles
    assert_variance(outputs, 4 * make_law("gaussian", (6,)).variance.sum())


@pytest.mark.parametrize("uses", [("product", "product"), ("product", "draw"), ("draw", "product")])
def test_a_second_use_that_the_set_up_did_not_see_is_caught(uses):
    w, x = weight("gaussian", (6,)), torch.ones(1, 6)
    calls = {"product": lambda: x @ w, "draw": w.exp}
    first, second = (calls[use] for use in uses)
    first()
    with pytest.raises(RuntimeError, match="site 'w' is used more often in this run"):
        second()


# ---------------------------------------------------------------------- manners


@each_kind
def test_ways_to_look_at_a_random_tensor(kind):
    w = weight(kind, (3, 4))
    assert repr(w) == "RandomTensor('w', shape=(3, 4))"
    assert isinstance(w, torch.Tensor)
    assert w.shape == (3, 4)
    assert len(w) == 3
    assert w.dim() == 2
    assert w.dtype == torch.float32
    with torch.no_grad():
        v = weight(kind, (3, 4))
        stacked = torch.stack([v, v])
        assert type(stacked) is torch.Tensor
        assert torch.equal(stacked[0], stacked[1])
        detached = v.detach()
        assert type(detached) is torch.Tensor
        assert torch.equal(detached, stacked[0])
        assert (v.numpy() == detached.numpy()).all()
        assert v.tolist() == detached.tolist()
        assert torch.equal(v, detached)


@each_kind
def test_a_weight_of_a_run_that_is_over_may_be_looked_at(kind):
    """Its noise is shared with no layer, and no gradient is lost."""
    w = weight(kind, (6,))
    torch.ones(1, 6) @ w
    w.law.uses.is_over = True
    with torch.no_grad():
        assert len(w.tolist()) == 6


@each_kind
def test_draws_are_those_of_the_law(kind):
    law = make_law(kind, (3,))
    draws = law.sample([5000])
    assert_mean(draws, law.mean)
    assert_variance(draws, law.variance)
    if kind == "spike-slab":
        share = (draws != 0).double().mean(0)
        se = (law.logits.sigmoid() * (1 - law.logits.sigmoid()) / 5000).sqrt()
        assert ((share - law.logits.sigmoid()).abs() < z_bound(3) * se).all()


@each_kind
def test_draws_of_a_law_in_a_plate_are_counted_in_front(kind):
    law = make_law(kind, (2, 3), plates=1)
    draws = law.sample([5000])
    assert draws.shape == (5000, 2, 3)
    assert_mean(draws, law.mean)


def test_particles_beside_rows_without_a_plate_are_refused():
    """Five of each would be taken for the same five; with a plate between them they are [5, 7]."""
    for particles, batch in (([5], [5]), ([5], [7]), ([5, 3], [3])):
        with pytest.raises(ValueError, match="vectorized particles .* collide with the rows"):
            row_shape(torch.Size(particles), torch.Size(batch))
    assert row_shape(torch.Size([5, 1]), torch.Size([7])) == (5, 7)
    assert row_shape(torch.Size([5]), torch.Size([])) == (5,)
    assert row_shape(torch.Size([]), torch.Size([7])) == (7,)
