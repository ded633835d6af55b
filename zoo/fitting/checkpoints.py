"""A fit on disk: guide, optimiser, random state and losses in one file, from which it goes on as if it had
never ended.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from guides.core.flat_guide import FlatGuide
from guides.core.optim import FusedAdam
from guides.posterior.files import part_of, read_safetensors, write_atomically
from guides.truth.interruption import held_back
from zoo.errors import UserError


def write_checkpoint(
    path: Path,
    guide: FlatGuide,
    optimizer: FusedAdam,
    losses: Sequence[float],
    final_losses: Sequence[float],
    header: Mapping,
    device: torch.device,
) -> None:
    """Of a fit between two steps, whole or not at all.

    :param losses: of the steps so far
    :param final_losses: of the same steps (:class:`guides.core.svi.Step`)
    :param header: what else the fit needs, and what it is, JSON-safe
    :param device: whose random state counts beside the processor's
    """
    state = guide.state_dict()
    layout = state.pop("_extra_state")
    tensors = {f"guide.{name}": value for name, value in state.items()}
    for i, moments in optimizer.get_state()["state"].items():
        tensors |= {f"adam.{i}.{name}": torch.as_tensor(value) for name, value in moments.items()}
    tensors["losses"] = torch.tensor(losses, dtype=torch.float64)
    tensors["final_losses"] = torch.tensor(final_losses, dtype=torch.float64)
    tensors["random_state"] = torch.get_rng_state()
    if device.type == "cuda":
        tensors["random_state_gpu"] = torch.cuda.get_rng_state(device)
    tensors = {name: value.cpu().contiguous() for name, value in tensors.items()}
    text = json.dumps({"layout": layout, **header})
    metadata = {"fit": text, "sha256": _checksum(text, tensors)}
    write_atomically(path, lambda target: save_file(tensors, target, metadata=metadata))


def read_checkpoint(path: Path) -> tuple[dict, dict[str, Tensor]]:
    """Header and tensors of a fit; :raises UserError: naming a damaged file"""
    try:
        metadata, tensors = read_safetensors(path)
        text, checksum, _ = metadata["fit"], metadata["sha256"], tensors["final_losses"]
    except (SafetensorError, OSError, KeyError) as error:
        raise UserError(
            f"{path} is truncated or no fit of this program ({error}): delete it and fit again"
        ) from error
    if _checksum(text, tensors) != checksum:
        raise UserError(f"{path} fails its checksum, it was altered: delete it and fit again")
    return json.loads(text), tensors


def guide_state(header: Mapping, tensors: Mapping[str, Tensor]) -> dict:
    """The guide's ``state_dict`` in a checkpoint."""
    return {**part_of(tensors, "guide"), "_extra_state": header["layout"]}


def start(guide: FlatGuide, optimizer: FusedAdam, set_up: Callable[[], None]) -> None:
    """Makes the guide's parameters, those that exist stay; Adam counts them in the order of their names,
    which a guide that was loaded shares with one that was made.

    :param set_up: the guide
    """
    set_up()
    optimizer.adopt(parameter for _, parameter in sorted(guide.named_parameters()))


def resume(
    guide: FlatGuide,
    optimizer: FusedAdam,
    header: Mapping,
    tensors: Mapping[str, Tensor],
    set_up: Callable[[], None],
    device: torch.device,
) -> tuple[list[float], list[float]]:
    """Gives a fresh guide, its optimiser and the random state what the checkpoint holds; returns the losses
    and the final losses of the steps that were taken.
    """
    guide.load_state_dict(guide_state(header, tensors))
    guide.to(device)
    start(guide, optimizer, set_up)
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("adam."):
            _, i, key = name.split(".")
            moments.setdefault(int(i), {})[key] = value
    optimizer.set_state({**optimizer.get_state(), "state": moments})
    torch.set_rng_state(tensors["random_state"])  # last: setting up draws numbers
    if device.type == "cuda":
        torch.cuda.set_rng_state(tensors["random_state_gpu"], device)
    return tensors["losses"].tolist(), tensors["final_losses"].tolist()


@contextmanager
def saving(save: Callable[[], None] | None, seconds: float) -> Iterator[Callable[[], None]]:
    """Around the steps of a fit; what it gives is called at the end of each.

    Ctrl-C waits for that end: what is saved there goes on as if it had not come.

    :param save: writes the checkpoint, at Ctrl-C and whenever so many ``seconds`` have passed; None: no file
    """
    last_saved = time.monotonic()
    with held_back() as interrupted:

        def step_taken() -> None:
            nonlocal last_saved
            due = time.monotonic() - last_saved > seconds
            if save is not None and (due or interrupted.is_set()):
                save()
                last_saved = time.monotonic()
            if interrupted.is_set():
                raise KeyboardInterrupt

        yield step_taken


def _checksum(header: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(header.encode())
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        digest.update(value.detach().numpy().tobytes())
    return digest.hexdigest()
