"""The spike-and-slab distribution: its mixed measure, quantiles, moments and manners."""

import math

import pytest
import torch
from pyro import distributions as dist
from scipy import integrate

from guides import SpikeSlab
from guides.testing import assert_mean, assert_share, assert_variance

LAWS = [(0.3, 0.0, 1.0), (0.7, -0.8, 0.5), (0.05, 2.0, 1.5)]
each_law = pytest.mark.parametrize("law", LAWS)


def make(law, **kwargs) -> SpikeSlab:
    return SpikeSlab(*(torch.tensor(v, dtype=torch.float64) for v in law), **kwargs)


@each_law
def test_density_and_atom_add_up_to_one(law):
    d = make(law)
    density = lambda w: d.log_prob(torch.tensor(w, dtype=torch.float64)).exp().item()  # noqa: E731
    parts = [integrate.quad(density, *ends, epsabs=1e-11)[0] for ends in ((-12.0, -1e-12), (1e-12, 14.0))]
    atom = density(0.0)
    assert sum(parts) + atom == pytest.approx(1.0, abs=1e-8)
    assert atom == pytest.approx(1 - law[0])


@each_law
def test_moments_and_zeros_of_draws(law):
    d = make(law)
    w = d.sample([100_000])
    assert_mean(w, d.mean)
    assert_variance(w, d.variance)
    assert_share((w != 0).double().unsqueeze(-1), law[0])
    assert w.dtype == torch.float64
    assert not w.requires_grad


