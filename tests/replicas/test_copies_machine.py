"""The index with several copies of a block: nodes that come, go, fill up and copy, in any order.

What is checked after each step: the index's own invariants; that it knows exactly what the nodes hold, once they have
reported; that readers are sent to places that hold what they ask for; and that in the end there are as many copies as
are wanted, on so many hosts.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.paper_cluster import PaperCluster, Slot, blocks_of, chain, chained_spec, flat_spec
from support.soak import SOAK

from moonpool.master import copies, victims
from moonpool.master.columns import NO_ROW
from moonpool.master.replicas import seeker
from moonpool.schemas.messages import (
    Checked,
    Drain,
    Locate,
    Located,
    Match,
    Matched,
    NodeState,
    Presence,
    Present,
    Remove,
    ReportBad,
    RunSlice,
    SetReplicas,
)
from moonpool.schemas.packed import join_hashes, u16s, u32s, u64s

WORLD = 2
NAMES = ("a", "b", "c", "d")
HASHES = chain(9)
BLOCKS = blocks_of(HASHES)

names = st.sampled_from(NAMES)
places = st.integers(0, len(HASHES) - 1)


@pytest.fixture(autouse=True, scope="module")
def small_slices() -> Iterator[None]:
    """Searches and passes take several calls, other things happen between."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "SEARCHED_ROWS", 32)
        patch.setattr(victims, "REBUILD_ROWS", 4)
        patch.setattr(seeker, "FOUND_MAX", 4)
        yield


