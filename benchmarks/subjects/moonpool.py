"""Moonpool, through its own client."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from moonpool.benchmarks.subjects.base import Pieces
from moonpool.schemas.config import ClientSettings
from moonpool.schemas.messages import NodeState, Status
from moonpool.store_client import StoreClient

TIMEOUT_S = 60.0


class MoonpoolSubject:
    """`transport`: shm or tcp. `verify`: reads compare checksums."""

    def __init__(self, *, master: str, run_dir: str, transport: Any, verify: bool) -> None:
        settings = ClientSettings(
            master=master, run_dir=run_dir, transport=transport, verify_checksums=verify, timeout_s=TIMEOUT_S
        )
        self._client = StoreClient(settings)
        end_s = time.monotonic() + TIMEOUT_S
        while not any(node.state is NodeState.LIVE for node in self._client.cluster_map().nodes):
            if time.monotonic() > end_s:
                raise RuntimeError("the node is not live")
            time.sleep(0.02)
        self._client.prepare()

    def register(self, address: int, size_bytes: int) -> None:
        """See Subject."""
        self._client.register_buffer((address, size_bytes))

    def put(self, keys: Sequence[str], pieces: Pieces) -> int:
        """See Subject."""
        statuses = self._client.batch_put_from_multi_buffers(keys, *pieces)
        return statuses.count(Status.OK)

    def get(self, keys: Sequence[str], pieces: Pieces) -> int:
        """See Subject."""
        return sum(
            got.status == Status.OK for got in self._client.batch_get_into_multi_buffers(keys, *pieces)
        )

    def exist(self, keys: Sequence[str]) -> int:
        """See Subject."""
        return sum(self._client.batch_is_exist(keys))

    def remove(self, keys: Sequence[str]) -> None:
        """See Subject."""
        self._client.batch_remove(keys, force=True)

    def close(self) -> None:
        """See Subject."""
        self._client.close()
