"""NodeCore against a naive model: every put, drop, move, death and adoption, with real bytes in the slots."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import structs
from support.core_model import DIGESTS, PAGE, PAGES, SESSIONS, SPECS, Block, Model
from support.node_sink import IndexSink
from support.stateful import stateful_settings

from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.header import SlotState, keyspace_word
from moonpool.schemas.keyspace import Kind
from moonpool.schemas.messages import AHEAD_SLOTS, Begin, BeginItem, DropList, Granted, PutAhead, Status
from moonpool.schemas.packed import join_hashes, pack_u32, pack_u64, u32s, u64s
from moonpool.store_client.node.adoption import adopt
from moonpool.store_client.node.ahead import Like, grant_ahead
from moonpool.store_client.node.annex import SessionRecord
from moonpool.store_client.node.core import NodeCore, Shortage
from moonpool.store_client.node.drops import SWEEP_PAGES, hash_set
from moonpool.store_client.node.headers import generations_in, states_in
from moonpool.store_client.node.inventory import Inventory
from moonpool.store_client.node.layout import Layout, fixed_slot_bytes, object_slot_bytes
from moonpool.store_client.node.memory import HeapMemory
from moonpool.store_client.node.whole_puts import FEW


class CoreMachine(RuleBasedStateMachine):
    """Steps of writers, masters and fate."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = HeapMemory(Layout(PAGE, PAGES))
        self.model = Model()
        self.next_put = 1
        self.next_hash = 0
        self.stale: list[tuple[int, int]] = []
        self.start(IndexSink())
        for spec in SPECS:
            self.core.register(spec)
        for session in SESSIONS:
            self.core.open_session(SessionRecord(session, f"/lock/{session}"))

    def start(self, sink: IndexSink) -> None:
        self.sink = sink
        self.core = NodeCore(self.memory, sink)

    # ------------------------------------------------------------ writers

    @rule(
        session=st.sampled_from(SESSIONS),
        kind=st.integers(0, 2),
        count=st.integers(1, 12),
        rank=st.integers(0, 1),
        length=st.sampled_from([0, 1, 900, 1024, 5000, 30000, PAGE, PAGE + 1]),
        partial=st.booleans(),
        two_items=st.booleans(),
    )
    def begin(
        self, session: int, kind: int, count: int, rank: int, length: int, partial: bool, two_items: bool
    ) -> None:
        items = [self.make_item(kind, count, rank, length)]
        if two_items:
            items.append(self.make_item(0, 2, 1, 0))
        put_id, self.next_put = self.next_put, self.next_put + 1
        request = Begin(session, put_id, [item for item, _ in items])
        free_before = self.core.slots.allocator.free_bytes
        answer = self.core.begin(session, request, partial=partial)
        if isinstance(answer, Shortage):
            assert not partial and answer.size_bytes > 0
            assert self.core.slots.allocator.free_bytes == free_before
            answer = self.core.begin(session, request, partial=True)
            assert isinstance(answer, Granted) and bytes([Status.NO_SPACE]) in answer.statuses
        assert self.core.begin(session, request, partial=True) == answer
        blocks = [block for _, part in items for block in part]
        columns = (answer.statuses, u32s(answer.slots).tolist(), u64s(answer.generations).tolist())
        for block, status, slot, generation in zip(blocks, *columns, strict=True):
            block.status, block.slot, block.generation = status, slot, generation
            if status == Status.OK:
                assert generation not in self.model.generations and generation > 0
                self.model.generations.add(generation)
                self.write(block)
            else:
                assert (status == Status.TOO_LARGE) == (block.length + len(block.key) > PAGE)
        self.model.puts[session, put_id] = blocks

    @rule(kind=st.integers(0, 2), rank=st.integers(0, 1), length=st.sampled_from([900, 5000, 20000]))
    def fill(self, kind: int, rank: int, length: int) -> None:
        """Committed objects of one size, a good part of the pool's."""
        self.begin(SESSIONS[0], kind, 50, rank, length, True, False)
        self.commit_put(SESSIONS[0], self.next_put - 1, 1)

    @rule(
        kind=st.integers(1, 2),
        count=st.sampled_from([1, 2, 5, FEW, FEW + 1]),
        length=st.sampled_from([0, 1, 900, 1024, 5000]),
        other=st.sampled_from([0, 700, PAGE + 1]),
    )
    def store(self, kind: int, count: int, length: int, other: int) -> None:
        """Objects that arrive whole, the last one of another size."""
        item, blocks = self.make_item(kind, count, 0, length)
        if SPECS[kind].variable_size:
            blocks[-1].length = other
        item = structs.replace(item, lengths=pack_u64([block.length for block in blocks]))
        put_id, self.next_put = self.next_put, self.next_put + 1
        free_before = self.core.slots.allocator.free_bytes
        before = set(self.sink.index)
        answer = self.core.store(put_id, item, b"".join(block.payload for block in blocks))
        if isinstance(answer, Shortage):
            assert answer.size_bytes > 0 and set(self.sink.index) == before
            assert self.core.slots.allocator.free_bytes == free_before
            return
        stored = sorted(self.sink.index.keys() - before, key=lambda slot: self.sink.index[slot].generation)
        slots = iter(stored)
        for block, status in zip(blocks, answer, strict=True):
            assert (status == Status.TOO_LARGE) == (block.length + len(block.key) > PAGE)
            if status == Status.OK:
                block.slot = next(slots)
                block.generation = self.sink.index[block.slot].generation
                assert block.generation not in self.model.generations
                self.model.generations.add(block.generation)
                self.model.held[block.slot] = block
        assert next(slots, None) is None

    @rule(
        session=st.sampled_from(SESSIONS),
        kind=st.integers(0, 2),
        count=st.sampled_from([1, 2, 5, AHEAD_SLOTS, AHEAD_SLOTS + 1]),
        length=st.sampled_from([900, 5000]),
        free=st.sampled_from([0, 1 << 18]),
    )
    def grant_ahead(self, session: int, kind: int, count: int, length: int, free: int) -> None:
        """Slots for objects of that size, whoever they will be."""
        item, blocks = self.make_item(kind, 1, 0, length)
        slot_bytes = self.slot_bytes_of(kind, blocks[0])
        put_id, self.next_put = self.next_put, self.next_put + 1
        wanted = Like(count, slot_bytes, keyspace_word(item.keyspace))
        slots, writers = self.core.slots, self.core.writers
        free_before = slots.allocator.free_bytes
        granted = grant_ahead(slots, writers, session, put_id, wanted, free)
        held = [put for put in self.model.ahead if put[0] == session]
        held_slots = sum(len(self.model.puts[put]) for put in held)
        if granted is None:
            assert slots.allocator.free_bytes == free_before
            return
        assert grant_ahead(slots, writers, session, put_id, wanted, free) == granted
        assert count + held_slots <= AHEAD_SLOTS and slots.allocator.free_bytes >= free
        self.model.ahead[session, put_id] = slot_bytes
        self.model.puts[session, put_id] = [
            Block(item.keyspace, 0, bytes(16), 0, b"", 0, b"", Status.OK, slot, generation, doomed=True)
            for slot, generation in zip(
                u32s(granted.slots).tolist(), u64s(granted.generations).tolist(), strict=True
            )
        ]
        new = {block.generation for block in self.model.puts[session, put_id]}
        assert not new & self.model.generations
        self.model.generations |= new

    @precondition(lambda self: self.model.ahead)
    @rule(
        data=st.data(), kind=st.integers(0, 2), length=st.sampled_from([900, 5000]), times=st.integers(1, 2)
    )
    def put_ahead(self, data: st.DataObject, kind: int, length: int, times: int) -> None:
        """Names for such slots, where they fit."""
        session, put_id = data.draw(st.sampled_from(sorted(self.model.ahead)))
        places = self.model.puts[session, put_id]
        count = data.draw(st.integers(1, len(places) + 1))
        item, blocks = self.make_item(kind, count, 0, length)
        request = PutAhead(session, put_id, item)
        fits = self.model.ahead[session, put_id] == self.slot_bytes_of(kind, blocks[0])
        if not fits or count > len(places):
            with pytest.raises(InvalidParams):
                self.core.put_ahead(request)
            return
        for block, place in zip(blocks, places, strict=False):
            block.slot = place.slot
            self.write(block)
        for _ in range(times):
            assert self.core.put_ahead(request) == bytes(count)
        for block in blocks:
            block.generation = self.sink.index[block.slot].generation
            assert block.generation not in self.model.generations
            self.model.generations.add(block.generation)
            self.model.held[block.slot] = block
        self.forget_put(session, put_id)

    @precondition(lambda self: self.model.puts)
    @rule(data=st.data())
    def put_ahead_without_grant(self, data: st.DataObject) -> None:
        """Its writer has copied what it had to copy; what lies there is nobody's."""
        session, put_id = data.draw(st.sampled_from(sorted(self.model.puts)))
        item, _ = self.make_item(2, 2, 0, 900)
        if (session, put_id) not in self.model.ahead:
            assert set(self.core.put_ahead(PutAhead(session, put_id, item))) == {Status.GONE}
            self.forget_put(session, put_id)

    def slot_bytes_of(self, kind: int, block: Block) -> int:
        if SPECS[kind].variable_size:
            return object_slot_bytes(block.length + len(block.key))
        return fixed_slot_bytes(block.length)

    def forget_put(self, session: int, put_id: int) -> list[Block]:
        self.model.ahead.pop((session, put_id), None)
        return self.model.puts.pop((session, put_id))

    def make_item(self, kind: int, count: int, rank: int, length: int) -> tuple[BeginItem, list[Block]]:
        spec, keyspace = SPECS[kind], DIGESTS[kind]
        rank = min(rank, spec.world - 1)
        hashes = [self.new_hash(spec.hash_bytes) for _ in range(count)]
        size = length if spec.variable_size else spec.shard_bytes[rank]
        keys = [f"key-{block_hash.hex()[:9]}" for block_hash in hashes] if spec.variable_size else []
        chained = spec.kind is Kind.CHAINED
        parent = self.new_hash(32) if chained and count % 2 else b""
        item = BeginItem(
            keyspace,
            rank,
            7 if chained else 0,
            parent,
            join_hashes(hashes),
            pack_u64([size] * count) if spec.variable_size else b"",
            keys,
        )
        zeros = bytes(spec.hash_bytes)
        parents = [parent or zeros, *hashes[:-1]] if chained else [zeros] * count
        blocks = [
            Block(
                keyspace,
                rank,
                block_hash,
                7 + index if chained else 0,
                parents[index],
                size,
                keys[index].encode() if keys else b"",
                0,
                0,
                0,
            )
            for index, block_hash in enumerate(hashes)
        ]
        return item, blocks

    def new_hash(self, hash_bytes: int) -> bytes:
        """Some end in zeros, which numpy's strings would lose."""
        self.next_hash += 1
        made = hashlib.sha256(self.next_hash.to_bytes(8, "little")).digest()[:hash_bytes]
        return made[:-2] + b"\0\0" if self.next_hash % 3 == 0 else made

    def write(self, block: Block) -> None:
        """What the client does with its grant."""
        slot_bytes = int(self.core.slots.allocator.slot_bytes[block.slot >> 16])
        start = int(
            self.core.slots.layout.data_offsets(np.array([block.slot], dtype=np.uint32), slot_bytes)[0]
        )
        self.memory.buffer[start : start + block.length] = np.frombuffer(block.payload, dtype=np.uint8)

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
        slots = self.core.slots
        for slot, block in self.model.held.items():
            size = int(slots.allocator.slot_bytes[slot >> 16])
            start = int(slots.layout.data_offsets(np.array([slot], dtype=np.uint32), size)[0])
            stored = self.memory.buffer[start : start + block.length + len(block.key)].tobytes()
            assert stored == block.payload + block.key


TestCore = CoreMachine.TestCase
TestCore.settings = stateful_settings(12_000)
