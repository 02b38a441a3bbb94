"""A master and a node whose engine is open, and clients of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest
from client.pool import BEGIN_WAIT_S, PATIENT, SIZE_BYTES, MakeClient, Pool, client_of, wait_for_nodes
from support.leaks import no_thread_left
from support.processes import MasterProcess, NodeProcess

from moonpool.store_client import StoreClient


class EnginePool(Pool):
    """A Pool whose node's engine_protocol is tcp."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.master = stack.enter_context(MasterProcess(PATIENT))
            settings = {"prefault": False, "begin_wait_s": BEGIN_WAIT_S, "engine_protocol": "tcp"}
            self.node = stack.enter_context(NodeProcess(self.master, size=SIZE_BYTES, **settings))
            with client_of(self) as client:
                wait_for_nodes(client)
            self._stack = stack.pop_all()
        return self


@pytest.fixture(scope="module")
def engine_pool() -> Iterator[EnginePool]:
    """For tests that leave the servers alone."""
    with EnginePool() as pool:
        yield pool


@pytest.fixture
def own_pool() -> Iterator[EnginePool]:
    """For tests that kill and freeze."""
    with EnginePool() as pool:
        yield pool


@pytest.fixture
def make_client(tmp_path: Path) -> Iterator[MakeClient]:
    """Clients of a pool; closed at the end, when none of their threads may be left."""
    with no_thread_left(0.0), ExitStack() as stack:

        def make(pool: Pool, **settings: object) -> StoreClient:
            return stack.enter_context(client_of(pool, run_dir=str(tmp_path / "run"), **settings))

        yield make


@pytest.fixture
def client(engine_pool: EnginePool, make_client: MakeClient) -> StoreClient:
    """A client over the engine."""
    return make_client(engine_pool, transport="mooncake")
