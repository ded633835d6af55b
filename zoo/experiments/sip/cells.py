"""The cells: fit, predict, score, and leave what the pictures show."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from data_loaders import LAWS
from guides import AutoMeanField
from guides.core.rng import kept_rng, seeded_rng
from guides.core.settling import UnsettledWarning
from guides.implicit import SaturationWarning, SparseImplicitProcess
from guides.implicit.generator import Generator
from guides.posterior.evaluate import observed_laws
from guides.posterior.predictive import function_values
from guides.truth.mcmc import nuts
from zoo.evaluation.known_laws import oracles
from zoo.evaluation.metrics import crps, log_likelihood, rmse
from zoo.experiments.engine.declaration import Cell
from zoo.experiments.sip import problems
from zoo.experiments.splits import random_80_20
from zoo.fitting.implicit import METHODS, WIDTHS
from zoo.fitting.methods import Fitted, Method, Variational
from zoo.fitting.problem import Problem
from zoo.fitting.reach import half_cosine_change
from zoo.models.bnn import BNN
from zoo.models.implicit_process import BNNProcess, LearnedNetwork
from zoo.seeds import stable_seed

#: Draws behind a prediction, of the methods that are laws of weights; SIP, VIP and fBNN know theirs.
DRAWS = 500
#: Places of the pictures, draws of y at each, and functions of a prior.
PLACES, DRAWN, FUNCTIONS = 200, 30, 15
#: Log sd of the noise behind a posterior that is nearly a point: its values spread by 0.003, those of the
#: published start, whose weights are as small as their noise, by 0.007.
POINT_LOG_SD = -5.0
#: The network of the methods that are laws of weights, its slope as published (0.2).
NETWORK = {"widths": (50,), "activation": "leaky-relu"}
#: The figures of every table.
SCORES = {"rmse": rmse, "log_likelihood": log_likelihood, "crps": crps}


# ------------------------------------------------------------------------------------------------- the tables


def table(cell: Cell) -> Mapping[str, float]:
    """A method on an 80/20 split."""
    problem = random_80_20(cell.dataset, cell.trial)
    fitted, seconds = fit(cell, problem)
    law = fitted.predictor(DRAWS, stable_seed("draws", cell.seed))(problem.x_test)
    return {
        **figures(law, problem),
        "bound_change": bound_change(fitted.losses, problem.size),
        "cpu_seconds": seconds,
    }


def fit(cell: Cell, problem: Problem) -> tuple[Fitted, float]:
    """The cell's method on a problem, and the CPU seconds that it took."""
    method = method_of(cell.method)
    settings = method.settings(problem.size, cell.seed % 2**31, steps=cell.options["steps"])
    start = time.process_time()
    fitted = method.fit(BNN(problem.x.shape[1], **NETWORK), problem.train, settings)
    return fitted, time.process_time() - start


def method_of(name: str) -> Method:
    return Variational(AutoMeanField) if name == "mean-field" else METHODS[name]()


