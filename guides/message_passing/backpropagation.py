"""Probabilistic backpropagation for Pyro models: the public class."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily, Normal

from guides.core.checks import check_counts
from guides.core.distributions import SpikeSlab
from guides.core.rng import stream_seed
from guides.message_passing.fitted import GammaPosterior, MessagePassingFit, SiteMoments
from guides.message_passing.job import Job
from guides.message_passing.program import Forward, Program, all_messages
from guides.message_passing.recorder import predicting, record
from guides.message_passing.schedule import as_inputs
from guides.posterior.draws import Posterior
from guides.posterior.evaluate import as_tensors

Messages = Literal["gaussian", "spike-slab"]

# Keeps a distribution proper where a network's output is a known number.
SMALLEST_VARIANCE = 1e-60

#: Share of the updates of the noise that may be refused without a word.
FEW = 1e-3
#: The same of the weights: what is refused of one row another one brings.
MANY = 0.05


class ProbabilisticBackpropagation:
    """Posterior of a feed-forward network by passing messages through it: no draws, no gradient descent.

    Every weight has a Gaussian posterior of its own.  A row of data goes through the network as a
    distribution whose moments are matched after every operation; the derivative of the evidence of its target
    with respect to each weight's mean and variance then gives the moments of the updated weight (assumed
    density filtering, ADF).  The noise precision keeps a Gamma posterior by the same principle, and after
    each epoch the prior of hierarchical weights is refined by one sweep of expectation propagation.

    - ``messages="gaussian"``: probabilistic backpropagation, PBP (Hernandez-Lobato and Adams 2015,
      "Probabilistic Backpropagation for Scalable Learning of Bayesian Neural Networks", ICML).
    - ``messages="spike-slab"``: a ReLU's output is a point mass at zero and a Gaussian (Ott and Williamson
      2022).  It differs from the former only in networks without bias, where a unit can be exactly zero.

    **Forty epochs count the data forty times.**  That is the published method: the prior is divided out and
    put back after every epoch, the likelihood never is.  The result is sharper than the posterior and *not*
    an approximation of what NUTS samples.  ``epochs=1`` counts every row once: this is ADF, an approximation
    of the posterior, which depends on the order of the rows.

    **The start is part of the prior.**  Hidden units have to be told apart, so the weights of a network start
    at random means, which the first row takes for those of the prior.  Linear models start at the prior.

    :param model: a Pyro model ``model(x, y)``; ``model(x)`` predicts (a ``y`` without default gets zeros).
        ``x``: ``[N, ...]`` as the model takes it, ``y: [N]``.  Latent sites: Normal weights with a fixed
        scale or a scale ``factor / sqrt(precision)``, and Gamma precisions of one number each.  One Normal
        likelihood with a fixed scale or one that follows a Gamma precision in the same way.  Between them
        linear layers with or without bias, ReLU and leaky ReLU, sums of branches (taken as independent),
        concatenation, indexing and scaling.
    :param messages: see above
    :param dtype: of the weights; the noise and all precisions are float64 always
    :raises ValueError: for other ``messages`` or ``dtype``

    A model that does anything else is refused by :meth:`fit` with an
    :class:`~guides.UnsupportedSiteError` that names the site and the operation.

    :ivar seconds: wall time of fitting so far, compilation included
    :ivar epochs: passes over the data so far (a :meth:`partial_fit` is a pass over its rows)
    :ivar rows_seen: rows visited so far
    """

    def __init__(
        self, model: Callable, messages: Messages = "gaussian", *, dtype: torch.dtype = torch.float64
    ):
        if messages not in ("gaussian", "spike-slab"):
            raise ValueError(f"messages must be 'gaussian' or 'spike-slab', got {messages!r}")
        if dtype not in (torch.float64, torch.float32):
            raise ValueError(f"dtype must be torch.float64 or torch.float32, got {dtype}")
        self.model, self.messages, self.dtype = model, messages, dtype
        self._fitted: MessagePassingFit | None = None

    # ------------------------------------------------------------------------------------------------ fitting

    def fit(
        self,
        x: Tensor,
        y: Tensor,
        *,
        epochs: int = 40,
        seed: int = 0,
        order: Any = None,
        init_means: Mapping[str, Any] | None = None,
        batch_size: int = 1,
        on_epoch: Callable[[int, ProbabilisticBackpropagation], None] | None = None,
    ) -> ProbabilisticBackpropagation:
        """Starts afresh and passes over the data; interrupted, it keeps the state of the last full epoch.

        :param x: ``[N, ...]``
        :param y: ``[N]``
        :param epochs: passes over the data, each followed by one refinement of the prior
        :param seed: of the starting means and the order of the rows
        :param order: row numbers ``[epochs, N]`` instead of random permutations
        :param init_means: ``{site: mean}``, starting means of some weights instead of random ones
        :param batch_size: rows that are matched against the same old state, one after another being best
        :param on_epoch: called after every epoch with the epoch's number, from 1, and this object
        :returns: this object
        :warns UserWarning: when updates of the noise, or many of the weights, were refused, mostly as the
            target is not standardised
        :raises UnsupportedSiteError: message passing cannot do what the model does
        :raises ValueError: data, order or starting means that do not fit
        """
        job = self._prepare(
            x, y, epochs=epochs, seed=seed, order=order, init_means=init_means, batch_size=batch_size
        )
        for epoch, (fitted,) in job.run(each_epoch=on_epoch is not None):
            self._fitted = fitted
            if on_epoch is not None:
                on_epoch(epoch, self)
        self._warn_of_refusals(len(y) * epochs)
        return self

    def partial_fit(
        self,
        x: Tensor,
        y: Tensor,
        *,
        seed: int = 0,
        init_means: Mapping[str, Any] | None = None,
        batch_size: int = 1,
    ) -> ProbabilisticBackpropagation:
        """One ADF pass over these rows in the order given, on top of what was seen before.

        The prior is not refined, so that two calls on halves of the data equal one call on all of it.

        :param seed: of the starting means, on the first call
        :param init_means: as for :meth:`fit`, on the first call
        :returns: this object
        :warns UserWarning: as :meth:`fit`
        :raises ValueError: also when the model does with these rows something else than before
        """
        if self._fitted is None:
            order = [range(len(y))]
            job = self._prepare(
                x, y, epochs=1, seed=seed, order=order, init_means=init_means, batch_size=batch_size
            )
        else:
            if init_means is not None:
                raise ValueError("init_means: the weights have been started already")
            job = Job.resume(self._fitted, self.model, self.messages, self.dtype, x, y, batch_size=batch_size)
        before = {} if self._fitted is None else self.refused
        for _, (fitted,) in job.run(each_epoch=False, refine=False):
            self._fitted = fitted
        self._warn_of_refusals(len(y), before)
        return self

    def _warn_of_refusals(self, rows: int, before: Mapping[str, int] | None = None) -> None:
        """
        :param rows: how many were passed over, each as often as it was
        :param before: refusals before that
        """
        before, refused = before or {}, self.refused
        noise, weights = (refused[name] - before.get(name, 0) for name in ("noise", "weights"))
        if noise > FEW * rows:
            warnings.warn(
                f"{noise} of {rows} updates of the noise were refused, and its estimate may be far off: "
                "standardise y, or give the noise a prior that is nearer",
                stacklevel=3,
            )
            return
        share = weights / (rows * sum(site.mean.numel() for site in self.sites.values()))
        if share > MANY:
            warnings.warn(
                f"{share:.0%} of the updates of weights were refused, and what was learned may be far off: "
                "standardise y, or give the noise a scale, or a prior, that is nearer",
                stacklevel=3,
            )

    def _prepare(self, x: Any, y: Any, **schedule: Any) -> Job:
        return Job.prepare(self.model, self.messages, self.dtype, x, y, **schedule)

    # -------------------------------------------------------------------------------------------- predictions

    def predictive(self, x: Tensor, noise: bool = True) -> Distribution:
        """The posterior predictive of every row, batch shape ``[N]``, in float64.

        :param noise: of ``y``; if not, of the network's output
        :returns: Gaussian messages: a ``Normal``.  Spike and slab: a mixture of two Normals around the slab
            and around the spike at 0 (the mean of ``y``, if ``y`` was standardised); without noise a
            :class:`~guides.SpikeSlab`.
        """
        message = self._messages(x)[1][-1]
        mean, variance = (part[..., 0].double().expand(len(x)) for part in message[-2:])
        added = self.noise_variance if noise else 0.0
        scale = (variance + added).clamp_min(SMALLEST_VARIANCE).sqrt()
        if self.messages == "gaussian":
            return Normal(mean, scale)
        log_slab, log_spike = (part[..., 0].double().expand(len(x)) for part in message[:2])
        if not noise:
            logits = (log_slab - log_spike).clamp(-700.0, 700.0)
            return SpikeSlab(logits=logits, loc=mean, scale=scale)
        spike = torch.full_like(scale, added).clamp_min(SMALLEST_VARIANCE).sqrt()
        components = Normal(torch.stack((torch.zeros_like(mean), mean), -1), torch.stack((spike, scale), -1))
        weights = torch.stack((log_spike, log_slab), -1).exp()
        return MixtureSameFamily(Categorical(probs=weights), components)

    def slab_probabilities(self, x: Tensor) -> list[Tensor]:
        """Probability ``[N]`` that a layer's output is not exactly zero, for each linear layer in the model's
        order.

        Ones for Gaussian messages and for layers with a bias.
        """
        program, messages = self._messages(x)
        if self.messages == "gaussian":
            return [torch.ones(len(x), dtype=torch.float64) for _ in program.linear_nodes]
        slabs = (messages[node].log_slab for node in program.linear_nodes)
        return [slab[..., 0].double().exp().expand(len(x)) for slab in slabs]

    def _messages(self, x: Tensor) -> tuple[Program, list]:
        fitted, x = self._fit(), as_inputs(x)
        recording = record(self.model, x)
        fitted.structure.check(recording)
        rows = {name: torch.from_numpy(value).to(self.dtype) for name, value in recording.rows.items()}
        with torch.no_grad():
            family = Forward(recording.program, self.messages).family
            return recording.program, all_messages(recording.program, family, fitted.moments(), rows)

    # --------------------------------------------------------------------------------------- what was learned

    @property
    def sites(self) -> dict[str, SiteMoments]:
        """``{site: (mean, variance)}``, each ``[*site]``, of every weight."""
        return self._fit().moments()

    @property
    def precisions(self) -> dict[str, GammaPosterior]:
        """``{site: (concentration, rate)}`` of every Gamma site, that of the noise included.

        Where the refinement leaves a weight precision that is no Gamma, as it does in wide, deep networks,
        this is the Gamma that goes best with the weights, ``Gamma(a_0 + K/2, b_0 + E[sum u^2]/2)``.
        """
        return self._fit().precisions()

    @property
    def noise_variance(self) -> float:
        """Expected variance of the noise, ``rate / (concentration - 1)``, or the fixed one, in units of
        ``y^2``."""
        return self._fit().noise_variance()

    @property
    def refused(self) -> dict[str, int]:
        """How many updates were refused.

        Of single ``weights`` and of the ``noise``: not finite or no distribution; of ``prior`` factors: not
        finite.
        """
        return {name: int(count) for name, count in self._fit().state.refused._asdict().items()}

    @property
    def seconds(self) -> float:
        return self._fact("seconds")

    @property
    def epochs(self) -> int:
        return self._fact("epochs")

    @property
    def rows_seen(self) -> int:
        return self._fact("rows_seen")

    def _fact(self, name: str) -> Any:
        return 0 if self._fitted is None else self._fitted.facts[name]

    def _fit(self) -> MessagePassingFit:
        if self._fitted is None:
            raise RuntimeError("not fitted yet: call fit(x, y) or load(path, model)")
        return self._fitted

    # ----------------------------------------------------------------------------------------------- as draws

    def draws(self, n: int, seed: int | np.random.Generator = 0) -> dict[str, Tensor]:
        """``{site: [n, *site]}`` of every latent site, independent, in the dtype of the model's site.

        :param seed: a number, which may be that of the fit; a generator is drawn from as it is
        """
        check_counts(n=n)
        if not isinstance(seed, np.random.Generator):
            seed = np.random.default_rng(stream_seed("draws", seed))  # the start has the seed's own numbers
        fitted, rng, draws = self._fit(), seed, {}
        for name, (mean, variance) in fitted.moments().items():
            shape, dtype = fitted.structure.weights[name]
            noise = torch.from_numpy(rng.standard_normal((n, *shape)))
            draws[name] = (mean + variance.double().sqrt() * noise).to(getattr(torch, dtype))
        for name, (concentration, rate) in fitted.precisions().items():
            shape, dtype, *_ = fitted.structure.gammas[name]
            values = rng.gamma(concentration, 1 / rate, (n, *shape))
            draws[name] = torch.as_tensor(values).to(getattr(torch, dtype))
        return draws

    def log_prob(self, draws: Mapping[str, Tensor]) -> Tensor:
        """Log density of draws ``{site: [n, *site]}`` of every latent site: ``[n]``, float64."""
        total = torch.zeros((), dtype=torch.float64)
        laws: dict[str, Distribution] = {
            name: Normal(mean.double(), variance.double().sqrt())
            for name, (mean, variance) in self.sites.items()
        }
        for name, (concentration, rate) in self.precisions.items():
            shape = self._fit().structure.gammas[name][0]
            parameters = (torch.full(shape, value, dtype=torch.float64) for value in (concentration, rate))
            laws[name] = torch.distributions.Gamma(*parameters)
        if missing := laws.keys() - draws.keys():
            raise ValueError(f"log_prob needs draws of every latent site; {sorted(missing)[0]!r} is missing")
        for name, law in laws.items():
            total = total + law.log_prob(draws[name].double()).reshape(len(draws[name]), -1).sum(1)
        return total

    def posterior(self, n: int = 1000, seed: int = 0) -> Posterior:
        """``n`` independent draws as a :class:`~guides.posterior.draws.Posterior`.

        Its predictive averages networks with *drawn weights*; :meth:`predictive` is the message itself.
        """
        facts = {"method": "probabilistic backpropagation", "messages": self.messages, "draw_seed": seed}
        info = facts | self._fit().facts | {"refused": self.refused}
        model = poutine.block(predicting(self.model), hide_fn=lambda msg: msg["infer"].get("_deterministic"))
        return Posterior.from_draws(model, self.draws(n, seed), info)

    def to_arviz(
        self, x: Tensor | None = None, y: Tensor | None = None, *, n: int = 1000, seed: int = 0
    ) -> Any:
        """An ArviZ object of ``n`` draws; with data also their likelihood and replicates of them: of what the
        model observes, ``y`` or what it makes of it.
        """
        posterior = self.posterior(n, seed)
        if x is None or y is None:
            return posterior.to_arviz()
        (x, y), _ = as_tensors(posterior.draws(), (x, y), {})
        recording = record(self.model, x, y)
        self._fit().structure.check(recording)
        data = torch.from_numpy(recording.y).reshape(recording.y_shape)
        return posterior.to_arviz(x, observed_data={recording.observed: data})

    # ------------------------------------------------------------------------------------------------ on disk

    def save(self, path: str | Path) -> None:
        """One safetensors file, without pickle; the file is complete or not there at all."""
        header = {"messages": self.messages, "dtype": str(self.dtype).removeprefix("torch.")}
        self._fit().save(path, header)

    @classmethod
    def load(cls, path: str | Path, model: Callable) -> ProbabilisticBackpropagation:
        """Reads what :meth:`save` wrote.  That ``model`` is the one that was fitted is seen once there are
        rows, but not by :meth:`posterior`, whose draws any model with such sites can take.

        :raises ValueError: naming a damaged or foreign file
        """
        fitted, header = MessagePassingFit.load(path)
        guide = cls(model, header["messages"], dtype=getattr(torch, header["dtype"]))
        guide._fitted = fitted
        return guide


def fit_together(
    guides: Sequence[ProbabilisticBackpropagation],
    data: Sequence[tuple[Tensor, Tensor]],
    *,
    epochs: int = 40,
    seeds: Sequence[int],
    on_epoch: Callable[[int], None] | None = None,
) -> list[ProbabilisticBackpropagation]:
    """Several independent fits in one compiled loop, as ``guide.fit(x, y, epochs=epochs, seed=seed)`` for
    each would do, but faster.

    :param guides: of networks of one structure and one kind of messages
    :param data: ``(x, y)`` of each, all with the same number of rows
    :param seeds: one for each
    :param on_epoch: called after every epoch with its number, from 1
    :returns: the guides
    :warns UserWarning: as :meth:`ProbabilisticBackpropagation.fit`, for each
    :raises ValueError: different structures, or different numbers of rows
    """
    guides = list(guides)
    counts = {len(part) for part in (guides, data, seeds)}
    if counts != {len(guides)} or not guides:
        raise ValueError(
            f"fit_together needs one guide, data set and seed for each trial, got {sorted(counts)}"
        )
    jobs = [
        guide._prepare(x, y, epochs=epochs, seed=seed, order=None, init_means=None, batch_size=1)
        for guide, (x, y), seed in zip(guides, data, seeds, strict=True)
    ]
    for epoch, found in Job.together(jobs).run(each_epoch=on_epoch is not None):
        for guide, fitted in zip(guides, found, strict=True):
            guide._fitted = fitted
        if on_epoch is not None:
            on_epoch(epoch)
    for guide, (_, y) in zip(guides, data, strict=True):
        guide._warn_of_refusals(len(y) * epochs)
    return guides
