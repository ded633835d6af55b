"""One model under many draws of its latent sites: what it predicts, how likely it finds the data.

Whoever evaluates drawn networks comes here.  :func:`over_draws` runs a model under all draws at once
(``torch.func.vmap``), or draw by draw where a model forbids that, because it reads the value of a latent site
in Python (``if``, ``.item()``) or draws random numbers of its own.  No random number is consumed for the site
that is predicted: its law is asked for, not its value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyro
import torch
from pyro import distributions as dist
from pyro import poutine
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily, Normal
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from guides.core.distributions import base_prior

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
    """``log p(y, theta)`` of the model at draws ``{name: [S, *site]}`` and its arguments: ``[S]``, nats."""

    def question(draw: dict[str, Tensor]) -> tuple[Tensor]:
        return (_trace(model, draw, args, kwargs).log_prob_sum(),)

    return over_draws(question, draws, at_once=number_at_once(question, draws))[0]


def _trace(model: Callable, values: Draws, args: tuple, kwargs: Mapping) -> poutine.Trace:
    return poutine.trace(poutine.condition(model, values)).get_trace(*args, **kwargs)


# ----------------------------------------------------------------------------------------------- likelihoods


def observed_laws(model: Callable, draws: Draws, *args, site: str | None = None, **kwargs) -> Distribution:
    """The likelihood of every draw: one elementwise distribution with batch shape ``[S, N]``.

    :param draws: ``{name: [S, *site]}``
    :param args: the model's arguments, without data
    :param site: name of the site to predict; needed only when the model has several
    :raises ValueError: when there is no such site, or several
    :raises NotImplementedError: for a likelihood that is not Gaussian, Bernoulli or Categorical
    """
    first = next(_one_by_one(draws))
    # what a run draws is for looking only
    with torch.no_grad(), pyro.validation_enabled(False), poutine.block(), torch.random.fork_rng(devices=[]):
        trace = _trace(model, first, args, kwargs)
    name = site or _predicted_site(trace, draws)
    if name not in trace.nodes:
        raise ValueError(f"the model has no site {name!r}")
    law, value = base_prior(trace.nodes[name]["fn"]), trace.nodes[name]["value"]
    if not isinstance(law, dist.Normal | dist.Bernoulli | dist.Categorical):
        raise NotImplementedError(
            f"site {name!r}: no closed-form predictive for {type(law).__name__}; use pyro.infer.Predictive"
        )

    def question(draw: dict[str, Tensor]) -> tuple[Tensor, ...]:
        # with a value, so that none is drawn
        trace = _trace(model, {**draw, name: value}, args, kwargs)
        return _parameters(base_prior(trace.nodes[name]["fn"]))

    parameters = over_draws(question, draws, at_once=number_at_once(question, draws))
    return Normal(*parameters) if isinstance(law, dist.Normal) else type(law)(logits=parameters[0])


def _parameters(law: Distribution) -> tuple[Tensor, ...]:
    if isinstance(law, dist.Normal):
        return law.loc.expand(law.batch_shape), law.scale.expand(law.batch_shape)
    return (law.logits,)


def _predicted_site(trace: poutine.Trace, draws: Draws) -> str:
    names = [
        name
        for name, node in trace.nodes.items()
        if node["type"] == "sample" and name not in draws
        if not site_is_subsample(node) and not _is_deterministic(node)
    ]
    if len(names) != 1:
        raise ValueError(f"one site to predict is needed, the model has {names or 'none'}: pass site=NAME")
    return names[0]


def _is_deterministic(node: dict) -> bool:
    """Of ``pyro.deterministic`` and the like: a point, masked."""
    return isinstance(getattr(node["fn"], "base_dist", node["fn"]), dist.Delta)


def function_values(laws: Distribution) -> Tensor:
    """Noiseless function values ``[S, N]``, for ``K`` classes ``[S, N, K]``, of likelihoods ``[S, N]``.

    The mean of a Gaussian likelihood, the log-odds of a Bernoulli, each class's log-odds
    ``log p_k - log(1 - p_k)`` of a categorical one.
    """
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
