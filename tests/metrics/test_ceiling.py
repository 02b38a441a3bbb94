"""The ceiling: estimates against exact counts, whatever part of the names is looked at."""

from __future__ import annotations

import numpy as np
import pytest

from moonpool.master.ceiling import EVERYTHING_MAX, STUDIED_MAX, WAITING_MAX, Asked, Ceiling, HyperLogLog
from moonpool.schemas.packed import U64

RANDOM = np.random.default_rng(7)


def names(count: int) -> U64:
    return RANDOM.integers(0, 1 << 64, count, dtype=np.uint64)


@pytest.mark.parametrize("count", [0, 1, 10, 1000, 100_000, 500_000])
def test_distinct_names_are_counted(count: int) -> None:
    sketch = HyperLogLog()
    some = names(count)
    for part in np.array_split(np.concatenate([some, some[: count // 2]]), 7):
        sketch.add(part)
    assert sketch.estimate() == pytest.approx(count, rel=0.04, abs=0.5)


def test_names_in_a_row_are_as_good_as_random_ones() -> None:
    sketch = HyperLogLog()
    sketch.add(np.arange(50_000, dtype=np.uint64))
    assert sketch.estimate() == pytest.approx(50_000, rel=0.04)


def asked(ceiling: Ceiling, some: U64, mask: int = 0, keyspace: bytes = b"k" * 16) -> None:
    ceiling.asked(some[some & np.uint64(mask) == 0].tobytes(), mask, keyspace)
    while ceiling.waiting:
        ceiling.study()
    ceiling.validate()


def test_a_block_misses_once_and_then_hits_for_ever() -> None:
    ceiling, prompt = Ceiling(), names(100)
    for _ in range(4):
        asked(ceiling, prompt)
    found = Ceiling.over([ceiling])
    assert found.asked == 400
    assert found.hit_ratio == pytest.approx(0.75, abs=0.01)
    assert Asked(0, 0.0, 0).hit_ratio == 0.0


def test_equal_names_of_two_keyspaces_are_two_blocks() -> None:
    ceiling, prompt = Ceiling(), names(100)
    asked(ceiling, prompt, keyspace=b"1" * 16)
    asked(ceiling, prompt, keyspace=b"2" * 16)
    assert Ceiling.over([ceiling]).hit_ratio == pytest.approx(0.0, abs=0.02)


def test_the_ratio_stays_when_only_a_sample_is_looked_at() -> None:
    ceiling = Ceiling()
    prompts = [names(20_000) for _ in range(10)]
    for prompt in [*prompts, *prompts]:
        asked(ceiling, prompt)
    found = Ceiling.over([ceiling])
    assert EVERYTHING_MAX < 10 * 20_000 * 2
    assert found.sample_bits == 4
    assert found.hit_ratio == pytest.approx(0.5, abs=0.03)


def test_requests_with_thinner_samples_of_their_own() -> None:
    ceiling = Ceiling()
    prompts = [names(20_000) for _ in range(6)]
    for index, prompt in enumerate([*prompts, *prompts]):
        asked(ceiling, prompt, mask=(1 << 5) - 1 if index % 3 else 0)
    found = Ceiling.over([ceiling])
    assert found.sample_bits == 8
    assert found.hit_ratio == pytest.approx(0.5, abs=0.06)


def test_shards_add_up() -> None:
    prompt = names(10_000)
    shards = [Ceiling() for _ in range(4)]
    for index, shard in enumerate(shards):
        for _ in range(2):
            asked(shard, prompt[index::4])
    assert Ceiling.over(shards).asked == 20_000
    assert Ceiling.over(shards).hit_ratio == pytest.approx(0.5, abs=0.02)


def test_what_waits_is_bounded() -> None:
    ceiling = Ceiling()
    for _ in range(2 * WAITING_MAX):
        ceiling.asked(bytes(8), 0, bytes(16))
    assert ceiling.waiting == WAITING_MAX
    ceiling.study()
    assert ceiling.waiting == WAITING_MAX - STUDIED_MAX
