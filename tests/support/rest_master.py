"""A master in a thread of its own with a node on paper, and its REST application with or without tokens."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from fastapi import FastAPI
from fastapi.testclient import TestClient

from moonpool.master.rest.app import make_app
from moonpool.master.rest.gateway import Gateway
from moonpool.master.server import MasterServer
from moonpool.schemas.access import Identity, Role
from moonpool.schemas.config import MasterSettings
from support.report_node import ReportNode

Answer = TypeVar("Answer")

BASE_URL = "http://127.0.0.1"


def real_chain(count: int, seed: str = "prompt") -> list[bytes]:
    """Hashes as engines have them: no byte of theirs is like another's."""
    return [hashlib.sha256(f"{seed} {index}".encode()).digest()[:16] for index in range(count)]


HASHES = real_chain(10)


class FakeTokens:
    """Every role's name is a token of that role; "other" is a reader's of another tenant."""

    def authenticate(self, token: str) -> Identity | None:
        if token == "other":
            return Identity("elsewhere", Role.READER, "other")
        return Identity("default", Role(token), token) if token in list(Role) else None


class RestMaster:
    """Started by `with`. One node, n1, has joined with one chain of 10 blocks."""

    def __init__(self, hashes: list[bytes] = HASHES, settings: MasterSettings | None = None) -> None:
        self._hashes = hashes
        self._settings = settings or MasterSettings(port=0, suspect_after_s=60.0)

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="master")
        self._thread.start()
        self.run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        self.server = MasterServer(self._settings)
        self.address = await self.server.start()
        self.node = ReportNode()
        await self.node.join(self.address, self._hashes)

    async def _stop(self) -> None:
        await self.node.close()
        await self.server.close()

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """The result of something in the master's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def app(self, *, tokens: bool = False) -> FastAPI:
        """A REST application of this master."""
        gateway = Gateway(self.server.parts(), self._loop)
        return make_app(gateway, FakeTokens() if tokens else None)

    def client(self, *, tokens: bool = False) -> TestClient:
        """Asks such an application."""
        return TestClient(self.app(tokens=tokens), BASE_URL, raise_server_exceptions=False)
