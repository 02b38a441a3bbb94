"""Records, leases and recent history in memory, without I/O or a clock: what the memory and file stores share."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from moonpool.master.store.base import Changes, Condition, Delete, DeletePrefix, Page, Put, Record, Write
from moonpool.master.store.limits import check_records_max, check_ttl, prefix_end
from moonpool.schemas.errors import Compacted, InvalidParams, LeaseLost

HISTORY_MAX = 10_000
"""Transactions kept for watchers; a slower one must read again."""


@dataclass(slots=True)
class _Lease:
    ttl_s: float
    ends_s: float
    keys: set[bytes] = field(default_factory=set)


class RecordTree:
    """The whole state of a store. `now_s` never goes back."""

    def __init__(self, revision: int = 1) -> None:
        self.revision = revision
        self._records: dict[bytes, Record] = {}
        self._keys: list[bytes] = []
        self._leases: dict[int, _Lease] = {}
        self._last_lease = 0
        self._history: deque[Changes] = deque()
        self._compacted = revision

    # ------------------------------------------------------------ records

    def read(self, prefix: bytes, after: bytes, records_max: int) -> Page:
        """See MetadataStore."""
        check_records_max(records_max)
        first = bisect_left(self._keys, prefix)
        if after:
            first = max(first, bisect_right(self._keys, after))
        last = self._end(prefix_end(prefix))
        keys = self._keys[first : min(last, first + records_max)]
        return Page(tuple(self._records[key] for key in keys), self.revision, first + len(keys) < last)

    def records(self) -> Iterator[Record]:
        """All of them, in key order."""
        return (self._records[key] for key in self._keys)

    def holds(self, conditions: Sequence[Condition]) -> bool:
        """Whether all conditions hold."""
        for condition in conditions:
            record = self._records.get(condition.key)
            if condition.value is not None:
                if record is None or record.value != condition.value:
                    return False
            elif (record.version if record else 0) != condition.version:
                return False
        return True

    def check_leases(self, writes: Sequence[Write]) -> None:
        """Raises LeaseLost where a put names a lease that isn't there."""
        for write in writes:
            if isinstance(write, Put) and write.lease and write.lease not in self._leases:
                raise LeaseLost(lease=write.lease)

    def apply(self, writes: Sequence[Write]) -> int:
        """Does the writes, which were checked before. Returns the revision after them, which nothing but changes
        raise."""
        revision = self.revision + 1
        puts: list[Record] = []
        deletes: list[bytes] = []
        for write in writes:
            if isinstance(write, Put):
                record = Record(write.key, write.value, revision, write.lease)
                self.restore(record)
                puts.append(record)
                continue
            if isinstance(write, DeletePrefix):
                first = bisect_left(self._keys, write.prefix)
                last = self._end(prefix_end(write.prefix))
            else:
                first = bisect_left(self._keys, write.key)
                last = first + (write.key in self._records)
            deletes += self._keys[first:last]
            for key in self._keys[first:last]:
                self._unlease(self._records.pop(key))
            del self._keys[first:last]
        if puts or deletes:
            self.revision = revision
            self._history.append(Changes(self.revision, tuple(puts), tuple(deletes)))
            if len(self._history) > HISTORY_MAX:
                self._compacted = self._history.popleft().revision
        return self.revision

    def restore(self, record: Record) -> None:
        """Puts a record as it is, outside any transaction of its own."""
        earlier = self._records.get(record.key)
        if earlier is None:
            insort(self._keys, record.key)
        else:
            self._unlease(earlier)
        self._records[record.key] = record
        if record.lease:
            self._leases[record.lease].keys.add(record.key)

    def _end(self, end: bytes) -> int:
        return bisect_left(self._keys, end) if end else len(self._keys)

    def _unlease(self, record: Record) -> None:
        if record.lease:
            self._leases[record.lease].keys.discard(record.key)

    # ------------------------------------------------------------ leases

    def grant(self, ttl_s: float, now_s: float) -> int:
        """See MetadataStore."""
        check_ttl(ttl_s)
        self._last_lease += 1
        self._leases[self._last_lease] = _Lease(ttl_s, now_s + ttl_s)
        return self._last_lease

    def keep_alive(self, lease: int, now_s: float) -> float:
        """See MetadataStore. Raises LeaseLost."""
        held = self._leases.get(lease)
        if held is None:
            raise LeaseLost(lease=lease)
        held.ends_s = now_s + held.ttl_s
        return held.ttl_s

    def revoke(self, lease: int) -> None:
        """Its records go in one transaction. One that has ended may be revoked too."""
        if lease not in self._leases:
            return
        keys = sorted(self._leases[lease].keys)
        if keys:
            self.apply([Delete(key) for key in keys])
        del self._leases[lease]

    def expire(self, now_s: float) -> None:
        """Ends the leases whose time is over."""
        for lease in [lease for lease, held in self._leases.items() if held.ends_s <= now_s]:
            self.revoke(lease)

    def next_expiry_s(self) -> float | None:
        """When the next lease ends, unless it is kept alive."""
        return min((held.ends_s for held in self._leases.values()), default=None)

    # ------------------------------------------------------------ history

    def changes(self, prefix: bytes, after_revision: int) -> list[Changes]:
        """What happened under the prefix since. Raises Compacted."""
        if after_revision < self._compacted:
            raise Compacted(revision=after_revision)
        found: list[Changes] = []
        for change in reversed(self._history):
            if change.revision <= after_revision:
                break
            puts = tuple(record for record in change.puts if record.key.startswith(prefix))
            deletes = tuple(key for key in change.deletes if key.startswith(prefix))
            if puts or deletes:
                found.append(Changes(change.revision, puts, deletes))
        return found[::-1]

    def compact(self, revision: int) -> None:
        """See MetadataStore."""
        if revision > self.revision:
            raise InvalidParams(field="revision", value=revision, allowed=f"at most {self.revision}")
        while self._history and self._history[0].revision <= revision:
            self._history.popleft()
        self._compacted = max(self._compacted, revision)

    def validate(self) -> None:
        """Asserts every invariant. A scan: for tests."""
        assert self._keys == sorted(self._records)
        leased = {key for held in self._leases.values() for key in held.keys}
        assert leased == {key for key, record in self._records.items() if record.lease}
        for key, record in self._records.items():
            assert record.key == key
            assert 0 < record.version <= self.revision
            assert not record.lease or key in self._leases[record.lease].keys
        revisions = [change.revision for change in self._history]
        assert revisions == sorted(set(revisions))
        assert len(revisions) <= HISTORY_MAX
        assert all(self._compacted < revision <= self.revision for revision in revisions)
