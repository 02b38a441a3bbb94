"""Puts over transfer engines: the node reads the payloads out of the writer's memory, then commits (I4).

They land in memory of the node's own first, and are copied from there: a read that failed may still land minutes later
(see transports/engine/landing.py), when its slots would long have been somebody else's.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass

import numpy as np

from moonpool.schemas.errors import DeadlineExceeded, Gone, InvalidParams, TooLarge, TransferFailed
from moonpool.schemas.messages import BeginItem, Granted, PullWrite, Status
from moonpool.schemas.packed import U64, count_of, u32s, u64s
from moonpool.store_client.copiers.host import HostCopier
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.items import BLOCKS_MAX
from moonpool.store_client.node.puts import LANES
from moonpool.store_client.node.report_streams import Visible
from moonpool.store_client.node.reports import Surplus
from moonpool.store_client.transports.engine.address import EngineAddress
from moonpool.store_client.transports.engine.engine import Engine, Outcome
from moonpool.store_client.transports.engine.landing import PAYLOAD_BYTES, Landing, LandingBlock

PIECES_MAX = 65536
BLOCK_WAIT_S = 5.0
_ADDRESS_MAX = np.uint64(1 << 63)


@dataclass(frozen=True, slots=True)
class PullHooks:
    """What a pull asks of its node. All block, and bound their time. `put_ids`: shared with the lanes."""

    begin: Callable[[int, BeginItem], Granted]
    visible: Visible
    visible_wait_s: float
    put_ids: itertools.count[int]


class Pulls:
    """Carries out PullWrite messages, each in a thread of its caller's."""

    def __init__(self, core: NodeCore, engine: Engine, landing: Landing, hooks: PullHooks, base: int) -> None:
        """`base`: address of the segment's first byte."""
        self._core = core
        self._engine = engine
        self._landing = landing
        self._hooks = hooks
        self._base = base
        self._copier = HostCopier()
        self.counters = dict.fromkeys(("pulls", "pulls_failed", "pull_bytes"), 0)

    def write(self, request: PullWrite) -> Granted:
        """The put from its begin to its commit. Raises MoonpoolError; nothing is left open then."""
        writer = EngineAddress.parse(request.engine_address)
        ours = self._engine.address.protocol
        if writer.protocol != ours:
            raise InvalidParams(field="pull.engine_address", value=writer.protocol, allowed=ours)
        lengths, addresses, sizes = _columns(request)
        put_id = next(self._hooks.put_ids)
        granted = self._hooks.begin(put_id, request.item)
        try:
            go = np.flatnonzero(np.frombuffer(granted.statuses, dtype=np.uint8) == Status.OK)
            if len(go):
                self._fill(request, writer.session, granted, lengths, addresses, sizes, go)
        except BaseException:
            self.counters["pulls_failed"] += 1
            with self._core.lock:
                self._core.revoke(LANES, [put_id])
            raise
        with self._core.lock:
            statuses = self._core.commit(LANES, [put_id])[0]
            seen = self._hooks.visible(self._core.reported) if request.visible else None
        self.counters["pulls"] += 1
        if seen is not None:
            self._await_visible(seen)
        return Granted(granted.put_id, statuses, granted.slots, granted.generations)

    def _fill(
        self,
        request: PullWrite,
        session: str,
        granted: Granted,
        lengths: U64,
        addresses: U64,
        sizes: U64,
        go: np.typing.NDArray[np.intp],
    ) -> None:
        """Payloads, then the guard, then the copy into the slots."""
        with self._landing.block(time.monotonic() + BLOCK_WAIT_S) as block:
            starts = np.uint64(block.address) + np.cumsum(sizes, dtype=np.uint64) - sizes
            self._read(block, session, starts, addresses, sizes)
            guard = np.array([request.guard_address], dtype=np.uint64)
            eight = np.array([8], dtype=np.uint64)
            self._read(block, session, np.array([block.extra], dtype=np.uint64), guard, eight)
            if int.from_bytes(block.view(block.extra, 8).tobytes(), "little") != request.token:
                raise Gone(key="a put that its writer has given up")
            slots, layout = u32s(granted.slots)[go], self._core.slots.layout
            offsets = layout.data_offsets(slots, self._core.slots.allocator.slot_bytes[slots >> 16])
            landed = np.uint64(block.address) + np.cumsum(lengths, dtype=np.uint64) - lengths
            self._copier.from_engine(
                offsets.astype(np.uint64) + np.uint64(self._base), landed[go], lengths[go]
            )
        self.counters["pull_bytes"] += int(sizes.sum())

    def _read(self, block: LandingBlock, session: str, into: U64, source: U64, sizes: U64) -> None:
        block.lost = True
        outcome = self._engine.read(session, into, source, sizes)
        block.lost = outcome is Outcome.UNCERTAIN
        if outcome is not Outcome.LANDED:
            raise TransferFailed(peer=session, reason=outcome.value)

    def _await_visible(self, seen: Future[Surplus]) -> None:
        try:
            seen.result(self._hooks.visible_wait_s)
        except (TimeoutError, CancelledError):
            seen.cancel()
            wait_s = self._hooks.visible_wait_s
            raise DeadlineExceeded(peer="the master", what="a report", timeout_s=wait_s) from None


def _columns(request: PullWrite) -> tuple[U64, U64, U64]:
    """Lengths of the objects; addresses and sizes of the pieces, empty ones left out. Raises InvalidParams, TooLarge."""
    count = count_of(request.item.lengths, 8, "pull.item.lengths")
    pieces = count_of(request.sizes, 8, "pull.sizes")
    if not 0 < count <= BLOCKS_MAX:
        raise InvalidParams(field="pull.item.lengths", value=count, allowed=f"1 to {BLOCKS_MAX} objects")
    if pieces > PIECES_MAX or len(request.addresses) != len(request.sizes):
        allowed = f"columns of equal length, {PIECES_MAX} pieces at most"
        raise InvalidParams(field="pull.sizes", value=f"{pieces} pieces", allowed=allowed)
    lengths, addresses, sizes = (
        u64s(request.item.lengths),
        u64s(request.addresses),
        u64s(request.sizes),
    )
    total = sum(lengths.tolist())
    if total > PAYLOAD_BYTES:
        raise TooLarge(what="the payload of one pull", size_bytes=total, limit_bytes=PAYLOAD_BYTES)
    if sum(sizes.tolist()) != total:
        raise InvalidParams(
            field="pull.sizes", value=f"{sizes.sum()} bytes", allowed=f"{total} bytes together"
        )
    if (addresses > _ADDRESS_MAX).any() or not 0 < request.guard_address < 1 << 63:
        raise InvalidParams(field="pull.addresses", value="no address", allowed="1 to 2**63 - 1")
    filled = sizes > 0
    return lengths, addresses[filled], sizes[filled]
