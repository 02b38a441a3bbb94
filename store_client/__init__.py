"""The client of a Moonpool pool: StoreClient blocks, AsyncStoreClient is for asyncio.

The names are imported when they are asked for: the command line lives in this package, and its --help should not wait
for numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moonpool.schemas.config import ClientSettings
    from moonpool.schemas.keyspace import KeyspaceSpec, Kind
    from moonpool.schemas.messages import Status
    from moonpool.store_client.aio import AsyncStoreClient
    from moonpool.store_client.blocks import BlockGet, BlockPut
    from moonpool.store_client.client import StoreClient
    from moonpool.store_client.fragments import Fragments
    from moonpool.store_client.rows import Got, Rows

__all__ = [
    "AsyncStoreClient",
    "BlockGet",
    "BlockPut",
    "ClientSettings",
    "Fragments",
    "Got",
    "KeyspaceSpec",
    "Kind",
    "Rows",
    "Status",
    "StoreClient",
]

_HOMES = {
    "AsyncStoreClient": "moonpool.store_client.aio",
    "BlockGet": "moonpool.store_client.blocks",
    "BlockPut": "moonpool.store_client.blocks",
    "ClientSettings": "moonpool.schemas.config",
    "Fragments": "moonpool.store_client.fragments",
    "Got": "moonpool.store_client.rows",
    "KeyspaceSpec": "moonpool.schemas.keyspace",
    "Kind": "moonpool.schemas.keyspace",
    "Rows": "moonpool.store_client.rows",
    "Status": "moonpool.schemas.messages",
    "StoreClient": "moonpool.store_client.client",
}


def __getattr__(name: str) -> Any:
    """A public name, from where it lives."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
