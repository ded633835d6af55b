"""Functional Bayesian neural networks: the divergence from the prior is measured between functions."""

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
from torch.distributions import Distribution, Normal

from guides.core.checks import check_counts, check_numbers, check_numbers_given, check_two
from guides.core.course import Course
from guides.core.modes import evaluating, fitting
from guides.core.rng import seeded_rng
from guides.core.svi import DivergenceError, shuffled_epochs
from guides.implicit.energy import gaussian_log_power, power_mean
from guides.implicit.evidence import START_LOG_NOISE, fit_by_evidence
from guides.implicit.fitted import RegressionGuide, check_inputs, check_regression, warn_unsettled
from guides.implicit.gaussian_process import GaussianProcess
from guides.implicit.processes import FunctionSite, ImplicitProcess, as_process, check_process
from guides.implicit.stein import stein_score
from guides.posterior.draws import Posterior
from guides.posterior.predictive import mixture

#: Rows that the drawn functions are evaluated at, at a time.
ROWS_AT_ONCE = 2000


@dataclass(frozen=True)
class Settings:
    """All of :class:`FunctionalBNN` but its processes."""

    num_particles: int
    num_measured: int
    injected_noise: float
    noise_scale: float | None

    def __post_init__(self) -> None:
        check_counts(num_measured=self.num_measured)
        check_numbers(injected_noise=self.injected_noise)
        check_two(num_particles=self.num_particles)
        check_numbers_given(noise_scale=self.noise_scale)


