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
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import joblib
import pyro
import torch
from pyro import poutine
from torch import Tensor
from torch.func import vmap

from guides.bootstrap.base_measures import BaseMeasure, Rows, base_for
from guides.bootstrap.remaining import joined, newtons_step
from guides.bootstrap.weighted_loss import AT_THE_START, Loss, Parameters, WeightedLoss
from guides.bootstrap.weights import check_process, dirichlet_weights
from guides.core.arguments import FixedParameters, check_parameters, check_tensors
from guides.core.checks import check_counts, check_numbers
from guides.core.processes import workers_may_leave
from guides.core.rng import seeded_rng
from guides.core.settling import LAST_OF_HALF_COSINE, UnsettledWarning
from guides.core.starts import initial_value
from guides.core.svi import DivergenceError, half_cosine
from guides.posterior.draws import Posterior

#: Nats a row that the last tenth of the learning may change, and share of the way that Adam can go that a
#: settled draw may have gone.
SETTLED_CHANGE, SETTLED_WAY = 1e-2, 0.9
#: How far a step of Newton's may move a settled draw, in sds of the draws along it; and the share of draws
#: that may go farther, for so few hardly move what is asked of all.
SETTLED_DISTANCE, FEW = 0.25, 0.02


class PosteriorBootstrap:
    """Draws of the nonparametric posterior of any Pyro model whose data lie in one plate.

    Latent sites are the parameters ``theta``.  Each draw has weights, pseudo-observations and a start of its
    own, and is minimised by Adam; all draws together (``torch.func.vmap``) where the model allows it.  A step
    of Adam is as long as ``lr`` whatever the units of the data: standardise them, or raise ``lr`` or
    ``steps`` until no :class:`UnsettledWarning` comes.  Of what the data do not determine (more columns than
    rows, columns that add up to another) a loss without a prior has no one minimum: there draws end where
    their starts lead, and ``loss="map"`` is the one to take.

    :param model: a Pyro model; its observed sites lie in a plate ``pyro.plate(name, len(x))``
    :param concentration: ``a``, in rows of data: 0 leaves the base measure out
    :param base_measure: where pseudo-observations come from (:mod:`guides.bootstrap.base_measures`); by
        default, with ``a > 0``, the Gaussian fitted to the rows
    :param num_pseudo: ``m``; 500 by default, with ``a > 0``
    :param loss: ``"mle"``: minus the log-likelihood; ``"map"``: minus ``log prior / n`` in addition (of the
        constrained values); or a function ``loss(theta, *rows) -> [N]`` of the sites' values by name and the
        arguments that have a row a datum
    :param init_loc_fn: start of every site, as for Pyro's autoguides
    :param plate: the name of the plate that has the rows, where observed sites share several; by default the
        one with as many places as the first argument has rows
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
        plate: str | None = None,
    ):
        self.num_pseudo = check_process(concentration, base_measure, num_pseudo)
        if not (callable(loss) or loss in ("mle", "map")):
            raise ValueError(f"loss must be 'mle', 'map' or a function, got {loss!r}")
        self.model, self.concentration, self.base_measure = model, float(concentration), base_measure
        self.loss, self.init_loc_fn, self.plate = loss, init_loc_fn, plate

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

        :param args: the model's arguments, with data; those with a row a datum are weighted by row (a
            tensor of as many places that has no rows is to be bound to it with ``functools.partial``)
        :param seed: of weights, pseudo-observations and starts; the caller's generators stay as they are
        :param steps: of Adam, whose rate falls from ``lr`` to zero
        :param jobs: processes, for a model that cannot be run for all draws at once
        :param on_step: called after every step that all draws take together
        :returns: one chain of ``num_draws`` independent draws; ``info["losses"]`` has each draw's minimum
            (nats a datum), ``info["last_tenth"]`` by how much it changed in the last tenth of the learning,
            ``info["remaining_gain"]`` what a step of Newton's gains still, and ``info["remaining_way"]`` how
            far it goes, in sds of the draws (NaN where the loss has no second derivative, as Laplace's)
        :warns UnsettledWarning: when draws are not at their minimum yet
        :warns UserWarning: when numbers of a site are where they started in all draws
        :raises UnsupportedSiteError: a discrete site, or one with a row a datum
        :raises ValueError: a site that the loss does not depend on; no plate around the data, several that
            nothing tells apart, a subsampled one; rows that are not finite or fewer than two; a base measure
            whose rows do not fit; a parameter without a prior that is not fixed
        :raises TypeError: an argument that is no tensor but NumPy's or a table
        :raises DivergenceError: a RuntimeError, when a loss is not finite
        """
        check_counts(num_draws=num_draws, steps=steps)
        check_numbers(lr=lr)
        check_tensors(args)
        generator = torch.Generator().manual_seed(seed)
        with pyro.get_param_store().scope(), poutine.block(), FixedParameters(), seeded_rng(seed):
            check_parameters(self.model, args)
            target = WeightedLoss.of(self.model, args, self.loss, self.plate)
            start = target.starts(self.init_loc_fn, num_draws)
            weights = dirichlet_weights(
                num_draws, target.rows, self.num_pseudo, self.concentration, generator
            )
            pseudo = self._pseudo(target, num_draws, generator)
            unseen = target.check_seen({name: value[0] for name, value in start.items()})
            end = _minimise(target, start, weights, pseudo, steps, lr, jobs, on_step)
        _warn_unseen({name: value for name, value in start.items() if name not in unseen}, end)
        _warn_unsettled(start, end, steps, lr)
        info = {
            "method": "posterior-bootstrap", "concentration": self.concentration,
            "num_pseudo": self.num_pseudo, "loss": self.loss if isinstance(self.loss, str) else "of the user",
            "seed": seed, "steps": steps, "lr": lr, "losses": end.losses.tolist(),
            "last_tenth": end.change.tolist(), "remaining_gain": end.gain.tolist(),
            "remaining_way": end.away().tolist(),
        }  # fmt: skip
        return Posterior.from_draws(self.model, target.constrained(end.minimum), info)

    def _pseudo(self, target: WeightedLoss, num_draws: int, generator: torch.Generator) -> Rows:
        """``[num_draws, m, ...]`` for every argument with rows; nothing without concentration."""
        if not self.concentration:
            return ()
        base = base_for(self.base_measure, target.row_values)
        target.check_base(base)
        target.warn_of_other_densities(base)
        drawn = [base.draw(self.num_pseudo, generator) for _ in range(num_draws)]
        parts = zip(*drawn, strict=True)
        return tuple(torch.stack(part).to(own) for part, own in zip(parts, target.row_values, strict=True))


