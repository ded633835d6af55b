"""The arithmetic of a whole site as one autograd node, with its derivative written out.

The same formulas stand in :mod:`guides.moments`; tests compare the two.  For a network these functions make
the difference between a dozen passes over the weights and two or three: the longest works through pieces that
stay in a core's cache.  Priors have one set of parameters for the whole site, each a tensor of one element.
First derivatives only.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import softplus

#: Elements of a piece: a dozen float32 arrays of this size fit into a core's second-level cache.
CHUNK = 32_768


def chunks(*arrays: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The arrays cut alike into flat pieces; on an accelerator, one piece each."""
    size = CHUNK if arrays[0].is_cpu else max(1, arrays[0].numel())
    return zip(*(array.reshape(-1).split(size) for array in arrays), strict=True)


class GaussianOutput(torch.autograd.Function):
    """``mean + sqrt(variance + floor) noise``: the floor keeps the slope finite where nothing varies."""

    @staticmethod
    def forward(ctx, mean: Tensor, variance: Tensor, noise: Tensor, floor: float) -> Tensor:
        scale = (variance + floor).sqrt_()
        output = torch.addcmul(mean, scale, noise)
        ctx.save_for_backward(noise / scale)
        ctx.shapes = mean.shape, variance.shape
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        (ratio,) = ctx.saved_tensors
        mean_shape, variance_shape = ctx.shapes
        d_variance = (0.5 * grad).mul_(ratio)
        return grad.sum_to_size(mean_shape), d_variance.sum_to_size(variance_shape), None, None


class GaussianSite(torch.autograd.Function):
    """``(variance, KL)`` of a Gaussian site from ``(loc, log_scale)`` and its prior ``Normal(m_p, s_p)``.

    ``KL = sum[log s_p - log sigma - 1/2 + (sigma^2 + (mu - m_p)^2) / (2 s_p^2)]``, one number for the site.
    """

    @staticmethod
    def forward(ctx, loc: Tensor, log_scale: Tensor, prior_loc: Tensor, prior_scale: Tensor):
        variance = (2 * log_scale).exp_()
        deviation = (loc - prior_loc).flatten()
        ctx.spread = variance.sum() + deviation.dot(deviation)
        ctx.save_for_backward(loc, variance, prior_loc, prior_scale)
        kl = ctx.spread / (2 * prior_scale**2) - log_scale.sum() + loc.numel() * (prior_scale.log() - 0.5)
        return variance, kl.reshape(())

    @staticmethod
    @once_differentiable
    def backward(ctx, d_variance: Tensor, d_kl: Tensor):
        loc, variance, prior_loc, prior_scale = ctx.saved_tensors
        precision = d_kl / prior_scale**2
        d_loc = (loc - prior_loc).mul_(precision)
        d_log_scale = (2 * d_variance).add_(precision).mul_(variance).sub_(d_kl)
        d_prior_loc = -d_loc.sum().reshape(prior_loc.shape) if ctx.needs_input_grad[2] else None
        d_prior_scale = None
        if ctx.needs_input_grad[3]:
            d_prior_scale = (d_kl * loc.numel() - ctx.spread * precision) / prior_scale
        return d_loc, d_log_scale, d_prior_loc, d_prior_scale


class SpikeSlabSite(torch.autograd.Function):
    """``(mean, variance, KL)`` of a spike-and-slab site from ``(logits, loc, log_scale)`` and its prior.

    ``mean = alpha mu``, ``variance = alpha (sigma^2 + (1 - alpha) mu^2)`` and, one number for the site,
    ``KL = sum[alpha cost - softplus(lambda) + softplus(logit pi)]``, where ``cost`` is what a weight pays
    when it is on; see :func:`guides.moments.spike_slab_kl`.
    """

    @staticmethod
    def forward(ctx, logits, loc, log_scale, prior_logits, prior_loc, prior_scale):
        ctx.save_for_backward(logits, loc, log_scale, prior_logits, prior_loc, prior_scale)
        prior = prior_logits, prior_loc, prior_scale
        mean, variance = loc.new_empty(loc.shape), loc.new_empty(loc.shape)
        kl = logits.numel() * softplus(prior_logits)
        for lam, mu, s, m, v in chunks(logits, loc, log_scale, mean, variance):
            alpha, s2 = torch.sigmoid(lam), torch.exp(2 * s)
            torch.mul(alpha, mu, out=m)
            torch.mul(alpha, s2, out=v).addcmul_(m, mu - m)  # alpha sigma^2 + alpha mu (mu - alpha mu)
            kl = kl + alpha.dot(_cost_of_on(lam, mu, s, s2, *prior)) - softplus(lam).sum()
        return mean, variance, kl.reshape(())

    @staticmethod
    @once_differentiable
    def backward(ctx, d_mean: Tensor, d_variance: Tensor, d_kl: Tensor):
        logits, loc, log_scale, *prior = ctx.saved_tensors
        prior_logits, prior_loc, prior_scale = prior
        precision = d_kl / prior_scale**2
        gradients = d_logits, d_loc, d_log_scale = tuple(loc.new_empty(loc.shape) for _ in range(3))
        for lam, mu, s, dm, dv, d_lam, d_mu, d_s in chunks(
            logits, loc, log_scale, d_mean, d_variance, *gradients
        ):
            alpha, s2 = torch.sigmoid(lam), torch.exp(2 * s)
            off = 1 - alpha
            torch.mul(alpha, s2 * (2 * dv + precision) - d_kl, out=d_s)
            torch.mul(alpha, dm + 2 * off * mu * dv + (mu - prior_loc) * precision, out=d_mu)
            # d variance / d alpha = sigma^2 + (1 - 2 alpha) mu^2
            d_alpha = (
                mu * dm + (s2 + (off - alpha) * mu * mu) * dv + d_kl * _cost_of_on(lam, mu, s, s2, *prior)
            )
            torch.mul(alpha * off, d_alpha, out=d_lam)
        d_prior = _spike_slab_prior_gradient(ctx) if any(ctx.needs_input_grad[3:]) else (None, None, None)
        return *gradients, *(None if d is None else d_kl * d for d in d_prior)


def _cost_of_on(logits, loc, log_scale, slab_variance, prior_logits, prior_loc, prior_scale) -> Tensor:
    """KL of the slabs plus the log-odds against the prior's, elementwise:

    ``log s_p - log sigma - 1/2 + (sigma^2 + (mu - m_p)^2) / (2 s_p^2) + lambda - logit(pi)``.
    """
    deviation = loc - prior_loc
    spread = torch.addcmul(slab_variance, deviation, deviation)
    return spread * (0.5 / prior_scale**2) + logits - log_scale + (prior_scale.log() - 0.5 - prior_logits)


def _spike_slab_prior_gradient(ctx) -> tuple[Tensor, Tensor, Tensor]:
    """Derivatives of the KL by the prior's logit, mean and scale, each of one element."""
    logits, loc, log_scale, prior_logits, prior_loc, prior_scale = ctx.saved_tensors
    alpha, deviation = torch.sigmoid(logits), loc - prior_loc
    spread = (torch.exp(2 * log_scale) + deviation**2) / prior_scale**2
    by_logits = alpha.numel() * torch.sigmoid(prior_logits) - alpha.sum()
    by_loc = -(alpha * deviation).sum() / prior_scale**2
    by_scale = (alpha * (1 - spread)).sum() / prior_scale
    return (
        by_logits.reshape(prior_logits.shape),
        by_loc.reshape(prior_loc.shape),
        by_scale.reshape(prior_scale.shape),
    )
