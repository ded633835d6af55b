"""The weighted loss of a Pyro model over the rows of its data plate, in unconstrained coordinates."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyro
import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.infer.autoguide.initialization import InitMessenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Transform, biject_to

from guides.bootstrap.base_measures import BaseMeasure, Rows
from guides.core.arguments import REMEDY, check_observed, check_pairing, row_not_finite
from guides.core.rng import kept_rng
from guides.core.sites import UnsupportedSiteError

Parameters = dict[str, Tensor]
Loss = Callable[..., Tensor]
#: What to do about an argument that is taken for rows.
PARTIAL = "if one of them has no rows, but as many places, bind it to the model with functools.partial"
#: What to do about a loss that no step of the learning has made what it is.
AT_THE_START = "look for NaN, infinities and outliers in the data, and for a fixed noise that is too small"
#: Pseudo-observations that are drawn to see whether the likelihood allows them.
TRIED = 100


# no repr of data: torch.func.vmap takes the repr of what it maps at every call
@dataclass(frozen=True, repr=False)
class WeightedLoss:
    """What is minimised: a weighted loss over rows, in unconstrained coordinates.

    :ivar transforms: latent site -> map from unconstrained numbers
    :ivar plate: the data's plate, as it stands in the sites' ``cond_indep_stack``
    :ivar with_rows: places of the arguments that have a row a datum
    """

    model: Callable
    args: tuple
    transforms: dict[str, Transform]
    plate: object
    with_rows: Sequence[int]
    loss: str | Loss

    @classmethod
    def of(cls, model: Callable, args: tuple, loss: str | Loss, plate: str | None = None) -> WeightedLoss:
        # rows that are not finite are refused below, in a line; the starts are validated again
        with pyro.validation_enabled(False):
            trace = poutine.trace(model).get_trace(*args)
        sites = {name: node for name, node in trace.nodes.items() if _has_density(node)}
        observed = {name: node for name, node in sites.items() if node["is_observed"]}
        for node in observed.values():
            check_pairing(node)
        plate = _data_plate(observed, args, plate)
        transforms = _transforms({name: sites[name] for name in sites if name not in observed}, plate.name)
        _check_supports(model, args, {name: sites[name]["value"] for name in transforms}, transforms)
        with_rows = _with_rows(args, plate.size)
        check_observed(observed)
        if plate.size < 2:
            raise ValueError(f"a bootstrap of rows needs at least two, plate {plate.name!r} has {plate.size}")
        return cls(model, args, transforms, plate, with_rows, loss)

    @property
    def rows(self) -> int:
        return self.plate.size

    @property
    def row_values(self) -> Rows:
        return tuple(self.args[i] for i in self.with_rows)

    def check_base(self, base: BaseMeasure) -> None:
        """:raises ValueError: when a base measure draws what the law of an observed site cannot be, though
        the data are: parts of labels, negative counts
        """
        drawn, args = self._tried(base)
        if callable(self.loss):
            return
        # whatever latent values are drawn: what is compared are the data and the pseudo-observations
        with kept_rng(), pyro.validation_enabled(False), torch.no_grad():
            try:
                values = self._latent(args)
            except (RuntimeError, ValueError, IndexError) as error:
                raise ValueError(
                    f"the model fails with {self._appended} ({str(error).partition(chr(10))[0]}): {PARTIAL}"
                ) from error
            nodes = self._sites(args, values)
        for name, node in nodes.items():
            if name in values or not node["value"].numel():  # a pyro.factor has no value
                continue
            possible = node["fn"].support.check(node["value"]).movedim(self.plate.dim, 0)
            possible = possible.reshape(len(possible), -1).all(1)
            wrong = (~possible[self.rows :]).nonzero()
            if possible[: self.rows].all() and len(wrong):
                value = drawn[-1][int(wrong[0])]
                raise ValueError(
                    f"the base measure draws what the law of site {name!r} cannot be, {value.tolist()} for "
                    "one: use EmpiricalBase or PredictiveBase"
                )

    def warn_of_other_densities(self, base: BaseMeasure) -> None:
        """Where a model does something else with the data when pseudo-observations stand behind them."""
        if callable(self.loss):
            return
        _, args = self._tried(base)
        with kept_rng(), pyro.validation_enabled(False), torch.no_grad():
            values = self._latent(self.args)
            before, again = self._terms(self.args, values), self._terms(self.args, values)
            after = self._terms(args, values)
        for name, term in before.items():
            if _alike(term, again[name]) and not _alike(term, after[name]):  # of a random model all differ
                warnings.warn(
                    f"site {name!r} has another density with {self._appended}: {PARTIAL}; a model that uses "
                    "its rows together (a mean, batch norm, their number) does so with these among them",
                    stacklevel=4,
                )
                return

    def _tried(self, base: BaseMeasure) -> tuple[Rows, list]:
        """Some pseudo-observations, and the model's arguments with them.

        :raises ValueError: for parts of whole numbers beside rows that are whole, which would be cut
        """
        drawn = base.draw(TRIED, torch.Generator())
        for part, own in zip(drawn, self.row_values, strict=True):
            if not own.is_floating_point() and len(cut := part[part != part.to(own.dtype)]):
                raise ValueError(
                    f"the base measure draws {cut[0].item():g} for one, and the data are of whole numbers: "
                    "pass them in floating point, or use a base measure of whole ones"
                )
        parts = zip(self.row_values, drawn, strict=True)
        return drawn, self._beside(tuple(more.to(own) for own, more in parts))

    @property
    def _appended(self) -> str:
        places = ", ".join(map(str, self.with_rows))
        return f"pseudo-observations behind the {self.rows} rows of its arguments {places}"

    def _latent(self, args: Sequence) -> Parameters:
        nodes = poutine.trace(self.model).get_trace(*args).nodes
        return {name: _value(nodes, name) for name in self.transforms}

    def _sites(self, args: Sequence, values: Parameters) -> dict[str, dict]:
        """What counts in the loss: the sites of data, and with ``map`` the latent ones."""
        nodes = poutine.trace(poutine.condition(self.model, values)).get_trace(*args).nodes
        return {
            name: node
            for name, node in nodes.items()
            if _has_density(node) and (name not in values or self.loss == "map")
        }

    def _terms(self, args: Sequence, values: Parameters) -> dict[str, Tensor]:
        """Log densities: of data one a row of the data, without what stands behind them."""
        found = {}
        for name, node in self._sites(args, values).items():
            term = _log_prob(node)
            found[name] = term if name in values else term.movedim(self.plate.dim, 0)[: self.rows]
        return found

    def _beside(self, pseudo: Rows) -> list:
        """The model's arguments with pseudo-observations after the data."""
        args = list(self.args)
        for i, more in zip(self.with_rows, pseudo, strict=False):
            args[i] = torch.cat([args[i], more])
        return args

    def starts(self, init_loc_fn: Callable[[dict], Tensor], num_draws: int) -> Parameters:
        """Unconstrained, ``{name: [num_draws, *site]}``."""
        found = []
        for _ in range(num_draws):
            nodes = poutine.trace(InitMessenger(init_loc_fn)(self.model)).get_trace(*self.args).nodes
            found.append({n: t.inv(_value(nodes, n)).detach() for n, t in self.transforms.items()})
        return {name: torch.stack([start[name] for start in found]) for name in self.transforms}

    def constrained(self, parameters: Parameters) -> Parameters:
        return {name: self.transforms[name](value) for name, value in parameters.items()}

    def check_seen(self, parameters: Parameters) -> list[str]:
        """Of a loss of the user's own it warns.

        :returns: the sites that it does not depend on
        :raises ValueError: a site that the likelihood does not depend on, whose draws would be its starts
        """
        start = {name: value.clone().requires_grad_() for name, value in parameters.items()}
        loss = self(start, torch.full((self.rows,), 1.0 / self.rows))
        slopes = (
            torch.autograd.grad(loss, list(start.values()), allow_unused=True) if loss.requires_grad else ()
        )
        unseen = [name for name, slope in itertools.zip_longest(start, slopes) if slope is None]
        if not unseen:
            return []
        names = ", ".join(map(repr, unseen))
        said = f"the loss does not depend on site {names}, whose draws would be its starts"
        if callable(self.loss):
            warnings.warn(said, stacklevel=3)
        else:
            raise ValueError(f"{said}: loss='map' has its prior; or leave it out of the model")
        return unseen

    def __call__(self, parameters: Parameters, weights: Tensor, *pseudo: Tensor) -> Tensor:
        """``sum_i W_i loss_i`` of one draw: parameters ``{name: [*site]}``, weights ``[n + m]``."""
        args, values = self._beside(pseudo), self.constrained(parameters)
        if callable(self.loss):
            losses = self.loss(values, *(args[i] for i in self.with_rows))
            if losses.shape != weights.shape:
                raise ValueError(
                    f"the loss must have one number a row, [{len(weights)}], got {list(losses.shape)}"
                )
            return (weights.to(losses) * losses).sum()
        total = 0.0
        for name, node in self._sites(args, values).items():
            log_prob = _log_prob(node)
            if name in values:
                total = total - log_prob.sum() / self.rows
            else:
                shaped = weights.to(log_prob).reshape(-1, *(1,) * (-self.plate.dim - 1))
                total = total - (shaped * log_prob).sum()
        return total


