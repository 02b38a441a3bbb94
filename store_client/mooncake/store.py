"""MooncakeDistributedStore: Mooncake Store's Python API over a Moonpool client."""

from __future__ import annotations

from moonpool.store_client.mooncake.lifecycle import LifecycleCalls
from moonpool.store_client.mooncake.ranges import RangeCalls
from moonpool.store_client.mooncake.removal import RemovalCalls, ReplicaCalls
from moonpool.store_client.mooncake.tensors import TensorCalls


class MooncakeDistributedStore(LifecycleCalls, TensorCalls, RangeCalls, RemovalCalls, ReplicaCalls):
    """Takes what Mooncake's class takes and returns what it returns, except where docs/mooncake-compat.md says so.

    Thread-safe. In a forked child every call raises UsedAfterFork: make a new store there.
    """
