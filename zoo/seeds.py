"""Seeds by name: whatever draws random numbers has a stream of its own.  Imports nothing slow.

One number that seeds two things makes them equal, or depend on each other: with one seed for a fit and for
the draws from it, the noise of a drawn network was correlated with the means that the fit started from.
"""

from __future__ import annotations

import hashlib
import json


def stable_seed(*parts: object) -> int:
    """A number below 2^32 that depends on the parts alone, not on process, platform or version.

    :param parts: what the numbers are for, first in a word, then whatever tells it from others of its kind:
        ``stable_seed("draws", seed, guide)``; JSON-safe
    """
    text = json.dumps(parts, ensure_ascii=True, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
