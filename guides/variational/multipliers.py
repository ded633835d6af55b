"""The latent multipliers of one weight site: ``z`` from a flow, and an auxiliary density that guesses it.

``z = f(z0)`` with ``z0 ~ Normal(mean, scale)``, one entry for each input of a linear layer or each filter of
a convolution, shared by all weights of that input or filter.  ``q(w) = int q(w | z) q(z) dz`` has no closed
form; with any conditional density ``r(z | w)``

    ``log q(w) <= E[log q(z) + log q(w | z) - log r(z | w)]``  under ``q(z | w)``,

so the ELBO with the right-hand side in place of ``log q(w)`` is a bound too (Ranganath et al. 2016).
Here ``r(z | w) = Normal(g(z); m, v) |det dg/dz|`` on the **whole vector**, with a flow ``g`` of its own and
``m = a1 + b1 h``, ``log v = a2 + b2 h``, ``h = mean_j tanh(sum_i c_i w_ij)``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from guides.core.moments import LOG_2PI
from guides.flows import fused
from guides.flows.gated import make_flow

#: Draws from which the auxiliary density takes its first mean and variance.
START_DRAWS = 256


class Multipliers(nn.Module):
    """``q(z)`` and ``r(z | w)`` of one site; parameters first, see the module's docstring for the symbols.

    :param dim: entries of ``z``
    :param flow: ``"rnvp"`` or ``"iaf"``, for ``f`` and ``g`` alike
    :param num_flows: steps of each
    :param hidden: widths of their networks
    :param centre: start of the means of ``z``
    :param scale: start of the standard deviations of ``z0``
    """

    def __init__(
        self, dim: int, flow: str, num_flows: int, hidden: tuple[int, ...], centre: float, scale: float
    ):
        super().__init__()
        self.flow = make_flow(flow, dim, num_flows, hidden, centre)
        self.auxiliary_flow = make_flow(flow, dim, num_flows, hidden, centre)
        # Rows: mean, log scale of z0
        self.base = nn.Parameter(torch.stack([torch.full((dim,), centre), torch.full((dim,), scale).log()]))
        # Rows: c, a1, b1, a2, b2.  Without a slope the auxiliary density starts as the best one.
        with torch.no_grad():
            back = self.auxiliary_flow(self(torch.randn(START_DRAWS, dim))[0])
        start = torch.randn(5, dim) * torch.tensor([0.1, 0.0, 0.01, 0.0, 0.01])[:, None]
        start[1], start[3] = back.mean(0), back.var(0).log()
        self.auxiliary = nn.Parameter(start)

    def forward(self, noise: Tensor, expected: bool = False) -> tuple[Tensor, Tensor]:
        """``noise [..., d]`` (standard normal) ``-> (z [..., d], log q(z) [...])``.

        :param expected: put the expectation of ``log q(z0)`` in place of its value, which is less noisy
        """
        if expected:
            steps = self.flow.steps()
            if fused.has_kernel(noise, steps) and not noise.requires_grad:
                return _Draw.apply(noise, steps, self.base, *_weights(steps))
        mean, log_scale = self.base
        z, log_det = self.flow.with_log_det(mean + log_scale.exp() * noise)
        spread = noise.shape[-1] if expected else noise.square().sum(-1)
        return z, -0.5 * spread - (log_scale.sum() + 0.5 * LOG_2PI * noise.shape[-1]) - log_det

    def log_prob(self, z: Tensor) -> Tensor:
        """``log q(z)``, ``[..., d] -> [...]``; inverts the flow, ``"iaf"`` one coordinate at a time."""
        mean, log_scale = self.base
        start = self.flow.inv(z)
        noise = (start - mean) * (-log_scale).exp()
        base = -0.5 * noise.square() - log_scale - 0.5 * LOG_2PI
        return base.sum(-1) - self.flow.with_log_det(start)[1]

    @property
    def contraction(self) -> Tensor:
        """``c [d]``: the auxiliary density sees the weights through ``tanh(sum_i c_i w_ij)``."""
        return self.auxiliary[0]

    def _auxiliary_normal(self, activations: Tensor) -> tuple[Tensor, Tensor]:
        """``(mean, log variance)`` of ``g(z)``, ``[..., d]``, from activations ``[..., outputs]``."""
        _, mean, mean_slope, log_variance, log_variance_slope = self.auxiliary
        seen = torch.tanh(activations).mean(-1, keepdim=True)
        return torch.addcmul(mean, seen, mean_slope), torch.addcmul(log_variance, seen, log_variance_slope)

    def log_auxiliary(self, z: Tensor, activations: Tensor) -> Tensor:
        """``log r(z | w)``, ``[...]``, from ``z [..., d]`` and ``sum_i c_i w_ij``, ``[..., outputs]``."""
        steps = self.auxiliary_flow.steps()
        if fused.has_kernel(z, steps) and activations.dim() == 1:
            return _AuxiliaryScore.apply(z, activations, steps, self.auxiliary, *_weights(steps))
        mean, log_variance = self._auxiliary_normal(activations)
        back, log_det = self.auxiliary_flow.with_log_det(z)
        squared = (back - mean).square() * (-log_variance).exp()
        return log_det - 0.5 * (LOG_2PI + log_variance + squared).sum(-1)

    def guess(self, noise: Tensor, activations: Tensor) -> Tensor:
        """A draw of ``r(z | w)``, ``[..., d]``, from standard normal ``noise [..., d]``."""
        mean, log_variance = self._auxiliary_normal(activations)
        return self.auxiliary_flow.inv(mean + (0.5 * log_variance).exp() * noise)


def _weights(steps: list[fused.Step]) -> list[Tensor]:
    return [tensor for step in steps for tensor in step.weights]


class _Draw(torch.autograd.Function):
    """:meth:`Multipliers.forward` of one vector, with the expected density; for flows that have a kernel."""

    @staticmethod
    def forward(ctx, noise: Tensor, steps: list[fused.Step], base: Tensor, *weights: Tensor):
        mean, log_scale = base
        deviation = log_scale.exp() * noise
        z, log_det, ctx.kept = fused.forward(mean + deviation, steps)
        ctx.steps = steps
        ctx.save_for_backward(deviation, *weights)  # which are not to change before backward
        return z, -0.5 * (1 + LOG_2PI) * len(noise) - log_scale.sum() - log_det

    @staticmethod
    @once_differentiable
    def backward(ctx, d_z: Tensor, d_density: Tensor):
        deviation, *_ = ctx.saved_tensors
        d_start, d_weights = fused.backward(ctx.steps, ctx.kept, d_z.contiguous(), -float(d_density))
        return None, None, torch.stack([d_start, d_start * deviation - d_density]), *d_weights


class _AuxiliaryScore(torch.autograd.Function):
    """:meth:`Multipliers.log_auxiliary` of one vector; for flows that have a kernel."""

    @staticmethod
    def forward(ctx, z: Tensor, activations: Tensor, steps: list[fused.Step], auxiliary: Tensor, *weights):
        _, mean, mean_slope, log_variance, log_variance_slope = auxiliary
        tanh = activations.tanh()
        seen = tanh.mean()
        back, log_det, ctx.kept = fused.forward(z, steps)
        log_variance = torch.addcmul(log_variance, seen, log_variance_slope)
        deviation = back - torch.addcmul(mean, seen, mean_slope)
        pull = deviation * (-log_variance).exp()
        ctx.steps = steps
        ctx.save_for_backward(tanh, seen, deviation, pull, mean_slope, log_variance_slope, *weights)
        return log_det - 0.5 * (LOG_2PI * len(z) + log_variance.sum() + deviation.dot(pull))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        tanh, seen, deviation, pull, mean_slope, log_variance_slope, *_ = ctx.saved_tensors
        d_mean = grad * pull
        d_log_variance = torch.addcmul(-0.5 * grad, d_mean, deviation, value=0.5)
        d_seen = d_mean.dot(mean_slope) + d_log_variance.dot(log_variance_slope)
        d_activations = (1 - tanh.square()) * (d_seen / len(tanh))
        zero = torch.zeros_like(d_mean)
        rows = [zero, d_mean, d_mean * seen, d_log_variance, d_log_variance * seen]
        d_z, d_weights = fused.backward(ctx.steps, ctx.kept, -d_mean, float(grad))
        return d_z, d_activations, None, torch.stack(rows), *d_weights
