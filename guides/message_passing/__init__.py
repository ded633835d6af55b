"""Message passing: a Pyro model in, a posterior out, no sampling and no gradient descent."""

from guides.message_passing.backpropagation import ProbabilisticBackpropagation, fit_together

__all__ = ["ProbabilisticBackpropagation", "fit_together"]