class CopiesMachine(RuleBasedStateMachine):
    """a and b share a host; c and d have one each."""

    chained = True

    def __init__(self) -> None:
        super().__init__()
        self.cluster = PaperCluster(chained_spec(WORLD) if self.chained else flat_spec(WORLD))
        self.keyspace = self.cluster.keyspace
        self.drained: set[str] = set()
        for name in NAMES:
            self.cluster.join(name, "host-ab" if name in "ab" else "")

    # ------------------------------------------------------------ helpers

    def state(self, name: str) -> NodeState | None:
        node = self.cluster.core._nodes.get(self.cluster.segments[name].info.segment)
        return None if node is None else node.state

    def reports(self, name: str) -> bool:
        up = self.state(name) in (NodeState.JOINING, NodeState.LIVE)
        return self.cluster.segments[name].connected and up

    def talk(self) -> None:
        """Everybody reports until nobody has anything to say."""
        while busy := [n for n in NAMES if self.reports(n) and self.cluster.segments[n].outbox]:
            for name in busy:
                self.cluster.report(name)

    def table(self):  # type: ignore[no-untyped-def]
        return self.cluster.core._shards.get(0).table(self.keyspace)

    # ------------------------------------------------------------ writers and readers

    @rule(name=names, length=st.integers(1, 9))
    def put(self, name: str, length: int) -> None:
        """As an engine does it: what is there already isn't written."""
        if not self.reports(name):
            return
        missing = [
            (rank, block)
            for block in BLOCKS[:length]
            for rank in range(WORLD)
            if (row := self.table().rows.get(block.block_hash)) == NO_ROW
            or not self.table().committed[row] >> rank & 1
        ]
        segment = self.cluster.segments[name]
        filled = [(rank, block, segment.fill(rank, block)) for rank, block in missing]
        if filled:
            self.cluster.report(name, self.cluster.entries(filled))

    @rule(name=names, at=places, rank=st.integers(0, WORLD - 1))
    def put_twice(self, name: str, at: int, rank: int) -> None:
        """A race that nobody ordered: where somebody else has it, the second one is surplus."""
        if self.reports(name):
            slot = self.cluster.segments[name].fill(rank, BLOCKS[at])
            self.cluster.report(name, self.cluster.entries([(rank, BLOCKS[at], slot)]))

    @rule(length=st.integers(1, 9), host=st.sampled_from(("host-ab", "host-c", "elsewhere")))
    def read(self, length: int, host: str) -> None:
        self.talk()
        hashes = HASHES[:length]
        ready = self.look_up(hashes)
        for rank in range(WORLD if ready else 0):
            wanted = Locate(self.keyspace, rank, [RunSlice(hashes[ready - 1], 0, ready)])
            found = self.cluster.ask(
                wanted if self.chained else Locate(self.keyspace, rank, hashes=join_hashes(hashes[:ready])),
                host,
            )
            assert isinstance(found, Located)
            columns = (u16s(found.which), u32s(found.slots), u64s(found.generations))
            for block_hash, which, *slot in zip(hashes, *(c.tolist() for c in columns), strict=False):
                name = found.segments[which].decode().rstrip(".")
                assert tuple(slot) in self.held(name, rank, block_hash), "a reader was sent astray"
                assert self.reports(name)
                near = [other for other in NAMES if self.cluster.segments[other].info.host == host]
                if any(self.held(other, rank, block_hash) and self.writable(other) for other in near):
                    assert name in near, "a copy on the reader's host was passed by"

    def look_up(self, hashes: list[bytes]) -> int:
        if self.chained:
            matched = self.cluster.ask(Match(self.keyspace, [(0, join_hashes(hashes))], 500))
            assert isinstance(matched, Matched)
            return matched.ready[0]
        present = self.cluster.ask(Presence(self.keyspace, join_hashes(hashes), -1, 500))
        assert isinstance(present, Present)
        return (present.bits + b"\0").index(0)

    def held(self, name: str, rank: int, block_hash: bytes) -> list[Slot]:
        return self.cluster.segments[name].held.get((rank, block_hash), [])

    def writable(self, name: str) -> bool:
        return self.reports(name) and name not in self.drained

    @rule(at=places, force=st.booleans())
    def remove(self, at: int, force: bool) -> None:
        self.cluster.ask(Remove(self.keyspace, HASHES[at], force))

    @rule(at=places, rank=st.integers(0, WORLD - 1), pick=st.integers(0, 3))
    def report_bad(self, at: int, rank: int, pick: int) -> None:
        row = self.table().rows.get(HASHES[at])
        found = self.table().places(row, rank) if row != NO_ROW and self.table().sound(row, rank) else []
        if found:
            place = found[pick % len(found)]
            name = self.cluster.core._nodes.names[place.segment]
            bad = ReportBad(self.keyspace, rank, HASHES[at], name, place.slot, place.generation)
            self.cluster.ask(bad)
            assert (
                len(found) == 1
                or not self.table().is_at(row, rank, *place[:3])
                or row in self.table().doubted
            )

    @rule(name=names, good=st.booleans())
    def check(self, name: str, good: bool) -> None:
        segment = self.cluster.segments[name]
        if self.reports(name) and segment.checks:
            check = segment.checks.pop()
            slot = (check.slot, check.generation)
            self.cluster.report(name, Checked(self.keyspace, check.rank, check.block_hash, *slot, good))

    # ------------------------------------------------------------ nodes

    @rule(replicas=st.integers(1, 4))
    def want(self, replicas: int) -> None:
        self.cluster.ask(SetReplicas(self.keyspace, replicas))

    @rule(name=names)
    def copy(self, name: str) -> None:
        if self.reports(name):
            self.cluster.carry_out(name)

    @rule(name=names, on=st.booleans())
    def drain(self, name: str, on: bool) -> None:
        if self.state(name) is not None:
            self.cluster.ask(Drain(name, on))
            (self.drained.add if on else self.drained.discard)(name)

    @rule(name=names, count=st.integers(1, 4))
    def need(self, name: str, count: int) -> None:
        """Of a node that has more of something than is wanted, that goes first."""
        if not self.reports(name):
            return
        self.talk()
        index = self.cluster.core._nodes.get(self.cluster.segments[name].info.segment).index  # type: ignore[union-attr]
        staying = self.cluster.core._nodes.staying
        surplus = copies.surplus_on(self.table(), index, staying, 100)
        rows = len(self.table())
        self.cluster.need(name, min(count, len(surplus)) or count)
        assert not surplus or len(self.table()) == rows, "a row went before a surplus copy"

    @rule(name=names, pick=st.integers(0, 63))
    def node_frees(self, name: str, pick: int) -> None:
        segment = self.cluster.segments[name]
        held = [(key, slot) for key, slots in segment.held.items() for slot in slots]
        if held and self.reports(name):
            key, slot = held[pick % len(held)]
            segment.lose(key, slot)
            segment.outbox.append(self.cluster.freed(key, slot))

    @rule(name=names)
    def node_goes(self, name: str) -> None:
        if self.cluster.segments[name].connected:
            self.cluster.disconnect(name)
            self.cluster.segments[name].orders.clear()

    @rule(name=names)
    def node_returns(self, name: str) -> None:
        if not self.cluster.segments[name].connected:
            self.cluster.join(name)

    @rule(seconds=st.sampled_from((1, 1, 2, 40, 70)))
    def wait(self, seconds: int) -> None:
        self.cluster.advance(seconds)

    # ------------------------------------------------------------ what holds

    @invariant()
    def index_is_whole(self) -> None:
        self.cluster.core.validate()

    @invariant()
    def every_copy_is_held(self) -> None:
        """By nodes that have told everything."""
        table = self.table()
        for name in NAMES:
            segment = self.cluster.segments[name]
            node = self.cluster.core._nodes.get(segment.info.segment)
            if node is None or not self.reports(name) or segment.outbox:
                continue
            indexed = {
                (rank, block_hash, (place.slot, place.generation))
                for block_hash, row in table.rows.items()
                for rank in table.ranks_of(row)
                for place in table.places(row, rank)
                if place.segment == node.index
            }
            assert indexed == {(*key, slot) for key, slots in segment.held.items() for slot in slots}

    def teardown(self) -> None:
        """Left alone, with all nodes there, every block gets what it should have."""
        for name in NAMES:
            if not self.cluster.segments[name].connected:
                self.cluster.join(name)
        self.cluster.advance(200)  # checks that nobody answers, orders that nobody carries out
        for _ in range(60):
            self.talk()
            self.cluster.advance(2)
            for name in NAMES:
                self.cluster.carry_out(name)
        self.talk()
        table = self.table()
        open_names = [name for name in NAMES if name not in self.drained]
        for block_hash, row in table.rows.items():
            for rank in table.ranks_of(row) if table.ready[row] else ():
                there = [name for name in open_names if self.held(name, rank, block_hash)]
                assert len(there) >= min(table.replicas, len(open_names)), "too few copies"
                if there and open_names:
                    drained = [name for name in self.drained if self.held(name, rank, block_hash)]
                    assert not drained or len(there) < table.replicas, "a drained node was not emptied"
        super().teardown()


class FlatCopiesMachine(CopiesMachine):
    """The same of a flat keyspace."""

    chained = False


run_settings = settings(
    derandomize=True,
    deadline=None,
    max_examples=30 * SOAK,
    stateful_step_count=50,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
    report_multiple_bugs=False,
)
TestChained = CopiesMachine.TestCase
TestChained.settings = run_settings
TestFlat = FlatCopiesMachine.TestCase
TestFlat.settings = run_settings
