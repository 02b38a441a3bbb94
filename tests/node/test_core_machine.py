"""NodeCore against a naive model: every put, drop, move, death and adoption, with real bytes in the slots."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from support.core_model import DIGESTS, PAGES, SESSIONS, SPECS
from support.core_writers import CoreWriters
from support.node_sink import IndexSink
from support.stateful import stateful_settings

from moonpool.schemas.header import SlotState
from moonpool.schemas.messages import Begin, DropList, Granted, Status
from moonpool.schemas.packed import join_hashes, pack_u32, pack_u64
from moonpool.store_client.node.adoption import adopt
from moonpool.store_client.node.annex import SessionRecord
from moonpool.store_client.node.drops import SWEEP_PAGES, hash_set
from moonpool.store_client.node.headers import generations_in, states_in
from moonpool.store_client.node.inventory import Inventory


class CoreMachine(CoreWriters):
    """How puts end; what masters and fate do."""

    @rule(kind=st.integers(0, 2), rank=st.integers(0, 1), length=st.sampled_from([900, 5000, 20000]))
    def fill(self, kind: int, rank: int, length: int) -> None:
        """Committed objects of one size, a good part of the pool's."""
        self.begin(SESSIONS[0], kind, 50, rank, length, True, False)
        self.commit_put(SESSIONS[0], self.next_put - 1, 1)

    @precondition(lambda self: self.model.puts)
    @rule(data=st.data(), times=st.integers(1, 2))
    def commit(self, data: st.DataObject, times: int) -> None:
        self.commit_put(*data.draw(st.sampled_from(sorted(self.model.puts))), times)

    def commit_put(self, session: int, put_id: int, times: int) -> None:
        blocks = self.forget_put(session, put_id)
        statuses = bytearray()
        for block in blocks:
            if block.status != Status.OK:
                statuses.append(block.status)
            elif block.doomed:
                statuses.append(Status.GONE)
            else:
                statuses.append(Status.OK)
                self.model.held[block.slot] = block
        for _ in range(times):
            assert self.core.commit(session, [put_id]) == [bytes(statuses)]
        again = self.core.begin(session, Begin(session, put_id, []), partial=True)
        assert isinstance(again, Granted) and set(again.statuses) <= {Status.GONE}
        assert self.core.revoke(session, [put_id]) == 0

    @precondition(lambda self: self.model.puts)
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        session, put_id = data.draw(st.sampled_from(sorted(self.model.puts)))
        self.forget_put(session, put_id)
        assert self.core.revoke(session, [put_id]) == 1
        assert self.core.revoke(session, [put_id, 10**9]) == 0

    @precondition(lambda self: self.model.puts)
    @rule(session=st.sampled_from(SESSIONS), keep=st.integers(0, 3))
    def heartbeat(self, session: int, keep: int) -> None:
        """Answers of all puts but the last ones were lost; the newest of all is too young to judge."""
        mine = sorted(put_id for owner, put_id in self.model.puts if owner == session)
        newest = mine[-1] - 1 if len(mine) > 2 else self.next_put
        listed = mine[:keep]
        lost = [put_id for put_id in mine if put_id <= newest and put_id not in listed]
        assert self.core.session_heartbeat(session, listed, newest) == len(lost)
        for put_id in lost:
            self.forget_put(session, put_id)

    @precondition(lambda self: len(self.model.puts) > 2)
    @rule(session=st.sampled_from(SESSIONS))
    def die(self, session: int) -> None:
        self.core.end_session(session)
        for put in [put for put in self.model.puts if put[0] == session]:
            self.forget_put(*put)
        self.core.open_session(SessionRecord(session, f"/lock/{session}"))

    # ------------------------------------------------------------ the master

    @precondition(lambda self: self.model.held)
    @rule(data=st.data())
    def drop_exact(self, data: st.DataObject) -> None:
        """Committed, WRITING and stale places of one keyspace, some named twice."""
        keyspace = data.draw(st.sampled_from(sorted({block.keyspace for block in self.model.held.values()})))
        step = data.draw(st.integers(1, 4))
        writing = [b for blocks in self.model.puts.values() for b in blocks if b.status == Status.OK]
        targets = [b for b in [*self.model.held.values(), *writing] if b.keyspace == keyspace][::step]
        places = [(b.slot, b.generation) for b in targets]
        places += [(b.slot, b.generation + 1) for b in targets[:2]] + places[:1] + [(1 << 31, 1), (3, 0)]
        drop = DropList(
            keyspace, b"", b"", pack_u32([slot for slot, _ in places]), pack_u64([g for _, g in places])
        )
        sizes = self.core.slots.allocator.slot_bytes
        held = [b for b in targets if b.slot in self.model.held and not any(b is w for w in writing)]
        expected = sum(int(sizes[b.slot >> 16]) for b in held)
        assert self.core.drops.exact([drop]) == expected
        self.drop_in_model(lambda block: any(block is target for target in targets))

    @precondition(lambda self: self.model.held and self.model.puts)
    @rule(data=st.data(), whole=st.booleans())
    def drop_matching(self, data: st.DataObject, whole: bool) -> None:
        index = data.draw(st.integers(0, 2))
        keyspace = DIGESTS[index]
        blocks = [*self.model.held.values(), *(b for part in self.model.puts.values() for b in part)]
        names = sorted({b.block_hash for b in blocks if b.keyspace == keyspace})[
            :: data.draw(st.integers(1, 3))
        ]
        hashes = None if whole else hash_set(join_hashes(names), SPECS[index].hash_bytes)
        for page in range(0, PAGES, SWEEP_PAGES):
            self.core.drops.sweep(keyspace, hashes, page)
        self.model.obeyed.append((7, len(self.model.obeyed) + 1))
        self.core.drops.obeyed.add(3, self.model.obeyed[-1])
        self.drop_in_model(lambda block: block.keyspace == keyspace and (whole or block.block_hash in names))

    def drop_in_model(self, hit: object) -> None:
        assert callable(hit)
        self.model.held = {slot: block for slot, block in self.model.held.items() if not hit(block)}
        for blocks in self.model.puts.values():
            for block in blocks:
                block.doomed |= block.status == Status.OK and bool(hit(block))

    @precondition(lambda self: self.model.held)
    @rule(
        unwanted=st.sampled_from([1024, 4096, 12288, 32768]), steps=st.integers(1, 20), naming=st.booleans()
    )
    def empty_a_page(self, unwanted: int, steps: int, naming: bool) -> None:
        self.sink.under_way = naming
        pool = self.core.slots.allocator.pool_pages
        old = [(block.slot, block.generation) for block in self.model.held.values()]
        if self.core.moves.choose(unwanted):
            page = self.core.slots.allocator.closed_page
            more = True
            while more and steps:
                more = self.core.moves.step(8192)
                steps -= 1
            assert more or self.core.slots.allocator.pool_pages == pool + 1
            assert more or not self.core.slots.allocator.slot_bytes[page]
            self.core.slots.allocator.open_page()
        moved = [place for place in old if place[0] not in self.sink.index]
        for slot, generation in moved:
            block = self.model.held.pop(slot)
            new = self.core.drops._forwards[slot, generation]
            block.slot, block.generation = new
            assert block.generation not in self.model.generations
            self.model.generations.add(block.generation)
            self.model.held[block.slot] = block
        self.stale = moved or self.stale

    @precondition(lambda self: self.stale)
    @rule()
    def drop_where_it_was(self) -> None:
        """The master names places from before a move."""
        for slot, generation in self.stale:
            new = self.core.drops._forwards.get((slot, generation))
            block = self.model.held.get(new[0]) if new else None
            if block is not None and block.generation == new[1]:
                drop = DropList(block.keyspace, b"", b"", pack_u32([slot]), pack_u64([generation]))
                assert self.core.drops.exact([drop]) > 0
                del self.model.held[new[0]]
                break

    # ------------------------------------------------------------ fate

    @precondition(lambda self: len(self.model.puts) > 1)
    @rule(alive=st.sets(st.sampled_from(SESSIONS)))
    def killed_and_adopted(self, alive: set[int]) -> None:
        """A new process over the same bytes. Blocks that had no slot are forgotten."""
        self.stale = []
        self.start(IndexSink())
        asked: dict[int, bool] = {}

        def watch(record: SessionRecord, writing: bool) -> bool:
            assert record.lock_path == f"/lock/{record.session}"
            asked[record.session] = writing
            return record.session in alive

        adopt(self.core, watch)
        granted = {
            put[0]
            for put, blocks in self.model.puts.items()
            if any(block.status == Status.OK for block in blocks)
        }
        assert asked == {session: session in granted for session in SESSIONS}
        self.model.ahead.clear()  # slots that their writers can only give back
        self.model.puts = {
            put: kept
            for put, blocks in self.model.puts.items()
            if put[0] in alive and (kept := [block for block in blocks if block.status == Status.OK])
        }
        for session in SESSIONS:
            self.core.open_session(SessionRecord(session, f"/lock/{session}"))
        assert self.core.keyspaces.specs() == SPECS
        inventory = Inventory(self.core.slots)
        while not inventory.done:
            for op in inventory.next_entries():
                self.sink.play(op)

    @invariant()
    def agrees(self) -> None:
        self.core.validate()
        assert self.core.drops.obeyed.of(3) == self.model.obeyed
        model, slots = self.model, self.core.slots
        assert {slot: entry.generation for slot, entry in self.sink.index.items()} == {
            slot: block.generation for slot, block in model.held.items()
        }
        for slot, block in model.held.items():
            entry = self.sink.index[slot]
            assert (entry.keyspace, entry.rank, entry.block_hash) == (
                block.keyspace,
                block.rank,
                block.block_hash,
            )
            assert (entry.length, entry.position, entry.parent) == (
                block.length,
                block.position,
                block.parent,
            )
        writing = {
            block.slot: block.generation
            for blocks in model.puts.values()
            for block in blocks
            if block.status == Status.OK
        }
        assert int(slots.writing.sum()) == len(writing)
        every = np.array([*model.held, *writing], dtype=np.uint32)
        words = slots.headers.words[slots.rows(every)]
        states = [SlotState.COMMITTED] * len(model.held) + [SlotState.WRITING] * len(writing)
        assert states_in(words).tolist() == states
        assert generations_in(words).tolist() == [b.generation for b in model.held.values()] + list(
            writing.values()
        )

    def teardown(self) -> None:
        """All bytes are what their writers wrote, key texts too, wherever they were moved."""
        super().teardown()
        slots = self.core.slots
        for slot, block in self.model.held.items():
            size = int(slots.allocator.slot_bytes[slot >> 16])
            start = int(slots.layout.data_offsets(np.array([slot], dtype=np.uint32), size)[0])
            stored = self.memory.buffer[start : start + block.length + len(block.key)].tobytes()
            assert stored == block.payload + block.key


TestCore = CoreMachine.TestCase
TestCore.settings = stateful_settings(12_000)
