"""The host copier against a plain slice copy, at any size, alignment and order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.schemas.packed import U64
from moonpool.store_client.copiers.host import HostCopier


def address_of(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def plan(seed: int, sizes: list[int], align: int, gap: bool) -> tuple[U64, U64, int, int]:
    """Offsets of scattered engine pieces and of host pieces, with the bytes that each side spans."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(sizes))
    engine = np.zeros(len(sizes), dtype=np.uint64)
    at = 0
    for piece in order:
        at = -(-at // align) * align + align * int(rng.integers(0, 3))
        engine[piece] = at
        at += sizes[piece]
    steps = [size + (int(rng.integers(0, 2)) * 64 if gap else 0) for size in sizes]
    host = np.concatenate(([0], np.cumsum(steps)[:-1])).astype(np.uint64)
    return engine, host, at, sum(steps)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 1000),
    sizes=st.one_of(
        st.lists(st.sampled_from([1, 7, 256, 512, 4096, 6144, 9000, 65536]), min_size=1, max_size=24),
        st.tuples(st.sampled_from([100, 512, 4096, 5120]), st.integers(1, 700)).map(lambda t: [t[0]] * t[1]),
    ),
    align=st.sampled_from([1, 64, 512, 4096]),
    gap=st.booleans(),
)
def test_copies_what_a_plain_loop_copies(seed: int, sizes: list[int], align: int, gap: bool) -> None:
    engine, host, engine_bytes, host_bytes = plan(seed, sizes, align, gap)
    rng = np.random.default_rng(seed)
    columns = np.array(sizes, dtype=np.uint64)
    for to_engine in (True, False):
        sides = [rng.integers(0, 256, size, dtype=np.uint8) for size in (engine_bytes, host_bytes)]
        to, source = sides if to_engine else reversed(sides)
        to_offsets, source_offsets = (engine, host) if to_engine else (host, engine)
        expected = to.copy()
        for a, b, n in zip(to_offsets.tolist(), source_offsets.tolist(), sizes, strict=True):
            expected[a : a + n] = source[b : b + n]
        copier = HostCopier()
        move = copier.to_engine if to_engine else copier.from_engine
        move(to_offsets + np.uint64(address_of(to)), source_offsets + np.uint64(address_of(source)), columns)
        assert np.array_equal(to, expected)


@pytest.mark.parametrize("piece", [4096, 65536, 1 << 20])
def test_overlapping_extents_are_copied_right(piece: int) -> None:
    """Engine pieces on both sides of the host's in memory: numpy can't tell that they don't overlap."""
    memory = np.arange(9 * piece // 8, dtype=np.uint64).view(np.uint8)
    before = memory.copy()
    base = np.uint64(address_of(memory))
    engine = base + np.array([0, 1, 7, 8], dtype=np.uint64) * np.uint64(piece)
    host = base + np.arange(3, 7, dtype=np.uint64) * np.uint64(piece)
    HostCopier().to_engine(engine, host, np.full(4, piece, dtype=np.uint64))
    rows, old = memory.reshape(9, piece), before.reshape(9, piece)
    assert np.array_equal(rows[[0, 1, 7, 8]], old[3:7])
    assert np.array_equal(rows[2:7], old[2:7])


def test_nothing_is_nothing() -> None:
    none = np.zeros(0, dtype=np.uint64)
    HostCopier().to_engine(none, none, none)
    HostCopier().from_engine(none, none, none)
