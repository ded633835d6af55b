"""Variable selection as methods of the zoo: VARBVS (Carbonetto and Stephens 2012), and the joint law of
inclusion and weights.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.distributions import Normal

from guides import JointSpikeSlab, SpikeSlab
from guides.core.settling import UnsettledWarning
from guides.variational.varbvs import VARBVS
from zoo.budgets import STEPS
from zoo.errors import FailedError
from zoo.fitting.methods import Fitted, Watch
from zoo.fitting.reach import half_cosine_change
from zoo.fitting.stored import Numbers, Stored, Tensors
from zoo.fitting.svi import FitSettings, fitting
from zoo.models.latent_binary import VariableSelection


@dataclass(frozen=True)
class VarbvsSettings:
    """:ivar starts: points from which the bound is climbed, the best counts; :ivar seed: of these points"""

    starts: int
    seed: int


@dataclass(frozen=True)
class VariationalSelection(Stored):
    """Coordinate ascent with the hyper-parameters of the model.

    Logistic regression: a proper approximation with a density, and a bound that contains the one of Jaakkola
    and Jordan.  Linear regression: the noise is a point estimate, so its bound is on the evidence given that
    noise, and its draws have no density.
    """

    starts: int = 10
    takes: Sequence[str] = ()

    def settings(self, rows: int, seed: int, **wishes: object) -> VarbvsSettings:
        return VarbvsSettings(self.starts, seed)

    def run(
        self, model: VariableSelection, data: tuple[Tensor, Tensor], settings: VarbvsSettings, watch: Watch
    ) -> Numbers:
        x, y = data
        start, logistic = time.perf_counter(), _is_logistic(model)
        found = VARBVS(
            "logistic" if logistic else "linear",
            inclusion_prob=model.inclusion,
            bias_scale=1.0 if logistic else 0.0,
            starts=settings.starts,
            seed=settings.seed,
        ).fit(x.double().numpy(), y.double().numpy())
        (fit,) = found.fits
        centre, slope, spread = fit.bias_law
        arrays = {"alpha": fit.alpha, "mu": fit.mu, "s": fit.s, "slope": slope}
        tensors = {name: torch.as_tensor(value) for name, value in arrays.items()}
        tensors["bias"] = torch.tensor([centre, spread], dtype=torch.float64)
        for name, value in tensors.items():
            if not value.isfinite().all():
                raise FailedError(f"{name} is not finite after {len(fit.trace)} rounds")
        facts = {"elbo": found.elbo, "rounds": len(fit.trace), "converged": found.converged}
        facts |= {"noise_scale": fit.noise_scale, "seconds": time.perf_counter() - start}
        facts["num_parameters"] = 3 * len(fit.alpha) + (len(x) if logistic else 1)
        return Numbers(tensors, facts)

    def fitted(self, model: VariableSelection, found: Numbers) -> Fitted:
        facts, law = found.facts, SelectionLaw(found.tensors, found.facts["noise_scale"])
        logistic = _is_logistic(model)
        unfinished = "" if facts["converged"] else ", not converged"
        return Fitted(
            model,
            draws=law.logistic if logistic else law.linear,
            num_parameters=facts["num_parameters"],
            seconds=facts["seconds"],
            summary=f"{facts['rounds']} rounds in {facts['seconds']:.1f} s{unfinished}",
            draws_with_log_prob=law.logistic_with_log_prob if logistic else None,
            elbo=(lambda: (facts["elbo"], 0.0)) if logistic else None,
            inclusion={"w": found.tensors["alpha"].float()},
        )


@dataclass(frozen=True)
class JointSelection(Stored):
    """:class:`guides.JointSpikeSlab`."""

    takes: Sequence[str] = ("steps", "lr", "batch-size")

    def settings(
        self,
        rows: int,
        seed: int,
        *,
        steps: int = STEPS,
        lr: float = 0.06,
        batch_size: int | None = None,
    ) -> FitSettings:
        batch_size = min(batch_size, rows) if batch_size else None
        return FitSettings(steps, lr, batch_size, seed)

    def run(self, model: Callable, data: tuple, settings: FitSettings, watch: Watch) -> JointSpikeSlab:
        advance = watch.start(settings.steps)
        with fitting(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the loss still fell", UnsettledWarning)  # a figure says it
            return JointSpikeSlab(model).fit(*data, **asdict(settings), on_step=lambda step, guide: advance())

    def read(self, path: Path, model: Callable) -> JointSpikeSlab:
        return JointSpikeSlab.load(path, model)

    def fitted(self, model: Callable, found: JointSpikeSlab) -> Fitted:
        facts = found.facts

        def draws_with_log_prob(n: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
            drawn, log_q = found.draws_with_log_prob(n, seed)
            return {name: value.float() for name, value in drawn.items()}, log_q

        return Fitted(
            model,
            draws=lambda n, seed: draws_with_log_prob(n, seed)[0],
            num_parameters=sum(p.numel() for p in found.parameters()),
            seconds=facts["seconds"],
            summary=f"{facts['steps']} steps in {facts['seconds']:.1f} s, bound {facts['elbo'][0]:.1f} nats",
            losses=found.losses,
            bound_change=half_cosine_change(found.losses),
            draws_with_log_prob=draws_with_log_prob,
            elbo=lambda: tuple(facts["elbo"]),
            inclusion={name: p.float() for name, p in found.inclusion_probabilities().items()},
            inclusion_mcse={name: p.float() for name, p in found.inclusion_standard_errors().items()},
        )


def _is_logistic(model: VariableSelection) -> bool:
    return model.traits.likelihood == "bernoulli"


@dataclass(frozen=True)
class SelectionLaw:
    """Independent spikes and slabs ``(alpha, mu, s)``, each ``[p]``; given them a Gaussian intercept.

    :ivar tensors: also ``slope [p]`` and ``bias`` (centre, spread): ``b ~ N(centre - slope w, spread^2)``
    """

    tensors: Tensors
    noise_scale: float

    @property
    def weights(self) -> SpikeSlab:
        alpha, mu, s = (self.tensors[name] for name in ("alpha", "mu", "s"))
        return SpikeSlab(alpha, mu, s, validate_args=False)

    def linear(self, n: int, seed: int) -> dict[str, Tensor]:
        """``w: [n, p]``, ``noise_precision: [n]``."""
        precision = torch.full((n,), self.noise_scale**-2.0)
        return {"noise_precision": precision, "w": self._draw(n, seed)[0].float()}

    def logistic(self, n: int, seed: int) -> dict[str, Tensor]:
        """``w: [n, p]``, ``b: [n]``."""
        return self.logistic_with_log_prob(n, seed)[0]

    def logistic_with_log_prob(self, n: int, seed: int) -> tuple[dict[str, Tensor], Tensor]:
        """The draws, and their log density ``[n]``."""
        w, noise = self._draw(n, seed)
        centre, spread = self.tensors["bias"]
        given = Normal(centre - w @ self.tensors["slope"], spread, validate_args=False)
        b = given.loc + spread * noise
        log_prob = self.weights.log_prob(w).sum(-1) + given.log_prob(b)
        return {"w": w.float(), "b": b.float()}, log_prob

    def _draw(self, n: int, seed: int) -> tuple[Tensor, Tensor]:
        """Weights ``[n, p]`` and standard normal noise ``[n]``, float64."""
        generator = torch.Generator().manual_seed(seed)
        alpha, mu, s = (self.tensors[name] for name in ("alpha", "mu", "s"))
        like = {"generator": generator, "dtype": alpha.dtype}
        slab = mu + s * torch.randn((n, len(mu)), **like)
        on = torch.rand((n, len(mu)), **like) < alpha
        return torch.where(on, slab, torch.zeros_like(slab)), torch.randn(n, **like)
