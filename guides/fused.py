"""The arithmetic of a whole site as one autograd node, with its derivative written out.

The same formulas stand in :mod:`guides.moments`; tests compare the two.  For a network these functions make
the difference between a dozen passes over the weights and two or three: the long ones work through pieces that
stay in a core's cache.  Priors have one set of parameters for the whole site, each a tensor of one element.
None of these functions has a second derivative; asking for one is an error.
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


class Variance(torch.autograd.Function):
    """``sigma^2`` from ``log sigma``."""

    @staticmethod
    def forward(ctx, log_scale: Tensor) -> Tensor:
        variance = (2 * log_scale).exp_()
        ctx.save_for_backward(variance)
        return variance

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> Tensor:
        (variance,) = ctx.saved_tensors
        return (2 * grad).mul_(variance)


class GaussianOutput(torch.autograd.Function):
    """``mean + sqrt(variance) noise``, with slope zero where the variance is below ``floor``."""

    @staticmethod
    def forward(ctx, mean: Tensor, variance: Tensor, noise: Tensor, floor: float) -> Tensor:
        scale = variance.clamp_min(floor).sqrt_()
        output = torch.addcmul(mean, scale, noise)
        slope = torch.div(noise, scale).masked_fill_(variance <= floor, 0.0)
        ctx.save_for_backward(slope)
        ctx.shapes = mean.shape, variance.shape
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        (slope,) = ctx.saved_tensors
        mean_shape, variance_shape = ctx.shapes
        d_variance = (0.5 * grad).mul_(slope)
        return grad.sum_to_size(mean_shape), d_variance.sum_to_size(variance_shape), None, None


class NormalKL(torch.autograd.Function):
    """Sum over a site of ``KL(Normal(loc, scale) || Normal(m_p, s_p))``, with ``variance = scale^2``.

    ``sum[log s_p - log sigma - 1/2 + (sigma^2 + (mu - m_p)^2) / (2 s_p^2)]``
    """

    @staticmethod
    def forward(ctx, loc: Tensor, log_scale: Tensor, variance: Tensor, prior_loc: Tensor, prior_scale: Tensor):
        ctx.save_for_backward(loc, variance, prior_loc, prior_scale)
        deviation = (loc - prior_loc).flatten()
        ctx.spread = variance.sum() + deviation.dot(deviation)
        entropy = log_scale.sum() - loc.numel() * (prior_scale.log() - 0.5)
        return (ctx.spread / (2 * prior_scale**2) - entropy).reshape(())

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        loc, variance, prior_loc, prior_scale = ctx.saved_tensors
        precision = grad / prior_scale**2
        d_loc = (loc - prior_loc).mul_(precision)
        d_log_scale = (variance * precision).sub_(grad)
        d_prior_loc = -d_loc.sum().reshape(prior_loc.shape) if ctx.needs_input_grad[3] else None
        d_prior_scale = None
        if ctx.needs_input_grad[4]:
            d_prior_scale = (grad * loc.numel() - ctx.spread * precision) / prior_scale
        # The variance is a function of log_scale: the whole derivative goes there.
        return d_loc, d_log_scale, None, d_prior_loc, d_prior_scale


class SpikeSlabMoments(torch.autograd.Function):
    """``(mean, variance, probs, slab variance)`` of a spike and slab from ``(logits, loc, log_scale)``.

    ``mean = alpha mu``, ``variance = alpha (sigma^2 + (1 - alpha) mu^2)``; no gradient flows through the other
    two, ``alpha`` and ``sigma^2``.
    """

    @staticmethod
    def forward(ctx, logits: Tensor, loc: Tensor, log_scale: Tensor):
        mean, variance, probs, slab = (loc.new_empty(loc.shape) for _ in range(4))
        for lam, mu, s, m, v, a, s2 in chunks(logits, loc, log_scale, mean, variance, probs, slab):
            torch.sigmoid(lam, out=a)
            torch.exp(2 * s, out=s2)
            torch.mul(a, mu, out=m)
            torch.mul(a, s2, out=v).addcmul_(m, mu - m)  # alpha sigma^2 + alpha mu (mu - alpha mu)
        ctx.save_for_backward(loc, probs, slab)
        ctx.mark_non_differentiable(probs, slab)
        return mean, variance, probs, slab

    @staticmethod
    @once_differentiable
    def backward(ctx, d_mean: Tensor, d_variance: Tensor, *_):
        loc, probs, slab = ctx.saved_tensors
        gradients = d_logits, d_loc, d_log_scale = tuple(loc.new_empty(loc.shape) for _ in range(3))
        for mu, a, s2, dm, dv, d_lam, d_mu, d_s in chunks(loc, probs, slab, d_mean, d_variance, *gradients):
            off, weighted = 1 - a, a * dv
            torch.mul(weighted, s2, out=d_s).mul_(2)
            torch.mul(off, mu, out=d_mu).mul_(weighted).mul_(2).addcmul_(a, dm)
            # d variance / d alpha = sigma^2 + (1 - 2 alpha) mu^2
            d_alpha = (off - a).mul_(mu).mul_(mu).add_(s2).mul_(dv).addcmul_(mu, dm)
            torch.mul(d_alpha, off.mul_(a), out=d_lam)
        return d_logits, d_loc, d_log_scale


class SpikeSlabKL(torch.autograd.Function):
    """Sum over a site of the KL of two spike-and-slab laws; see :func:`guides.moments.spike_slab_kl`.

    ``sum[alpha on(lambda, mu, sigma) - softplus(lambda) + softplus(logit pi)]``, where ``on`` is what a weight
    costs when it is on: the KL of the slabs plus its log-odds against the prior's.
    """

    @staticmethod
    def forward(ctx, logits, loc, log_scale, probs, variance, prior_logits, prior_loc, prior_scale):
        ctx.save_for_backward(logits, loc, log_scale, probs, variance, prior_logits, prior_loc, prior_scale)
        prior = prior_logits, prior_loc, prior_scale
        total = logits.numel() * softplus(prior_logits)
        for lam, mu, s, a, s2 in chunks(logits, loc, log_scale, probs, variance):
            total = total + a.dot(_cost_of_on(lam, mu, s, s2, *prior)) - softplus(lam).sum()
        return total.reshape(())

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        logits, loc, log_scale, probs, variance, prior_logits, prior_loc, prior_scale = ctx.saved_tensors
        precision = 1 / prior_scale**2
        prior = prior_logits, prior_loc, prior_scale
        gradients = d_logits, d_loc, d_log_scale = tuple(loc.new_empty(loc.shape) for _ in range(3))
        inputs = logits, loc, log_scale, probs, variance
        for lam, mu, s, a, s2, d_lam, d_mu, d_s in chunks(*inputs, *gradients):
            weight = a * grad
            torch.sub(mu, prior_loc, out=d_mu).mul_(weight).mul_(precision)
            torch.mul(s2, precision, out=d_s).sub_(1).mul_(weight)
            torch.mul(_cost_of_on(lam, mu, s, s2, *prior), weight.mul_(1 - a), out=d_lam)
        need = ctx.needs_input_grad
        d_prior_logits = d_prior_loc = d_prior_scale = None
        if need[5]:  # d KL / d logit(pi) = n pi - sum alpha
            slope = probs.numel() * torch.sigmoid(prior_logits) - probs.sum()
            d_prior_logits = (grad * slope).reshape(prior_logits.shape)
        if need[6]:
            d_prior_loc = -d_loc.sum().reshape(prior_loc.shape)
        if need[7]:
            spread = (variance + (loc - prior_loc) ** 2) * precision
            d_prior_scale = (grad * (probs * (1 - spread)).sum() / prior_scale).reshape(prior_scale.shape)
        return d_logits, d_loc, d_log_scale, None, None, d_prior_logits, d_prior_loc, d_prior_scale


def _cost_of_on(logits, loc, log_scale, variance, prior_logits, prior_loc, prior_scale) -> Tensor:
    """``log s_p - log sigma - 1/2 + (sigma^2 + (mu - m_p)^2) / (2 s_p^2) + lambda - logit(pi)``, elementwise."""
    deviation = loc - prior_loc
    spread = torch.addcmul(variance, deviation, deviation)
    spread.mul_(0.5 / prior_scale**2).add_(logits).sub_(log_scale)
    return spread.add_(prior_scale.log() - 0.5 - prior_logits)
