"""The index against the naive one, under random commits, removals, reads, evictions, doubts and flapping nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from support.paper_cluster import (
    BLOCK_BYTES,
    chain,
    dropped,
)
from support.reporting_machine import (
    BLOCKS,
    CHAINS,
    HASHES,
    LATER,
    NAMES,
    PARENTS,
    POSITIONS,
    WORLD,
    ReportingMachine,
    blocks,
    hash_lists,
    leases_ms,
    names,
    ranks,
)
from support.soak import SOAK

from moonpool.master import commits, many_rows, removals
from moonpool.master import victims as candidates_module
from moonpool.master.columns import NO_ROW
from moonpool.master.victims import Budget
from moonpool.schemas.messages import (
    Checked,
    Done,
    Locate,
    Located,
    Match,
    Matched,
    NodeState,
    Pin,
    Presence,
    Present,
    PutAbandon,
    PutAnswer,
    PutItem,
    PutStart,
    PutStarted,
    Remove,
    Removed,
    Renew,
    Renewed,
    ReportBad,
    RunSlice,
    Unpin,
)
from moonpool.schemas.packed import join_hashes, u64s


@pytest.fixture(autouse=True, scope="module")
def small_slices() -> Iterator[None]:
    """Queues are made anew in steps that other things happen between; removals are often too much at once; two rows
    are many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates_module, "REBUILD_ROWS", 4)
        patch.setattr(removals, "COPIES_MAX", 3 * WORLD)
        patch.setattr(removals, "SLICE_ROWS", 2)
        patch.setattr(many_rows, "MANY", 2)
        patch.setattr(commits, "MANY", 2)
        yield


