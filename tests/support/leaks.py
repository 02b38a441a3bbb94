"""What must be gone after a test."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from support.waiting import PATIENCE_S, wait_until


@contextmanager
def no_thread_left(timeout_s: float = PATIENCE_S) -> Iterator[None]:
    """Threads that start inside end by then. Those of earlier tests may end meanwhile, so they are not counted."""
    before = set(threading.enumerate())
    yield

    def left() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread not in before]

    try:
        wait_until(lambda: not left(), timeout_s)
    except AssertionError:
        raise AssertionError(f"threads left: {left()}") from None


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """As many file descriptors as before, or fewer."""
    before = _open_descriptors()
    yield
    wait_until(lambda: len(_open_descriptors()) <= len(before))


def _open_descriptors() -> list[str]:
    return os.listdir("/proc/self/fd")
