"""Marks of tests in several folders."""

from __future__ import annotations

import functools
import os

import pytest

#: A case of a test that is slow.
SLOW = functools.partial(pytest.param, marks=pytest.mark.slow)
NEEDS_MIRROR = pytest.mark.skipif("ZOO_DATA" not in os.environ, reason="ZOO_DATA is not set: no real files")
