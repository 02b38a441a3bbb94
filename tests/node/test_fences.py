"""Who owns which shard, as a node sees it (I7), and whom it asks for room."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.schemas.errors import ProtocolError
from moonpool.schemas.runs import SHARDS_MAX
from moonpool.store_client.node.fences import Change, Fences
from moonpool.store_client.node.layout import (
    ANNEX_OFFSET,
    HEAD_BYTES,
    PAGES_MAX,
    Layout,
    epochs_seen,
    page_table,
)
from moonpool.store_client.node.need_merge import NeedMerge


def test_a_shard_goes_to_the_newest_claim() -> None:
    fences = Fences(np.zeros(SHARDS_MAX, dtype=np.uint64))
    assert fences.claimed("a", [(0, 5), (1, 5)]) == Change([(0, 5), (1, 5)], [])
    assert fences.claimed("a", [(0, 5), (1, 5)]) == Change([], [])
    assert fences.claimed("b", [(1, 6)]) == Change([(1, 6)], [])
    assert (fences.owned_by("a"), fences.owned_by("b")) == ([0], [1])
    assert not fences.fresh(1, 5) and fences.fresh(1, 6) and fences.fresh(0, 5)
    assert fences.claimed("a", [(0, 5), (1, 5)]) == Change([], []), "it was deposed, and hasn't heard"
    assert fences.claimed("a", []) == Change([], [0])
    assert fences.gone("b") == [1] and fences.gone("b") == []
    assert fences.claimed("b", [(1, 6)]) == Change([(1, 6)], []), "the same owner is back"
    assert not fences.release("a", 1) and fences.release("b", 1)
    fences.validate()


def test_epochs_outlive_the_node() -> None:
    head = bytearray(HEAD_BYTES)
    Fences(epochs_seen(head)).claimed("a", [(3, 9), (SHARDS_MAX - 1, 7)])
    again = Fences(epochs_seen(head))
    assert again.newest == 9
    assert again.claimed("b", [(3, 8), (SHARDS_MAX - 1, 7)]) == Change([(SHARDS_MAX - 1, 7)], [])
    assert not page_table(head, Layout(64 << 10, PAGES_MAX)).any(), "they lie behind the page table"
    assert not any(head[ANNEX_OFFSET:]), "and before the annexes"


@pytest.mark.parametrize("claim", [(-1, 1), (SHARDS_MAX, 1), (0, -1), (0, 1 << 63)])
def test_claims_that_cannot_be_are_refused(claim: tuple[int, int]) -> None:
    fences = Fences(np.zeros(SHARDS_MAX, dtype=np.uint64))
    with pytest.raises(ProtocolError):
        fences.claimed("a", [(0, 1), claim])
    assert fences.newest == 0 and not fences.fresh(-1, 9)


claims = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=4)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), claims | st.none()), max_size=20))
def test_epochs_never_fall_and_nobody_shares_a_shard(
    steps: list[tuple[str, list[tuple[int, int]] | None]],
) -> None:
    seen = np.zeros(SHARDS_MAX, dtype=np.uint64)
    fences = Fences(seen)
    for master, said in steps:
        before = seen.copy()
        if said is None:
            fences.gone(master)
        else:
            change = fences.claimed(master, said)
            assert {shard for shard, _ in change.taken} <= set(fences.owned_by(master))
        assert (seen >= before).all()
        owned = [shard for name in "abc" for shard in fences.owned_by(name)]
        assert len(owned) == len(set(owned))
        fences.validate()


class Victims:
    """Masters whose victims have ages in ms, the oldest first; each is worth 1 MiB."""

    def __init__(self, **ages: list[int]) -> None:
        self.ages = ages
        self.taken: list[int] = []
        self.calls = 0

    def need(self, merge: NeedMerge, mib: int) -> None:
        masters = list(self.ages)
        merge.begin(masters)
        left = mib
        while left > 0 and (chosen := merge.choose(masters, mib << 20, left << 20)) is not None:
            master, size = chosen
            self.calls += 1
            mine = self.ages[master]
            count = min(size >> 20, len(mine))
            self.taken += mine[:count]
            del mine[:count]
            left -= count
            merge.answered(master, mine[0] if mine else -1, 0.0)


def test_the_oldest_victims_of_all_masters_go_first() -> None:
    masters = Victims(a=list(range(1000, 0, -10)), b=list(range(2000, 1000, -10)), c=[1500, 5])
    merge = NeedMerge()
    masters.need(merge, 20)
    masters.calls = 0
    masters.taken.clear()
    masters.need(merge, 40)
    assert min(masters.taken) > 1200, "whose next victim is younger was not asked again"
    assert masters.calls <= 6
    masters.need(merge, 1000)
    assert not any(masters.ages.values()), "when all are wanted all are found"
    masters.need(merge, 10)


def test_ages_that_were_told_at_different_times_compare() -> None:
    merge = NeedMerge()
    merge.answered("a", 5_000, now_s=100.0)
    merge.answered("b", 6_000, now_s=110.0)
    assert merge.choose(["a", "b"], 1 << 30, 1 << 30) == ("a", 1 << 28), "by now its victim is 15 s old"


def test_one_master_is_asked_for_all_at_once() -> None:
    masters = Victims(a=list(range(100)))
    masters.need(NeedMerge(), 50)
    assert masters.calls == 1
