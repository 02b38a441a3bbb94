"""Plain objects through real processes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from client.pool import MakeClient, Pool

from moonpool.schemas.errors import Closed, InvalidKey, InvalidParams
from moonpool.schemas.messages import Status
from moonpool.schemas.packed import U8
from moonpool.store_client import AsyncStoreClient, ClientSettings, StoreClient
from moonpool.store_client.objects import KEY_BYTES_MAX
from moonpool.store_client.transports.base import ReadBatch, WriteBatch
from moonpool.store_client.transports.shm import ShmTransport
from moonpool.store_client.transports.small_door import SmallDoor
from moonpool.store_client.transports.tcp import TcpTransport


def value_of(key: str, size_bytes: int) -> bytes:
    return (hashlib.sha256(key.encode()).digest() * (size_bytes // 32 + 1))[:size_bytes]


def name(client: StoreClient, key: str) -> str:
    return f"{client.settings.transport}/{key}"


@pytest.mark.parametrize("size_bytes", [0, 1, 100, 4095, 4096, 70_000, 1_500_000])
def test_any_size_comes_back(client: StoreClient, size_bytes: int) -> None:
    key = name(client, f"size {size_bytes}")
    assert client.get(key) is None
    assert client.put(key, value_of(key, size_bytes)) == Status.OK
    assert client.get(key) == value_of(key, size_bytes)
    assert client.batch_is_exist([key, key + "?"]) == [True, False]
    assert client.put(key, b"another") == Status.EXISTS


def test_a_batch_of_many_sizes(client: StoreClient) -> None:
    keys = [name(client, f"batch/ключ {i}") for i in range(1500)]
    values = [value_of(key, i * 7 % 5000) for i, key in enumerate(keys)]
    assert client.batch_put(keys, values) == [Status.OK] * len(keys)
    found = client.batch_get([*keys, "nobody's"])
    assert found == [*values, None]
    assert all(client.batch_is_exist(keys))


def test_many_long_keys_are_cut_to_frames(client: StoreClient) -> None:
    """512 of them are more than a data lane's frame, all of them more than a frame of a Unix socket."""
    keys = [name(client, f"{i:05}").ljust(KEY_BYTES_MAX, "k") for i in range(4500)]
    values = [b"%d" % i for i in range(len(keys))]
    assert client.batch_put(keys, values, timeout_s=60) == [Status.OK] * len(keys)
    assert client.batch_get(keys[::500], timeout_s=60) == values[::500]


@pytest.mark.parametrize("timeout_s", [math.inf, 1e300])
def test_a_timeout_may_be_endless(client: StoreClient, timeout_s: float) -> None:
    key = name(client, f"endless {timeout_s}")
    assert client.put(key, b"value", timeout_s=timeout_s) == Status.OK
    assert client.get(key, timeout_s=timeout_s) == b"value"
    assert client.batch_remove([key], timeout_s=timeout_s).count == 1


@pytest.mark.parametrize("timeout_s", [math.nan, -math.inf, -1.0, 0.0])
def test_a_timeout_is_more_than_nothing(client: StoreClient, timeout_s: float) -> None:
    with pytest.raises(InvalidParams, match="timeout_s"):
        client.get("key", timeout_s=timeout_s)


