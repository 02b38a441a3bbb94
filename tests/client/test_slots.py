"""Slots of a mapped segment, read and written by the loops in C and by their doubles in Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from client.chains import Engine, all_ok
from client.pool import Pool
from client.test_shm import BLOCK_BYTES, SPEC, batch_of, transport_of
from msgspec.structs import replace
from numpy.typing import NDArray
from support.payloads import chain_hashes
from support.waiting import soon

from moonpool.schemas.header import SlotState
from moonpool.schemas.messages import Granted, RegisterKeyspace, Status
from moonpool.schemas.packed import pack_u32
from moonpool.store_client import native
from moonpool.store_client.copiers.host import HostCopier
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.node import headers as node_headers
from moonpool.store_client.node.headers import words_of
from moonpool.store_client.transports.base import ReadBatch
from moonpool.store_client.transports.shm import ShmTransport

needs_c = pytest.mark.skipif(not native.HOT, reason="built without a compiler")
COUNT = 9


@pytest.fixture(params=[pytest.param(True, marks=needs_c), False], ids=["c", "python"])
def transport(
    request: pytest.FixtureRequest, shared_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ShmTransport]:
    monkeypatch.setattr(native, "HOT", request.param)
    found = transport_of(shared_pool, tmp_path, HostCopier())
    assert found._native == request.param
    found._node.call(RegisterKeyspace(SPEC), soon())
    yield found
    found.close()


class Stored:
    """Blocks that were put, where they lie, and memory to read them into."""

    def __init__(self, transport: ShmTransport, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        batch, _ = batch_of(name, COUNT)
        call = transport._node.call
        grants: list[Granted] = []

        def noted(message: object, deadline_s: float) -> object:
            answer = call(message, deadline_s)  # type: ignore[arg-type]
            grants.extend([answer] if isinstance(answer, Granted) else [])
            return answer

        with monkeypatch.context() as patch:
            patch.setattr(transport._node, "call", noted)
            assert all_ok(transport.write([batch], soon())[0])
        self.hashes = chain_hashes(name, COUNT)
        self.engine = Engine(COUNT, BLOCK_BYTES, fragments=4, seed=3)
        self.batch = ReadBatch(
            keyspace=SPEC.digest(),
            rank=0,
            hashes=np.array(self.hashes, dtype="S32"),
            slots=np.frombuffer(grants[0].slots, dtype=np.uint32),
            generations=np.frombuffer(grants[0].generations, dtype=np.uint64),
            lengths=np.full(COUNT, BLOCK_BYTES, dtype=np.uint64),
            into=self.engine.fragments,
            verify=False,
        )


def test_blocks_come_back_in_pieces(transport: ShmTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Stored(transport, f"slots {transport._native}", monkeypatch)
    statuses = transport.read(stored.batch, soon())
    assert all_ok(statuses) and not stored.engine.wrong(stored.hashes, 0, statuses)


def test_what_a_header_does_not_say_is_missing(
    transport: ShmTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = Stored(transport, f"headers {transport._native}", monkeypatch)
    batch = stored.batch
    generations, hashes = batch.generations.copy(), batch.hashes.copy()
    generations[1] += 1
    generations[2] |= np.uint64(1 << 56)  # of another state
    hashes[3] = bytes(31) + b"x"
    hashes[4], hashes[5] = hashes[5], hashes[4]
    wrong = [1, 2, 3, 4, 5]
    read = replace(batch, generations=generations, hashes=hashes)
    assert_missing(transport.read(read, soon()), wrong)
    assert_missing(transport.read(replace(batch, rank=1), soon()), list(range(COUNT)))
    shortest = len(stored.hashes[0])
    read = replace(batch, hashes=batch.hashes.astype(f"S{shortest}"))  # as clients have those of one size
    assert all_ok(transport.read(read, soon()))
    read = replace(batch, hashes=batch.hashes.astype(f"S{shortest - 1}"))  # how theirs begin is not enough
    assert_missing(transport.read(read, soon()), list(range(COUNT)))
    assert_missing(transport.read(replace(batch, keyspace=bytes(32)), soon()), list(range(COUNT)))
    shorter = stored.engine.fragments
    sizes = shorter.sizes.copy()
    sizes[:4] = [1, 0, 2, 3]
    short = type(shorter)(shorter.addresses, sizes, shorter.offsets)
    assert_missing(transport.read(replace(batch, into=short, lengths=short.lengths()), soon()), [0])


def test_places_outside_are_not_read(transport: ShmTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Stored(transport, f"outside {transport._native}", monkeypatch)
    layout = transport._segment.layout
    page = int(stored.batch.slots[0]) >> 16
    unused = next(p for p in range(layout.page_count - 1, -1, -1) if not transport._segment._page_table[p])
    bad = [
        layout.page_count << 16,
        (1 << 32) - 1,
        unused << 16,
        page << 16 | layout.page_bytes // BLOCK_BYTES,
        page << 16 | 0xFFFF,
    ]
    slots = stored.batch.slots.copy()
    slots[: len(bad)] = bad
    statuses = transport.read(replace(stored.batch, slots=slots), soon())
    assert_missing(statuses, list(range(len(bad))))
    assert not any(stored.engine.block(i).any() for i in range(len(bad)))
    assert not stored.engine.wrong(stored.hashes, 0, statuses)


def test_a_grant_outside_its_page_is_not_filled(
    transport: ShmTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, _ = batch_of(f"grant {transport._native}", 2)
    call = transport._node.call

    def misled(message: object, deadline_s: float) -> object:
        answer = call(message, deadline_s)  # type: ignore[arg-type]
        if isinstance(answer, Granted):
            slots = np.frombuffer(answer.slots, dtype=np.uint32)
            answer = msgspec.structs.replace(answer, slots=pack_u32([int(slots[0]), 0xFFFFFFFF]))
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(transport._node, "call", misled)
        assert (transport.write([batch], soon())[0] == Status.FAILED).all()
    assert all_ok(transport.write([batch], soon())[0])


def assert_missing(statuses: NDArray[np.uint8], wrong: list[int]) -> None:
    expected = [Status.MISSING if i in wrong else Status.OK for i in range(COUNT)]
    assert statuses.tolist() == expected


@needs_c
def test_columns_that_do_not_fit_are_refused() -> None:
    layout, none = np.zeros(6, dtype=np.uint64), np.zeros(0, dtype=np.uint64)
    slots = np.zeros(1, dtype=np.uint32)
    engine = Engine(1, BLOCK_BYTES).fragments
    for lengths in (none, np.array([BLOCK_BYTES - 1], dtype=np.uint64)):
        with pytest.raises(ValueError, match="fit"):
            native.fill_slots(layout, slots, lengths, engine)
    with pytest.raises(ValueError, match="fit"):
        native.read_slots(
            layout, slots, none, engine.lengths(), np.zeros(1, dtype="S32"), 0, 0, engine, False
        )


@needs_c
@pytest.mark.parametrize("cuts", [(), (1,), (63, 64), (20_000, 20_001, 50_003)])
@pytest.mark.parametrize("slot_bytes", [16 << 10, (64 << 10) + 64, 80_000])
def test_every_byte_of_a_large_object_lands_and_none_beside_it(
    slot_bytes: int, cuts: tuple[int, ...]
) -> None:
    """Long pieces are copied past the caches, a line at a time: whatever their ends are."""
    page_bytes = 1 << 20
    data, page_table = np.zeros(page_bytes, dtype=np.uint8), np.full(1, slot_bytes, dtype=np.uint32)
    layout = np.array([data.ctypes.data, 0, page_table.ctypes.data, page_bytes, 1, 1024], dtype=np.uint64)
    length = slot_bytes - 13
    source = np.random.default_rng(slot_bytes).integers(1, 256, length + 3, dtype=np.uint8)[3:]
    starts = [0, *(cut for cut in cuts if cut < length)]
    sizes = [end - start for start, end in zip(starts, [*starts[1:], length], strict=True)]
    pieces = Fragments.lists([[source.ctypes.data + start for start in starts]], [sizes])
    assert native.fill_slots(layout, np.array([2], dtype=np.uint32), pieces.lengths(), pieces)
    first = 2 * slot_bytes
    assert (data[first : first + length] == source).all()
    assert not data[:first].any() and not data[first + length :].any()


def test_a_word_is_read_behind_the_rest_of_its_header(
    transport: ShmTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a slot that is taken meanwhile would seem to hold what was asked for, with somebody else's checksum."""
    stored = Stored(transport, f"word {transport._native}", monkeypatch)
    fence, fences = node_headers.fence, list[int]()

    def taken_behind_the_second() -> None:
        fence()
        fences.append(len(fences))
        if len(fences) == 2:
            rows = transport._segment.layout.header_rows(stored.batch.slots)
            transport._segment._headers.words[rows] += 1

    monkeypatch.setattr(node_headers, "fence", taken_behind_the_second)
    headers = transport._segment.headers(stored.batch.slots)
    assert not (headers["word"] == words_of(SlotState.COMMITTED, stored.batch.generations)).any()
    assert (headers["length"] == BLOCK_BYTES).all()
