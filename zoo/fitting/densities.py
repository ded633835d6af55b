"""Densities of rows fitted by flows: maximum likelihood, bootstraps, and what a fitted one answers.

Every way trains a flow along a stream of weighted rows and differs in the stream, and in whether the latent
mean is fitted or zero (Ott 2022, chapter 4).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from guides.bootstrap.base_measures import BaseMeasure, base_for
from guides.bootstrap.shared_parameters import Laws, local_draws
from guides.bootstrap.training import InClosedForm, Law, Progress, Training, train
from guides.bootstrap.weights import NUM_PSEUDO, dirichlet_weights
from guides.core.rng import seeded_rng
from guides.core.svi import DivergenceError
from guides.posterior.files import part_of, read_safetensors, write_atomically
from zoo.errors import FailedError, UserError, one_line
from zoo.models.normalizing_flow import FlowDensity
from zoo.seeds import stable_seed

#: Steps of the pre-training towards the identity, and its random rows; Ott (2022), appendix B.
IDENTITY_STEPS, IDENTITY_ROWS = 1000, 1000
#: Log densities held at a time.
HELD = 4_000_000


@dataclass(frozen=True)
class FlowShape:
    """What a :class:`FlowDensity` is made of; :ivar identity: whether it starts near the identity"""

    kind: str = "maf"
    blocks: int = 3
    hidden: tuple[int, ...] = (100,)
    batch_norm: bool = True
    covariance: bool = False
    identity: bool = False

    def build(self, train_rows: Tensor) -> FlowDensity:
        """By torch's global generator.  Hidden layers are at least as wide as the table."""
        features = train_rows.shape[1]
        hidden = tuple(max(width, features) for width in self.hidden)
        flow = FlowDensity(
            features,
            self.blocks,
            hidden,
            kind=self.kind,
            batch_norm=self.batch_norm,
            covariance=self.covariance,
        ).to(train_rows)
        if self.identity:
            towards_identity(flow, train_rows)
        return flow


@dataclass(frozen=True)
class Rows:
    """Standardised tables: to train on, to stop by, and for an empirical base measure the unused ones."""

    train: Tensor
    validation: Tensor
    pool: Tensor | None = None