class IndexMachine(ReportingMachine):
    """What both kinds of keyspace share: clients, time, and nodes in need."""

    # ------------------------------------------------------------ readers and writers

    @rule(hashes=hash_lists, lease_ms=leases_ms)
    def renew(self, hashes: list[bytes], lease_ms: int) -> None:
        reply = self.cluster.ask(Renew(self.keyspace, join_hashes(hashes), lease_ms))
        assert isinstance(reply, Renewed)
        for block_hash, bit in zip(hashes, reply.bits, strict=True):
            assert bit == self.model.ready(block_hash)
            if bit:
                row = self.model.rows[block_hash]
                row.lease_s = max(row.lease_s, self.now_s + lease_ms / 1000)
                row.last_use_s = self.now_s

    @rule(rank=ranks, first=blocks, count=st.integers(1, 3), name=names, abandon=st.booleans())
    def put_start(self, rank: int, first: bytes, count: int, name: str, abandon: bool) -> None:
        hashes = self.follow(first, count) if self.chained else [first]
        block = BLOCKS[first]
        item = PutItem(self.keyspace, rank, block.position, block.parent, join_hashes(hashes), BLOCK_BYTES)
        reply = self.cluster.ask(PutStart([item], 2700), f"host-{name}")
        assert isinstance(reply, PutStarted)
        assert list(reply.answers[0]) == self.expect_put(rank, hashes)
        went = [h for h, answer in zip(hashes, reply.answers[0], strict=True) if answer == PutAnswer.GO]
        if went and self.usable(name) and not self.shunned(name):
            assert reply.segments == [self.cluster.segments[name].info.segment]
        if abandon and went:
            self.cluster.ask(PutAbandon(self.keyspace, rank, went[0]))
            went.pop(0)
        self.promised |= {(rank, h): self.now_s + 2.7 for h in went}

    def shunned(self, name: str) -> bool:
        """Whether a put there was given up lately."""
        node = self.cluster.core._nodes.get(self.cluster.segments[name].info.segment)
        return node is not None and node.is_shunned(f"host-{name}", self.now_s)

    def follow(self, first: bytes, count: int) -> list[bytes]:
        hashes = [first]
        while len(hashes) < count and (below := [h for h in HASHES if PARENTS.get(h) == hashes[-1]]):
            hashes.append(below[0])
        return hashes

    def expect_put(self, rank: int, hashes: list[bytes]) -> list[PutAnswer]:
        def promised(block_hash: bytes) -> bool:
            return self.promised.get((rank, block_hash), 0.0) > self.now_s

        parent = PARENTS.get(hashes[0]) if self.chained else None
        above = self.model.rows.get(parent) if parent else None
        stands = above and rank in above.copies and rank not in above.doubts
        if parent and not promised(parent) and not (stands and not self.model.stale(parent, self.now_s)):
            return [PutAnswer.NO_PARENT] * len(hashes)
        answers = []
        for block_hash in hashes:
            row = self.model.rows.get(block_hash)
            if row and rank in row.copies:
                answers.append(PutAnswer.BUSY if rank in row.doubts else PutAnswer.EXISTS)
            elif promised(block_hash):
                answers.append(PutAnswer.BUSY)
            else:
                answers.append(PutAnswer.GO if any(map(self.usable, NAMES)) else PutAnswer.NO_NODE)
        return answers

    @rule(block_hash=blocks, rank=ranks, lie=st.booleans())
    def report_bad(self, block_hash: bytes, rank: int, lie: bool) -> None:
        row = self.model.rows.get(block_hash)
        name, slot = row.copies.get(rank, ("a", (0, 0))) if row else ("a", (0, 0))
        segment = self.cluster.segments[name].info.segment
        message = ReportBad(self.keyspace, rank, block_hash, segment, slot[0], slot[1] + lie)
        reply = self.cluster.ask(message)
        assert isinstance(reply, Done)
        key = (rank, block_hash)
        believed = row is not None and rank in row.copies and rank not in row.doubts and not lie
        if believed and reply.count:
            assert row is not None
            row.doubts.add(rank)
            self.checked_s[key] = self.now_s
            self.model.settle(self.now_s)
        else:
            assert not reply.count
            assert not believed or self.now_s - self.checked_s[key] <= 45, "not asked for lately"

    @rule(name=names, good=st.booleans())
    def node_checks(self, name: str, good: bool) -> None:
        segment = self.cluster.segments[name]
        if not self.reports(name) or not segment.checks:
            return
        check = segment.checks.pop()
        self.talk(name)
        key, slot = (check.rank, check.block_hash), (check.slot, check.generation)
        self.cluster.report(name, Checked(self.keyspace, *key, *slot, good))
        row = self.model.rows.get(check.block_hash)
        if row and row.copies.get(check.rank) == (name, slot):
            if good:
                row.doubts.discard(check.rank)
                self.model.settle(self.now_s)
            else:
                self.model.drop(check.block_hash, check.rank, self.now_s)
            self.checked_s[key] = self.now_s

    @rule(block_hash=blocks, force=st.booleans())
    def remove(self, block_hash: bytes, force: bool) -> None:
        rows = self.model.subtree(block_hash)
        protected = 0 if force else sum(self.model.protected(h, self.now_s) for h in rows)
        outcome = self.cluster.outcome(Remove(self.keyspace, block_hash, force))
        assert isinstance(outcome.reply, Removed)
        assert outcome.reply.skipped == protected
        if not protected:
            assert outcome.reply.count == sum(bool(self.model.rows[h].copies) for h in rows)
            assert not any(self.table.ready[row] for row in map(self.table.rows.get, rows) if row != NO_ROW)
            while self.table.doomed:
                self.cluster.deliver(self.cluster.core._removals.go_on(self.cluster.core._steps(self.now_s)))
                self.cluster.core.validate()
            self.model.remove(rows, self.now_s)
            assert len(outcome.awaits) == len(self.cluster.core._nodes)

    @rule(block_hash=blocks, ttl_s=st.sampled_from((0, 5)))
    def pin(self, block_hash: bytes, ttl_s: int) -> None:
        row = self.model.rows.get(block_hash)
        reply = self.cluster.ask(Pin(self.keyspace, block_hash, ttl_s * 1000))
        assert reply == Done(int(row is not None and bool(row.copies)))
        if row and row.copies:
            row.pin_s = max(row.pin_s, self.now_s + ttl_s if ttl_s else math.inf)

    @rule(block_hash=blocks)
    def unpin(self, block_hash: bytes) -> None:
        row = self.model.rows.get(block_hash)
        assert self.cluster.ask(Unpin(self.keyspace, block_hash)) == Done(
            int(row is not None and row.pin_s > 0)
        )
        if row:
            row.pin_s = 0.0

    # ------------------------------------------------------------ time and room

    @rule(halves=st.sampled_from((1, 2, 3, 8, 50, 130)))
    def wait(self, halves: int) -> None:
        self.let_pass(halves)

    @rule(name=names, count=st.integers(1, 8))
    def press(self, name: str, count: int) -> None:
        """Everybody is there and nobody reads any more, when a put comes that needs room."""
        for other in NAMES:
            if not self.reports(other):
                self.come_back(other, True, 0)
        self.let_pass(22)
        self.make_room(name, count)

    def let_pass(self, halves: int) -> None:
        self.cluster.now_s += halves / 2
        for name in NAMES:
            if self.cluster.segments[name].connected and self.state(name) not in (NodeState.LOST, None):
                self.cluster.heartbeat(name)
        self.cluster.deliver(self.cluster.core.tick(self.now_s))
        self.cluster.work()
        self.lost()
        self.model.expire_pins(self.now_s)
        for (rank, block_hash), asked_s in self.checked_s.items():
            row = self.model.rows.get(block_hash)
            if row and rank in row.doubts and asked_s + 30 <= self.now_s:
                self.model.drop(block_hash, rank, self.now_s)
                self.checked_s[rank, block_hash] = self.now_s

    @rule(slices=st.integers(0, 3))
    def rebuild_queues(self, slices: int) -> None:
        """As if they were full of stale entries; some slices now, the rest while other things happen."""
        candidates = self.table.candidates
        if candidates.rebuilding is None:
            candidates.crowded |= dict.fromkeys(candidates.queues)
        candidates.rebuild(self.now_s, Budget(64 * slices))

    @rule(name=names, count=st.integers(1, 6))
    def need(self, name: str, count: int) -> None:
        if self.reports(name):
            self.make_room(name, count)

    def make_room(self, name: str, count: int) -> None:
        victims = self.cluster.need(name, count)
        copies = dropped(victims.drops)
        assert victims.freed_bytes == len(copies) * BLOCK_BYTES
        waiting = {h for h in self.model.rows if 60 <= self.now_s - self.model.rows[h].unready_since_s < 61}
        peeled = False
        for block_hash in dict.fromkeys(h for _, h, _ in copies):
            leaves = self.model.evictable(name, self.now_s)
            firm = [h for h in leaves if self.model.rows[h].soft_s <= self.now_s]
            peeled = peeled or block_hash not in leaves
            if peeled:
                break
            if firm:
                best = min(self.model.order(h, self.now_s) for h in firm)
                assert waiting or self.model.order(block_hash, self.now_s) == best, "not the oldest leaf"
            self.model.lift(block_hash)
            self.model.remove([block_hash], self.now_s)
        gone = [h for h in self.model.rows if self.table.rows.get(h) == NO_ROW]
        assert not gone or self.chained
        self.expect_peeled(name, gone)
        if len(copies) < count:
            assert not self.model.evictable(name, self.now_s), "a leaf was left while a put was in need"
        if not gone:
            assert len(copies) <= count + WORLD - 1, "more than was wanted"

    def expect_peeled(self, name: str, gone: list[bytes]) -> None:
        """Subtrees that hung on rows of the asking segment, whole, and with nothing protected in them."""
        for block_hash in sorted(gone, key=lambda h: -POSITIONS[h]):
            row = self.model.rows[block_hash]
            assert not row.copies or not self.model.protected(block_hash, self.now_s)
            assert set(self.model.subtree(block_hash)) <= {block_hash}, "a row went before what hangs on it"
            self.model.lift(block_hash)
            del self.model.rows[block_hash]
        self.model.settle(self.now_s)


