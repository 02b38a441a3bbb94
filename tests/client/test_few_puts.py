"""A few small objects go the short way: what it can't do the batches' way does, and nobody sees which one it was."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from client.pool import MakeClient, Pool

from moonpool.schemas.errors import InvalidKey, InvalidParams, Unavailable
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import SMALL_BYTES, PutSmall, PutStart, Status
from moonpool.store_client import StoreClient
from moonpool.store_client.buffers import fragments_of
from moonpool.store_client.few_puts import FEW
from moonpool.store_client.objects import rows_of
from moonpool.store_client.rows import RowCalls, Rows
from moonpool.store_client.transports.small_door import SmallDoor

Put = Callable[[StoreClient, list[str], list[bytes]], list[Status]]


def of_values(client: StoreClient, keys: list[str], values: list[bytes]) -> list[Status]:
    return client.batch_put(keys, values)


def of_pieces(client: StoreClient, keys: list[str], values: list[bytes]) -> list[Status]:
    """Each in two pieces."""
    arrays = [np.frombuffer(value, dtype=np.uint8) for value in values]
    cuts = [len(value) // 3 for value in values]
    addresses = [[one.ctypes.data, one.ctypes.data + cut] for one, cut in zip(arrays, cuts, strict=True)]
    sizes = [[cut, len(value) - cut] for value, cut in zip(values, cuts, strict=True)]
    return client.batch_put_from_multi_buffers(keys, addresses, sizes)


def of_rows(client: StoreClient, keys: list[str], values: list[bytes]) -> list[Status]:
    """As Mooncake's API puts them."""
    fragments, _keep = fragments_of([[value] for value in values], writable=False)
    return client.put_rows(rows_of(client._objects, keys), fragments)


@pytest.fixture(params=[of_values, of_pieces, of_rows])
def put(request: pytest.FixtureRequest) -> Put:
    way: Put = request.param
    return way


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many objects went the batches' way, call by call."""
    went: list[int] = []
    whole = RowCalls.put

    def noted(self: RowCalls, rows: Any, *rest: Any) -> list[Status]:
        went.append(len(rows.hashes))
        return whole(self, rows, *rest)

    monkeypatch.setattr(RowCalls, "put", noted)
    yield went


def new(count: int, size: int = 100) -> tuple[list[str], list[bytes]]:
    tag = os.urandom(6).hex()
    return [f"few {tag} é{i}" for i in range(count)], [os.urandom(size + i) for i in range(count)]


@pytest.mark.parametrize("count", [1, 3, FEW])
def test_the_short_way(client: StoreClient, put: Put, long_way: list[int], count: int) -> None:
    for _ in range(3):  # asked for, and without asking where that is allowed
        keys, values = new(count)
        assert put(client, keys, values) == [Status.OK] * count
        assert client.batch_get(keys) == values
    assert long_way == []


@pytest.mark.parametrize(("count", "size"), [(FEW + 1, 10), (1, SMALL_BYTES + 1), (4, SMALL_BYTES // 4)])
def test_what_is_more_than_few_goes_the_batches_way(
    client: StoreClient, put: Put, long_way: list[int], count: int, size: int
) -> None:
    keys, values = new(count, size)
    assert put(client, keys, values) == [Status.OK] * count
    assert client.batch_get(keys) == values
    assert long_way == [count]


def test_some_are_there_and_some_are_named_twice(client: StoreClient, put: Put) -> None:
    keys, values = new(3)
    assert put(client, keys[:1], values[:1]) == [Status.OK]
    for _ in range(2):  # without asking, then asked for
        assert put(client, keys[:1], values[1:2]) == [Status.EXISTS]
    assert put(client, keys[:2], values[1:]) == [Status.EXISTS, Status.OK]
    more, bytes_ = new(2)
    assert put(client, [more[0], more[0], more[1]], [*bytes_, b"x"]) == [Status.OK, Status.BUSY, Status.OK]
    assert client.batch_get([*keys[:2], *more]) == [values[0], values[2], bytes_[0], b"x"]


def test_empty_values_and_bad_arguments(client: StoreClient, put: Put) -> None:
    keys, _ = new(2)
    assert client.batch_put(keys, [b"", b"one"]) == [Status.OK] * 2
    assert client.batch_get(keys) == [b"", b"one"]
    assert put(client, [], []) == []
    with pytest.raises(InvalidKey):
        put(client, ["good", ""], [b"1", b"2"])
    with pytest.raises(InvalidParams):
        put(client, keys, [b"1"])


def test_promises_of_what_could_not_be_written_are_given_back(
    client: StoreClient, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bytes:
        raise Unavailable(peer="a node", retry_in_s=0.0)

    keys, values = new(2)
    with monkeypatch.context() as patch:
        patch.setattr(SmallDoor, "put", refuse)
        assert put(client, keys, values) == [Status.FAILED] * 2
        assert client.take_telemetry().open_breakers["node"] == 1
    other = client.settings.model_copy(update={"transport": "auto"})
    with StoreClient(other) as unhurt:
        assert put(unhurt, keys, values) == [Status.OK] * 2


def test_rows_without_keys_of_a_keyspace_of_their_own(client: StoreClient, long_way: list[int]) -> None:
    spec = KeyspaceSpec(kind=Kind.FLAT, name=os.urandom(4).hex(), shard_bytes=(0, 0), hash_bytes=32)
    keyspace = client.register_keyspace(spec)
    values = [os.urandom(50), os.urandom(70)]
    fragments, _keep = fragments_of([[value] for value in values], writable=False)
    for rank in range(2):
        for _ in range(2):
            rows = Rows(keyspace, rank, [os.urandom(32) for _ in range(2)])
            assert client.put_rows(rows, fragments) == [Status.OK] * 2
            assert client.put_rows(rows, fragments) == [Status.EXISTS] * 2
            assert client.get_rows(rows) == values
    assert not long_way


def test_a_master_that_is_away_costs_no_exception(
    shared_pool: Pool, make_client: MakeClient, put: Put
) -> None:
    client = make_client(shared_pool)
    client._cluster.close()
    keys, values = new(2)
    assert put(client, keys, values) == [Status.FAILED] * 2


def test_bytes_are_counted(client: StoreClient, put: Put) -> None:
    client.take_telemetry()
    keys, values = new(2)
    put(client, keys, values)
    ((way, found),) = client.take_telemetry().transfers.items()
    assert way == (client.settings.transport, "save")
    assert (found.size_bytes, found.failures, len(found.seconds)) == (sum(map(len, values)), 0, 1)


def test_one_message_to_the_node_and_one_to_the_master(
    client: StoreClient, put: Put, asked: list[object]
) -> None:
    put(client, *new(1))  # connects, and learns who there is
    client._object_puts._putter.permits._permits.clear()
    asked.clear()
    put(client, *new(2))
    assert [type(message) for message in asked] == [PutStart, PutSmall]
