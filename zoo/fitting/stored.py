"""Methods whose fit takes seconds: what it finds is one file with a seal; one interrupted begins again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor

from guides.posterior.files import read_safetensors, write_atomically
from zoo.files.sealed import is_finished, read_seal, seal_of, write_seal
from zoo.fitting.methods import UNWATCHED, FitFile, Fitted, Watch, unfinished

Tensors = dict[str, Tensor]


class Found(Protocol):
    """What a fit has found."""

    def save(self, path: Path) -> None:
        """Whole, or not at all."""
        ...


@dataclass(frozen=True)
class Numbers:
    """Tensors, and JSON-safe facts."""

    tensors: Tensors
    facts: dict

    def save(self, path: Path) -> None:
        whole = {name: value.contiguous() for name, value in self.tensors.items()}
        metadata = {"facts": json.dumps(self.facts)}
        write_atomically(path, lambda target: save_file(whole, target, metadata=metadata))

    @classmethod
    def load(cls, path: Path) -> Numbers:
        metadata, tensors = read_safetensors(path)
        return cls(tensors, json.loads(metadata["facts"]))


def in_turn(tensors: Tensors) -> Callable[[int, int], Tensors]:
    """``draws(n, seed)`` that gives what there is, ``{name: [M, *site]}``, one after the other, and again."""
    count = len(next(iter(tensors.values())))
    return lambda n, seed: {name: value[torch.arange(n) % count] for name, value in tensors.items()}


class Stored:
    """Base of such methods; :class:`zoo.fitting.methods.Method` says what theirs do."""

    def run(self, model: Callable, data: tuple, settings: Any, watch: Watch) -> Found:
        """Fits.

        :raises FailedError: at a number that is not finite
        """
        raise NotImplementedError

    def read(self, path: Path, model: Callable) -> Found:
        """What :meth:`run` has found, from its file."""
        return Numbers.load(path)

    def fitted(self, model: Callable, found: Any) -> Fitted:
        """What it answers."""
        raise NotImplementedError

    def fit(
        self,
        model: Callable,
        data: tuple,
        settings: Any,
        *,
        file: FitFile | None = None,
        watch: Watch = UNWATCHED,
    ) -> Fitted:
        if file is not None and is_finished(file.path, file.about):
            return self.load(file.path, model)
        found = self.run(model, data, settings, watch)
        if file is not None:
            found.save(file.path)
            write_seal(file.path, file.about)
        return self.fitted(model, found)

    def about(self, path: Path) -> dict:
        if not seal_of(path).exists():
            raise unfinished(path)
        return read_seal(path)

    def load(self, path: Path, model: Callable) -> Fitted:
        return self.fitted(model, self.read(path, model))
