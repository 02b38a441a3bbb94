"""A bad wire: a proxy before one server that delays what passes, sends requests twice, and loses answers.

`python -m chaos.wire LISTEN UPSTREAM TROUBLE frames|bytes`. TROUBLE is a file that says what is wrong at the moment, as
JSON; it may change at any time. `bytes` knows delays only. Duplicates are those of clients, as of one that asks again on
hearing nothing: their second answer goes nowhere. A lost answer ends its connection, after the server has done what
was asked: that is what a sender of any kind can see of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from moonpool.schemas.framing import PREFIX, PUSH_ID

LOOK_EVERY_S = 0.05
CHUNK_BYTES = 1 << 16
TWIN = 1 << 31
"""Set in the request id of a duplicate; senders count from 1."""


class Trouble(msgspec.Struct, frozen=True):
    """`delay_s`: of each piece, at most. The others: chance of each request."""

    delay_s: float = 0.0
    duplicate: float = 0.0
    lose: float = 0.0


class Wire:
    """All connections to one server."""

    def __init__(self, trouble: Path) -> None:
        self._file = trouble
        self.trouble = Trouble()

    async def look(self) -> None:
        """Follows the file."""
        while True:
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                self.trouble = msgspec.json.decode(self._file.read_bytes(), type=Trouble)
            await asyncio.sleep(LOOK_EVERY_S)

    async def delay(self) -> None:
        """A piece is on its way."""
        if self.trouble.delay_s:
            await asyncio.sleep(random.uniform(0.2, 1.0) * self.trouble.delay_s)


class Connection:
    """One, in both directions, until either side ends it."""

    def __init__(self, wire: Wire, near: Ends, far: Ends) -> None:
        self._wire, self._near, self._far = wire, near, far
        self._lost: set[int] = set()

    async def run(self, *, frames: bool) -> None:
        ways = [self._requests(), self._answers()] if frames else [self._bytes(self._near, self._far)]
        ways += [] if frames else [self._bytes(self._far, self._near)]
        tasks = [asyncio.ensure_future(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _bytes(self, source: Ends, target: Ends) -> None:
        while data := await source.reader.read(CHUNK_BYTES):
            await self._wire.delay()
            await target.send(data)

    async def _requests(self) -> None:
        duplicable = False
        first = True
        async for number, frame in frames_of(self._near.reader):
            await self._wire.delay()
            trouble = self._wire.trouble
            if first:  # the handshake, which says who speaks
                first, duplicable = False, b"client" in frame
            elif number != PUSH_ID:
                if random.random() < trouble.lose:
                    self._lost.add(number)
                if duplicable and random.random() < trouble.duplicate:
                    await self._far.send(PREFIX.pack(len(frame) - 4, number | TWIN) + frame[PREFIX.size :])
            await self._far.send(frame)

    async def _answers(self) -> None:
        async for number, frame in frames_of(self._far.reader):
            await self._wire.delay()
            if number in self._lost:
                return
            if not number & TWIN:
                await self._near.send(frame)


class Ends:
    """One side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self._writer = reader, writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


async def frames_of(reader: asyncio.StreamReader) -> AsyncIterator[tuple[int, bytes]]:
    """(request id, whole frame) of each."""
    with contextlib.suppress(asyncio.IncompleteReadError, OSError):
        while True:
            prefix = await reader.readexactly(PREFIX.size)
            length, number = PREFIX.unpack(prefix)
            yield number, prefix + await reader.readexactly(length - 4)


async def serve(listen: str, upstream: str, trouble: Path, *, frames: bool) -> None:
    """Until cancelled."""
    wire = Wire(trouble)
    host, _, port = upstream.rpartition(":")

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        near = Ends(reader, writer)
        try:
            far = Ends(*await asyncio.open_connection(host, int(port)))
        except OSError:
            await near.close()
            return
        try:
            await Connection(wire, near, far).run(frames=frames)
        finally:
            await asyncio.gather(near.close(), far.close())

    where, _, at = listen.rpartition(":")
    server = await asyncio.start_server(connected, where, int(at))
    print(f"listening on {listen}", flush=True)
    async with server:
        await asyncio.gather(server.serve_forever(), wire.look())


def write_trouble(path: Path, **trouble: float) -> None:
    """What is wrong from now on; nothing: all is well."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(trouble))
    new.replace(path)


if __name__ == "__main__":
    where_, upstream_, trouble_, kind_ = sys.argv[1:]
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(where_, upstream_, Path(trouble_), frames=kind_ == "frames"))
