"""A few objects of this host's memory come the short way: what it can't do the batches' way does, and nobody sees which."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from client.pool import MakeClient, Pool
from support.mapped_bytes import mapped_bytes
from support.waiting import wait_until

from moonpool.schemas.errors import InvalidKey, InvalidParams
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import Locate, Located, Status
from moonpool.schemas.packed import U8
from moonpool.store_client import StoreClient, native
from moonpool.store_client.few_gets import FEW, FEW_BYTES
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.gets import Places
from moonpool.store_client.nodes import NodeLink
from moonpool.store_client.rows import Got, RowCalls, Rows
from moonpool.store_client.transports.base import ReadBatch
from moonpool.store_client.transports.mapped import MappedSegment

needs_c = pytest.mark.skipif(not native.HOT, reason="without a compiler all go the batches' way")


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many objects went the batches' way, call by call."""
    went: list[int] = []
    whole = NodeLink.read

    def noted(self: NodeLink, batch: ReadBatch, deadline_s: float) -> U8:
        went.append(len(batch.slots))
        return whole(self, batch, deadline_s)

    monkeypatch.setattr(NodeLink, "read", noted)
    yield went


def new(count: int, size: int = 100) -> tuple[list[str], list[bytes]]:
    tag = os.urandom(6).hex()
    return [f"few {tag} é{i}" for i in range(count)], [os.urandom(size + i) for i in range(count)]


