"""Finds an object that called us, where vLLM hands no reference to it: the model runner, a MultiConnector."""

from __future__ import annotations

import sys
from collections.abc import Callable

DEPTH_MAX = 24


def calling_object(fits: Callable[[object], bool]) -> object | None:
    """The `self` of the nearest method up the stack that fits."""
    frame = sys._getframe(1)
    for _ in range(DEPTH_MAX):
        if frame.f_back is None:
            return None
        frame = frame.f_back
        owner: object = frame.f_locals.get("self")
        if owner is not None and fits(owner):
            return owner
    return None
