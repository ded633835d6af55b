"""What a fit leaves behind: the state of message passing and what it is about, in memory and on disk."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from guides.message_passing.recorder import Recording
from guides.posterior.files import write_atomically

FORMAT = "posterior-zoo message passing 2"


class SiteMoments(NamedTuple):
    """Gaussian posterior of the elements of a weight site, each ``[*site]``."""

    mean: Tensor
    variance: Tensor


class GammaPosterior(NamedTuple):
    """Gamma posterior of a precision (or its prior, where the model does not use it)."""

    concentration: float
    rate: float


@dataclass(frozen=True)
class Structure:
    """What the state is about; JSON-safe.

    :ivar digest: of the program
    :ivar numbers: those that it knows, as :attr:`Program.known_numbers`
    :ivar weights: ``{site: (shape, dtype name)}``
    :ivar gammas: ``{site: (shape, dtype name, prior concentration, prior rate)}``
    :ivar links: ``((weight site, precision site), ...)``
    :ivar noise_precision: Gamma site of the noise, None for fixed noise
    :ivar noise_factor: noise variance = ``noise_factor ** 2 / precision``; the noise scale itself if that is
        fixed
    """

    digest: str
    numbers: Sequence[Sequence[float]]
    weights: dict[str, tuple]
    gammas: dict[str, tuple]
    links: tuple
    observed: str
    noise_precision: str | None
    noise_factor: float

    @classmethod
    def of(cls, recording: Recording) -> Structure:
        weights, gammas = recording.weights, recording.gammas
        return cls(
            recording.program.digest,
            recording.program.known_numbers,
            {name: (p.shape, _dtype_name(p.dtype)) for name, p in weights.items()},
            {n: (p.shape, _dtype_name(p.dtype), p.concentration, p.rate) for n, p in gammas.items()},
            tuple((name, p.precision) for name, p in weights.items() if p.precision is not None),
            recording.observed,
            recording.noise_precision,
            recording.noise_scale,
        )

    def check(self, recording: Recording) -> None:
        """:raises ValueError: where the model that was recorded is not the one that was fitted"""
        shapes = {name: tuple(shape) for name, (shape, _) in self.weights.items()}
        if dict(recording.program.shapes) != shapes:
            other = "has other weight sites"
        elif recording.program.digest != self.digest or self._knows_others(recording.program.known_numbers):
            other = "does something else"
        elif recording.gammas.keys() != self.gammas.keys():
            other = "has other Gamma sites"
        elif not math.isclose(recording.noise_scale, self.noise_factor, rel_tol=1e-5):
            other = "has another noise"
        else:
            return
        raise ValueError(f"the model {other} with these rows than with those it was fitted to")

    def _knows_others(self, numbers: Sequence[Sequence[float]]) -> bool:
        """Beyond their rounding."""
        return any(
            not math.isclose(one, other, rel_tol=0, abs_tol=1e-5 * total)
            for (total, *sums), (other_total, *others) in zip(self.numbers, numbers, strict=True)
            for one, other in zip((total, *sums), (other_total, *others), strict=True)
        )


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class MessagePassingFit:
    """A fit at the end of an epoch.

    :ivar state: a :class:`guides.message_passing.compiled.State` of numpy arrays
    :ivar facts: epochs, rows seen, seconds, seed ...: JSON-safe
    """

    structure: Structure
    state: Any
    facts: dict = field(default_factory=dict)

    def moments(self) -> dict[str, tuple[Tensor, Tensor]]:
        """``{site: (mean, variance)}`` in the precision of the fit."""
        return {
            name: SiteMoments(*(torch.from_numpy(np.array(a)) for a in self.state.weights[name]))
            for name in self.structure.weights
        }

    def precisions(self) -> dict[str, GammaPosterior]:
        found = {}
        for name, (_, _, concentration, rate) in self.structure.gammas.items():
            if name == self.structure.noise_precision:
                concentration, rate = self.state.noise
                rate = rate / self.structure.noise_factor**2
            elif name in self.state.precisions:
                concentration, rate = self._weight_precision(name, concentration, rate)
            found[name] = GammaPosterior(float(concentration), float(rate))
        return found

    def _weight_precision(self, name: str, concentration: float, rate: float) -> tuple[float, float]:
        """The Gamma of a weight precision, given its prior.

        The published refinement can leave numbers that are no Gamma (see :func:`updates.refine_precision`).
        What stands here then is the Gamma that goes best with the weights (the mean-field optimum):
        ``Gamma(a_0 + K/2, b_0 + E[sum u^2]/2)`` over the ``K`` whitened weights ``u = (w - loc) / factor``.
        """
        a, b = map(float, self.state.precisions[name])
        if a > 0 and b > 0:
            return a, b
        for weight in (weight for weight, precision in self.structure.links if precision == name):
            (mean, variance), prior = self.state.weights[weight], self.state.priors[weight]
            squares = ((np.float64(mean) - prior.loc) ** 2 + variance) / prior.factor**2
            concentration, rate = concentration + squares.size / 2, rate + float(squares.sum()) / 2
        return concentration, rate

    def noise_variance(self) -> float:
        """Expected variance of the noise."""
        if self.structure.noise_precision is None:
            return self.structure.noise_factor**2
        concentration, rate = self.state.noise
        return float(rate / (concentration - 1))

    # ------------------------------------------------------------------------------------------------ on disk

    def save(self, path: str | Path, header: Mapping[str, Any]) -> None:
        """One safetensors file: the arrays of the state, everything else as JSON in its header."""
        arrays = {name: np.array(array) for name, array in _flatten(self.state).items()}
        facts = {"format": FORMAT, "structure": asdict(self.structure), "facts": self.facts, **header}
        # one element arrays, because safetensors keeps numbers as arrays anyway
        write_atomically(path, lambda target: save_file(arrays, target, metadata={"fit": json.dumps(facts)}))

    @classmethod
    def load(cls, path: str | Path) -> tuple[MessagePassingFit, dict]:
        """``(fit, header)``; :raises ValueError: naming a damaged or foreign file"""
        try:
            with safe_open(str(path), framework="np") as file:
                header = json.loads((file.metadata() or {})["fit"])
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if header.pop("format") != FORMAT:
                raise KeyError("format")
            structure = Structure(**header.pop("structure"))
            return cls(structure, _unflatten(arrays, structure), header.pop("facts")), header
        except (SafetensorError, KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is truncated or no saved message passing fit ({error})") from error


def _flatten(state: Any) -> dict[str, np.ndarray]:
    flat = {"noise": np.asarray(state.noise, np.float64), "refused": np.asarray(state.refused, np.int64)}
    for name, moments in state.weights.items():
        flat |= {f"mean {name}": moments.mean, f"variance {name}": moments.variance}
    for name, precision in state.precisions.items():
        flat[f"precision {name}"] = np.asarray(precision, np.float64)
    for name, prior in state.priors.items():
        flat |= {f"loc {name}": prior.loc, f"factor {name}": prior.factor}
        flat |= {f"site {part} {name}": a for part, a in prior.site._asdict().items()}
    return flat


def _unflatten(arrays: dict[str, np.ndarray], structure: Structure) -> Any:
    from guides.message_passing import compiled
    from guides.message_passing.updates import PriorSite

    def prior(name: str) -> compiled.Prior:
        site = PriorSite(*(arrays[f"site {part} {name}"] for part in PriorSite._fields))
        return compiled.Prior(arrays[f"loc {name}"], arrays[f"factor {name}"], site)

    noise = compiled.FixedNoise if structure.noise_precision is None else compiled.Precision
    linked = list(dict.fromkeys(precision for _, precision in structure.links))
    return compiled.State(
        weights={
            n: compiled.Moments(arrays[f"mean {n}"], arrays[f"variance {n}"]) for n in structure.weights
        },
        noise=noise(*arrays["noise"]),
        priors={name: prior(name) for name, _ in structure.links},
        precisions={name: compiled.Precision(*arrays[f"precision {name}"]) for name in linked},
        refused=compiled.Refused(*arrays["refused"]),
    )
