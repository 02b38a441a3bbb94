"""Setup, close, health, and the memory that a process contributes."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.config_load import load
from moonpool.schemas.errors import MoonpoolError, Unreachable
from moonpool.schemas.mooncake_config import parse_master_address
from moonpool.store_client.mooncake.calls import Calls, integers, texts
from moonpool.store_client.mooncake.codes import INTERNAL_ERROR, INVALID_PARAMS, OK
from moonpool.store_client.mooncake.handles import MooncakeHostMemAllocator
from moonpool.store_client.mooncake.pool import Pool

log = logging.getLogger(__name__)

SETUP_TIMEOUT_S = 10.0
"""A master that doesn't answer for so long fails the setup: engine and master are often started together."""

POLL_S = 0.1
DICT_SEGMENT_BYTES = 16 << 20
DEFAULT_MASTER = "127.0.0.1:50051"
NOT_INITIALISED = 1
MASTER_UNREACHABLE = 2


class LifecycleCalls(Calls):
    """One store is one client: any number of threads may use it, a forked child may not."""

    def __init__(self) -> None:
        self._memory = MooncakeHostMemAllocator()

    def setup(self, *args: Any, **kwargs: Any) -> int:
        """setup(local_hostname, metadata_server, global_segment_size, local_buffer_size, protocol, rdma_devices,
        master_server_addr, engine=None, enable_ssd_offload=False, ssd_offload_path="", tenant_id="default",
        enable_client_http_server=False, client_http_port=9300), or setup(config: dict).

        0; -600 for arguments that can't be; -1 where master or segment don't come up. A global_segment_size over 0
        is contributed by a node in a child process.
        """
        table = args[0] if len(args) == 1 and isinstance(args[0], Mapping) and not kwargs else None
        if table is None:
            return self._setup_with(*args, **kwargs)
        if not {"local_hostname", "metadata_server"} <= table.keys():
            log.error("setup: local_hostname and metadata_server are required, got %s", sorted(table))
            return INVALID_PARAMS
        try:
            segment_size = int(str(table.get("global_segment_size", DICT_SEGMENT_BYTES)))
        except ValueError:
            log.error("setup: global_segment_size is %r; allowed: bytes", table["global_segment_size"])
            return INVALID_PARAMS
        return self._open(
            str(table["local_hostname"]),
            segment_size,
            # The second name is the one in configuration files: LMCache hands it on as it is.
            str(table.get("master_server_addr") or table.get("master_server_address") or DEFAULT_MASTER),
            str(table.get("tenant_id", "default")),
        )

    def _setup_with(
        self,
        local_hostname: str,
        metadata_server: str,
        global_segment_size: int,
        local_buffer_size: int,
        protocol: str,
        rdma_devices: str,
        master_server_addr: str,
        engine: object = None,
        enable_ssd_offload: bool = False,
        ssd_offload_path: str = "",
        tenant_id: str = "default",
        enable_client_http_server: bool = False,
        client_http_port: int = 9300,
    ) -> int:
        (segment_size, _) = integers((global_segment_size, local_buffer_size))
        texts((local_hostname, metadata_server, protocol, rdma_devices, master_server_addr, tenant_id))
        return self._open(local_hostname, segment_size, master_server_addr, tenant_id)

    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """Attaches to the pool of the master at `server_address`, contributing nothing: the host's node, where there
        is one, is reached through shared memory. 0, or a code."""
        integers((mem_pool_size, local_buffer_size))
        return self._open("localhost", 0, server_address, "default")

    def _open(self, hostname: str, segment_size: int, master: str, tenant: str) -> int:
        self.close()
        if segment_size < 0:
            return INVALID_PARAMS
        try:
            address = parse_master_address(master, "setup")
            flags = {"master": address, "tenant": tenant or "default"}
            settings = load(ClientSettings, environment=os.environ, flags=flags).settings
            # The segment is a node of its own here, which can be waited for.
            pool = Pool(settings.model_copy(update={"segment_size": 0}), hostname)
        except MoonpoolError as error:
            log.error("setup: %s", error)
            return INVALID_PARAMS
        if not _answers(pool) or (segment_size and not pool.segments.mount(pool.client, segment_size)):
            pool.close()
            return INTERNAL_ERROR
        self._pool = pool
        return OK

    def init_all(self, protocol: str, device_name: str, mount_segment_size: int = 16 << 20) -> int:
        """setup with Mooncake's defaults for everything else."""
        return self._setup_with(
            "localhost", "P2PHANDSHAKE", mount_segment_size, 0, protocol, device_name, DEFAULT_MASTER
        )

    def close(self) -> int:
        """Ends what setup began; the segment that was contributed goes, with its objects. Always 0."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()
        return OK

    def health_check(self) -> int:
        """0 where the master answers now, 1 before setup and after close, 2 where it doesn't answer."""
        if self._pool is None:
            return NOT_INITIALISED
        return OK if self._pool.healthy() else MASTER_UNREACHABLE

    def get_hostname(self) -> str:
        """Address of the segment that setup contributed, else the host name it was given; "" without setup."""
        if self._pool is None:
            return ""
        return self._pool.segments.address() or self._pool.hostname

    # ------------------------------------------------------------ segments

    def mount_segment(
        self, path: str, size: int, offset: int = 0, protocol: str = "tcp", location: str = ""
    ) -> dict[str, Any]:
        """Contributes `size` bytes in the folder of `path`, in a file of the pool's own: {"ret", "segment_ids"}."""
        if not Path(path).exists():
            return {"ret": INTERNAL_ERROR, "segment_ids": []}
        return self._mount(size, Path(path).parent)

    def allocate_and_mount_segment(
        self, size: int, protocol: str = "tcp", location: str = ""
    ) -> dict[str, Any]:
        """Contributes `size` bytes: {"ret", "segment_ids", "allocated_size"}."""
        outcome = self._mount(size, None)
        return outcome | {"allocated_size": size if outcome["ret"] == OK else 0}

    def _mount(self, size: int, folder: Path | None) -> dict[str, Any]:
        segment = ""
        if self._pool is not None and size > 0:
            segment = self._pool.segments.mount(self._pool.client, size, folder)
        return {"ret": OK if segment else INTERNAL_ERROR, "segment_ids": [segment] if segment else []}

    def unmount_segment(self, segment_ids: Sequence[str], grace_period_seconds: int = 0) -> int:
        """Takes back what mount_segment contributed, after the grace period; its objects go. 0, or -1 where one isn't
        mounted by this store."""
        if self._pool is None:
            return INTERNAL_ERROR
        time.sleep(max(0, grace_period_seconds))
        ended = [self._pool.segments.unmount(segment) for segment in texts(segment_ids)]
        return OK if all(ended) else INTERNAL_ERROR

    def unmount_and_free_segment(self, segment_ids: Sequence[str], grace_period_seconds: int = 0) -> int:
        """Takes back what allocate_and_mount_segment contributed."""
        return self.unmount_segment(segment_ids, grace_period_seconds)

    def unmount_local_disk_segment(self, grace_period_seconds: int = 0) -> int:
        """Always 0: there is none."""
        return OK

    def alloc_from_mem_pool(self, size: int) -> int:
        """Address of host memory that lives as long as this store; 0 where there is none."""
        return self._memory.alloc(size)


def _answers(pool: Pool) -> bool:
    """Whether the master does, within SETUP_TIMEOUT_S. One that refuses us won't do otherwise a moment later."""
    limit_s = time.monotonic() + SETUP_TIMEOUT_S
    while True:
        try:
            pool.client.status()
            return True
        except Unreachable as error:
            if time.monotonic() > limit_s:
                log.error("setup: no master answers at %s: %s", pool.settings.master, error)
                return False
        except MoonpoolError as error:
            log.error("setup: the master at %s: %s", pool.settings.master, error)
            return False
        time.sleep(POLL_S)
