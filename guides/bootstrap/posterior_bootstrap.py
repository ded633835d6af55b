"""The posterior bootstrap: a posterior without a prior on parameters.

The law of the data has a Dirichlet process as its prior, ``F ~ DP(a, F_pi)``, and a parameter is what
minimises the expected loss under it, ``theta(F) = argmin E_F loss(theta, x)``.  Its posterior is drawn by
drawing ``F`` and minimising (Lyddon, Walker and Holmes 2018; Fong, Lyddon and Holmes 2019, algorithm 2)::

    x*_1 .. x*_m ~ F_pi,   W ~ Dirichlet(1, .., 1, a/m, .., a/m)
    theta_b = argmin sum_i W_i loss(theta, x_i)

over the ``n`` rows of data and the ``m`` pseudo-observations.  With ``a = 0`` it is the weighted likelihood
bootstrap (Newton and Raftery 1994).  This posterior is another one than that of Bayes' theorem: it believes
the data, not the model's likelihood, and agrees with the sandwich covariance where there are many rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import joblib
import pyro
import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Transform, biject_to
from torch.func import vmap

from guides.bootstrap.base_measures import BaseMeasure, GaussianBase, Rows
from guides.bootstrap.weights import dirichlet_weights
from guides.core.sites import UnsupportedSiteError, initial_value
from guides.core.svi import DivergenceError, half_cosine
from guides.posterior.draws import Posterior

#: Pseudo-observations by default: the truncation of the process that Fong et al. (2019) use.
NUM_PSEUDO = 500
Parameters = dict[str, Tensor]
Loss = Callable[..., Tensor]


class PosteriorBootstrap:
    """Draws of the nonparametric posterior of any Pyro model whose data lie in one plate.

    Latent sites are the parameters ``theta``.  Each draw has weights, pseudo-observations and a start of its
    own, and is minimised by Adam; all draws together (``torch.func.vmap``) where the model allows it.

    :param model: a Pyro model; its observed sites lie in a plate ``pyro.plate(name, len(x))``
    :param concentration: ``a``, in rows of data: 0 leaves the base measure out
    :param base_measure: where pseudo-observations come from (:mod:`guides.bootstrap.base_measures`); by
        default, with ``a > 0``, the Gaussian fitted to the rows
    :param num_pseudo: ``m``; 500 by default, with ``a > 0``
    :param loss: ``"mle"``: minus the log-likelihood; ``"map"``: minus ``log prior / n`` in addition (of the
        constrained values); or a function ``loss(theta, *rows) -> [N]`` of the sites' values by name and the
        arguments that have a row a datum
    :param init_loc_fn: start of every site, as for Pyro's autoguides
    :raises ValueError: for arguments out of range
    """

    def __init__(
        self,
        model: Callable,
        concentration: float = 0.0,
        base_measure: BaseMeasure | None = None,
        num_pseudo: int | None = None,
        loss: str | Loss = "mle",
        *,
        init_loc_fn: Callable[[dict], Tensor] = initial_value,
    ):
        if not 0 <= concentration < math.inf:
            raise ValueError(f"concentration must be a number of rows, zero or more; got {concentration}")
        if num_pseudo is not None and num_pseudo < 1:
            raise ValueError(f"num_pseudo must be at least 1, got {num_pseudo}")
        if not (callable(loss) or loss in ("mle", "map")):
            raise ValueError(f"loss must be 'mle', 'map' or a function, got {loss!r}")
        if concentration == 0 and (base_measure is not None or num_pseudo is not None):
            raise ValueError("a base measure and pseudo-observations need a concentration above zero")
        self.model, self.concentration, self.base_measure = model, float(concentration), base_measure
        self.num_pseudo = (num_pseudo or NUM_PSEUDO) if concentration else 0
        self.loss, self.init_loc_fn = loss, init_loc_fn

    def fit(
        self,
        *args,
        num_draws: int = 200,
        seed: int = 0,
        steps: int = 1000,
        lr: float = 0.05,
        jobs: int = 1,
        on_step: Callable[[], None] = lambda: None,
    ) -> Posterior:
        """Draws the posterior of the data ``args``.

        :param args: the model's arguments, with data; those with a row a datum are weighted by row
        :param seed: of weights, pseudo-observations and starts; the caller's generators stay as they are
        :param steps: of Adam, whose rate falls from ``lr`` to zero
        :param jobs: processes, for a model that cannot be run for all draws at once
        :param on_step: called after every step that all draws take together
        :returns: one chain of ``num_draws`` independent draws; ``info["losses"]`` has each draw's minimum
            (nats a datum), ``info["last_tenth"]`` by how much it still changed in the last tenth of the steps
        :raises UnsupportedSiteError: a discrete site, or one with a row a datum
        :raises ValueError: no plate around the data, a subsampled one, rows that are not finite or fewer than
            two, a base measure whose rows do not fit
        :raises DivergenceError: a RuntimeError, when a loss is not finite
        """
        if num_draws < 1 or steps < 1 or not lr > 0:
            raise ValueError(f"num_draws, steps and lr must be positive, got {num_draws}, {steps} and {lr}")
        generator = torch.Generator().manual_seed(seed)
        with pyro.get_param_store().scope(), poutine.block(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            target = _Target.of(self.model, args, self.loss)
            start = target.starts(self.init_loc_fn, num_draws)
            weights = dirichlet_weights(
                num_draws, target.rows, self.num_pseudo, self.concentration, generator
            )
            pseudo = self._pseudo(target, num_draws, generator)
            minimum, losses, change = _minimise(target, start, weights, pseudo, steps, lr, jobs, on_step)
        info = {
            "method": "posterior-bootstrap", "concentration": self.concentration,
            "num_pseudo": self.num_pseudo, "loss": self.loss if isinstance(self.loss, str) else "of the user",
            "seed": seed, "steps": steps, "lr": lr, "losses": losses.tolist(), "last_tenth": change.tolist(),
        }  # fmt: skip
        return Posterior.from_draws(self.model, target.constrained(minimum), info)

    def _pseudo(self, target: _Target, num_draws: int, generator: torch.Generator) -> Rows:
        """``[num_draws, m, ...]`` for every argument with rows; nothing without concentration."""
        if not self.concentration:
            return ()
        base = self.base_measure or GaussianBase(*target.row_values)
        drawn = [base.draw(self.num_pseudo, generator) for _ in range(num_draws)]
        for part, own in zip(drawn[0], target.row_values, strict=False):
            if part.shape[1:] != own.shape[1:]:
                raise ValueError(
                    f"the base measure draws rows of shape {tuple(part.shape[1:])} where the data have "
                    f"{tuple(own.shape[1:])}"
                )
        if len(drawn[0]) != len(target.row_values):
            raise ValueError(
                f"the base measure draws {len(drawn[0])} tensors, the model has {len(target.row_values)} "
                "arguments with rows"
            )
        parts = zip(*drawn, strict=True)
        return tuple(torch.stack(part).to(own) for part, own in zip(parts, target.row_values, strict=True))


# ------------------------------------------------------------------------------------------------ the target


@dataclass(frozen=True)
class _Target:
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
    def of(cls, model: Callable, args: tuple, loss: str | Loss) -> _Target:
        trace = poutine.trace(model).get_trace(*args)
        sites = {
            name: node
            for name, node in trace.nodes.items()
            if node["type"] == "sample" and not site_is_subsample(node)
        }
        observed = {name: node for name, node in sites.items() if node["is_observed"]}
        plate = _data_plate(observed)
        transforms = {}
        for name, node in sites.items():
            if node["is_observed"]:
                continue
            if any(frame.name == plate.name for frame in node["cond_indep_stack"]):
                raise UnsupportedSiteError(
                    f"site {name!r} has a value for every row of plate {plate.name!r}: a bootstrap of rows "
                    "has no posterior for it; marginalise it in the model"
                )
            if node["fn"].support.is_discrete:
                raise UnsupportedSiteError(f"site {name!r} is discrete: marginalise it in the model")
            transforms[name] = biject_to(node["fn"].support)
        if not transforms:
            raise ValueError("the model has no latent site")
        with_rows = [
            i
            for i, arg in enumerate(args)
            if isinstance(arg, Tensor) and arg.dim() and len(arg) == plate.size
        ]
        for i in with_rows:
            if args[i].is_floating_point() and not args[i].isfinite().all():
                row = int((~args[i].isfinite()).reshape(plate.size, -1).any(1).nonzero()[0])
                raise ValueError(f"argument {i} of the model is not finite in row {row}")
        if plate.size < 2:
            raise ValueError(f"a bootstrap of rows needs at least two, plate {plate.name!r} has {plate.size}")
        return cls(model, args, transforms, plate, with_rows, loss)

    @property
    def rows(self) -> int:
        return self.plate.size

    @property
    def row_values(self) -> Rows:
        return tuple(self.args[i] for i in self.with_rows)

    def starts(self, init_loc_fn: Callable[[dict], Tensor], num_draws: int) -> Parameters:
        """Unconstrained, ``{name: [num_draws, *site]}``."""
        found = []
        for _ in range(num_draws):
            nodes = poutine.trace(_Start(init_loc_fn)(self.model)).get_trace(*self.args).nodes
            found.append({n: t.inv(nodes[n]["value"]).detach() for n, t in self.transforms.items()})
        return {name: torch.stack([start[name] for start in found]) for name in self.transforms}

    def constrained(self, parameters: Parameters) -> Parameters:
        return {name: self.transforms[name](value) for name, value in parameters.items()}

    def __call__(self, parameters: Parameters, weights: Tensor, *pseudo: Tensor) -> Tensor:
        """``sum_i W_i loss_i`` of one draw: parameters ``{name: [*site]}``, weights ``[n + m]``."""
        args, values = list(self.args), self.constrained(parameters)
        for i, more in zip(self.with_rows, pseudo, strict=False):
            args[i] = torch.cat([args[i], more])
        if callable(self.loss):
            losses = self.loss(values, *(args[i] for i in self.with_rows))
            return (weights.to(losses) * losses).sum()
        nodes = poutine.trace(poutine.condition(self.model, values)).get_trace(*args).nodes
        total = 0.0
        for name, node in nodes.items():
            if node["type"] != "sample" or site_is_subsample(node):
                continue
            log_prob = scale_and_mask(node["fn"].log_prob(node["value"]), node["scale"], node["mask"])
            if name not in values:
                shaped = weights.to(log_prob).reshape(-1, *(1,) * (-self.plate.dim - 1))
                total = total - (shaped * log_prob).sum()
            elif self.loss == "map":
                total = total - log_prob.sum() / self.rows
        return total


class _Start(poutine.messenger.Messenger):
    """Starting values in place of draws."""

    def __init__(self, init_loc_fn: Callable[[dict], Tensor]):
        super().__init__()
        self.init_loc_fn = init_loc_fn

    def _pyro_sample(self, msg: dict) -> None:
        if not msg["is_observed"] and not site_is_subsample(msg):
            with torch.no_grad():
                msg["value"], msg["done"] = self.init_loc_fn(msg), True


def _data_plate(observed: dict[str, dict]):
    """The plate that all observed sites share; :raises ValueError: when there is none, or a subsampled one"""
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
    plate = max(shared.values(), key=lambda frame: frame.size)
    if plate.full_size not in (None, plate.size):
        raise ValueError(f"plate {plate.name!r} is subsampled: the bootstrap needs all rows at once")
    return plate


# ------------------------------------------------------------------------------------------------- minimising


def _minimise(
    target: _Target,
    start: Parameters,
    weights: Tensor,
    pseudo: Rows,
    steps: int,
    lr: float,
    jobs: int,
    on_step: Callable[[], None],
) -> tuple[Parameters, Tensor, Tensor]:
    """Minima ``{name: [B, ...]}``, their losses ``[B]`` and how much these changed in the last tenth."""
    try:
        return _adam(vmap(target), start, weights, pseudo, steps, lr, on_step)
    except DivergenceError:
        raise
    except RuntimeError:  # vmap's refusal; an error of the model's own comes again from the loop
        pieces = [
            ({n: v[b : b + 1] for n, v in start.items()}, weights[b], [p[b] for p in pseudo])
            for b in range(len(weights))
        ]
        runs = joblib.Parallel(n_jobs=jobs)(
            joblib.delayed(_adam)(_Alone(target), *piece, steps, lr) for piece in pieces
        )
        minima, losses, changes = zip(*runs, strict=True)
        joined = {name: torch.cat([minimum[name] for minimum in minima]) for name in start}
        return joined, torch.cat(losses), torch.cat(changes)


@dataclass(frozen=True)
class _Alone:
    """A target of one draw, where one of several is expected."""

    target: _Target

    def __call__(self, parameters: Parameters, weights: Tensor, *pseudo: Tensor) -> Tensor:
        return self.target({n: v[0] for n, v in parameters.items()}, weights, *pseudo)[None]


def _adam(
    losses_of: Callable[..., Tensor],
    start: Parameters,
    weights: Tensor,
    pseudo: Rows,
    steps: int,
    lr: float,
    on_step: Callable[[], None] = lambda: None,
) -> tuple[Parameters, Tensor, Tensor]:
    """Adam works element by element, so that draws that go together go alone."""
    parameters = {name: value.clone().requires_grad_() for name, value in start.items()}
    optimizer = torch.optim.Adam(parameters.values(), lr=lr)
    with pyro.validation_enabled(False):
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = half_cosine(lr, step, steps)
            optimizer.zero_grad()
            losses = losses_of(parameters, weights, *pseudo)
            if not losses.detach().isfinite().all():
                draw = int((~losses.isfinite()).nonzero()[0])
                raise DivergenceError(f"draw {draw}, step {step}: the loss is {losses[draw]:g}; lower lr")
            losses.sum().backward()
            optimizer.step()
            if step == int(0.9 * steps):
                before = losses.detach()
            on_step()
        with torch.no_grad():
            last = losses_of(parameters, weights, *pseudo)
    return {n: v.detach() for n, v in parameters.items()}, last, before - last
