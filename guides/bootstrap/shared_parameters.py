"""The posterior bootstrap with shared parameters: one training, then as many draws as wanted.

Parameters are split in two.  The shared ones, those of a torch module, are trained once, with a fresh draw of
the law of the data in every step; the local ones, latent sites, are minimised for each draw with the shared
ones as they are (Ott 2022, algorithm 3)::

    repeat   F~ = sum_i W_i delta(x_i),   local(F~) = argmin_local sum_i W_i loss(shared, local, x_i)
             shared <- shared - rate * gradient of sum_i W_i loss(shared, local(F~), x_i)
    then     local_b = argmin sum_i W_i loss(shared, local, x_i),   b = 1, 2, ...

The gradient through ``local(F~)`` is zero at the minimum, so none is taken.  The uncertainty of the shared
parameters is in nobody's draws: they are regularised by the random laws, and then a number.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide.initialization import init_to_value
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from guides.bootstrap.base_measures import BaseMeasure, Rows, base_for, check_rows
from guides.bootstrap.posterior_bootstrap import PosteriorBootstrap
from guides.bootstrap.training import ClosedForm, InClosedForm, Law, Objective, Progress, Training, train
from guides.bootstrap.weighted_loss import Parameters, WeightedLoss
from guides.bootstrap.weights import check_process, dirichlet_weights
from guides.core.arguments import check_parameters, check_tensors, row_not_finite
from guides.core.checks import check_counts
from guides.core.modes import evaluating
from guides.core.rng import kept_rng, seeded_rng, stream_seed
from guides.core.starts import initial_value
from guides.core.svi import DivergenceError
from guides.posterior.draws import Posterior

#: Draws made together.
TOGETHER = 100
#: Pseudo-observations that pass the shared parameters at a time: what a cache holds.
PASSING = 4000
#: Iterations of the inner optimisation in a step of the training, from where the last step ended.
INNER = 10
#: What would become of a ``pyro.param``.
FATE = "is not one of the module, so that it would stay at its start"


class _ByOptimisation:
    """Local sites by L-BFGS, from where the last step ended."""

    def __init__(self, module: nn.Module, args: tuple, validation: tuple | None, plate: str | None):
        self.module, self.target = module, WeightedLoss.of(module, args, "mle", plate)
        self.held = None if validation is None else _held_out(module, validation, plate)
        start = _one_start(self.target)
        self.local = {name: value.requires_grad_() for name, value in start.items()}

    def found(self) -> Parameters:
        """The local sites as they are."""
        return self.target.constrained({name: value.detach() for name, value in self.local.items()})

    def loss(self, law: Law) -> tuple[Tensor, Parameters]:
        values, n = list(self.local.values()), self.target.rows
        pseudo = [part[n:] for part in law.rows]
        inner = torch.optim.LBFGS(values, max_iter=INNER, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            loss = self.target(self.local, law.weights, *pseudo)
            for value, gradient in zip(values, torch.autograd.grad(loss, values), strict=True):
                value.grad = gradient
            return loss

        if torch.is_grad_enabled():
            inner.step(closure)
        found = {name: value.detach().clone() for name, value in self.local.items()}
        return self.target(found, law.weights, *pseudo), found

    def score(self, sites: Parameters) -> float | None:
        if self.held is None:
            return None
        with torch.no_grad():
            n = self.held.rows
            return -self.held(sites, torch.full((n,), 1 / n, dtype=torch.float64)).item()


def _one_start(target: WeightedLoss) -> Parameters:
    return {name: value[0] for name, value in target.starts(initial_value, 1).items()}


def _held_out(module: nn.Module, validation: tuple, plate: str | None) -> WeightedLoss:
    try:
        return WeightedLoss.of(module, validation, "mle", plate)
    except ValueError as error:
        raise ValueError(f"the validation: {error}") from error


# ------------------------------------------------------------------------------------------------- the method


class SharedParameterBootstrap:
    """A nonparametric posterior of some parameters of a Pyro model, the others trained once.

    :param model: a torch module that is a Pyro model, its data in one plate.  Parameters of the module are
        shared, latent sites are local.  One with the methods of :class:`ClosedForm` has its local sites in
        closed form; those of another are found by an inner optimisation
    :param concentration: ``a``, in rows of data: 0 leaves the base measure out
    :param base_measure: where pseudo-observations come from; the Gaussian fitted to the rows by default
    :param num_pseudo: ``m``; 500 by default, with ``a > 0``
    :param plate: as of :class:`PosteriorBootstrap`
    :raises ValueError: for arguments out of range
    """

    def __init__(
        self,
        model: nn.Module,
        concentration: float = 0.0,
        base_measure: BaseMeasure | None = None,
        num_pseudo: int | None = None,
        *,
        plate: str | None = None,
    ):
        self.num_pseudo = check_process(concentration, base_measure, num_pseudo)
        if not isinstance(model, nn.Module) or not any(p.requires_grad for p in model.parameters()):
            raise ValueError("the model has no parameters to share: use PosteriorBootstrap")
        self.model, self.concentration, self.base_measure = model, float(concentration), base_measure
        self.plate = plate

    def fit(
        self,
        *args,
        validation: tuple | None = None,
        training: Training | None = None,
        restarts: int = 1,
        seed: int = 0,
        on_step: Callable[[], None] = lambda: None,
    ) -> SharedPosterior:
        """Trains the shared parameters on the data ``args``; they stay in the model.

        :param validation: the same arguments of rows held out, by whose mean log density training is stopped
            early and the best start is chosen
        :param restarts: starts; the first is the model as it is, the others by ``reset_parameters`` of its
            parts; one whose numbers leave the finite ones is none
        :param seed: of weights, pseudo-observations and starts; the caller's generators stay as they are
        :warns UserWarning: of batch normalisation that does not know the weights, and of a model that uses
            its rows together
        :raises ValueError: rows that are not finite, fewer than two, a base measure that does not fit them;
            restarts of a part with parameters and without ``reset_parameters``; a parameter that is not the
            module's, a local site that the likelihood does not see
        :raises TypeError: an argument that is no tensor but NumPy's or a table, a model that cannot be copied
        :raises DivergenceError: a RuntimeError, when the losses of no start are finite, or no score
        """
        check_counts(restarts=restarts)
        if restarts > 1:
            check_restarts(self.model)
        check_tensors(args)
        if not isinstance(validation, tuple | list | None):
            raise TypeError(
                f"validation must be a tuple of the model's arguments, not a {type(validation).__name__}"
            )
        for i, part in enumerate(validation or ()):
            if isinstance(part, Tensor) and part.dim() and (row := row_not_finite(part)) is not None:
                raise ValueError(f"argument {i} of the validation is not finite in row {row}")
        _copied(self.model)  # what cannot be copied is told before it is trained
        training = training or Training()
        generator = torch.Generator().manual_seed(stream_seed("laws", seed))
        found: list[tuple[Progress, dict, Parameters]] = []
        with pyro.get_param_store().scope(), poutine.block(), seeded_rng(seed):
            with frozen(self.model):
                check_parameters(self.model, args, fate=FATE)
            target = WeightedLoss.of(self.model, args, "mle", self.plate)
            rows, base = target.row_values, None
            check_rows(rows)
            if self.concentration:
                base = base_for(self.base_measure, rows)
                target.check_base(base)
            self._check_uses(target, base)
            draws = Laws(rows, self.concentration, base, self.num_pseudo)
            for start in range(restarts):
                if start:
                    restart(self.model)
                objective = self._objective(args, validation)
                try:
                    progress = train(objective, draws.stream(generator), training, on_step)
                except DivergenceError as error:
                    reason = error
                    continue
                local = objective.found() if isinstance(objective, _ByOptimisation) else {}
                found.append((progress, copy.deepcopy(self.model.state_dict()), local))
        if not found:
            raise reason
        best, state, local = max(found, key=lambda start: start[0].score)
        self.model.load_state_dict(state)
        info = {
            "method": "shared-parameter-bootstrap", "concentration": self.concentration,
            "num_pseudo": self.num_pseudo, "seed": seed, "steps": len(best.losses), "kept_step": best.best,
            "lr": training.lr, "validation": best.score if best.scores else None,
            "starts": [progress.score for progress, *_ in found],
        }  # fmt: skip
        # of a copy, which another fit of the module leaves alone
        return SharedPosterior(_copied(self.model), args, draws, info, best, self.plate, local)

    def _check_uses(self, target: WeightedLoss, base: BaseMeasure | None) -> None:
        """What a model does with its rows and sites; one with a closed form has been thought about."""
        warn_of_batch_norm(self.model)
        if has_closed_form(self.model):
            return
        with kept_rng(), evaluating(self.model):
            target.check_seen(_one_start(target))
            if base is not None:
                target.warn_of_other_densities(base)

    def _objective(self, args: tuple, validation: tuple | None) -> Objective:
        if has_closed_form(self.model):
            return InClosedForm(self.model, validation)
        return _ByOptimisation(self.model, args, validation, self.plate)


def _copied(model: nn.Module) -> nn.Module:
    """:raises TypeError: naming what cannot be copied"""
    try:
        return copy.deepcopy(model)
    except (TypeError, RuntimeError) as error:
        raise TypeError(
            f"the model cannot be copied, as a posterior of its own needs ({error}): leave such an attribute "
            "out of the module"
        ) from error


@dataclass(frozen=True)
class SharedPosterior:
    """Trained shared parameters, and any number of draws of the local ones.

    :ivar model: a copy of the model with these parameters; what an attribute reads by a closure (a lambda
        of ``self``) is the original's
    :ivar info: of the training, JSON-safe
    :ivar local: where the inner optimisation of a model without a closed form ended; draws start there
    """

    model: nn.Module
    args: tuple
    laws: Laws
    info: dict
    progress: Progress
    plate: str | None = None
    local: Parameters = field(default_factory=dict)

    def draws(self, n: int, seed: int = 0, *, steps: int = 1000, lr: float = 0.05) -> Parameters:
        """Independent draws of the local sites, ``{site: [n, *site]}``.

        :param steps, lr: as of :meth:`PosteriorBootstrap.fit`, of a model without a closed form
        :warns UnsettledWarning: when some of these are not at their minimum
        """
        check_counts(n=n)
        if not has_closed_form(self.model):
            process = self.laws
            base = process.base if process.concentration else None
            start = init_to_value(values=self.local, fallback=initial_value)
            bootstrap = PosteriorBootstrap(
                self.model,
                process.concentration,
                base,
                process.num_pseudo or None,
                init_loc_fn=start,
                plate=self.plate,
            )
            settings = {"num_draws": n, "seed": stream_seed("draws", seed), "steps": steps, "lr": lr}
            with frozen(self.model), evaluating(self.model):
                return bootstrap.fit(*self.args, **settings).draws()
        return local_draws(self.model, self.laws, n, seed)

    def posterior(self, n: int = 100, seed: int = 0, *, steps: int = 1000, lr: float = 0.05) -> Posterior:
        """``n`` draws, as every method ends in."""
        draws = self.draws(n, seed, steps=steps, lr=lr)
        return Posterior.from_draws(self.model, draws, {**self.info, "draw_seed": seed})


def local_draws(model: ClosedForm, laws: Laws, num_draws: int, seed: int = 0) -> Parameters:
    """Of a model with a closed form.  Rows pass the shared parameters once, for all draws."""
    generator, parts = torch.Generator().manual_seed(stream_seed("draws", seed)), []
    with torch.no_grad(), evaluating(model):
        z = model.encode(*laws.rows)[0]
        for count in _batches(num_draws):
            weights, pseudo = laws.draw(count, generator)
            whole = z.expand(count, *z.shape)
            if pseudo:
                flat = zip(*(part.flatten(0, 1).split(PASSING) for part in pseudo), strict=True)
                more = torch.cat([model.encode(*part)[0] for part in flat])
                whole = torch.cat([whole, more.unflatten(0, (count, -1))], 1)
            parts.append(model.local(weights, whole))
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@dataclass(frozen=True)
class Laws:
    """The Dirichlet process given rows, up to its truncation."""

    rows: Rows
    concentration: float
    base: BaseMeasure | None
    num_pseudo: int

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Rows]:
        """Weights ``[count, n + m]`` and pseudo-observations ``[count, m, ...]``, none without a base."""
        weights = dirichlet_weights(count, len(self.rows[0]), self.num_pseudo, self.concentration, generator)
        if self.base is None:
            return weights, ()
        drawn = self.base.draw(count * self.num_pseudo, generator)
        return weights, tuple(
            part.to(own).unflatten(0, (count, self.num_pseudo))
            for part, own in zip(drawn, self.rows, strict=True)
        )

    def stream(self, generator: torch.Generator) -> Iterator[Law]:
        """One draw after the other, for ever."""
        first = self.rows[0]
        # whole numbers would cut the weights to zero
        dtype = first.dtype if first.is_floating_point() else torch.get_default_dtype()
        while True:
            weights, pseudo = self.draw(1, generator)
            rows = self.rows
            if pseudo:
                rows = tuple(torch.cat([own, more[0]]) for own, more in zip(rows, pseudo, strict=True))
            yield Law(weights[0].to(first.device, dtype), rows)


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Within it, the parameters of a module take no gradients."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def warn_of_batch_norm(module: nn.Module) -> None:
    """Torch's own takes every row for one, whatever it weighs."""
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm):
            warnings.warn(
                f"{name or 'the model'} ({type(part).__name__}) does not know the weights of the rows: take "
                "guides.flows.weighted_batch_norm.WeightedBatchNorm",
                stacklevel=4,
            )
            return


def has_closed_form(model: nn.Module) -> bool:
    """Whether it has the methods of :class:`ClosedForm`."""
    return all(hasattr(model, name) for name in ("encode", "local", "log_density"))


def check_restarts(module: nn.Module) -> None:
    """:raises ValueError: when a part has parameters of its own and nothing that starts them anew"""
    for name, part in module.named_modules():
        if next(part.parameters(recurse=False), None) is not None and not hasattr(part, "reset_parameters"):
            raise ValueError(
                "restarts need a method reset_parameters of every part with parameters; "
                f"{name or 'the model'} ({type(part).__name__}) has none"
            )


def restart(module: nn.Module) -> None:
    """New starting values, by torch's global generator."""
    for part in module.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()


def _batches(total: int) -> list[int]:
    return [min(TOGETHER, total - done) for done in range(0, total, TOGETHER)]
