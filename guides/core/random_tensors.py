"""Random tensors: site values that carry a distribution instead of numbers.

A :class:`RandomTensor` stands where a weight would stand in a Pyro model.  A linear layer that meets one
draws its *output* from the Gaussian with the matched mean and variance (local reparameterization, LRT:
Kingma, Salimans and Welling 2015; for spike and slab Hubin and Storvik 2019)::

    E[x w] = x E[w],    Var[x w] = x^2 Var[w].

Every row of ``x`` gets noise of its own.  That leaves the expected log-likelihood unchanged as long as the
likelihood factorises over rows and the weight enters it once; where a model mixes rows afterwards (a graph
convolution, ``x @ (exp(v) @ w)``) a guide's set-up finds that out, and weights are drawn.  Positions of an
image in a convolution see the same filters, so there it is Gaussian filters with the matched moments that a
row sees (flipout).

Index operations, scaling and shifting give random tensors again.  Any other operation draws the weights
once: with a pathwise gradient for a Gaussian; for a spike and slab only while no gradient is wanted, because
a drawn indicator has none, and otherwise it raises an error that names the site and the operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from guides.core.layer_noise import (
    LayerLaw,
    bias_of_each_row,
    filter_noise,
    filters_of_particles,
    particle_shape,
    row_shape,
    sample_output,
)
from guides.core.nested import leaves


class PathwiseGradientError(RuntimeError):
    """An operation would need the gradient of a drawn indicator, which does not exist."""


class Law(LayerLaw, Protocol):
    """The distribution of one site in one execution of the model.

    ``mean`` and ``variance`` have the site's own shape ``[*site]``, of which the first ``plate_dims``
    dimensions are plates, or ``[*leading, *site]``; ``draw`` gives numbers ``[*leading, *site]``, the same
    ones each time.
    """

    @property
    def mean(self) -> Tensor: ...
    @property
    def variance(self) -> Tensor: ...
    def multiply(self, weight: RandomTensor | None = None, axis: int = -1) -> bool:
        """A linear layer asks: may I use the moments (True), or must I use the draw (False)?

        :param weight: the view that is multiplied; None for a bias
        :param axis: axis of the view that runs over the layer's inputs (a convolution: over its filters)
        """

    def draw(self, operation: str) -> Tensor: ...
    @property
    def scores_draws(self) -> bool: ...
    @property
    def asks_no_gradient(self) -> bool: ...
    def expected_log_prob(self, prior: Any) -> Tensor: ...


class RandomTensor(torch.Tensor):
    """A tensor without storage, of shape ``[*leading, *site]``: a view of a :class:`Law`.

    :ivar law: the law of the whole site
    :ivar mean_: ``[*site]``, or ``[*leading, *site]`` with ``law.by_particle``
    :ivar variance_: likewise
    """

    @staticmethod
    def __new__(
        cls, law: Law, mean: Tensor, variance: Tensor, view: Callable[[Tensor], Tensor] | None = None
    ):
        shape = mean.shape if law.by_particle else law.leading + mean.shape
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=mean.dtype, device=mean.device)

    def __init__(
        self, law: Law, mean: Tensor, variance: Tensor, view: Callable[[Tensor], Tensor] | None = None
    ):
        self.law, self.mean_, self.variance_, self._view = law, mean, variance, view

    @property
    def own_shape(self) -> torch.Size:
        """The shape without the particles' dimensions."""
        return self.shape[len(self.law.leading) :]

    def derive(self, view: Callable[[Tensor], Tensor], factor: Tensor | float | None = None) -> RandomTensor:
        """The random tensor ``view(self)``, for a map of ``[*leading, *site]`` that scales elements by
        ``factor`` or moves them inside each particle.
        """
        parent = self._view
        chained = view if parent is None else lambda draw: view(parent(draw))
        variance = self._viewed(view, self.variance_) if factor is None else self.variance_ * factor**2
        return RandomTensor(self.law, self._viewed(view, self.mean_), variance, chained)

    def _viewed(self, view: Callable[[Tensor], Tensor], moment: Tensor) -> Tensor:
        """A view of ``mean_`` or ``variance_``: it sees the particles, the moments may not have them."""
        leading = self.law.leading
        if self.law.by_particle or not leading:
            return view(moment)
        return view(moment.expand(leading + moment.shape))[(0,) * len(leading)]

    def keeps_particles_apart(self, view: Callable[[Tensor], Tensor]) -> bool:
        """Whether a view does the same inside every particle, and leaves the particles where they are."""
        leading, own = self.law.leading, self.own_shape
        if not leading:
            return True
        places = torch.arange(own.numel()).reshape(own).expand(self.shape)
        particles = torch.arange(leading.numel()).reshape(leading + (1,) * len(own)).expand(self.shape)
        places, particles = view(places), view(particles)
        if places.shape[: len(leading)] != leading:
            return False
        inner = (1,) * (places.dim() - len(leading))
        stays = particles == torch.arange(leading.numel()).reshape(leading + inner)
        return bool(stays.all() and (places == places[(0,) * len(leading)]).all())

    def runs_along(self, axis: int) -> int | None:
        """The site's axis along which this view's ``axis`` runs; None if the view mixes the site's axes."""
        view = self._view or (lambda t: t)
        shape = self.law.batch_shape[len(self.law.leading) :] + self.law.event_shape
        for own, size in enumerate(shape):
            places = (
                torch.arange(1.0, size + 1, device=self.mean_.device)
                .reshape(-1, *(1,) * (len(shape) - own - 1))
                .expand(shape)
            )
            lines = view(places).movedim(axis, -1).flatten(0, -2) if len(shape) > 1 else view(places)[None]
            if len(lines) and (lines == lines[0]).all() and len(lines[0].unique()) == len(lines[0]):
                return own
        return None

    def numbers(self, operation: str) -> Tensor:
        """A draw ``[*leading, *site]``, the same for every view of the site in this execution."""
        draw = self.law.draw(operation)
        return draw if self._view is None else self._view(draw)

    def expected_log_prob(self, prior: Any) -> Tensor:
        """How a prior scores a random tensor, elementwise ``[*leading, *site]``: by ``E[log prior(w)]``, or
        where draws are scored by ``log prior`` of the draw.  So are they by a prior that has classes on the
        left, which an enumeration sums over: the logarithm of the sum is not linear in them.
        """
        has_classes = torch.broadcast_shapes(prior.batch_shape, self.shape) != self.shape
        if self._view is not None or self.law.scores_draws or has_classes:
            return prior.log_prob(self.numbers("log_prob"))
        return self.law.expected_log_prob(prior)

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"{type(self).__name__}({self.law}, shape={tuple(self.shape)})"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = _name(func)
        if _is_in_place(func, name, kwargs):
            law = next(leaves((args, kwargs), RandomTensor)).law
            raise TypeError(
                f"site {law}: `{func.__name__}` would change a random weight in place; make a new tensor"
            )
        if name in _METADATA:
            return super().__torch_function__(func, types, args, kwargs)
        handler = _HANDLERS.get(name)
        if handler is not None:
            result = handler(func, *args, **kwargs)
            if result is not NotImplemented:
                return result
        return func(*_drawn(args, name), **_drawn(kwargs, name))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        # A net below Python's own dispatch: autograd cannot follow a draw that is made here.
        law = next(leaves((args, kwargs or {}), RandomTensor)).law
        if torch.is_grad_enabled() and not law.asks_no_gradient:
            raise PathwiseGradientError(
                f"site {law}: {func} cannot take a random tensor; draw it first with `+w`"
            )
        return func(*_drawn(args, str(func)), **_drawn(kwargs or {}, str(func)))


