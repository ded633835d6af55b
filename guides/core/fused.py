"""The arithmetic of a whole site as one autograd node, with its derivative written out.

The same formulas stand in :mod:`guides.core.moments`; tests compare the two.  For a network these functions
make the difference between a dozen passes over the weights and two or three: the longest works through
pieces that stay in a core's cache.  Priors have one set of parameters for the whole site, each a tensor of
one element. First derivatives only.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import softplus

from guides.core.kernels import kernel

#: Elements of a piece: a dozen float32 arrays of this size fit into a core's second-level cache.
CHUNK = 32_768


def chunks(*arrays: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The arrays cut alike into flat pieces; on an accelerator, one piece each."""
    size = CHUNK if arrays[0].is_cpu else max(1, arrays[0].numel())
    if arrays[0].numel() <= size:
        return iter([tuple(array.reshape(-1) for array in arrays)])
    return zip(*(array.reshape(-1).split(size) for array in arrays), strict=True)


class GradientBuffer:
    """Room for the gradient of a flat vector, which the nodes behind its pieces fill directly.

    Without it every piece's gradient is made elsewhere and copied, as autograd's ``split`` does.
    """

    def __init__(self, flat: Tensor):
        self.like = flat.detach()
        self.owner = flat if flat._base is None else flat._base
        self.owner.lends_gradient = True
        self.values: Tensor | None = None
        self.taken: set[int] = set()

    def _new(self) -> Tensor:
        """Memory for the whole: what the optimiser gave back after the last step (fresh pages are slow)."""
        spent = self.owner.__dict__.pop("spent_gradient", None)
        if spent is not None and spent.shape == self.like.shape and spent.dtype == self.like.dtype:
            return spent
        return torch.empty_like(self.like)

    def take(self, start: int, shape: torch.Size) -> Tensor:
        """Where to write the gradient of the piece at ``start``; elsewhere if that place is taken."""
        if self.values is None:
            self.values, self.taken = self._new(), set()
        if start in self.taken:
            return self.like.new_empty(shape)
        self.taken.add(start)
        return self.values[start : start + shape.numel()].view(shape)

    def gather(self, gradients: tuple[Tensor | None, ...], sizes: list[int]) -> Tensor:
        """The gradient of the whole, with what came from other nodes put in its place."""
        values = self._new() if self.values is None else self.values
        self.values = None
        for gradient, place in zip(gradients, values.split(sizes), strict=True):
            if gradient is None:
                place.zero_()
            elif gradient.data_ptr() != place.data_ptr():
                place.view(gradient.shape).copy_(gradient)
        return values