@dataclass(frozen=True)
class FittedDensity:
    """A flow, or several, and draws of their latent sites.

    :ivar members: pairs of a flow and sites ``{name: [B, ...]}``
    :ivar info: of the training, JSON-safe
    """

    members: list[tuple[FlowDensity, dict[str, Tensor]]]
    info: dict

    def log_density(self, x: Tensor) -> Tensor:
        """``[B, N]``, nats: what every draw gives to every row."""
        with torch.no_grad():
            return torch.cat([flow.log_density(sites, flow.encode(x)) for flow, sites in self.members])

    def figures(self, x: Tensor, units: float = 0.0) -> dict[str, float]:
        """Scores of test rows: the mean over draws and rows, the same of the mixture of all draws, and what
        says whether a few rows decide them; ``points_se`` of a single row is NaN.

        :param units: sum of the logs of the sds by which the rows were standardised: densities are then
            those of the table's own units
        """
        rows, mixed, of_draws = [], [], 0.0
        count = sum(len(sites["mean"]) for _, sites in self.members)
        for part in x.split(max(1, HELD // count)):
            found = self.log_density(part).double() - units
            rows.append(found.mean(0))
            mixed.append(found.logsumexp(0) - math.log(count))
            of_draws = of_draws + found.sum(1) / len(x)
        whole = torch.cat(rows)
        return {
            "log_likelihood": whole.mean().item(),
            "points_se": whole.std().item() / len(whole) ** 0.5 if len(whole) > 1 else math.nan,
            "mixture": torch.cat(mixed).mean().item(),
            "draws_sd": of_draws.std().item() if count > 1 else 0.0,
            "median": whole.median().item(),  # of an even number the lower of the middle two
            "below_100": (whole < -100).double().mean().item(),
        }

    def sample(self, n: int, seed: int) -> Tensor:
        """``[n, d]``: each row from a draw chosen at random."""
        parts = [
            (flow, {name: value[b] for name, value in sites.items()})
            for flow, sites in self.members
            for b in range(len(sites["mean"]))
        ]
        with seeded_rng(seed), torch.no_grad():
            counts = torch.bincount(torch.randint(len(parts), (n,)), minlength=len(parts)).tolist()
            drawn = [
                flow.decode(flow.latent(sites, count))
                for (flow, sites), count in zip(parts, counts, strict=True)
                if count
            ]
            return torch.cat(drawn)[torch.randperm(n)]

    def save(self, path: Path, shape: FlowShape) -> None:
        """Of one flow."""
        ((flow, sites),) = self.members
        tensors = {f"flow.{name}": value.contiguous() for name, value in flow.state_dict().items()}
        tensors |= {f"sites.{name}": value.contiguous() for name, value in sites.items()}
        facts = {name: value for name, value in self.info.items() if name != "losses"}
        about = {"shape": asdict(shape), "features": flow.features, "info": facts}
        metadata = {"about": json.dumps(about)}
        # masks and orders of columns share memory
        tensors = {name: value.clone() for name, value in tensors.items()}
        write_atomically(path, lambda target: save_file(tensors, target, metadata=metadata))

    @classmethod
    def load(cls, path: Path) -> FittedDensity:
        """:raises UserError: naming a damaged file"""
        try:
            metadata, tensors = read_safetensors(path)
            return cls._of(json.loads(metadata["about"]), tensors)
        except (SafetensorError, OSError, LookupError, ValueError, TypeError, RuntimeError) as error:
            why = one_line(str(error))
            raise UserError(f"{path} is truncated or no density ({why}): delete it and fit again") from None

    @classmethod
    def _of(cls, about: dict, tensors: dict[str, Tensor]) -> FittedDensity:
        shape = FlowShape(**{**about["shape"], "hidden": tuple(about["shape"]["hidden"]), "identity": False})
        sites = part_of(tensors, "sites")
        if len({tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}) > 1:
            raise ValueError("its numbers are of two kinds")
        draws, features = sites["mean"].shape
        if not draws or features != about["features"] or not isinstance(about["info"], dict):
            raise ValueError("its parts do not fit")
        if not all(tensor.isfinite().all() for tensor in tensors.values()):
            raise ValueError("a number in it is not finite")
        flow = shape.build(torch.zeros(1, about["features"], dtype=sites["mean"].dtype))
        flow.load_state_dict(part_of(tensors, "flow"))
        return cls([(flow.eval(), sites)], about["info"])


# ------------------------------------------------------------------------------------------ ways to fit


@dataclass(frozen=True)
class Effort:
    """:ivar restarts: random starts, the best by validation is kept; :ivar draws: of the posterior"""

    training: Training = field(default_factory=Training)
    restarts: int = 1
    draws: int = 100
    seed: int = 0


def maximum_likelihood(rows: Rows, shape: FlowShape, effort: Effort, *, mean: bool = False) -> FittedDensity:
    """One flow; its latent mean is zero, or with ``mean`` that of the rows in latent space."""
    weights = torch.full((len(rows.train),), 1 / len(rows.train)).to(rows.train)
    return _constant(rows, shape, effort, weights, mean)


def weighted_bootstrap(rows: Rows, shape: FlowShape, effort: Effort, *, mean: bool = False) -> FittedDensity:
    """As many flows as draws, each trained with weights of its own (Ott 2022, algorithm 2)."""
    generator = torch.Generator().manual_seed(stable_seed("weights", effort.seed))
    weights = dirichlet_weights(effort.draws, len(rows.train), 0, 0.0, generator).to(rows.train)
    members, steps = [], 0
    for b in range(effort.draws):
        own = Effort(effort.training, effort.restarts, 1, stable_seed("member", effort.seed, b))
        found = _constant(rows, shape, own, weights[b], mean)
        members += found.members
        steps += found.info["steps"]
    return FittedDensity(members, {"steps": steps})


def shared_bootstrap(
    rows: Rows,
    shape: FlowShape,
    effort: Effort,
    *,
    concentration: float = 0.0,
    base: BaseMeasure | None = None,
    num_pseudo: int = NUM_PSEUDO,
    mean: bool = True,
    on_step: Callable[[], None] = lambda: None,
) -> FittedDensity:
    """One flow, a latent mean a draw (Ott 2022, algorithm 3); without ``mean`` they are all zero, and what is
    left is training with random weights.

    :param base: the Gaussian fitted to the training rows by default
    """
    parts = (rows.train,)
    base = base_for(base, parts) if concentration else None
    laws = Laws(parts, concentration, base, num_pseudo if concentration else 0)

    def stream(start: int) -> Iterator[Law]:
        return laws.stream(torch.Generator().manual_seed(stable_seed("laws", effort.seed, start)))

    flow, progress = _best(rows, shape, effort, stream, mean, on_step)
    sites = local_draws(flow, laws, effort.draws, stable_seed("draws", effort.seed)) if mean else _zero(flow)
    return FittedDensity([(flow, sites)], {**_about(progress), "losses": progress.losses})


def _constant(rows: Rows, shape: FlowShape, effort: Effort, weights: Tensor, mean: bool) -> FittedDensity:
    law = Law(weights, (rows.train,))
    flow, progress = _best(rows, shape, effort, lambda start: itertools.repeat(law), mean)
    with torch.no_grad():
        sites = flow.local(weights[None], flow.encode(rows.train)[0]) if mean else _zero(flow)
    return FittedDensity([(flow, sites)], _about(progress))


def _best(
    rows: Rows,
    shape: FlowShape,
    effort: Effort,
    stream: Callable[[int], Iterator[Law]],
    mean: bool,
    on_step: Callable[[], None] = lambda: None,
) -> tuple[FlowDensity, Progress]:
    """The best of several starts by validation; a start that leaves the numbers is no candidate.

    :raises FailedError: when all do
    :raises ValueError: for a column without variance
    """
    constant = (rows.train == rows.train[0]).all(0).nonzero().flatten().tolist()
    if constant:
        raise ValueError(f"column {constant[0]} of the training rows is constant: it has no density")
    found: list[tuple[FlowDensity, Progress]] = []
    for start in range(effort.restarts):
        with seeded_rng(stable_seed("start", effort.seed, start)):
            flow = shape.build(rows.train)
            local = None if mean else (lambda weights, z, flow=flow: _zero(flow, batch=False))
            objective = InClosedForm(flow, (rows.validation,), local)
            try:
                progress = train(objective, stream(start), effort.training, on_step)
            except DivergenceError as error:
                reason = error
                continue
            found.append((flow, progress))
    if not found:
        raise FailedError(str(reason))
    return max(found, key=lambda pair: pair[1].score)


def _zero(flow: FlowDensity, batch: bool = True) -> dict[str, Tensor]:
    """The standard Gaussian."""
    d, like = flow.features, next(flow.parameters())
    sites = {"mean": like.new_zeros(d)}
    if flow.covariance:
        eye = torch.eye(d, dtype=like.dtype)
        sites |= {"scale": like.new_ones(d), "correlation": eye}
    return {name: value[None] for name, value in sites.items()} if batch else sites


def _about(progress: Progress) -> dict:
    return {"steps": len(progress.losses), "kept_step": progress.best, "validation": progress.score}


def towards_identity(flow: FlowDensity, rows: Tensor) -> None:
    """Trains the flow to leave uniform rows of the data's box where they are."""
    low, high = rows.min(0).values, rows.max(0).values
    x = low + (high - low) * torch.rand(IDENTITY_ROWS, rows.shape[1]).to(rows)
    optimizer = torch.optim.Adam(flow.parameters(), lr=1e-3)
    for _ in range(IDENTITY_STEPS):
        optimizer.zero_grad()
        (flow.encode(x)[0] - x).square().mean().backward()
        optimizer.step()
