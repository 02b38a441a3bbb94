"""The half of the index's state machine that plays the nodes; tests/master/test_index_machine.py has the rest."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from moonpool.schemas.messages import (
    Freed,
    InventoryEnd,
    NodeState,
)
from moonpool.schemas.packed import u16s, u32s
from support.naive_index import NaiveIndex
from support.paper_cluster import (
    Block,
    PaperCluster,
    Slot,
    chain,
    chained_spec,
    flat_spec,
)

WORLD = 2
NAMES = ("a", "b", "c")
LEASES_MS = (2700, 9700)
"""Never ends at a moment that is looked at: those are multiples of half a second."""

TRUNK = chain(5, "trunk")
BRANCH = chain(5, "branch")
LATER = chain(68, "later")[63:]
CHAINS = (TRUNK, TRUNK[:2] + BRANCH[2:], LATER)
"""A run that begins at 0 with a fork after two blocks, and one across the boundary at 64."""


def universe() -> dict[bytes, Block]:
    """Every block that may be written."""
    blocks: dict[bytes, Block] = {}
    for hashes, first in ((CHAINS[0], 0), (CHAINS[1], 0), (CHAINS[2], 63)):
        for index, block_hash in enumerate(hashes):
            if first + index != 63:  # the parent of 64, never seen by the index
                blocks[block_hash] = Block(
                    block_hash, first + index, hashes[index - 1] if index else bytes(16)
                )
    return blocks


BLOCKS = universe()
HASHES = list(BLOCKS)
PARENTS = {h: b.parent for h, b in BLOCKS.items() if b.position not in (0, 64)}
POSITIONS = {h: b.position for h, b in BLOCKS.items()}

blocks = st.integers(0, len(HASHES) - 1).map(HASHES.__getitem__)
names = st.sampled_from(NAMES)
ranks = st.integers(0, WORLD - 1)
pairs = st.integers(0, 1 << 20).map(lambda seed: some_pairs(random.Random(seed)))
"""Drawn as one number: fewer draws, more steps."""
hash_lists = st.integers(0, 1 << 20).map(lambda seed: random.Random(seed).sample(HASHES, seed % 4 + 1))
masks = st.sampled_from((0, 0, 1, 0b1010, 0b110100100, (1 << 40) - 1))
leases_ms = st.sampled_from(LEASES_MS)


def some_pairs(dice: random.Random) -> list[tuple[int, bytes]]:
    """Some (rank, hash), perhaps one twice."""
    return [(dice.randrange(WORLD), dice.choice(HASHES)) for _ in range(dice.randint(1, 6))]


class ReportingMachine(RuleBasedStateMachine):
    """Nodes that come, report and go. `model` is told what a correct index makes of it."""

    chained = True

    def __init__(self) -> None:
        super().__init__()
        self.cluster = PaperCluster(chained_spec(WORLD) if self.chained else flat_spec(WORLD))
        self.keyspace = self.cluster.keyspace
        self.model = NaiveIndex(
            WORLD, PARENTS if self.chained else {}, POSITIONS if self.chained else dict.fromkeys(HASHES, 0)
        )
        self.unnamed: dict[str, set[tuple[int, bytes]]] = {}
        self.promised: dict[tuple[int, bytes], float] = {}
        self.checked_s: dict[tuple[int, bytes], float] = {}
        for name in NAMES:
            self.cluster.join(name)

    # ------------------------------------------------------------ helpers

    @property
    def now_s(self) -> float:
        return self.cluster.now_s

    @property
    def table(self) -> Any:
        return self.cluster.core._shards.get(0).table(self.keyspace)  # type: ignore[attr-defined]

    def state(self, name: str) -> NodeState | None:
        node = self.cluster.core._nodes.get(self.cluster.segments[name].info.segment)
        return None if node is None else node.state

    def usable(self, name: str) -> bool:
        return self.state(name) in (NodeState.JOINING, NodeState.LIVE)

    def reports(self, name: str) -> bool:
        return self.cluster.segments[name].connected and self.usable(name)

    def expect_commit(self, name: str, committed: list[tuple[int, Block, tuple[int, int]]]) -> None:
        fresh = []
        for rank, block, slot in committed:
            self.promised.pop((rank, block.block_hash), None)
            row = self.model.rows.get(block.block_hash)
            held = row.copies.get(rank) if row else None
            unnamed = self.unnamed.get(name, set())
            if held is None:
                fresh.append(block.block_hash)
            elif self.is_surplus(name, held, slot, (rank, block.block_hash) in unnamed):
                continue
            unnamed.discard((rank, block.block_hash))
            self.model.add(block.block_hash, rank, name, slot, self.now_s)
        self.model.settle(self.now_s)
        for block_hash in fresh:
            if self.model.stale(block_hash, self.now_s):
                self.model.rows[block_hash].unready_since_s = self.now_s

    def is_surplus(self, name: str, held: tuple[str, Slot], slot: Slot, unnamed: bool) -> bool:
        if held[0] != name:
            return self.usable(held[0])
        return held[1] != slot and not unnamed

    def lost(self) -> None:
        """Copies on lost nodes are gone after a tick: all tables here fit in one slice."""
        for name in NAMES:
            if self.state(name) in (NodeState.LOST, None):
                self.unnamed.pop(name, None)
                self.drop_all(name, set(HASHES))

    def drop_all(self, name: str, hashes: set[bytes], only: set[tuple[int, bytes]] | None = None) -> None:
        for block_hash in [h for h in self.model.rows if h in hashes]:
            for rank in range(WORLD):
                row = self.model.rows.get(block_hash)
                if (
                    row
                    and row.copies.get(rank, ("",))[0] == name
                    and (only is None or (rank, block_hash) in only)
                ):
                    self.model.drop(block_hash, rank, self.now_s)

    # ------------------------------------------------------------ reports

    @rule(name=names, wanted=pairs)
    def commit(self, name: str, wanted: list[tuple[int, bytes]]) -> None:
        self.put(name, wanted)

    def put(self, name: str, wanted: list[tuple[int, bytes]]) -> None:
        if not self.reports(name):
            return
        segment = self.cluster.segments[name]
        self.talk(name)
        committed = [(rank, BLOCKS[h], segment.fill(rank, BLOCKS[h])) for rank, h in wanted]
        self.expect_commit(name, committed)
        self.cluster.report(name, self.cluster.entries(committed))

    @rule(names_of=st.tuples(names, names), which=st.integers(0, 2), length=st.integers(1, 5))
    def commit_chain(self, names_of: tuple[str, str], which: int, length: int) -> None:
        """Every rank of the first blocks of a chain, the later ones perhaps on another segment."""
        hashes = [h for h in CHAINS[which] if h in BLOCKS][:length]
        for name, part in zip(names_of, (hashes[: length // 2], hashes[length // 2 :]), strict=True):
            if part:
                self.put(name, [(rank, h) for h in part for rank in range(WORLD)])

    @rule(name=names, pick=st.integers(0, 63))
    def node_frees(self, name: str, pick: int) -> None:
        segment = self.cluster.segments[name]
        held = [(key, slot) for key, slots in segment.held.items() for slot in slots]
        if not held or not self.reports(name):
            return
        key, slot = held[pick % len(held)]
        segment.lose(key, slot)
        segment.outbox.append(self.cluster.freed(key, slot))
        self.talk(name)

    @rule(name=names)
    def node_talks(self, name: str) -> None:
        if self.reports(name):
            self.talk(name)

    def talk(self, name: str) -> None:
        """Reports what the node has freed: most of it, the index has dropped itself. A removal that a node obeys
        again, because its answer was lost, may hit a block that was written anew."""
        for op in self.cluster.segments[name].outbox:
            if isinstance(op, Freed):
                self.expect_freed(name, int(u16s(op.ranks)[0]), op.hashes, int(u32s(op.slots)[0]))
        self.cluster.report(name)

    def expect_freed(self, name: str, rank: int, block_hash: bytes, slot: int) -> None:
        row = self.model.rows.get(block_hash)
        if row and row.copies.get(rank) == (name, (slot, slot + 1000)):
            self.model.drop(block_hash, rank, self.now_s)

    @rule(name=names, name_all=st.booleans(), forget=masks)
    def node_returns(self, name: str, name_all: bool, forget: int) -> None:
        self.come_back(name, name_all, forget)

    def come_back(self, name: str, name_all: bool, forget: int) -> None:
        """With a new stream, having lost some slots and moved one while nobody listened."""
        segment = self.cluster.segments[name]
        for index, (key, slots) in enumerate(list(segment.held.items())):
            if forget >> index & 1:
                for slot in list(slots):
                    segment.lose(key, slot)
                if index % 2:
                    segment.fill(key[0], BLOCKS[key[1]])
        self.cluster.join(name, inventory=False)
        self.unnamed[name] = {
            (rank, h)
            for h, row in self.model.rows.items()
            for rank, (where, _) in row.copies.items()
            if where == name
        }
        self.talk(name)  # begins the stream: removals that it missed come back
        self.talk(name)
        ops = self.cluster.inventory(name)
        held = [(rank, h, slot) for (rank, h), slots in segment.held.items() for slot in slots]
        self.cluster.report(name, *ops)
        self.expect_commit(name, [(rank, BLOCKS[h], slot) for rank, h, slot in held])
        if name_all:
            self.end_inventory(name)

    @rule(name=names)
    def inventory_ends(self, name: str) -> None:
        self.end_inventory(name)

    def end_inventory(self, name: str) -> None:
        if not self.reports(name) or name not in self.unnamed:
            return
        self.talk(name)
        self.cluster.report(name, InventoryEnd())
        self.drop_all(name, set(HASHES), self.unnamed.pop(name))
        self.lost()  # slices of slow work are done in order

    @rule(name=names)
    def node_leaves(self, name: str) -> None:
        if self.cluster.segments[name].connected:
            self.cluster.disconnect(name)

    # ------------------------------------------------------------ agreement

    @invariant()
    def agrees(self) -> None:
        self.cluster.core.validate()
        table = self.table
        assert {h for h, _ in table.rows.items()} == set(self.model.rows)
        for block_hash, row in self.model.rows.items():
            number = table.rows.get(block_hash)
            assert table.ready[number] == self.model.ready(block_hash)
            places = {rank: table.place(number, rank) for rank in table.ranks_of(number)}
            names_of = self.cluster.core._nodes.names
            assert {
                rank: (names_of[place.segment], (place.slot, place.generation))
                for rank, place in places.items()
            } == {
                rank: (self.cluster.segments[name].info.segment, slot)
                for rank, (name, slot) in row.copies.items()
            }
            assert table.last_use_s[number] == row.last_use_s
            assert table.unready_since_s[number] == row.unready_since_s
            assert table.leased_until_s[number] == row.lease_s

    def teardown(self) -> None:
        """Once everybody has spoken, index and nodes agree on every slot."""
        for name in NAMES:
            if self.cluster.segments[name].connected and self.usable(name):
                if name in self.unnamed:
                    self.cluster.report(name, InventoryEnd())
                self.cluster.report(name)
                self.cluster.report(name)
        table = self.table
        for name in NAMES:
            if not (self.cluster.segments[name].connected and self.usable(name)):
                continue
            segment = self.cluster.segments[name]
            node = self.cluster.core._nodes.get(segment.info.segment)
            assert node is not None
            indexed = {
                (rank, h, (place.slot, place.generation))
                for h, row in table.rows.items()
                for rank in table.ranks_of(row)
                if (place := table.place(row, rank)).segment == node.index
            }
            assert indexed == {(rank, h, slot) for (rank, h), slots in segment.held.items() for slot in slots}
