"""The longest prefix that all groups can serve, against the plain definition."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.connector.groups import Group, GroupKind, GroupPlan

KINDS = st.sampled_from(list(GroupKind))


@st.composite
def plans(draw: st.DrawFn) -> tuple[GroupPlan, list[int | list[bool]], int]:
    """A plan, an answer of the pool for each group, and the tokens of a request."""
    hash_tokens = draw(st.sampled_from([1, 2]))
    groups = []
    for index in range(draw(st.integers(1, 3))):
        block = hash_tokens * draw(st.sampled_from([1, 2, 4]))
        span = block * draw(st.integers(1, 3)) if draw(st.booleans()) else draw(st.integers(1, 9))
        kind = draw(KINDS)
        groups.append(
            Group(index, kind, block, -(-span // block) * block if kind is GroupKind.CHUNK else span)
        )
    tokens = draw(st.integers(1, 40))
    ready: list[int | list[bool]] = []
    for group in groups:
        count = tokens // group.block_tokens
        if group.chained:
            ready.append(draw(st.integers(0, count)))
        else:
            ready.append(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    return GroupPlan(tuple(groups), hash_tokens, draw(st.integers(0, 1))), ready, tokens


def by_definition(plan: GroupPlan, ready: Sequence[int | list[bool]], tokens: int) -> int:
    """Tries every length."""
    for length in range(tokens if plan.fails_by_block else tokens - 1, 0, -1):
        if length % plan.alignment_tokens:
            continue
        for group, found in zip(plan.groups, ready, strict=True):
            there = [True] * found if isinstance(found, int) else found
            end = length // group.block_tokens
            wanted = range(group.first_needed(length), end + plan.proof_blocks)
            if group.kind is GroupKind.STATE:
                wanted = range(end - 1, end)
            if not all(at < len(there) and there[at] for at in wanted):
                break
        else:
            return min(length, tokens - 1)
    return 0


@settings(max_examples=300, derandomize=True, deadline=None)
@given(plans())
def test_longest_hit(case: tuple[GroupPlan, list[int | list[bool]], int]) -> None:
    plan, ready, tokens = case
    assert plan.longest_hit(ready, tokens) == by_definition(plan, ready, tokens)


def test_what_a_window_a_chunk_and_a_state_need() -> None:
    window = Group(0, GroupKind.WINDOW, 4, 9)
    assert [window.first_needed(n) for n in (0, 9, 12, 13, 16, 17)] == [0, 0, 0, 1, 1, 2]
    chunk = Group(0, GroupKind.CHUNK, 4, 8)
    assert [chunk.first_needed(n) for n in (0, 7, 8, 15, 16)] == [0, 0, 2, 2, 4]
    state = Group(0, GroupKind.STATE, 4)
    assert [state.first_needed(n) for n in (0, 4, 8, 16)] == [0, 0, 1, 3]


def test_a_coarse_block_is_named_by_its_last_hash() -> None:
    coarse = Group(0, GroupKind.FULL, 8)
    plan = GroupPlan((coarse, Group(1, GroupKind.FULL, 4)), 4)
    hashes = [bytes([i]) for i in range(5)]
    assert plan.chain(coarse, hashes) == [b"\1", b"\3"]
    assert plan.chain(plan.groups[1], hashes) == hashes
    assert plan.hash_count(coarse, 2) == 4
    assert plan.alignment_tokens == 8
