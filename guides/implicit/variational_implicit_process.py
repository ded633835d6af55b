"""Variational implicit processes: Bayesian linear regression on functions drawn from the prior."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import pyro
import torch
from pyro import distributions as dist
from torch import Tensor, nn
from torch.distributions import Normal

from guides.core.checks import check_counts, check_numbers_given, check_two
from guides.core.course import Course
from guides.core.modes import evaluating, fitting
from guides.core.rng import kept_rng, seeded_rng
from guides.core.svi import shuffled_epochs
from guides.implicit.energy import check_alpha, gaussian_log_power
from guides.implicit.fitted import RegressionGuide, check_inputs, check_regression, remembered, warn_unsettled
from guides.implicit.processes import Functions, ImplicitProcess, as_process, check_process
from guides.posterior.draws import Posterior

#: Log variance of the noise at the start, of a target of variance 1.
START_LOG_NOISE = -5.0
#: Rows that the functions are evaluated at, at a time.
ROWS_AT_ONCE = 2000


@dataclass(frozen=True)
class Settings:
    """All of :class:`VariationalImplicitProcess` but its prior."""

    num_functions: int
    alpha: float
    noise_scale: float | None
    prior_seed: int

    def __post_init__(self) -> None:
        check_alpha(self.alpha)
        check_two(num_functions=self.num_functions)
        check_numbers_given(noise_scale=self.noise_scale)


class VariationalImplicitProcess(RegressionGuide):
    """Regression on ``S`` functions drawn from an implicit prior, once and for all (Ma, Li and Hernandez-
    Lobato 2019, "Variational Implicit Processes", ICML: VIP).

    The prior's Gaussian process is that of the draws' moments, ``f(x) = m(x) + phi(x)' a`` with
    ``a ~ N(0, I)``, ``phi_s = (f_s - m) / sqrt(S - 1)``; ``q(a)`` is a Gaussian with a full covariance, and
    everything is in closed form.  The draws keep their random numbers and follow the prior's parameters,
    which are trained with ``q(a)`` and the noise.

    Unlike the published code: nothing is standardised by rows that are held out, the noise is learned instead
    of chosen on a grid, ``q(a)`` at prediction is the one that was trained, and there is no "likelihood
    regulariser" (whose exponent there is not that of a likelihood).

    :param prior: as for :class:`~guides.implicit.SparseImplicitProcess`; parameters shared by a layer cannot
        overfit, and fit much less than those of single weights, which overfit in the end
    :param num_functions: S
    :param alpha: 0 for the evidence bound (of the Gaussian process that stands in for the prior), 1 for the
        log of the predictive density
    :param noise_scale: sd of the noise, in the units of ``y``; learned by default
    :param prior_seed: of the random numbers behind the functions
    :param site: the Pyro model's function
    :raises ValueError: for arguments out of range
    """

    def __init__(
        self,
        prior: ImplicitProcess | Callable,
        num_functions: int = 20,
        *,
        alpha: float = 0.5,
        noise_scale: float | None = None,
        prior_seed: int = 0,
        site: str = "f",
    ):
        super().__init__(Settings(num_functions, alpha, noise_scale, prior_seed))
        self.prior = as_process(prior, site)
        self._columns: int | None = None

    # ------------------------------------------------------------------------------------------------ fitting

    def fit(
        self,
        x: Tensor,
        y: Tensor,
        *,
        steps: int = 5000,
        batch_size: int = 100,
        lr: float = 5e-3,
        warm_up: float = 0.0,
        seed: int = 0,
        on_step: Callable[[int, VariationalImplicitProcess], None] | None = None,
    ) -> VariationalImplicitProcess:
        """Fits to data whose columns and target have means near 0 and sds near 1; arguments and errors as for
        :meth:`guides.implicit.SparseImplicitProcess.fit`.
        """
        course = Course(steps, lr, warm_up, seed, batch_size)
        check_regression(x, y)
        check_process(self.prior, x)
        begun = time.perf_counter()
        self._columns = x.shape[1]
        self._make_parameters(x.dtype, x.device)
        self.losses, self.facts = [], {}
        batches = shuffled_epochs((x, y), batch_size, seed)

        def loss(batch: tuple, weight: float) -> Tensor:
            rows_x, rows_y, rows = batch
            return weight * self.divergence() - rows / len(rows_x) * self.energy(rows_x, rows_y)

        with seeded_rng(seed), fitting(self):  # a prior may have dropout, of random numbers of this fit
            self._follow(course.run(self.parameters(), batches, loss), on_step)
        self.facts = {
            **asdict(course), "rows": len(x), "seconds": time.perf_counter() - begun,
            "noise_variance": self.noise_variance,
        }  # fmt: skip
        warn_unsettled(self.losses, course, len(x))
        return self

    def _make_parameters(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        size, kind = self.settings.num_functions, {"dtype": dtype, "device": device}
        self.loc = nn.Parameter(torch.zeros(size, **kind))
        self.raw_root = nn.Parameter(torch.zeros(size, size, **kind))
        self._make_noise(START_LOG_NOISE, dtype, device)

    def energy(self, x: Tensor, y: Tensor) -> Tensor:
        """Alpha energy of rows ``x: [N, d]``, ``y: [N]``: their sum, ``[]``, nats."""
        mean, variance = self._moments(x)
        noise = self.log_noise.double().exp()
        return gaussian_log_power(y.double(), mean, variance, noise, self.settings.alpha).sum()

    def divergence(self) -> Tensor:
        """``KL(q(a) || p(a))``, ``[]``, nats."""
        root = self._root()
        squares = (root**2).sum() + (self.loc.double() ** 2).sum()
        return 0.5 * (squares - len(root)) - root.diagonal().log().sum()

    def _root(self) -> Tensor:
        """Cholesky factor of the covariance of ``q(a)``; its diagonal is an exponential."""
        raw = self.raw_root.double()
        return raw.tril(-1) + raw.diagonal().exp().diag()

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``m: [N]`` and ``phi: [S, N]`` at ``x: [N, d]``, float64, by the same random numbers every time."""
        return centred(self._functions()(x))

    def _functions(self) -> Functions:
        """The prior's draws; those of a Pyro model are made at the first inputs they are asked for."""
        seed, is_drawn = self.settings.prior_seed, False
        with seeded_rng(seed), evaluating(self):
            functions = self.prior.draw(self.settings.num_functions)

        def repeatable(x: Tensor) -> Tensor:
            nonlocal is_drawn
            if not is_drawn:
                # at one row and without dropout, however many are asked for and whether this is a fit or not:
                # the numbers behind the functions are the same, and those of dropout are none of them
                with seeded_rng(seed), evaluating(self):
                    functions(x[:1])
                is_drawn = True
            return functions(x)

        return repeatable

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the function at every row, ``[N]``."""
        mean, phi = self.features(x)
        return mean + self.loc.double() @ phi, ((self._root().mT @ phi) ** 2).sum(0)

    # -------------------------------------------------------------------------------------------- predictions

    def predictive(self, x: Tensor, noise: bool = True) -> Normal:
        """The posterior predictive at ``x: [m, d]``: Normal, batch shape ``[m]``, float64.

        :param noise: of ``y``; if not, of the function
        """
        self._require_fit()
        check_inputs(x, self._columns)
        with torch.no_grad(), evaluating(self), kept_rng():  # a model may draw more than its function
            parts = [self._moments(part) for part in x.split(ROWS_AT_ONCE)]
        mean, variance = (torch.cat(column) for column in zip(*parts, strict=True))
        return Normal(mean, (variance + self._added_variance(noise)).sqrt())

    # ----------------------------------------------------------------------------------------------- as draws

    def draws(self, n: int, seed: int = 0) -> dict[str, Tensor]:
        """``{"a": [n, S]}``: independent draws of the functions' coefficients, float64."""
        check_counts(n=n)
        self._require_fit()
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(n, len(self.loc), generator=generator, dtype=torch.float64)
        with torch.no_grad():
            return {"a": self.loc.double() + noise.to(self.loc.device) @ self._root().mT}

    def posterior(self, n: int = 1000, seed: int = 0) -> Posterior:
        """``n`` independent draws as a :class:`~guides.posterior.draws.Posterior`; its model has the site
        ``a: [S]``.
        """
        scale, functions = self.noise_variance**0.5, self._functions()

        @remembered
        def features(x: Tensor) -> tuple[Tensor, Tensor]:
            with evaluating(self):
                return centred(functions(x))

        def model(x: Tensor, y: Tensor | None = None) -> Tensor:
            zeros = torch.zeros(self.settings.num_functions, dtype=torch.float64, device=x.device)
            a = pyro.sample("a", dist.Normal(zeros, 1.0).to_event(1))
            mean, phi = features(x)
            output = mean + a @ phi
            with pyro.plate("data", len(x)):
                pyro.sample("y", dist.Normal(output, scale), obs=y)
            return output

        return self._posterior(model, self.draws(n, seed), "variational implicit process", seed)

    # ---------------------------------------------------------------------------------------------- in a file

    @classmethod
    def load(
        cls, path: str | Path, prior: ImplicitProcess | Callable, *, site: str = "f"
    ) -> VariationalImplicitProcess:
        """What :meth:`save` wrote; as :meth:`guides.implicit.SparseImplicitProcess.load`."""
        return cls._load(path, prior, site=site)

    def _make_room(self, state: dict[str, Tensor], layout: dict) -> None:
        self._columns = layout.get("columns")  # of an older file: not known
        if "loc" in state:
            self._make_parameters(state["loc"].dtype)

    def get_extra_state(self) -> dict:
        return super().get_extra_state() | {"columns": self._columns}


def centred(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean ``[N]`` of functions ``[S, N]``, and what they add to it, ``[S, N]``: their sample covariance is
    ``phi' phi``; float64.
    """
    values = values.double()
    mean = values.mean(0)
    return mean, (values - mean) / math.sqrt(len(values) - 1)
