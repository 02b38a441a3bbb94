"""Piece lists against plain loops."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.store_client.fragments import Fragments
from moonpool.store_client.transports.pieces import (
    batches_of,
    coalesce,
    runs_of_true,
    slot_side,
    split_evenly,
    trim,
)

quick = settings(derandomize=True, deadline=None, max_examples=100)
shapes = st.lists(st.lists(st.integers(0, 50), max_size=5), max_size=8)


def fragments(shape: list[list[int]], gap: int = 7) -> Fragments:
    sizes = [size for pieces in shape for size in pieces]
    starts = np.concatenate(([0], np.cumsum([size + gap for size in sizes])))[: len(sizes)]
    offsets = np.concatenate(([0], np.cumsum([len(pieces) for pieces in shape]))).astype(np.int64)
    return Fragments(starts.astype(np.uint64), np.array(sizes, dtype=np.uint64), offsets)


@quick
@given(shapes)
def test_slot_side_lays_pieces_back_to_back(shape: list[list[int]]) -> None:
    starts = np.arange(len(shape), dtype=np.uint64) * np.uint64(1000)
    expected = [1000 * i + sum(pieces[:k]) for i, pieces in enumerate(shape) for k in range(len(pieces))]
    assert slot_side(fragments(shape), starts).tolist() == expected


@quick
@given(shapes, st.booleans())
def test_coalesced_pieces_cover_the_same_bytes(shape: list[list[int]], adjacent: bool) -> None:
    pieces = fragments(shape, gap=0 if adjacent else 7)
    to = slot_side(pieces, np.arange(len(shape), dtype=np.uint64) * np.uint64(1000))
    merged = coalesce(to, pieces.addresses, pieces.sizes)

    def moves(to: object, source: object, sizes: object) -> list[tuple[int, int]]:
        rows = zip(to.tolist(), source.tolist(), sizes.tolist(), strict=True)  # type: ignore[attr-defined]
        return [(a + i, b + i) for a, b, n in rows for i in range(n)]

    assert moves(*merged) == moves(to, pieces.addresses, pieces.sizes)
    ends = list(zip(*(column.tolist() for column in merged), strict=True))
    for (a, b, n), (c, d, _) in itertools.pairwise(ends):
        assert n > 0
        assert (a + n, b + n) != (c, d)


@quick
@given(shapes, st.data())
def test_trim_keeps_the_first_bytes(shape: list[list[int]], data: st.DataObject) -> None:
    pieces = fragments(shape)
    wanted = [data.draw(st.integers(0, sum(sizes))) for sizes in shape]
    cut = trim(pieces, np.array(wanted, dtype=np.uint64))
    assert cut.lengths().tolist() == wanted
    assert (cut.sizes <= pieces.sizes).all()
    for first, end, total in zip(cut.offsets[:-1], cut.offsets[1:], wanted, strict=True):
        for size, full in zip(cut.sizes[first:end].tolist(), pieces.sizes[first:end].tolist(), strict=True):
            assert size == min(full, total)
            total -= size


@quick
@given(st.lists(st.integers(0, 100), max_size=40), st.integers(1, 8), st.integers(0, 300))
def test_shares_are_consecutive_and_even(lengths: list[int], parts: int, least: int) -> None:
    groups = split_evenly(np.array(lengths, dtype=np.uint64), parts, least)
    assert [i for group in groups for i in group.tolist()] == list(range(len(lengths)))
    assert len(groups) <= parts
    for group in groups:
        assert sum(lengths[i] for i in group) <= sum(lengths) / len(groups) + 100 or len(groups) < parts


@quick
@given(st.lists(st.integers(0, 100), max_size=40), st.integers(1, 5), st.integers(1, 250))
def test_batches_keep_their_bounds(lengths: list[int], count: int, size_bytes: int) -> None:
    parts = list(batches_of(np.array(lengths, dtype=np.uint64), count, size_bytes))
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(len(lengths)))
    for part in parts:
        assert part.stop - part.start <= count
        assert sum(lengths[part]) <= size_bytes or part.stop - part.start == 1


@quick
@given(st.lists(st.booleans(), max_size=30))
def test_runs_of_true(mask: list[bool]) -> None:
    runs = runs_of_true(np.array(mask, dtype=bool))
    inside = {i for first, end in runs for i in range(first, end)}
    assert inside == {i for i, bit in enumerate(mask) if bit}
    assert all(end < first for (_, end), (first, _) in itertools.pairwise(runs))