class FunctionalBNN(RegressionGuide):
    """Regression by a network with random weights, whose *functions* are kept near those of a prior (Sun,
    Zhang, Shi and Grosse 2019, "Functional Variational Bayesian Neural Networks", ICLR: fBNN).

    The divergence between the values of both processes at the rows of a minibatch and at inputs drawn
    uniformly from the box around the training rows is never computed, only its gradient, from the scores of
    the two laws: those of drawn functions by :func:`~guides.implicit.stein.stein_score`, that of a
    :class:`~guides.implicit.GaussianProcess` in closed form.  Both laws get white noise first, without which
    they have no density.

    Unlike the published code: the divergence counts once for all N rows and not once for every minibatch of
    B; the box, like the standardisation, knows nothing of held-out rows; the
    estimator keeps its number of eigenfunctions for no later law; and a network prior is fitted to the data
    too, as the Gaussian process is (by the evidence of the Gaussian process with its moments), where the
    published training of its parameters does nothing.

    The objective is no bound on the evidence.  It would be one if every training row were measured; a step
    measures its own rows and ``num_measured`` more, where the divergence is smaller as a rule, so that the
    data count too much.  And the estimated gradient has a bias that grows with the inputs that are measured.

    :param network: the posterior: a Pyro model ``network(x)`` with a ``pyro.deterministic`` site of its
        function's values ``[N]``, and a torch module whose parameters are the posterior's, the means and sds
        of weights say (:class:`zoo.models.BNNProcess`)
    :param prior: a :class:`~guides.implicit.GaussianProcess`, an implicit process, or a Pyro model as for
        :class:`~guides.implicit.SparseImplicitProcess`; fitted to the data first if it is a torch module
    :param num_particles: functions drawn in a step, of either law
    :param num_measured: inputs drawn in a step
    :param injected_noise: sd of that white noise, in the units of ``y``
    :param noise_scale: sd of the noise, in the units of ``y``; learned by default
    :param site: of the function in both Pyro models
    :raises ValueError: for arguments out of range

    :ivar losses: minus the expected log likelihood at every step, nats, for the whole data: the divergence
        has a gradient and no value
    """

    def __init__(
        self,
        network: nn.Module,
        prior: ImplicitProcess | GaussianProcess | Callable,
        *,
        num_particles: int = 100,
        num_measured: int = 10,
        injected_noise: float = 0.01,
        noise_scale: float | None = None,
        site: str = "f",
    ):
        if not isinstance(network, nn.Module):
            raise ValueError("network must be a torch module: its parameters are the posterior's")
        super().__init__(Settings(num_particles, num_measured, injected_noise, noise_scale))
        self.network = network
        self.prior = as_process(prior, site)
        self.__dict__["_model"] = FunctionSite(network, site)  # whose parameters are counted once
        self._columns = 0

    # ------------------------------------------------------------------------------------------------ fitting

    def fit(
        self,
        x: Tensor,
        y: Tensor,
        *,
        steps: int = 5000,
        batch_size: int = 20,
        lr: float = 5e-3,
        warm_up: float = 0.2,
        prior_steps: int = 300,
        prior_lr: float = 2e-2,
        seed: int = 0,
        on_step: Callable[[int, FunctionalBNN], None] | None = None,
    ) -> FunctionalBNN:
        """Fits to data whose columns and target have means near 0 and sds near 1; arguments and errors as for
        :meth:`guides.implicit.SparseImplicitProcess.fit`, but that the network goes on from the parameters it
        has, as the prior does: a second fit is another one, whatever the seed.

        :param batch_size: rows of a step; the scores are estimated at so many inputs and ``num_measured``
        :param prior_steps: of the prior's own fit before; 0 leaves it as it is
        :param prior_lr: first learning rate there
        :returns: this object; warns (:class:`~guides.core.settling.UnsettledWarning`) where minus the log
            likelihood, which ``losses`` are, still fell by 0.02 nats a row in the last tenth of the learning
        """
        course = Course(steps, lr, warm_up, seed, batch_size)
        check_regression(x, y)
        for process in (self._model, self._drawn, self.prior):
            check_process(process, x)
        begun = time.perf_counter()
        with seeded_rng(seed), fitting(self):  # the network and the prior may have dropout
            prior_noise = math.nan
            if prior_steps:
                prior_noise = self._fit_prior(x, y, steps=prior_steps, lr=prior_lr, seed=seed)
            self._make_parameters(x.shape[1], x.dtype, x.device)
            self.losses, self.facts = [], {}
            box = x.amin(0), x.amax(0)
            own = (self.log_noise, *self.network.parameters())
            batches = shuffled_epochs((x, y), batch_size, seed)

            def loss(batch: tuple, weight: float) -> Tensor:
                return self._loss(box, *batch, weight)

            self._follow(course.run(own, batches, loss), on_step)
        self.facts = {
            **asdict(course), "prior_steps": prior_steps, "prior_lr": prior_lr, "rows": len(x),
            "seconds": time.perf_counter() - begun, "noise_variance": self.noise_variance,
            **({} if math.isnan(prior_noise) else {"noise_variance_of_prior": prior_noise}),
        }  # fmt: skip
        warn_unsettled(self.losses, course, len(x))
        return self

    def _fit_prior(self, x: Tensor, y: Tensor, **options: float) -> float:
        try:
            return fit_by_evidence(self.prior, x, y, **options)
        except torch.linalg.LinAlgError as error:
            raise DivergenceError(f"the prior's own fit: {error}; lower prior_lr") from error

    def _make_parameters(self, columns: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        self._columns = columns
        self._make_noise(START_LOG_NOISE, dtype, device)

    def _loss(self, box: tuple[Tensor, Tensor], x: Tensor, y: Tensor, rows: int, weight: float) -> Tensor:
        """Minus the expected log likelihood, with the divergence in its gradient alone."""
        low, high = box
        more = low + (high - low) * torch.rand(self.settings.num_measured, len(low)).to(x)
        measured = torch.cat((x, more))
        f = self._functions()(measured)
        noise, values = self.log_noise.double().exp(), f[:, : len(x)].double()
        terms = gaussian_log_power(y.double(), values, torch.zeros_like(values), noise, 0.0)
        return weight * self._divergence(f, measured) - rows / len(x) * power_mean(terms, 0.0).sum()

    def _divergence(self, f: Tensor, x: Tensor) -> Tensor:
        """Of the laws at ``x: [N, d]``, from values ``f: [S, N]`` of the network: 0, with its gradient."""
        surrogate = (self._score(f.detach(), x) * f).sum(1).mean()
        return surrogate - surrogate.detach()

    def _score(self, f: Tensor, x: Tensor) -> Tensor:
        """Gradient of ``log q - log p`` at functions ``f: [S, N]`` drawn from q."""
        sd = self.settings.injected_noise
        noisy = f + sd * torch.randn_like(f)
        own = stein_score(noisy)
        if isinstance(self.prior, GaussianProcess):
            with torch.no_grad():
                return own - self.prior.score(noisy, x, sd**2)
        with torch.no_grad(), evaluating(self.prior):  # whose own fit is over
            drawn = self.prior.draw(self.settings.num_particles)(x).to(f)
        return own - stein_score(drawn + sd * torch.randn_like(drawn), noisy)

    @property
    def _drawn(self) -> ImplicitProcess:
        """What gives the functions of a step: the network itself, if it draws many at once."""
        return self.network if hasattr(self.network, "draw") else self._model

    def _functions(self) -> Callable[[Tensor], Tensor]:
        return self._drawn.draw(self.settings.num_particles)

    # -------------------------------------------------------------------------------------------- predictions

    def predictive(
        self, x: Tensor, noise: bool = True, *, num_samples: int = 500, seed: int = 0
    ) -> Distribution:
        """The posterior predictive at ``x: [m, d]``: a mixture of Normals, one a drawn network, batch shape
        ``[m]``, float64.

        :param noise: of ``y``; if not, of the function
        """
        check_counts(num_samples=num_samples)
        self._require_fit()
        check_inputs(x, self._columns)
        posterior = self.posterior(num_samples, seed)
        f = torch.cat([posterior.function(part) for part in x.split(ROWS_AT_ONCE)], 1).double()
        return mixture(Normal(f, torch.full_like(f, self._added_variance(noise) ** 0.5)))

    # ----------------------------------------------------------------------------------------------- as draws

    def draws(self, n: int, seed: int = 0) -> dict[str, Tensor]:
        """``{site: [n, *site]}``: independent draws of the network's latent sites."""
        check_counts(n=n)
        self._require_fit()
        like = next(self.network.parameters())
        x = torch.zeros(2, self._columns, dtype=self.log_noise.dtype, device=like.device)
        with torch.no_grad(), seeded_rng(seed), evaluating(self):
            return self._model.latent(n, x)

    def posterior(self, n: int = 500, seed: int = 0) -> Posterior:
        """``n`` draws as a :class:`~guides.posterior.draws.Posterior` of the network with its noise."""
        scale, network, site = self.noise_variance**0.5, self.network, self._model.site

        def model(x: Tensor, y: Tensor | None = None) -> Tensor:
            with evaluating(network):
                trace = pyro.poutine.trace(network).get_trace(x)
            f = trace.nodes[site]["value"].double()
            with pyro.plate("data", len(x)):
                pyro.sample("y", dist.Normal(f, scale), obs=y)
            return f

        return self._posterior(model, self.draws(n, seed), "functional BNN", seed)

    # ---------------------------------------------------------------------------------------------- in a file

    @classmethod
    def load(
        cls,
        path: str | Path,
        network: nn.Module,
        prior: ImplicitProcess | GaussianProcess | Callable,
        *,
        site: str = "f",
    ) -> FunctionalBNN:
        """What :meth:`save` wrote; as :meth:`guides.implicit.SparseImplicitProcess.load`."""
        return cls._load(path, network, prior, site=site)

    def _make_room(self, state: dict[str, Tensor], layout: dict) -> None:
        if "log_noise" in state:
            self._make_parameters(layout["columns"], state["log_noise"].dtype)

    def get_extra_state(self) -> dict:
        return super().get_extra_state() | {"columns": self._columns}
