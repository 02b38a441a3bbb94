"""StoreClient: the blocking client of a pool. Thread-safe; every call has a deadline."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.keyspace import KeyspaceSpec, Kind, objects_keyspace
from moonpool.schemas.messages import (
    Clear,
    ClusterMap,
    Describe,
    Description,
    Done,
    GetStatus,
    Hello,
    Keyspaces,
    ListKeyspaces,
    NodeState,
    Pin,
    Remove,
    Removed,
    SetReplicas,
    Status,
    StatusReport,
    Unpin,
)
from moonpool.schemas.packed import U8, join_hashes
from moonpool.store_client.admin import Admin, AdminParts
from moonpool.store_client.blocks import BlockGet, BlockPut, Blocks
from moonpool.store_client.buffers import Buffer, memory_of
from moonpool.store_client.cluster import Cluster
from moonpool.store_client.connect import Connector
from moonpool.store_client.copiers.base import DeviceCopier
from moonpool.store_client.copiers.host import HostCopier
from moonpool.store_client.directory import Directory
from moonpool.store_client.few_gets import ObjectGets
from moonpool.store_client.few_puts import ObjectPuts
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.gate import Gate
from moonpool.store_client.gets import Getter, Places
from moonpool.store_client.host import host_id
from moonpool.store_client.keyspaces import KeyspaceBook
from moonpool.store_client.listing import Listed, list_keyspace
from moonpool.store_client.master import MasterLink
from moonpool.store_client.nodes import Nodes
from moonpool.store_client.objects import rows_of
from moonpool.store_client.own_segment import OwnSegment
from moonpool.store_client.puts import Putter
from moonpool.store_client.rows import Got, RowCalls, Rows
from moonpool.store_client.rpc.credentials import Credentials
from moonpool.store_client.telemetry import Telemetry
from moonpool.store_client.tracing import spans
from moonpool.store_client.transports.staging import Staging
from moonpool.store_client.workers import Workers

NODES_AT_ONCE = 4
"""Nodes that one client's calls talk to at the same time."""

TIMEOUT_MAX_S = 86_400.0
"""Longer ones, `inf` too, are cut to this: waits of the operating system can't take any number."""


