"""A posterior as draws of a Pyro model's latent sites, and the predictive distributions that follow from it.

Every method of this package ends here, so that all are asked the same questions: ``draws``, ``predictive``,
``function``, ``to_arviz``, ``save`` and ``load``.  How to get there:

* a variational guide: :meth:`Posterior.from_guide`;
* probabilistic backpropagation, VARBVS, an enumeration, a closed form: ``result.posterior(n, seed)``;
* a Markov chain, NUTS or Gibbs: ``result.posterior(model)``;
* an ensemble is one already, and any other draws are with :meth:`Posterior.from_draws`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from guides.posterior.evaluate import empirical, function_values, mixture, observed_laws


@dataclass(frozen=True)
class Posterior:
    """Draws of every latent site of a model.

    :param model: the Pyro model, called as ``model(*args)`` without its data to predict
    :param sites: ``{name: [chains, draws, *site]}``; a method that is no MCMC has one chain
    :param info: what a reader needs to trust it (method, seed, settings, versions), JSON-safe
    :param sample_stats: ``{name: [chains, draws, ...]}``, MCMC only
    """

    model: Callable
    sites: Mapping[str, Tensor]
    info: dict = field(default_factory=dict)
    sample_stats: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def from_draws(cls, model: Callable, draws: Mapping[str, Tensor], info: dict | None = None) -> Posterior:
        """From draws ``{name: [draws, *site]}`` that form one chain."""
        return cls(model, {name: value.unsqueeze(0) for name, value in draws.items()}, info or {})

    @classmethod
    def from_guide(cls, guide, n: int = 1000, seed: int = 0) -> Posterior:
        """From ``n`` independent draws of a fitted variational guide, for the model that it was built on."""
        info = {"method": type(guide).__name__, "draw_seed": seed}
        return cls.from_draws(guide.model, guide.draws(n, seed=seed), info)

    def __len__(self) -> int:
        chains, draws = next(iter(self.sites.values())).shape[:2]
        return chains * draws

    def draws(self, n: int | None = None) -> dict[str, Tensor]:
        """``{name: [n, *site]}``: all draws, chains merged, or ``n`` of them evenly spaced.

        :raises ValueError: when more draws are asked for than there are
        """
        merged = {name: value.flatten(0, 1) for name, value in self.sites.items()}
        if n is None or n == len(self):
            return merged
        if not 0 < n <= len(self):
            raise ValueError(f"the posterior holds {len(self)} draws, {n} were asked for")
        keep = torch.linspace(0, len(self) - 1, n).round().long()
        return {name: value[keep] for name, value in merged.items()}

    def function(self, *args, n: int | None = None, **kwargs) -> Tensor:
        """Noiseless function values at the model's arguments, ``[n, N]``, for ``K`` classes ``[n, N, K]``.

        The mean of a Gaussian likelihood, the log-odds of a Bernoulli, each class's log-odds
        ``log p_k - log(1 - p_k)`` of a categorical one.
        """
        return function_values(observed_laws(self.model, self.draws(n), *args, **kwargs))

    def predictive(self, *args, noise: bool = True, n: int | None = None, **kwargs) -> Distribution:
        """The posterior predictive at the model's arguments (without data), batch shape ``[N]``.

        With ``noise``: a mixture of the draws' Gaussians, or the Bernoulli or Categorical of the *averaged
        probabilities*.  Without: the empirical law of :meth:`function`.
        """
        laws = observed_laws(self.model, self.draws(n), *args, **kwargs)
        return mixture(laws) if noise else empirical(function_values(laws))

    def to_arviz(self, *args, observed_data: Mapping[str, Tensor] | None = None, **kwargs):
        """An ArviZ object: ``posterior``, and with the model's arguments and data also
        ``posterior_predictive``, ``log_likelihood`` and ``observed_data``.

        :param args: the model's arguments (inputs), as for :meth:`predictive`
        :param observed_data: ``{observed site: [N]}``
        """
        from guides.posterior.arviz_io import to_arviz

        chains = next(iter(self.sites.values())).shape[0]
        groups = {}
        if observed_data:
            laws = observed_laws(self.model, self.draws(), *args, **kwargs)
            name, data = next(iter(observed_data.items()))
            with torch.no_grad():
                likelihood, replicates = laws.log_prob(data), laws.sample()

            def split(merged: Tensor) -> dict[str, np.ndarray]:
                return {name: merged.reshape(chains, -1, *merged.shape[1:]).numpy()}

            groups = {
                "log_likelihood": split(likelihood),
                "posterior_predictive": split(replicates),
                "observed_data": {name: np.asarray(data)},
            }
        posterior = {name: value.detach().cpu().numpy() for name, value in self.sites.items()}
        return to_arviz(posterior, sample_stats=dict(self.sample_stats) or None, attrs=self.info, **groups)

    def save(self, path: str | Path, *args, **kwargs) -> None:
        """Writes :meth:`to_arviz` as netCDF; the file is complete or not there at all."""
        from guides.posterior.arviz_io import save_netcdf

        save_netcdf(self.to_arviz(*args, **kwargs), path)

    @classmethod
    def load(cls, path: str | Path, model: Callable) -> Posterior:
        """Reads what :meth:`save` wrote; :raises ValueError: naming a damaged file."""
        from guides.posterior.arviz_io import arrays_of, decode_attrs, load_netcdf

        idata = load_netcdf(path)
        sites = {name: torch.as_tensor(value) for name, value in arrays_of(idata, "posterior").items()}
        info = decode_attrs(idata)
        info.pop("is_mcmc", None)  # says how many chains there are, for ArviZ
        return cls(model, sites, info, arrays_of(idata, "sample_stats"))
