"""Slots that the node of this host has granted ahead of need: whose size they have, and until when they are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import AHEAD_BYTES, AHEAD_SLOTS, Granted
from moonpool.schemas.packed import U32, u32s
from moonpool.store_client.node.layout import fixed_slot_bytes, object_slot_bytes
from moonpool.store_client.transports.base import SpecOf, WriteBatch

GRANTS_MAX = 8

KEPT_S = 1.0
"""Then they go back to the node, which has a better use for them."""


class AheadGrant(NamedTuple):
    """Slots of one put. `session`: whose they are."""

    session: int
    put_id: int
    slots: U32
    slot_bytes: int
    kept_s: float


class AheadGrants:
    """Pure; each grant is given out once. To be used under a lock."""

    def __init__(self) -> None:
        self._grants: list[AheadGrant] = []

    def __len__(self) -> int:
        return len(self._grants)

    def keep(self, session: int, granted: Granted, slot_bytes: int, now_s: float) -> bool:
        """False where it isn't kept."""
        if len(self._grants) >= GRANTS_MAX or any(granted.statuses):
            return False
        if len(granted.slots) != 4 * len(granted.statuses):  # a node that lies
            return False
        self._grants.append(AheadGrant(session, granted.put_id, u32s(granted.slots), slot_bytes, now_s))
        return True

    def take(self, slot_bytes: int, count: int) -> AheadGrant | None:
        """The last one that has so many slots of that size."""
        for i in reversed(range(len(self._grants))):
            grant = self._grants[i]
            if grant.slot_bytes == slot_bytes and len(grant.slots) >= count:
                return self._grants.pop(i)
        return None

    def expire(self, now_s: float) -> list[int]:
        """Drops those that nobody wanted for KEPT_S; returns their put ids."""
        old = [grant for grant in self._grants if now_s - grant.kept_s >= KEPT_S]
        self._grants = [grant for grant in self._grants if now_s - grant.kept_s < KEPT_S]
        return [grant.put_id for grant in old]


def slot_bytes_of(batches: Sequence[WriteBatch], spec_of: SpecOf) -> int:
    """Size of the slots that the node grants for these objects; 0 where they have several or are of several keyspaces, or are too
    many to be granted slots ahead, or will never be put in one batch, as plain objects are once no master is asked."""
    keyspace, count = batches[0].item.keyspace, sum(batch.source.count for batch in batches)
    spec = spec_of(keyspace)
    if spec is None or not 0 < count <= AHEAD_SLOTS or any(one.item.keyspace != keyspace for one in batches):
        return 0
    if len(batches) > 1 and not spec.variable_size:
        return 0
    sizes = {_slot_bytes(batch, spec) for batch in batches}
    size = sizes.pop()
    return 0 if sizes or size * count > AHEAD_BYTES else size


def _slot_bytes(batch: WriteBatch, spec: KeyspaceSpec) -> int:
    """Of one batch; 0 where they have several sizes."""
    if spec.variable_size:
        sizes = batch.lengths.tolist() or [0]
        if batch.item.keys:
            sizes = list(map(int.__add__, sizes, key_bytes(batch.item.keys)))
        size = object_slot_bytes(max(sizes))
        return size if object_slot_bytes(min(sizes)) == size else 0
    return fixed_slot_bytes(spec.shard_bytes[batch.item.rank])


def key_bytes(keys: Sequence[str]) -> list[int]:
    """UTF-8 bytes of each key text."""
    if all(map(str.isascii, keys)):
        return list(map(len, keys))
    return [len(key.encode()) for key in keys]
