"""The arithmetic of a whole site as one autograd node, with its derivative written out.

The same formulas stand in :mod:`guides.moments`; tests compare the two.  For a network these functions make
the difference between a dozen passes over the weights and two or three.  Priors have one set of parameters
for the whole site, each a tensor of one element; ``[*site]`` is any shape.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus


class NormalKL(torch.autograd.Function):
    """Sum over a site of ``KL(Normal(loc, scale) || Normal(m_p, s_p))``, with ``variance = scale^2``.

    ``sum[log s_p - log sigma - 1/2 + (sigma^2 + (mu - m_p)^2) / (2 s_p^2)]``
    """

    @staticmethod
    def forward(ctx, loc: Tensor, log_scale: Tensor, variance: Tensor, prior_loc: Tensor, prior_scale: Tensor):
        ctx.save_for_backward(loc, variance, prior_loc, prior_scale)
        deviation = loc - prior_loc
        ctx.spread = variance.sum() + torch.linalg.vecdot(deviation.flatten(), deviation.flatten())
        entropy = log_scale.sum() - loc.numel() * (prior_scale.log() - 0.5)
        return (ctx.spread / (2 * prior_scale**2) - entropy).reshape(())

    @staticmethod
    def backward(ctx, grad: Tensor):
        loc, variance, prior_loc, prior_scale = ctx.saved_tensors
        precision = grad / prior_scale**2
        d_loc = (loc - prior_loc) * precision
        d_log_scale = variance * precision - grad
        d_prior_loc = -d_loc.sum().reshape(prior_loc.shape) if ctx.needs_input_grad[3] else None
        d_prior_scale = None
        if ctx.needs_input_grad[4]:
            d_prior_scale = (grad * loc.numel() - ctx.spread * precision) / prior_scale
        # The variance is a function of log_scale: the whole derivative goes there.
        return d_loc, d_log_scale, None, d_prior_loc, d_prior_scale


class SpikeSlabMoments(torch.autograd.Function):
    """``(probs, mean, variance)`` of a spike and slab from ``(logits, loc, log_scale, slab variance)``.

    ``mean = alpha mu``, ``variance = alpha (sigma^2 + (1 - alpha) mu^2)``; no gradient flows through ``probs``.
    """

    @staticmethod
    def forward(ctx, logits: Tensor, loc: Tensor, log_scale: Tensor, slab_variance: Tensor):
        probs = torch.sigmoid(logits)
        mean = probs * loc
        variance = torch.addcmul(probs * slab_variance, mean, loc - mean)  # alpha mu (mu - alpha mu)
        ctx.save_for_backward(probs, loc, slab_variance)
        ctx.mark_non_differentiable(probs)
        return probs, mean, variance

    @staticmethod
    def backward(ctx, _, d_mean: Tensor, d_variance: Tensor):
        probs, loc, slab_variance = ctx.saved_tensors
        weighted = probs * d_variance
        d_log_scale = 2 * slab_variance * weighted
        off = 1 - probs
        d_loc = torch.addcmul(probs * d_mean, 2 * off * loc, weighted)
        d_probs = loc * d_mean + torch.addcmul(slab_variance, loc * loc, off - probs) * d_variance
        return probs * off * d_probs, d_loc, d_log_scale, None


class SpikeSlabKL(torch.autograd.Function):
    """Sum over a site of the KL of two spike-and-slab laws; see :func:`guides.moments.spike_slab_kl`."""

    @staticmethod
    def forward(ctx, logits, probs, loc, log_scale, variance, prior_logits, prior_loc, prior_scale):
        spread = torch.addcmul(variance, loc - prior_loc, loc - prior_loc)
        # Of a weight that is on: KL of the slabs, plus the log-odds against the prior.
        on = spread / (2 * prior_scale**2) + logits - log_scale + (prior_scale.log() - 0.5 - prior_logits)
        ctx.save_for_backward(probs, loc, variance, prior_logits, prior_loc, prior_scale, on)
        total = torch.linalg.vecdot(probs.flatten(), on.flatten()) - softplus(logits).sum()
        return (total + logits.numel() * softplus(prior_logits)).reshape(())

    @staticmethod
    def backward(ctx, grad: Tensor):
        probs, loc, variance, prior_logits, prior_loc, prior_scale, on = ctx.saved_tensors
        weight = probs * grad
        scaled = weight / prior_scale**2
        deviation = loc - prior_loc
        d_loc = deviation * scaled
        d_log_scale = torch.addcmul(-weight, variance, scaled)
        d_logits = weight * (1 - probs) * on
        need = ctx.needs_input_grad
        d_prior_logits = grad * logits_slope(prior_logits, probs) if need[5] else None
        d_prior_loc = -d_loc.sum().reshape(prior_loc.shape) if need[6] else None
        d_prior_scale = None
        if need[7]:
            spread = torch.addcmul(variance, deviation, deviation)
            d_prior_scale = (weight.sum() - (scaled * spread).sum()).reshape(prior_scale.shape) / prior_scale
        return d_logits, None, d_loc, d_log_scale, None, d_prior_logits, d_prior_loc, d_prior_scale


def logits_slope(prior_logits: Tensor, probs: Tensor) -> Tensor:
    """Derivative of the KL with respect to ``logit(pi)``: ``n pi - sum alpha``."""
    return (probs.numel() * torch.sigmoid(prior_logits) - probs.sum()).reshape(prior_logits.shape)
