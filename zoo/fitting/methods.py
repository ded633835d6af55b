"""The ways to fit a guide, and what all of them answer afterwards.

A method takes a model and its data and gives a :class:`Fitted`; the scoreboard and ``zoo predict`` know
nothing else of it.  Stochastic variational inference is here, others have modules of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rich.progress import Progress
from torch import Tensor
from torch.distributions import Distribution

from guides.core.flat_guide import FlatGuide
from guides.core.rng import kept_rng
from guides.posterior.draws import Posterior
from zoo.budgets import STEPS
from zoo.errors import UserError
from zoo.evaluation.estimates import Estimate
from zoo.fitting.checkpoints import guide_state, read_checkpoint
from zoo.fitting.devices import CPU, moved
from zoo.fitting.svi import Fit, FitSettings, default_batch_size, default_learning_rate, made_up_data


class ClosedForm(Protocol):
    """What knows its predictive distribution without draws, and can be kept in a file."""

    def predictive(self, x: Tensor) -> Distribution:
        """Of the standardised target at ``x: [N, in]``, noise included; batch shape ``[N]``.

        One that draws something all the same has an argument ``seed``, by which it draws; where the draws of
        one call share some of it, it has an attribute ``components_share``.
        """
        ...

    def save(self, path: Path) -> None: ...


@dataclass(frozen=True)
class Fitted:
    """A model fitted by some method; None, or nothing, is a question that it has no answer to.

    :ivar draws: ``(n, seed) -> {site: [n, *site]}``, in the precision of the data
    :ivar num_parameters: numbers that were fitted
    :ivar seconds: that the fit took
    :ivar summary: what was done, for the terminal
    :ivar draws_with_log_prob: ``(n, seed) -> (draws, [n])``: the same draws, and for each of them what to
        divide by in an importance ratio, a log density in nats
    :ivar elbo: ``() -> (value, standard error)``, nats
    :ivar inclusion: inclusion probabilities, ``{site: [*site]}``; ``inclusion_mcse`` their standard errors,
        where they are means over draws
    :ivar losses: minus the ELBO of every step, or minus what the method has in its place
    :ivar bound_change: how much the ELBO rose in the last tenth of the fit, nats
    :ivar closed_form: its predictive distribution, better than that of draws
    :ivar most_draws: draws that there are; asked for more, they come in turn
    """

    model: Callable
    draws: Callable[[int, int], dict[str, Tensor]]
    num_parameters: int
    seconds: float
    summary: str
    draws_with_log_prob: Callable[[int, int], tuple[dict[str, Tensor], Tensor]] | None = None
    elbo: Callable[[], tuple[float, float]] | None = None
    inclusion: Mapping[str, Tensor] = field(default_factory=dict)
    inclusion_mcse: Mapping[str, Tensor] = field(default_factory=dict)
    losses: Sequence[float] = ()
    bound_change: Estimate | None = None
    closed_form: ClosedForm | None = None
    most_draws: int | None = None

    def predictor(self, num_draws: int, seed: int, device: str = CPU) -> Callable[[Tensor], Distribution]:
        """``x: [N, in]`` -> predictive distribution, in closed form or that of ``num_draws`` draws, which lie
        on a device, as x shall.

        A closed form looks at neither argument: what is random in one (the mixture of a sparse implicit
        process, the networks of a functional BNN) has a number and a seed of its own, the same for all fits.
        """
        if self.closed_form is not None:
            return self.closed_form.predictive
        draws = {site: value.to(device) for site, value in self.draws(num_draws, seed).items()}
        return Posterior.from_draws(self.model, draws).predictive


@dataclass(frozen=True)
class FitFile:
    """The file that a fit is kept in.

    :ivar about: what is being fitted, JSON-safe; a file about something else is refused
    """

    path: Path
    about: Mapping = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "about", json.loads(json.dumps(self.about)))  # as a file gives it back


@dataclass(frozen=True)
class Watch:
    """Who watches a fit: a bar with a label, or nobody."""

    progress: Progress | None = None
    label: str = "fit"

    def start(self, total: int) -> Callable[..., None]:
        """Shows a bar of so many steps; gives what is to be called after each, or with a number of them."""
        if self.progress is None:
            return lambda *count: None
        task = self.progress.add_task(self.label, total=total)
        return lambda *count: self.progress.advance(task, *count)


UNWATCHED = Watch()


class Method(Protocol):
    """A way to fit.

    :ivar takes: the options of ``zoo fit`` that change what it does
    """

    takes: Sequence[str]

    def settings(self, rows: int, seed: int, **wishes: Any) -> Any:
        """All that decides the outcome beside model and data, as a dataclass of JSON-safe numbers.

        :param wishes: values of options; those that are not in ``takes`` are not looked at
        """
        ...

    def fit(
        self,
        model: Callable,
        data: tuple,
        settings: Any,
        *,
        file: FitFile | None = None,
        watch: Watch = UNWATCHED,
    ) -> Fitted:
        """Fits; with a file, keeps the fit there and uses what an earlier call has left.

        :param data: the arguments that the model is called with: rows and targets; stochastic variational
            inference and point estimates also take rows alone, and lists in place of tensors
        :raises FailedError: at a number that is not finite
        :raises UserError: when the file is damaged, or of another fit
        """
        ...

    def about(self, path: Path) -> dict:
        """What the finished fit in a file is about; :raises UserError: when damaged or not finished"""
        ...

    def load(self, path: Path, model: Callable) -> Fitted:
        """The fit of a file that is known to be whole."""
        ...


def itself(model: Callable) -> Callable:
    return model


def as_drawn(draws: dict[str, Tensor]) -> dict[str, Tensor]:
    return draws


@dataclass(frozen=True)
class Variational:
    """Stochastic variational inference.

    :ivar build: ``model -> guide``
    :ivar bounds: whether minus the guide's loss bounds the evidence of the model
    :ivar has_density: whether its draws have a density to compare with the model's
    :ivar replace: the model that is fitted in place of the one asked for, with a prior of its own say
    :ivar translate: draws of the sites of that model -> draws of the sites of the model asked for
    """

    build: Callable[[Callable], FlatGuide]
    takes: Sequence[str] = ("steps", "lr", "batch-size")
    bounds: bool = True
    has_density: bool = True
    replace: Callable[[Callable], Callable] = itself
    translate: Callable[[dict[str, Tensor]], dict[str, Tensor]] = as_drawn

    def settings(
        self,
        rows: int,
        seed: int,
        *,
        steps: int = STEPS,
        lr: float | None = None,
        batch_size: int | None = None,
    ) -> FitSettings:
        lr = default_learning_rate(steps) if lr is None else lr
        return FitSettings(steps, lr, batch_size or default_batch_size(rows), seed)

    def fit(
        self,
        model: Callable,
        data: tuple,
        settings: FitSettings,
        *,
        file: FitFile | None = None,
        watch: Watch = UNWATCHED,
    ) -> Fitted:
        """An interrupted fit goes on from the last checkpoint in its file."""
        fitted_model = self.replace(model)
        run = Fit(self.build(fitted_model), fitted_model, data, settings)
        path, about = (None, None) if file is None else (file.path, file.about)
        run.run(checkpoint=path, about=about, progress=watch.progress, label=watch.label)
        change = run.last_change()
        elbo = run.elbo if self.bounds else None
        guide = run.guide if run.device.type == CPU else self.on_cpu(run.guide, model, data)
        return self._fitted(guide, model, run.losses, change, run.seconds, elbo)

    def on_cpu(self, guide: FlatGuide, model: Callable, data: tuple) -> FlatGuide:
        """A fitted guide again, where its questions are answered."""
        copy = self.build(self.replace(model))
        state = guide.state_dict().items()
        copy.load_state_dict({k: v.cpu() if isinstance(v, Tensor) else v for k, v in state})
        with kept_rng():  # it sees the supports of its sites, not the numbers
            copy.setup(*(part[:2] for part in moved(data, CPU)))
        return copy

    def about(self, path: Path) -> dict:
        header, tensors = read_checkpoint(path)
        if len(tensors["losses"]) < header["settings"]["steps"]:
            raise unfinished(path)
        return header["about"]

    def load(self, path: Path, model: Callable) -> Fitted:
        header, tensors = read_checkpoint(path)
        guide = self.build(self.replace(model))
        guide.load_state_dict(guide_state(header, tensors))
        if any(site.family == "transformed" for site in guide.sites.values()):
            with kept_rng():  # supports are in no file: it sees them on made-up data
                guide.setup(*made_up_data(header))
        losses = tensors["losses"].tolist()
        change = FitSettings(**header["settings"]).last_change(tensors["final_losses"].tolist())
        return self._fitted(guide, model, losses, change, header["seconds"])

    def _fitted(
        self,
        guide: FlatGuide,
        model: Callable,
        losses: Sequence[float],
        change: Estimate,
        seconds: float,
        elbo: Callable[[], tuple[float, float]] | None = None,
    ) -> Fitted:
        """What a fitted guide answers."""

        def draws(n: int, seed: int) -> dict[str, Tensor]:
            return self.translate(guide.draws(n, seed=seed))

        def draws_with_log_prob(n: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
            return guide.draws_with_log_prob(n, seed=seed)

        inclusion = guide.inclusion_probabilities() if hasattr(guide, "inclusion_probabilities") else {}
        return Fitted(
            model,
            draws=draws,
            num_parameters=sum(parameter.numel() for parameter in guide.parameters()),
            seconds=seconds,
            summary=f"{len(losses)} steps in {seconds:.1f} s, last loss {losses[-1]:.1f} nats, "
            f"{change.value:+.1f} gained in the last tenth",
            bound_change=change,
            draws_with_log_prob=draws_with_log_prob if self.has_density else None,
            elbo=elbo,
            inclusion=inclusion,
            losses=losses,
        )


def unfinished(path: Path) -> UserError:
    return UserError(f"the fit in {path.parent} is not finished: call zoo fit again with the same arguments")
