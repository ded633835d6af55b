"""The KL divergence between two laws that can only be drawn from, as a classifier tells them apart.

The logit ``T`` of the best classifier of draws of ``q`` (label 1) against as many of ``p`` (label 0) is
``log q - log p``, so that ``KL(q || p) = E_q T`` and ``KL(p || q) = -E_p T``.  A trained network stands in
for the best one (Mescheder, Nowozin and Geiger 2017, "Adversarial Variational Bayes", ICML).

**How far to believe it.**  A classifier that never errs learns nothing more: where draws of the two laws do
not meet, its loss goes to 0, its logit stops where training stopped, and the estimate is too small, the
smaller the shorter the training.  From some 5 nats on this is the usual case.  Then ``T`` is a penalty whose
gradient pulls the laws together, and no distance.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from guides.core.checks import check_numbers
from guides.core.perceptron import perceptron
from guides.implicit.moments import Diagonal, newest_weight

#: Classifier's loss, nats, below which its logit is no log density ratio any more; log 2 = 0.69 is a guess.
SATURATED = 0.05


class SaturationWarning(UserWarning):
    """The classifier tells the two laws apart almost surely: its KL divergence is far too small."""


def warn_of_saturation(classifier: DiscriminatorKL) -> None:
    """At the end of a ``fit`` that ``classifier`` judged; the warning names the line that called that."""
    if classifier.saturated:
        warnings.warn(
            f"the classifier ended at a loss of {classifier.classifier_loss:.2g} nats, it hardly errs: the "
            "KL divergence served as a penalty, its value is too small; draw more a step (num_particles), or "
            "judge the fit by other means than its loss",
            SaturationWarning,
            stacklevel=3,
        )


class DiscriminatorKL:
    """``KL(q || p)`` of draws, by a classifier that is trained beside what it measures.

        kl = DiscriminatorKL()
        for _ in range(steps):
            q, p = guide_draws(), prior_draws()  # [S, D] each, with gradients
            kl.step(q, p)
            loss = -data_term(q) + kl.kl(q)

    :param hidden: units of the classifier's hidden layers
    :param adaptive_contrast: compares ``q``, then ``p``, with the independent Gaussian of its own mean and
        variances, and these two Gaussians in closed form, so that the classifiers have little left to do and
        do not saturate.  In exchange the logit of ``p``'s own classifier is asked where ``q`` has its draws
    :param lr: learning rate of its Adam
    :raises ValueError: for arguments out of range

    :ivar classifier_loss: running mean of its loss a draw, nats, ``log 2`` where the laws cannot be told
        apart; with adaptive contrast that of the classifier with the smaller loss; NaN before the first step
    """

    def __init__(
        self, hidden: Sequence[int] = (50, 50), adaptive_contrast: bool = False, *, lr: float = 1e-3
    ):
        check_numbers(lr=lr, **{f"hidden[{i}]": units for i, units in enumerate(hidden)})
        self.hidden, self.adaptive_contrast, self.lr = tuple(hidden), adaptive_contrast, lr
        self.steps = 0
        self.classifier_loss = math.nan
        self._classifiers: tuple[_Classifier, ...] = ()
        self._laws: tuple[Diagonal, ...] = ()
        self._losses = torch.zeros(())
        self._has_warned = False

    @property
    def saturated(self) -> bool:
        """Whether the classifier's loss is below 0.05: what it says is too small then."""
        return self.classifier_loss < SATURATED

    def step(self, q: Tensor, p: Tensor) -> float:
        """One step of the classifier on two batches of draws; nothing flows back into them.

        :param q: draws ``[S, D]``, S at least 2
        :param p: draws ``[S', D]``
        :returns: its loss on these batches before the step
        :raises ValueError: for other shapes, or a number that is not finite
        """
        q, p = q.detach(), p.detach()
        self._check(q, p)
        if not self._classifiers:
            self._start(q)
        newest = newest_weight(self.steps)
        if self.adaptive_contrast:
            self._laws = tuple(
                law.moved(Diagonal.of(u), newest) for law, u in zip(self._laws, (q, p), strict=True)
            )
            pairs = [(law.whiten(u), torch.randn_like(u)) for law, u in zip(self._laws, (q, p), strict=True)]
        else:
            pairs = [(q, p)]
        losses = [
            classifier.step(*pair, self.lr) for classifier, pair in zip(self._classifiers, pairs, strict=True)
        ]
        self._losses = self._losses + newest * (torch.tensor(losses) - self._losses)
        self.steps, self.classifier_loss = self.steps + 1, self._losses.min().item()
        return min(losses)

    def log_ratio(self, u: Tensor) -> Tensor:
        """Estimated ``log q(u) - log p(u)`` of ``u: [S, D]``: ``[S]``, nats, differentiable in ``u``.

        :raises RuntimeError: before the first step
        """
        if not self._classifiers:
            raise RuntimeError("the classifier has not been trained yet: call step(q, p)")
        if not self.adaptive_contrast:
            return self._classifiers[0].logit(u)
        of_q, of_p = self._laws
        contrasts = [
            classifier.logit(law.whiten(u))
            for classifier, law in zip(self._classifiers, self._laws, strict=True)
        ]
        return contrasts[0] - contrasts[1] + of_q.log_prob(u) - of_p.log_prob(u)

    def kl(self, q: Tensor) -> Tensor:
        """Estimate of ``KL(q || p)`` in nats, ``[]``, with its gradient to the draws ``q: [S, D]``.

        The classifier itself is held fixed.  Warns once (:class:`SaturationWarning`) where it is saturated.
        """
        self._warn()
        return self.log_ratio(q).mean()

    def symmetrised(self, q: Tensor, p: Tensor) -> Tensor:
        """Estimate of ``(KL(q || p) + KL(p || q)) / 2`` in nats, ``[]``, with its gradient to both draws.

        No warning: where it is asked for, it serves as a penalty.
        """
        of_q, of_p = self.log_ratio(torch.cat((q, p))).split((len(q), len(p)))
        return 0.5 * (of_q.mean() - of_p.mean())

    def _start(self, like: Tensor) -> None:
        count = 2 if self.adaptive_contrast else 1
        sizes = (like.shape[1], *self.hidden, 1)
        self._classifiers = tuple(_Classifier(sizes, like) for _ in range(count))
        self._laws = (Diagonal(like.new_zeros(like.shape[1]), like.new_ones(like.shape[1])),) * count
        self._losses = torch.zeros(count)

    def _check(self, q: Tensor, p: Tensor) -> None:
        if q.dim() != 2 or p.dim() != 2 or q.shape[1] != p.shape[1] or min(len(q), len(p)) < 2:
            raise ValueError(
                f"draws of the two laws must be [S, D], two at least, of the same D; got shapes "
                f"{list(q.shape)} and {list(p.shape)}"
            )
        if q.dtype != p.dtype or not q.is_floating_point():
            raise ValueError(
                f"draws of the two laws must be of one precision, of floating point; got {q.dtype} and "
                f"{p.dtype}"
            )
        for name, draws in (("q", q), ("p", p)):
            if not draws.isfinite().all():
                raise ValueError(f"draws of {name} must be finite")

    def _warn(self) -> None:
        if self.saturated and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"the classifier's loss is {self.classifier_loss:.2g} nats: it tells the laws apart almost "
                "surely, and its KL divergence is too small; take it for a penalty, or use "
                "adaptive_contrast=True",
                SaturationWarning,
                stacklevel=3,
            )


class _Classifier:
    """A network whose logit says how much likelier a draw is under the first law than under the second."""

    def __init__(self, sizes: Sequence[int], like: Tensor):
        self.network: nn.Module = perceptron(sizes, dtype=like.dtype).to(like.device)
        self.adam = torch.optim.Adam(self.network.parameters(), fused=True)

    def logit(self, u: Tensor) -> Tensor:
        return frozen(self.network, u).squeeze(-1)

    def step(self, first: Tensor, second: Tensor, lr: float) -> float:
        """One step of Adam on the mean cross entropy of both batches, which count alike; that loss."""
        with torch.enable_grad():
            of_first, of_second = self.network(torch.cat((first, second))).split((len(first), len(second)))
            loss = 0.5 * (F.softplus(-of_first).mean() + F.softplus(of_second).mean())
            loss.backward()
        self.adam.param_groups[0]["lr"] = lr
        self.adam.step()
        self.adam.zero_grad()
        return loss.item()


def frozen(network: nn.Module, inputs: Tensor) -> Tensor:
    """The network's outputs, differentiable in its inputs and not in its parameters."""
    return functional_call(network, {name: p.detach() for name, p in network.named_parameters()}, (inputs,))
