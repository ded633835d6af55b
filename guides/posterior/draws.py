"""A posterior as draws of a Pyro model's latent sites, and the predictive distributions that follow from it.

Every method of this package ends here, so that all are asked the same questions: ``draws``, ``predictive``,
``function`` and ``to_arviz``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyro
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily, Normal

from guides.core.distributions import base_prior


@dataclass(frozen=True)
class Posterior:
    """Draws of every latent site of a model.

    :param model: the Pyro model, called as ``model(*args)`` without its data to predict
    :param sites: ``{name: [chains, draws, *site]}``; a method that is no MCMC has one chain
    :param info: what a reader needs to trust it (method, seed, settings, versions), JSON-safe
    :param sample_stats: ``{name: [chains, draws]}``, MCMC only
    """

    model: Callable
    sites: Mapping[str, Tensor]
    info: dict = field(default_factory=dict)
    sample_stats: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def from_draws(cls, model: Callable, draws: Mapping[str, Tensor], info: dict | None = None) -> Posterior:
        """From draws ``{name: [draws, *site]}`` that form one chain."""
        return cls(model, {name: value.unsqueeze(0) for name, value in draws.items()}, info or {})

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
        from guides.posterior.arviz_io import decode_attrs, load_netcdf

        idata = load_netcdf(path)
        group = idata["posterior"]
        sites = {str(name): torch.as_tensor(group[name].values) for name in group.data_vars}
        return cls(model, sites, decode_attrs(idata))


def observed_laws(
    model: Callable, draws: Mapping[str, Tensor], *args, site: str | None = None, **kwargs
) -> Distribution:
    """The likelihood of every draw: one elementwise distribution with batch shape ``[S, N]``.

    :param draws: ``{name: [S, *site]}``
    :param site: name of the site to predict; needed only when the model has several
    :raises ValueError: when there is no such site, or several
    :raises NotImplementedError: for a likelihood that is not Gaussian, Bernoulli or Categorical
    """
    size = len(next(iter(draws.values())))
    laws = []
    with torch.no_grad(), pyro.validation_enabled(False), poutine.block():
        for i in range(size):
            values = {name: value[i] for name, value in draws.items()}
            trace = poutine.trace(poutine.condition(model, values)).get_trace(*args, **kwargs)
            if site is None:
                site = _predicted_site(trace, draws)
            laws.append(base_prior(trace.nodes[site]["fn"]))
    first = laws[0]
    shape = first.batch_shape
    if isinstance(first, dist.Normal):
        return Normal(
            *(torch.stack([getattr(law, p).expand(shape) for law in laws]) for p in ("loc", "scale"))
        )
    if isinstance(first, (dist.Bernoulli, dist.Categorical)):
        return type(first)(logits=torch.stack([law.logits for law in laws]))
    raise NotImplementedError(
        f"site {site!r}: no closed-form predictive for {type(first).__name__}; use pyro.infer.Predictive"
    )


def _predicted_site(trace: poutine.Trace, draws: Mapping[str, Tensor]) -> str:
    names = [
        name
        for name, node in trace.nodes.items()
        if node["type"] == "sample" and name not in draws and not site_is_subsample(node)
    ]
    if len(names) != 1:
        raise ValueError(f"one site to predict is needed, the model has {names or 'none'}: pass site=NAME")
    return names[0]


def function_values(laws: Distribution) -> Tensor:
    """See :meth:`Posterior.function`: ``[S, N]`` or ``[S, N, K]``."""
    if isinstance(laws, Normal):
        return laws.loc
    if isinstance(laws, dist.Bernoulli):
        return laws.logits
    log_probs = laws.logits
    others = [
        torch.cat((log_probs[..., :k], log_probs[..., k + 1 :]), -1).logsumexp(-1)
        for k in range(log_probs.shape[-1])
    ]
    return log_probs - torch.stack(others, -1)


def mixture(laws: Distribution) -> Distribution:
    """The equal mixture over draws of laws with batch shape ``[S, N]``; batch shape ``[N]``."""
    if isinstance(laws, Normal):
        size = laws.loc.shape[0]
        weights = Categorical(torch.ones(size, dtype=laws.loc.dtype).expand(*laws.loc.shape[1:], size))
        components = Normal(laws.loc.movedim(0, -1), laws.scale.movedim(0, -1), validate_args=False)
        return MixtureSameFamily(weights, components, validate_args=False)
    return type(laws)(probs=laws.probs.mean(0))


def empirical(values: Tensor) -> dist.Empirical:
    """The law that puts equal weight on ``S`` values ``[S, N, ...]``; batch shape ``[N]``."""
    samples = values.movedim(0, 1)
    return dist.Empirical(samples, torch.zeros(samples.shape[:2], dtype=samples.dtype))
