"""A master and a node whose engine is open, and clients of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from client.pool import MakeClient, Pool, clients

from moonpool.store_client import StoreClient


@pytest.fixture(scope="module")
def engine_pool() -> Iterator[Pool]:
    """For tests that leave the servers alone."""
    with Pool(engine_protocol="tcp") as pool:
        yield pool


@pytest.fixture
def own_pool() -> Iterator[Pool]:
    """For tests that kill and freeze."""
    with Pool(engine_protocol="tcp") as pool:
        yield pool


@pytest.fixture
def make_client(tmp_path: Path) -> Iterator[MakeClient]:
    """See clients."""
    with clients(tmp_path / "run") as make:
        yield make


@pytest.fixture
def client(engine_pool: Pool, make_client: MakeClient) -> StoreClient:
    """A client over the engine."""
    return make_client(engine_pool, transport="mooncake")
