"""The pool client's numbers as Stats: transfers by transport, and peers that are not asked for the moment."""

from __future__ import annotations

from moonpool.connector.counters import Stats, key_of
from moonpool.connector.pool_client import PoolClient


class ClientStats:
    """Of the client of one half. `side`: scheduler or worker."""

    def __init__(self, client: PoolClient, side: str) -> None:
        self._client = client
        self._side = side
        self._told: dict[str, int] = {}

    def take(self) -> Stats:
        """What happened since the last call. A gauge is told while it isn't 0, and once when it is again: so it can be
        told together with those of other workers, of which the largest counts."""
        telemetry = self._client.take_telemetry()
        stats: Stats = {}
        for way, moved in telemetry.transfers.items():
            stats[key_of("transfer_bytes", *way)] = moved.size_bytes
            stats[key_of("transfer_seconds", *way)] = list(moved.seconds)
            stats[key_of("transfer_failures", *way)] = moved.failures
        for peer, count in telemetry.open_breakers.items():
            if count or self._told.get(peer):
                stats[key_of("open_breakers", self._side, peer)] = count
            self._told[peer] = count
        return stats
