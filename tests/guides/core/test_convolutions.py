"""Convolutions with random filters: against drawn filters, positions of an image taken together."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from guides.core.layer_noise import filters_of_particles
from guides.testing import Noise, assert_mean, assert_same_moments
from tests.guides.core.one_site import each_kind, make_law, weight


def covariance_of_a_row(kind: str, shape, layer, signs: torch.Tensor) -> torch.Tensor:
    """Of all that filters add to the outputs of one image, exactly: the sum over their elements, one noise
    of one at a time.  ``signs``: what a row gives to its inputs and outputs.
    """
    outputs = []
    for noise in (torch.zeros(math.prod(shape)), *torch.eye(math.prod(shape))):
        with Noise(torch.cat([noise, signs])[None]).of(0):
            outputs.append(layer(weight(kind, shape)).detach().flatten())
    added = torch.stack(outputs[1:]) - outputs[0]
    return added.T @ added


CONVOLUTIONS = [{}, {"stride": 2, "padding": 1}, {"groups": 2}]


@each_kind
@pytest.mark.parametrize("arguments", CONVOLUTIONS)
def test_positions_of_an_image_have_the_joint_law_of_drawn_filters(kind, arguments):
    """Mean, variances and covariances, whatever signs the image has."""
    shape, channels = (2, 2, 3, 3), 2 * arguments.get("groups", 1)
    x = torch.randn(channels, 5, 5)

    def layer(w):
        return F.conv2d(x, w, torch.tensor([1.0, -1.0]), **arguments)

    law = make_law(kind, shape)
    jacobian = torch.autograd.functional.jacobian(layer, law.mean).flatten(3).flatten(0, 2)
    truth = jacobian * law.variance.flatten() @ jacobian.T
    for signs in (torch.ones(channels + 2), torch.randn(channels + 2)):
        torch.testing.assert_close(
            covariance_of_a_row(kind, shape, layer, signs), truth, rtol=1e-4, atol=1e-5
        )
    with Noise(torch.zeros(1, 400)).of(0):
        torch.testing.assert_close(layer(weight(kind, shape)), layer(law.mean), rtol=1e-4, atol=1e-5)


@each_kind
def test_images_have_filters_and_biases_of_their_own(kind):
    """Pairs of like images: what one adds to the mean says nothing of what the other adds."""
    x = torch.randn(2, 4, 4).expand(4000, 2, 4, 4)
    law, bias = make_law(kind, (3, 2, 3, 3)), make_law("gaussian", (3,), seed=5)
    added = F.conv2d(x, law.rsample(), bias.rsample()) - F.conv2d(x, law.mean, bias.mean)
    added = added.detach().view(2000, 2, 12)
    assert_mean(added.prod(1), torch.zeros(12))
    assert_mean(added[:, 0] * added[:, 1].roll(4, -1), torch.zeros(12))  # of another filter


def test_images_differ_by_the_signs_of_their_inputs_and_outputs():
    """Either kind alone would leave rows uncorrelated, and their sizes would be more alike."""
    x = torch.ones(200, 3, 1)
    out, into = make_law("gaussian", (3, 1, 1)), make_law("gaussian", (1, 3, 1))
    added = (F.conv1d(x[:, :1], out.rsample()) - F.conv1d(x[:, :1], out.mean)).detach().squeeze(-1)
    assert len(added.sign().unique(dim=0)) == 8
    torch.testing.assert_close(added.abs(), added[:1].abs().expand_as(added), rtol=1e-4, atol=1e-5)
    added = (F.conv1d(x, into.rsample()) - F.conv1d(x, into.mean)).detach().squeeze()
    assert len((1e4 * added.abs()).round().unique()) >= 4


FILTERS = {
    "as they are": lambda w: w,
    "scaled": lambda w: 2 * w,
    "part": lambda w: w[..., :1],
    "double": lambda w: w.double(),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", FILTERS)
@each_kind
def test_particles_have_filters_and_biases_of_their_own(name, kind):
    """The law of drawn networks of two layers once more, sums over positions included."""
    view, x, particles = FILTERS[name], torch.randn(2, 2, 3, 3), 1500

    def maps(w, b, v):
        filters = view(w)
        first = F.conv2d(x.to(filters.dtype), filters, b.to(filters.dtype))
        second = F.conv2d(first, v.to(filters.dtype))
        return torch.cat([first.flatten(-3), second.flatten(-3), second.sum((-1, -2))], -1).flatten(-2)

    def laws(**leading):
        kinds = ((kind, (3, 2, 2, 2)), ("gaussian", (3,)), (kind, (1, 3, 2, 1)))
        return [make_law(*site, seed=seed, **leading) for seed, site in enumerate(kinds)]

    ours = maps(*(law.rsample() for law in laws(leading=(particles, 1)))).detach()
    assert_same_moments(ours, torch.vmap(maps)(*(law.sample([particles]) for law in laws())))
    added = ours - maps(*(law.mean for law in laws()))
    assert_mean(added.view(particles // 2, 2, -1).prod(1), torch.zeros(added.shape[-1]))


@each_kind
@pytest.mark.parametrize("leading", [(5, 1), (4, 3, 1)])
def test_drawn_filters_and_biases_are_those_of_their_particles(kind, leading):
    """In every particle the convolution by its draws, which all images share, and views of a draw."""
    x = torch.randn(4, 2, 6)
    with torch.no_grad():
        w, b = (weight(kind, shape, by_moments=False, leading=leading) for shape in ((3, 2, 2), (3,)))
        output = F.conv1d(x, 2 * w, b, stride=2)
        draws = w.numbers("test").flatten(0, -4), b.numbers("test").flatten(0, -2)
    assert len(draws[0].unique(dim=0)) == math.prod(leading)
    truth = torch.vmap(lambda w, b: F.conv1d(x, 2 * w, b, stride=2))(*draws)
    torch.testing.assert_close(output, truth.unflatten(0, leading[:-1]))


@pytest.mark.parametrize("left", [(2,), (2, 3)])
def test_drawn_filters_behind_other_batch_dimensions(left):
    x = torch.randn(*left, 5, 4, 2, 6)
    with torch.no_grad():
        w = weight("gaussian", (3, 2, 2), by_moments=False, leading=(5, 1))
        draws = w.numbers("test").squeeze(1)
        truth = [F.conv1d(x[..., i, :, :, :].reshape(-1, 2, 6), draw) for i, draw in enumerate(draws)]
        truth = torch.stack([part.reshape(*left, 4, 3, 5) for part in truth], len(left))
        torch.testing.assert_close(F.conv1d(x, w), truth)


def test_volumes_are_convolved_as_images_are():
    """By moments, each with signs of its own: like volumes have unlike outputs."""
    shape, x = (3, 2, 1, 2, 2), torch.randn(2, 2, 3, 3).expand(16, 2, 2, 3, 3)
    assert len(F.conv3d(x, weight("gaussian", shape)).unique(dim=0)) > 1
    with Noise(torch.zeros(1, 400)).of(0):
        output = F.conv3d(x, weight("gaussian", shape))
    torch.testing.assert_close(output, F.conv3d(x, make_law("gaussian", shape).mean))


def test_a_random_bias_of_plain_filters_is_that_of_its_particle():
    bias, filters = weight("gaussian", (3,), leading=(5, 1)), torch.randn(3, 2, 2)
    output = F.conv1d(torch.zeros(4, 2, 6), filters, bias)
    torch.testing.assert_close(output, bias.numbers("test").unsqueeze(-1).expand(5, 4, 3, 5))


@pytest.mark.parametrize("by_moments", [True, False])
def test_an_image_has_channels(by_moments):
    filters = weight("gaussian", (1, 1, 2, 2), by_moments=by_moments)
    with pytest.raises(ValueError, match=r"'w': conv2d takes images of channels and positions"):
        F.conv2d(torch.ones(5, 5), filters)


def test_filters_and_biases_in_a_plate_that_are_drawn():
    with torch.no_grad():
        sites = ((shape, {"plates": 1, "leading": (5,)}) for shape in ((3, 2, 2), (3,)))
        w, b = (weight("gaussian", shape, by_moments=False, **where) for shape, where in sites)
        output = F.conv1d(torch.zeros(4, 2, 6), w, b)
        torch.testing.assert_close(output, b.numbers("test")[:, None, :, None].expand(5, 4, 3, 5))


def test_a_bias_of_drawn_filters_is_drawn_with_them():
    """No probe sees the rows of a layer whose weights are drawn."""
    filters = weight("gaussian", (3, 2, 2), by_moments=False)
    output = F.conv1d(torch.zeros(4, 2, 5), filters, weight("gaussian", (3,)))
    torch.testing.assert_close(output, output[:1].expand_as(output))


def test_particles_behind_other_batch_dimensions():
    """As enumeration puts them: what is convolved is ``[enumerated, particles, rows, ...]``."""
    w = weight("gaussian", (1, 1, 1), leading=(3, 1))
    sizes = (F.conv1d(torch.ones(2, 3, 4, 1, 1), w) - w.law.mean).detach().abs()[..., 0, 0]
    torch.testing.assert_close(sizes, sizes[:1, :, :1].expand(2, 3, 4))
    assert len(sizes[0, :, 0].unique()) == 3


def test_particles_see_their_own_images():
    x = torch.tensor([0.0, 1.0, 2.0]).view(3, 1, 1, 1).expand(3, 4, 1, 1)  # those of the first are black
    w = weight("gaussian", (1, 1, 1), leading=(3, 1))
    assert (F.conv1d(x, w)[:, :, 0, 0] != 0).all(1).tolist() == [False, True, True]


def test_filters_in_a_plate_leave_its_place_to_the_rows():
    w = weight("gaussian", (3, 2, 2), plates=1, leading=(5,))
    assert F.conv1d(torch.randn(4, 2, 6), w).shape == (5, 4, 3, 5)


def test_masked_filters_have_a_finite_gradient():
    law, mask = make_law("gaussian", (3, 2, 2)), torch.tensor([1.0, 0.0])
    law.loc.requires_grad_(), law.log_scale.requires_grad_()
    F.conv1d(torch.randn(4, 2, 6), law.rsample() * mask).pow(2).sum().backward()
    for gradient in (law.loc.grad, law.log_scale.grad):
        assert gradient.isfinite().all()
        assert ((gradient != 0) == (mask != 0)).all()


def test_a_bias_that_is_drawn_whole_is_added_to_every_row():
    bias = weight("gaussian", (3,), by_moments=False)
    output = F.conv1d(torch.zeros(4, 2, 5), weight("gaussian", (3, 2, 2)), bias)
    torch.testing.assert_close(output, bias.numbers("test")[:, None].expand(4, 3, 4))


@pytest.mark.parametrize("bias", [torch.ones(1), torch.tensor(1.0), torch.ones(4, 3), torch.ones(3).double()])
@pytest.mark.parametrize("by_moments", [True, False])
def test_a_bias_has_one_entry_for_each_filter(bias, by_moments):
    for wrong in (bias, weight("gaussian", (2,))):
        filters = weight("gaussian", (3, 2, 2), by_moments=by_moments)
        with pytest.raises(ValueError, match="'w': the bias of conv1d is .* one entry for each filter"):
            F.conv1d(torch.zeros(4, 2, 5), filters, wrong)


def test_convolution_with_a_bias_site_and_without_a_batch():
    """Every row draws a bias that all its positions share."""
    x, runs = torch.randn(2, 6), 1500

    def laws():
        return make_law("gaussian", (3, 2, 3)), make_law("gaussian", (3,), seed=5)

    ours = torch.stack([F.conv1d(x, *(law.rsample() for law in laws())).detach() for _ in range(runs)])
    truth = torch.vmap(lambda w, b: F.conv1d(x, w, b))(*(law.sample([runs]) for law in laws()))
    assert_same_moments(ours.flatten(1), truth.flatten(1))
    assert_same_moments(ours.sum(-1), truth.sum(-1))


def test_particles_of_an_image_without_a_batch():
    """There are no rows that they could be taken for."""
    filters = weight("gaussian", (3, 2, 2), leading=(5,))
    output = F.conv1d(torch.ones(2, 6), filters).detach()
    assert output.shape == (5, 3, 5)
    assert len(output.unique(dim=0)) == 5


def test_random_images_of_the_data_have_noise_of_their_own():
    """A latent image a row, known well and the same in all: filters are those of its row."""
    law = make_law("gaussian", (40, 2, 6), plates=1)
    law.loc[:], law.log_scale[:] = law.loc[:1].clone(), -20.0
    output = F.conv1d(law.rsample(), weight("gaussian", (3, 2, 2))).detach()
    spread = (output - F.conv1d(law.loc, make_law("gaussian", (3, 2, 2)).mean)).std(0)
    assert output.shape == (40, 3, 5)
    assert (spread > 0.1).all()


def test_random_images_that_are_no_data_see_the_filters_that_are_drawn():
    """Their rows may meet later: with noise of their own they would not be of one network."""
    images, filters = weight("gaussian", (4, 2, 6), seed=3), weight("gaussian", (3, 2, 2))
    output = F.conv1d(images, filters)
    torch.testing.assert_close(output, F.conv1d(images.numbers("test"), filters.numbers("test")))


@pytest.mark.parametrize("particles", [1, 2, 3])
def test_every_particle_has_its_own_filters(particles):
    """As one convolution after the other."""

    def layer(images, filters):
        return F.conv1d(images.flatten(0, -3), filters).unflatten(0, images.shape[:-2])

    law = SimpleNamespace(leading=torch.Size([particles]), plate_dims=1)
    images, filters = torch.randn(4, 3, 6), torch.randn(particles, 2, 3, 2)
    found = filters_of_particles(layer, images, filters, law, torch.Size([particles, 4]))
    torch.testing.assert_close(found, torch.stack([F.conv1d(images, own) for own in filters]))
