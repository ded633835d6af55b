"""The latent sites of a model that NUTS samples, those that it samples non-centred, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any


def twin_sites(twin: Callable, args: tuple, kwargs: dict) -> tuple[list[str], list[str]]:
    """Names of the latent sites, and of those to be non-centred.

    :raises ValueError: no latent site, a discrete one, a plate that subsamples, or data and laws that do not
        pair.
    """
    import jax
    from numpyro import distributions as dist
    from numpyro import handlers
    from numpyro.distributions import constraints
    from numpyro.infer.initialization import init_to_uniform

    from guides.core.arguments import check_pairing

    names, normals = [], []

    def look(key: Any) -> None:
        # abstractly (nothing is compiled), and with an initialiser: improper priors cannot be sampled
        model = handlers.substitute(handlers.seed(twin, key), substitute_fn=init_to_uniform)
        for site in handlers.trace(model).get_trace(*args, **kwargs).values():
            _refuse_subsampling(site["name"], site["args"] if site["type"] == "plate" else None)
            if site["type"] != "sample":
                continue
            if site["is_observed"]:
                check_pairing(site)
                continue
            _refuse_discrete(site["name"], site["fn"].support.is_discrete)
            _refuse_scaled_map(site, constraints.real)
            names.append(site["name"])
            if type(_innermost(site["fn"], dist)) is dist.Normal and _counts_whole(site["scale"]):
                normals.append(site["name"])

    jax.eval_shape(look, jax.random.PRNGKey(0))
    return _nonempty(names), normals


def pyro_sites(model: Callable, args: tuple, kwargs: dict) -> tuple[list[str], list[str]]:
    """As :func:`twin_sites`, for a Pyro model."""
    import pyro.distributions as dist
    from pyro import poutine
    from pyro.poutine.util import site_is_subsample

    from guides.core.arguments import check_pairing

    names, normals = [], []
    for name, site in poutine.trace(model).get_trace(*args, **kwargs).nodes.items():
        if site["type"] != "sample":
            continue
        if site_is_subsample(site):
            _refuse_subsampling(name, (site["fn"].size, site["fn"].subsample_size))
        elif site["is_observed"]:
            check_pairing(site)
        else:
            _refuse_discrete(name, site["fn"].support.is_discrete)
            names.append(name)
            is_normal = type(_innermost(site["fn"], dist)) is dist.Normal
            is_unmasked = site["mask"] is None or site["mask"] is True
            if is_normal and is_unmasked and _counts_whole(site["scale"]):
                normals.append(name)
    return _nonempty(names), normals


def _innermost(law: Any, dist: ModuleType) -> Any:
    """The law below ``Independent`` and ``expand``; ``dist`` is NumPyro's module of laws, or Pyro's."""
    while isinstance(law, dist.Independent | dist.ExpandedDistribution):
        law = law.base_dist
    return law


def _counts_whole(scale: Any) -> bool:
    """Whether a site's density counts once: a power of it (``scale``) has another form in other coordinates,
    so that such a site is left centred.
    """
    try:
        return scale is None or float(scale) == 1
    except (TypeError, ValueError, RuntimeError):  # several numbers, or one that JAX does not know yet
        return False


def _nonempty(names: list[str]) -> list[str]:
    if not names:
        raise ValueError("the model has no latent site: there is nothing to sample")
    return names


def _refuse_discrete(name: str, is_discrete: bool) -> None:
    if is_discrete:
        raise ValueError(
            f"latent site {name!r} is discrete: NUTS needs continuous sites (marginalise or enumerate it)"
        )


def _refuse_scaled_map(site: Mapping, real: Any) -> None:
    support = site["fn"].support
    while hasattr(support, "base_constraint"):
        support = support.base_constraint
    if support is not real and not _counts_whole(site["scale"]):
        raise ValueError(
            f"latent site {site['name']!r} lies under handlers.scale, and NumPyro scales the volume of the "
            "map to its support too, so that another posterior is sampled: make it from a site on the real "
            "numbers, or give the Pyro model and backend='pyro'"
        )


def _refuse_subsampling(name: str, sizes: Sequence | None) -> None:
    if sizes is not None and sizes[1] is not None and sizes[1] != sizes[0]:
        raise ValueError(f"plate {name!r} uses {sizes[1]} of {sizes[0]} rows: NUTS needs the whole data set")
