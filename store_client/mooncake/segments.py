"""Memory that this process contributes: one node in a child process for each segment."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from pathlib import Path

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import Unreachable
from moonpool.schemas.messages import NodeInfo, NodeState
from moonpool.store_client.children import start_timeout_s
from moonpool.store_client.client import StoreClient
from moonpool.store_client.own_segment import OwnSegment

log = logging.getLogger(__name__)

POLL_S = 0.02
_numbers = itertools.count(1)


class Segments:
    """Children by segment id. Thread-safe."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._children: dict[str, tuple[NodeInfo, OwnSegment]] = {}

    def mount(self, client: StoreClient, size_bytes: int, folder: Path | None = None) -> str:
        """Contributes so much, in a file of `folder` (default: the node's). Returns the segment's id once it serves;
        empty where it doesn't within `start_timeout_s`, or ends."""
        name = f"mooncake-{os.getpid()}-{next(_numbers)}"
        flags = {
            "--master": self._settings.master,
            "--size": str(size_bytes),
            "--run-dir": self._settings.run_dir,
            "--name": name,
            "--log-level": "WARNING",  # its lines appear among those of the program
        }
        if folder is not None:
            flags["--segment-dir"] = str(folder)
        child = OwnSegment([word for flag in flags.items() for word in flag], self._settings)
        info = _wait_serving(client, name, child, start_timeout_s(size_bytes))
        if info is None:
            child.close()
            return ""
        with self._lock:
            self._children[info.segment.hex()] = info, child
        return info.segment.hex()

    def unmount(self, segment: str) -> bool:
        """Ends one; its objects go with it. False where it isn't one of these."""
        with self._lock:
            known = self._children.pop(segment, None)
        if known is None:
            return False
        known[1].close()
        return True

    def address(self) -> str:
        """Of the first segment's node; empty where there is none."""
        with self._lock:
            return next((info.rpc_address for info, _ in self._children.values()), "")

    def close(self) -> None:
        """Ends all."""
        with self._lock:
            children, self._children = list(self._children.values()), {}
        for _, child in children:
            child.close()


def _wait_serving(client: StoreClient, name: str, child: OwnSegment, timeout_s: float) -> NodeInfo | None:
    limit_s = time.monotonic() + timeout_s
    while time.monotonic() < limit_s and child.running:
        try:
            nodes = client.cluster_map().nodes
        except Unreachable:
            nodes = []
        for entry in nodes:
            if entry.info.node == name and entry.state == NodeState.LIVE:
                return entry.info
        time.sleep(POLL_S)
    log.error("the segment %s does not serve", name)
    return None
