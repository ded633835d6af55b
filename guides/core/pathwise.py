"""Whether a spike-and-slab site has a pathwise gradient: only through one layer whose rows do not meet."""

from __future__ import annotations

from guides.core.random_tensors import PathwiseGradientError
from guides.core.row_mixing import NOTHING
from guides.core.uses import Uses

REMEDY = "use it once, through F.linear, @ or F.conv2d, or take AutoConcrete (relaxed indicators)"


def check_pathwise(uses: Uses, meets_in: str | None) -> None:
    """A drawn inclusion has no pathwise gradient; a layer's output, by its moments, has.

    :param uses: what the model does with the site
    :param meets_in: the observed site of which one term sees several rows of its layer, if there is one
    :raises PathwiseGradientError: when its layer cannot be taken by its moments
    """
    if not uses.used_once:
        raise PathwiseGradientError(
            f"site {uses.site!r} (spike and slab) enters {uses.describe()}: its inclusion has no "
            f"pathwise gradient there; {REMEDY}"
        )
    if meets_in == NOTHING:
        raise PathwiseGradientError(
            f"site {uses.site!r} (spike and slab): the model shows {NOTHING} that depends on its layer, "
            "so rows of its output may meet; call the guide with the model's data, let the model "
            "return its prediction, or take AutoConcrete (relaxed indicators)"
        )
    if meets_in:
        raise PathwiseGradientError(
            f"site {uses.site!r} (spike and slab): rows of its layer's output meet in one term of "
            f"{meets_in!r}, so they need the same weights, and drawn inclusion has no pathwise "
            "gradient; give every row a likelihood term of its own, or take AutoConcrete"
        )
