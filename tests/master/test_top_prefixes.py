"""Heavy hitters with a bounded number of counters, against exact counts."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.master.top_prefixes import HALVE_EVERY_S, TopPrefixes

KEPT = 4


@settings(derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 30), max_size=300))
def test_no_count_is_too_low_by_more_than_it_says(asked: list[int]) -> None:
    top, exact = TopPrefixes(KEPT), Counter(asked)
    for number in asked:
        top.asked(b"k", bytes([number]), found=number % 2 == 0, now_s=1.0)
        top.validate()
    assert top.missed_max <= len(asked) / KEPT
    counted = {one.block_hash[0]: one.requests for one in top.top()}
    for number, count in exact.items():
        found = counted.get(number)
        if found is not None:
            assert count - top.missed_max <= found <= count
    wanted = [number for number, count in exact.items() if count > len(asked) / KEPT]
    assert set(wanted) <= counted.keys()


def test_what_was_asked_for_long_ago_counts_less() -> None:
    top = TopPrefixes()
    for _ in range(8):
        top.asked(b"k", b"old", found=True, now_s=1.0)
    for _ in range(5):
        top.asked(b"k", b"new", found=False, now_s=2.0 + HALVE_EVERY_S)
    assert [(one.block_hash, one.requests, one.found) for one in top.top()] == [
        (b"new", 5.0, 0.0),
        (b"old", 4.0, 4.0),
    ]
