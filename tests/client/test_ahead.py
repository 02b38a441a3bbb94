"""Puts into slots that the node granted ahead of need: one exchange with it instead of two."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from client.chains import all_ok
from client.pool import MakeClient, Pool
from client.test_shm import SPEC, batch_of, transport_of
from msgspec.structs import replace
from support.waiting import soon, wait_until

from moonpool.schemas.keyspace import objects_keyspace
from moonpool.schemas.messages import (
    AHEAD_BYTES,
    AHEAD_SLOTS,
    BeginItem,
    Committed,
    Granted,
    Message,
    PutAhead,
    RegisterKeyspace,
    SessionHeartbeat,
    Status,
)
from moonpool.schemas.packed import pack_u32, pack_u64
from moonpool.store_client import StoreClient
from moonpool.store_client.copiers.host import HostCopier
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.transports import ahead
from moonpool.store_client.transports.ahead import AheadGrants, slot_bytes_of
from moonpool.store_client.transports.base import WriteBatch
from moonpool.store_client.transports.shm import ShmTransport

COUNT = 5
SIZE = 40_000


class Calls:
    """Counts what a transport asks its node, apart from heartbeats."""

    def __init__(self, transport: ShmTransport, monkeypatch: pytest.MonkeyPatch) -> None:
        self._call = transport._node.call
        self._kinds: Counter[str] = Counter()
        monkeypatch.setattr(transport._node, "call", self)

    def __call__(self, message: Message, deadline_s: float) -> Message:
        if not isinstance(message, SessionHeartbeat):
            self._kinds[type(message).__name__] += 1
        return self._call(message, deadline_s)

    def taken(self) -> dict[str, int]:
        """Those since the last time."""
        kinds, self._kinds = dict(self._kinds), Counter()
        return kinds


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grants are kept however slow this machine is."""
    monkeypatch.setattr(ahead, "KEPT_S", 1000.0)


def values_of(name: str, count: int = COUNT, size: int = SIZE) -> tuple[list[str], list[bytes]]:
    return [f"{name} {i}" for i in range(count)], [
        (f"{name}{i}".encode() * size)[:size] for i in range(count)
    ]


def shm_of(client: StoreClient) -> ShmTransport:
    """The transport that its puts took."""
    (link,) = client._nodes._links.values()
    found = link.transport
    assert isinstance(found, ShmTransport)
    return found


