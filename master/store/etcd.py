"""Hard state in etcd 3.4 or later, under one prefix a cluster."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc
from etcd3aio.kv import KVService

from moonpool.master.store.base import Changes, Condition, Delete, Page, Put, Record, Write
from moonpool.master.store.etcd_link import EtcdAccess, EtcdFailure, EtcdLinks, Link
from moonpool.master.store.etcd_watch import watch
from moonpool.master.store.limits import check_commit, check_records_max, check_ttl, prefix_end
from moonpool.schemas.errors import Compacted, LeaseLost, StoreFailed

Result = TypeVar("Result")

EQUAL, BY_VALUE, BY_REVISION = 0, 3, 2
"""etcd's Compare: result EQUAL; targets VALUE and MOD."""


class EtcdStore:
    """A MetadataStore. `prefix` goes before every key. Compaction is etcd's own: it forgets everybody's history."""

    def __init__(self, access: EtcdAccess, prefix: bytes) -> None:
        self._prefix = prefix
        self._links = EtcdLinks(access)
        self._page_max = 1 << 20
        """Records of a page that still fitted in a reply."""

    async def read(
        self, prefix: bytes, *, after: bytes = b"", records_max: int = 1000, timeout_s: float
    ) -> Page:
        """See MetadataStore."""
        check_records_max(records_max)
        whole = self._prefix + prefix
        first = max(whole, self._prefix + after + b"\0") if after else whole
        end = prefix_end(whole)
        while True:
            limit = min(records_max, self._page_max)
            try:
                reply = await self._range(first, end, limit, timeout_s)
            except _TooLong:
                # The client takes no reply of more than its limit: fewer records at once, from now on.
                self._page_max = max(limit // 4, 1)
                if limit == 1:
                    raise StoreFailed(store=self._links.name, reason="a record is too large") from None
                continue
            return Page(tuple(map(self._record, reply.kvs)), reply.header.revision, reply.more)

    async def _range(self, first: bytes, end: bytes, limit: int, timeout_s: float) -> Any:
        return await self._call(
            "a read",
            lambda link, left_s: link.kv.get(first, range_end=end, limit=limit, timeout=left_s),
            timeout_s,
            repeatable=True,
        )

    async def commit(
        self, writes: Sequence[Write], *, conditions: Sequence[Condition] = (), timeout_s: float
    ) -> int | None:
        """See MetadataStore."""
        check_commit(writes, conditions)
        compares = [self._compare(condition) for condition in conditions]
        ops = [self._op(write) for write in writes]
        reply = await self._call(
            "a commit",
            lambda link, left_s: link.kv.txn(compares, ops, timeout=left_s),
            timeout_s,
            repeatable=False,
        )
        return reply.header.revision if reply.succeeded else None

    def _op(self, write: Write) -> Any:
        if isinstance(write, Put):
            return KVService.txn_op_put(self._prefix + write.key, write.value, lease=write.lease)
        if isinstance(write, Delete):
            return KVService.txn_op_delete(self._prefix + write.key)
        whole = self._prefix + write.prefix
        return KVService.txn_op_delete(whole, range_end=prefix_end(whole))

    def _compare(self, condition: Condition) -> Any:
        key = self._prefix + condition.key
        if condition.value is not None:
            return KVService.txn_compare_value(key, condition.value)
        # The library has no maker for this target; the message it makes for another is turned into one.
        compare = KVService.txn_compare_version(key, 0)
        compare.target = BY_REVISION
        compare.mod_revision = condition.version
        return compare

    async def grant(self, ttl_s: float, *, timeout_s: float) -> int:
        """See MetadataStore. Some servers raise what is less than their election timeout."""
        check_ttl(ttl_s)
        reply = await self._call(
            "a lease",
            lambda link, left_s: link.lease.grant(math.ceil(ttl_s), timeout=left_s),
            timeout_s,
            repeatable=True,
        )
        return int(reply.ID)

    async def keep_alive(self, lease: int, *, timeout_s: float) -> float:
        """See MetadataStore."""
        ttl_s = await self._call(
            "a keep-alive", lambda link, _: _keep_alive(link, lease), timeout_s, repeatable=True
        )
        if ttl_s <= 0:
            raise LeaseLost(lease=lease)
        return ttl_s

    async def revoke(self, lease: int, *, timeout_s: float) -> None:
        """See MetadataStore."""
        try:
            await self._call(
                "a revoke",
                lambda link, left_s: link.lease.revoke(lease, timeout=left_s),
                timeout_s,
                repeatable=True,
            )
        except LeaseLost:
            return

    def watch(self, prefix: bytes, *, after_revision: int) -> AsyncIterator[Changes]:
        """See MetadataStore."""
        return watch(self._links, self._prefix + prefix, after_revision, self._record, len(self._prefix))

    async def compact(self, revision: int, *, timeout_s: float) -> None:
        """See MetadataStore."""
        try:
            await self._call(
                "a compaction",
                lambda link, left_s: link.kv.compact(revision, timeout=left_s),
                timeout_s,
                repeatable=True,
            )
        except Compacted:
            return

    async def close(self) -> None:
        """See MetadataStore."""
        await self._links.close()

    def _record(self, kv: Any) -> Record:
        return Record(kv.key[len(self._prefix) :], kv.value, kv.mod_revision, kv.lease)

    async def _call(
        self,
        what: str,
        ask: Callable[[Link, float], Awaitable[Result]],
        timeout_s: float,
        *,
        repeatable: bool,
    ) -> Result:
        try:
            return await self._links.call(what, ask, timeout_s, repeatable=repeatable)
        except EtcdFailure as failure:
            raise self._error(failure) from None

    def _error(self, failure: EtcdFailure) -> Exception:
        if "lease not found" in failure.details:
            return LeaseLost(lease=0)
        if "compacted" in failure.details:
            return Compacted(revision=0)
        if "message larger than max" in failure.details:
            return _TooLong()
        return StoreFailed(store=self._links.name, reason=failure.details)


class _TooLong(Exception):
    """A reply was longer than the client takes."""


async def _keep_alive(link: Link, lease: int) -> float:
    stream = link.lease.keep_alive(lease)
    try:
        async for reply in stream:
            return float(reply.TTL)
        raise EtcdFailure(grpc.StatusCode.UNAVAILABLE, "the keep-alive stream ended")
    finally:
        stream.cancel()
