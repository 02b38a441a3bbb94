"""Waiting for what will come, on a machine that may be slow."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(holds: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Asks until it holds. Raises AssertionError where it never does."""
    end_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end_s, "it never came to hold"
        time.sleep(0.01)
