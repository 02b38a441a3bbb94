"""Runs: they tile every chain without gap, and their boundaries never move."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.schemas.runs import depths_in_run, run_end, run_start, shard_of, split_runs

POSITION = st.integers(0, 1 << 20)


def test_the_boundaries_are_fixed() -> None:
    starts = [position for position in range(2049) if run_start(position) == position]
    assert starts == [0, 64, 512, 1024, 1536, 2048]


@settings(derandomize=True, deadline=None)
@given(POSITION)
def test_a_position_lies_in_its_run(position: int) -> None:
    start, end = run_start(position), run_end(position)
    assert start <= position < end
    assert run_start(end) == end
    assert {run_start(start), run_start(end - 1)} == {start}
    assert depths_in_run(np.array([position])).tolist() == [position - start]


@settings(derandomize=True, deadline=None)
@given(first=POSITION, count=st.integers(0, 5000))
def test_split_runs_tiles_the_range(first: int, count: int) -> None:
    pieces = list(split_runs(first, count))
    assert sum(size for _, size in pieces) == count
    at = first
    for start, size in pieces:
        assert start == at
        assert size > 0
        assert run_start(start) == run_start(start + size - 1)
        at += size


@settings(derandomize=True, deadline=None)
@given(root=st.binary(min_size=32, max_size=32), shards=st.integers(1, 64))
def test_a_shard_is_one_of_them_and_stays(root: bytes, shards: int) -> None:
    shard = shard_of(b"k" * 16, root, shards)
    assert 0 <= shard < shards
    assert shard == shard_of(b"k" * 16, root, shards)


def test_shards_are_the_documented_function() -> None:
    assert shard_of(b"k" * 16, b"r" * 32, 1) == 0
    counts = [0] * 16
    for i in range(16_000):
        counts[shard_of(b"k" * 16, i.to_bytes(32, "little"), 16)] += 1
    assert min(counts) > 800
