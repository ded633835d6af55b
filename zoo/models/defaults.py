"""What a model is when nothing else is said: for its class and for the catalogue.  Imports nothing."""

from __future__ import annotations

WIDTHS: tuple[int, ...] = (50,)
ACTIVATION = "relu"
#: Prior inclusion probability of weights, and of the columns of a logistic regression.
INCLUSION, LOGISTIC_INCLUSION = 0.5, 0.25