def test_a_status_that_nobody_knows_is_a_failure(
    client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a newer node, or a bad one."""
    transport = ShmTransport if client.settings.transport == "shm" else TcpTransport
    write, read = transport.write, transport.read

    def strange_write(self: Any, batches: Sequence[WriteBatch], deadline_s: float) -> list[U8]:
        statuses = write(self, batches, deadline_s)
        statuses[0][1] = 77
        return statuses

    def strange_read(self: Any, batch: ReadBatch, deadline_s: float) -> U8:
        statuses = read(self, batch, deadline_s)
        statuses[1] = 255
        return statuses

    keys = [name(client, f"strange {i}") for i in range(3)]
    values = [key.encode() for key in keys]
    with monkeypatch.context() as patch:
        patch.setattr(SmallDoor, "put", lambda *_: bytes([Status.OK, 77, Status.OK]))
        assert client.batch_put(keys, values) == [Status.OK, Status.FAILED, Status.OK]
    keys = [name(client, f"stranger {i}") for i in range(3)]
    values = [bytearray(key.encode()) for key in keys]  # which go the batches' way
    with monkeypatch.context() as patch:
        patch.setattr(transport, "write", strange_write)
        assert client.batch_put(keys, values) == [Status.OK, Status.FAILED, Status.OK]
        patch.setattr(transport, "read", strange_read)
        assert client.batch_get(keys) == [values[0], None, values[2]]
        memory = [[bytearray(len(value))] for value in values]
        statuses = [got.status for got in client.batch_get_into_multi_buffers(keys, memory)]
        assert statuses == [Status.OK, Status.FAILED, Status.OK]


def test_an_object_larger_than_its_memory_is_no_failure_of_its_node(client: StoreClient) -> None:
    key = name(client, "too large")
    assert client.put(key, b"0123456789") == Status.OK
    client.take_telemetry()
    (got,) = client.batch_get_into_multi_buffers([key], [[bytearray(5)]])
    assert (got.status, got.size_bytes) == (Status.TOO_LARGE, 10)
    assert client.take_telemetry().open_breakers["node"] == 0
    assert client.get(key) == b"0123456789"


def test_kinds_of_buffers(client: StoreClient) -> None:
    values = [bytearray(b"abc"), np.arange(100, dtype=np.float32), torch.arange(50, dtype=torch.bfloat16)]
    keys = [name(client, f"kind {i}") for i in range(3)]
    assert client.batch_put(keys, values) == [Status.OK] * 3
    tensor = values[2].view(torch.uint8).numpy().tobytes()
    assert client.batch_get(keys) == [b"abc", values[1].tobytes(), tensor]


def test_pieces_in_and_out(client: StoreClient) -> None:
    keys = [name(client, f"pieces {i}") for i in range(5)]
    parts = [[value_of(f"{key} {k}", 100 + 900 * k) for k in range(7)] for key in keys]
    assert client.batch_put_from_multi_buffers(keys, parts) == [Status.OK] * 5
    sizes = [1000, 5000, 13_600]  # of other shapes than what was put: 19,600 bytes together
    memory = [[np.zeros(size, dtype=np.uint8) for size in sizes] for _ in keys]
    addresses = [[piece.__array_interface__["data"][0] for piece in pieces] for pieces in memory]
    got = client.batch_get_into_multi_buffers(keys, addresses, [sizes] * 5)
    assert got == [(Status.OK, 19_600)] * 5
    for pieces, put in zip(memory, parts, strict=True):
        assert b"".join(piece.tobytes() for piece in pieces) == b"".join(put)


def test_memory_that_is_too_small_is_left_alone(client: StoreClient) -> None:
    key = name(client, "too small")
    client.put(key, value_of(key, 1000))
    small, large = bytearray(999), bytearray(b"x" * 1200)
    got = client.batch_get_into_multi_buffers([key, key, "nobody's"], [[small], [large], [bytearray(5)]])
    assert got == [(Status.TOO_LARGE, 1000), (Status.OK, 1000), (Status.MISSING, 0)]
    assert small == bytes(999)
    assert large == value_of(key, 1000) + b"x" * 200


def test_what_is_nowhere_has_no_room_to_come_into(client: StoreClient) -> None:
    """It looks as an empty object does, but for its generation."""
    keys = [name(client, f"beside {i}") for i in range(3)]
    assert client.batch_put(keys[:2], [value_of(keys[0], 100), b""]) == [Status.OK] * 2
    room = bytearray(100)
    found = client.batch_get_into_multi_buffers(keys, [[room], [], []], None)
    assert found == [(Status.OK, 100), (Status.OK, 0), (Status.MISSING, 0)]
    assert room == value_of(keys[0], 100)
    assert client.batch_get_into_multi_buffers([], [], None) == []


def test_removed_objects_are_gone(client: StoreClient) -> None:
    keys = [name(client, f"removed {i}") for i in range(4)]
    client.batch_put(keys, [b"1", b"2", b"3", b"4"])
    assert client.batch_remove(keys[:2], force=True).count == 2
    assert client.batch_get(keys) == [None, None, b"3", b"4"]
    assert client.put(keys[0], b"new") == Status.OK
    assert client.get(keys[0]) == b"new"


def test_larger_than_a_page_is_too_large(client: StoreClient) -> None:
    keys = [name(client, "large"), name(client, "small")]
    assert client.batch_put(keys, [bytes(5 << 20), b"small"]) == [Status.TOO_LARGE, Status.OK]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_full_pool_makes_room(pool: Pool, make_client: MakeClient, transport: str) -> None:
    """Four times what fits."""
    client = make_client(pool, transport=transport)
    value = np.zeros(1 << 20, dtype=np.uint8)
    for i in range(380):
        assert client.put(name(client, f"full {i}"), value) == Status.OK


def test_bad_arguments_are_named(client: StoreClient) -> None:
    for key in ("", "x" * 5000, "\ud800", None):
        with pytest.raises(InvalidKey, match="1 to 4096 bytes"):
            client.put(key, b"")  # type: ignore[arg-type]
    with pytest.raises(InvalidParams, match=r"values\[1\]"):
        client.batch_put(["a", "b"], [b"", "text"])
    with pytest.raises(InvalidParams, match="one for each key"):
        client.batch_put(["a", "b"], [b""])
    with pytest.raises(InvalidParams, match="read-only"):
        client.batch_get_into_multi_buffers(["a"], [[b"12345"]])


def test_nothing_is_nothing(client: StoreClient) -> None:
    assert client.batch_put([], []) == []
    assert client.batch_get([]) == []
    assert client.batch_is_exist([]) == []
    assert client.batch_get_into_multi_buffers([], []) == []


async def test_the_asyncio_client_does_the_same(shared_pool: Pool, tmp_path: object) -> None:
    settings = ClientSettings(master=shared_pool.master.address, run_dir=str(tmp_path))
    async with AsyncStoreClient(settings) as client:
        assert await client.put("aio", b"value") == Status.OK
        assert await client.get("aio") == b"value"
        assert await client.batch_is_exist(["aio", "nobody's"]) == [True, False]
        assert (await client.cluster_map()).shards == 1
    with pytest.raises(Closed, match="AsyncStoreClient is closed"):
        await client.get("aio")
    await client.close()


def test_every_call_is_there_for_asyncio_too() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    missing = public(StoreClient) - public(AsyncStoreClient)
    assert missing == {"register_buffer", "unregister_buffer", "take_telemetry"}  # none of them blocks


def test_a_tenant_sees_its_own_objects(make_client: MakeClient, shared_pool: Pool) -> None:
    one, two = make_client(shared_pool, tenant="one"), make_client(shared_pool, tenant="two")
    assert one.put("key", b"one's") == Status.OK
    assert two.get("key") is None
    assert two.put("key", b"two's") == Status.OK
    assert one.get("key") == b"one's"
    assert [spec.tenant for spec in one.list_keyspaces()] == ["one"]
