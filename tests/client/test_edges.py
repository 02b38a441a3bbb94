"""Where a batch of objects is cut into parts that go to one node each."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from moonpool.store_client.rows import LARGE_BYTES, PART_BYTES, PART_KEY_BYTES, PART_OBJECTS, _edges


def edges(lengths: list[int], keys: list[str]) -> list[int]:
    return _edges(np.array(lengths, dtype=np.uint64), keys)


@pytest.mark.parametrize("count", [0, 1, PART_OBJECTS, PART_OBJECTS + 1, 1000, 2 * PART_OBJECTS, 2000])
def test_small_objects_are_cut_by_their_number(count: int) -> None:
    keys = [f"object {number}" for number in range(count)]
    cut = edges([4096] * count, keys)
    assert cut == [*range(0, count, PART_OBJECTS), count] == edges([4096] * count, [])


def test_long_keys_are_cut_by_their_size() -> None:
    keys = ["k" * 4096] * 200
    cut = edges([10] * 200, keys)
    assert all(4 * 4096 * (end - first) <= PART_KEY_BYTES for first, end in itertools.pairwise(cut))
    assert len(cut) > 3


def test_large_objects_go_with_their_equals() -> None:
    small, large = [4096] * 3, [LARGE_BYTES] * (PART_BYTES // LARGE_BYTES + 1)
    cut = edges([*small, *large, *small], [])
    assert cut == [0, 3, 3 + PART_BYTES // LARGE_BYTES, 3 + len(large), 6 + len(large)]
