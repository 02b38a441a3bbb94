"""A member's shards in the core, and the nodes that are told of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from moonpool.master.core import MasterCore
from moonpool.master.handler import MasterHandler
from moonpool.master.hard_requests import HardRequests
from moonpool.master.membership.shard_state import ShardLife
from moonpool.master.membership.view import ClusterView
from moonpool.schemas.errors import MoonpoolError

log = logging.getLogger(__name__)

RETRY_S = 1.0


class CoreHost:
    """A ShardHost."""

    def __init__(self, core: MasterCore, handler: MasterHandler, hard: HardRequests) -> None:
        self._hard = hard
        self._core = core
        self._handler = handler
        self._telling = False

    def own(self, shard: int, epoch: int) -> None:
        """See ShardHost."""
        self._core.shards.own(shard, epoch)
        self._tell()

    async def load(self, shard: int, epoch: int) -> None:
        """See ShardHost."""
        life = self._core.shards.life(shard)
        while self._is_loading(shard, life):  # however late the lease is meanwhile: it may be renewed
            try:
                await self._hard.recover(shard)
            except MoonpoolError as error:  # nothing of it changes before this has worked
                log.warning("shard %d: its hard state can't be read: %s", shard, error)
                await asyncio.sleep(RETRY_S)
                continue
            if self._is_loading(
                shard, life
            ):  # not the same shard taken again, whose hard state is being read
                self._core.shards.loaded(shard)
                self._hard.logs_own(shard)
                self._tell()
            return

    def _is_loading(self, shard: int, life: ShardLife | None) -> bool:
        return life is not None and self._core.shards.life(shard) is life and not life.leaving

    async def leave(self, shard: int, epoch: int) -> None:
        """See ShardHost."""
        if (shard, epoch) in self._core.shards.claims:  # it answers until its next owner can know as much
            await self._hard.flush([shard])
        if shard in self._core.shards:
            self._core.shards.leave(shard)
            self._tell()

    def disown(self, shards: Iterable[int]) -> None:
        """See ShardHost."""
        for shard in shards:
            self._hard.disown(shard)
        self._tell()

    def see(self, view: ClusterView) -> None:
        """See ShardHost."""
        self._core.see(view.addresses, view.owners_by_address(), view.revision)
        self._handler.see(view.members())
        self._tell()

    def _tell(self) -> None:
        """Once for all that changes in one turn of the event loop."""
        if not self._telling:
            self._telling = True
            asyncio.get_running_loop().call_soon(self._tell_now)

    def _tell_now(self) -> None:
        self._telling = False
        self._handler.tell_nodes()