def _name(func: Callable) -> str:
    if func.__name__ == "__get__":  # a property: Tensor.shape, Tensor.T, ...
        return func.__self__.__name__
    return func.__name__.removeprefix("__").removesuffix("__")


def _is_in_place(func: Callable, name: str, kwargs: dict) -> bool:
    """``add_``, ``w[0] = 1``, ``out=``: a cached draw must not be changed under its other users.

    (Python answers the TypeError for ``w += 1`` by ``w = w + 1``, which is right.)
    """
    return name.endswith("_") or name == "setitem" or func.__name__ == "__set__" or "out" in kwargs


def _drawn(value: Any, operation: str) -> Any:
    """The same nested arguments with every random tensor replaced by numbers."""
    if isinstance(value, RandomTensor):
        return value.numbers(operation)
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return type(value)(_drawn(v, operation) for v in value)
    if isinstance(value, dict):
        return {k: _drawn(v, operation) for k, v in value.items()}
    return value


# ----------------------------------------------------------------------------------------------------------
# Linear layers


def _is_global(value: Any) -> bool:
    """A random tensor whose rows are no data: rows of noise of their own would be wrong."""
    return isinstance(value, RandomTensor) and value.law.plate_dims == 0


def _linear(func, input, weight, bias=None):
    if not isinstance(weight, RandomTensor):  # the bias is one
        return F.linear(_drawn(input, "linear"), weight) + _drawn(bias, "linear")
    if len(weight.own_shape) not in (1, 2) or _is_global(input):
        return NotImplemented
    if len(weight.own_shape) == 2 and weight.law.leading and weight.law.plate_dims:
        return NotImplemented  # particles go where no plate of units is: a draw has them there
    input = _drawn(input, "linear")
    if not weight.law.multiply(weight):
        output = _by_particle(input, weight, weight.numbers("linear"))
        return output if bias is None else output + _drawn(bias, "linear")
    shared = _joins_its_layer(bias) and bias.law.multiply()
    plain = bias is not None and not isinstance(bias, RandomTensor) and bias.dim() <= 1
    bias_mean, bias_variance = (bias.mean_, bias.variance_) if shared else (bias if plain else None, None)
    if weight.law.by_particle:
        mean = _by_particle(input, weight, weight.mean_)
        variance = _by_particle(input * input, weight, weight.variance_)
        mean = mean if bias_mean is None else mean + bias_mean
        variance = variance if bias_variance is None else variance + bias_variance
    else:
        mean = F.linear(input, weight.mean_, bias_mean)
        variance = F.linear(input * input, weight.variance_, bias_variance)
    output = sample_output(weight.law, mean, variance, input.shape[:-1])
    return output if bias is None or shared or plain else output + _drawn(bias, "linear")


