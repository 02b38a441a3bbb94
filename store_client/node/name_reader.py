"""Keeps a node's filter of names (names.py) for as long as some master makes use of it."""

from __future__ import annotations

import asyncio

from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.names import Names

PAUSE_S = 0.002
"""Between pieces of a ms, in which writers have the lock."""


class NameReader:
    """Of one node. Event loop only."""

    def __init__(self, core: NodeCore, names: Names) -> None:
        self._core = core
        self._names = names
        self._wanted: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    def want(self, master: str, yes: bool) -> None:
        """Whether the master of that address makes use of it; told with each of its heartbeats."""
        if yes:
            self._wanted.add(master)
        else:
            self._wanted.discard(master)
        with self._core.lock:
            if self._wanted:
                self._names.start()
            else:
                self._names.stop()
        if self._timer is None and self._names.behind:
            self._timer = asyncio.get_running_loop().call_later(PAUSE_S, self._work)

    def _work(self) -> None:
        with self._core.lock:
            left = self._names.work()
        self._timer = asyncio.get_running_loop().call_later(PAUSE_S, self._work) if left else None

    def close(self) -> None:
        """Nothing is read any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
