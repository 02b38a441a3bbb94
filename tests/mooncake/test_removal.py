"""Removing objects, and asking where they lie."""

from __future__ import annotations

from typing import Any

import pytest
from support.mooncake_pools import Memory, Pool

INVALID_PARAMS = -600
NOT_FOUND = -704
HAS_LEASE = -706


def test_remove(store: Any, key: str) -> None:
    assert store.remove(key) == NOT_FOUND
    assert store.remove(key, True) == NOT_FOUND
    assert store.remove("") == NOT_FOUND
    store.put(key, b"value")
    assert store.remove(key) == 0
    assert store.is_exist(key) == 0
    assert store.get(key) == b""
    assert store.put(key, b"another") == 0
    assert store.get(key) == b"another"


def test_remove_what_was_read(pool: Pool, store: Any, key: str) -> None:
    store.put(key, b"value")
    store.put(f"{key}-seen", b"value")
    assert store.get(key) == b"value"
    assert store.is_exist(f"{key}-seen") == 1
    answers = pool.allowed("remove-after-read", mooncake=(HAS_LEASE, 0), moonpool=0)
    answer = store.remove(key)
    assert answer in answers
    assert store.remove(f"{key}-seen") in answers
    assert store.remove(key, force=True) == (NOT_FOUND if answer == 0 else 0)


def test_batch_remove(store: Any, key: str) -> None:
    keys = [f"{key}-{i}" for i in range(3)]
    store.put_batch(keys, [b"value"] * 3)
    assert store.batch_remove([keys[0], f"{key}-nothing", keys[1], keys[0]]) == [0, NOT_FOUND, 0, NOT_FOUND]
    assert store.batch_is_exist(keys) == [0, 0, 1]
    assert store.batch_remove([]) == []


def test_remove_by_regex(pool: Pool, store: Any, key: str) -> None:
    keys = [f"{key}-a1", f"{key}-a2", f"{key}-b1", f"x{key}-a1"]
    store.put_batch(keys, [b"value"] * 4)
    assert store.remove_by_regex(f"^{key}-a") == 2
    assert store.batch_is_exist(keys) == [0, 0, 1, 1]
    store.put(keys[0], b"value")
    assert store.remove_by_regex(f"{key}-a", force=True) == 2  # found anywhere
    assert store.remove_by_regex(f"{key}-nothing") == 0
    assert store.remove_by_regex("(") == INVALID_PARAMS
    store.put(f"{key}-lookbehind", b"value")
    # ECMAScript, as C++ has it, knows no look-behind.
    looked_behind = store.remove_by_regex(f"(?<={key}-)lookbehind")
    assert looked_behind == pool.expected("regex", mooncake=INVALID_PARAMS, moonpool=1)


def test_remove_all(own_pool: Pool) -> None:
    store = own_pool.store()
    keys = ["plain", "m@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@" + "ab" * 32]
    store.put_batch(keys, [b"1", b"2"])
    store.put("pinned", b"3", own_pool.config(with_hard_pin=True))
    assert store.remove_all() == (2 if own_pool.ours else 3)  # Mooncake's hard pins forbid eviction only
    assert store.batch_is_exist(keys) == [0, 0]
    store.put_batch(keys, [b"1", b"2"])
    assert store.batch_is_exist(keys) == [1, 1]
    removed = store.remove_all()
    assert removed in own_pool.allowed("remove-after-read", mooncake=(0, 1, 2), moonpool=2)
    assert store.remove_all(True) == (1 if own_pool.ours else 2 - removed)
    assert store.batch_is_exist([*keys, "pinned"]) == [0, 0, 0]
    assert store.remove_all() == 0


def test_replicas(pool: Pool, store: Any, memory: Memory, key: str) -> None:
    keys = [f"{key}-0", f"{key}-1"]
    store.batch_put_from(keys, [memory.address] * 2, [100, 200])
    (replica,) = store.get_replica_desc(keys[0])
    assert replica.status == pool.module.ReplicaStatus.COMPLETE
    assert replica.is_memory_replica()
    assert not replica.is_disk_replica()
    assert not replica.is_local_disk_replica()
    place = replica.get_memory_descriptor().buffer_descriptor
    assert place.size == 100
    assert isinstance(place.buffer_address, int)
    host, _, port = place.transport_endpoint.rpartition(":")
    assert host == "127.0.0.1"
    assert port.isdigit()
    with pytest.raises(RuntimeError):
        replica.get_disk_descriptor()
    assert store.get_replica_desc(f"{key}-nothing") == []
    found = store.batch_get_replica_desc([*keys, f"{key}-nothing"])
    assert set(found) == set(keys)
    assert store.batch_get_replica_desc([]) == {}
