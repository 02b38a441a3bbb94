"""AsyncStoreClient: StoreClient's calls as coroutines, over a bounded pool of threads around the one blocking core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import Closed
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import ClusterMap, Description, Removed, Status
from moonpool.schemas.packed import U8
from moonpool.store_client.blocks import BlockGet, BlockPut
from moonpool.store_client.buffers import Buffer
from moonpool.store_client.client import StoreClient
from moonpool.store_client.copiers.base import DeviceCopier
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.gets import Places
from moonpool.store_client.listing import Listed
from moonpool.store_client.rows import Got, Rows

THREADS = 8
"""Calls under way at once; more wait their turn, and their deadlines begin when it comes."""

Result = TypeVar("Result")


class AsyncStoreClient:
    """See StoreClient for what each call does. A cancelled call goes on in its thread until its deadline at most;
    memory that was handed to it must live that long."""

    def __init__(self, settings: ClientSettings | None = None, *, copier: DeviceCopier | None = None) -> None:
        self.blocking = StoreClient(settings, copier=copier)
        """The same client for threads."""
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="moonpool-aio")
        self._closed = False

    async def register_keyspace(self, spec: KeyspaceSpec, *, timeout_s: float | None = None) -> bytes:
        """As StoreClient.register_keyspace."""
        return await self._run(partial(self.blocking.register_keyspace, spec, timeout_s=timeout_s))

    async def match(self, keyspace: bytes, hashes: Sequence[bytes], *, timeout_s: float | None = None) -> int:
        """As StoreClient.match."""
        return await self._run(partial(self.blocking.match, keyspace, hashes, timeout_s=timeout_s))

    async def presence(
        self, keyspace: bytes, hashes: Sequence[bytes], *, rank: int = -1, timeout_s: float | None = None
    ) -> list[bool]:
        """As StoreClient.presence."""
        call = partial(self.blocking.presence, keyspace, hashes, rank=rank, timeout_s=timeout_s)
        return await self._run(call)

    async def renew(
        self, keyspace: bytes, hashes: Sequence[bytes], *, timeout_s: float | None = None
    ) -> list[bool]:
        """As StoreClient.renew."""
        return await self._run(partial(self.blocking.renew, keyspace, hashes, timeout_s=timeout_s))

    async def put_blocks(self, puts: Sequence[BlockPut], *, timeout_s: float | None = None) -> list[U8]:
        """As StoreClient.put_blocks."""
        return await self._run(partial(self.blocking.put_blocks, puts, timeout_s=timeout_s))

    async def get_blocks(self, get: BlockGet, *, timeout_s: float | None = None) -> U8:
        """As StoreClient.get_blocks."""
        return await self._run(partial(self.blocking.get_blocks, get, timeout_s=timeout_s))

    async def remove(
        self,
        keyspace: bytes,
        hashes: Sequence[bytes],
        *,
        force: bool = False,
        rank: int = -1,
        timeout_s: float | None = None,
    ) -> Removed:
        """As StoreClient.remove."""
        call = partial(self.blocking.remove, keyspace, hashes, force=force, rank=rank, timeout_s=timeout_s)
        return await self._run(call)

    async def clear(self, keyspace: bytes, *, force: bool = True, timeout_s: float | None = None) -> Removed:
        """As StoreClient.clear."""
        return await self._run(partial(self.blocking.clear, keyspace, force=force, timeout_s=timeout_s))

    async def pin(
        self,
        keyspace: bytes,
        hashes: Sequence[bytes],
        *,
        ttl_s: float = 0.0,
        timeout_s: float | None = None,
    ) -> int:
        """As StoreClient.pin."""
        return await self._run(partial(self.blocking.pin, keyspace, hashes, ttl_s=ttl_s, timeout_s=timeout_s))

    async def unpin(self, keyspace: bytes, hashes: Sequence[bytes], *, timeout_s: float | None = None) -> int:
        """As StoreClient.unpin."""
        return await self._run(partial(self.blocking.unpin, keyspace, hashes, timeout_s=timeout_s))

    async def describe(
        self, keyspace: bytes, block_hash: bytes, *, timeout_s: float | None = None
    ) -> Description:
        """As StoreClient.describe."""
        return await self._run(partial(self.blocking.describe, keyspace, block_hash, timeout_s=timeout_s))

    async def rows_exist(self, rows: Rows, *, timeout_s: float | None = None) -> list[bool]:
        """As StoreClient.rows_exist."""
        return await self._run(partial(self.blocking.rows_exist, rows, timeout_s=timeout_s))

    async def put_rows(
        self, rows: Rows, values: Fragments, *, timeout_s: float | None = None
    ) -> list[Status]:
        """As StoreClient.put_rows."""
        return await self._run(partial(self.blocking.put_rows, rows, values, timeout_s=timeout_s))

    async def get_rows(self, rows: Rows, *, timeout_s: float | None = None) -> list[bytes | None]:
        """As StoreClient.get_rows."""
        return await self._run(partial(self.blocking.get_rows, rows, timeout_s=timeout_s))

    async def get_rows_into(
        self, rows: Rows, memory: Fragments, *, timeout_s: float | None = None
    ) -> list[Got]:
        """As StoreClient.get_rows_into."""
        return await self._run(partial(self.blocking.get_rows_into, rows, memory, timeout_s=timeout_s))

    async def locate_rows(self, rows: Rows, *, timeout_s: float | None = None) -> Places:
        """As StoreClient.locate_rows."""
        return await self._run(partial(self.blocking.locate_rows, rows, timeout_s=timeout_s))

    async def put(self, key: str, value: Buffer, *, timeout_s: float | None = None) -> Status:
        """As StoreClient.put."""
        return await self._run(partial(self.blocking.put, key, value, timeout_s=timeout_s))

    async def get(self, key: str, *, timeout_s: float | None = None) -> bytes | None:
        """As StoreClient.get."""
        return await self._run(partial(self.blocking.get, key, timeout_s=timeout_s))

    async def batch_is_exist(self, keys: Sequence[str], *, timeout_s: float | None = None) -> list[bool]:
        """As StoreClient.batch_is_exist."""
        return await self._run(partial(self.blocking.batch_is_exist, keys, timeout_s=timeout_s))

    async def batch_put(
        self, keys: Sequence[str], values: Sequence[Buffer], *, timeout_s: float | None = None
    ) -> list[Status]:
        """As StoreClient.batch_put."""
        return await self._run(partial(self.blocking.batch_put, keys, values, timeout_s=timeout_s))

    async def batch_get(self, keys: Sequence[str], *, timeout_s: float | None = None) -> list[bytes | None]:
        """As StoreClient.batch_get."""
        return await self._run(partial(self.blocking.batch_get, keys, timeout_s=timeout_s))

    async def batch_put_from_multi_buffers(
        self,
        keys: Sequence[str],
        addresses: Sequence[Sequence[Any]],
        sizes: Sequence[Sequence[int]] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> list[Status]:
        """As StoreClient.batch_put_from_multi_buffers."""
        call = partial(
            self.blocking.batch_put_from_multi_buffers, keys, addresses, sizes, timeout_s=timeout_s
        )
        return await self._run(call)

    async def batch_get_into_multi_buffers(
        self,
        keys: Sequence[str],
        addresses: Sequence[Sequence[Any]],
        sizes: Sequence[Sequence[int]] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> list[Got]:
        """As StoreClient.batch_get_into_multi_buffers."""
        call = partial(
            self.blocking.batch_get_into_multi_buffers, keys, addresses, sizes, timeout_s=timeout_s
        )
        return await self._run(call)

    async def batch_remove(
        self, keys: Sequence[str], *, force: bool = False, timeout_s: float | None = None
    ) -> Removed:
        """As StoreClient.batch_remove."""
        return await self._run(partial(self.blocking.batch_remove, keys, force=force, timeout_s=timeout_s))

    async def list_keyspaces(self, *, timeout_s: float | None = None) -> list[KeyspaceSpec]:
        """As StoreClient.list_keyspaces."""
        return await self._run(partial(self.blocking.list_keyspaces, timeout_s=timeout_s))

    async def list_objects(self, spec: KeyspaceSpec, *, timeout_s: float | None = None) -> list[Listed]:
        """As StoreClient.list_objects."""
        return await self._run(partial(self.blocking.list_objects, spec, timeout_s=timeout_s))

    async def prepare(self, *, timeout_s: float | None = None) -> int:
        """As StoreClient.prepare."""
        return await self._run(partial(self.blocking.prepare, timeout_s=timeout_s))

    async def cluster_map(self, *, timeout_s: float | None = None) -> ClusterMap:
        """As StoreClient.cluster_map."""
        return await self._run(partial(self.blocking.cluster_map, timeout_s=timeout_s))

    async def status(self, *, timeout_s: float | None = None) -> dict[str, int | float | str]:
        """As StoreClient.status."""
        return await self._run(partial(self.blocking.status, timeout_s=timeout_s))

    async def close(self) -> None:
        """As StoreClient.close."""
        self._closed = True
        await asyncio.to_thread(self._close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    def _close(self) -> None:
        self.blocking.close()
        self._threads.shutdown()

    async def _run(self, call: Callable[[], Result]) -> Result:
        if self._closed:  # its threads take nothing any more
            raise Closed(what="AsyncStoreClient")
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)
