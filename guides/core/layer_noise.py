"""The noise that rows of a layer's output have when its weights are random.

A linear layer gives every row noise of its own (local reparameterization); a convolution's positions share
theirs (flipout).  The batch is that of the layer's input; its rows are the batch, broadcast against the
particles that plates outside the guide put on the left of a weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from guides.core.fused import GaussianOutput

# Added to a variance before its root, which has no slope at zero (a row of zeros, a filter that is masked).
TINY_VARIANCE = 1e-20

#: Images ``[*rows, in, *positions]`` by filters ``[out, in, *kernel]``.
Convolution = Callable[[Tensor, Tensor], Tensor]


class LayerLaw(Protocol):
    """What a layer asks of the law of its weight.

    ``leading`` are the batch dimensions that plates outside the guide put on the weight's left (vectorized
    particles), ``plate_dims`` counts the plates among its own dimensions.  With ``by_particle`` every
    particle has moments of its own, ``[*leading, *site]`` in place of ``[*site]``.
    """

    leading: torch.Size

    @property
    def by_particle(self) -> bool: ...

    @property
    def plate_dims(self) -> int: ...

    def output(self, value: Tensor, batch: torch.Size) -> Tensor:
        """Sees every output that was drawn from the moments, ``[*rows, ...]``, and may change it.

        :param batch: that of the layer's input, which has the particles where a layer before had them
        """


def sample_output(law: LayerLaw, mean: Tensor, variance: Tensor, batch: torch.Size) -> Tensor:
    """A draw of a layer's output ``[*rows, *units]``; ``batch``: that of its input."""
    rows = row_shape(particle_shape(law), batch)
    shape = mean.shape if law.by_particle else rows + mean.shape[len(batch) :]
    noise = torch.randn(shape, dtype=mean.dtype, device=mean.device)
    return law.output(GaussianOutput.apply(mean, variance, noise, TINY_VARIANCE), batch)


def particle_shape(law: LayerLaw) -> torch.Size:
    """Particles, as batch dimensions of a layer's output: the plates of the weight itself are summed over."""
    return law.leading + (1,) * law.plate_dims if law.leading else law.leading


def row_shape(particles: torch.Size, batch: torch.Size) -> torch.Size:
    """Batch shape of a layer's output; ``particles``: as :func:`particle_shape` has them."""
    if not particles:
        return batch
    if batch and particles[-1] != 1:
        raise ValueError(
            f"vectorized particles {tuple(particles)} collide with the rows {tuple(batch)} of a layer's "
            "input: put the data in a pyro.plate, or pass vectorize_particles=False (to Predictive: "
            "parallel=False)"
        )
    return torch.broadcast_shapes(particles, batch)


def count_of_rows(law: LayerLaw, batch: torch.Size) -> int:
    """How many rows a layer's input has in every particle, whether or not a layer before it had particles."""
    particles = particle_shape(law)
    aligned = (1,) * (len(batch) - len(particles)) + tuple(particles)[max(0, len(particles) - len(batch)) :]
    return math.prod(size for size, particle in zip(batch, aligned, strict=True) if particle == 1)


def bias_of_each_row(mean: Tensor, variance: Tensor, rows: torch.Size) -> Tensor:
    """``[*rows, out]``, which all positions of a row share; moments ``[out]``."""
    noise = torch.randn(rows + mean.shape, dtype=mean.dtype, device=mean.device)
    return GaussianOutput.apply(mean, variance, noise, TINY_VARIANCE)


def filter_noise(
    layer: Convolution, input: Tensor, variance: Tensor, law: LayerLaw, rows: torch.Size
) -> Tensor:
    """What drawn filters add to a convolution by their mean, ``[*rows, out, *positions]``.

    Positions of an image see the same filters, so noise of each position's own would be wrong.  Filters
    ``sd eps`` are drawn once for a particle, and every row gives random signs to their inputs and outputs,
    ``s conv(r x, sd eps)`` (flipout: Wen, Vicol, Ba, Tran and Grosse 2018).  As ``eps`` is symmetric, a row
    sees filters of the right law.  Rows are uncorrelated, and not independent: the loss is unbiased, with
    more variance than if every row drew filters, which would cost a convolution each.
    """
    shape = variance.shape[len(law.leading) :] if law.by_particle else variance.shape
    like = {"dtype": variance.dtype, "device": variance.device}
    filters = (variance + TINY_VARIANCE).sqrt() * torch.randn(law.leading + shape, **like)
    positions = (1,) * (len(shape) - 2)
    channels = (input.shape[1 - len(shape)], shape[0])
    # Signs come from normal numbers too: the only noise that guides.testing.Noise has to replace.
    into, out = (torch.randn((*rows, n, *positions), **like).sign() for n in channels)
    return out * filters_of_particles(layer, into * input, filters, law, rows)


def filters_of_particles(
    layer: Convolution, images: Tensor, filters: Tensor, law: LayerLaw, rows: torch.Size
) -> Tensor:
    """Images by the filters ``[*leading, *site]`` of their particles, ``[*rows, out, *positions]``."""
    leading, shape = law.leading, filters.shape[len(law.leading) :]
    images = images.expand(*rows, *images.shape[1 - len(shape) :])
    if leading.numel() == 1:
        return layer(images, filters.reshape(shape))
    # Particles to the front, a convolution for each, and back to where they were.
    left = len(rows) - len(particle_shape(law))  # dimensions left of theirs
    axes = tuple(left + i for i, size in enumerate(leading) if size > 1)
    first = tuple(range(len(axes)))
    images = images.movedim(axes, first)
    pairs = zip(images.flatten(0, len(axes) - 1), filters.reshape(-1, *shape), strict=True)
    output = torch.stack([layer(*pair) for pair in pairs])
    return output.unflatten(0, images.shape[: len(axes)]).movedim(first, axes)