# ------------------------------------------------------------------------------------------------- minimising


@dataclass(frozen=True)
class _End:
    """Where ``B`` draws ended.

    :ivar minimum: ``{name: [B, ...]}``, unconstrained
    :ivar losses, change, gain: ``[B]``, nats a row: there, by how much they changed in the last tenth of the
        learning, and what a step of Newton's gains still
    :ivar step: that step, ``[B, D]``
    """

    minimum: Parameters
    losses: Tensor
    change: Tensor
    gain: Tensor
    step: Tensor

    def away(self) -> Tensor:
        """How far the step of every draw goes, in sds of the draws along it, ``[B]``; NaN of a lone draw."""
        draws = joined(list(self.minimum.values())).double()
        if len(draws) == 1:
            return torch.full_like(self.losses, math.nan)
        sd = draws.std(0).clamp_min(torch.finfo(torch.float64).tiny)
        step, spread = self.step / sd, (draws - draws.mean(0)) / sd
        length = step.norm(dim=1)
        along = spread @ (step / length.clamp_min(torch.finfo(torch.float64).tiny)[:, None]).mT
        return torch.where(length > 0, length / along.std(0), length)


def _minimise(
    target: WeightedLoss,
    start: Parameters,
    weights: Tensor,
    pseudo: Rows,
    steps: int,
    lr: float,
    jobs: int,
    on_step: Callable[[], None],
) -> _End:
    try:
        return _adam(vmap(target), start, weights, pseudo, steps, lr, on_step)
    except DivergenceError:
        raise
    except RuntimeError:  # vmap's refusal; an error of the model's own comes again from the loop
        pieces = [
            ({n: v[b : b + 1] for n, v in start.items()}, weights[b], [p[b] for p in pseudo])
            for b in range(len(weights))
        ]
        with workers_may_leave():
            runs = joblib.Parallel(n_jobs=jobs)(
                joblib.delayed(_adam)(_Alone(target), *piece, steps, lr) for piece in pieces
            )
        minima = {name: torch.cat([run.minimum[name] for run in runs]) for name in start}
        figures = ([getattr(run, name) for run in runs] for name in ("losses", "change", "gain", "step"))
        return _End(minima, *map(torch.cat, figures))


