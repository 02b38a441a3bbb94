"""What bounds one exchange on a data lane."""

from __future__ import annotations

import time

from moonpool.schemas.errors import TooLarge

STALL_S = 30.0
"""A peer that gives or takes no byte for so long is closed."""

BYTES_MAX = 8 << 30
"""Payload of one exchange: a run of large blocks."""

BYTES_A_SECOND_MIN = 8 << 20
"""A peer that is slower than this over a whole exchange is closed: its slots are not its own."""


def total_of(lengths: list[int]) -> int:
    """Bytes of all objects of one exchange. Raises TooLarge."""
    total = sum(lengths)
    if total > BYTES_MAX:
        raise TooLarge(what="the payload of one exchange", size_bytes=total, limit_bytes=BYTES_MAX)
    return total


def deadline_of(size_bytes: int) -> float:
    """When (monotonic) so many bytes must have moved."""
    return time.monotonic() + STALL_S + size_bytes / BYTES_A_SECOND_MIN
