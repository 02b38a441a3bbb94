"""The client of a Moonpool pool: StoreClient blocks, AsyncStoreClient is for asyncio."""

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
