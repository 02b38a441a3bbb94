"""What survives every process: a mirror of the store's records, and what must be written for a request.

Pure. A request asks for `writes`, has them committed, and then gives them to `apply`; whoever loads gives it records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from moonpool.master.store import records
from moonpool.master.store.base import Delete, Put, Write
from moonpool.master.store.records import (
    DrainRecord,
    HardRecord,
    KeyspaceRecord,
    NodeRecord,
    PinRecord,
    RemovalRecord,
    ReplicaRecord,
    TenantRecord,
)
from moonpool.schemas.errors import CorruptStore
from moonpool.schemas.keyspace import KeyspaceSpec

Name = tuple[bytes, bytes]
"""(keyspace, hash)."""


class HardState:
    """Records of the cluster, and of the shards that this master owns. Times are ms since 1970."""

    def __init__(self) -> None:
        self.keyspaces: dict[bytes, KeyspaceSpec] = {}
        self.tenants: dict[str, TenantRecord] = {}
        self.drains: dict[str, DrainRecord] = {}
        self.replicas: dict[bytes, int] = {}
        self.nodes: dict[bytes, str] = {}
        self._pins: dict[int, dict[Name, int]] = {}
        self._removals: dict[int, dict[bytes, dict[int, RemovalRecord]]] = {}
        self._numbers: dict[tuple[int, bytes], int] = {}
        """The last one given to a removal."""

    # ------------------------------------------------------------ records

    def apply(self, writes: Iterable[Write]) -> None:
        """The store has them."""
        for write in writes:
            if isinstance(write, Put):
                self.put(write.key, write.value)
            elif isinstance(write, Delete):
                self._delete(*_parts(write.key))

    def put(self, key: bytes, value: bytes) -> None:
        """A record as it is in the store. Raises CorruptStore."""
        self._put(_parts(key), records.decode(key, value))

    def _put(self, parts: list[str], record: HardRecord) -> None:
        if isinstance(record, KeyspaceRecord):
            self.keyspaces[bytes.fromhex(parts[1])] = record.spec
        elif isinstance(record, TenantRecord):
            self.tenants[parts[1]] = record
        elif isinstance(record, DrainRecord):
            self.drains[parts[1]] = record
        elif isinstance(record, ReplicaRecord):
            self.replicas[bytes.fromhex(parts[1])] = record.replicas
        elif isinstance(record, NodeRecord):
            self.nodes[bytes.fromhex(parts[1])] = record.node
        elif isinstance(record, PinRecord):
            shard, keyspace, block_hash = parts[1:]
            name = (bytes.fromhex(keyspace), bytes.fromhex(block_hash))
            self._pins.setdefault(int(shard), {})[name] = record.until_ms
        else:
            shard, segment, number = parts[1:]
            of_shard = self._removals.setdefault(int(shard), {})
            of_shard.setdefault(bytes.fromhex(segment), {})[int(number)] = record

    def _delete(self, kind: str, *parts: str) -> None:
        if kind == "keyspaces":
            self.keyspaces.pop(bytes.fromhex(parts[0]), None)
        elif kind == "tenants":
            self.tenants.pop(parts[0], None)
        elif kind == "drains":
            self.drains.pop(parts[0], None)
        elif kind == "replicas":
            self.replicas.pop(bytes.fromhex(parts[0]), None)
        elif kind == "nodes":
            self.nodes.pop(bytes.fromhex(parts[0]), None)
        elif kind == "pins":
            name = (bytes.fromhex(parts[1]), bytes.fromhex(parts[2]))
            self._pins.get(int(parts[0]), {}).pop(name, None)
        elif kind == "removals":
            of_shard, segment = self._removals.get(int(parts[0]), {}), bytes.fromhex(parts[1])
            of_shard.get(segment, {}).pop(int(parts[2]), None)
            if not of_shard.get(segment, True):
                del of_shard[segment]

    def disown(self, shard: int) -> None:
        """Another master changes that shard's records from now on."""
        self._pins.pop(shard, None)
        self._removals.pop(shard, None)
        self._numbers = {name: number for name, number in self._numbers.items() if name[0] != shard}

    # ------------------------------------------------------------ what must be written

    def register(self, spec: KeyspaceSpec) -> list[Write]:
        """For a keyspace to be known."""
        if spec.digest() in self.keyspaces:
            return []
        return [Put(records.keyspace_key(spec.digest()), records.encode(KeyspaceRecord(spec)))]

    def pin(self, shard: int, keyspace: bytes, hashes: Iterable[bytes], until_ms: int) -> list[Write]:
        """For these to be pinned until then (0: until unpinned). A pin is never shortened."""
        pins = self._pins.get(shard, {})
        value = records.encode(PinRecord(until_ms))
        writes: list[Write] = []
        for block_hash in dict.fromkeys(hashes):
            known = pins.get((keyspace, block_hash), -1)
            if known < 0 or (known > 0 and (until_ms == 0 or until_ms > known)):
                writes.append(Put(records.pin_key(shard, keyspace, block_hash), value))
        return writes

    def unpin(self, shard: int, keyspace: bytes, hashes: Iterable[bytes]) -> list[Write]:
        """For these to be pinned no more."""
        pins = self._pins.get(shard, {})
        return [
            Delete(records.pin_key(shard, keyspace, block_hash))
            for block_hash in dict.fromkeys(hashes)
            if (keyspace, block_hash) in pins
        ]

    def expired(self, now_ms: int, removals_ms: int, records_max: int) -> dict[int, list[Write]]:
        """By shard: for pins whose time is over by `now_ms`, and removals older than `removals_ms`, to leave the
        store."""
        found: dict[int, list[Write]] = {}
        for shard, pins in self._pins.items():
            for (keyspace, block_hash), until_ms in pins.items():
                if 0 < until_ms <= now_ms:
                    found.setdefault(shard, []).append(Delete(records.pin_key(shard, keyspace, block_hash)))
        for shard, of_shard in self._removals.items():
            for segment, removals in of_shard.items():
                for number, removal in removals.items():
                    if removal.at_ms < removals_ms:
                        found.setdefault(shard, []).extend(self.removed(shard, segment, number))
        return {shard: writes[:records_max] for shard, writes in found.items()}

    def remove(self, shard: int, segment: bytes, removal: RemovalRecord) -> tuple[int, list[Write]]:
        """For a node to be told again when it is back: the removal's number, and what to write."""
        known = max(self._removals.get(shard, {}).get(segment, ()), default=0)
        # Never one that was used: a deletion of that may be said again.
        number = max(known, self._numbers.get((shard, segment), 0)) + 1
        self._numbers[shard, segment] = number
        return number, [Put(records.removal_key(shard, segment, number), records.encode(removal))]

    def removed(self, shard: int, segment: bytes, number: int) -> list[Write]:
        """The node has confirmed it."""
        return [Delete(records.removal_key(shard, segment, number))]

    # ------------------------------------------------------------ facts

    def pins(self, shard: int) -> Iterator[tuple[bytes, bytes, int]]:
        """(keyspace, hash, until ms or 0) of each."""
        for (keyspace, block_hash), until_ms in self._pins.get(shard, {}).items():
            yield keyspace, block_hash, until_ms

    def segments(self, shard: int) -> list[bytes]:
        """Those that have removals to confirm."""
        return list(self._removals.get(shard, ()))

    def removals(self, shard: int, segment: bytes) -> dict[int, RemovalRecord]:
        """By number, oldest first, those that a segment has not confirmed."""
        return dict(sorted(self._removals.get(shard, {}).get(segment, {}).items()))

    def keys_of(self, kind: str) -> set[bytes]:
        """Of all records of a kind that concerns the whole cluster."""
        if kind == "keyspaces":
            return set(map(records.keyspace_key, self.keyspaces))
        if kind == "tenants":
            return set(map(records.tenant_key, self.tenants))
        if kind == "drains":
            return set(map(records.drain_key, self.drains))
        if kind == "nodes":
            return set(map(records.node_key, self.nodes))
        return set(map(records.replicas_key, self.replicas))

    def facts(self) -> dict[str, int]:
        """How much there is."""
        removals = [found for of_shard in self._removals.values() for found in of_shard.values()]
        return {
            "recorded_keyspaces": len(self.keyspaces),
            "recorded_pins": sum(map(len, self._pins.values())),
            "recorded_removals": sum(map(len, removals)),
            "recorded_nodes": len(self.nodes),
        }

    def validate(self) -> None:
        """Asserts every invariant."""
        for digest, spec in self.keyspaces.items():
            assert spec.digest() == digest
        for shard, pins in self._pins.items():
            assert shard >= 0
            assert all(until_ms >= 0 for until_ms in pins.values())
        for of_shard in self._removals.values():
            assert all(of_shard.values()), "a segment without removals"
            assert all(number > 0 for found in of_shard.values() for number in found)


def _parts(key: bytes) -> list[str]:
    parts = key.decode(errors="replace").split("/")
    wanted = {"pins": 4, "removals": 4}.get(parts[0], 2)
    if len(parts) < wanted:
        raise CorruptStore(path="the metadata store", offset=key, reason="its key has too few parts")
    return parts if wanted == 4 else [parts[0], "/".join(parts[1:])]


def shards_of(writes: Sequence[Write]) -> set[int]:
    """Shards whose records these are."""
    keys = [write.key for write in writes if isinstance(write, (Put, Delete))]
    return {int(_parts(key)[1]) for key in keys if key.startswith((b"pins/", b"removals/"))}
