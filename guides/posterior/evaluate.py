"""One model under many draws of its latent sites: what it predicts, how likely it finds the data.

Whoever evaluates drawn networks comes here.  :func:`over_draws` runs a model under all draws at once
(``torch.func.vmap``), or draw by draw where a model forbids that, because it reads the value of a latent site
in Python (``if``, ``.item()``) or draws random numbers of its own.  No random number is consumed for the site
that is predicted: its law is asked for, not its value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyro
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.distributions.unit import Unit
from pyro.distributions.util import scale_and_mask
from pyro.infer.autoguide.initialization import InitMessenger, init_to_value
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Distribution, Normal
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from guides.core.masked_sites import Unmasked, padding
from guides.core.rng import kept_rng, seeded_rng
from guides.posterior.drawn_anew import RowsByNumber, check_rows, check_unknown, spread, takes_some
from guides.posterior.law_of_draws import LawsOfDraws, elementwise
from guides.posterior.predictive import joint, parameters_of

Draws = Mapping[str, Tensor]
#: Numbers in the largest tensor of the draws that are run at once (in float32 16 MB, and a few such live at
#: a time); larger ones are no faster.
NUMBERS_AT_ONCE = 2**22


# -------------------------------------------------------------------------------------------------- all draws


def over_draws(
    question: Callable[[dict[str, Tensor]], tuple[Tensor, ...]], draws: Draws, *, at_once: int | None = None
) -> tuple[Tensor, ...]:
    """The answers ``[S, ...]`` to a question asked of every draw; no gradients, no validation.

    :param question: one draw ``{name: [*site]}`` -> tensors, whose shapes must not depend on the draw
    :param draws: ``{name: [S, *site]}``
    :param at_once: draws that are held in memory at a time, see :func:`number_at_once`; None: all of them
    """
    with torch.no_grad(), pyro.validation_enabled(False), poutine.block():
        try:
            return vmap(question, chunk_size=at_once)(dict(draws))
        except torch.OutOfMemoryError:  # a loop over all draws would hide it
            raise
        except RuntimeError:  # vmap's refusal; an error of the question's own comes again from the loop
            answers = [question(draw) for draw in _one_by_one(draws)]
            return tuple(torch.stack(parts) for parts in zip(*answers, strict=True))


def number_at_once(question: Callable[[dict[str, Tensor]], object], draws: Draws) -> int:
    """How many draws to run at once, from the largest tensor that torch functions make for the first one."""
    with torch.no_grad(), pyro.validation_enabled(False), poutine.block(), _Largest() as largest:
        question(next(_one_by_one(draws)))
    return max(1, NUMBERS_AT_ONCE // largest.numbers)


def _one_by_one(draws: Draws):
    for i in range(len(next(iter(draws.values())))):
        yield {name: value[i] for name, value in draws.items()}


class _Largest(TorchFunctionMode):
    """Counts the numbers in the largest tensor that a torch function returns."""

    numbers = 1

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.numbers = max(self.numbers, result.numel())
        return result


def log_joint(model: Callable, draws: Draws, *args, **kwargs) -> Tensor:
    """``log p(y, theta)`` of the model at draws ``{name: [S, *site]}`` and its arguments: ``[S]``, nats.

    Masked elements of latent sites (``poutine.mask``, ``obs_mask``) count with their prior where nothing else
    that counts looks at them: the law of all others is the same, and theirs can be normalised.

    :raises ValueError: where a latent site has no draws, or draws have no site
    """
    trace = _first_trace(model, draws, args, kwargs)
    missing = [name for name in _not_drawn(trace, draws) if not trace.nodes[name]["is_observed"]]
    unknown = [name for name in draws if name not in trace.nodes]
    if missing or unknown:
        raise ValueError(
            f"a joint density needs a value of every site: there are no draws of {_listed(missing)}, and the "
            f"model has no site for draws of {_listed(unknown)}"
        )

    some = {name: value[spread(len(value))] for name, value in draws.items()}
    drawn = [InitMessenger(init_to_value(values=draw))(model) for draw in _one_by_one(some)]
    whole = Unmasked(padding(drawn, draws, args, kwargs))(model)

    def question(draw: dict[str, Tensor]) -> tuple[Tensor]:
        return (_trace(whole, draw, args, kwargs).log_prob_sum(),)

    return over_draws(question, draws, at_once=number_at_once(question, draws))[0]


def _trace(model: Callable, values: Draws, args: tuple, kwargs: Mapping) -> poutine.Trace:
    return poutine.trace(poutine.condition(model, values)).get_trace(*args, **kwargs)


# ----------------------------------------------------------------------------------------------- likelihoods

#: Families whose parameters are enough: asked of all draws at once, and mixed in closed form.
CLOSED = (dist.Normal, dist.Bernoulli, dist.Categorical, dist.Delta)


def observed_laws(model: Callable, draws: Draws, *args, site: str | None = None, **kwargs) -> Distribution:
    """The likelihood of every draw: one distribution with batch shape ``[S, N]``, without masks.

    The outputs of a row that are one event (``to_event``) stay one; where all rows are one event, they are
    taken apart.  A ``pyro.deterministic`` site has points for laws.

    :param draws: ``{name: [S, *site]}``
    :param args: the model's arguments, without data
    :param site: name of the site to predict; needed only when the model has several
    :raises ValueError: when there is no such site, or several; draws of a site that the model does not have;
        a plate of which every run takes other rows
    """
    trace = _first_trace(model, draws, args, kwargs)
    name = _site_to_predict(trace, draws, site)
    law = _law(trace.nodes[name])
    outputs = _events(trace.nodes[name]["fn"])
    # with a value, so that none is drawn
    value = {} if isinstance(law, dist.Delta) else {name: trace.nodes[name]["value"]}
    _check_drawn(trace, model, draws, args, kwargs, value or {name: trace.nodes[name]["value"]})

    def law_of(draw: dict[str, Tensor]) -> Distribution:
        return _law(_trace(model, {**draw, **value}, args, kwargs).nodes[name])

    if not isinstance(law, CLOSED):
        with torch.no_grad(), pyro.validation_enabled(False), poutine.block():
            return LawsOfDraws([joint(law_of(draw), outputs) for draw in _one_by_one(draws)])

    def question(draw: dict[str, Tensor]) -> tuple[Tensor, ...]:
        return parameters_of(law_of(draw))

    parameters = over_draws(question, draws, at_once=number_at_once(question, draws))
    if isinstance(law, dist.Delta):
        return dist.Delta(*parameters)
    if isinstance(law, Normal):
        return joint(Normal(*parameters), outputs)
    # not the law's own class, which may be made of other numbers, as OrderedLogistic is
    family = dist.Categorical if isinstance(law, dist.Categorical) else dist.Bernoulli
    return joint(family(logits=parameters[0]), outputs)


def _law(node: dict) -> Distribution:
    """Of one element; of a ``pyro.deterministic`` its value, which a plate does not repeat."""
    law = elementwise(node["fn"])
    return dist.Delta(node["value"]) if isinstance(law, dist.Delta) else law


def _events(law: Distribution) -> int:
    """How many dimensions of an element's law are outputs of a row; none where all rows are one event."""
    return len(elementwise(law).batch_shape) - len(law.batch_shape) if law.batch_shape else 0