def _joins_its_layer(bias) -> bool:
    """A random bias of one entry for each output, whose moments add to the layer's."""
    return isinstance(bias, RandomTensor) and len(bias.own_shape) == 1 and not bias.law.by_particle


def _by_particle(input: Tensor, weight: RandomTensor, numbers: Tensor) -> Tensor:
    """``F.linear`` with ``numbers [*leading, out, in]``, rows of the input against particles."""
    outer = particle_shape(weight.law)
    vector = len(weight.own_shape) == 1
    if not outer:
        return F.linear(input, numbers)
    row_shape(outer, input.shape[:-1])
    matrix = numbers.unsqueeze(-2) if vector else numbers
    matrix = matrix.reshape(outer + matrix.shape[-2:])  # [*outer, out, in]
    if input.dim() > 1:
        matrix = matrix.squeeze(-3)  # the place of the data plate, where the rows of the input go
        output = input @ matrix.mT
    else:
        output = (matrix @ input.unsqueeze(-1)).squeeze(-1)
    return output.squeeze(-1) if vector else output


def _matmul(func, input, other):
    """Each row of the data is a batch element: ``x @ w``, and ``w @ x`` with the data in columns."""
    if isinstance(other, RandomTensor):
        if len(other.own_shape) > 2:
            return NotImplemented
        return _linear(func, input, other.mT if len(other.own_shape) == 2 else other)
    if len(input.own_shape) > 2:
        return NotImplemented
    if other.dim() == 1:
        return _linear(func, other, input)
    output = _linear(func, other.mT, input)
    return output.mT if len(input.own_shape) == 2 else output


def _rmatmul(func, input, other):
    return _matmul(func, other, input)


def _convolution(func, input, weight, bias=None, *args, **kwargs):
    name = _name(func)
    if not isinstance(weight, RandomTensor):
        if not isinstance(bias, RandomTensor):
            return NotImplemented
        output = func(_drawn(input, name), weight, None, *args, **kwargs)
        return output + _to_positions(_bias_of_particles(bias, name), weight.dim() - 2)
    if _is_global(input):
        return NotImplemented
    input, law = _drawn(input, name), weight.law
    image_dims = len(weight.own_shape) - 1  # channels and positions
    _check_convolution(name, input, weight, bias)
    batch = input.shape[:-image_dims]
    rows = row_shape(particle_shape(law), batch)

    def layer(images: Tensor, filters: Tensor) -> Tensor:
        output = func(images.reshape(-1, *images.shape[-image_dims:]), filters, None, *args, **kwargs)
        return output.reshape(*images.shape[:-image_dims], *output.shape[1:])

    if not law.multiply(weight, axis=0):
        output = filters_of_particles(layer, input, weight.numbers(name), law, rows)
        if bias is None:
            return output
        return output + _to_positions(_bias_of_particles(bias, name), image_dims - 1)
    if law.by_particle:
        output = filters_of_particles(layer, input, weight.mean_, law, rows)
    else:
        output = layer(input, weight.mean_)  # one for all particles
    output = output + filter_noise(layer, input, weight.variance_, law, rows)
    if bias is not None:
        shared = _joins_its_layer(bias) and bias.law.multiply()
        if shared:
            constant = bias_of_each_row(bias.mean_, bias.variance_, rows)
        else:
            constant = _bias_of_particles(bias, name)
        output = output + _to_positions(constant, image_dims - 1)
    return law.output(output, batch)


