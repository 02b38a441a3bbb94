"""The default policy and its parts."""

from __future__ import annotations

import hashlib
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.benchmarks.replay.families import FAMILIES, generate
from moonpool.benchmarks.replay.replay import pool_hits
from moonpool.benchmarks.replay.trace import Request
from moonpool.master.eviction import USES_MAX, LeastRecentlyUsed
from moonpool.master.policy_adaptive import (
    LEVEL_OF_USES,
    NAMES_MAX,
    RULES,
    SHADOW_ROWS_MAX,
    USES_OF_LEVEL,
    WAITING_MAX,
    AdaptiveCredit,
)
from moonpool.master.policy_ghosts import Ghosts
from moonpool.master.policy_shadows import Shadow
from moonpool.schemas.packed import U64

SOAK = os.environ.get("MOONPOOL_SOAK") == "1"


def hashed(block: int) -> bytes:
    return hashlib.sha256(str(block).encode()).digest()[:16]


def name(block: int) -> int:
    return int.from_bytes(hashed(block)[:8], "little")


def names(*blocks: int) -> U64:
    return np.array([name(block) for block in blocks], dtype=np.uint64)


def test_ghosts_come_back_once() -> None:
    ghosts = Ghosts()
    ghosts.make_room(1000)
    for block in range(1000):
        ghosts.put(name(block), block % USES_MAX + 1)
    back = [ghosts.take(name(block)) for block in range(1000)]
    known = [(block, uses) for block, uses in enumerate(back) if uses]
    assert len(known) > 800  # the rest gave their places to later ones
    assert all(uses == block % USES_MAX + 1 for block, uses in known)
    assert not any(ghosts.take(name(block)) for block in range(1000))


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 12), unique=True, max_size=5), st.integers(0, 2)), max_size=40)
)
@settings(derandomize=True, deadline=None, max_examples=80)
def test_a_shadow_keeps_what_is_worth_most(steps: list[tuple[list[int], int]]) -> None:
    shadow, credits_s = Shadow(3), [0.0, 7.0, 20.0]
    facts: dict[int, tuple[float, int]] = {}  # name -> last use, level
    for second, (names, level) in enumerate(steps):
        shadow.use(names[::-1], [level] * len(names), float(second))
        facts.update(dict.fromkeys(names, (float(second), level)))
        held = {number for number in facts if shadow.hits([number])}
        shadow.shrink(4, credits_s, float(second))
        shadow.validate()
        left = {number for number in held if shadow.hits([number])}
        assert len(left) == min(4, len(held))
        worth = {number: facts[number][0] + credits_s[facts[number][1]] for number in held}
        for gone in held - left:
            assert all(worth[gone] <= worth[kept] for kept in left)
            del facts[gone]


def test_levels_rise_with_uses() -> None:
    assert list(LEVEL_OF_USES) == sorted(LEVEL_OF_USES)
    assert len(LEVEL_OF_USES) == USES_MAX + 1
    assert len(set(LEVEL_OF_USES)) == len(USES_OF_LEVEL)
    assert RULES[0] == 0


def test_a_policy_that_knows_nothing_is_lru() -> None:
    policy = AdaptiveCredit()
    policy.full(100)
    policy.study()
    assert set(policy.credits_s) == {0.0}
    assert policy.recall(hashed(1)) == 0
    policy.validate()


def test_the_sample_follows_the_pool() -> None:
    policy = AdaptiveCredit()
    chains = [names(*range(100 * chain, 100 * chain + 100)) for chain in range(300)]
    for second, chain in enumerate(chains):
        policy.asked(chain, 0, float(second))
        policy.study()
        policy.validate()
    policy.full(25_000)
    for second, chain in enumerate(chains):
        policy.asked(chain, policy.sample_mask >> 1, 300.0 + second)
        policy.study()
    policy.validate()
    assert len(policy._shadows[0]) <= SHADOW_ROWS_MAX
    policy.full(200)  # most of what was asked for is not kept after all
    policy.asked(chains[0], 0, 600.0)
    policy.study()
    policy.validate()
    assert len(policy._shadows[0]) == 100


def test_a_long_prompt_is_learnt_from_in_a_sample() -> None:
    policy = AdaptiveCredit()
    policy.asked(names(*range(8 * NAMES_MAX)), 0, 0.0)
    policy.study()
    policy.validate()
    assert NAMES_MAX // 4 < len(policy._history) <= NAMES_MAX, "no piece of work is long"


def test_samples_are_wanted_only_while_there_is_time_for_them() -> None:
    policy = AdaptiveCredit()
    for second in range(WAITING_MAX):
        assert policy.sample_mask == 0
        policy.asked(names(second), 0, float(second))
    assert policy.sample_mask == -1
    policy.study()
    assert policy.sample_mask == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_never_much_worse_than_lru(family: str) -> None:
    trace = generate(family, seed=11, requests=5000 if SOAK else 250)
    for capacity in (1000, 2500, 5000, 10000) if SOAK else (600,):
        assert pool_hits(trace, capacity, None) >= 0.99 * pool_hits(trace, capacity, LeastRecentlyUsed())


def test_credit_pays_where_few_come_back() -> None:
    trace = generate("prompts", seed=5, requests=500)
    assert pool_hits(trace, 500, None) > 1.1 * pool_hits(trace, 500, LeastRecentlyUsed())


def test_repeated_questions_of_one_request_are_one_use() -> None:
    """A request that is matched and renewed every second for a while has used its blocks once."""
    held = Request(0, 1, 1, [1])
    policy = AdaptiveCredit()
    for second in range(4):
        policy.asked(names(held.hash_ids[0]), 0, float(second))
    assert [policy.study() for _ in range(4)] == [True, True, True, False], "one request at a time"
    assert policy._history[name(1)] == (1, 0.0)
    policy.asked(names(1), 0, 10.0)
    policy.study()
    assert policy._history[name(1)] == (2, 10.0)