class Pieces(torch.autograd.Function):
    """Cuts a flat vector into tensors of the given shapes; see :func:`pieces`."""

    @staticmethod
    def forward(ctx, flat: Tensor, buffer: GradientBuffer, shapes: list[torch.Size]):
        ctx.set_materialize_grads(False)
        ctx.buffer, ctx.sizes = buffer, [shape.numel() for shape in shapes]
        return tuple(p.view(shape) for p, shape in zip(flat.split(ctx.sizes), shapes, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients: Tensor | None):
        return ctx.buffer.gather(gradients, ctx.sizes), None, None


def pieces(flat: Tensor, shapes: list[torch.Size]) -> tuple[Tensor, ...]:
    """A flat vector cut into tensors of these shapes, which together have its size.

    Where a gradient is wanted, a node of this module finds the place for it by :func:`_places`.
    """
    if not (flat.requires_grad and torch.is_grad_enabled()):
        sizes = [shape.numel() for shape in shapes]
        return tuple(p.view(shape) for p, shape in zip(flat.split(sizes), shapes, strict=True))
    buffer, start = GradientBuffer(flat), 0
    result = Pieces.apply(flat, buffer, shapes)
    for piece in result:
        piece.gradient_place = buffer, start
        start += piece.numel()
    return result


def _places(ctx, *tensors: Tensor) -> None:
    """Remembers in a node's forward run where the gradients of its inputs go."""
    ctx.places = [(getattr(t, "gradient_place", None), t.shape) for t in tensors]


def _room(ctx, like: Tensor) -> tuple[Tensor, ...]:
    """In its backward run, the tensors to write them to."""
    return tuple(
        like.new_empty(shape) if place is None else place[0].take(place[1], shape)
        for place, shape in ctx.places
    )


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
        _places(ctx, loc, log_scale)
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
        d_loc, d_log_scale = _room(ctx, loc)
        torch.sub(loc, prior_loc, out=d_loc).mul_(precision)
        torch.mul(d_variance, 2, out=d_log_scale).add_(precision).mul_(variance).sub_(d_kl)
        d_prior_loc = -d_loc.sum().reshape(prior_loc.shape) if ctx.needs_input_grad[2] else None
        d_prior_scale = None
        if ctx.needs_input_grad[3]:
            d_prior_scale = (d_kl * loc.numel() - ctx.spread * precision) / prior_scale
        return d_loc, d_log_scale, d_prior_loc, d_prior_scale


class SpikeSlabSite(torch.autograd.Function):
    """``(mean, variance, KL)`` of a spike-and-slab site from ``(logits, loc, log_scale)`` and its prior.

    ``mean = alpha mu``, ``variance = alpha (sigma^2 + (1 - alpha) mu^2)`` and, one number for the site,
    ``KL = sum[alpha cost - softplus(lambda) + softplus(logit pi)]``, where ``cost`` is what a weight pays
    when it is on; see :func:`guides.core.moments.spike_slab_kl`.
    """

    @staticmethod
    def forward(ctx, logits, loc, log_scale, prior_logits, prior_loc, prior_scale):
        ctx.save_for_backward(logits, loc, log_scale, prior_logits, prior_loc, prior_scale)
        _places(ctx, logits, loc, log_scale)
        prior = prior_logits, prior_loc, prior_scale
        mean, variance = loc.new_empty(loc.shape), loc.new_empty(loc.shape)
        compiled = kernel("spike_slab_forward", logits, loc, log_scale)
        if compiled is not None:
            ctx.packed = _packed(*prior)
            total = compiled(loc.numel(), ctx.packed, logits, loc, log_scale, mean, variance)
            return mean, variance, loc.new_tensor(total)
        kl = logits.numel() * softplus(prior_logits)
        for lam, mu, s, m, v in chunks(logits, loc, log_scale, mean, variance):
            alpha, s2 = torch.sigmoid(lam), torch.exp(2 * s)
            torch.mul(alpha, mu, out=m)
            torch.mul(alpha, s2, out=v).addcmul_(m, mu - m)  # alpha sigma^2 + alpha mu (mu - alpha mu)
            kl = kl + alpha.dot(cost_of_on(lam, mu, s, s2, *prior)) - softplus(lam).sum()
        return mean, variance, kl.reshape(())

    @staticmethod
    @once_differentiable
    def backward(ctx, d_mean: Tensor, d_variance: Tensor, d_kl: Tensor):
        logits, loc, log_scale, *prior = ctx.saved_tensors
        gradients = _room(ctx, loc)
        compiled = kernel("spike_slab_backward", logits, loc, log_scale)
        if compiled is not None:
            upstream = d_mean.contiguous(), d_variance.contiguous()
            compiled(loc.numel(), ctx.packed, float(d_kl), logits, loc, log_scale, *upstream, *gradients)
        else:
            _spike_slab_backward(ctx.saved_tensors, d_mean, d_variance, d_kl, gradients)
        return *gradients, *_times_prior_gradient(d_kl, ctx.needs_input_grad[3:], *ctx.saved_tensors)


class ConcreteSite(torch.autograd.Function):
    """``(weights, gates, KL)`` of a site of relaxed indicators from ``(logits, loc, log_scale)``, their
    temperature ``T`` and its prior.  No gradient through the gates.

    ``w = g (mu + sigma epsilon)`` with ``g = sigmoid((lambda - logit U) / T)``, ``U`` uniform and ``epsilon``
    normal; the divergence is that of :class:`SpikeSlabSite`.
    """

    @staticmethod
    def forward(ctx, logits, loc, log_scale, temperature, prior_logits, prior_loc, prior_scale):
        _places(ctx, logits, loc, log_scale)
        prior = prior_logits, prior_loc, prior_scale
        value, gate, noise = (loc.new_empty(loc.shape) for _ in range(3))
        torch.rand(loc.shape, out=gate)
        torch.randn(loc.shape, out=noise)
        ctx.save_for_backward(logits, loc, log_scale, *prior, gate, noise)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(gate)
        compiled = kernel("concrete_forward", logits, loc, log_scale)
        if compiled is not None:
            ctx.packed = _packed(*prior)
            arrays = logits, loc, log_scale, noise, gate, value
            return value, gate, loc.new_tensor(compiled(loc.numel(), ctx.packed, temperature, *arrays))
        kl = logits.numel() * softplus(prior_logits)
        for lam, mu, s, w, g, eps in chunks(logits, loc, log_scale, value, gate, noise):
            scale = torch.exp(s)
            g.logit_().neg_().add_(lam).div_(temperature).sigmoid_()
            torch.addcmul(mu, scale, eps, out=w).mul_(g)
            kl = kl + torch.sigmoid(lam).dot(cost_of_on(lam, mu, s, scale.square_(), *prior))
            kl = kl - softplus(lam).sum()
        return value, gate, kl.reshape(())

    @staticmethod
    @once_differentiable
    def backward(ctx, d_value: Tensor, _, d_kl: Tensor):
        logits, loc, log_scale, *prior, gate, noise = ctx.saved_tensors
        gradients = _room(ctx, loc)
        compiled = kernel("concrete_backward", logits, loc, log_scale)
        if compiled is not None:
            numbers = loc.numel(), ctx.packed, float(d_kl), ctx.temperature
            arrays = logits, loc, log_scale, noise, gate, d_value.contiguous()
            compiled(*numbers, *arrays, *gradients)
        else:
            _concrete_backward(ctx.saved_tensors, ctx.temperature, d_value, d_kl, gradients)
        needed = ctx.needs_input_grad[4:]
        return *gradients, None, *_times_prior_gradient(d_kl, needed, logits, loc, log_scale, *prior)


class InclusionCost(torch.autograd.Function):
    """``sum[softplus(l) - alpha l]``, ``alpha = sigmoid(lambda)``: what prior inclusion logits ``l`` of every
    weight's own add to a KL divergence, from ``(logits, prior logits)``.  No gradient by the latter.
    """

    @staticmethod
    def forward(ctx, logits: Tensor, prior_logits: Tensor):
        alpha = torch.sigmoid(logits)
        ctx.save_for_backward(alpha, prior_logits)
        return softplus(prior_logits).sum() - alpha.flatten().dot(prior_logits.flatten())

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        alpha, prior_logits = ctx.saved_tensors
        return (alpha * (alpha - 1)).mul_(prior_logits).mul_(grad), None


class MultipliedSpikeSlabSite(torch.autograd.Function):
    """``(mean, variance, KL, seen mean, seen variance)`` of a large spike-and-slab site whose means are
    ``z_j mu_ij``, from ``(logits, loc, log_scale, z, c)`` and its prior; compiled only.

    The first three are as in :class:`SpikeSlabSite`; ``seen``, ``[*site without its last axis]``, are mean
    and variance of ``sum_j c_j w_ij``, which the auxiliary density of :mod:`guides.variational.multipliers`
    sees.
    """

    @staticmethod
    def applies(logits: Tensor, loc: Tensor, log_scale: Tensor) -> bool:
        return kernel("multiplied_forward", logits, loc, log_scale) is not None

    @staticmethod
    def forward(ctx, logits, loc, log_scale, z, c, prior_logits, prior_loc, prior_scale):
        prior = prior_logits, prior_loc, prior_scale
        z, c = z.contiguous(), c.contiguous()
        ctx.save_for_backward(logits, loc, log_scale, z, c, *prior)
        _places(ctx, logits, loc, log_scale)
        compiled = kernel("multiplied_forward", logits, loc, log_scale)
        outputs = [loc.new_empty(shape) for shape in (loc.shape, loc.shape, loc.shape[:-1], loc.shape[:-1])]
        ctx.matrix = loc[..., 0].numel(), loc.shape[-1]
        ctx.packed = _packed(*prior)
        total = compiled(*ctx.matrix, ctx.packed, logits, loc, log_scale, z, c, *outputs)
        return *outputs[:2], loc.new_tensor(total), *outputs[2:]

    @staticmethod
    @once_differentiable
    def backward(ctx, d_mean, d_variance, d_kl, d_seen_mean, d_seen_variance):
        logits, loc, log_scale, z, c, *prior = ctx.saved_tensors
        compiled = kernel("multiplied_backward", logits, loc, log_scale)
        upstream = [d.contiguous() for d in (d_mean, d_variance, d_seen_mean, d_seen_variance)]
        gradients = *_room(ctx, loc), torch.zeros_like(z), torch.zeros_like(c)
        compiled(*ctx.matrix, ctx.packed, float(d_kl), logits, loc, log_scale, z, c, *upstream, *gradients)
        needed = ctx.needs_input_grad[5:]
        scaled = loc * z if any(needed) else loc
        return *gradients, *_times_prior_gradient(d_kl, needed, logits, scaled, log_scale, *prior)


def _packed(prior_logits: Tensor, prior_loc: Tensor, prior_scale: Tensor) -> Tensor:
    """The prior as the kernels take it, ``[4]``."""
    shift, constant = prior_scale.log() - 0.5 - prior_logits, softplus(prior_logits)
    return torch.cat([t.reshape(1) for t in (0.5 / prior_scale**2, prior_loc, shift, constant)]).float()


def _spike_slab_backward(
    saved: tuple[Tensor, ...], d_mean: Tensor, d_variance: Tensor, d_kl: Tensor, out: tuple[Tensor, ...]
) -> None:
    """Fills ``out`` with the derivatives by logits, means and log scales."""
    logits, loc, log_scale, *prior = saved
    precision = d_kl / prior[2] ** 2
    for lam, mu, s, dm, dv, d_lam, d_mu, d_s in chunks(logits, loc, log_scale, d_mean, d_variance, *out):
        alpha, s2 = torch.sigmoid(lam), torch.exp(2 * s)
        off = 1 - alpha
        torch.mul(alpha, s2 * (2 * dv + precision) - d_kl, out=d_s)
        torch.mul(alpha, dm + 2 * off * mu * dv + (mu - prior[1]) * precision, out=d_mu)
        # d variance / d alpha = sigma^2 + (1 - 2 alpha) mu^2
        d_alpha = mu * dm + (s2 + (off - alpha) * mu * mu) * dv + d_kl * cost_of_on(lam, mu, s, s2, *prior)
        torch.mul(alpha * off, d_alpha, out=d_lam)


def _concrete_backward(
    saved: tuple[Tensor, ...], temperature: float, d_value: Tensor, d_kl: Tensor, out: tuple[Tensor, ...]
) -> None:
    """Fills ``out`` with the derivatives by logits, means and log scales."""
    logits, loc, log_scale, *prior, gate, noise = saved
    precision = d_kl / prior[2] ** 2
    for lam, mu, s, g, eps, dw, d_lam, d_mu, d_s in chunks(
        logits, loc, log_scale, gate, noise, d_value, *out
    ):
        alpha, scale, dw_on = torch.sigmoid(lam), torch.exp(s), dw * g
        slab, s2 = torch.addcmul(mu, scale, eps), scale * scale
        torch.mul(alpha, (mu - prior[1]) * precision, out=d_mu).add_(dw_on)
        torch.mul(alpha, s2 * precision - d_kl, out=d_s).addcmul_(dw_on, scale.mul_(eps))
        torch.mul(alpha * (1 - alpha), d_kl * cost_of_on(lam, mu, s, s2, *prior), out=d_lam)
        d_lam.addcmul_(dw_on * slab, 1 - g, value=1 / temperature)


def _times_prior_gradient(d_kl: Tensor, needed: tuple[bool, ...], *saved: Tensor) -> tuple:
    """Derivatives by the prior's three parameters, or three times None where none is wanted."""
    if not any(needed):
        return None, None, None
    return tuple(d_kl * d for d in spike_slab_prior_gradient(*saved))


def cost_of_on(logits, loc, log_scale, slab_variance, prior_logits, prior_loc, prior_scale) -> Tensor:
    """KL of the slabs plus the log-odds against the prior's, elementwise:

    ``log s_p - log sigma - 1/2 + (sigma^2 + (mu - m_p)^2) / (2 s_p^2) + lambda - logit(pi)``.
    """
    deviation = loc - prior_loc
    spread = torch.addcmul(slab_variance, deviation, deviation)
    return spread * (0.5 / prior_scale**2) + logits - log_scale + (prior_scale.log() - 0.5 - prior_logits)


def spike_slab_prior_gradient(
    logits: Tensor,
    loc: Tensor,
    log_scale: Tensor,
    prior_logits: Tensor,
    prior_loc: Tensor,
    prior_scale: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Derivatives of the KL by the prior's logit, mean and scale, each of one element."""
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
