"""The node's side of a put: it reads, and commits only what its writer still wants."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from engine_transport.segments import BLOCK_BYTES, SPEC, FakeNode
from support.payloads import chain_hashes, payload

from moonpool.schemas.errors import BadInput, Gone, TransferFailed
from moonpool.schemas.messages import BeginItem, PullWrite, Status
from moonpool.schemas.packed import pack_u64, u32s
from moonpool.store_client.raw_memory import address_of
from moonpool.store_client.transports.engine.guards import Guards

HASHES = chain_hashes("prompt", 10)
SIZE_BYTES = 10 * BLOCK_BYTES


class Writer:
    """Ten blocks in registered memory, cut in odd pieces that lie in reverse order, and a guard."""

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self._map = mmap.mmap(-1, 1 << 20)
        self.memory = np.frombuffer(self._map, dtype=np.uint8)
        self.address = address_of(self.memory)
        node.engine.register(self.address, len(self.memory))
        self.guards = Guards(node.engine)
        content = np.concatenate([payload(one, 0, BLOCK_BYTES) for one in HASHES])
        cuts = np.array([0, 1000, 50_000, 50_001, 200_000, SIZE_BYTES])
        self.sizes = np.diff(cuts)
        self.starts = (1 << 20) - cuts[1:] - 7
        for start, cut, size in zip(self.starts, cuts, self.sizes, strict=False):
            self.memory[start : start + size] = content[cut : cut + size]

    def request(self, guard: int, token: int) -> PullWrite:
        item = BeginItem(SPEC.digest(), 0, 0, b"", b"".join(HASHES), pack_u64([BLOCK_BYTES] * 10))
        addresses = pack_u64(self.starts + self.address)
        return PullWrite(
            item, str(self.node.engine.address), addresses, pack_u64(self.sizes), guard, token, True
        )

    def close(self) -> None:
        self.guards.close()
        self.node.engine.unregister(self.address)


@pytest.fixture
def writer() -> Iterator[Writer]:
    node = FakeNode(pages=1)
    made = Writer(node)
    yield made
    made.close()
    node.close()
    node.core.validate()
    assert not node.core.slots.writing.any()


def test_what_was_offered_is_committed(writer: Writer) -> None:
    with writer.guards.guard() as (guard, token):
        granted = writer.node.pulls.write(writer.request(guard, token))
    assert granted.statuses == bytes([Status.OK] * 10)
    slots, layout = u32s(granted.slots), writer.node.core.slots.layout
    starts = layout.data_offsets(slots, writer.node.core.slots.allocator.slot_bytes[slots >> 16])
    for one, start in zip(HASHES, starts.tolist(), strict=True):
        assert np.array_equal(writer.node.memory[start : start + BLOCK_BYTES], payload(one, 0, BLOCK_BYTES))
    assert writer.node.core.slots.committed == 10


def test_only_what_got_a_slot_is_filled(writer: Writer) -> None:
    """A page has 42 slots: the fifth time two blocks find one."""
    for _ in range(4):
        with writer.guards.guard() as (guard, token):
            writer.node.pulls.write(writer.request(guard, token))
    with writer.guards.guard() as (guard, token):
        granted = writer.node.pulls.write(writer.request(guard, token))
    assert granted.statuses == bytes([Status.OK] * 2 + [Status.NO_SPACE] * 8)
    assert writer.node.core.slots.committed == 42


def test_a_put_that_was_given_up_is_not_committed(writer: Writer) -> None:
    with writer.guards.guard() as (guard, token):
        request = writer.request(guard, token)
    writer.memory[:] = 0xEE  # the writer's next use of that memory
    with pytest.raises(Gone):
        writer.node.pulls.write(request)
    assert writer.node.core.slots.committed == 0


def test_given_up_between_payload_and_guard(writer: Writer) -> None:
    with writer.guards.guard() as (guard, token):
        request = writer.request(guard, token)

        def wipe(number: int) -> None:
            if number == 1:
                writer.guards._words[:] = 0

        writer.node.engine.before_read = wipe
        with pytest.raises(Gone):
            writer.node.pulls.write(request)


def test_a_writer_that_cannot_be_read_leaves_nothing_open(writer: Writer) -> None:
    writer.node.engine.failing = True
    for failures in range(1, 5):
        with writer.guards.guard() as (guard, token), pytest.raises(TransferFailed):
            writer.node.pulls.write(writer.request(guard, token))
        assert writer.node.landing.given_up == failures
        assert not writer.node.core.slots.writing.any()
    writer.node.engine.failing = False
    with writer.guards.guard() as (guard, token):
        granted = writer.node.pulls.write(writer.request(guard, token))
    assert granted.statuses == bytes([Status.OK] * 10)


@pytest.mark.parametrize(
    "change",
    [
        {"engine_address": "nonsense"},
        {"engine_address": "rdma://127.0.0.1:1"},
        {"addresses": b""},
        {"addresses": bytes(7)},
        {"sizes": pack_u64([1] * 5)},
        {"sizes": pack_u64([1 << 63, 1 << 63, SIZE_BYTES, 0, 0])},
        {"addresses": pack_u64([(1 << 64) - 1] * 5)},
        {"guard_address": 0},
        {"guard_address": 1 << 63},
        {"sizes": bytes(8 * 65537), "addresses": bytes(8 * 65537)},
    ],
    ids=str,
)
def test_bad_requests_are_refused_before_a_slot_is_taken(writer: Writer, change: dict[str, object]) -> None:
    request = msgspec.structs.replace(writer.request(1, 1), **change)
    with pytest.raises(BadInput):
        writer.node.pulls.write(request)
    assert writer.node.engine.reads == []


@pytest.mark.parametrize("lengths", [[], [BLOCK_BYTES] * 9, [1 << 63, 1 << 63], [1 << 40], [1] * 8193])
def test_bad_lengths_are_refused(writer: Writer, lengths: list[int]) -> None:
    item = msgspec.structs.replace(writer.request(1, 1).item, lengths=pack_u64(lengths))
    with pytest.raises(BadInput):
        writer.node.pulls.write(msgspec.structs.replace(writer.request(1, 1), item=item))
    assert not writer.node.core.slots.writing.any()
