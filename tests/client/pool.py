"""A small pool of real processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from support.processes import MasterProcess, NodeProcess
from support.waiting import wait_until

from moonpool.schemas.config import ClientSettings
from moonpool.store_client import StoreClient

SIZE_BYTES = 96 << 20

MakeClient = Callable[..., StoreClient]


class Pool:
    """One master, one node, both live."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.master = stack.enter_context(MasterProcess())
            self.node = stack.enter_context(NodeProcess(self.master, size=SIZE_BYTES, prefault=False))
            with client_of(self) as client:
                wait_for_nodes(client)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._stack.close()


def client_of(pool: Pool, **settings: object) -> StoreClient:
    """A client of that pool."""
    return StoreClient(ClientSettings.model_validate({"master": pool.master.address, **settings}))


def wait_for_nodes(client: StoreClient, count: int = 1, timeout_s: float = 20.0) -> None:
    """Returns once the master knows that many live nodes."""
    wait_until(lambda: sum(entry.state == 1 for entry in client.cluster_map().nodes) >= count, timeout_s)
