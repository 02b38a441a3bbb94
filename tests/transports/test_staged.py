"""Staging: what lands late lands there, and never in the caller's memory."""

from __future__ import annotations

import time

import numpy as np
import pytest
from support.waiting import at_most, soon
from transports.memory_transport import MemoryTransport, batch_of, scattered, write_of

from moonpool.schemas.errors import DeadlineExceeded
from moonpool.schemas.messages import Status
from moonpool.schemas.packed import U8
from moonpool.store_client.copiers.host import HostCopier
from moonpool.store_client.transports.faulty import Faults, FaultyTransport
from moonpool.store_client.transports.staged import StagedTransport
from moonpool.store_client.transports.staging import BLOCK_BYTES, Staging

PIECES, PIECE_BYTES = 4, 512
OBJECT_BYTES = PIECES * PIECE_BYTES


def contents(count: int) -> list[U8]:
    return [np.full(OBJECT_BYTES, i + 1, dtype=np.uint8) for i in range(count)]


def test_reads_and_writes_pass_through() -> None:
    inner = MemoryTransport(contents(10))
    staging = Staging(HostCopier())
    transport = StagedTransport(inner, HostCopier(), staging)
    memory = np.zeros(10 * OBJECT_BYTES, dtype=np.uint8)
    into = scattered(memory, 10, PIECES, PIECE_BYTES)
    statuses = transport.read(batch_of([3, 99, 1, 0, 2, 4, 5, 6, 7, 8], into), soon())
    assert statuses.tolist() == [Status.OK, Status.MISSING] + [Status.OK] * 8
    rows = memory.reshape(PIECES, 10, PIECE_BYTES)
    assert (rows == np.array([4, 0, 2, 1, 3, 5, 6, 7, 8, 9])[None, :, None]).all()
    assert [s.tolist() for s in transport.write([write_of(into)], soon())] == [[Status.OK] * 10]
    assert np.array_equal(inner.slots[-1], np.full(OBJECT_BYTES, 9, dtype=np.uint8))
    transport.close()
    staging.close()
    assert inner.closed.is_set()


def test_late_bytes_never_reach_the_caller() -> None:
    faulty = FaultyTransport(MemoryTransport(contents(40)), Faults(seed=1, late=0.5, late_s=0.05))
    staging = Staging(HostCopier())
    transport = StagedTransport(faulty, HostCopier(), staging)
    memory = np.zeros(40 * OBJECT_BYTES, dtype=np.uint8)
    into = scattered(memory, 40, PIECES, PIECE_BYTES)
    statuses = transport.read(batch_of(range(40), into), soon())
    late = statuses == Status.FAILED
    assert 5 < late.sum() < 35
    memory[:] = 0xEE
    transport.close()  # waits for everything that is still to arrive
    assert (memory == 0xEE).all()
    staging.close()


def test_without_staging_late_bytes_do_land() -> None:
    """The fake does what it says: the test above would fail without staging."""
    faulty = FaultyTransport(MemoryTransport(contents(40)), Faults(seed=1, late=0.5, late_s=0.05))
    memory = np.zeros(40 * OBJECT_BYTES, dtype=np.uint8)
    faulty.read(batch_of(range(40), scattered(memory, 40, PIECES, PIECE_BYTES)), soon())
    memory[:] = 0xEE
    faulty.close()
    assert (memory != 0xEE).any()


def test_a_block_that_may_still_be_written_to_is_set_aside() -> None:
    faulty = FaultyTransport(MemoryTransport(contents(4)), Faults(seed=1, late=1.0, late_s=0.01))
    staging = Staging(HostCopier(), blocks_max=1, quarantine_s=2.5)
    transport = StagedTransport(faulty, HostCopier(), staging)
    memory = np.zeros(4 * OBJECT_BYTES, dtype=np.uint8)
    batch = batch_of(range(4), scattered(memory, 4, PIECES, PIECE_BYTES))
    assert (transport.read(batch, soon()) == Status.FAILED).all()
    with pytest.raises(DeadlineExceeded), staging.block(time.monotonic() + 0.05):
        pass
    with staging.block(soon()):  # after the quarantine
        pass
    transport.close()
    staging.close()


def test_staging_is_bounded_and_waits_for_room() -> None:
    staging = Staging(HostCopier(), blocks_max=1)
    with staging.block(soon()):
        start_s = time.monotonic()
        with pytest.raises(DeadlineExceeded), staging.block(start_s + 0.05):
            pass
        assert time.monotonic() - start_s < at_most(0.05)
    with staging.block(soon()):
        pass
    staging.close()


def test_larger_than_a_block_is_too_large() -> None:
    staging = Staging(HostCopier())
    transport = StagedTransport(MemoryTransport([]), HostCopier(), staging)
    into = scattered(np.zeros(1, dtype=np.uint8), 1, 1, BLOCK_BYTES + 1)
    assert transport.read(batch_of([0], into), soon()).tolist() == [Status.TOO_LARGE]
    assert transport.write([write_of(into)], soon())[0].tolist() == [Status.TOO_LARGE]
    staging.close()


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        (Faults(loss=1.0), lambda rows: (rows == 0).all()),
        (Faults(truncation=1.0), lambda rows: (rows[:2] != 0).all() and (rows[2:] == 0).all()),
        (Faults(delay_s=60), lambda rows: (rows == 0).all()),
        (Faults(bytes_per_s=10), lambda rows: (rows == 0).all()),
    ],
    ids=["loss", "truncation", "delay", "slow line"],
)
def test_faults_are_what_they_are_called(faults: Faults, expected: object) -> None:
    faulty = FaultyTransport(MemoryTransport(contents(5)), faults)
    memory = np.zeros(5 * OBJECT_BYTES, dtype=np.uint8)
    start_s = time.monotonic()
    batch = batch_of(range(5), scattered(memory, 5, PIECES, PIECE_BYTES))
    assert (faulty.read(batch, start_s + 0.2) == Status.FAILED).all()
    assert time.monotonic() - start_s < at_most(0.2)
    assert expected(memory.reshape(PIECES, 5 * PIECE_BYTES))  # type: ignore[operator]
    faulty.close()


def test_the_same_seed_fails_the_same_objects() -> None:
    def failed(seed: int) -> list[int]:
        faulty = FaultyTransport(MemoryTransport(contents(50)), Faults(seed=seed, loss=0.3))
        memory = np.zeros(50 * OBJECT_BYTES, dtype=np.uint8)
        return faulty.read(batch_of(range(50), scattered(memory, 50, PIECES, PIECE_BYTES)), soon()).tolist()

    assert failed(7) == failed(7) != failed(8)
