"""Lookups in flat tables: the loops in C answer and lease as numpy does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.master import lookups
from moonpool.master.eviction import LeastRecentlyUsed
from moonpool.master.flat import FlatTable
from moonpool.master.step import Step
from moonpool.master.table import Usable
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import Locate, Located, Presence, Present
from moonpool.schemas.packed import u16s
from moonpool.store_client import native

pytestmark = pytest.mark.skipif(not native.HOT, reason="built without a compiler")
NAMES = [f"segment {number}".encode() for number in range(200)]
HASHES = [bytes([number]) * 16 for number in range(30)]

Cell = st.tuples(st.sampled_from(HASHES), st.integers(0, 1), st.integers(0, 4))


def table_of(world: int, sizes: tuple[int, ...], cells: list[tuple[bytes, int, int]]) -> FlatTable:
    """Each cell: hash, rank, segment."""
    spec = KeyspaceSpec(kind=Kind.FLAT, name="flat", shard_bytes=sizes, hash_bytes=16)
    table = FlatTable(spec, LeastRecentlyUsed())
    for number, (block_hash, rank, segment) in enumerate(cells):
        row, rank = table.rows.get(block_hash), rank % world
        row = table.make_row(block_hash, 0.0) if row < 0 else row
        cell = row * world + rank
        table.which[cell], table.slots[cell], table.generations[cell] = segment, number, number + 100
        if table.lengths is not None:
            table.lengths[cell] = number + 1000
        table.committed[row] |= 1 << rank
        table.ready[row] = table.committed[row] == table.full
    return table


def step_of(usable: Usable) -> Step:
    return Step(10.0, usable, not usable.all(), NAMES, lambda size_bytes: None)


def answers(table: FlatTable, hashes: bytes, rank: int, usable: Usable) -> list[object]:
    """What readers hear, and what they leave behind."""
    step = step_of(usable)
    found = lookups.locate(table, Locate(b"", max(0, rank), hashes=hashes), step)
    present = lookups.presence(table, Presence(b"", hashes, rank, ttl_ms=5000), step)
    leases = [table.soft_until_s(row) for row in range(table.columns.count)]
    table._soft_until_s[:] = type(table._soft_until_s)("d", [0.0] * table.columns.count)
    return [places(found), present, leases]


def places(found: Located) -> list[object]:
    """With segments by name: each way numbers them as it likes."""
    named = [found.segments[number] if found.segments else b"" for number in u16s(found.which).tolist()]
    here = [generation != 0 for generation in np.frombuffer(found.generations, dtype=np.uint64).tolist()]
    segments = [name if there else b"" for name, there in zip(named, here, strict=True)]
    return [segments, found.slots, found.generations, found.lengths]


@pytest.mark.parametrize("sizes", [(0,), (0, 0), (64,), (64, 128)])
@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    cells=st.lists(Cell, max_size=25),
    asked=st.lists(st.sampled_from(HASHES), max_size=25),
    rank=st.integers(-1, 1),
    gone=st.sets(st.integers(0, 4)),
)
def test_both_say_the_same(
    sizes: tuple[int, ...],
    cells: list[tuple[bytes, int, int]],
    asked: list[bytes],
    rank: int,
    gone: set[int],
) -> None:
    table = table_of(len(sizes), sizes, cells)
    usable = np.ones(1 << 16, dtype=np.bool_)
    usable[list(gone)] = False
    rank = min(rank, len(sizes) - 1)
    packed = b"".join(asked) * 3  # some are many enough for the filters before the dicts
    in_c = answers(table, packed, rank, usable)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "HOT", False)
        assert answers(table, packed, rank, usable) == in_c


def test_an_answer_that_names_very_many_segments() -> None:
    hashes = [number.to_bytes(16, "big") for number in range(1 << 8, (1 << 8) + len(NAMES))]
    table = table_of(1, (0,), [(one, 0, number) for number, one in enumerate(hashes)])
    found = lookups.locate(
        table, Locate(b"", 0, hashes=b"".join(hashes)), step_of(np.ones(1 << 16, np.bool_))
    )
    assert [found.segments[number] for number in u16s(found.which)] == NAMES


def test_what_does_not_fit_is_refused() -> None:
    table, usable = table_of(1, (0,), [(HASHES[0], 0, 1)]), np.ones(1 << 16, dtype=np.bool_)
    good = table.native
    present, located = native.find_present, native.find_places
    assert present(good, HASHES[0], 0, usable, 1.0) == b"\1"
    assert native.find_places(good, b"", 0, usable, 0) == (b"", b"", b"", b"", b"")
    for bad in (
        (good[0], 16, 2, *good[3:]),  # columns of another width
        (good[0], 16, 0, *good[3:]),
        (good[0], 0, 1, *good[3:]),
        ([], 16, 1, *good[3:]),
        (*good[:3], bytearray(1), *good[4:]),  # fewer rows
        (*good[:3], bytearray(), *[b""] * 2, *[b""] * 4),
        (*good[:5], None, *good[6:]),
    ):
        with pytest.raises((ValueError, BufferError)):
            present(bad, HASHES[0], 0, usable, 1.0)
        with pytest.raises((ValueError, BufferError)):
            located(bad, HASHES[0], 0, usable, 0)
    lost = (([{HASHES[0]: 1 << 40}], []), *good[1:])
    with pytest.raises(ValueError, match="a row that the columns lack"):
        present(lost, HASHES[0], 0, usable, 1.0)
    with pytest.raises(ValueError, match="a row that the columns lack"):
        located(lost, HASHES[0], 0, usable, 0)
    for wrong in (b"short", HASHES[0] + b"x"):
        with pytest.raises(ValueError):
            present(good, wrong, 0, usable, 1.0)
    with pytest.raises(ValueError):
        present(good, HASHES[0], 1, usable, 1.0)
    with pytest.raises(ValueError):
        located(good, HASHES[0], -1, usable, 0)
    with pytest.raises(ValueError):
        present(good, HASHES[0], 0, usable[:-1].copy(), 1.0)
    assert lookups.presence(table, Presence(b"", HASHES[0], 0), step_of(usable)) == Present(b"\1")
