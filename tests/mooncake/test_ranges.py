"""Parts of objects, with and without sessions."""

from __future__ import annotations

from typing import Any

from support.mooncake_pools import Memory, Pool

INVALID_PARAMS = -600
NOT_FOUND = -704
ALREADY_EXISTS = -705


def test_parts_into_buffers(pool: Pool, store: Any, memory: Memory, key: str) -> None:
    store.put(key, b"abcdef")
    store.put(f"{key}-1", b"0123456789")
    one, two = memory.address, memory.address + 1000
    keys = [[key, f"{key}-1"], [key]]
    found = store.get_into_ranges(
        [one, two], keys, [[[0, 10], [20]], [[0]]], [[[0, 4], [5]], [[2]]], [[[2, 2], [5]], [[4]]]
    )
    assert found == [[[2, 2], [5]], [[4]]]
    assert (memory.at(0, 2), memory.at(10, 2), memory.at(20, 5)) == (b"ab", b"ef", b"56789")
    assert memory.at(1000, 4) == b"cdef"
    assert store.get_into_ranges([one], [[key]], [[[0]]], [[[4]]], [[[5]]]) == [[[INVALID_PARAMS]]]
    missing = store.get_into_ranges([one], [[f"{key}-nothing"]], [[[0]]], [[[4]]], [[[1]]])
    assert missing == [[[NOT_FOUND]]]
    assert store.get_into_ranges([], [], [], [], []) == []
    contradicting = store.get_into_ranges([one], [[key]], [[[0, 1]]], [[[4]]], [[[1]]])
    assert contradicting == pool.expected(
        "contradicting-ranges", mooncake=[[[INVALID_PARAMS] * 2]], moonpool=[[[INVALID_PARAMS]]]
    )


def test_get_sessions(store: Any, memory: Memory, key: str) -> None:
    store.put(key, b"abcdef")
    address = memory.address
    read = store.batch_get_into_multi_buffer_ranges
    assert read([key], [[address]], [[2]], [[0]]) == [INVALID_PARAMS]
    assert store.batch_get_session_start([key, f"{key}-nothing"]) == [0, NOT_FOUND]
    assert read([key], [[address, address + 100]], [[2, 2]], [[0, 4]]) == [4]
    assert (memory.at(0, 2), memory.at(100, 2)) == (b"ab", b"ef")
    assert store.batch_get_session_end([key, f"{key}-nothing"]) == 0
    assert store.batch_get_session_end([key]) == 0
    assert read([key], [[address]], [[2]], [[0]]) == [INVALID_PARAMS]


def test_lists_that_contradict_each_other_concern_their_key_alone(
    store: Any, memory: Memory, key: str
) -> None:
    keys = [f"{key}-a", f"{key}-b"]
    store.put(keys[0], b"aaaa")
    store.put(keys[1], b"bbbb")
    assert store.batch_get_session_start(keys) == [0, 0]
    address = memory.address
    found = store.batch_get_into_multi_buffer_ranges(
        keys, [[address], [address + 100]], [[2, 2], [4]], [[0], [0]]
    )
    assert found == [INVALID_PARAMS, 4]
    assert memory.at(100, 4) == b"bbbb"
    store.batch_get_session_end(keys)


def test_put_sessions(store: Any, memory: Memory, key: str) -> None:
    store.put(f"{key}-there", b"value")
    keys, address = [f"{key}-0", f"{key}-1"], memory.address
    started = store.batch_put_session_start([*keys, f"{key}-there"], [10, 20, 5])
    assert started == [0, 0, ALREADY_EXISTS]
    write = store.batch_put_from_multi_buffer_ranges
    assert write(keys, [[address, address + 5], [address]], [[5, 5], [20]], [[5, 0], [0]]) == [10, 20]
    assert store.batch_is_exist(keys) == [0, 0]
    assert write(keys[:1], [[address]], [[50]], [[5]]) == [INVALID_PARAMS]
    assert store.batch_put_session_end([keys[0], f"{key}-nothing"]) == [0, INVALID_PARAMS]
    assert store.batch_put_session_revoke([keys[1], f"{key}-nothing"]) == [0, INVALID_PARAMS]
    assert store.batch_is_exist(keys) == [1, 0]
    assert store.get(keys[0]) == memory.at(5, 5) + memory.at(0, 5)
