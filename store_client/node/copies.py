"""Copies that masters have ordered: read from other nodes, committed here, one order after the other.

Nothing is granted before the bytes are here and valid, so a source that vanishes half way leaves no slot behind. A
removal that arrives between an order and its commit must hit the copy too: it cancels the order before its slots are
WRITING, and dooms those from then on (see Drops).
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.errors import InvalidParams, MoonpoolError
from moonpool.schemas.keyspace import KeyspaceSpec, Kind, object_hash, objects_keyspace
from moonpool.schemas.messages import Begin, BeginItem, Copied, CopyOrder, Granted, Status
from moonpool.schemas.packed import (
    I64,
    U8,
    U32,
    U64,
    count_of,
    join_hashes,
    pack_u64,
    split_hashes,
    u32s,
    u64s,
)
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.node.copy_source import Source
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.headers import COPIED
from moonpool.store_client.node.puts import LANES
from moonpool.store_client.node.slots import Sink
from moonpool.store_client.raw_memory import address_of
from moonpool.store_client.transports.base import ReadBatch
from moonpool.store_client.transports.pieces import batches_of

logger = logging.getLogger(__name__)

ORDERS_MAX = 64
"""Waiting ones; what comes beyond has failed."""

BLOCKS_MAX = 256
"""Of one order."""

BATCH_BYTES = 16 << 20
"""Read at once, and copied within the node once more: larger objects come one by one."""

REMEMBERED = 1024
"""Orders that were carried out: one that is told twice is carried out once."""

STALL_S = 10.0
BYTES_A_SECOND_MIN = 8 << 20


@dataclass(frozen=True, slots=True)
class CopyHooks:
    """What copies ask of their node. `register` blocks for a moment; `fresh`: whether orders of a shard's owner of that
    epoch are to be obeyed."""

    register: Callable[[KeyspaceSpec], bytes]
    fresh: Callable[[int, int], bool]
    put_ids: itertools.count[int]


@dataclass(slots=True, eq=False)
class _Job:
    order: CopyOrder
    keyspace: bytes
    cancelled: bool = False
    statuses: U8 = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))


class Copies:
    """A queue of orders and the thread that works it off."""

    def __init__(self, core: NodeCore, sink: Sink, source: Source, hooks: CopyHooks) -> None:
        self._core = core
        self._sink = sink
        self._source = source
        self._hooks = hooks
        self._wake = threading.Condition(core.lock)
        self._waiting: deque[_Job] = deque()
        self._running: _Job | None = None
        self._known: OrderedDict[tuple[int, int, int], None] = OrderedDict()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._counters = dict.fromkeys(("copies_done", "copies_failed", "copied_bytes"), 0)

    def start(self) -> None:
        """Begins to work."""
        self._thread = threading.Thread(target=self._run, name="copies", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; what waits is never done, and its master hears no more of it."""
        with self._wake:
            self._closing = True
            self._waiting.clear()
            self._wake.notify()
        self._source.close()
        if self._thread is not None:
            self._thread.join()

    def facts(self) -> dict[str, int]:
        """Counters, and how many orders wait."""
        return {**self._counters, "copy_orders_waiting": len(self._waiting)}

    # ------------------------------------------------------------ orders

    def offer(self, order: CopyOrder) -> None:
        """Takes an order that its shard's owner has given. One that can't be read or has no room fails at once."""
        with self._wake:
            name = (order.shard, order.epoch, order.order)
            if name in self._known or self._closing:
                return
            self._known[name] = None
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
            try:
                count = _check(order, self._core.slots.layout.page_bytes)
            except MoonpoolError as error:
                logger.error("an order to copy can't be obeyed: %s", error)
                self._tell(order, np.full(1, Status.FAILED, dtype=np.uint8))
                return
            job = _Job(order, order.spec.digest(), statuses=np.full(count, Status.FAILED, dtype=np.uint8))
            if len(self._waiting) >= ORDERS_MAX:
                self._tell(order, job.statuses)
                return
            self._waiting.append(job)
            self._wake.notify()

    def cancel(self, shard: int, keyspace: bytes | None = None) -> None:
        """A removal in this keyspace was asked for, or (None) may be before we hear of it. Under the node's lock, before
        its slots are looked for."""
        for job in [*self._waiting, *([self._running] if self._running else [])]:
            job.cancelled |= job.order.shard == shard and keyspace in (None, job.keyspace)

    def _tell(self, order: CopyOrder, statuses: U8) -> None:
        done = int((statuses == Status.OK).sum())
        self._counters["copies_done"] += done
        self._counters["copies_failed"] += len(statuses) - done
        self._sink.emit(Copied(order.order, statuses.tobytes()), order.shard)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._closing:
                    self._wake.wait()
                if self._closing:
                    return
                job = self._running = self._waiting.popleft()
            self.carry_out(job)

    def work_off(self) -> None:
        """Carries out all that waits, in the caller's thread: for tests, without `start`."""
        while self._waiting:
            with self._core.lock:
                job = self._running = self._waiting.popleft()
            self.carry_out(job)

    def carry_out(self, job: _Job) -> None:
        """One order, to its end. Whatever fails is told; nothing is left open."""
        try:
            self._copy(job)
        except MoonpoolError as error:
            logger.warning("copies from node %s failed: %s", job.order.source.node, error)
        except Exception:
            # A bug, or numbers that can't be: without this thread no copy would ever be made again.
            logger.exception("an order to copy failed")
        with self._core.lock:
            self._running = None
            self._tell(job.order, job.statuses)

    def _copy(self, job: _Job) -> None:
        order = job.order
        self._hooks.register(order.spec)
        slots, generations, lengths = u32s(order.slots), u64s(order.generations), u64s(order.lengths)
        keys: list[str] = []
        if order.spec.variable_size:
            keys = self._source.key_texts(order, slots, generations, time.monotonic() + STALL_S)
        misnamed = _misnamed(order, keys)
        if misnamed.any():
            logger.warning("node %s names %d objects wrongly", order.source.node, misnamed.sum())
        padded = np.zeros((len(slots), 32), dtype=np.uint8)
        size = order.spec.hash_bytes
        padded[:, :size] = np.frombuffer(order.hashes, dtype=np.uint8).reshape(-1, size)
        hashes = padded.view("S32").reshape(-1)
        for part in batches_of(lengths, BLOCKS_MAX, BATCH_BYTES):
            index = np.arange(len(slots))[part]
            total = int(lengths[index].sum())
            landed = np.empty(max(total, 1), dtype=np.uint8)
            ends = np.cumsum(lengths[index], dtype=np.int64)
            starts = ends - lengths[index].astype(np.int64)
            into = Fragments.grid(
                (np.uint64(address_of(landed)) + starts.astype(np.uint64)).reshape(-1, 1),
                lengths[index].reshape(-1, 1),
            )
            batch = ReadBatch(
                job.keyspace,
                order.rank,
                hashes[index],
                slots[index],
                generations[index],
                lengths[index],
                into,
            )
            deadline_s = time.monotonic() + STALL_S + total / BYTES_A_SECOND_MIN
            statuses = self._source.read(order, batch, deadline_s)
            job.statuses[index] = np.where((statuses == Status.OK) & misnamed[index], Status.FAILED, statuses)
            good = np.flatnonzero(job.statuses[index] == Status.OK)
            if len(good):
                self._commit(job, index[good], landed, starts[good], keys)

    def _commit(self, job: _Job, index: I64, landed: U8, starts: I64, keys: list[str]) -> None:
        """Begin, copy, commit of objects that have landed."""
        core, order = self._core, job.order
        items = _items(order, index, keys)
        put_id = next(self._hooks.put_ids)
        job.statuses[index] = Status.GONE
        with core.lock:
            if job.cancelled or not self._hooks.fresh(order.shard, order.epoch):
                return
            granted = core.begin(LANES, Begin(LANES, put_id, items), partial=True, flags=COPIED)
        assert isinstance(granted, Granted), "partial, and nothing was granted"
        try:
            statuses = np.frombuffer(granted.statuses, dtype=np.uint8)
            slots = u32s(granted.slots)
            layout, lengths = core.slots.layout, u64s(order.lengths)[index].astype(np.int64)
            data, sizes = core.slots.data, core.slots.allocator.slot_bytes
            for block in np.flatnonzero(statuses == Status.OK).tolist():
                at = slice(block, block + 1)
                (first,) = layout.data_offsets(slots[at], sizes[slots[at] >> 16]).tolist()
                start, length = int(starts[block]), int(lengths[block])
                data[first : first + length] = landed[start : start + length]
        except BaseException:
            with core.lock:
                core.revoke(LANES, [put_id])
            raise
        with core.lock:
            job.statuses[index] = np.frombuffer(core.commit(LANES, [put_id])[0], dtype=np.uint8)
            done = job.statuses[index] == Status.OK
            self._counters["copied_bytes"] += int(lengths[done].sum())