@contextmanager
def of_set_steps() -> Iterator[None]:
    """Around a fit whose steps the budget says; of hundreds of weights a classifier is always saturated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SaturationWarning)
        warnings.simplefilter("ignore", UnsettledWarning)
        yield


def figures(law: Distribution, problem: Problem) -> dict[str, float]:
    """RMSE, log likelihood and CRPS of the test rows, target in its own unit."""
    arguments = law, problem.y_test.double(), problem.scale.y_sd
    return {name: score(*arguments).value for name, score in SCORES.items()}


def bound_change(losses: Sequence[float], rows: int) -> float:
    """How much minus the loss rose in the last tenth of the learning, nats a row."""
    return half_cosine_change(losses).value / rows


# --------------------------------------------------------------------------------------- one column: pictures


def one_dimensional(cell: Cell) -> Mapping[str, float]:
    """A method on a set of one column; leaves draws of y and of the prior on a grid."""
    problem = problems.one_dimensional(cell.dataset, cell.trial)
    if cell.method in ("true-law", "best-gaussian"):
        return _oracle(cell, problem)
    more: dict[str, float] = {}
    prior = None
    if cell.method.startswith("nuts"):
        predictor, more = _nuts(cell, problem)
    else:
        fitted, more["cpu_seconds"] = fit(cell, problem)
        predictor = fitted.predictor(DRAWS, stable_seed("draws", cell.seed))
        more["bound_change"] = bound_change(fitted.losses, problem.size)
        prior = getattr(fitted.closed_form, "prior", None)
    _leave(cell, problem, predictor, prior)
    return figures(predictor(problem.x_test), problem) | more


def _oracle(cell: Cell, problem: Problem) -> Mapping[str, float]:
    data = problem.dataset
    law = oracles(LAWS[cell.dataset], torch.as_tensor(data.x_test[:, 0]))[cell.method]
    y = torch.as_tensor(data.y_test)
    return {name: score(law, y).value for name, score in SCORES.items()}


def _nuts(cell: Cell, problem: Problem) -> tuple[Callable[[Tensor], Distribution], dict[str, float]]:
    """Under the model's own prior, or under the one that a sparse implicit process has learned on the same
    data, in which its weights are far from standardised.
    """
    model = BNN(1, **NETWORK)
    if cell.method == "nuts-sip-prior":
        process = BNNProcess(1, WIDTHS)
        learned = METHODS["sip-bnn"]()
        settings = learned.settings(problem.size, cell.seed % 2**31, steps=cell.options["steps"])
        process.load_state_dict(learned.fit(model, problem.train, settings).closed_form.prior.state_dict())
        model = LearnedNetwork(process)
    points = problem.x_test[:: max(1, len(problem.x_test) // 100)]

    def function(draws: Mapping[str, np.ndarray]) -> np.ndarray:
        tensors = {name: torch.as_tensor(np.array(value)) for name, value in draws.items()}
        return function_values(observed_laws(model, tensors, points, site="y")).numpy()

    start = time.process_time()
    found = nuts(
        model.twin,
        tuple(value.numpy() for value in problem.train),
        function=function,
        warmup=cell.options["warmup"],
        draws=cell.options["draws"],
        seed=cell.seed % 2**31,
        retries=0,
        progress=False,
    )
    posterior = found.posterior(model)
    facts = {"max_rhat": found.diagnostics["max_rhat"], "cpu_seconds": time.process_time() - start}
    return lambda x: posterior.predictive(x, site="y"), facts


def _leave(cell: Cell, problem: Problem, predictor: Callable[[Tensor], Distribution], prior: object) -> None:
    """``samples.npz`` in original units: ``x``, ``y [draws, places]``, ``prior [functions, places]``."""
    data, scale = problem.dataset, problem.scale
    x = np.linspace(data.x_train.min(), data.x_train.max(), PLACES)
    inputs = problem.inputs(x[:, None])
    with seeded_rng(stable_seed("picture", cell.seed)), torch.no_grad():
        y = predictor(inputs).sample((DRAWN,)).double().numpy()
        drawn = np.empty((0, PLACES)) if prior is None else prior.draw(FUNCTIONS)(inputs).double().numpy()
    arrays = {"y": scale.inverse_mean(y), "prior": scale.inverse_mean(drawn)}
    rows = {"x_train": data.x_train[:, 0], "y_train": data.y_train}
    np.savez_compressed(cell.folder / "samples.npz", x=x, **arrays, **rows)


# -------------------------------------------------------------------------------------------- inducing inputs


def inducing(cell: Cell) -> Mapping[str, float]:
    """How inducing inputs move; leaves ``trajectories.npz``.

    ``frozen``: 15 of them start at one place, and the posterior stays nearly a point, where it starts;
    ``free``: 50 start at random rows, and everything is learned.
    """
    problem = problems.one_dimensional(cell.dataset, cell.trial)
    torch.manual_seed(cell.seed % 2**31)
    frozen, alpha = cell.setting == "frozen", cell.options["alpha"]
    guide = SparseImplicitProcess(BNNProcess(1, WIDTHS), 15 if frozen else 50, alpha=alpha)
    path: dict[int, Tensor] = {}

    def start(fresh: SparseImplicitProcess) -> None:
        if frozen:
            middle = problem.x.median()
            fresh.inducing.data = middle + 0.01 * torch.randn_like(fresh.inducing)
            hold_at_a_point(fresh.generator)

    def watch(step: int, fresh: SparseImplicitProcess) -> None:
        if step in (1, cell.options["steps"]) or step % cell.options["every"] == 0:
            path[step] = fresh.inducing.detach().clone()[:, 0]

    options = {"steps": cell.options["steps"], "seed": cell.seed % 2**31}
    with of_set_steps():
        guide.fit(problem.x, problem.y, on_start=start, on_step=watch, **options)
    scale = problem.dataset.x_train.std()
    places = torch.stack(list(path.values())).double().numpy() * scale + problem.dataset.x_train.mean()
    _leave(cell, problem, guide.predictive, guide.prior)
    np.savez_compressed(cell.folder / "trajectories.npz", steps=list(path), places=places)
    return {
        **figures(guide.predictive(problem.x_test), problem),
        "spread_at_first": float(places[0].std()),
        "spread_at_last": float(places[-1].std()),
        "moved": float(np.abs(places[-1] - places[0]).mean()),
        "retained_variance": guide.facts["retained_variance"],
        "bound_change": bound_change(guide.losses, problem.size),
    }


def hold_at_a_point(generator: Generator) -> None:
    """Leaves a generator next to no noise, and trains none of it."""
    generator.noise_log_sd.data.fill_(POINT_LOG_SD)
    generator.requires_grad_(False)


# ------------------------------------------------------------------------------------------------- large sets


def large(cell: Cell) -> Mapping[str, float]:
    """Figures of the test rows while the fit goes on; leaves ``curve.npz``: seconds of training alone, and
    the three figures.
    """
    problem = problems.large(cell.dataset, cell.trial)
    steps, looks = cell.options["steps"], cell.options["looks"]
    torch.manual_seed(cell.seed % 2**31)
    method, model = METHODS[cell.method](), BNN(problem.x.shape[1], **NETWORK)
    settings = method.settings(problem.size, cell.seed % 2**31, steps=steps)
    guide = method.make(model, problem.size)
    at = {*np.geomspace(min(100, steps), steps, looks).astype(int).tolist(), steps}
    curve: list[tuple[float, ...]] = []
    begun, aside = time.process_time(), 0.0

    def look(step: int, fitted: object) -> None:
        nonlocal aside
        if step not in at:
            return
        paused = time.process_time()
        with kept_rng():
            found = figures(_predictive(guide, problem.x_test), problem)
        curve.append((paused - begun - aside, *found.values()))
        aside += time.process_time() - paused

    with of_set_steps():
        guide.fit(*problem.train, on_step=look, **method.options_of_fit(model, problem.size, settings))
    np.savez_compressed(cell.folder / "curve.npz", curve=np.array(curve))
    seconds, *last = curve[-1]
    return dict(zip(SCORES, last, strict=True)) | {
        "cpu_seconds": seconds,
        "bound_change": bound_change(guide.losses, problem.size),
    }


def _predictive(guide: object, x: Tensor) -> Distribution:
    if hasattr(guide, "predictive"):
        return guide.predictive(x)
    return guide.posterior(100).predictive(x)


# -------------------------------------------------------------------------------------------------- gradients


def gradients(cell: Cell) -> Mapping[str, float]:
    """Gradients of the data term and of the KL term with respect to the prior's parameters (``theta``) or
    the inducing inputs, at the end of a fit; leaves ``gradients.npz``.

    The KL term's by two ways: along the draws of the prior, as in training, and by central differences with
    the same random numbers, of a few of them; the classifier is held fixed.
    """
    problem = problems.one_dimensional(cell.dataset, cell.trial)
    torch.manual_seed(cell.seed % 2**31)
    guide = SparseImplicitProcess(BNNProcess(1, WIDTHS, dtype=torch.float64), 50, alpha=1.0)
    with of_set_steps():
        guide.fit(problem.x.double(), problem.y.double(), steps=cell.options["steps"], seed=cell.seed % 2**31)
    parameters = list(guide.prior.parameters()) if cell.method == "theta" else [guide.inducing]

    def terms() -> tuple[Tensor, Tensor]:
        with seeded_rng(0):
            return guide.terms(problem.x.double(), problem.y.double())

    data, divergence = (_flat(torch.autograd.grad(term, parameters, retain_graph=True)) for term in terms())
    largest = data.abs().argsort(descending=True)[: cell.options["differences"]]
    differences = torch.stack([_difference(parameters, int(i), lambda: terms()[1]) for i in largest])
    np.savez_compressed(
        cell.folder / "gradients.npz", data=data.numpy(), divergence=divergence.numpy(),
        largest=largest.numpy(), differences=differences.numpy(),
    )  # fmt: skip
    return {
        "data": data.square().mean().sqrt().item(),
        "divergence": divergence.square().mean().sqrt().item(),
        "largest_divergence": divergence.abs().max().item(),
        "ratio": (data.square().mean() / divergence.square().mean()).sqrt().item(),
        "by_differences": (differences - divergence[largest]).abs().max().item(),
    }


def _flat(parts: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def _difference(parameters: list[Tensor], place: int, value: Callable[[], Tensor]) -> Tensor:
    """Central difference of a value in one number of some parameters, which are counted through."""
    h = 1e-4
    for parameter in parameters:
        if place < parameter.numel():
            flat = parameter.data.view(-1)
            ends = []
            for sign in (1, -1):
                flat[place] += sign * h
                ends.append(value().detach())
                flat[place] -= sign * h
            return (ends[0] - ends[1]) / (2 * h)
        place -= parameter.numel()
    raise IndexError(place)
