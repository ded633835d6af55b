"""Methods whose fit is a handful of tensors: one file with a seal; an interrupted fit begins again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.progress import Progress
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from guides.posterior.files import write_atomically
from zoo.files.sealed import is_finished, read_seal, seal_of, write_seal
from zoo.fitting.methods import Fitted, unfinished

Tensors = dict[str, Tensor]


class Stored:
    """Base of such methods; :class:`zoo.fitting.methods.Method` says what theirs do."""

    def run(
        self, model: Callable, x: Tensor, y: Tensor, settings: Any, progress: Progress | None, label: str
    ) -> tuple[Tensors, dict]:
        """Fits; gives tensors, and JSON-safe facts.

        :raises DivergenceError: at a number that is not finite
        """
        raise NotImplementedError

    def fitted(self, model: Callable, tensors: Tensors, facts: dict) -> Fitted:
        """What the result of :meth:`run` answers."""
        raise NotImplementedError

    def fit(
        self,
        model: Callable,
        x: Tensor,
        y: Tensor,
        settings: Any,
        *,
        path: Path | None = None,
        about: Mapping | None = None,
        progress: Progress | None = None,
        label: str = "fit",
    ) -> Fitted:
        about = json.loads(json.dumps(about or {}))
        if is_finished(path, about):
            return self.load(path, model)
        tensors, facts = self.run(model, x, y, settings, progress, label)
        if path is not None:
            whole = {name: value.contiguous() for name, value in tensors.items()}
            metadata = {"facts": json.dumps(facts)}
            write_atomically(path, lambda target: save_file(whole, target, metadata=metadata))
            write_seal(path, about)
        return self.fitted(model, tensors, facts)

    def about(self, path: Path) -> dict:
        if not seal_of(path).exists():
            raise unfinished(path)
        return read_seal(path)

    def load(self, path: Path, model: Callable) -> Fitted:
        with safe_open(str(path), framework="pt") as file:
            facts = json.loads(file.metadata()["facts"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        return self.fitted(model, tensors, facts)
