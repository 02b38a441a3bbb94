"""Values as bytes: what both answer to put, get, exist and upsert."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.mooncake_pools import Pool

INVALID_PARAMS = -600
NOT_FOUND = -704


def test_a_value_comes_back(store: Any, key: str) -> None:
    assert store.put(key, b"hello") == 0
    assert store.get(key) == b"hello"
    assert store.get_size(key) == 5
    assert store.is_exist(key) == 1


def test_what_is_not_there(store: Any, key: str) -> None:
    assert store.get(key) == b""
    assert store.get_size(key) == NOT_FOUND
    assert store.is_exist(key) == 0
    assert store.get_buffer(key) is None


def test_the_first_value_stays(store: Any, key: str) -> None:
    assert store.put(key, b"first") == 0
    assert store.put(key, b"second") == 0
    assert store.get(key) == b"first"


@pytest.mark.parametrize("size_bytes", [1, 1023, 1024, 4096, 70_001, 1 << 20, 2_000_000])
def test_sizes(store: Any, key: str, size_bytes: int) -> None:
    value = bytes(np.arange(size_bytes, dtype=np.uint32).astype(np.uint8))
    assert store.put(key, value) == 0
    assert store.get(key) == value


@pytest.mark.parametrize("text", ["ключ", "a\0b", "with space", "@", "a@b", "x" * 4000])
def test_keys_of_any_text(store: Any, key: str, text: str) -> None:
    assert store.put(key + text, b"value") == 0
    assert store.get(key + text) == b"value"
    assert store.get(key) == b""


def test_keys_that_cannot_be(pool: Pool, store: Any, key: str) -> None:
    assert store.put("", b"value") == INVALID_PARAMS
    assert store.is_exist("") == 0
    assert store.get_size("") == NOT_FOUND
    assert store.get("") == b""
    long_key = store.put(key + "x" * 5000, b"value")
    assert long_key == pool.expected("long-key", mooncake=0, moonpool=INVALID_PARAMS)
    with pytest.raises(TypeError):
        store.put(None, b"value")
    with pytest.raises(TypeError):
        store.batch_is_exist([key, 5])


@pytest.mark.parametrize("value", [bytearray(b"value"), memoryview(b"value")], ids=lambda v: type(v).__name__)
def test_whatever_is_bytes(store: Any, key: str, value: object) -> None:
    assert store.put(key, value) == 0
    assert store.get(key) == b"value"


def test_arrays_and_views_with_gaps(pool: Pool, store: Any, key: str) -> None:
    assert store.put(key, np.arange(3, dtype=np.uint16)) == 0
    whole = pool.expected("array-value", mooncake=b"\0\0\1", moonpool=b"\0\0\1\0\2\0")
    assert store.get(key) == whole
    assert store.put(f"{key}-gaps", memoryview(b"abcdef")[::2]) == 0
    assert store.get(f"{key}-gaps") == pool.expected("array-value", mooncake=b"abc", moonpool=b"ace")


def test_text_is_no_value(store: Any, key: str) -> None:
    with pytest.raises(TypeError):
        store.put(key, "text")


def test_empty_values(pool: Pool, store: Any, key: str) -> None:
    assert store.put(key, b"") == INVALID_PARAMS
    assert store.put_batch([key], [b""]) == INVALID_PARAMS
    assert store.upsert(key, b"") == INVALID_PARAMS
    refused = pool.expected("empty-value", mooncake=0, moonpool=INVALID_PARAMS)
    assert store.put_parts(key) == refused
    assert store.put_parts(key, b"", b"") == refused
    assert store.is_exist(key) == 0


def test_parts_are_joined(store: Any, key: str) -> None:
    assert store.put_parts(key, b"ab", bytearray(b"cd"), b"", memoryview(b"ef")) == 0
    assert store.get(key) == b"abcdef"


def test_batches(pool: Pool, store: Any, key: str) -> None:
    keys = [f"{key}-{i}" for i in range(5)]
    values = [bytes([i + 1]) * (i * 1000 + 1) for i in range(5)]
    assert store.put_batch(keys, values) == 0
    missing = [keys[3], f"{key}-nothing", keys[0]]
    assert store.get_batch(missing) == [values[3], b"", values[0]]
    assert store.batch_is_exist([*missing, ""]) == [1, 0, 1, 0]
    assert store.put_batch([], []) == 0
    assert store.batch_is_exist([]) == []
    assert store.get_batch([]) == pool.expected("empty-get-batch", mooncake=[b""], moonpool=[])


def test_batches_that_contradict_themselves(store: Any, key: str) -> None:
    keys = [f"{key}-0", f"{key}-1"]
    assert store.put_batch(keys, [b"1"]) == INVALID_PARAMS
    assert store.put_batch(keys, [b"1", b""]) == INVALID_PARAMS
    assert store.batch_is_exist(keys) == [0, 0]


def test_the_same_key_twice_in_a_batch(store: Any, key: str) -> None:
    assert store.put_batch([key, key], [b"1", b"22"]) == 0
    assert store.get(key) == b"1"
    assert store.get_batch([key, key]) == [b"1", b"1"]


def test_handles(store: Any, key: str) -> None:
    store.put(key, b"hello")
    handle = store.get_buffer(key)
    assert handle.size() == 5
    assert handle.ptr() > 0
    view = memoryview(handle)
    assert bytes(view) == b"hello"
    assert (view.format, view.nbytes) == ("b", 5)
    assert np.asarray(handle).tolist() == list(b"hello")
    assert not view.readonly
    kept = np.asarray(store.get_buffer(key))[1:]  # lives longer than its handle
    assert kept.tobytes() == b"ello"
    found = store.batch_get_buffer([key, f"{key}-nothing"])
    assert bytes(memoryview(found[0])) == b"hello"
    assert found[1] is None


def test_upsert(store: Any, key: str) -> None:
    for value in (b"1", b"2", b"longer", b"3"):
        assert store.upsert(key, value) == 0
        assert store.get(key) == value
    assert store.upsert_parts(key, b"4", b"5") == 0
    assert store.get(key) == b"45"
    assert store.upsert_batch([key, f"{key}-new"], [b"6", b"7"]) == 0
    assert store.get_batch([key, f"{key}-new"]) == [b"6", b"7"]


def test_options(pool: Pool, store: Any, key: str) -> None:
    """With one segment both keep one copy, whatever is asked for. (difference: replica-num)"""
    assert store.put(f"{key}-0", b"v", pool.config(replica_num=0)) == INVALID_PARAMS
    assert store.put(f"{key}-1", b"v", pool.config(replica_num=2)) == 0
    assert store.put(f"{key}-2", b"v", pool.config(preferred_segment="nowhere:1")) == 0
    assert store.put(f"{key}-3", b"v", pool.config(group_ids=["a", "b"])) == INVALID_PARAMS
    assert store.put_batch([f"{key}-4", f"{key}-5"], [b"v", b"w"], pool.config(group_ids=["a", "a"])) == 0
    assert store.put(f"{key}-6", b"v", pool.config(with_hard_pin=True)) == 0
    soft = pool.config(soft_pin_action=pool.module.SoftPinAction.ENABLE, soft_pin_ttl_ms=1000)
    assert store.put(f"{key}-7", b"v", soft) == 0
    keys = [f"{key}-{i}" for i in range(8)]
    assert store.batch_is_exist(keys) == [0, 1, 1, 0, 1, 1, 1, 1]
    assert {len(copies) for copies in store.batch_get_replica_desc(keys).values()} == {1}
    with pytest.raises(AttributeError):
        pool.config(with_soft_pin=True)
    assert store.remove(f"{key}-6", True) == 0


def test_large_objects(pool: Pool, store: Any, key: str) -> None:
    larger_than_a_page = store.put(key, bytes(5_000_000))
    assert larger_than_a_page == pool.expected("too-large", mooncake=0, moonpool=-200)
    larger_than_all = store.put(f"{key}-all", bytes(128 << 20))
    assert larger_than_all == pool.expected("too-large", mooncake=INVALID_PARAMS, moonpool=-200)
