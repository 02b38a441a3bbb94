"""A master's place in a cluster of several: the store that all of them share, and its membership from start to end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from urllib.parse import urlsplit

from moonpool.master.membership.cluster import agree
from moonpool.master.membership.member import ClusterMember, MemberSettings, ShardHost
from moonpool.master.store.base import MetadataStore
from moonpool.master.store.opening import open_store
from moonpool.schemas.config import MasterSettings
from moonpool.store_client.rpc.access import is_loopback

log = logging.getLogger(__name__)

LEAVE_TIMEOUT_S = 3.0
"""What is not given away by then falls to the others when the lease ends."""


class Seat:
    """Made before the master, which needs to know how many shards there are; joined when it listens."""

    def __init__(self, store: MetadataStore, shards: int, settings: MasterSettings) -> None:
        self.shards = shards
        self.store = store
        self._settings = settings
        self._member: ClusterMember | None = None
        self._task: asyncio.Task[None] | None = None

    def join(self, address: str, host: ShardHost, http: str = "") -> Callable[[], bool]:
        """Membership begins. `http`: of the REST interface. Returns what says whether the master may answer."""
        settings = MemberSettings(address, self._settings.lease_s, self._settings.store_timeout_s, http)
        self._member = ClusterMember(self.store, self.shards, settings, host)
        self._task = asyncio.create_task(self._member.run())
        return self._member.serving

    async def leave(self) -> None:
        """Membership ends: shards first, then the lease, then the connection to the store. Idempotent."""
        if self._member is not None and self._task is not None:
            await self._member.leave(LEAVE_TIMEOUT_S)
            self._task.cancel()
            await asyncio.wait({self._task})
            self._member = self._task = None
        await self.store.close()


async def take_seat(settings: MasterSettings) -> Seat | None:
    """None where the settings name no store that masters can share. Raises ConfigError where the cluster was made with
    other settings, and what opening the store raises."""
    if not settings.store.startswith("etcd:"):
        return None
    store = open_store(settings)
    try:
        shards = await agree(store, settings.shards, settings.store_timeout_s)
    except BaseException:
        await store.close()
        raise
    log.info("cluster %s in %s with %d shards", settings.cluster, settings.store, shards)
    return Seat(store, shards, settings)


def advertised(setting: str, listening: str) -> str:
    """The address that others are told: a host alone gets the port that is listened on."""
    port = listening.rpartition(":")[2]
    if not setting:
        return listening
    has_port = setting.rpartition(":")[2].isdigit() and (setting.count(":") == 1 or setting.startswith("["))
    return setting if has_port and not setting.endswith("]") else f"{setting}:{port}"


def advertised_page(address: str, page: str) -> str:
    """The REST address that others are told, of a master that they reach at `address` and whose own `page` is; empty
    where that is on loopback, and they aren't."""
    if not page:
        return ""
    listening, told = urlsplit(page), urlsplit(f"//{address}")
    host, page_host = told.hostname or "", listening.hostname or ""
    if is_loopback(page_host):
        if not is_loopback(host):
            return ""
        host = page_host
    name = f"[{host}]" if ":" in host else host
    return f"{listening.scheme}://{name}:{listening.port}"
