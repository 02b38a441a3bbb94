"""RecordTree and MemoryStore against a dict, under any order of calls; leases by a clock that stands still."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from moonpool.master.store.base import Condition, Delete, DeletePrefix, Put, Record, Write
from moonpool.master.store.limits import check_commit
from moonpool.master.store.memory import MemoryStore
from moonpool.master.store.tree import RecordTree
from moonpool.schemas.clock import FakeClock
from moonpool.schemas.errors import Compacted, InvalidParams, LeaseLost

KEYS = st.sampled_from([b"a", b"a/1", b"a/2", b"b", b"b/\xff", b"\xff"])


class TreeMachine(RuleBasedStateMachine):
    """Each step is done on a plain dict too, and kept as a whole picture a revision: watches are checked by it."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = RecordTree()
        self.now_s = 0.0
        self.pictures = {self.tree.revision: dict[bytes, Record]()}
        self.ends: dict[int, float] = {}
        self.compacted = self.tree.revision

    def picture(self) -> dict[bytes, Record]:
        return dict(self.pictures[max(self.pictures)])

    @rule(
        puts=st.dictionaries(KEYS, st.tuples(st.binary(max_size=2), st.booleans()), max_size=3),
        deletes=st.lists(KEYS, max_size=2),
        prefix=st.none() | KEYS,
        condition=st.none() | st.tuples(KEYS, st.booleans()),
    )
    def commit(
        self,
        puts: dict[bytes, tuple[bytes, bool]],
        deletes: list[bytes],
        prefix: bytes | None,
        condition: tuple[bytes, bool] | None,
    ) -> None:
        lease = max(self.ends, default=0)
        writes: list[Write] = [
            Put(key, value, lease if leased else 0) for key, (value, leased) in puts.items()
        ]
        writes += [Delete(key) for key in deletes]
        writes += [DeletePrefix(prefix)] if prefix is not None else []
        try:
            check_commit(writes, [])
        except InvalidParams:
            return
        now = self.picture()
        if condition is not None:
            key, there = condition
            version = now[key].version if key in now else 0
            assert self.tree.holds([Condition(key, version if there else version + 1)]) is there
            return
        revision = self.tree.apply(writes)
        for write in writes:
            if isinstance(write, Put):
                now[write.key] = Record(write.key, write.value, revision, write.lease)
            elif isinstance(write, Delete):
                now.pop(write.key, None)
            else:
                now = {key: record for key, record in now.items() if not key.startswith(write.prefix)}
        if now != self.picture() or puts:
            self.pictures[revision] = now
        assert revision == max(self.pictures)

    @rule(ttl_s=st.integers(1, 5))
    def grant(self, ttl_s: int) -> None:
        self.ends[self.tree.grant(ttl_s, self.now_s)] = self.now_s + ttl_s

    @rule(seconds=st.integers(1, 4))
    def time(self, seconds: int) -> None:
        self.now_s += seconds
        self.tree.expire(self.now_s)
        for lease in [lease for lease, ends_s in self.ends.items() if ends_s <= self.now_s]:
            self.end(lease)

    @rule()
    def revoke(self) -> None:
        if self.ends:
            lease = min(self.ends)
            self.tree.revoke(lease)
            self.end(lease)

    def end(self, lease: int) -> None:
        del self.ends[lease]
        now = {key: record for key, record in self.picture().items() if record.lease != lease}
        if now != self.picture():
            self.pictures[max(self.pictures) + 1] = now

    @rule(back=st.integers(0, 3))
    def compact(self, back: int) -> None:
        revision = max(1, self.tree.revision - back)
        self.tree.compact(revision)
        self.compacted = max(self.compacted, revision)

    @invariant()
    def valid(self) -> None:
        self.tree.validate()

    @invariant()
    def equal(self) -> None:
        now = self.picture()
        assert {record.key: record for record in self.tree.records()} == now
        for prefix in (b"", b"a", b"b/", b"\xff"):
            page = self.tree.read(prefix, b"", 100)
            assert [one.key for one in page.records] == sorted(key for key in now if key.startswith(prefix))
            assert page.revision == self.tree.revision == max(self.pictures)

    @invariant()
    def history_leads_from_each_picture_to_the_last(self) -> None:
        for revision, picture in self.pictures.items():
            if revision < self.compacted:
                try:
                    self.tree.changes(b"", revision)
                except Compacted:
                    continue
                raise AssertionError("history that was compacted is still given out")
            reached = dict(picture)
            for change in self.tree.changes(b"", revision):
                for key in change.deletes:
                    del reached[key]
                reached.update((record.key, record) for record in change.puts)
            assert reached == self.picture()


TestTree = TreeMachine.TestCase
TestTree.settings = settings(derandomize=True, deadline=None, max_examples=60, stateful_step_count=20)


async def test_leases_end_by_the_clock() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    lease = await store.grant(3, timeout_s=1)
    await store.commit([Put(b"a", b"", lease)], timeout_s=1)
    clock.advance(2)
    await store.keep_alive(lease, timeout_s=1)
    clock.advance(2.9)
    assert (await store.read(b"", timeout_s=1)).records
    clock.advance(0.2)
    assert not (await store.read(b"", timeout_s=1)).records
    store.validate()
    try:
        await store.keep_alive(lease, timeout_s=1)
    except LeaseLost:
        return
    raise AssertionError("the lease should have ended")