def _value(nodes: Mapping[str, dict], name: str) -> Tensor:
    """:raises UnsupportedSiteError: where a run has no such site"""
    if name not in nodes:
        raise UnsupportedSiteError(
            f"site {name!r} is not in every run of the model: a bootstrap has a value of every site in "
            "each draw"
        )
    return nodes[name]["value"]


def _log_prob(node: dict) -> Tensor:
    return scale_and_mask(node["fn"].log_prob(node["value"]), node["scale"], node["mask"])


def _alike(a: Tensor, b: Tensor) -> bool:
    """Up to the rounding of other sizes of products."""
    return torch.allclose(a, b, rtol=1e-3, atol=1e-3, equal_nan=True)


def _transforms(latent: dict[str, dict], plate: str) -> dict[str, Transform]:
    """Of every latent site the map from unconstrained numbers; :raises ValueError: when there is no site

    :raises UnsupportedSiteError: for a site that is discrete, or in the data's plate
    """
    for name, node in latent.items():
        if any(frame.name == plate for frame in node["cond_indep_stack"]):
            raise UnsupportedSiteError(
                f"site {name!r} has a value for every row of plate {plate!r}: a bootstrap of rows "
                "has no posterior for it; marginalise it in the model"
            )
        if node["fn"].support.is_discrete:
            raise UnsupportedSiteError(f"site {name!r} is discrete: marginalise it in the model")
    if not latent:
        raise ValueError("the model has no latent site")
    return {name: biject_to(node["fn"].support) for name, node in latent.items()}


