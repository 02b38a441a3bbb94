"""Which blocks prompts have in common most often: heavy hitters, counted with a bounded number of counters.

A lookup costs one dictionary look-up and an addition. When there are twice as many counters as are kept, the largest are
kept, and the first one that isn't is subtracted from them (Misra and Gries): whatever was asked for more often than
that is there, and its count is short by no more than the sum of what was subtracted.
"""

from __future__ import annotations

from typing import NamedTuple

KEPT = 1024
HALVE_EVERY_S = 900.0
"""Counts halve so often, so that what was asked for long ago makes room."""


class TopPrefix(NamedTuple):
    """Lookups of prompts that begin with a block. `found`: how many of them found it."""

    keyspace: bytes
    block_hash: bytes
    requests: float
    found: float


class TopPrefixes:
    """One shard's, of first blocks or of blocks further on. A run has one shard: no other one counts the same."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._counts: dict[tuple[bytes, bytes], list[float]] = {}
        self._halve_s = 0.0
        self.missed_max = 0.0
        """By how much a count may be too low, and what was asked for so often may be missing."""

    def asked(
        self, keyspace: bytes, block_hash: bytes, *, found: bool, now_s: float, weight: int = 1
    ) -> None:
        """A lookup of a prompt that has this block, or `weight` of them."""
        if now_s >= self._halve_s:
            self._halve(now_s)
        counts = self._counts.get((keyspace, block_hash))
        if counts is None:
            if len(self._counts) >= 2 * self._kept:
                self._prune()
            counts = self._counts[keyspace, block_hash] = [0.0, 0.0]
        counts[0] += weight
        counts[1] += weight * found

    def top(self) -> list[TopPrefix]:
        """Those that are kept, the most wanted first."""
        found = [TopPrefix(*name, *counts) for name, counts in self._counts.items()]
        found.sort(key=lambda one: (-one.requests, one.keyspace, one.block_hash))
        return found[: self._kept]

    def hits(self, least: float) -> dict[tuple[bytes, bytes], float]:
        """How many lookups found each, of those that were found so often at least."""
        return {name: found for name, (_, found) in self._counts.items() if found >= least}

    def _prune(self) -> None:
        ordered = sorted(self._counts.items(), key=lambda item: -item[1][0])
        cut = ordered[self._kept][1][0]
        self.missed_max += cut
        self._counts = {
            name: [requests - cut, min(found, requests - cut)]
            for name, (requests, found) in ordered[: self._kept]
            if requests > cut
        }

    def _halve(self, now_s: float) -> None:
        self._halve_s = now_s + HALVE_EVERY_S
        self.missed_max /= 2
        for counts in self._counts.values():
            counts[0] /= 2
            counts[1] /= 2

    def validate(self) -> None:
        """Asserts the bound, and that nothing was found more often than asked for."""
        assert len(self._counts) <= 2 * self._kept
        assert all(0 <= found <= requests for requests, found in self._counts.values())