@pytest.mark.usefixtures("patient")
def test_the_second_put_needs_no_begin(
    shared_pool: Pool, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make_client(shared_pool, transport="shm")
    all_values: dict[str, bytes] = {}
    calls: Calls | None = None
    for number, count in enumerate([COUNT, COUNT, 2, COUNT + 1, COUNT + 1]):
        keys, values = values_of(f"second{number}", count)
        assert set(client.batch_put(keys, values)) == {Status.OK}
        all_values |= dict(zip(keys, values, strict=True))
        if calls is None:
            calls = Calls(shm_of(client), monkeypatch)
        elif number in (1, 2, 4):
            assert calls.taken() == {"PutAhead": 1}
        else:  # more than the slots that were granted
            assert calls.taken() == {"Begin": 1, "Commit": 1}
    reader = make_client(shared_pool, transport="shm")
    assert reader.batch_get(list(all_values)) == list(all_values.values())
    again = [*list(all_values)[:COUNT]]
    assert set(client.batch_put(again, values[:COUNT])) == {Status.EXISTS}
    client.batch_remove(list(all_values), force=True)


@pytest.mark.usefixtures("patient")
def test_blocks_of_a_chain_too(shared_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transport = transport_of(shared_pool, tmp_path, HostCopier())
    calls = Calls(transport, monkeypatch)
    transport._node.call(RegisterKeyspace(SPEC), soon())
    for number in range(3):
        batch, _engine = batch_of(f"chain ahead {number}", 3)
        assert all_ok(transport.write([batch], soon())[0])
    taken = calls.taken()
    assert (taken["Begin"], taken["Commit"], taken["PutAhead"]) == (1, 1, 2)
    transport.close()


def test_slots_that_nobody_wants_go_back(shared_pool: Pool, make_client: MakeClient) -> None:
    client = make_client(shared_pool, transport="shm")
    keys, values = values_of("idle")
    assert set(client.batch_put(keys, values)) == {Status.OK}
    wait_until(lambda: shared_pool.node.status()["objects_writing"] == 0)
    assert client.batch_get(keys) == values
    assert not len(shm_of(client)._session._ahead) and not shm_of(client)._session._open


@pytest.mark.usefixtures("patient")
def test_a_dead_writers_slots_go_back(shared_pool: Pool, make_client: MakeClient) -> None:
    client = make_client(shared_pool, transport="shm")
    wait_until(lambda: shared_pool.node.status()["objects_writing"] == 0)
    keys, values = values_of("dead")
    assert set(client.batch_put(keys, values)) == {Status.OK}
    assert shared_pool.node.status()["objects_writing"] == COUNT
    client.close()
    wait_until(lambda: shared_pool.node.status()["objects_writing"] == 0)


@pytest.mark.usefixtures("patient")
def test_an_answer_that_was_lost_leaks_nothing(
    shared_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = transport_of(shared_pool, tmp_path, HostCopier())
    transport._node.call(RegisterKeyspace(SPEC), soon())
    call = transport._node.call
    batch, _engine = batch_of("lost 0", 3)
    assert all_ok(transport.write([batch], soon())[0])

    def deaf(message: Message, deadline_s: float) -> Message:
        answer = call(message, deadline_s)
        return Granted(1, b"", b"", b"") if isinstance(message, PutAhead) else answer

    monkeypatch.setattr(transport._node, "call", deaf)
    batch, _engine = batch_of("lost 1", 3)
    assert (transport.write([batch], soon())[0] == Status.FAILED).all()
    monkeypatch.setattr(transport._node, "call", call)
    assert not transport._session._open
    wait_until(lambda: shared_pool.node.status()["objects_writing"] == 0)
    transport.close()


@pytest.mark.parametrize("kind", [Granted, Committed])
@pytest.mark.parametrize("slots", [b"", b"abc", pack_u32(range(6))])
def test_a_lying_node_raises_nothing_and_keeps_nothing(
    shared_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Message], slots: bytes
) -> None:
    transport = transport_of(shared_pool, tmp_path, HostCopier())
    transport._node.call(RegisterKeyspace(SPEC), soon())
    call = transport._node.call

    def lie(message: Message, deadline_s: float) -> Message:
        answer = call(message, deadline_s)
        if isinstance(answer, Committed) and answer.ahead is not None and kind is Committed:
            return replace(answer, ahead=replace(answer.ahead, slots=slots))
        return replace(answer, slots=slots) if isinstance(answer, Granted) and kind is Granted else answer

    monkeypatch.setattr(transport._node, "call", lie)
    batch, _engine = batch_of(f"lies {kind.__name__} {len(slots)}", 3)
    assert all_ok(transport.write([batch], soon())[0]) is (kind is Committed)
    assert not transport._session._open and not len(transport._session._ahead)
    transport.close()


@pytest.mark.usefixtures("patient")
def test_a_node_that_was_restarted_is_asked_anew(
    pool: Pool, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It adopts the slots as ones that only their writer's end frees, and can't commit them."""
    client = make_client(pool, transport="shm")
    keys, values = values_of("before")
    assert set(client.batch_put(keys, values)) == {Status.OK}
    transport = shm_of(client)
    assert len(transport._session._ahead) == 1
    pool.node.kill()
    pool.node.start()
    later, other = values_of("after")

    def put() -> bool:
        return set(client.batch_put(later, other)) <= {Status.OK, Status.EXISTS}

    wait_until(put)
    assert client.batch_get([*keys, *later]) == [*values, *other]


@pytest.mark.usefixtures("patient")
def test_threads_never_share_a_slot(shared_pool: Pool, make_client: MakeClient) -> None:
    client = make_client(shared_pool, transport="shm")
    wrong: list[object] = []

    def work(thread: int) -> None:
        for number in range(15):
            keys, values = values_of(f"thread {thread} {number} ", 4, 1500)
            statuses = set(client.batch_put(keys, values))
            if statuses != {Status.OK} or client.batch_get(keys) != values:
                wrong.append((thread, number, statuses))

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def granted(put_id: int, count: int, status: int = Status.OK) -> Granted:
    return Granted(put_id, bytes([status]) * count, pack_u32(range(count)), pack_u64(range(count)))


def test_grants_are_given_out_once_and_expire() -> None:
    grants = AheadGrants()
    assert grants.keep(1, granted(5, 4), 4096, 0.0) and grants.keep(1, granted(6, 2), 4096, 0.5)
    assert not grants.keep(1, granted(7, 2, Status.NO_SPACE), 4096, 0.5)
    assert grants.take(8192, 1) is None and grants.take(4096, 5) is None
    taken = grants.take(4096, 3)
    assert taken is not None and (taken.put_id, taken.slots.tolist()) == (5, [0, 1, 2, 3])
    assert grants.take(4096, 3) is None
    assert grants.expire(1.4) == [] and grants.expire(1.5) == [6] and grants.take(4096, 1) is None
    kept = [grants.keep(1, granted(put_id, 1), 4096, 2.0) for put_id in range(100)]
    assert kept.count(True) == len(grants) == ahead.GRANTS_MAX


def test_only_objects_of_one_class_are_put_so() -> None:
    objects = objects_keyspace()

    def batch(sizes: list[int], keys: list[str], keyspace: bytes = objects.digest()) -> WriteBatch:
        source = Fragments.lists([[1 << 40]] * len(sizes), [[size] for size in sizes])
        item = BeginItem(keyspace, 0, 0, b"", b"", pack_u64(sizes), keys)
        return WriteBatch(item, np.array(sizes, dtype=np.uint64), source)

    def size_of(sizes: list[int], keys: list[str]) -> int:
        return slot_bytes_of([batch(sizes, keys)], lambda _: objects)

    assert size_of([65536, 65534], ["k", "key"]) == 66560
    assert size_of([65535], ["ü"]) == 66560 and size_of([65535], ["u"]) == 65536
    assert size_of([65536, 100], ["k", "k"]) == 0
    assert size_of([10], []) == 1024
    assert size_of([10] * AHEAD_SLOTS, ["k"] * AHEAD_SLOTS) == 1024
    assert size_of([10] * (AHEAD_SLOTS + 1), ["k"] * (AHEAD_SLOTS + 1)) == 0
    assert size_of([AHEAD_BYTES], ["k"]) == 0
    half, more = [batch([size] * (AHEAD_SLOTS // 2), []) for size in (10, 2000)]
    assert slot_bytes_of([half, half], lambda _: objects) == 1024
    assert slot_bytes_of([half, half, batch([10], [])], lambda _: objects) == 0
    assert slot_bytes_of([half, more], lambda _: objects) == 0
    assert slot_bytes_of([half, batch([10], [], bytes(32))], lambda _: objects) == 0
    assert slot_bytes_of([half], lambda _: None) == 0
