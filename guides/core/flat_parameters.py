"""A fitted mean-field law over named sites: its parameters, and what one may ask of it.

All parameters live in flat vectors (one optimiser step for the whole guide), as ordinary ``nn.Parameter``s;
in Pyro's store they have names that belong to one guide alone (:mod:`guides.core.store_names`).
"""

from __future__ import annotations

from dataclasses import asdict

import torch
from pyro import distributions as dist
from torch import Tensor, nn
from torch.distributions import ExpTransform, Transform

from guides.core.checks import check_counts
from guides.core.distributions import SpikeSlab
from guides.core.sites import Site, site_views


class FlatParameters(nn.Module):
    """Independent Gaussians (or spikes and slabs) for every element of every site, in unconstrained space.

    :ivar sites: ``{name: Site}``, in the order of the flat vectors; spike-and-slab sites come first
    :ivar observed: names of the sites that had data when the guide was set up
    """

    loc: nn.Parameter
    log_scale: nn.Parameter

    def __init__(self) -> None:
        """Of a module that is initialised already."""
        self.sites: dict[str, Site] = {}
        self.observed: list[str] = []
        self._transforms: dict[str, Transform] = {}
        self._moving_supports: set[str] = set()

    @property
    def has_parameters(self) -> bool:
        return bool(self._parameters)

    def _views(self, loc: Tensor, log_scale: Tensor) -> dict[str, tuple[Tensor, ...]]:
        """Per site ``(loc, log_scale)``, then its inclusion logits if any, each ``[*batch, *event]``."""
        sites = self.sites.values()
        views = zip(site_views(sites, loc), site_views(sites, log_scale), strict=True)
        return dict(zip(self.sites, views, strict=True))

    def _detached(self) -> dict[str, tuple[Tensor, ...]]:
        if not self.has_parameters:
            raise RuntimeError(
                "the guide has no parameters yet: call guide.setup(*args) with the model's arguments"
            )
        return self._views(**{name: parameter.detach() for name, parameter in self._parameters.items()})

    def _transform(self, site: Site) -> Transform:
        """From unconstrained space to the site's support."""
        if site.family == "lognormal":
            return ExpTransform()
        if site.name in self._moving_supports:
            raise RuntimeError(
                f"site {site.name!r}: its support depends on other latent sites; draw it with "
                "pyro.infer.Predictive(model, guide=guide, ...), which runs the model"
            )
        if site.name not in self._transforms:
            raise RuntimeError(
                f"site {site.name!r}: call guide.setup(*args) with the model's arguments after loading, "
                "so that the guide learns the site's support (what was loaded stays)"
            )
        return self._transforms[site.name]

    # ------------------------------------------------------------------------------------------------------
    # Looking at the fit

    def draws(self, n: int, *, seed: int | None = None) -> dict[str, Tensor]:
        """Independent draws of every latent site, ``{name: [n, *site]}``, exact zeros included.

        :param seed: makes the draws repeatable without touching torch's global generator
        """
        check_counts(n=n)
        parameters = self._detached()
        generator = self._generator(seed)
        return self._draw(parameters, n, generator)

    def _draw(self, parameters: dict, n: int, generator: torch.Generator) -> dict[str, Tensor]:
        """:meth:`draws` from the parameters of every site: its means may have ``n`` in front."""
        result = {}
        for name, (loc, log_scale, *inclusion) in parameters.items():
            like = {"generator": generator, "dtype": loc.dtype, "device": loc.device}
            value = loc + log_scale.exp() * torch.randn((n, *log_scale.shape), **like)
            if inclusion:
                probs = self._inclusion_of_draws(name, inclusion, n, generator)
                uniform = torch.rand(value.shape, **like)
                value = torch.where(uniform < probs, value, torch.zeros_like(value))
            result[name] = self._constrain(name, value)
        return result

    def _generator(self, seed: int | None) -> torch.Generator:
        """Of a seed; without one, of a seed drawn from torch's global generator."""
        generator = torch.Generator(self.loc.device)
        generator.manual_seed(int(torch.randint(2**62, ())) if seed is None else seed)
        return generator

    def draws_with_log_prob(self, n: int, *, seed: int | None = None) -> tuple[dict[str, Tensor], Tensor]:
        """:meth:`draws`, and for each of them what to divide by in an importance ratio, ``log q``, ``[n]``.

        Guides without a tractable density return the density of the draw together with its auxiliary
        variables: the mean of ``exp(-log q)`` over those is ``1 / q(draw)``, so that weights are unbiased.

        Elements that the model masks (``poutine.mask``, ``obs_mask``) count here and in
        :func:`guides.posterior.log_joint`, and neither in the model's own trace nor in the bound.
        """
        draws = self.draws(n, seed=seed)
        return draws, self.log_prob(draws)

    def _inclusion_of_draws(
        self, name: str, inclusion: list[Tensor], n: int, generator: torch.Generator
    ) -> Tensor:
        """Probabilities with which the elements of ``n`` draws are on, ``[*site]`` or one a draw.

        :param inclusion: what :meth:`_views` gives for the site after ``(loc, log_scale)``, logits first
        """
        return torch.sigmoid(inclusion[0])

    def _constrain(self, name: str, unconstrained: Tensor) -> Tensor:
        site = self.sites[name]
        return self._transform(site)(unconstrained) if site.is_transformed else unconstrained

    def site_distribution(self, name: str) -> dist.TorchDistribution:
        """The fitted law of one site as an ordinary distribution with batch shape ``[*batch, *event]``;
        for a site with a constrained support, the law of the unconstrained value.
        """
        return elementwise_law(*self._detached()[name])

    @torch.no_grad()
    def mean_of_site(self, name: str) -> Tensor:
        """The posterior mean of one site, ``[*site]``.

        :raises NotImplementedError: where it has no closed form; take that of draws
        """
        if self.sites[name].is_transformed:
            raise NotImplementedError(f"site {name!r}: the mean of a constrained value has no closed form")
        return self.site_distribution(name).mean.clone()

    def log_prob(self, draws: dict[str, Tensor]) -> Tensor:
        """``log q`` of draws ``{name: [n, *site]}``, shape ``[n]``."""
        total: Tensor | float = 0.0
        for name in self.sites:
            total = total + self._log_prob_of_site(name, draws[name])
        return total

    def _log_prob_of_site(self, name: str, value: Tensor) -> Tensor:
        """``log q`` of one site's draws ``[n, *site]``, shape ``[n]``."""
        site, jacobian = self.sites[name], 0.0
        if site.is_transformed:
            transform, constrained = self._transform(site), value
            value = transform.inv(constrained)
            jacobian = _sum_rows(transform.log_abs_det_jacobian(value, constrained))
        return _sum_rows(self.site_distribution(name).log_prob(value)) - jacobian

    def quantiles(self, quantiles: list[float] | Tensor, *args, **kwargs) -> dict[str, Tensor]:
        """Quantiles of every latent site, ``{name: [len(quantiles), *site]}``.

        For supports of several coordinates (simplices, correlations) these are the unconstrained quantiles,
        mapped to the support, as in Pyro's autoguides.

        :raises ValueError: for a level outside [0, 1]
        """
        self._detached()
        levels = torch.as_tensor(quantiles, dtype=self.loc.dtype, device=self.loc.device)
        if not ((levels >= 0) & (levels <= 1)).all():
            raise ValueError(f"quantiles are of levels from 0 to 1, not {quantiles}")
        result = {}
        for name, site in self.sites.items():
            falls = site.is_transformed and _falls(self._transform(site))
            values = self._quantiles_of_site(name, 1 - levels if falls else levels)
            result[name] = self._constrain(name, values)
        return result

    def _quantiles_of_site(self, name: str, levels: Tensor) -> Tensor:
        """Unconstrained quantiles at ``levels [k]``, ``[k, *site]``."""
        law = self.site_distribution(name)
        return law.icdf(levels.reshape(-1, *(1,) * len(law.batch_shape)))

    def median(self, *args, **kwargs) -> dict[str, Tensor]:
        """The median of every latent site, ``{name: [*site]}``."""
        return {name: values[0] for name, values in self.quantiles([0.5], *args, **kwargs).items()}

    # ------------------------------------------------------------------------------------------------------
    # Saving: the layout travels with the parameters, so that a fresh guide can load them

    def get_extra_state(self) -> dict:
        sites = [asdict(site) for site in self.sites.values()]
        return {"guide": type(self).__name__, "sites": sites, "observed": list(self.observed)}

    def set_extra_state(self, state: dict) -> None:
        pass  # taken in _load_from_state_dict, before the parameters

    def _take_layout(self, layout: dict) -> None:
        """Takes the sites from what :meth:`get_extra_state` saved; :raises ValueError: of another class."""
        own = type(self).__name__
        saved = layout["guide"]
        if saved != own:
            raise ValueError(f"the saved guide is an {saved}, this one an {own}: load it into an {saved}")
        sites = [
            Site(**{k: tuple(v) if isinstance(v, list) else v for k, v in s.items()}) for s in layout["sites"]
        ]
        self.sites = {site.name: site for site in sites}
        self.observed = list(layout["observed"])

    def _load_from_state_dict(self, state_dict, prefix, *args) -> None:
        layout = state_dict.get(prefix + "_extra_state")
        if layout is not None:
            self._take_layout(layout)
        for key, value in state_dict.items():
            name = key.removeprefix(prefix)
            if not key.startswith(prefix) or "." in name or not isinstance(value, Tensor):
                continue  # "." : of a submodule
            if name in self._buffers:
                continue  # torch fills it
            parameter = self._parameters.get(name)
            if parameter is None or parameter.shape != value.shape:  # else an optimiser may hold it: fill it
                setattr(self, name, nn.Parameter(torch.empty_like(value)))
        nn.Module._load_from_state_dict(self, state_dict, prefix, *args)


def elementwise_law(loc: Tensor, log_scale: Tensor, logits: Tensor | None = None) -> dist.TorchDistribution:
    """A Gaussian for every element, or with inclusion logits a spike and slab; parameters broadcast."""
    if logits is None:
        return dist.Normal(loc, log_scale.exp(), validate_args=False)
    return SpikeSlab(logits=logits, loc=loc, scale=log_scale.exp(), validate_args=False)


def _falls(transform: Transform) -> bool:
    """Whether a map of single numbers turns their order around, as that to the numbers below a bound does."""
    try:
        sign = transform.sign
    except NotImplementedError:  # a map of several coordinates at once
        return False
    return bool((torch.as_tensor(sign) < 0).all())


def _sum_rows(values: Tensor) -> Tensor:
    """``[n, ...] -> [n]``."""
    return values.reshape(len(values), -1).sum(-1)
