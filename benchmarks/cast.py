"""Who takes part: servers and workers of one place, started together and ended together."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from moonpool.benchmarks.arena import Arena
from moonpool.benchmarks.opponents import (
    MOONCAKE_ENVIRONMENT,
    MOONCAKE_POOLS,
    MooncakeMaster,
    RedisServer,
    mooncake_is_here,
    redis_is_here,
)
from moonpool.benchmarks.servers import MasterServer, NodeServer
from moonpool.benchmarks.workers import Worker

PLACES = ("host", "tcp")
SUMS = "moonpool-sums"
"""Moonpool with checksums: its nodes compute them, its reads compare them."""

WARM_BYTES = 1 << 20


class Cast:
    """Starts what a group needs. `pool_bytes`: of each store; `arena_bytes`: a half of the arena."""

    def __init__(self, stack: ExitStack, pool_bytes: int, arena_bytes: int) -> None:
        self._stack = stack
        self._pool_bytes = pool_bytes
        self._run_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="moonpool-bench-"))
        fd = os.memfd_create("moonpool-bench")
        stack.callback(os.close, fd)
        self._arena = Arena.make(fd, arena_bytes)

    def members(
        self, place: str, *, redis: bool = True, limit: bool = True, sums: bool = True
    ) -> list[Worker]:
        """The workers of one place: host (the fastest way on one host) or tcp (as if on another)."""
        found = [self.moonpool("moonpool", place)]
        if sums:
            found.append(self.moonpool(SUMS, place))
        if mooncake_is_here():
            found += self.mooncake(place)
        if redis and place == "tcp" and redis_is_here():
            server = self._stack.enter_context(RedisServer())
            found.append(self._worker("redis", "redis", {"port": server.port}))
        if limit:
            kind = "memcpy" if place == "host" else "socket"
            found.append(self._worker("limit", kind, {"size_bytes": self._arena.half_bytes}))
        return found

    def pairs(self) -> list[tuple[Worker, Worker]]:
        """Two clients of each store on one host: of Mooncake the second one is in another process than the memory."""
        master = self._moonpool_servers("host", checksums=False)
        found = [(self._client("moonpool", "host", master), self._client("moonpool", "host", master))]
        if mooncake_is_here():
            other = self._stack.enter_context(MooncakeMaster())
            owner = self._mooncake("mooncake", other.address, self._pool_bytes)
            found.append((owner, self._mooncake("mooncake", other.address, 0)))
        return found

    def with_master(self, name: str) -> tuple[MasterServer | MooncakeMaster, Worker]:
        """A master to be killed, and a client on one host whose objects live on."""
        if name == "moonpool":
            master = self._stack.enter_context(MasterServer())
            self._stack.enter_context(NodeServer(master.address, self._pool_bytes, self._run_dir))
            return master, self._client(name, "host", master.address)
        other = self._stack.enter_context(MooncakeMaster())
        return other, self._mooncake(name, other.address, self._pool_bytes)

    def moonpool(self, name: str, place: str) -> Worker:
        """A pool of our own and a client of it."""
        return self._client(name, place, self._moonpool_servers(place, checksums=name == SUMS))

    def _moonpool_servers(self, place: str, *, checksums: bool) -> str:
        master = self._stack.enter_context(MasterServer(near=place == "host"))
        self._stack.enter_context(
            NodeServer(master.address, self._pool_bytes, self._run_dir, checksums=checksums)
        )
        return master.address

    def _client(self, name: str, place: str, master: str) -> Worker:
        transport = "shm" if place == "host" else "tcp"
        options: dict[str, object] = {
            "master": master,
            "run_dir": self._run_dir,
            "transport": transport,
            "verify": name == SUMS,
        }
        return self._worker(name, "moonpool", options)

    def mooncake(self, place: str) -> list[Worker]:
        """On one host the client owns the memory; over tcp another process does, with and without pooled sockets."""
        if place == "host":
            master = self._stack.enter_context(MooncakeMaster())
            return [self._mooncake("mooncake", master.address, self._pool_bytes)]
        found = []
        for name in MOONCAKE_POOLS:
            master = self._stack.enter_context(MooncakeMaster())
            self._mooncake(name, master.address, self._pool_bytes)
            found.append(self._mooncake(name, master.address, 0))
        return found

    def _mooncake(self, name: str, master: str, segment_bytes: int) -> Worker:
        worker = Worker(
            name,
            "mooncake",
            {"master": master, "segment_bytes": segment_bytes},
            self._arena,
            {**MOONCAKE_ENVIRONMENT, **MOONCAKE_POOLS[name]},
        )
        worker = self._stack.enter_context(worker)
        if segment_bytes:  # touch its memory, which Mooncake leaves to the first puts
            count = segment_bytes * 8 // 10 // WARM_BYTES
            worker.ask("fill", prefix="warm-", count=count, size=WARM_BYTES, batch=8)
            worker.ask("remove", prefix="warm-", count=count)
        return worker

    def _worker(self, name: str, kind: str, options: dict[str, object]) -> Worker:
        return self._stack.enter_context(Worker(name, kind, options, self._arena))


@contextmanager
def cast(pool_bytes: int, arena_bytes: int) -> Iterator[Cast]:
    """A cast that leaves with the block."""
    with ExitStack() as stack:
        yield Cast(stack, pool_bytes, arena_bytes)
