"""Making room: watermarks, Need calls to the master, pages emptied, and begins that wait for a moment."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from moonpool.schemas.errors import MoonpoolError
from moonpool.schemas.messages import Begin, Granted, Victims
from moonpool.store_client.node.core import NodeCore, Shortage

logger = logging.getLogger(__name__)

NeedCall = Callable[[int], Awaitable[Victims | None]]
"""Asks the master for so many bytes back; None where it can't be asked."""

POLL_S = 0.05
EMPTY_HANDED_PAUSE_S = 1.0
RETRY_PAUSE_S = 0.01
NEED_BYTES_MAX = 1 << 30
MOVE_BYTES = 4 << 20
"""Bytes moved in one hold of the node's lock."""


class SpaceKeeper:
    """Keeps the used share below the watermarks, and finds room at once where a grant found none."""

    def __init__(
        self,
        core: NodeCore,
        need: NeedCall,
        *,
        begin_wait_s: float,
        high_watermark: float,
        low_watermark: float,
    ) -> None:
        self._core = core
        self._need = need
        self._begin_wait_s = begin_wait_s
        capacity_bytes = core.head.layout.capacity_bytes
        self.free_bytes_low = int(capacity_bytes * (1 - high_watermark))
        self._free_bytes_wanted = int(capacity_bytes * (1 - min(low_watermark, high_watermark)))
        self._round: asyncio.Task[bool] | None = None
        self._low = asyncio.Event()
        self.counters = dict.fromkeys(("needs", "evicted_bytes", "pages_emptied", "begins_waited"), 0)

    async def begin(self, session: int, request: Begin) -> Granted:
        """A Begin that may wait `begin_wait_s` for space. What it can't get is NO_SPACE."""
        deadline_s = time.monotonic() + self._begin_wait_s
        self.counters["begins_waited"] += 1
        while True:
            left_s = deadline_s - time.monotonic()
            with self._core.lock:
                answer = self._core.begin(session, request, partial=left_s <= 0)
            if isinstance(answer, Granted):
                return answer
            if self._round is None or self._round.done():
                self._round = asyncio.create_task(self._make_room(answer))
            # Not cancelled at the deadline: others wait for the same round.
            await asyncio.wait({self._round}, timeout=left_s)
            if self._round.done() and not self._round.result():
                await asyncio.sleep(min(RETRY_PAUSE_S, max(0.0, deadline_s - time.monotonic())))

    def look(self) -> None:
        """Slots were granted: where they were too many, eviction begins at once, while their writer fills them. Event
        loop only."""
        if self.is_low:
            self._low.set()

    @property
    def is_low(self) -> bool:
        """Whether less is free than the high watermark leaves."""
        return self._core.slots.allocator.free_bytes < self.free_bytes_low

    async def run(self) -> None:
        """Evicts between the watermarks, until cancelled."""
        while True:
            self._low.clear()
            if self.is_low:
                free_bytes = self._core.slots.allocator.free_bytes
                if not await self._evict(self._free_bytes_wanted - free_bytes):
                    await asyncio.sleep(EMPTY_HANDED_PAUSE_S)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._low.wait(), POLL_S)

    async def close(self) -> None:
        """Ends a round that is under way."""
        if self._round is not None:
            self._round.cancel()
            await asyncio.wait({self._round})

    async def _make_room(self, shortage: Shortage) -> bool:
        """One round: empties a page for each slot size that lacks slots, or else evicts. False: neither helped.

        Free slots of one size that add up to a page always suffice to empty one, so asking the master for a page's
        bytes at a time comes to an end whatever sizes its victims have.
        """
        emptied = [await self._empty_page(slot_bytes) for slot_bytes in shortage.slots]
        if any(emptied):
            return True
        want_bytes = max(shortage.size_bytes, self._core.head.layout.page_bytes)
        return await self._evict(want_bytes) > 0

    async def _evict(self, want_bytes: int) -> int:
        """Bytes freed. The master's victims left its index before it named them."""
        self.counters["needs"] += 1
        victims = await self._need(min(want_bytes, NEED_BYTES_MAX))
        if victims is None:
            return 0
        try:
            with self._core.lock:
                freed_bytes = self._core.drops.exact(victims.drops)
        except MoonpoolError as error:
            logger.error("the master's victims can't be read: %s", error)
            return 0
        self.counters["evicted_bytes"] += freed_bytes
        return freed_bytes

    async def _empty_page(self, slot_bytes: int) -> bool:
        """Whether some page of another slot size is wholly free now."""
        with self._core.lock:
            pages = self._core.slots.allocator.pool_pages
            if not self._core.moves.choose(slot_bytes):
                return False
        while await asyncio.to_thread(self._move_some):
            pass
        emptied = self._core.slots.allocator.pool_pages > pages
        self.counters["pages_emptied"] += emptied
        return emptied

    def _move_some(self) -> bool:
        with self._core.lock:
            return self._core.moves.step(MOVE_BYTES)
