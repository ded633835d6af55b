"""Writes a Pyro model down as a program, and finds out by experiment what its precisions do.

:func:`record` runs the model once: latent Normal sites are answered with recording tensors, Gamma sites with
numbers.  :func:`analyse` does so several times with other values of the Gamma sites, which shows whose scale
each of them sets.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyro
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from guides.core.distributions import base_prior
from guides.core.rng import kept_rng
from guides.core.sites import UnsupportedSiteError
from guides.message_passing.operations import apply
from guides.message_passing.program import Program
from guides.message_passing.simplify import compact, refuse_repeated_use
from guides.message_passing.views import Recorded, Tape, WeightView, as_message

# The experiments with Gamma sites: all are 1 in the first run, then the i-th has the value start * step ** i,
# so that every site leaves a mark of its own on the scales that it sets.
PROBES = ((2.3, 1.7), (0.41, 0.77))


@dataclass(frozen=True)
class WeightPrior:
    """``Normal(loc, factor / sqrt(precision))``, elementwise over a site.

    :ivar loc: ``[*site]``
    :ivar factor: ``[*site]``; the scale itself where there is no precision
    :ivar dtype: of the site in the model
    :ivar precision: name of a Gamma site, or None
    """

    loc: np.ndarray
    factor: np.ndarray
    dtype: torch.dtype
    precision: str | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.loc.shape


@dataclass(frozen=True)
class GammaPrior:
    """``Gamma(concentration, rate)`` of one number, whose site has this shape."""

    concentration: float
    rate: float
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Recording:
    """One run of a model.

    :ivar program: what it does with a row
    :ivar rows: ``{name: [N, width]}``, float64: what the program needs of every row
    :ivar y: the data ``[N]``, float64; None without data
    :ivar y_shape: the shape of the observed site
    :ivar noise_scale: standard deviation of the likelihood
    :ivar noise_precision: the Gamma site that the noise scale depends on, known after :func:`analyse`
    """

    program: Program
    rows: Mapping[str, np.ndarray]
    y: np.ndarray | None
    y_shape: tuple[int, ...]
    weights: Mapping[str, WeightPrior]
    gammas: Mapping[str, GammaPrior]
    observed: str
    noise_scale: float
    noise_precision: str | None = None


class _Recorder(Messenger):
    """Answers the sites of one run.

    :param gammas: values of Gamma sites; 1 for those not named
    :param has_data: whether the likelihood is observed
    """

    def __init__(self, tape: Tape, gammas: Mapping[str, float], has_data: bool):
        super().__init__()
        self.tape, self.values, self.has_data = tape, gammas, has_data
        self.weights: dict[str, WeightPrior] = {}
        self.gammas: dict[str, GammaPrior] = {}
        self.observed = ""
        self.law: dist.Normal | None = None
        self.data: Tensor | None = None

    def _pyro_sample(self, msg: dict) -> None:
        name, law = msg["name"], msg["fn"]
        if site_is_subsample(msg):
            if law.subsample_size not in (None, law.size):
                raise UnsupportedSiteError(
                    f"plate {name!r} subsamples, which is not supported by message passing: pass the rows "
                    "themselves"
                )
            return
        if msg["infer"].get("_deterministic"):
            return
        base = base_prior(law)
        if _is_recorded(base) and self.has_data and not msg["is_observed"]:
            raise UnsupportedSiteError(
                f"site {name!r}: its prior depends on other weights, which is not supported by message "
                "passing"
            )
        if _is_recorded(base) or msg["is_observed"]:
            self._observe(name, msg, base)
        elif isinstance(base, dist.Normal):
            _refuse_reweighted(name, msg, "prior")
            msg["value"] = self._weight(name, law, base)
        elif isinstance(base, dist.Gamma):
            _refuse_reweighted(name, msg, "prior")
            msg["value"] = self._gamma(name, law, base)
        else:
            raise UnsupportedSiteError(
                f"site {name!r}: a {type(base).__name__} prior is not supported by message passing; "
                "supported are "
                "Normal weights and Gamma precisions"
            )
        msg["done"] = True

    def _weight(self, name: str, law: dist.TorchDistribution, base: dist.Normal) -> WeightView:
        shape = law.shape()
        loc, scale = (_numbers(p.expand(shape)) for p in (base.loc, base.scale))
        self.weights[name] = WeightPrior(loc, scale, base.loc.dtype)
        return self.tape.add_site(name, shape, base.loc.dtype)

    def _gamma(self, name: str, law: dist.TorchDistribution, base: dist.Gamma) -> Tensor:
        shape = law.shape()
        if shape.numel() != 1:
            raise UnsupportedSiteError(
                f"site {name!r}: a Gamma precision of shape {tuple(shape)} is not supported by message "
                "passing; "
                "supported are single numbers, of which there may be several sites"
            )
        prior = (float(p) for p in (base.concentration, base.rate))
        self.gammas[name] = GammaPrior(*prior, tuple(shape), base.rate.dtype)
        return base.rate.new_full(shape, self.values.get(name, 1.0))

    def _observe(self, name: str, msg: dict, base: dist.TorchDistribution) -> None:
        if not isinstance(base, dist.Normal):
            kind = "factor" if isinstance(base, dist.Unit) else f"{type(base).__name__} likelihood"
            raise UnsupportedSiteError(
                f"site {name!r}: a {kind} is not supported by message passing; supported is one Normal "
                "likelihood "
                "with a fixed scale or a Gamma precision"
            )
        if not isinstance(base.loc, Recorded):
            raise UnsupportedSiteError(f"site {name!r}: its mean does not depend on any weight")
        if self.law is not None:
            raise UnsupportedSiteError(
                f"site {name!r}: a second likelihood (or a prior that depends on weights) beside "
                f"{self.observed!r} is not supported by message passing"
            )
        _refuse_reweighted(name, msg, "likelihood")
        if isinstance(base.scale, Recorded):
            raise UnsupportedSiteError(
                f"site {name!r}: its scale depends on weights, which is not supported by message passing"
            )
        self.observed, self.law = name, base
        shape = msg["fn"].shape()
        if msg["is_observed"]:
            self.data = msg["value"]
            if self.data.shape != shape:
                raise UnsupportedSiteError(
                    f"site {name!r}: the data have shape {tuple(self.data.shape)}, their law {tuple(shape)}; "
                    "both must be [N]"
                )
        else:
            msg["value"] = torch.zeros(shape, dtype=base.loc.dtype)


def _refuse_reweighted(name: str, msg: dict, what: str) -> None:
    mask, scale = msg["mask"], torch.as_tensor(msg["scale"])
    if not (mask is None or torch.as_tensor(mask).all()) or bool((scale != 1).any()):
        remedy = "pass the rows that count" if what == "likelihood" else "write the law that it makes"
        raise UnsupportedSiteError(f"site {name!r}: a scaled or masked {what} is not supported; {remedy}")


def _is_recorded(law: dist.TorchDistribution) -> bool:
    """Whether a parameter of the law depends on weights."""
    return any(isinstance(value, Recorded) for value in vars(law).values())


def _numbers(value: Tensor) -> np.ndarray:
    return value.detach().double().numpy().copy()


# --------------------------------------------------------------------------------------------------- one run


def record(
    model: Callable, x: Tensor, y: Tensor | None = None, gammas: Mapping[str, float] | None = None
) -> Recording:
    """Runs ``model(x, y)`` (``model(x)`` without data) once and writes it down.

    A model whose ``y`` has no default is called with zeros to predict.  The caller's random state is left as
    it was.

    :param x: ``[N, ...]``
    :param y: ``[N]``
    :param gammas: values of Gamma sites, 1 unless given
    :raises UnsupportedSiteError: naming the site and the operation that message passing cannot do
    """
    size, dims, shapes, first_error = max(len(x), 2), set(), {}, None
    while True:
        # Rows can be told from units only if no weight has a dimension of this size: if one has, repeat a
        # row.
        index = torch.arange(size).clamp_max(len(x) - 1)
        before = shapes
        recording, error, shapes = _record_rows(
            model, x[index], None if y is None else y[index], gammas or {}
        )
        if grown := [name for name in shapes if shapes[name] != before.get(name, shapes[name])]:
            raise UnsupportedSiteError(
                f"site {grown[0]!r}: its shape depends on the number of rows, which is not supported by "
                "message passing: draw weights outside the plate of the data"
            )
        found = {d for shape in shapes.values() for d in shape}
        if size not in found:
            if recording is not None or first_error is not None:
                break
            first_error = error  # weights that are joined or reshaped may have this size: one more attempt
        dims |= found
        size = next(n for n in range(size + 1, size + len(dims) + 2) if n not in dims)
    if recording is None:
        raise first_error
    return replace(
        recording,
        rows={name: value[: len(x)] for name, value in recording.rows.items()},
        y=None if recording.y is None else recording.y[: len(x)],
        y_shape=tuple(len(x) if d == size else d for d in recording.y_shape),
    )


def _record_rows(
    model: Callable, x: Tensor, y: Tensor | None, gammas: Mapping[str, float]
) -> tuple[Recording | None, Exception | None, dict[str, tuple[int, ...]]]:
    """``(recording or None, error or None, shapes of the weights that the model has)``"""
    tape = Tape(len(x), apply)
    recorder = _Recorder(tape, gammas, y is not None)
    recording = error = None
    try:
        with (
            torch.no_grad(),
            kept_rng(),
            pyro.validation_enabled(False),
            poutine.block(),
            recorder,
        ):
            predicting(model)(x) if y is None else model(x, y)
        recording = _finish(tape, recorder)
    except Exception as failure:  # perhaps only because a weight has as many elements as there are rows
        error = failure
    return recording, error, tape.shapes


def predicting(model: Callable) -> Callable:
    """The model as a function of ``x`` alone; one whose ``y`` has no default gets zeros."""
    probe = torch.zeros(1)
    if _takes(model, probe) or not _takes(model, probe, probe):
        return model
    return lambda x: model(x, torch.zeros(len(x), dtype=x.dtype if x.is_floating_point() else None))


def _takes(model: Callable, *arguments: object) -> bool:
    """Whether the model can be called with these arguments alone."""
    try:
        inspect.signature(model).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # no signature to look at
        return True
    return True


def _finish(tape: Tape, recorder: _Recorder) -> Recording:
    name, law = recorder.observed, recorder.law
    if law is None:
        raise UnsupportedSiteError("the model has no likelihood: no Normal site depends on a weight")
    shape = law.loc.shape
    units = shape.numel() // tape.rows if tape.row_axis(shape) is not None else 0
    if units != 1:
        raise UnsupportedSiteError(
            f"site {name!r}: the likelihood has shape {tuple(shape)} for {tape.rows} rows; supported is "
            "one output, "
            "a mean of shape [N] (write .squeeze(-1))"
        )
    scale = law.scale.double()
    if bool((scale != scale.reshape(-1)[0]).any()):
        raise UnsupportedSiteError(
            f"site {name!r}: a noise scale that differs between rows is not supported by message passing"
        )
    message = as_message(tape, law.loc, "likelihood", law.loc.dtype)
    node, _ = message.gathered("likelihood")
    program, row_values = compact(tape, node)
    refuse_repeated_use(program)
    return Recording(
        program=program,
        rows=row_values,
        y=_numbers(recorder.data.reshape(-1)) if recorder.has_data else None,
        y_shape=tuple(shape),
        weights=recorder.weights,
        gammas=recorder.gammas,
        observed=name,
        noise_scale=float(scale.reshape(-1)[0]),
    )


# ----------------------------------------------------------------------------------------- what precisions do


def analyse(model: Callable, x: Tensor, y: Tensor) -> Recording:
    """:func:`record`, with the part that every Gamma site plays: precision of weights, of the noise, or of
    nothing.

    :raises UnsupportedSiteError: a Gamma site does anything else than setting scales by ``1 /
        sqrt(precision)``
    """
    base = record(model, x, y)
    if not base.gammas:
        return base
    values = [{n: start * step**i for i, n in enumerate(base.gammas)} for start, step in PROBES]
    runs = [record(model, x, y, gammas) for gammas in values]
    if any(_differs(base, run) for run in runs):
        culprits = [n for n in base.gammas if _differs(base, record(model, x, y, {n: PROBES[0][0]}))]
        named = ", ".join(repr(n) for n in culprits or base.gammas)
        raise UnsupportedSiteError(
            f"site {named}: a Gamma site may set the scale of Normal priors and of the likelihood, by "
            "1 / sqrt(precision), and nothing else in message passing"
        )
    weights = {
        site: replace(
            prior,
            precision=_precision_of(site, [r.weights[site].factor / prior.factor for r in runs], values),
        )
        for site, prior in base.weights.items()
    }
    noise = _precision_of(base.observed, [np.array(r.noise_scale / base.noise_scale) for r in runs], values)
    for site, prior in weights.items():
        if noise is not None and prior.precision == noise:
            raise UnsupportedSiteError(
                f"site {noise!r}: sets the scale of the noise and of {site!r}, which is not supported by "
                "message passing"
            )
    return replace(base, weights=weights, noise_precision=noise)


def _precision_of(site: str, ratios: list[np.ndarray], values: list[dict[str, float]]) -> str | None:
    """The Gamma site whose ``precision ** -0.5`` the scale of a site is proportional to, None for a fixed
    scale."""
    if all(np.allclose(r, 1.0, rtol=1e-6, atol=0) for r in ratios):
        return None
    for gamma in values[0]:
        if all(
            np.allclose(r, v[gamma] ** -0.5, rtol=1e-5, atol=0) for r, v in zip(ratios, values, strict=True)
        ):
            return gamma
    names = " or ".join(repr(n) for n in values[0])
    raise UnsupportedSiteError(
        f"site {site!r}: its scale depends on {names} in another way than precision ** -0.5 of one of them, "
        "for all elements alike, which is not supported by message passing"
    )


def _differs(base: Recording, run: Recording) -> bool:
    """Whether anything but scales has changed."""
    same = (
        run.program == base.program
        and all(np.array_equal(run.rows[k], base.rows[k], equal_nan=True) for k in base.rows)
        and np.array_equal(run.y, base.y, equal_nan=True)
        and run.weights.keys() == base.weights.keys()
        and run.gammas == base.gammas
        and all(np.array_equal(run.weights[k].loc, prior.loc) for k, prior in base.weights.items())
    )
    return not same
