"""What this client may put without asking the master first, and where: see PutStarted."""

from __future__ import annotations

from typing import NamedTuple

from moonpool.schemas.messages import DIRECT_BYTES

DIRECT_MS_MAX = 5000
"""Whatever a master says."""

PERMITS_MAX = 1024


class Rows(NamedTuple):
    """Of one keyspace, rank and shard."""

    keyspace: bytes
    rank: int
    shard: int


class _Permit(NamedTuple):
    segment: bytes
    until_s: float
    bytes_max: int


class Permits:
    """Pure: of one client, whose threads may all call it, since each step is one of a dict's."""

    def __init__(self) -> None:
        self._permits: dict[Rows, _Permit] = {}

    def segment(self, rows: Rows, size_bytes: int, now_s: float) -> bytes | None:
        """Where such rows, of so many bytes in all, may be put; None: ask."""
        permit = self._permits.get(rows)
        if permit is None or now_s >= permit.until_s or size_bytes > permit.bytes_max:
            return None
        return permit.segment

    def give(
        self, rows: Rows, segment: bytes, asked_s: float, direct_ms: int, bytes_max: int = DIRECT_BYTES
    ) -> None:
        """As a master has said, when it was asked at `asked_s`."""
        if rows not in self._permits and len(self._permits) >= PERMITS_MAX:
            self._permits.clear()  # asking costs little
        until_s = asked_s + min(max(direct_ms, 0), DIRECT_MS_MAX) / 1000
        self._permits[rows] = _Permit(segment, until_s, min(bytes_max, DIRECT_BYTES))

    def take(self, rows: Rows) -> None:
        """The next put of these asks."""
        self._permits.pop(rows, None)
