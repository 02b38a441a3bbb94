"""Making room with several masters: whose victims are the oldest goes first (design, section 6). Pure."""

from __future__ import annotations

import math

PIECES = 4
PIECE_BYTES_MIN = 1 << 20
ROUNDS_MAX = 16
NOTHING = -1
"""What a master says of the age of its next victim where it has none."""


class NeedMerge:
    """When the masters' next victims were last used, on this node's clock, as each master said last."""

    def __init__(self) -> None:
        self._used_ms: dict[str, float] = {}

    def choose(self, masters: list[str], wanted_bytes: int, left_bytes: int) -> tuple[str, int] | None:
        """Whom to ask next, and for how much; None where nobody has anything left. One that was never asked may have
        the oldest of all."""
        if len(masters) == 1:
            return masters[0], left_bytes
        oldest = min(masters, key=lambda master: self._used_ms.get(master, -math.inf), default=None)
        if oldest is None or self._used_ms.get(oldest) == math.inf:
            return None
        piece_bytes = max(wanted_bytes // PIECES, PIECE_BYTES_MIN)
        return oldest, min(left_bytes, piece_bytes)

    def answered(self, master: str, next_age_ms: int, now_s: float) -> None:
        """What it says of its next victim."""
        self._used_ms[master] = math.inf if next_age_ms == NOTHING else now_s * 1000 - next_age_ms

    def begin(self, masters: list[str]) -> None:
        """A new need: who had nothing left may have something again."""
        self._used_ms = {
            master: used_ms
            for master, used_ms in self._used_ms.items()
            if master in masters and used_ms < math.inf
        }