def _check_convolution(name: str, input: Tensor, weight: RandomTensor, bias: Tensor | None) -> None:
    """What torch cannot check any more, which sees images and filters of one particle, and no bias."""
    if input.dim() < len(weight.own_shape) - 1:
        raise ValueError(
            f"{weight.law}: {name} takes images of channels and positions by filters "
            f"{tuple(weight.own_shape)}, not {tuple(input.shape)}"
        )
    if bias is None:
        return
    own = bias.own_shape if isinstance(bias, RandomTensor) else bias.shape
    if own != weight.own_shape[:1] or bias.dtype != weight.dtype:
        raise ValueError(
            f"{weight.law}: the bias of {name} is {bias.dtype} {tuple(own)}, and must be {weight.dtype} "
            f"{tuple(weight.own_shape[:1])}: one entry for each filter"
        )


def _bias_of_particles(bias: Tensor, operation: str) -> Tensor:
    """Numbers ``[*particles, out]``, the particles where :func:`row_shape` has them."""
    if not isinstance(bias, RandomTensor):
        return bias
    return bias.numbers(operation).reshape(particle_shape(bias.law) + bias.own_shape)


def _to_positions(constant: Tensor, count: int) -> Tensor:
    """``[..., out]`` against ``[..., out, *positions]``."""
    return constant.reshape(*constant.shape, *(1,) * count)


# ----------------------------------------------------------------------------------------------------------
# Operations that keep the elements apart


def _move(func, input, *args, **kwargs):
    if not isinstance(input, RandomTensor):
        return NotImplemented

    def view(tensor: Tensor) -> Tensor:
        return func(tensor, *args, **kwargs)

    return input.derive(view) if input.keeps_particles_apart(view) else NotImplemented


def _transpose(func, input):
    """``w.T``, ``w.t()``: of the matrix, whatever plates lie around it."""
    return input.derive(lambda tensor: tensor.mT) if len(input.own_shape) == 2 else _move(func, input)


def _without_gradient(func, tensor):
    """``w.data``: Pyro looks at its shape, which needs no draw."""
    return tensor.derive(Tensor.detach)


def _getitem(func, tensor, index):
    parts = index if isinstance(index, tuple) else (index,)
    if any(not (part is None or part is Ellipsis or isinstance(part, (int, slice))) for part in parts):
        return NotImplemented  # an index tensor may repeat elements, which would no longer be independent
    return _move(func, tensor, index)


def _keeps_shape(tensor: RandomTensor, other: Any) -> bool:
    """Broadcasting that enlarges a random tensor would repeat its elements as if they were independent."""
    if isinstance(other, RandomTensor):
        return False
    shape = getattr(other, "shape", ())
    return (
        len(shape) <= len(tensor.own_shape)
        and torch.broadcast_shapes(shape, tensor.own_shape) == tensor.own_shape
    )


def _multiply(func, input, other):
    tensor, factor = (input, other) if isinstance(input, RandomTensor) else (other, input)
    if not _keeps_shape(tensor, factor):
        return NotImplemented
    return tensor.derive(lambda t: t * factor, factor)


def _divide(func, input, other, **kwargs):
    if not isinstance(input, RandomTensor) or kwargs or not _keeps_shape(input, other):
        return NotImplemented
    return input.derive(lambda t: t / other, 1 / other)


def _shift(func, input, other, **kwargs):
    tensor, number = (input, other) if isinstance(input, RandomTensor) else (other, input)
    if kwargs or not _keeps_shape(tensor, number):
        return NotImplemented
    return tensor.derive(lambda t: func(t, number) if tensor is input else func(number, t), factor=1.0)


def _negate(func, input):
    return input.derive(torch.neg, -1.0)


# fmt: off
_METADATA = frozenset([
    "shape", "dtype", "device", "ndim", "layout", "requires_grad", "grad_fn", "is_leaf", "is_sparse",
    "is_cuda", "is_cpu", "is_mps", "is_quantized", "is_nested", "is_meta", "dim", "size", "numel",
    "nelement", "len", "is_floating_point", "is_complex", "element_size", "names", "is_inference",
    "retains_grad", "itemsize", "nbytes", "ndimension", "is_mkldnn", "is_sparse_csr",
])
_MOVES = (
    "mT", "transpose", "permute", "swapaxes", "movedim", "reshape", "view", "flatten", "unflatten",
    "squeeze", "unsqueeze", "contiguous", "clone", "float", "double", "to",
)
# fmt: on
_HANDLERS: dict[str, Callable] = {
    "linear": _linear,
    **dict.fromkeys(("matmul", "mm", "mv", "dot"), _matmul),
    "rmatmul": _rmatmul,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    **dict.fromkeys(_MOVES, _move),
    **dict.fromkeys(("T", "t"), _transpose),
    "data": _without_gradient,
    "getitem": _getitem,
    **dict.fromkeys(("mul", "multiply", "rmul"), _multiply),
    **dict.fromkeys(("div", "divide", "true_divide", "truediv"), _divide),
    **dict.fromkeys(("add", "radd", "sub", "rsub"), _shift),
    "neg": _negate,
}
