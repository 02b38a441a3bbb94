"""A node with no memory behind it: it announces a segment, reports blocks, and records what is pushed to it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import (
    Announce,
    Announced,
    Check,
    Done,
    Drop,
    DropDone,
    Entries,
    Heartbeat,
    Hello,
    InventoryEnd,
    Message,
    Obeyed,
    Op,
    Refused,
    Report,
    decode_from_master,
)
from moonpool.schemas.packed import join_hashes, pack_u16, pack_u32, pack_u64
from moonpool.store_client.rpc.async_connection import AsyncRpcConnection
from support.node_info import node_info

SPEC = KeyspaceSpec(kind=Kind.CHAINED, name="model", shard_bytes=(4096,), hash_bytes=16)
KEYSPACE = SPEC.digest()
CALL_TIMEOUT_S = 30.0


def chain(count: int, seed: int = 0) -> list[bytes]:
    """Hashes of a chain."""
    return [bytes([seed]) * 8 + i.to_bytes(8, "little") for i in range(1, count + 1)]


def entries_of(hashes: list[bytes]) -> Entries:
    """A chain from position 0, committed in slots 0 and up."""
    count = len(hashes)
    return Entries(
        keyspace=KEYSPACE,
        ranks=pack_u16([0] * count),
        positions=pack_u32(range(count)),
        hashes=join_hashes(hashes),
        parents=join_hashes([bytes(16), *hashes[:-1]]) if hashes else b"",
        slots=pack_u32(range(count)),
        generations=pack_u64(range(1, count + 1)),
        lengths=pack_u64([4096] * count),
    )


class ReportNode:
    """One connection to a master. `confirms`: says DropDone for each Drop by itself."""

    def __init__(self, name: str = "n1", *, confirms: bool = True, role: str = "node") -> None:
        self.name = name
        self.role = role
        self.segment = name.encode().ljust(16, b"\0")
        self.pushes: list[Drop | Check] = []
        self._confirms = confirms
        self._streams = itertools.count(1)
        self._confirming: set[asyncio.Task[None]] = set()

    async def connect(self, address: str) -> AsyncRpcConnection:
        """Handshake only."""
        hello = Hello(PROTOCOL_VERSION, role=self.role, client=self.name, host="here")
        self.connection = await AsyncRpcConnection.connect(
            address, hello, decode_from_master, timeout_s=CALL_TIMEOUT_S, on_push=self._pushed
        )
        return self.connection

    async def announce(self, epoch_seen: int = 0) -> Announced:
        """Offers a segment of 1 GiB, which is never touched."""
        info = node_info(
            self.name, segment=self.segment, host="here", rpc_address="127.0.0.1:1", page_bytes=1 << 26
        )
        reply = await self.connection.call(Announce(info, [SPEC], epoch_seen), CALL_TIMEOUT_S)
        assert isinstance(reply, Announced)
        self.epoch = reply.epoch
        return reply

    async def start_stream(self, hashes: list[bytes], obeyed: Sequence[tuple[int, int]] = ()) -> None:
        """A new stream, whose inventory is one chain from position 0."""
        self._stream = next(self._streams)
        self._sequence = itertools.count()
        told: list[Op] = [Obeyed(pack_u64([word for order in obeyed for word in order]))] if obeyed else []
        held: list[Op] = [entries_of(hashes)] if hashes else []
        await self.report([*told, *held, InventoryEnd()])

    async def report(self, ops: list[Op]) -> None:
        """The stream's next message."""
        message = Report(self.segment, self._stream, next(self._sequence), ops)
        reply = await self.connection.call(message, CALL_TIMEOUT_S)
        assert isinstance(reply, (Done, Refused))  # taken, whether or not the index has use for all of it

    async def heartbeat(self) -> Announced:
        """Says that it lives, with all its memory free."""
        reply = await self.connection.call(Heartbeat(self.segment, self.epoch, 1 << 30), CALL_TIMEOUT_S)
        assert isinstance(reply, Announced)
        return reply

    async def join(self, address: str, hashes: list[bytes]) -> None:
        """All of the above."""
        await self.connect(address)
        await self.announce()
        await self.start_stream(hashes)
        await self.heartbeat()

    async def confirm(self, drop: Drop) -> None:
        """DropDone."""
        await self.report([DropDone(drop.drop_id)])

    async def close(self) -> None:
        """Ends the connection."""
        await asyncio.gather(*self._confirming)
        await self.connection.close()

    def _pushed(self, message: Message) -> None:
        if isinstance(message, Announced):
            if not message.heard_first:  # another node waits until the master has heard that we know
                knows = Heartbeat(self.segment, self.epoch, 1 << 30)
                self.connection.ask(knows, lambda reply: None)
            return
        assert isinstance(message, (Drop, Check))
        self.pushes.append(message)
        if self._confirms and isinstance(message, Drop):
            task = asyncio.get_running_loop().create_task(self.confirm(message))
            self._confirming.add(task)
            task.add_done_callback(self._confirming.discard)