@each_law
def test_cdf_and_quantiles(law):
    d = make(law)
    w = d.sample([20_000])
    for level in (0.02, 0.2, 0.5, 0.8, 0.98):
        q = d.icdf(torch.tensor(level, dtype=torch.float64))
        below = d.cdf(q - 1e-9)
        assert below <= level + 1e-6
        assert d.cdf(q) >= level - 1e-6
        if q != 0:
            assert d.cdf(q) == pytest.approx(level, abs=1e-6)
            assert_share((w <= q).double().unsqueeze(-1), level)
    for value in d.mean + d.stddev * torch.linspace(-1.5, 1.5, 7, dtype=torch.float64):
        assert_share((w <= value).double().unsqueeze(-1), d.cdf(value).item())
    levels = torch.linspace(0.001, 0.999, 400, dtype=torch.float64)
    assert (d.icdf(levels).diff() >= 0).all()
    assert d.icdf(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist() == [-math.inf, math.inf]


@pytest.mark.parametrize("level", [0.05, 0.5, 0.95])
def test_gradients_of_quantiles(level):
    """Beside a spike, in it, and beyond it, by finite differences."""

    def quantile(loc, scale):
        return SpikeSlab(0.6, loc, scale).icdf(torch.tensor(level, dtype=torch.float64))

    at = torch.tensor([0.3, 1.2], dtype=torch.float64).unbind()
    assert torch.autograd.gradcheck(quantile, tuple(part.clone().requires_grad_() for part in at))


def test_entropy_is_minus_the_mean_log_density():
    d = make(LAWS[1])
    assert_mean(-d.log_prob(d.sample([100_000])), d.entropy())


def test_limits():
    """All slab is the Gaussian; all spike is zero."""
    w = torch.tensor([0.4, -1.0])
    slab = SpikeSlab(logits=torch.tensor(200.0), loc=0.5, scale=2.0)
    torch.testing.assert_close(slab.log_prob(w), dist.Normal(0.5, 2.0).log_prob(w))
    spike = SpikeSlab(logits=torch.tensor(-200.0))
    assert (spike.sample([100]) == 0).all()
    assert spike.log_prob(torch.tensor(0.0)) == 0
    assert spike.mean == 0
    assert spike.variance == 0


def test_probs_and_logits_are_one_parameter():
    a, b = SpikeSlab(0.2, 1.0, 0.5), SpikeSlab(logits=math.log(0.2 / 0.8), loc=1.0, scale=0.5)
    w = torch.tensor([0.0, 0.3])
    torch.testing.assert_close(a.log_prob(w), b.log_prob(w))
    torch.testing.assert_close(a.probs, b.probs)


@pytest.mark.parametrize("probs", [1e-30, 1e-12, 1e-9, 0.3, 0.9999])
def test_rare_inclusions_keep_their_logarithm_in_single_precision(probs):
    law, zero = SpikeSlab(torch.tensor(probs)), math.log(2 * math.pi) / 2
    assert law.log_prob(torch.tensor(1.0)).item() == pytest.approx(math.log(probs) - 0.5 - zero, rel=1e-6)
    assert law.log_prob(torch.tensor(0.0)).item() == pytest.approx(math.log1p(-probs), rel=1e-3)


@pytest.mark.parametrize("probs", [0.0, 1.0])
def test_certain_inclusions_have_finite_odds(probs):
    logits = SpikeSlab(torch.tensor(probs)).logits
    assert logits.isfinite()
    assert logits.abs() > 16
    assert logits.sign() == 2 * probs - 1


def test_either_probs_or_logits():
    for arguments in ({}, {"probs": 0.5, "logits": 0.0}):
        with pytest.raises(ValueError, match="either `probs` or `logits`"):
            SpikeSlab(**arguments)


@pytest.mark.parametrize(
    "bad",
    [
        {"probs": 1.5},
        {"probs": -0.1},
        {"probs": math.nan},
        {"probs": 0.5, "scale": 0.0},
        {"probs": 0.5, "loc": math.nan},
    ],
)
def test_parameters_are_validated(bad):
    with pytest.raises(ValueError, match="invalid values"):
        SpikeSlab(**{k: torch.tensor(v) for k, v in bad.items()}, validate_args=True)
    SpikeSlab(**{k: torch.tensor(v) for k, v in bad.items()}, validate_args=False)


def test_values_are_validated():
    with pytest.raises(ValueError, match="within the support"):
        SpikeSlab(0.5).log_prob(torch.tensor(math.nan))


def test_shapes():
    d = SpikeSlab(torch.full((3, 1), 0.2), torch.zeros(4), 1.0)
    assert d.batch_shape == (3, 4)
    assert d.sample([2]).shape == (2, 3, 4)
    wide = d.expand([5, 3, 4])
    assert wide.batch_shape == (5, 3, 4)
    assert wide.sample().shape == (5, 3, 4)
    assert wide.log_prob(torch.zeros(3, 4)).shape == (5, 3, 4)
    event = d.to_event(1)
    assert (event.batch_shape, event.event_shape) == ((3,), (4,))
    w = d.sample()
    torch.testing.assert_close(event.log_prob(w), d.log_prob(w).sum(-1))


@pytest.mark.parametrize("wide", ["loc", "scale", "probs"])
def test_dtypes_mix_as_in_torch(wide):
    """A Python number follows the tensors; the wider tensor wins."""
    arguments = {"probs": 0.5, "loc": 0.0, "scale": 1.0} | {
        wide: torch.tensor([0.5, 0.5], dtype=torch.float64)
    }
    d = SpikeSlab(**arguments)
    assert d.sample().dtype == torch.float64
    assert d.log_prob(torch.zeros(2, dtype=torch.float64)).dtype == torch.float64
    assert d.probs.dtype == d.logits.dtype == d.loc.dtype == d.scale.dtype == torch.float64
    exact = SpikeSlab(torch.tensor(0.1, dtype=torch.float64)).logits.item()
    assert SpikeSlab(0.1, torch.zeros(2, dtype=torch.float64)).logits[0].item() == pytest.approx(
        exact, abs=1e-12
    )


def test_parameters_of_the_prior_can_be_learned():
    probs, scale = torch.tensor(0.3, requires_grad=True), torch.tensor(1.5, requires_grad=True)
    SpikeSlab(probs, 0.0, scale).expand([4]).log_prob(torch.tensor([0.0, 0.0, 1.0, 2.0])).sum().backward()
    torch.testing.assert_close(probs.grad, torch.tensor(2 / 0.3 - 2 / 0.7))
    torch.testing.assert_close(scale.grad, torch.tensor(-2 / 1.5 + (1 + 4) / 1.5**3))
