"""A posterior as draws of a Pyro model's latent sites, and the predictive distributions that follow from it.

Every method of this package ends here, so that all are asked the same questions: ``draws``, ``predictive``,
``function``, ``log_likelihood``, ``to_arviz``, ``save`` and ``load``.  How to get there:

* a variational guide: :meth:`Posterior.from_guide`;
* probabilistic backpropagation, VARBVS, an enumeration, a closed form: ``result.posterior(n, seed)``;
* a Markov chain, NUTS or Gibbs: ``result.posterior(model)``;
* an ensemble is one already, and any other draws are with :meth:`Posterior.from_draws`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from guides.core.checks import check_counts
from guides.posterior.evaluate import as_taken, log_likelihood, observed_laws, prior_draws, replicates
from guides.posterior.predictive import empirical, function_values, mixture

#: Sites that a posterior names when it is printed.
SHOWN = 5


@dataclass(frozen=True, repr=False)
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
    def from_draws(
        cls, model: Callable, draws: Mapping[str, Tensor | np.ndarray], info: dict | None = None
    ) -> Posterior:
        """From draws ``{name: [draws, *site]}`` that form one chain."""
        chain = {name: torch.as_tensor(value).unsqueeze(0) for name, value in draws.items()}
        return cls(model, chain, info or {})

    @classmethod
    def from_guide(cls, guide, n: int = 1000, seed: int = 0) -> Posterior:
        """From ``n`` independent draws of a fitted variational guide, for the model that it was built on.

        :param guide: one of this package; of others see :meth:`from_draws`
        :raises TypeError: for a guide of others
        """
        if not hasattr(guide, "draws"):
            kind = type(guide).__name__
            raise TypeError(
                f"{kind} is no guide of this package: take Posterior.from_draws(model, draws) with draws "
                "{site: [n, ...]}, as Pyro's Predictive(guide, num_samples=n) returns them"
            )
        info = {"method": type(guide).__name__, "draw_seed": seed}
        return cls.from_draws(guide.model, guide.draws(n, seed=seed), info)

    def __len__(self) -> int:
        chains, draws = next(iter(self.sites.values())).shape[:2]
        return chains * draws

    def __repr__(self) -> str:
        """``Posterior(nuts: 2 chains of 600 draws; w [3], b [])``"""
        if not self.sites:
            return "Posterior(no draws)"
        chains, draws = next(iter(self.sites.values())).shape[:2]
        count = f"{draws} draws" if chains == 1 else f"{chains} chains of {draws} draws"
        sites = [f"{name} {list(value.shape[2:])}" for name, value in self.sites.items()]
        more = [f"{len(sites) - SHOWN} more"] if len(sites) > SHOWN else []
        return f"Posterior({self.info.get('method', 'draws')}: {count}; {', '.join(sites[:SHOWN] + more)})"

    def draws(self, n: int | None = None) -> dict[str, Tensor]:
        """``{name: [n, *site]}``: all draws, chains merged, or ``n`` of them evenly spaced.

        :raises ValueError: when more draws are asked for than there are, or none
        """
        merged = {name: value.flatten(0, 1) for name, value in self.sites.items()}
        if n is None:
            return merged
        check_counts(n=n)
        if n == len(self):
            return merged
        if n > len(self):
            raise ValueError(f"the posterior holds {len(self)} draws, {n} were asked for")
        keep = torch.linspace(0, len(self) - 1, n).round().long()
        return {name: value[keep] for name, value in merged.items()}

    def function(self, *args, site: str | None = None, n: int | None = None, **kwargs) -> Tensor:
        """Noiseless function values at the model's arguments, ``[n, N]``, for ``K`` classes ``[n, N, K]``.

        The mean of a Gaussian likelihood, the log-odds of a Bernoulli, each class's log-odds
        ``log p_k - log(1 - p_k)`` of a categorical one, the mean of any other (the centre of Student's), the
        value of a ``pyro.deterministic`` site.

        :param args: the model's arguments without data: tensors, NumPy arrays, or tables of pandas, which
            stay tables for a model that reads them
        :param site: the observed (or deterministic) site that is meant; needed where the model has several
        :raises ValueError: when there is no such site, or several; draws of a site that the model does not
            have; a plate of which every run takes other rows
        """
        return function_values(self._laws(args, kwargs, site, n))

    def predictive(
        self, *args, noise: bool = True, site: str | None = None, n: int | None = None, **kwargs
    ) -> Distribution:
        """The posterior predictive at the model's arguments (without data), batch shape ``[N]``.

        With ``noise``: a mixture of the draws' Gaussians, the Bernoulli or Categorical of the *averaged
        probabilities*, the mixture of the draws' laws for any other likelihood, and where the outputs of a
        row are one event (``to_event``) in a plate, whose dependence it keeps.  Without, and for a
        ``pyro.deterministic`` site: the empirical law of :meth:`function`.  Arguments as there.
        """
        laws = self._laws(args, kwargs, site, n)
        return mixture(laws) if noise else empirical(function_values(laws))

    def log_likelihood(
        self, *args, observed_data: Mapping[str, Tensor | np.ndarray], n: int | None = None, **kwargs
    ) -> dict[str, Tensor]:
        """``{site: [n, N]}``, nats: what every draw gives to every observation, to an event as a whole.

        A site that has neither draws nor data here, a local latent value of new rows or an observed site
        that others depend on, is drawn anew in every run, and the figures are given its value: they differ
        from call to call.

        :param args: the model's arguments without data: tensors, or NumPy arrays
        :param observed_data: ``{observed site: its data}``
        :raises TypeError: for data that are not named by their site
        :raises ValueError: for a site that the model does not have, or data of another shape than it gives
        """
        _check_data(observed_data)
        draws = self.draws(n)
        args, kwargs = as_taken(self.model, draws, args, kwargs)
        return log_likelihood(self.model, draws, observed_data, *args, **kwargs)

    def _laws(self, args: tuple, kwargs: dict, site: str | None, n: int | None) -> Distribution:
        draws = self.draws(n)
        if not draws:
            raise ValueError("the posterior holds no site: there is nothing to predict from")
        args, kwargs = as_taken(self.model, draws, args, kwargs)
        return observed_laws(self.model, draws, *args, site=site, **kwargs)

    def to_arviz(
        self,
        *args,
        observed_data: Mapping[str, Tensor | np.ndarray] | None = None,
        prior: int = 0,
        dims: Mapping[str, Sequence[str]] | None = None,
        coords: Mapping[str, Sequence] | None = None,
        **kwargs,
    ):
        """An ArviZ object: ``posterior``, and with the model's arguments and data also
        ``posterior_predictive``, ``log_likelihood`` and ``observed_data``.

        One number an observation in ``log_likelihood``: an event (``to_event``) counts as one, as in Pyro.
        Replicates and prior draws consume torch's global random numbers.

        :param args: the model's arguments (inputs), as for :meth:`predictive`
        :param observed_data: ``{observed site: its data}``, one site or several
        :param prior: draws for the groups ``prior`` and ``prior_predictive``
        :param dims: site -> names of its dimensions after chain and draw; of an observed site, those of an
            observation come first
        :param coords: name of a dimension -> labels
        :raises TypeError: for data that are not named by their site
        :raises ValueError: for a site that the model does not have, or data of another shape than it gives
        """
        from guides.posterior.arviz_io import to_arviz

        groups = self.groups(*args, observed_data=observed_data, prior=prior, **kwargs)
        posterior = {name: value.detach().cpu().numpy() for name, value in self.sites.items()}
        stats = dict(self.sample_stats) or None
        return to_arviz(posterior, sample_stats=stats, attrs=self.info, dims=dims, coords=coords, **groups)

    def groups(
        self,
        *args,
        observed_data: Mapping[str, Tensor | np.ndarray] | None = None,
        prior: int = 0,
        **kwargs,
    ) -> dict[str, dict[str, np.ndarray]]:
        """What :meth:`to_arviz` adds to the draws, ``{group: {site: array}}``; arguments as there."""
        if observed_data is not None:
            _check_data(observed_data)
        draws, groups = self.draws(), {}
        args, kwargs = as_taken(self.model, draws, args, kwargs)
        predicted = list(observed_data or {})
        if observed_data:
            likelihoods = log_likelihood(self.model, draws, observed_data, *args, **kwargs)
            new_data = replicates(self.model, draws, predicted, *args, **kwargs)
            groups["log_likelihood"] = self._by_chain(likelihoods)
            groups["posterior_predictive"] = self._by_chain(new_data)
            groups["observed_data"] = {name: np.asarray(data) for name, data in observed_data.items()}
        if prior:
            latent, data = prior_draws(self.model, list(self.sites), predicted, prior, *args, **kwargs)
            groups["prior"] = {name: value[None].numpy() for name, value in latent.items()}
            groups["prior_predictive"] = {name: value[None].numpy() for name, value in data.items()}
        return groups

    def _by_chain(self, merged: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
        chains = next(iter(self.sites.values())).shape[0]
        return {
            name: value.reshape(chains, -1, *value.shape[1:]).cpu().numpy() for name, value in merged.items()
        }

    def save(self, path: str | Path, *args, **kwargs) -> None:
        """Writes :meth:`to_arviz` (arguments as there) as netCDF; the file is whole or not there at all.

        What the model has learned without a prior (``pyro.param``, ``pyro.module``) is no draw and is not in
        the file: save Pyro's store, or the module's ``state_dict``, too.  What :meth:`load` gives predicts by
        the values of its day.
        """
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


def _check_data(observed_data: object) -> None:
    """:raises TypeError: for data that are not named by their site"""
    if not isinstance(observed_data, Mapping):
        kind = type(observed_data).__name__
        raise TypeError(f"observed_data takes {{observed site: its data}}, as in {{'y': y}}, not a {kind}")