def _check(order: CopyOrder, page_bytes: int) -> int:
    """How many blocks it names. Raises InvalidParams where columns differ, and what `spec.check` raises."""
    order.spec.check()
    count = count_of(order.slots, 4, "copy.slots")
    size, chained = order.spec.hash_bytes, order.spec.kind is Kind.CHAINED
    wanted = {
        "hashes": size * count,
        "generations": 8 * count,
        "lengths": 8 * count,
        "positions": 4 * count if chained else 0,
        "parents": size * count if chained else 0,
    }
    wrong = [name for name, length in wanted.items() if len(getattr(order, name)) != length]
    if wrong or not 0 < count <= BLOCKS_MAX:
        allowed = f"columns of equal length, {BLOCKS_MAX} blocks at most"
        raise InvalidParams(field=f"copy.{wrong[0] if wrong else 'slots'}", value=count, allowed=allowed)
    longest = int(u64s(order.lengths).max())
    if longest > page_bytes:
        raise InvalidParams(field="copy.lengths", value=longest, allowed=f"{page_bytes} bytes at most")
    if not 0 <= order.rank < order.spec.world:
        raise InvalidParams(field="copy.rank", value=order.rank, allowed=f"0 to {order.spec.world - 1}")
    return count


def _misnamed(order: CopyOrder, keys: list[str]) -> NDArray[np.bool_]:
    """Plain objects whose text, as their source gives it, is another one than their row is named after: whoever lists
    keys would be told of an object that isn't there."""
    hashes = split_hashes(order.hashes, order.spec.hash_bytes)
    if order.spec != objects_keyspace(order.spec.tenant):
        return np.zeros(len(hashes), dtype=np.bool_)
    return np.array([object_hash(key) != h for key, h in zip(keys, hashes, strict=True)], dtype=np.bool_)


