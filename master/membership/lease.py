"""Until when a master may serve: the clock side of its lease in the metadata store (invariant I7). Pure."""

from __future__ import annotations

KEEPALIVES = 3
"""In the time of one lease: one may be lost, and the next one late."""

MARGIN_SHARE = 0.2
"""Of the lease: for clocks that don't run alike, and for answers that are on their way."""


class LeaseClock:
    """The store counts a lease from when it got a keepalive, which is later than when that was sent: whoever counts from
    the sending stops serving before the store lets another take over. Seconds are of a clock that doesn't stop while
    the process does."""

    def __init__(self) -> None:
        self._until_s = float("-inf")
        self._next_s = float("-inf")

    def renewed(self, sent_s: float, ttl_s: float) -> None:
        """A grant or keepalive that was sent then has succeeded."""
        self._until_s = max(self._until_s, sent_s + ttl_s * (1 - MARGIN_SHARE))
        self._next_s = max(self._next_s, sent_s + ttl_s / KEEPALIVES)

    def lost(self) -> None:
        """The store has ended the lease."""
        self._until_s = self._next_s = float("-inf")

    def valid(self, now_s: float) -> bool:
        """Whether requests may be answered."""
        return now_s < self._until_s

    @property
    def until_s(self) -> float:
        """When that ends, if no keepalive succeeds."""
        return self._until_s

    def wait_s(self, now_s: float) -> float:
        """How long until the next keepalive is due."""
        return max(0.0, self._next_s - now_s)

    def validate(self) -> None:
        """Asserts that a keepalive is due before serving ends."""
        assert self._next_s <= self._until_s
