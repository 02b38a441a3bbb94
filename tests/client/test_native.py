"""The loops in C and their doubles in Python do the same."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from moonpool.master.eviction import LeastRecentlyUsed
from moonpool.master.flat import FlatTable
from moonpool.schemas.header import HEADER_DTYPE
from moonpool.schemas.keyspace import object_hash, objects_keyspace
from moonpool.schemas.packed import U32, U64
from moonpool.store_client import native
from moonpool.store_client.chain_points import python_probe_points
from moonpool.store_client.copiers.host import HostCopier
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.transports.base import ReadBatch
from moonpool.store_client.transports.segment_reads import SegmentReads
from moonpool.store_client.transports.shm import ShmTransport

needs_c = pytest.mark.skipif(not native.HOT, reason="built without a compiler")
HASHERS = [pytest.param(native.hash_keys, marks=needs_c), native.python_hash_keys]
FINDERS = [pytest.param(native.find_rows, marks=needs_c), native.python_find_rows]
NAMERS = [
    pytest.param(native.name_rows, native.forget_rows, marks=needs_c),
    (native.python_name_rows, native.python_forget_rows),
]
PROBERS = [pytest.param(native.probe_points, marks=needs_c), python_probe_points]
GATHERERS = [pytest.param(native.gather, marks=needs_c), native.python_gather]
PIECERS = [pytest.param(native.pieces, marks=needs_c), native.python_pieces]
LONGEST = 300


@pytest.mark.parametrize("hash_keys", HASHERS)
@settings(derandomize=True, deadline=None)
@given(keys=st.lists(st.text(min_size=1, max_size=LONGEST // 4), max_size=20))
def test_keys_are_hashed_as_object_hash_does(hash_keys, keys) -> None:  # type: ignore[no-untyped-def]
    try:
        wanted = b"".join(map(object_hash, keys))
    except UnicodeEncodeError:  # half of a surrogate pair is no text
        assert isinstance(hash_keys(keys, LONGEST), int)
    else:
        assert hash_keys(keys, LONGEST) == wanted


@pytest.mark.parametrize("hash_keys", HASHERS)
def test_keys_of_every_length(hash_keys) -> None:  # type: ignore[no-untyped-def]
    keys = ["k" * length for length in range(1, LONGEST + 1)]  # one to five blocks of SHA-256
    assert hash_keys(keys, LONGEST) == b"".join(map(object_hash, keys))


@pytest.mark.parametrize("hash_keys", HASHERS)
def test_keys_of_mixed_lengths(hash_keys) -> None:  # type: ignore[no-untyped-def]
    """In C two neighbours of as many blocks go together."""
    chance = random.Random(7)
    for count in range(1, 202, 5):
        keys = [f"{number}é"[:length].ljust(length, "k") for number, length in enumerate(range(1, 201))]
        chance.shuffle(keys)
        assert hash_keys(keys[:count], LONGEST) == b"".join(map(object_hash, keys[:count]))
    near = [
        chr(0x61 + number % 26) * length
        for length in (54, 55, 56, 57, 118, 119, 120, 247, 248)
        for number in range(9)
    ]
    for keys in (near, near[1:], sorted(near), near * 3):
        assert hash_keys(keys, LONGEST) == b"".join(map(object_hash, keys))


@pytest.mark.parametrize("hash_keys", HASHERS)
@pytest.mark.parametrize("bad", ["", "k" * (LONGEST + 1), "\ud800", b"bytes", None, 7])
def test_the_first_bad_key_is_named(hash_keys, bad) -> None:  # type: ignore[no-untyped-def]
    assert hash_keys(["good", bad, ""], LONGEST) == 1


@pytest.mark.parametrize(("name_rows", "forget_rows"), NAMERS)
def test_rows_are_named_and_forgotten(name_rows, forget_rows) -> None:  # type: ignore[no-untyped-def]
    hashes = [bytes([i % 7, i]) * 8 for i in range(40)]
    parts: list[dict[bytes, int]] = [{} for _ in range(4)]
    lists: native.NameLists = (parts, [])
    names = [b""] * 50
    rows = list(range(49, 9, -1))
    assert name_rows(lists, names, b"".join(hashes), 16, rows)
    assert native.python_find_rows(lists, b"".join(hashes), 16).tolist() == rows
    assert [names[row] for row in rows] == hashes and names[:10] == [b""] * 10

    before = ([dict(part) for part in parts], list(names))
    new = [bytes([i, 99]) * 8 for i in range(3)]
    for refused in ([*new, hashes[5]], [*new, new[1]], [hashes[0]]):  # known already, or named twice
        assert not name_rows(lists, names, b"".join(refused), 16, list(range(len(refused))))
        assert (parts, names) == before

    assert forget_rows(lists, names, 16, rows[3:20]) == b"".join(hashes[3:20])
    assert native.python_find_rows(lists, b"".join(hashes), 16).tolist() == rows[:3] + [-1] * 17 + rows[20:]
    assert [names[row] for row in rows] == hashes[:3] + [b""] * 17 + hashes[20:]
    assert name_rows(lists, names, b"".join(hashes[3:20]), 16, rows[3:20]) and (parts, names) == before
    assert name_rows(lists, names, b"", 16, []) and forget_rows(lists, names, 16, []) == b""


@needs_c
def test_rows_that_a_table_lacks_are_refused() -> None:
    lists: native.NameLists = ([{}, {}], [])
    names = [b""] * 3
    for rows in ([3], [-1], [0, 1]):
        with pytest.raises(ValueError):
            native.name_rows(lists, names, bytes(16), 16, rows)
    with pytest.raises(ValueError):
        native.forget_rows(lists, names, 16, [1])
    assert lists == ([{}, {}], []) and names == [b""] * 3


@needs_c
def test_columns_that_dont_fit_fill_no_row() -> None:
    table = FlatTable(objects_keyspace(), LeastRecentlyUsed())
    table.columns.take_many(3)
    items = (bytes(6), bytes(12), bytes(24), bytes(24))
    rows = [0, 1, 2]
    assert native.fill_rows(table.cells, rows, items, 7, 1.0) == 0
    for bad in ([0, 1], [0, 1, table.columns.count], [0, 1, -1], [0, 1, None]):
        with pytest.raises((ValueError, TypeError)):
            native.fill_rows(table.cells, bad, items, 7, 1.0)  # type: ignore[arg-type]
    for index in range(4):
        short = (*items[:index], items[index][1:], *items[index + 1 :])
        with pytest.raises(ValueError):
            native.fill_rows(table.cells, rows, short, 7, 1.0)
    for ranks, segment in ((b"\1" + bytes(5), 7), (bytes(6), 1 << 16), (bytes(6), -1)):
        with pytest.raises(ValueError):
            native.fill_rows(table.cells, rows, (ranks, *items[1:]), segment, 1.0)
    with pytest.raises((ValueError, TypeError)):
        native.fill_rows(table.cells[:-1], rows, items, 7, 1.0)  # type: ignore[arg-type]
    table.columns.take_many(64)  # no view of a column is left: it may grow


@needs_c
def test_ghosts_of_odd_numbers_are_refused() -> None:
    for ghosts, packed, hash_bytes in ((bytearray(12), bytes(16), 16), (bytearray(16), bytes(15), 16)):
        with pytest.raises(ValueError):
            native.take_ghosts(ghosts, packed, hash_bytes)
    with pytest.raises(BufferError):
        native.take_ghosts(bytes(16), bytes(16), 16)


@pytest.mark.parametrize("find_rows", FINDERS)
def test_rows_are_found(find_rows) -> None:  # type: ignore[no-untyped-def]
    parts: list[dict[bytes, int]] = [{} for _ in range(8)]
    hashes = [bytes([number]) * 16 for number in range(40)]
    for row, block_hash in enumerate(hashes[:30]):
        parts[block_hash[0] % 8][block_hash] = row
    asked = hashes[::-1]
    assert find_rows((parts, []), b"".join(asked), 16).tolist() == [-1] * 10 + list(range(29, -1, -1))
    assert find_rows((parts, []), b"", 16).tolist() == []


@pytest.mark.parametrize("probe_points", PROBERS)
@pytest.mark.parametrize("size", [16, 32])
def test_names_are_sampled_by_their_bits(probe_points, size) -> None:  # type: ignore[no-untyped-def]
    hashes = [np.random.default_rng(seed).bytes(size) for seed in range(200)]
    for mask in (0, 1, 7, (1 << 63) - 1):
        names = [h[:8] for h in hashes if not int.from_bytes(h[:8], "little") & mask]
        assert probe_points(hashes, size, mask, []) == (b"".join(names),)
    assert probe_points(hashes, size, -1, []) == (b"",)
    assert probe_points([], size, 0, []) == (b"",)


@pytest.mark.parametrize("probe_points", PROBERS)
def test_points_of_runs_are_each_stride_th_hash_and_the_last(probe_points) -> None:  # type: ignore[no-untyped-def]
    hashes = [bytes([number]) * 16 for number in range(20)]
    runs = [(0, 3, 1), (3, 8, 4), (11, 8, 3), (19, 1, 32)]
    wanted = [[0, 1, 2], [6, 10], [13, 16, 18], [19]]
    packed = [b"".join(hashes[index] for index in one) for one in wanted]
    assert probe_points(hashes, 16, -1, runs) == (b"", *packed)


@pytest.mark.parametrize("probe_points", PROBERS)
@pytest.mark.parametrize("sizes", [[16, 15], [32, 32], [8, 24]])
def test_hashes_of_another_size_give_no_points(probe_points, sizes) -> None:  # type: ignore[no-untyped-def]
    hashes = [bytes(size) for size in sizes]
    assert probe_points(hashes, 16, 0, []) is None, "all are looked at"
    assert probe_points(hashes, 16, -1, [(0, 2, 1)]) is None


@pytest.mark.parametrize("probe_points", PROBERS)
@pytest.mark.parametrize("run", [(-1, 1, 1), (0, 3, 1), (2, 1, 1), (0, 0, 1), (0, 1, 0)])
def test_runs_beyond_a_chain_are_refused(probe_points, run) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="beyond the chain"):
        probe_points([bytes(16)] * 2, 16, -1, [run])


@needs_c
def test_columns_that_do_not_fit_are_refused() -> None:
    one, two = np.zeros(1, dtype=np.uint64), np.zeros(2, dtype=np.uint64)
    with pytest.raises(ValueError, match="different length"):
        native.copy_pieces(one, two, two)
    with pytest.raises(ValueError, match="u64"):
        native.copy_pieces(np.zeros(3, dtype=np.uint8), one, one)


@pytest.mark.parametrize("hot", [pytest.param(True, marks=needs_c), False])
@pytest.mark.parametrize("size", [1, 300, 4096, 200_000, 3_000_001])
def test_pieces_are_copied(monkeypatch: pytest.MonkeyPatch, hot: bool, size: int) -> None:
    monkeypatch.setattr(native, "HOT", hot)
    rng = np.random.default_rng(1)
    source = rng.integers(0, 256, 8 * size, dtype=np.uint8)
    target = np.zeros_like(source)
    order = rng.permutation(8).astype(np.uint64)
    sizes = np.full(8, size, dtype=np.uint64)
    to = np.uint64(target.ctypes.data) + np.arange(8, dtype=np.uint64) * np.uint64(size)
    HostCopier().from_engine(to, np.uint64(source.ctypes.data) + order * np.uint64(size), sizes)
    assert np.array_equal(target.reshape(8, size), source.reshape(8, size)[order.astype(int)])


@pytest.mark.parametrize("pieces", PIECERS)
def test_lists_become_columns(pieces) -> None:  # type: ignore[no-untyped-def]
    top = (1 << 64) - 1
    found = pieces([[1, 2], [], [top, 0]], [[5, 0], [], [0, 0]])
    assert found.addresses.tolist() == [1, 2, top, 0]
    assert found.sizes.tolist() == [5, 0, 0, 0]
    assert found.offsets.tolist() == [0, 2, 2, 4]
    assert found.lengths().tolist() == [5, 0, 0]
    empty = pieces([], [])
    assert (empty.count, empty.lengths().tolist(), empty.offsets.tolist()) == (0, [], [0])


@pytest.mark.parametrize("pieces", PIECERS)
@pytest.mark.parametrize("bad", [-1, 1 << 64, 1.5, True, None, "1"])
def test_what_is_no_u64_is_left_to_others(pieces, bad) -> None:  # type: ignore[no-untyped-def]
    assert pieces([[1, 2], [bad]], [[1, 2], [3]]) is None
    assert pieces([[1, 2], [3]], [[1, 2], [bad]]) is None


@pytest.mark.parametrize("pieces", PIECERS)
@pytest.mark.parametrize(
    ("addresses", "sizes"),
    [
        ([[1]], [[1], [1]]),
        ([[1, 2]], [[1]]),
        ([[1]], [(1,)]),
        ([(1,)], [[1]]),
        (([1],), [[1]]),
        ([[0]], [[1]]),
        ([[2]], [[(1 << 64) - 1]]),
    ],
)
def test_pieces_that_can_not_be_are_left_to_others(pieces, addresses, sizes) -> None:  # type: ignore[no-untyped-def]
    assert pieces(addresses, sizes) is None


@pytest.mark.parametrize("gather", GATHERERS)
def test_a_few_objects_are_gathered(gather) -> None:  # type: ignore[no-untyped-def]
    memory = np.random.default_rng(3).integers(0, 256, 300, dtype=np.uint8)
    at, whole = memory.ctypes.data, memory.tobytes()
    addresses, sizes = [[at + 200, at], [], [at + 50, 0, at + 9]], [[100, 10], [], [1, 0, 0]]
    payload, lengths = gather(addresses, sizes, 111)
    assert payload == whole[200:] + whole[:10] + whole[50:51]
    assert np.frombuffer(lengths, dtype="<u8").tolist() == [110, 0, 1]
    assert gather(addresses, sizes, 110) is None, "too many bytes"
    assert gather([[at] * native.PIECES_MAX], [[1] * native.PIECES_MAX], 64) is not None
    assert gather([[at] * 40, [at] * 25], [[1] * 40, [1] * 25], 100) is None, "too many pieces"
    assert gather([[]] * 65, [[]] * 65, 100) is None
    assert gather([], [], 0) == (b"", b"")


@pytest.mark.parametrize("gather", GATHERERS)
@pytest.mark.parametrize("bad", [-1, 1 << 64, (1 << 64) - 1, 1.5, True, None, "1"])
def test_what_can_not_be_gathered_is_left_to_others(gather, bad) -> None:  # type: ignore[no-untyped-def]
    at = np.zeros(8, dtype=np.uint8).ctypes.data
    for addresses, sizes in (
        ([[at, bad]], [[1, 2]]),
        ([[at, at]], [[1, bad]]),
        ([[at]], [[1], [1]]),
        ([[at, at]], [[1]]),
        ([(at,)], [[1]]),
        (([at],), [[1]]),
        ([[0]], [[1]]),
    ):
        assert gather(addresses, sizes, 100) is None


@needs_c
def test_shares_of_threads_cut_pieces_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "COPY_THREADS", 4)
    rng = np.random.default_rng(2)
    lengths = [1, 5_000_000, 0, 3, 2_999_999, 1_000_001, 7]
    source = rng.integers(0, 256, sum(lengths), dtype=np.uint8)
    target = np.zeros_like(source)
    sizes = np.array(lengths, dtype=np.uint64)
    starts = np.cumsum(sizes) - sizes
    to, origin = np.uint64(target.ctypes.data) + starts, np.uint64(source.ctypes.data) + starts
    native.copy_pieces(to, origin, sizes)
    assert np.array_equal(target, source)
    native.copy_pieces(to[:0], origin[:0], sizes[:0])


def test_a_build_of_another_version_is_not_used() -> None:
    code = (
        "import sys, types; sys.modules['moonpool.store_client._hot'] = types.ModuleType('_hot');"
        "from moonpool.store_client import native; sys.exit(native.HOT)"
    )
    environment = {**os.environ, "MOONPOOL_NATIVE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    assert "make setup" in done.stderr


class Slab:
    """A segment of two pages of 4096 bytes, each cut in slots of 1024, as hot_slots.c and MappedSegment see it."""

    def __init__(self) -> None:
        self.memory = np.zeros((2, 4096), dtype=np.uint8)
        self.headers = np.zeros(8, dtype=HEADER_DTYPE)
        self.page_table = np.full(2, 1024, dtype=np.uint32)
        bases = [column.ctypes.data for column in (self.memory, self.headers, self.page_table)]
        self.native_layout = np.array([*bases, 4096, 2, 4], dtype=np.uint64)

    def places(self, slots: U32, lengths: U64) -> tuple[U64, NDArray[np.bool_]]:
        """See MappedSegment."""
        starts = np.uint64(self.memory.ctypes.data) + (slots >> 16) * np.uint64(4096)
        return starts + (slots & 0xFFFF) * np.uint64(1024), lengths <= 1024


def shm_over(slab: Slab, *, hot: bool) -> ShmTransport:
    """What of the transport copies, with no node behind it."""
    transport = ShmTransport.__new__(ShmTransport)
    transport._segment, transport._copier, transport._native = slab, HostCopier(), hot  # type: ignore[assignment]
    transport._reads = SegmentReads(transport._segment, HostCopier())
    transport._reads._native = hot
    return transport


TOP = 1 << 64


@pytest.mark.parametrize("hot", [pytest.param(True, marks=needs_c), False])
@pytest.mark.parametrize(
    "sizes",
    [
        [[TOP - 8, 24]],
        [[24, TOP - 8]],
        [[8, TOP - 8, 16]],
        [[16], [TOP - 16, 32]],
        [[16, TOP - 16, 16], [16]],
        [[17], [15]],
        [[15]],
    ],
)
def test_pieces_of_another_sum_are_refused_also_where_it_wraps_around(
    hot: bool, sizes: list[list[int]]
) -> None:
    slab = Slab()
    transport, outside = shm_over(slab, hot=hot), np.full(4096, 7, dtype=np.uint8)
    pieces = Fragments.lists([[outside.ctypes.data + 64 * at for at in range(len(s))] for s in sizes], sizes)
    count = len(sizes)
    slots, lengths = np.arange(count, dtype=np.uint32), np.full(count, 16, dtype=np.uint64)
    with pytest.raises(ValueError, match="fit"):
        transport._copy_in(slots, lengths, pieces)
    hashes, generations = np.zeros(count, dtype="S32"), np.zeros(count, dtype=np.uint64)
    batch = ReadBatch(bytes(16), 0, hashes, slots, generations, lengths, pieces)
    with pytest.raises(ValueError, match="fit"):
        transport._reads.read(batch)
    assert not slab.memory.any() and (outside == 7).all(), "something was copied"


@pytest.mark.parametrize("hot", [pytest.param(True, marks=needs_c), False])
def test_pieces_that_fit_are_copied(hot: bool) -> None:
    slab, outside = Slab(), np.arange(256, dtype=np.uint8)
    start = outside.ctypes.data
    pieces = Fragments.lists([[start + 9, start], [start + 100, start + 50]], [[7, 9], [0, 16]])
    slots, lengths = np.array([1, 2], dtype=np.uint32), np.full(2, 16, dtype=np.uint64)
    assert shm_over(slab, hot=hot)._copy_in(slots, lengths, pieces)
    assert slab.memory[0, 1024:1040].tolist() == [*range(9, 16), *range(9)]
    assert slab.memory[0, 2048:2064].tolist() == list(range(50, 66))