def _with_rows(args: tuple, rows: int) -> list[int]:
    """Places of the arguments that are tensors of so many rows; :raises ValueError: naming one that is not
    finite
    """
    places = [i for i, arg in enumerate(args) if isinstance(arg, Tensor) and arg.dim() and len(arg) == rows]
    for i in places:
        if (row := row_not_finite(args[i])) is not None:
            raise ValueError(
                f"argument {i} of the model is not finite in row {row} (rows count from 0): {REMEDY}"
            )
    return places


def _check_supports(model: Callable, args: tuple, values: Parameters, maps: dict[str, Transform]) -> None:
    """:raises UnsupportedSiteError: a site whose support is another in another run, so that no one map from
    unconstrained numbers fits it
    """
    with kept_rng(), pyro.validation_enabled(False):
        again = poutine.trace(model).get_trace(*args).nodes
    for name, value in values.items():
        if name not in again:
            continue
        free = maps[name].inv(value)
        found, before = biject_to(again[name]["fn"].support)(free), maps[name](free)
        if not torch.allclose(found, before, atol=0, equal_nan=True):
            raise UnsupportedSiteError(
                f"site {name!r} has a support that depends on other sites: draw it from a fixed one, a share "
                "for instance, and compute what is meant in the model"
            )


def _has_density(site: dict) -> bool:
    """Not a plate's rows, nor a ``pyro.deterministic``, which Pyro writes as an observation."""
    if site["type"] != "sample" or site_is_subsample(site):
        return False
    return not site["infer"].get("_deterministic")


def _data_plate(observed: dict[str, dict], args: tuple, wanted: str | None):
    """The plate that all observed sites share: of several the wanted one, or else the only one with as many
    places as the first tensor among the arguments has rows.

    :raises ValueError: when there is none, or a subsampled one, or nothing that tells several apart
    """
    if not observed:
        raise ValueError("the model observes nothing: pass its data")
    shared = None
    for node in observed.values():
        frames = {frame.name: frame for frame in node["cond_indep_stack"] if frame.vectorized}
        shared = frames if shared is None else {n: f for n, f in shared.items() if n in frames}
    if not shared:
        names = ", ".join(map(repr, observed))
        raise ValueError(
            f"the observed sites ({names}) share no pyro.plate: put the data in one, so that rows "
            "can be weighted"
        )
    plate = _chosen(shared, args, wanted)
    if plate.full_size not in (None, plate.size):
        raise ValueError(f"plate {plate.name!r} is subsampled: the bootstrap needs all rows at once")
    return plate


def _chosen(shared: dict, args: tuple, wanted: str | None):
    names = ", ".join(f"{name!r} of {frame.size}" for name, frame in shared.items())
    if wanted is not None:
        if wanted not in shared:
            raise ValueError(f"the observed sites share no plate {wanted!r}, but: {names}")
        return shared[wanted]
    if len(shared) == 1:
        return next(iter(shared.values()))
    lengths = [len(arg) for arg in args if isinstance(arg, Tensor) and arg.dim()]
    fitting = [frame for frame in shared.values() if lengths and frame.size == lengths[0]]
    if len(fitting) != 1:
        raise ValueError(
            f"the observed sites share several plates ({names}): say by plate= which has the rows"
        )
    return fitting[0]
