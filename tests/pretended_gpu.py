"""A GPU that is not there: the CPU does its work, and refuses what a GPU would.

Tensors that were sent to ``cuda`` are remembered by their memory, and so is what is computed from them. An
operation on a tensor from here and one from there fails as it does with a real GPU; only single numbers of
the CPU, and indices, may meet the other kind. Random numbers are the CPU's, so that results are too::

    with pretended_gpu():
        x = torch.ones(3).to("cuda")
        x + torch.ones(3)  # RuntimeError: ... at least two devices, cuda:0 and cpu
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from guides.core.random_tensors import RandomTensor

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
MIXED = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
#: Operations that take tensors of both kinds; the second of them indices of the CPU, and not the reverse.
COPIES = ("copy_", "_to_copy")
INDICES = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index")
#: Operations in which single numbers of the CPU are no exception.
STRICT = ("cat", "stack", "mm", "addmm", "bmm", "baddbmm", "dot", "mv", "index_select", "gather", "embedding")


class _Memory:
    """Where tensors are, by :func:`_storage`; each new one is told of, as addresses come again.

    :ivar moved: what was sent there by name, ``x.to("cuda")``
    :ivar differentiating: in a backward run, whose zeros (for what has no gradient) the engine itself makes
        where they are wanted, and asks nobody
    """

    def __init__(self) -> None:
        self.moved: list[Tensor] = []
        self._there: set[int] = set()
        self._anywhere: set[int] = set()
        self.differentiating = False

    def has(self, storage: int) -> bool:
        return storage in self._there

    def is_anywhere(self, storage: int) -> bool:
        return storage in self._anywhere

    def note(self, storage: int, there: bool, *, anywhere: bool = False) -> None:
        for places, joins in ((self._there, there), (self._anywhere, anywhere)):
            (places.add if joins else places.discard)(storage)


def _tensors(values: Any) -> list[Tensor]:
    """Asked at every operation: ``torch.utils._pytree`` would take half of a test's time."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, (tuple, list)):
        return []
    return [tensor for value in values for tensor in _tensors(value)]


def _storage(tensor: Tensor) -> int:
    """Of a random tensor, that of its law's parameters: a draw would be another run's."""
    tensor = tensor.law.loc if isinstance(tensor, RandomTensor) else tensor
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # of torch.func.vmap
        tensor = torch._C._functorch.get_unwrapped(tensor)
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage()._cdata


class _Operations(TorchDispatchMode):
    """Below autograd: sees every operation, those of backward runs too."""

    def __init__(self, memory: _Memory):
        super().__init__()
        self.memory = memory

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        tensors = _tensors((args, kwargs))
        own = [_storage(value) for value in tensors]
        placed = [
            (value, self.memory.has(storage))
            for value, storage in zip(tensors, own, strict=True)
            if not self.memory.is_anywhere(storage)
        ]
        there = [away for _, away in placed]
        crosses = bool(there) and (name in COPIES or (name in INDICES and there[0]))
        if any(there) and not all(there) and not crosses:
            here = [value for value, away in placed if not away]
            if name in STRICT or any(value.dim() for value in here):
                raise RuntimeError(f"{MIXED} ({name})")
        result = func(*args, **kwargs)
        for value in _tensors(result):
            if name == "lift_fresh":  # numbers that Python has made a tensor of
                self.memory.note(_storage(value), False)
            elif (storage := _storage(value)) not in own:
                away = there[0] if crosses else any(there)
                self.memory.note(storage, away, anywhere=self.memory.differentiating and not placed)
        return result


class _Calls(TorchFunctionMode):
    """Above autograd: names of devices, and where a tensor says that it is."""

    def __init__(self, memory: _Memory):
        super().__init__()
        self.memory = memory

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__get__" and (asked := func.__self__.__name__) in ("device", "is_cuda", "is_cpu"):
            place = self._place(args[0])
            return {"device": place, "is_cuda": place == GPU, "is_cpu": place == CPU}[asked]
        tensors = _tensors((args, kwargs))
        own = next((value for value in tensors if _answers_itself(value)), None)
        if own is not None:
            with self:  # what it calls is seen too
                return type(own).__torch_function__(func, types, args, kwargs)
        if name == "to" and args[1:] == ("cuda",):
            self.memory.moved.append(args[0])
        goal, args = self._goal(name, args, kwargs)
        result = func(*args, **kwargs)
        if goal is None and not tensors:
            goal = CPU
        return result if goal is None else self._sent(result, goal.type == "cuda")

    def _goal(self, name: str, args: tuple, kwargs: dict) -> tuple[torch.device | None, tuple]:
        """The device that is asked for, and the arguments without it."""
        goal = kwargs.pop("device", None)
        if name in ("cuda", "cpu"):
            return torch.device(name), args[:1]
        if name in ("new", "new_tensor") and goal is None:
            return self._place(args[0]), args
        if name in ("to", "type_as"):
            asked = (*args[1:], *kwargs.values())
            kwargs.clear()
            for value in asked:
                if isinstance(value, Tensor):
                    goal = self._place(value)
                elif isinstance(value, (str, torch.device)):
                    goal = value
            types = [
                value if isinstance(value, torch.dtype) else value.dtype
                for value in asked
                if isinstance(value, (Tensor, torch.dtype))
            ]
            args = (args[0], *(types or [args[0].dtype]))
        return None if goal is None else torch.device(goal), args

    def _place(self, tensor: Tensor) -> torch.device:
        return GPU if self.memory.has(_storage(tensor)) else CPU

    def _sent(self, result: Any, there: bool) -> Any:
        if not isinstance(result, Tensor):
            return result
        storage = _storage(result)
        if self.memory.has(storage) != there or self.memory.is_anywhere(storage):
            result = result.clone()
            self.memory.note(_storage(result), there)
        return result


def _answers_itself(value: Any) -> bool:
    """Whether a tensor is of a class with functions of its own, and these are not switched off."""
    return isinstance(value, RandomTensor) and torch._C._is_torch_function_enabled()


class _Generator(torch.Generator):
    """The CPU's, on whatever device."""

    def __new__(cls, device: Any = None) -> _Generator:
        return super().__new__(cls)


@contextmanager
def pretended_gpu() -> Iterator[list[Tensor]]:
    """Within, ``cuda`` is a device; gives the tensors that are sent there by name."""
    memory = _Memory()
    calls, parse, backward = _Calls(memory), torch._C._nn._parse_to, torch.autograd._engine_run_backward

    def parsed(*args, **kwargs):
        """The arguments of ``module.to``, which asks a tensor where it is behind Python's back."""
        device, *others = parse(*args, **kwargs)
        like = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        return (like[0].device if like else device, *others)

    def run_backward(*args, **kwargs):
        """Derivatives that are written in Python make tensors too; a mode sees nothing of its own calls."""
        memory.differentiating = True
        try:
            with calls:
                return backward(*args, **kwargs)
        finally:
            memory.differentiating = False

    with (
        mock.patch.object(torch, "Generator", _Generator),
        mock.patch.object(torch._C._nn, "_parse_to", parsed),
        mock.patch.object(torch.autograd, "_engine_run_backward", run_backward),
        _Operations(memory),
        calls,
    ):
        yield memory.moved
