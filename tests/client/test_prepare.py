"""Mapping and pinning ahead of the first transfer."""

from __future__ import annotations

import pytest
from support.processes import MasterProcess, NodeProcess
from support.waiting import wait_until

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import InvalidParams, Unreachable
from moonpool.schemas.keyspace import objects_keyspace
from moonpool.schemas.packed import U64
from moonpool.store_client import StoreClient
from moonpool.store_client.copiers.host import HostCopier
from moonpool.store_client.objects import rows_of


class PinningCopier(HostCopier):
    """A device that counts what is pinned for it. Its memory is host memory all the same."""

    device = True

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}

    def register(self, address: int, size_bytes: int) -> None:
        assert address not in self.pinned
        self.pinned[address] = size_bytes

    def unregister(self, address: int) -> None:
        del self.pinned[address]

    def to_engine(self, engine: U64, host: U64, sizes: U64) -> None:
        assert self.pinned, "a copy before its memory was pinned"
        super().to_engine(engine, host, sizes)


def test_a_devices_memory_is_pinned_once_and_given_back() -> None:
    copier = PinningCopier()
    with MasterProcess() as master, NodeProcess(master, size=8 << 20):
        with StoreClient(ClientSettings(master=master.address, timeout_s=20), copier=copier) as client:
            wait_until(lambda: client.prepare() == 1)
            assert client.prepare() == 1
            assert sum(copier.pinned.values()) >= 8 << 20
            with pytest.raises(InvalidParams, match="batch_get_into_multi_buffers"):
                client.batch_get(["key"])
            with pytest.raises(InvalidParams, match="get_rows_into"):
                client.get_rows(rows_of(objects_keyspace().digest(), ["key"]))
        assert not copier.pinned


def test_prepare_with_host_memory_and_without_a_node() -> None:
    with MasterProcess() as master:
        with StoreClient(ClientSettings(master=master.address, timeout_s=20)) as client:
            assert client.prepare() == 0
        with (
            NodeProcess(master, size=8 << 20),
            StoreClient(ClientSettings(master=master.address, timeout_s=20)) as client,
        ):
            wait_until(lambda: client.prepare() == 1)
            client.put("key", b"value")
            assert client.get("key") == b"value"


def test_prepare_without_a_master_says_so_or_finds_nothing() -> None:
    with StoreClient(ClientSettings(master="127.0.0.1:1", timeout_s=0.2)) as client:
        try:
            assert client.prepare() == 0
        except Unreachable as error:
            pytest.fail(f"prepare is a courtesy: {error}")