class StoreClient:
    """Connects lazily: while the master is away, block and object transfers miss at once and other calls raise."""

    def __init__(self, settings: ClientSettings | None = None, *, copier: DeviceCopier | None = None) -> None:
        """`copier`: moves bytes between the caller's memory and mapped memory; by default host memory."""
        self.settings = settings or ClientSettings()
        copier = copier or HostCopier()
        self._hello = hello = Hello(
            protocol=PROTOCOL_VERSION,
            role="client",
            client=f"{socket.gethostname()}:{os.getpid()}",
            tenant=self.settings.tenant,
            host=host_id("/dev/shm"),
        )
        self._credentials = credentials = Credentials.of(self.settings)
        retry_s = self.settings.breaker_retry_s
        self._gate = Gate("StoreClient")
        self._spans = spans(wanted=self.settings.tracing)
        self._book = KeyspaceBook()
        self._replicated: set[bytes] = set()
        """Keyspaces whose number of copies has been set."""
        self._copier = copier
        self._staging = Staging(copier)
        self._workers = Workers(NODES_AT_ONCE, "moonpool-io")
        self._cluster = Cluster(
            Directory.of(self.settings),
            lambda address: MasterLink(address, hello, self._book, retry_s, credentials),
            self._book,
        )
        self._connector = Connector(self.settings, hello, copier, self._staging, self._book.find, credentials)
        self._nodes = Nodes(self._cluster, self._connector.connect, retry_s)
        putter = Putter(self._cluster, self._nodes, self._workers)
        getter = Getter(self._cluster, self._nodes, self._workers, self.settings.verify_checksums)
        self._blocks = Blocks(self._cluster, self._book, putter, getter)
        self._rows = RowCalls(self._cluster, putter, getter)
        host, verify = type(copier) is HostCopier, self.settings.verify_checksums
        self._object_puts = ObjectPuts(self._cluster, self._nodes, putter, self._rows, host=host)
        self._object_gets = ObjectGets(self._nodes, self._rows, host=host, verify=verify)
        self.admin = Admin(
            AdminParts(self._gate, self._cluster, self._nodes, hello, credentials, self._deadline_s)
        )
        """What operators ask."""
        self._objects = self._book.add(objects_keyspace(self.settings.tenant))
        self._own_segment = OwnSegment.start(self.settings) if self.settings.segment_size else None

    # ------------------------------------------------------------ keyspaces and blocks

    def register_keyspace(self, spec: KeyspaceSpec, *, timeout_s: float | None = None) -> bytes:
        """The keyspace's digest. The spec is remembered, even where this raises Unreachable, and told again to
        masters and nodes that were started anew. Raises InvalidParams."""
        with self._gate:
            self._book.add(spec)
            deadline_s = self._deadline_s(timeout_s)
            digest = self._cluster.register(spec, deadline_s)
            replicas = self.settings.replica_num
            if replicas and digest not in self._replicated:
                self._cluster.ask_all(SetReplicas(digest, replicas), Done, deadline_s)
                self._replicated.add(digest)
            return digest

    def match(self, keyspace: bytes, hashes: Sequence[bytes], *, timeout_s: float | None = None) -> int:
        """Longest ready prefix in blocks, from position 0; leased for some seconds. Raises Unreachable."""
        with self._gate, self._spans("match", keyspace, len(hashes)):
            return self._blocks.match(keyspace, hashes, self._deadline_s(timeout_s))

    def presence(
        self, keyspace: bytes, hashes: Sequence[bytes], *, rank: int = -1, timeout_s: float | None = None
    ) -> list[bool]:
        """Which rows of a flat keyspace have that rank's shard (-1: every rank's). Raises Unreachable."""
        with self._gate:
            return self._blocks.presence(keyspace, hashes, rank, self._deadline_s(timeout_s))

    def renew(
        self, keyspace: bytes, hashes: Sequence[bytes], *, timeout_s: float | None = None
    ) -> list[bool]:
        """Keeps blocks in use from being evicted for some more seconds. `hashes`: all of a chain from position 0 up
        to the end in use. Returns whether each run of it (flat: each row) is still there. Raises Unreachable."""
        with self._gate:
            return self._blocks.renew(keyspace, hashes, self._deadline_s(timeout_s))

    def put_blocks(self, puts: Sequence[BlockPut], *, timeout_s: float | None = None) -> list[U8]:
        """Writes blocks that the pool doesn't have. A Status array for each put, one entry a block: OK, EXISTS and
        BUSY (somebody else writes it) need nothing more; NO_PARENT: put again from the run's first block.

        Raises only what is wrong with the arguments; an unreachable master or node gives FAILED.
        """
        keyspace = puts[0].keyspace if puts else b""
        with self._gate, self._spans("save", keyspace, sum(put.source.count for put in puts)):
            return self._blocks.put(puts, self._deadline_s(timeout_s))

    def get_blocks(self, get: BlockGet, *, timeout_s: float | None = None) -> U8:
        """Reads blocks. A Status each: only where it is OK has `get.into` the bytes that were asked for; elsewhere
        it may have been written to. Nothing writes there after this has returned. Raises as put_blocks."""
        with self._gate, self._spans("load", get.keyspace, get.into.count):
            return self._blocks.get(get, self._deadline_s(timeout_s))

    def remove(
        self,
        keyspace: bytes,
        hashes: Sequence[bytes],
        *,
        force: bool = False,
        rank: int = -1,
        timeout_s: float | None = None,
    ) -> Removed:
        """Removes blocks with all that hangs on them; leased and pinned ones only with `force`. `rank`: of flat rows
        this rank's shard alone."""
        with self._gate:
            deadline_s = self._deadline_s(timeout_s)
            shards = self._shards(keyspace, hashes, deadline_s)
            request = Remove(keyspace, join_hashes(hashes), force, _wait_ms(deadline_s), rank, shards=shards)
            return self._cluster.ask(request, Removed, deadline_s)

    def clear(self, keyspace: bytes, *, force: bool = True, timeout_s: float | None = None) -> Removed:
        """Removes everything in a keyspace."""
        with self._gate:
            deadline_s = self._deadline_s(timeout_s)
            return self._cluster.ask(Clear(keyspace, force, _wait_ms(deadline_s)), Removed, deadline_s)

    def pin(
        self,
        keyspace: bytes,
        hashes: Sequence[bytes],
        *,
        ttl_s: float = 0.0,
        timeout_s: float | None = None,
    ) -> int:
        """Keeps rows from being evicted for `ttl_s` (0: until unpinned). Returns how many."""
        with self._gate:
            deadline_s = self._deadline_s(timeout_s)
            shards = self._shards(keyspace, hashes, deadline_s)
            request = Pin(keyspace, join_hashes(hashes), round(ttl_s * 1000), shards)
            return self._cluster.ask(request, Done, deadline_s).count

    def unpin(self, keyspace: bytes, hashes: Sequence[bytes], *, timeout_s: float | None = None) -> int:
        """The reverse of `pin`. Returns how many."""
        with self._gate:
            deadline_s = self._deadline_s(timeout_s)
            request = Unpin(keyspace, join_hashes(hashes), self._shards(keyspace, hashes, deadline_s))
            return self._cluster.ask(request, Done, deadline_s).count

    def describe(self, keyspace: bytes, block_hash: bytes, *, timeout_s: float | None = None) -> Description:
        """Everything known of one block. Raises NotFound."""
        with self._gate:
            request = Describe(keyspace, block_hash)
            return self._cluster.ask(request, Description, self._deadline_s(timeout_s))

    # ------------------------------------------------------------ rows with sizes of their own

    def rows_exist(self, rows: Rows, *, timeout_s: float | None = None) -> list[bool]:
        """Which are there. Raises Unreachable."""
        with self._gate:
            return self._rows.exist(rows, self._deadline_s(timeout_s))

    def put_rows(self, rows: Rows, values: Fragments, *, timeout_s: float | None = None) -> list[Status]:
        """Stores them; what is OK can be read by a call that comes later. Raises as put_blocks."""
        with self._gate:
            return self._object_puts.put_rows(rows, values, self._deadline_s(timeout_s))

    def get_rows(self, rows: Rows, *, timeout_s: float | None = None) -> list[bytes | None]:
        """Their values; None where one isn't there or couldn't be read. With host memory only."""
        with self._gate:
            self._check_host("get_rows", "get_rows_into")
            return self._rows.get(rows, self._deadline_s(timeout_s))

    def get_rows_into(self, rows: Rows, memory: Fragments, *, timeout_s: float | None = None) -> list[Got]:
        """Reads them into the first bytes of each one's memory. TOO_LARGE: a row is larger than that."""
        with self._gate:
            return self._object_gets.get_rows_into(rows, memory, self._deadline_s(timeout_s))

    def locate_rows(self, rows: Rows, *, timeout_s: float | None = None) -> Places:
        """Where they lie, and how long they are. Raises Unreachable."""
        with self._gate:
            return self._rows.locate(rows, self._deadline_s(timeout_s))

    # ------------------------------------------------------------ plain objects

    def put(self, key: str, value: Buffer, *, timeout_s: float | None = None) -> Status:
        """Stores one object. EXISTS where the key is taken: objects don't change."""
        return self.batch_put([key], [value], timeout_s=timeout_s)[0]

    def get(self, key: str, *, timeout_s: float | None = None) -> bytes | None:
        """One object's value, None where it isn't there."""
        return self.batch_get([key], timeout_s=timeout_s)[0]

    def batch_is_exist(self, keys: Sequence[str], *, timeout_s: float | None = None) -> list[bool]:
        """Which keys are there. Raises Unreachable."""
        with self._gate:
            return self._rows.exist(rows_of(self._objects, keys), self._deadline_s(timeout_s))

    def batch_put(
        self, keys: Sequence[str], values: Sequence[Buffer], *, timeout_s: float | None = None
    ) -> list[Status]:
        """Stores objects; what is OK can be read by a call that comes later. Raises as put_blocks."""
        with self._gate:
            return self._object_puts.put(self._objects, keys, values, self._deadline_s(timeout_s))

    def batch_get(self, keys: Sequence[str], *, timeout_s: float | None = None) -> list[bytes | None]:
        """Values of objects; None where one isn't there or couldn't be read. With host memory only."""
        with self._gate:
            self._check_host("batch_get", "batch_get_into_multi_buffers")
            return self._rows.get(rows_of(self._objects, keys), self._deadline_s(timeout_s))

    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[str],
        addresses: Sequence[Sequence[Any]],
        sizes: Sequence[Sequence[int]] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> list[Status]:
        """Stores objects that lie in several pieces each: addresses with `sizes`, or Buffers without."""
        with self._gate:
            deadline_s = self._deadline_s(timeout_s)
            return self._object_puts.put_pieces(self._objects, keys, addresses, sizes, deadline_s)

    def batch_get_into_multi_buffers(
        self,
        keys: Sequence[str],
        addresses: Sequence[Sequence[Any]],
        sizes: Sequence[Sequence[int]] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> list[Got]:
        """Reads objects into several pieces each. TOO_LARGE: an object is larger than its pieces."""
        with self._gate:
            deadline_s = self._deadline_s(timeout_s)
            return self._object_gets.get_pieces(self._objects, keys, addresses, sizes, deadline_s)

    def batch_remove(
        self, keys: Sequence[str], *, force: bool = False, timeout_s: float | None = None
    ) -> Removed:
        """Removes objects; leased and pinned ones only with `force`."""
        rows = rows_of(self._objects, keys)
        return self.remove(rows.keyspace, rows.hashes, force=force, timeout_s=timeout_s)

    def register_buffer(self, buffer: Buffer) -> None:
        """Tells the copier of host memory that will be used often (a device pins it). Needed by no transport here."""
        with self._gate:
            memory = memory_of(buffer, writable=False)
            self._copier.register(memory.address, memory.size_bytes)

    def unregister_buffer(self, buffer: Buffer) -> None:
        """The reverse of `register_buffer`."""
        with self._gate:
            self._copier.unregister(memory_of(buffer, writable=False).address)

    # ------------------------------------------------------------ the pool

    def list_keyspaces(self, *, timeout_s: float | None = None) -> list[KeyspaceSpec]:
        """All of the tenant's. Raises Unreachable."""
        with self._gate:
            request = ListKeyspaces(self.settings.tenant)
            return self._cluster.ask(request, Keyspaces, self._deadline_s(timeout_s)).specs

    def list_objects(self, spec: KeyspaceSpec, *, timeout_s: float | None = None) -> list[Listed]:
        """Everything that nodes within reach hold of a keyspace. For people and scripts: it looks at every slot."""
        with self._gate:
            deadline_s = self._deadline_s(timeout_s)
            entries = self._nodes.cluster_map(deadline_s).nodes
            nodes = [entry.info for entry in entries if entry.state <= NodeState.LIVE]
            digest, hello = spec.digest(), self._hello
            return list(list_keyspace(nodes, hello, digest, spec.hash_bytes, deadline_s, self._credentials))

    def prepare(self, *, timeout_s: float | None = None) -> int:
        """Connects to all nodes now and maps (and pins) the segments of this host, which the first transfers would
        otherwise wait for. May take seconds where segments are large. Returns how many nodes are ready."""
        with self._gate:
            return self._nodes.prepare(self._deadline_s(timeout_s))

    def cluster_map(self, *, timeout_s: float | None = None) -> ClusterMap:
        """Masters and nodes as the master sees them. Raises Unreachable."""
        with self._gate:
            return self._nodes.cluster_map(self._deadline_s(timeout_s))

    def status(self, *, timeout_s: float | None = None) -> dict[str, int | float | str]:
        """The master's counters. Raises Unreachable."""
        with self._gate:
            return self._cluster.ask(GetStatus(), StatusReport, self._deadline_s(timeout_s)).facts

    def take_telemetry(self) -> Telemetry:
        """What transfers took since the last call, and which peers failed lately. Asks nobody."""
        broken = {"master": self._cluster.open_breakers(), "node": self._nodes.open_breakers()}
        return Telemetry(self._nodes.counts.take(), broken)

    def close(self) -> None:
        """Calls under way fail soon; then frees connections, mappings and threads. Idempotent."""
        if self._gate.forked or not self._gate.close():
            return
        self._cluster.close()
        self._nodes.close()
        self._gate.wait_empty()
        self._workers.close()
        self._connector.close()
        self._staging.close()
        if self._own_segment is not None:
            self._own_segment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def _check_host(self, call: str, instead: str) -> None:
        if self._copier.device:
            raise InvalidParams(field=call, value="a device copier", allowed=instead)

    def _shards(self, keyspace: bytes, hashes: Sequence[bytes], deadline_s: float) -> bytes:
        """Rows of flat keyspaces say where they are; the run of a block of a chain isn't known here: all are asked."""
        spec = self._book.find(keyspace)
        flat = spec is not None and spec.kind is Kind.FLAT
        return self._cluster.column(keyspace, hashes, deadline_s) if flat else b""

    def _deadline_s(self, timeout_s: float | None) -> float:
        timeout_s = self.settings.timeout_s if timeout_s is None else timeout_s
        if not timeout_s > 0:
            raise InvalidParams(field="timeout_s", value=timeout_s, allowed="more than 0 seconds")
        return time.monotonic() + min(timeout_s, TIMEOUT_MAX_S)


def _wait_ms(deadline_s: float) -> int:
    """How long the master may wait for nodes: a little less than the caller waits for the master."""
    return max(0, int((deadline_s - time.monotonic()) * 800))
