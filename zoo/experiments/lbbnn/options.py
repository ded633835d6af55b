"""Options of the budgets of latent binary networks: how large an experiment is, and what makes no sense."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from zoo.errors import UserError

MEMBERS = 10
#: First learning rate of Adam, which falls to zero along a half cosine, of points and dropout, whatever the
#: options say.
POINT_RATE = 1e-3
#: First learning rate of what has a law for every weight, and how many times as far inclusion logits and
#: log-sds can go as :mod:`zoo.fitting.reach` has it: gradients that are mostly noise take a parameter only a
#: part of the way that its rates allow.  At half the rate and a reach of one fits ended in as many steps at
#: worse bounds (docs/results/lbbnn/higher-rates.md).
RATES = {"rate": 0.01, "reach": 4.0}
#: Of cold posteriors, whatever the options say: they are there to predict, and images that are held out they
#: predict better at these.  ``python benchmarks/sparse_network_schedule.py --methods cold-mnf --setting
#: fixed-kl0.1 --rates 0.005 --reaches 1`` and ``--rates 0.01 --reaches 4``: 98.28 and 98.00 % (one run each).
COLD_RATES = {"rate": 0.005, "reach": 1.0}
#: By the thesis's recipe, which has rates of its own: for a look one epoch on the first 20,000 rows; then 20
#: on all (rows 0).
QUICK_RECIPE = {"epochs": 1, "members": MEMBERS, "widths": "400-600", "rows": 20_000, "device": "cpu"}
FULL_RECIPE = {**QUICK_RECIPE, "epochs": 20, "rows": 0}
#: Of the dense networks.
QUICK, FULL = {**QUICK_RECIPE, **RATES}, {**FULL_RECIPE, **RATES}
#: On digits, where by layer ``lrt`` and ``concrete`` ended 0.08 and 0.16 nats an image lower after twenty
#: (one run each).
FULL_DIGITS = {**FULL, "epochs": 60}
#: Of the convolutional ones, whose widths are those of the publications; 5 epochs show the start of a fit
#: (docs/results/lbbnn/convolutions.md).
QUICK_CONVOLUTIONAL = {"epochs": 1, "members": MEMBERS, "rows": 0, "device": "cpu", **RATES}
FULL_CONVOLUTIONAL = {**QUICK_CONVOLUTIONAL, "epochs": 20}
COST = {"widths": "400-600", "rows": 0, "device": "cpu"}


def check_options(options: Mapping[str, Any]) -> None:
    """:raises UserError: for options that no network could be fitted with"""
    from zoo.fitting.devices import CPU, check_device_name  # imports torch, for which a list does not wait

    for name in ("epochs", "members", "steps", "draws"):
        if options.get(name, 1) < 1:
            raise UserError(f"option {name} must be at least 1, not {options[name]}")
    if not 0 < options.get("rate", 1.0) <= 1:
        raise UserError(f"option rate must be above 0 and at most 1, not {options['rate']:g}")
    if not 1 <= options.get("reach", 1.0) < math.inf:
        raise UserError(f"option reach must be at least 1 and finite, not {options['reach']:g}")
    if not 0 < options.get("held_out", 0.5) < 1:
        raise UserError(f"option held_out must be a share between 0 and 1, not {options['held_out']}")
    if options.get("rows", 0) < 0:
        raise UserError(
            f"option rows must be a count of training images, or 0 for all, not {options['rows']}"
        )
    if not re.fullmatch(r"[1-9]\d*(-[1-9]\d*)*", options.get("widths", "1")):
        raise UserError(
            f"option widths must be the hidden units of each layer with - between, 400-600 for instance, "
            f"not {options['widths']!r}"
        )
    check_device_name(options.get("device", CPU), "option device")