class ChainedMachine(IndexMachine):
    """Chained keyspaces: match and locate."""

    @rule(which=st.integers(0, 2), length=st.integers(1, 5), lease_ms=leases_ms)
    def match(self, which: int, length: int, lease_ms: int) -> None:
        first, hashes = (64, LATER[1 : 1 + length]) if which == 2 else (0, CHAINS[which][:length])
        reply = self.cluster.ask(Match(self.keyspace, [(first, join_hashes(hashes))], lease_ms))
        assert isinstance(reply, Matched)
        ready = 0
        while (
            ready < len(hashes)
            and self.model.ready(hashes[ready])
            and self.model.live(hashes[ready], self.usable)
        ):
            ready += 1
        assert reply.ready == [ready]
        if ready:
            row = self.model.rows[hashes[ready - 1]]
            row.lease_s = max(row.lease_s, self.now_s + lease_ms / 1000)
            self.locate(first, hashes[:ready])

    def locate(self, first: int, hashes: list[bytes]) -> None:
        run = RunSlice(hashes[-1], first, len(hashes))
        for rank in range(WORLD):
            reply = self.cluster.ask(Locate(self.keyspace, rank, [run]))
            assert isinstance(reply, Located)
            slots = [self.model.rows[h].copies[rank][1] for h in hashes]
            assert u64s(reply.generations).tolist() == [generation for _, generation in slots]


STRANGERS = chain(60, "strangers")


class FlatMachine(IndexMachine):
    """Flat keyspaces: presence."""

    chained = False

    @rule(hashes=hash_lists, rank=st.integers(-1, WORLD - 1))
    def presence(self, hashes: list[bytes], rank: int) -> None:
        """With so many strangers that the filters before the dicts are used."""
        asked = join_hashes([*hashes, *STRANGERS])
        reply = self.cluster.ask(Presence(self.keyspace, asked, rank, 2700))
        assert isinstance(reply, Present)
        assert not any(reply.bits[len(hashes) :])
        for block_hash, bit in zip(hashes, reply.bits[: len(hashes)], strict=True):
            row = self.model.rows.get(block_hash)
            wanted = range(WORLD) if rank < 0 else (rank,)
            there = row is not None and all(
                other in row.copies and other not in row.doubts and self.usable(row.copies[other][0])
                for other in wanted
            )
            assert bit == there
            if row and there:
                row.soft_s = max(row.soft_s, self.now_s + 2.7)


run_settings = settings(
    derandomize=True,
    deadline=None,
    max_examples=480 * SOAK,
    stateful_step_count=60,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # shrinking takes minutes; the failing steps are short enough to read
    report_multiple_bugs=False,
)
TestChained = ChainedMachine.TestCase
TestChained.settings = run_settings
TestFlat = FlatMachine.TestCase
TestFlat.settings = run_settings
