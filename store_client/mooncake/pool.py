"""An open store: batches of keys, cut by keyspace and rank, over one StoreClient."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import MoonpoolError, Unreachable, UsedAfterFork
from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import NodeInfo
from moonpool.store_client.client import StoreClient
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.mooncake import config as options
from moonpool.store_client.mooncake.codes import (
    INVALID_PARAMS,
    NOT_FOUND,
    OBJECT_HAS_LEASE,
    OK,
    each,
    get_code,
    put_code,
)
from moonpool.store_client.mooncake.config import ReplicateConfig
from moonpool.store_client.mooncake.devices import Devices
from moonpool.store_client.mooncake.intervals import Intervals
from moonpool.store_client.mooncake.keys import Group, KeyBook, usable
from moonpool.store_client.mooncake.replicas import ReplicaDescriptor, in_memory
from moonpool.store_client.mooncake.segments import Segments

log = logging.getLogger(__name__)

BYTES_PER_S = 256 << 20
"""A batch has the time of one call, and a second more for each so many bytes in it."""

KEYS_PER_REMOVAL = 4096
LISTING_TIMEOUT_S = 60.0


class Pool:
    """Everything that is there between setup and close. Thread-safe. Raises nothing but UsedAfterFork."""

    def __init__(self, settings: ClientSettings, hostname: str) -> None:
        self.settings = settings
        self.client = StoreClient(settings)
        self.devices = Devices(settings, self.client)
        self.segments = Segments(settings)
        self.buffers = Intervals()
        self.hostname = hostname
        self.read_sessions: dict[str, None] = {}
        self.write_sessions: dict[str, bytearray] = {}
        self.lock = threading.Lock()
        self.book = KeyBook(settings.tenant, self._register)
        self._nodes: dict[bytes, NodeInfo] = {}

    def close(self) -> None:
        """Ends the client, then the segments that this process contributes."""
        self.devices.close()
        self.client.close()
        self.segments.close()

    # ------------------------------------------------------------ reading

    def exist(self, keys: Sequence[str]) -> list[int]:
        """1 or 0 a key; the same negative code for all where the pool can't be asked."""

        def ask() -> list[int]:
            found = [0] * len(keys)
            for group in self._groups(keys, [bool(key) for key in keys]):
                for i, there in zip(group.index, self.client.rows_exist(group.rows()), strict=True):
                    found[i] = int(there)
            return found

        return each(len(keys), ask, lambda code: code)

    def sizes(self, keys: Sequence[str]) -> list[int]:
        """Bytes of each object, or a code."""

        def ask() -> list[int]:
            found = [NOT_FOUND] * len(keys)
            for group in self._groups(keys, [bool(key) for key in keys]):
                places = self.client.locate_rows(group.rows())
                columns = zip(group.index, places.generations.tolist(), places.lengths.tolist(), strict=True)
                for i, generation, length in columns:
                    if generation:
                        found[i] = length
            return found

        return each(len(keys), ask, lambda code: code)

    def replicas(self, keys: Sequence[str]) -> dict[str, list[ReplicaDescriptor]]:
        """Of the keys that are there."""
        found: dict[str, list[ReplicaDescriptor]] = {}
        try:
            for group in self._groups(keys, [bool(key) for key in keys]):
                places = self.client.locate_rows(group.rows())
                columns = (places.which, places.slots, places.generations, places.lengths)
                rows = zip(*(column.tolist() for column in columns), strict=True)
                for i, (which, slot, generation, length) in zip(group.index, rows, strict=True):
                    if generation:
                        endpoint = self._endpoint(places.segments[which])
                        found[keys[i]] = [in_memory(length, slot, endpoint)]
        except UsedAfterFork:
            raise
        except MoonpoolError as error:
            log.warning("replicas of %d keys are not known: %s", len(keys), error)
        return found

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """Values; None where one isn't there or couldn't be read."""

        def read() -> list[bytes | None]:
            found: list[bytes | None] = [None] * len(keys)
            for group in self._groups(keys, [bool(key) for key in keys]):
                for i, value in zip(group.index, self.client.get_rows(group.rows()), strict=True):
                    found[i] = value
            return found

        return each(len(keys), read, lambda code: None)

    def get_into(self, keys: Sequence[str], memory: Fragments) -> list[int]:
        """Reads each object into the first bytes of its memory: its size, or a code."""
        good = _has_memory(memory)

        def read() -> list[int]:
            codes = [INVALID_PARAMS] * len(keys)
            client = self.devices.client_of(memory)
            for group in self._groups(keys, good):
                into = _of_group(memory, group)
                got = client.get_rows_into(group.rows(), into, timeout_s=self._timeout_s(into))
                for i, (status, size_bytes) in zip(group.index, got, strict=True):
                    codes[i] = get_code(status, size_bytes)
            return codes

        return each(len(keys), read, lambda code: code)

    # ------------------------------------------------------------ writing

    def put(self, keys: Sequence[str], values: Fragments, config: ReplicateConfig) -> list[int]:
        """Stores objects: 0, or a code each. What is there already stays as it is, and counts as stored."""
        if not options.valid_for(config, len(keys)):
            return [INVALID_PARAMS] * len(keys)
        good = _has_memory(values) & np.array([usable(key) for key in keys], dtype=np.bool_)

        def write() -> list[int]:
            codes = [INVALID_PARAMS] * len(keys)
            client = self.devices.client_of(values)
            for group in self._groups(keys, good):
                source = _of_group(values, group)
                statuses = client.put_rows(group.rows(), source, timeout_s=self._timeout_s(source))
                for i, status in zip(group.index, statuses, strict=True):
                    codes[i] = put_code(status)
                self._pin(group, codes, config)
            return codes

        return each(len(keys), write, lambda code: code)

    def upsert(self, keys: Sequence[str], values: Fragments, config: ReplicateConfig) -> list[int]:
        """As `put`, and what is there already is removed before."""
        if not options.valid_for(config, len(keys)) or not _has_memory(values).all():
            return self.put(keys, values, config)
        for code in self.remove(keys, force=True):
            if code not in (OK, NOT_FOUND):
                return [code] * len(keys)
        return self.put(keys, values, config)

    def remove(self, keys: Sequence[str], *, force: bool) -> list[int]:
        """0 a key, NOT_FOUND, or OBJECT_HAS_LEASE where it is pinned."""

        def drop() -> list[int]:
            codes = self.exist(keys)
            for i, code in enumerate(codes):
                codes[i] = NOT_FOUND if code == 0 else code
            seen: set[str] = set()
            for group in self._groups(keys, [code == 1 for code in codes]):
                for i in group.index:
                    codes[i] = NOT_FOUND if keys[i] in seen else OK
                    seen.add(keys[i])
                self._drop(group, codes, force)
            return codes

        return each(len(keys), drop, lambda code: code)

    def _drop(self, group: Group, codes: list[int], force: bool) -> None:
        rank = -1 if group.keys else group.rank
        removed = self.client.remove(group.keyspace, group.hashes, force=force, rank=rank)
        if removed.skipped:
            for i, there in zip(group.index, self.client.rows_exist(group.rows()), strict=True):
                if there:
                    codes[i] = OBJECT_HAS_LEASE

    def _pin(self, group: Group, codes: Sequence[int], config: ReplicateConfig) -> None:
        ttl_s = options.pin_s(config)
        if ttl_s is None:
            return
        hashes = [group.hashes[at] for at, i in enumerate(group.index) if codes[i] == OK]
        try:
            self.client.pin(group.keyspace, hashes, ttl_s=ttl_s)
        except MoonpoolError as error:
            log.warning("%d objects are stored but not pinned: %s", len(hashes), error)

    # ------------------------------------------------------------ whole pools

    def remove_where(self, wanted: Callable[[str], bool], *, force: bool) -> int:
        """Removes the objects whose key text is wanted. Returns how many, or a code."""

        def sweep() -> list[int]:
            count = 0
            for spec in self.client.list_keyspaces():
                listed = self.client.list_objects(spec, timeout_s=LISTING_TIMEOUT_S)
                names = (item.key or self.book.text(spec, item.rank, item.block_hash) for item in listed)
                keys = [name for name in names if name and wanted(name)]
                for first in range(0, len(keys), KEYS_PER_REMOVAL):
                    count += self.remove(keys[first : first + KEYS_PER_REMOVAL], force=force).count(OK)
            return [count]

        return each(1, sweep, lambda code: code)[0]

    def remove_all(self, *, force: bool) -> int:
        """Removes everything of the tenant that calls like these have stored. Returns how many, or a code."""

        def clear() -> list[int]:
            count = 0
            for spec in self.client.list_keyspaces():
                if spec == self.book.objects or self.book.text(spec, 0, bytes(spec.hash_bytes)):
                    count += self.client.clear(spec.digest(), force=True).count
            return [count]

        return each(1, clear if force else lambda: [self.remove_where(lambda _: True, force=False)], int)[0]

    def healthy(self) -> bool:
        """Whether the master answers now, and serves this client."""
        return each(1, lambda: [bool(self.client.status())], lambda code: False)[0]

    # ------------------------------------------------------------ inside

    def _groups(self, keys: Sequence[str], good: Sequence[bool] | NDArray[np.bool_]) -> list[Group]:
        return self.book.groups(keys, np.asarray(good, dtype=np.bool_).nonzero()[0].tolist())

    def _register(self, spec: KeyspaceSpec) -> bytes:
        try:
            return self.client.register_keyspace(spec)
        except Unreachable:  # the client remembers it, and tells the master when it is needed
            return spec.digest()

    def _timeout_s(self, memory: Fragments) -> float:
        return self.settings.timeout_s + float(memory.sizes.sum()) / BYTES_PER_S

    def _endpoint(self, segment: bytes) -> str:
        """The address of a segment's node, as last heard."""
        if segment not in self._nodes:
            nodes = self.client.cluster_map().nodes
            self._nodes = {entry.info.segment: entry.info for entry in nodes}
        info = self._nodes.get(segment)
        return info.data_address if info is not None else ""


def _of_group(memory: Fragments, group: Group) -> Fragments:
    """The memory of a group's objects."""
    return memory if len(group.index) == memory.count else memory.take(group.index)


def _has_memory(memory: Fragments) -> NDArray[np.bool_]:
    """Which objects have memory of some size, none of it at address 0."""
    some: NDArray[np.bool_] = memory.lengths() > 0
    if memory.addresses.all():  # the usual case
        return some
    nowhere = np.zeros(len(memory.sizes) + 1, dtype=np.int64)
    np.cumsum((memory.addresses == 0) & (memory.sizes > 0), out=nowhere[1:])
    nulls = nowhere[memory.offsets[1:]] - nowhere[memory.offsets[:-1]]
    some &= nulls == 0
    return some