def _first_trace(model: Callable, draws: Draws, args: tuple, kwargs: Mapping) -> poutine.Trace:
    """Of the first draw; what a run draws is for looking only."""
    return _looked_at(model, next(_one_by_one(draws)), args, kwargs)


def _looked_at(model: Callable, values: Draws, args: tuple, kwargs: Mapping) -> poutine.Trace:
    with torch.no_grad(), pyro.validation_enabled(False), poutine.block(), kept_rng():
        return _trace(model, values, args, kwargs)


def _check_drawn(
    trace: poutine.Trace, model: Callable, draws: Draws, args: tuple, kwargs: Mapping, data: Draws
) -> None:
    """:param data: some values of the sites that are asked for, which may depend on each other
    :raises ValueError: where their laws depend on rows or latent values that every run draws
    """
    unknown = [name for name in draws if name not in trace.nodes]
    if not (unknown or any(map(takes_some, trace.nodes.values()))):
        return
    some = {name: value[spread(len(value))] for name, value in draws.items()}
    found = [{**draw, **data} for draw in _one_by_one(some)]

    def run(draw: int, rows: int, seed: int) -> poutine.Trace:
        with seeded_rng(seed):
            return _looked_at(RowsByNumber(rows)(model), found[draw], args, kwargs)

    check_unknown(run, len(found), list(data), unknown, _not_drawn(trace, draws))
    check_rows(run, len(found), list(data))


def _predicted(trace: poutine.Trace, draws: Draws) -> list[str]:
    return [name for name in _not_drawn(trace, draws) if _is_data(trace.nodes[name])]


def _not_drawn(trace: poutine.Trace, draws: Draws) -> list[str]:
    return [
        name
        for name, node in trace.nodes.items()
        if node["type"] == "sample" and name not in draws and not site_is_subsample(node)
    ]


def _site_to_predict(trace: poutine.Trace, draws: Draws, site: str | None) -> str:
    names = _predicted(trace, draws)
    if site is not None:
        if site not in _not_drawn(trace, draws):
            raise ValueError(f"the model has no site {site!r} to predict; it has {_listed(names)}")
        return site
    if len(names) != 1:
        raise ValueError(f"one site to predict is needed, the model has {_listed(names)}: pass site=NAME")
    return names[0]


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _is_data(node: dict) -> bool:
    """Not of ``pyro.deterministic``, a point, nor of ``pyro.factor``, which has no value."""
    return not isinstance(elementwise(node["fn"]), dist.Delta | Unit)


# ------------------------------------------------------------------------------------------- data, replicates