def get(client: StoreClient, keys: list[str], sizes: list[int]) -> tuple[list[Got], list[bytes]]:
    """Into two pieces each."""
    memory = [
        (np.zeros(size // 3, dtype=np.uint8), np.zeros(size - size // 3, dtype=np.uint8)) for size in sizes
    ]
    addresses = [[piece.ctypes.data for piece in pieces] for pieces in memory]
    got = client.batch_get_into_multi_buffers(
        keys, addresses, [[one.nbytes for one in two] for two in memory]
    )
    return got, [b"".join(piece.tobytes() for piece in pieces) for pieces in memory]


def check(client: StoreClient, keys: list[str], values: list[bytes]) -> None:
    sizes = list(map(len, values))
    assert get(client, keys, sizes) == ([Got(Status.OK, size) for size in sizes], values)


def start_of(client: StoreClient, pool: Pool, key: str) -> tuple[MappedSegment, U8]:
    """The segment, and the bytes of one object of up to 4096 in it."""
    hashes = native.hash_keys([key], 4096)
    assert isinstance(hashes, bytes)
    located = client._cluster.ask(Locate(client._objects, 0, hashes=hashes), Located, 1e9)
    segment = MappedSegment(pool.node.info.segment_path, located.segments[0])
    slot = np.frombuffer(located.slots, dtype=np.uint32)
    wait_until(lambda: segment.headers(slot)["checksum"][0] != 0)
    length = np.frombuffer(located.lengths, dtype=np.uint64)
    start, _ = segment.places(slot, length)
    return segment, mapped_bytes(segment, int(start[0]), int(length[0]))


@needs_c
@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("count", [1, 3, FEW])
def test_the_short_way(
    shared_pool: Pool, make_client: MakeClient, long_way: list[int], count: int, verify: bool
) -> None:
    client = make_client(shared_pool, transport="shm", verify_checksums=verify)
    keys, values = new(count)
    assert client.batch_put(keys, values) == [Status.OK] * count
    client.take_telemetry()
    check(client, keys, values)
    assert long_way == []
    ((way, found),) = client.take_telemetry().transfers.items()
    assert way == ("shm", "load")
    assert (found.size_bytes, found.failures, len(found.seconds)) == (sum(map(len, values)), 0, 1)


@needs_c
@pytest.mark.parametrize("hash_bytes", [16, 32])
def test_rows_of_any_flat_keyspace_come_the_short_way(
    shared_pool: Pool, make_client: MakeClient, long_way: list[int], hash_bytes: int
) -> None:
    client = make_client(shared_pool, transport="shm")
    spec = KeyspaceSpec(kind=Kind.FLAT, name="few rows", shard_bytes=(0,) * 4, hash_bytes=hash_bytes)
    hashes = [os.urandom(hash_bytes) for _ in range(3)]
    rows = Rows(client.register_keyspace(spec), 2, hashes)
    room = np.zeros((3, 2, 50), dtype=np.uint8)
    addresses = room.ctypes.data + np.arange(0, room.nbytes, 50, dtype=np.uint64).reshape(3, 2)
    memory = Fragments.grid(addresses, np.array([[50, 50]], dtype=np.uint64))
    room[:] = wanted = np.random.default_rng(1).integers(0, 256, room.shape, dtype=np.uint8)
    assert client.put_rows(rows, memory) == [Status.OK] * 3
    room[:] = 0
    assert client.get_rows_into(rows, memory) == [(Status.OK, 100)] * 3
    assert (room == wanted).all()
    assert long_way == []
    other = Rows(rows.keyspace, 1, hashes)
    assert client.get_rows_into(other, memory) == [(Status.MISSING, 0)] * 3


def test_hashes_of_another_size_are_no_rows(client: StoreClient) -> None:
    room = np.zeros(10, dtype=np.uint8)
    memory = Fragments.lists([[room.ctypes.data]], [[10]])
    rows = Rows(client._objects, 0, [bytes(20)])
    assert client.get_rows_into(rows, memory) == [(Status.FAILED, 0)]


@pytest.mark.parametrize(("count", "size"), [(FEW + 1, 10), (1, FEW_BYTES + 1), (2, FEW_BYTES // 2)])
def test_what_is_more_than_few_goes_the_batches_way(
    client: StoreClient, long_way: list[int], count: int, size: int
) -> None:
    keys, values = new(count, size)
    assert client.batch_put(keys, values) == [Status.OK] * count
    check(client, keys, values)
    assert sum(long_way) == count


def test_each_has_an_outcome_of_its_own(client: StoreClient, asked: list[object]) -> None:
    keys, values = new(3)
    client.batch_put(keys[:2], values[:2])
    asked.clear()
    got, came = get(client, keys, [len(values[0]), 50, 10])
    assert got == [(Status.OK, len(values[0])), (Status.TOO_LARGE, len(values[1])), (Status.MISSING, 0)]
    assert came == [values[0], bytes(50), bytes(10)]
    assert [type(message) for message in asked].count(Locate) == 1
    got, came = get(client, keys[:1], [len(values[0]) + 20])
    assert (got, came) == ([(Status.OK, len(values[0]))], [values[0] + bytes(20)])


def test_what_was_put_again_meanwhile_is_found_where_it_is_now(
    client: StoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    (key,), (before, after) = new(1)[0], (os.urandom(80), os.urandom(80))
    client.batch_put([key], [before])
    hashes = native.hash_keys([key], 4096)
    old = client._cluster.ask(Locate(client._objects, 0, hashes=hashes), Located, 1e9)  # type: ignore[arg-type]
    client.batch_remove([key], force=True)
    monkeypatch.setattr(RowCalls, "locate_quietly", lambda *_: Places(old, 1, ""))
    assert get(client, [key], [80])[0][0].status == Status.MISSING
    client.batch_put([key], [after])
    check(client, [key], [after])


@needs_c
@pytest.mark.parametrize("verify", [False, True])
def test_flipped_bits_are_found_where_checksums_are_compared(
    shared_pool: Pool, make_client: MakeClient, verify: bool
) -> None:
    client = make_client(shared_pool, transport="shm", verify_checksums=verify)
    keys, values = new(2)
    client.batch_put(keys, values)
    segment, memory = start_of(client, shared_pool, keys[1])
    memory[7] ^= 0xFF
    got, _ = get(client, keys, list(map(len, values)))
    del memory
    segment.close()
    assert [one.status for one in got] == [Status.OK, Status.CORRUPT if verify else Status.OK]


def test_bad_arguments_are_named(client: StoreClient) -> None:
    room = np.zeros(10, dtype=np.uint8)
    at = room.ctypes.data
    for keys, addresses, sizes in (
        (["a", "b"], [[at]], [[10]]),
        (["a"], [[at]], [[10], [10]]),
        (["a"], [[at, at]], [[10]]),
        (["a"], [[-1]], [[10]]),
    ):
        with pytest.raises(InvalidParams):
            client.batch_get_into_multi_buffers(keys, addresses, sizes)
    with pytest.raises(InvalidKey):
        client.batch_get_into_multi_buffers([""], [[at]], [[10]])


def test_a_master_that_is_away_costs_no_exception(shared_pool: Pool, make_client: MakeClient) -> None:
    client = make_client(shared_pool)
    client._cluster.close()
    assert get(client, ["a", "b"], [5, 6])[0] == [(Status.FAILED, 0)] * 2
