"""A master and a node in processes of their own, and clients of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client.pool import MakeClient, Pool, clients

from moonpool.store_client import StoreClient
from moonpool.store_client.rpc.connection_pool import ConnectionPool


@pytest.fixture(scope="module")
def shared_pool() -> Iterator[Pool]:
    """For tests that leave the servers alone: starting processes takes longer than most tests."""
    with Pool() as pool:
        yield pool


@pytest.fixture
def pool() -> Iterator[Pool]:
    """For tests that kill and freeze."""
    with Pool() as pool:
        yield pool


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What servers were asked."""
    messages: list[object] = []
    call = ConnectionPool.call

    def noted(pool: ConnectionPool, message: Any, deadline_s: float) -> Any:
        messages.append(message)
        return call(pool, message, deadline_s)

    monkeypatch.setattr(ConnectionPool, "call", noted)
    return messages


@pytest.fixture
def make_client(tmp_path: Path) -> Iterator[MakeClient]:
    """See clients."""
    with clients(tmp_path / "run") as make:
        yield make


@pytest.fixture(params=["shm", "tcp"])
def client(request: pytest.FixtureRequest, shared_pool: Pool, make_client: MakeClient) -> StoreClient:
    """A client over each transport."""
    return make_client(shared_pool, transport=request.param)
