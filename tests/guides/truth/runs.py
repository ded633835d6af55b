"""Samplers that answer at once, for tests of what is made of their draws."""

import numpy as np

from guides.truth.gates import Gates

LOOSE = Gates(max_rhat=1.05, min_ess_bulk=50, max_divergence_share=0.05)


def fake(values=None, divergences=0, good_from=0, calls=None):
    """An attempt that answers at once: independent normals, poor before attempt ``good_from``."""

    def attempt(twin, args, kwargs, plan, show):
        if calls is not None:
            calls.append(plan)
        x = np.random.default_rng(plan.attempt).standard_normal((plan.chains, plan.draws, 3))
        if values is not None:
            x = values(x)
        elif plan.attempt < good_from and not divergences:
            x = x + np.linspace(0, 3, plan.draws)[:, None]  # drifts: R-hat and ESS fail
        diverging = np.zeros(x.shape[:2], bool)
        if plan.attempt < good_from:
            diverging[0, :divergences] = True
        return {"x": x}, {"diverging": diverging}

    return attempt


def nothing_to_sample():
    raise AssertionError("the fake sampler calls no model")
