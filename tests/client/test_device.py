"""Blocks of a device: parts of one call are copied while others are prepared, begun and committed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from client.chains import all_ok, chained, get_chain, put_chain
from client.pool import Pool
from client.test_blocks import BLOCK_BYTES, wait_match
from support.payloads import chain_hashes

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import TransferFailed
from moonpool.schemas.messages import Status
from moonpool.schemas.packed import U64
from moonpool.store_client import StoreClient
from moonpool.store_client.copiers.host import HostCopier
from moonpool.store_client.transports import shm

PART_BLOCKS = 16
BLOCKS = 100


class Device(HostCopier):
    """Its memory is host memory. The first copy lasts until a second one is under way; the one of number `failing` fails."""

    device = True

    def __init__(self) -> None:
        self.failing = -1
        self._numbers = iter(range(1 << 20))
        self._second = threading.Event()

    def to_engine(self, engine: U64, host: U64, sizes: U64) -> None:
        self._meet()
        super().to_engine(engine, host, sizes)

    def from_engine(self, host: U64, engine: U64, sizes: U64) -> None:
        self._meet()
        super().from_engine(host, engine, sizes)

    def again(self) -> None:
        """The next copy is the first one."""
        self._numbers = iter(range(1 << 20))
        self._second.clear()

    def _meet(self) -> None:
        number = next(self._numbers)
        if number == self.failing:
            raise TransferFailed(peer="cuda:0", reason="as it is")
        if number:
            self._second.set()
        assert self._second.wait(60), "no second copy while the first one was under way"


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def client(
    shared_pool: Pool, device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StoreClient]:
    """Whose parts are small."""
    monkeypatch.setattr(shm, "DEVICE_CHUNK_BYTES", PART_BLOCKS * BLOCK_BYTES)
    monkeypatch.setattr(shm, "DEVICE_GROUP_BYTES", 1)
    settings = ClientSettings(
        master=shared_pool.master.address, run_dir=str(tmp_path / "run"), transport="shm", timeout_s=60
    )
    with StoreClient(settings, copier=device) as made:
        yield made


def test_two_parts_are_under_way_at_once(client: StoreClient, device: Device) -> None:
    keyspace = client.register_keyspace(chained("device"))
    chain = chain_hashes("device", BLOCKS)  # two runs, each a group
    assert all_ok(put_chain(client, keyspace, chain, BLOCK_BYTES))
    wait_match(client, keyspace, chain, BLOCKS)
    device.again()
    assert all_ok(get_chain(client, keyspace, chain, BLOCK_BYTES))


@pytest.mark.parametrize("number", [0, 1, 2, 4])
def test_a_part_that_fails_takes_no_other_with_it(client: StoreClient, device: Device, number: int) -> None:
    keyspace = client.register_keyspace(chained(f"failing {number}"))
    chain = chain_hashes(f"failing {number}", BLOCKS)
    assert all_ok(put_chain(client, keyspace, chain, BLOCK_BYTES))
    wait_match(client, keyspace, chain, BLOCKS)
    device.again()
    device.failing = number
    statuses = get_chain(client, keyspace, chain, BLOCK_BYTES)  # compares what is said to be OK
    assert 0 < np.count_nonzero(statuses == Status.FAILED) <= PART_BLOCKS
    assert np.count_nonzero(statuses == Status.OK) >= BLOCKS - PART_BLOCKS