def _items(order: CopyOrder, index: I64, keys: list[str]) -> list[BeginItem]:
    """The blocks as a writer would name them: neighbours of a chain as one item."""
    size = order.spec.hash_bytes
    keyspace = order.spec.digest()
    hashes = split_hashes(order.hashes, size)
    lengths: U64 = u64s(order.lengths)
    blocks = index.tolist()
    if order.spec.kind is not Kind.CHAINED:
        texts = [keys[block] for block in blocks] if keys else []
        packed = join_hashes(hashes[block] for block in blocks)
        return [BeginItem(keyspace, order.rank, 0, b"", packed, pack_u64(lengths[index]), texts, order.shard)]
    positions: U32 = u32s(order.positions)
    parents = split_hashes(order.parents, size)
    stretches: list[list[int]] = []
    for block in blocks:
        last = stretches[-1][-1] if stretches else -1
        if last >= 0 and parents[block] == hashes[last] and positions[block] == positions[last] + 1:
            stretches[-1].append(block)
        else:
            stretches.append([block])
    return [
        BeginItem(
            keyspace,
            order.rank,
            int(positions[stretch[0]]),
            parents[stretch[0]],
            join_hashes(hashes[block] for block in stretch),
            pack_u64(lengths[stretch]),
            [],
            order.shard,
        )
        for stretch in stretches
    ]
