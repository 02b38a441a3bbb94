"""What may wait, in pieces of about a millisecond: all of a tick's at once would hold up every lookup for tens of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from moonpool.master.eviction import EvictionPolicy
from moonpool.master.shard import ShardIndex

SWEEP_PAUSE_S = 0.004
"""Some 30,000 copies a second."""

STUDY_PAUSE_S = 0.01
"""Lookups that aren't studied in time aren't studied at all, so this is no hurry."""


def do_piece(policy: EvictionPolicy, shards: Sequence[ShardIndex], now_s: float) -> float:
    """Sweeps what one shard has lost, or else learns from some lookups. Seconds until the next piece is due; inf: there is
    none."""
    if any(shard.sweep(now_s) for shard in shards):  # the first one that has anything to do
        return SWEEP_PAUSE_S
    more = policy.study()
    ceilings = [shard.demand.ceiling for shard in shards]
    if ceilings:
        max(ceilings, key=lambda one: one.waiting).study()
    return STUDY_PAUSE_S if more or any(one.waiting for one in ceilings) else inf
