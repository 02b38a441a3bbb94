"""Packed hashes behave as a list of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.packed import PackedHashes, distinct, join_hashes

Index = st.integers(-12, 12) | st.none()


@settings(derandomize=True, deadline=None)
@given(hashes=st.lists(st.binary(min_size=8, max_size=8), max_size=9), first=Index, end=Index, step=Index)
def test_as_a_list(hashes: list[bytes], first: int | None, end: int | None, step: int | None) -> None:
    packed = PackedHashes(b"".join(hashes), 8)
    assert list(packed) == hashes and len(packed) == len(hashes)
    assert [packed[at] for at in range(-len(hashes), len(hashes))] == hashes * 2
    cut = slice(first, end, step or None)
    assert list(packed[cut]) == hashes[cut]
    assert join_hashes(packed[cut]) == b"".join(hashes[cut])
    assert packed.padded().tolist() == np.array(hashes, dtype="S8").tolist()
    for at in (len(hashes), -len(hashes) - 1):
        with pytest.raises(IndexError):
            packed[at]


def test_of_another_size() -> None:
    with pytest.raises(InvalidParams):
        PackedHashes(bytes(17), 8)


@pytest.mark.parametrize("values", [[], [7], [3, 1, 3, 2, 1], [5, 5, 5]])
def test_distinct_values_are_sorted_and_named_once(values: list[int]) -> None:
    assert distinct(np.array(values, dtype=np.uint32)).tolist() == sorted(set(values))
