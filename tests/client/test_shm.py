"""What the shm transport takes of a host's memory, and what it makes of a node's strange answers."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import msgspec
import numpy as np
import pytest
from client.chains import Engine, all_ok, chained
from client.pool import MakeClient, Pool
from client.test_prepare import PinningCopier
from support.payloads import chain_hashes
from support.waiting import soon, wait_until

from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.messages import (
    SMALL_BYTES,
    Begin,
    BeginItem,
    Commit,
    Granted,
    Hello,
    Message,
    PutAhead,
    PutSmall,
    RegisterKeyspace,
    Status,
)
from moonpool.schemas.packed import U32, U64, join_hashes
from moonpool.store_client.copiers.host import HostCopier
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.rpc.connection_pool import PendingReply
from moonpool.store_client.transports import shm
from moonpool.store_client.transports.base import WriteBatch
from moonpool.store_client.transports.shm import ShmTransport
from moonpool.store_client.transports.small_door import SMALL_PIECES

BLOCK_BYTES = 64 << 10
SPEC = chained("shm", BLOCK_BYTES)
HELLO = Hello(PROTOCOL_VERSION, "client", "test")


def transport_of(pool: Pool, tmp_path: Path, copier: HostCopier) -> ShmTransport:
    return ShmTransport(pool.node.info, HELLO, str(tmp_path), copier, lambda _: SPEC)


def batch_of(name: str, count: int) -> tuple[WriteBatch, Engine]:
    """New blocks, and the memory that they lie in."""
    hashes = chain_hashes(name, count)
    engine = Engine(count, BLOCK_BYTES)
    engine.fill(hashes, 0)
    item = BeginItem(SPEC.digest(), 0, 0, b"", join_hashes(hashes))
    return WriteBatch(item, np.full(count, BLOCK_BYTES, dtype=np.uint64), engine.fragments), engine


@pytest.mark.parametrize("copier", [HostCopier(), PinningCopier()], ids=["host", "device"])
def test_preparing_takes_no_memory_beside_the_pool_s(
    shared_pool: Pool, tmp_path: Path, copier: HostCopier
) -> None:
    path = shared_pool.node.info.segment_path
    before = os.stat(path).st_blocks
    transport = transport_of(shared_pool, tmp_path, copier)
    transport.prepare()
    assert os.stat(path).st_blocks == before, "the sparse header region has become real"
    if isinstance(copier, PinningCopier):
        assert list(copier.pinned.values()) == [shared_pool.node.info.capacity_bytes]
    transport.close()


def test_a_grant_for_fewer_blocks_is_not_filled(
    shared_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that was killed between its grant and its answer adopts the put without the blocks that got no slot."""
    transport = transport_of(shared_pool, tmp_path, HostCopier())
    batch, _engine = batch_of("fewer", 3)
    call = transport._node.call
    grants: list[Granted] = []

    def forgetful(message: Message, deadline_s: float) -> Message:
        answer = call(message, deadline_s)
        if isinstance(answer, Granted):
            grants.append(answer)
            answer = msgspec.structs.replace(
                answer,
                statuses=answer.statuses[1:],
                slots=answer.slots[4:],
                generations=answer.generations[8:],
            )
        return answer

    monkeypatch.setattr(transport._node, "call", forgetful)
    (statuses,) = transport.write([batch], soon())
    assert grants and (statuses == Status.FAILED).all()
    monkeypatch.undo()
    wait_until(lambda: shared_pool.node.status()["objects_writing"] == 0)
    assert all_ok(transport.write([batch], soon())[0])
    transport.close()


@pytest.mark.parametrize(
    ("copier", "groups"), [(HostCopier(), 8), (PinningCopier(), 2)], ids=["host", "device"]
)
def test_groups_of_a_put_are_larger_for_a_device(
    shared_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copier: HostCopier, groups: int
) -> None:
    """Between two groups a device has nothing to copy."""
    assert shm.DEVICE_GROUP_BYTES == 4 * shm.GROUP_BYTES
    monkeypatch.setattr(shm, "GROUP_BYTES", 2 * BLOCK_BYTES)
    monkeypatch.setattr(shm, "DEVICE_GROUP_BYTES", 8 * BLOCK_BYTES)
    transport = transport_of(shared_pool, tmp_path, copier)
    call = transport._node.call
    asked: list[Message] = []

    def counted(message: Message, deadline_s: float) -> Message:
        asked.append(message)
        return call(message, deadline_s)

    begin = transport._node.begin

    def begun(message: Message, deadline_s: float) -> PendingReply:
        asked.append(message)
        return begin(message, deadline_s)

    monkeypatch.setattr(transport._node, "call", counted)
    monkeypatch.setattr(transport._node, "begin", begun)
    batches = [batch_of(f"{type(copier).__name__} {number}", 2) for number in range(8)]
    call(RegisterKeyspace(SPEC), soon())
    for statuses in transport.write([batch for batch, _engine in batches], soon()):
        assert all_ok(statuses)
    assert sum(isinstance(message, Commit | PutAhead) for message in asked) == groups
    transport.close()


def test_groups_overlap_and_one_that_fails_takes_no_other_with_it(
    shared_pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shm, "GROUP_OBJECTS", 2)
    transport = transport_of(shared_pool, tmp_path, HostCopier())
    transport._node.call(RegisterKeyspace(SPEC), soon())
    revoked = shared_pool.node.status()["puts_revoked"]
    begin, copy_in = transport._node.begin, transport._copy_in
    seen: list[str] = []

    def begun(message: Message, deadline_s: float) -> PendingReply:
        seen.append(type(message).__name__)
        return begin(message, deadline_s)

    def copied(slots: U32, lengths: U64, source: Fragments) -> bool:
        seen.append("copy")
        return seen.count("copy") != 2 and copy_in(slots, lengths, source)

    monkeypatch.setattr(transport._node, "begin", begun)
    monkeypatch.setattr(transport, "_copy_in", copied)
    made = [
        batch_of(f"overlap {number}", 3) for number in range(4)
    ]  # each with its memory, which is to be kept
    statuses = transport.write([batch for batch, _ in made], soon())
    assert seen[:6] == ["Begin", "Begin", "Begin", "copy", "Commit", "copy"]
    assert [all_ok(mine) for mine in statuses] == [True, False, True, False], "the last one was not begun"
    assert all((statuses[number] == Status.FAILED).all() for number in (1, 3))
    assert shared_pool.node.status()["puts_revoked"] > revoked
    assert transport._overlapping.acquire(blocking=False) and transport._overlapping.acquire(blocking=False)
    transport.close()


@pytest.mark.parametrize(
    ("size", "pieces", "sent"),
    [
        (1, 1, True),
        (SMALL_BYTES, 1, True),
        (SMALL_BYTES + 1, 1, False),
        (4096, SMALL_PIECES, True),
        (4096, SMALL_PIECES + 1, False),
    ],
)
def test_small_puts_are_sent_instead_of_copied(
    shared_pool: Pool,
    make_client: MakeClient,
    asked: list[object],
    size: int,
    pieces: int,
    sent: bool,
) -> None:
    client = make_client(shared_pool, transport="shm")
    key, value = f"small {size} {pieces}", os.urandom(size)
    cuts = np.linspace(0, size, pieces + 1).astype(int).tolist()
    parts = [bytearray(value[first:end]) for first, end in itertools.pairwise(cuts)]
    assert client.batch_put_from_multi_buffers([key], [parts]) == [Status.OK]
    assert client.batch_get([key]) == [value]
    assert any(isinstance(message, PutSmall) for message in asked) is sent
    assert any(isinstance(message, Begin) for message in asked) is not sent
