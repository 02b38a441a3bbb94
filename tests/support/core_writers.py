"""A NodeCore, a naive model of it, and the steps of writers that put something into both."""

from __future__ import annotations

import hashlib
from unittest import mock

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from msgspec import structs

from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.header import keyspace_word
from moonpool.schemas.keyspace import Kind
from moonpool.schemas.messages import AHEAD_SLOTS, Begin, BeginItem, Granted, PutAhead, Status
from moonpool.schemas.packed import join_hashes, pack_u64, u32s, u64s
from moonpool.store_client.node import ahead
from moonpool.store_client.node.ahead import Like, grant_ahead
from moonpool.store_client.node.annex import SessionRecord
from moonpool.store_client.node.core import NodeCore, Shortage
from moonpool.store_client.node.layout import Layout, fixed_slot_bytes, object_slot_bytes
from moonpool.store_client.node.memory import HeapMemory
from moonpool.store_client.node.whole_puts import FEW
from support.core_model import DIGESTS, PAGE, PAGES, SESSIONS, SPECS, Block, Model
from support.node_sink import IndexSink


class CoreWriters(RuleBasedStateMachine):
    """What writers begin, store whole, and put into slots that were granted ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.share = mock.patch.object(
            ahead, "SHARE", 1
        )  # else a segment as small as this has nothing to spare
        self.share.start()
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

    def teardown(self) -> None:
        """Also where a step has failed."""
        self.share.stop()

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
        count=st.sampled_from([1, 2, 5, AHEAD_SLOTS + 1]),
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
        self.model.ahead[session, put_id] = kind, length
        self.model.puts[session, put_id] = [
            Block(
                item.keyspace,
                0,
                bytes(SPECS[kind].hash_bytes),
                0,
                b"",
                0,
                b"",
                Status.OK,
                slot,
                generation,
                doomed=True,
            )
            for slot, generation in zip(
                u32s(granted.slots).tolist(), u64s(granted.generations).tolist(), strict=True
            )
        ]
        new = {block.generation for block in self.model.puts[session, put_id]}
        assert not new & self.model.generations
        self.model.generations |= new

    @rule(
        data=st.data(),
        kind=st.integers(0, 2),
        length=st.sampled_from([900, 5000]),
        times=st.integers(1, 2),
        other=st.booleans(),
    )
    def put_ahead(self, data: st.DataObject, kind: int, length: int, times: int, other: bool) -> None:
        """Names for such slots, where they fit."""
        if not self.model.ahead:
            self.grant_ahead(SESSIONS[0], kind, 3, length, 0)
        if not self.model.ahead:
            return
        session, put_id = data.draw(st.sampled_from(sorted(self.model.ahead)))
        right_kind, right_length = self.model.ahead[session, put_id]
        _, (right, *_) = self.make_item(right_kind, 1, 0, right_length)
        if not other:
            kind, length = right_kind, right_length
        places = self.model.puts[session, put_id]
        count = data.draw(st.integers(1, len(places) + 1))
        item, blocks = self.make_item(kind, count, 0, length)
        request = PutAhead(session, put_id, item)
        fits = self.slot_bytes_of(right_kind, right) == self.slot_bytes_of(kind, blocks[0])
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
