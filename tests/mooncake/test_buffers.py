"""Objects in memory that is named by address."""

from __future__ import annotations

from typing import Any

import pytest
from support.mooncake_pools import Memory, Pool

INVALID_PARAMS = -600
NOT_FOUND = -704
HALF = 1 << 19
"""Where the half begins that is read into."""


def test_registering(store: Any, memory: Memory) -> None:
    address = memory.address
    assert store.register_buffer(address, 1 << 20) == INVALID_PARAMS
    assert store.register_buffer(address + 4096, 4096) == INVALID_PARAMS
    assert store.register_buffer(address + (1 << 20), 0) == INVALID_PARAMS
    assert store.register_buffer(0, 4096) == INVALID_PARAMS
    assert store.unregister_buffer(address + 1) == INVALID_PARAMS


def test_memory_need_not_be_registered_over_tcp(store: Any, key: str) -> None:
    mine = Memory(8192)
    assert store.put_from(key, mine.address, 4096) == 0
    assert store.get_into(key, mine.address + 4096, 4096) == 4096
    assert mine.at(4096, 4096) == mine.at(0, 4096)


def test_one_object(store: Any, memory: Memory, key: str) -> None:
    assert store.put_from(key, memory.address, 4096) == 0
    into = memory.address + HALF
    assert store.get_into(key, into, 4096) == 4096
    assert memory.at(HALF, 4096) == memory.at(0, 4096)
    before = memory.at(HALF + 4096, 4096)
    assert store.get_into(key, into, 10_000) == 4096
    assert memory.at(HALF + 4096, 4096) == before
    assert store.get_into(key, into, 100) == INVALID_PARAMS
    assert store.get_into(key, into, 0) == INVALID_PARAMS
    assert store.get_into(f"{key}-nothing", into, 4096) == NOT_FOUND


def test_no_memory(pool: Pool, store: Any, memory: Memory, key: str) -> None:
    assert store.put_from(key, memory.address, 0) == pool.expected(
        "empty-value", mooncake=0, moonpool=INVALID_PARAMS
    )
    assert store.put_from(key, 0, 10) == pool.expected("null-address", mooncake=0, moonpool=INVALID_PARAMS)
    store.put_from(f"{key}-there", memory.address, 10)
    assert store.get_into(f"{key}-there", 0, 10) == pool.expected(
        "null-address", mooncake=10, moonpool=INVALID_PARAMS
    )


def test_batches(store: Any, memory: Memory, key: str) -> None:
    keys = [f"{key}-{i}" for i in range(64)]
    places = [memory.address + 4096 * i for i in range(64)]
    assert store.batch_put_from(keys, places, [4096] * 64) == [0] * 64
    assert store.batch_put_from(keys[:2], places[:2], [10, 10]) == [0, 0]
    into = [place + HALF for place in places]
    assert store.batch_get_into(keys, into, [4096] * 64) == [4096] * 64
    assert memory.at(HALF, 64 * 4096) == memory.at(0, 64 * 4096)
    mixed = [keys[0], f"{key}-nothing", keys[1]]
    assert store.batch_get_into(mixed, into[:3], [4096, 4096, 10]) == [4096, NOT_FOUND, INVALID_PARAMS]
    assert store.batch_get_into([keys[5], keys[5]], into[:2], [4096, 4096]) == [4096, 4096]
    assert memory.at(HALF + 4096, 4096) == memory.at(5 * 4096, 4096)


def test_batches_that_contradict_themselves(store: Any, memory: Memory, key: str) -> None:
    keys, address = [f"{key}-0", f"{key}-1"], memory.address
    assert store.batch_put_from(keys, [address], [10]) == [INVALID_PARAMS] * 2
    assert store.batch_get_into(keys, [address], [10]) == [INVALID_PARAMS] * 2
    assert store.batch_put_from([], [], []) == []
    assert store.batch_get_into([], [], []) == []
    assert store.batch_put_from([*keys, ""], [address] * 3, [10, 0, 10]) == [
        0,
        INVALID_PARAMS,
        INVALID_PARAMS,
    ]


def test_groups_of_another_number(pool: Pool, store: Any, memory: Memory, key: str) -> None:
    keys, address = [f"{key}-0", f"{key}-1"], memory.address
    config = pool.config(group_ids=["a"])
    assert store.batch_put_from(keys, [address] * 2, [10, 10], config) == [INVALID_PARAMS] * 2
    config = pool.config(group_ids=["a", "a"])
    assert store.batch_put_from(keys, [address] * 2, [10, 10], config) == [0, 0]