def log_likelihood(model: Callable, draws: Draws, data: Mapping[str, Tensor], *args, **kwargs) -> dict:
    """``{site: [S, *observations]}``, nats: one number an observation; an event (``to_event``) is one.

    0 where a mask hides an observation.  A scale (of a minibatch, say) does not count.

    :param data: ``{observed site: value}``, of the shape that the model gives; sites that depend on each
        other are conditioned on all of them
    :raises ValueError: for a site that the model does not have, or data of another shape
    """
    data = matching(model, draws, data, *args, **kwargs)

    def question(draw: dict[str, Tensor]) -> tuple[Tensor, ...]:
        nodes = _trace(model, {**draw, **data}, args, kwargs).nodes
        found = ((nodes[name]["fn"].log_prob(value), nodes[name]["mask"]) for name, value in data.items())
        return tuple(scale_and_mask(values, mask=mask) for values, mask in found)

    return dict(zip(data, over_draws(question, draws, at_once=number_at_once(question, draws)), strict=True))


def matching(model: Callable, draws: Draws, data: Mapping, *args, **kwargs) -> dict[str, Tensor]:
    """Data as the model's observed sites have them: tensors of their shape and dtype.

    :raises ValueError: for a site that the model does not have, or another shape
    """
    trace = _first_trace(model, draws, args, kwargs)
    known, found = _predicted(trace, draws), {}
    asked = {name: trace.nodes[name]["value"] for name in data if name in known}
    _check_drawn(trace, model, draws, args, kwargs, asked)
    for name, given in data.items():
        if name not in known:
            raise ValueError(
                f"observed_data: the model has no observed site {name!r}; it has {_listed(known)}"
            )
        found[name] = _like(trace.nodes[name]["value"], given, name)
    return found


def _like(like: Tensor, given: object, name: str) -> Tensor:
    """Data of a site with the shape, dtype and device of a value of it."""
    data = _tensor(given).to(like.device)
    if data.shape != like.shape:
        raise ValueError(
            f"observed_data: site {name!r} has shape {list(like.shape)} in the model, the data "
            f"{list(data.shape)}"
        )
    value = data.to(like.dtype)
    if not like.is_floating_point() and (value != data).any():
        raise ValueError(f"observed_data: site {name!r} takes whole numbers")
    return value


def _tensor(value: object) -> Tensor:
    """A copy where torch could not use the array itself: read-only, or backwards."""
    return value if isinstance(value, Tensor) else torch.from_numpy(np.array(value, order="C"))


def replicates(model: Callable, draws: Draws, sites: list[str], *args, **kwargs) -> dict[str, Tensor]:
    """New data ``{site: [S, *shape]}``, one of each draw; consumes torch's global random numbers."""
    if len(sites) == 1:
        laws = observed_laws(model, draws, *args, site=sites[0], **kwargs)
        with torch.no_grad():
            return {sites[0]: laws.sample()}
    with torch.no_grad(), pyro.validation_enabled(False), poutine.block():
        runs = [_trace(model, draw, args, kwargs).nodes for draw in _one_by_one(draws)]
    return {name: torch.stack([nodes[name]["value"] for nodes in runs]) for name in sites}


def prior_draws(model: Callable, latent: list[str], predicted: list[str], n: int, *args, **kwargs) -> tuple:
    """``n`` draws of the model's own prior, and data drawn with them: twice ``{site: [n, *shape]}``.

    Consumes torch's global random numbers.
    """
    with torch.no_grad(), pyro.validation_enabled(False), poutine.block():
        runs = [poutine.trace(model).get_trace(*args, **kwargs).nodes for _ in range(n)]
    return tuple(
        {name: torch.stack([nodes[name]["value"] for nodes in runs]) for name in names if name in runs[0]}
        for names in (latent, predicted)
    )


def as_taken(model: Callable, draws: Draws, args: tuple, kwargs: Mapping) -> tuple[tuple, dict]:
    """A model's arguments as tensors, but for tables of pandas where it can read them.

    :raises Exception: that of the model on the tables where no tensor can take their place (texts), else on
        the tensors, with the former for its cause
    """
    if not draws or not any(hasattr(value, "columns") for value in (*args, *kwargs.values())):
        return as_tensors(draws, args, kwargs)
    read = as_tensors(draws, args, kwargs, tables=False)
    try:
        _first_trace(model, draws, *read)
        return read
    except Exception as unread:
        try:
            taken = as_tensors(draws, args, kwargs)
        except TypeError:
            raise unread from None
        try:
            _first_trace(model, draws, *taken)
        except Exception as error:
            raise error from unread
        return taken


def as_tensors(draws: Draws, args: tuple, kwargs: Mapping, tables: bool = True) -> tuple[tuple, dict]:
    """A model's arguments with tensors for NumPy arrays, and pandas tables if wanted, as precise as the
    draws.
    """
    dtypes = [value.dtype for value in draws.values() if value.is_floating_point()]
    kind = dtypes[0] if dtypes else torch.get_default_dtype()

    def converted(value: object) -> object:
        if hasattr(value, "to_numpy") and (tables or not hasattr(value, "columns")):
            value = value.to_numpy()
        if not isinstance(value, np.ndarray):
            return value
        return _tensor(value).to(kind) if value.dtype.kind == "f" else _tensor(value)

    return tuple(map(converted, args)), {name: converted(value) for name, value in kwargs.items()}
