"""What a master knows of the cluster: a pure mirror of the records of membership, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from moonpool.master.membership.assignment import assign
from moonpool.master.membership.records import (
    MASTERS,
    SHARDS,
    MasterRecord,
    OwnerRecord,
    decode,
)
from moonpool.master.store.base import Changes, Record
from moonpool.schemas.errors import CorruptStore


class Epoch(NamedTuple):
    """The last epoch of a shard, and the version of its record."""

    epoch: int = 0
    version: int = 0


class Member(NamedTuple):
    """Where a master is: for clients and nodes, and its REST interface (empty: none)."""

    address: str
    http: str


class ClusterView:
    """The records as of `revision`."""

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.revision = 0
        self._masters: dict[str, MasterRecord] = {}
        self._owners: dict[int, OwnerRecord] = {}
        self._epochs: dict[int, Epoch] = {}

    # ------------------------------------------------------------ records

    def reset(self, records: Iterable[Record], revision: int) -> None:
        """All records, read anew."""
        self._masters.clear()
        self._owners.clear()
        self._epochs.clear()
        for record in records:
            self._put(record)
        self.revision = revision

    def apply(self, changes: Changes) -> None:
        """One later transaction."""
        for key in changes.deletes:
            self._delete(key)
        for record in changes.puts:
            self._put(record)
        self.revision = changes.revision

    def _put(self, record: Record) -> None:
        if record.key.startswith(MASTERS):
            value = decode(record.key, record.value)
            if isinstance(value, MasterRecord):
                self._masters[_master_of(record.key)] = value
        elif record.key.startswith(SHARDS):
            shard, what = _shard_of(record.key)
            if what == b"epoch":
                self._epochs[shard] = Epoch(_number(record.key, record.value), record.version)
            elif what == b"owner":
                value = decode(record.key, record.value)
                if isinstance(value, OwnerRecord):
                    self._owners[shard] = value

    def _delete(self, key: bytes) -> None:
        if key.startswith(MASTERS):
            self._masters.pop(_master_of(key), None)
        elif key.startswith(SHARDS):
            shard, what = _shard_of(key)
            if what == b"owner":
                self._owners.pop(shard, None)

    # ------------------------------------------------------------ what follows

    def owner(self, shard: int) -> OwnerRecord | None:
        """Who owns a shard."""
        return self._owners.get(shard)

    def epoch(self, shard: int) -> Epoch:
        """The last epoch in which anybody owned it."""
        return self._epochs.get(shard, Epoch())

    def assigned_to(self, master: str) -> set[int]:
        """The shards that a master should own, among those that live and don't drain."""
        staying = [name for name, record in self._masters.items() if not record.draining]
        owners = {shard: owner.master for shard, owner in self._owners.items()}
        return {shard for shard, name in assign(self.shards, staying, owners).items() if name == master}

    def to_take(self, master: str) -> list[int]:
        """Shards that nobody owns and that this one should."""
        return sorted(shard for shard in self.assigned_to(master) if shard not in self._owners)

    def to_release(self, master: str, held: Iterable[int]) -> list[int]:
        """Shards that it holds, and that are another's turn."""
        return sorted(set(held) - self.assigned_to(master))

    @property
    def addresses(self) -> list[str]:
        """Of all masters, in order."""
        return sorted({record.address for record in self._masters.values()})

    def members(self) -> list[Member]:
        """All masters by address."""
        found = {record.address: record.http for record in self._masters.values()}
        return [Member(address, found[address]) for address in sorted(found)]

    def owners_by_address(self) -> list[int]:
        """For each shard an index into `addresses`, -1 where nobody owns it."""
        index = {address: i for i, address in enumerate(self.addresses)}
        found = []
        for shard in range(self.shards):
            owner = self._owners.get(shard)
            master = self._masters.get(owner.master) if owner is not None else None
            found.append(index[master.address] if master is not None else -1)
        return found


def _master_of(key: bytes) -> str:
    return key.removeprefix(MASTERS).decode(errors="replace")


def _shard_of(key: bytes) -> tuple[int, bytes]:
    number, _, what = key.removeprefix(SHARDS).partition(b"/")
    return _number(key, number), what


def _number(key: bytes, digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 19:
        raise CorruptStore(path="the metadata store", offset=key, reason=f"{digits[:32]!r} is no number")
    return int(digits)