def test_the_same_key_twice(pool: Pool, store: Any, memory: Memory, key: str) -> None:
    address = memory.address
    assert store.batch_put_from([key, key], [address, address + 100], [10, 20]) == [0, 0]
    assert store.get_size(key) == pool.expected("same-key-twice", mooncake=20, moonpool=10)


def test_several_pieces(pool: Pool, store: Any, memory: Memory, key: str) -> None:
    address, into = memory.address, memory.address + HALF
    keys = [f"{key}-0", f"{key}-1"]
    pieces = [[address, address + 1000], [address + 2000]]
    assert store.batch_put_from_multi_buffers(keys, pieces, [[10, 20], [30]]) == [0, 0]
    found = store.batch_get_into_multi_buffers(
        [*keys, f"{key}-nothing"],
        [[into, into + 1000], [into + 2000], [into + 3000]],
        [[10, 20], [30], [10]],
    )
    assert found == [30, 30, NOT_FOUND]
    assert memory.at(HALF, 10) + memory.at(HALF + 1000, 20) == memory.at(0, 10) + memory.at(1000, 20)
    assert store.get(keys[0]) == memory.at(0, 10) + memory.at(1000, 20)
    other_cuts = store.batch_get_into_multi_buffers(keys[:1], [[into, into + 100, into + 200]], [[5, 5, 20]])
    assert other_cuts == [30]
    assert memory.at(HALF + 200, 20) == memory.at(1000, 20)
    too_small = store.batch_get_into_multi_buffers(keys[:1], [[into, into + 100]], [[10, 10]])
    assert too_small == [INVALID_PARAMS]
    roomy = store.batch_get_into_multi_buffers(keys[:1], [[into, into + 100]], [[25, 25]])
    assert roomy == pool.expected("more-room", mooncake=[-800], moonpool=[30])


def test_pieces_that_contradict_themselves(store: Any, memory: Memory, key: str) -> None:
    put, address = store.batch_put_from_multi_buffers, memory.address
    assert put([key], [[]], [[]]) == [INVALID_PARAMS]
    assert put([key], [[address]], [[0]]) == [INVALID_PARAMS]
    assert put([key], [[address, address]], [[5]]) == [INVALID_PARAMS]
    assert put([key, f"{key}-1"], [[address]], [[5]]) == [INVALID_PARAMS] * 2
    assert put([key], [[address, address + 10]], [[0, 5]]) == [0]
    assert store.get(key) == memory.at(10, 5)
    assert store.batch_get_into_multi_buffers([key], [[]], [[]]) == [INVALID_PARAMS]
    assert store.batch_get_into_multi_buffers([key, key], [[address]], [[5]]) == [INVALID_PARAMS] * 2


def test_metadata_before_the_data(store: Any, memory: Memory, key: str) -> None:
    address = memory.address
    assert store.put_from_with_metadata(key, address + 100, address, 50, 10) == 0
    assert store.get(key) == memory.at(0, 10) + memory.at(100, 50)


def test_upsert(store: Any, memory: Memory, key: str) -> None:
    address = memory.address
    assert store.upsert_from(key, address, 10) == 0
    assert store.upsert_from(key, address + 100, 10) == 0
    assert store.get(key) == memory.at(100, 10)
    assert store.batch_upsert_from([key, f"{key}-1"], [address, address], [20, 30]) == [0, 0]
    assert [store.get_size(key), store.get_size(f"{key}-1")] == [20, 30]
    assert store.batch_upsert_from([key, f"{key}-1"], [address], [20]) == [INVALID_PARAMS] * 2


@pytest.mark.parametrize("pieces", [1, 2, 7, 64])
def test_as_an_engine_saves_layers(pool: Pool, store: Any, memory: Memory, key: str, pieces: int) -> None:
    blocks, size = 4, 512
    keys = [f"{key}-{block}" for block in range(blocks)]
    offsets = [[(piece * blocks + block) * size for piece in range(pieces)] for block in range(blocks)]
    sizes = [[size] * pieces] * blocks
    addresses = [[memory.address + offset for offset in row] for row in offsets]
    assert store.batch_put_from_multi_buffers(keys, addresses, sizes, pool.config()) == [0] * blocks
    into = [[address + HALF for address in row] for row in addresses]
    assert store.batch_get_into_multi_buffers(keys, into, sizes) == [size * pieces] * blocks
    assert memory.at(HALF, blocks * pieces * size) == memory.at(0, blocks * pieces * size)