@dataclass(frozen=True)
class _Alone:
    """A target of one draw, where one of several is expected."""

    target: WeightedLoss

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
) -> _End:
    """Adam works element by element, so that draws that go together go alone."""
    parameters = {name: value.clone().requires_grad_() for name, value in start.items()}
    optimizer = torch.optim.Adam(parameters.values(), lr=lr)
    with pyro.validation_enabled(False):
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = half_cosine(lr, step, steps)
            optimizer.zero_grad()
            losses = losses_of(parameters, weights, *pseudo)
            _check_finite(losses.detach(), step)
            losses.sum().backward()
            optimizer.step()
            if step == int(LAST_OF_HALF_COSINE * steps):
                before = losses.detach()
            on_step()
        with torch.no_grad():
            last = losses_of(parameters, weights, *pseudo)
            _check_finite(last, steps)
        minimum = {n: v.detach() for n, v in parameters.items()}
        try:
            gain, way = newtons_step(lambda values: losses_of(values, weights, *pseudo), minimum)
        except RuntimeError:  # an operation without a second derivative
            gain = torch.full_like(last, torch.nan)
            way = torch.full_like(joined(list(minimum.values())).double(), torch.nan)
    return _End(minimum, last, before - last, gain, way)


def _check_finite(losses: Tensor, step: int) -> None:
    if not losses.isfinite().all():
        draw = int((~losses.isfinite()).nonzero()[0])
        remedy = "lower lr" if step else AT_THE_START
        raise DivergenceError(f"draw {draw}, step {step}: the loss is {losses[draw]:g}; {remedy}")


def _warn_unseen(start: Parameters, end: _End) -> None:
    """A number that the loss does not depend on, that of a column of zeros for instance, has a slope of zero
    at every step, and stays where it started to the last digit.
    """
    for name, value in start.items():
        unmoved = (end.minimum[name] == value).all(0)
        if unmoved.any():
            places = unmoved.nonzero()
            first = f", {name}{places[0].tolist()} for one," if unmoved.dim() else ""
            warnings.warn(
                f"{len(places)} of {unmoved.numel()} numbers of site {name!r}{first} are where they started "
                "in all draws: the loss does not depend on them, and their spread is that of the starts; "
                "loss='map' has their prior, or leave them out of the model",
                stacklevel=3,
            )


def _warn_unsettled(start: Parameters, end: _End, steps: int, lr: float) -> None:
    """A loss may be nearly flat and its minimum far: a number that went as far as Adam goes at all is on its
    way still, and so is a draw that a step of Newton's moves by much of the draws' spread.
    """
    reach = sum(half_cosine(lr, step, steps) for step in range(steps))
    way = torch.stack(
        [(end.minimum[n] - start[n]).abs().reshape(len(end.change), -1).amax(1).double() for n in start]
    ).amax(0)
    falling, travelling = end.change.abs() > SETTLED_CHANGE, way > SETTLED_WAY * reach
    away = end.away().nan_to_num()
    short = away > SETTLED_DISTANCE
    short = short & (short.double().mean() > FEW)
    unsettled = int((falling | travelling | short).sum())
    if unsettled:
        warnings.warn(
            f"{unsettled} of {len(end.change)} draws are not at their minimum: the last tenth of the "
            f"learning still took up to {end.change.abs().max():.2g} nats a row, {int(travelling.sum())} "
            f"draws went as far as the steps reach, and {int(short.sum())} are moved by a step of Newton's, "
            f"by up to {away.max():.2g} sds of the draws; standardise the data, make columns that say the "
            "same into fewer, or take more steps or a larger lr",
            UnsettledWarning,
            stacklevel=3,
        )
