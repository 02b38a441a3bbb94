"""Keyspaces of which a shard's entry log can't be believed: something was removed since it was written (I8). Pure.

A removal is acknowledged when the store has such a record. A new owner takes no hints of that keyspace, its nodes'
inventories tell; and the next whole pass of the log takes the record back. So a stream of removals costs one small
record a keyspace and pass, however long it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from moonpool.master.store.base import Delete, Put

VALUE = b"void/1"


def void_prefix(shard: int) -> bytes:
    """Of all such records of a shard."""
    return f"log_void/{shard:05}/".encode()


def void_key(shard: int, keyspace: bytes) -> bytes:
    """Of one."""
    return void_prefix(shard) + keyspace.hex().encode()


def voided_by(key: bytes) -> bytes:
    """The keyspace of a record's key. Raises ValueError."""
    return bytes.fromhex(key.split(b"/")[2].decode())


class Voids:
    """One shard's. Puts and deletions must reach the store in the order in which they are made here."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.unheeded: set[bytes] = set()
        """Keyspaces whose hints don't count any more in this life of the shard."""
        self._held: set[bytes] = set()
        """The store surely has the record."""
        self._written: set[bytes] = set()
        """It may have it."""
        self._removed: set[bytes] = set()
        """Something was removed since the pass under way began."""

    def found(self, keyspaces: Iterable[bytes]) -> None:
        """The store has these when the shard is taken over."""
        for keyspace in keyspaces:
            self.unheeded.add(keyspace)
            self._held.add(keyspace)
            self._written.add(keyspace)

    def removed(self, keyspace: bytes) -> None:
        """Rows of it leave the index now."""
        self.unheeded.add(keyspace)
        self._removed.add(keyspace)

    def holds(self, keyspace: bytes) -> bool:
        """Whether the store has the record: a removal may be acknowledged then."""
        return keyspace in self._held

    def put(self, keyspace: bytes) -> Put:
        """The record, which is about to be written; then call `held`."""
        self._written.add(keyspace)
        return Put(void_key(self.shard, keyspace), VALUE)

    def held(self, keyspace: bytes) -> None:
        """The store has what was put."""
        self._held.add(keyspace)

    def begin_pass(self, going_on: Collection[bytes] = ()) -> set[bytes]:
        """Records that this pass of the log makes needless. Not those of keyspaces where removals are `going_on`: the
        pass still writes rows that are to go."""
        self._removed = set(going_on)
        return self._written - self._removed

    def end_pass(self, covered: set[bytes]) -> list[Delete]:
        """What leaves the store, of what its beginning said: not where something was removed meanwhile."""
        gone = covered - self._removed
        self._held -= gone  # whoever removes from now on writes it anew, behind the deletion
        return [Delete(void_key(self.shard, keyspace)) for keyspace in sorted(gone)]

    def taken_back(self, deletes: Iterable[Delete]) -> None:
        """The store has these deletions."""
        self._written -= {voided_by(delete.key) for delete in deletes}

    def validate(self) -> None:
        """Asserts that nothing is held that was never written."""
        assert self._held <= self._written
