"""KV events over ZMQ, in the form in which vLLM publishes its own: routers read both alike.

PUB      frames topic, sequence number (8 bytes, big-endian), MessagePack of [time, events]
ROUTER   a reader that missed numbers sends the first one as 8 bytes and gets all that are still kept, in the same
         frames, then one with number -1; if those are not enough it sends "resync", and everything is said again
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from moonpool.master.core import MasterCore
from moonpool.master.kv_curve import CurveGuard
from moonpool.master.kv_feed import Batch, KvFeed
from moonpool.schemas.clock import Clock
from moonpool.schemas.errors import RpcFailed

log = logging.getLogger(__name__)

QUEUE_MAX = 1024
KEPT_MAX = 10_000
KEPT_BYTES_MAX = 64 << 20
SEND_HIGH_WATER = 10_000
POLL_MS = 100
TICK_S = 0.2
END = (-1).to_bytes(8, "big", signed=True)
RESYNC = b"resync"
CLOSE_WAIT_S = 5.0

Frames = tuple[bytes, bytes, bytes]


class KvPublisher:
    """A thread with both sockets, from `start` to `close`. Numbers go on where batches had to be dropped, so that
    readers notice."""

    def __init__(
        self,
        host: str,
        port: int,
        replay_port: int,
        on_resync: Callable[[], None],
        guard: CurveGuard | None = None,
    ) -> None:
        """`on_resync` is called in the publisher's thread. `guard`: of both ports; None: anybody may read."""
        self._host = f"[{host}]" if ":" in host else host
        self._ports = port, replay_port
        self._on_resync = on_resync
        self._guard = guard
        self._queue: queue.Queue[tuple[int, Batch]] = queue.Queue(QUEUE_MAX)
        self._number = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.dropped = 0

    def start(self) -> None:
        """Binds both ports. Raises RpcFailed where one can't be had."""
        import zmq

        self._context = zmq.Context()
        sockets: list[Any] = []
        try:
            if self._guard is not None:
                self._guard.start(self._context)
            for kind, port in zip((zmq.PUB, zmq.ROUTER), self._ports, strict=True):
                sock = self._context.socket(kind)
                sockets.append(sock)
                sock.setsockopt(zmq.LINGER, 0)
                sock.setsockopt(zmq.SNDHWM, SEND_HIGH_WATER)
                sock.setsockopt(zmq.MAXMSGSIZE, 1024)  # of what is received
                sock.setsockopt(zmq.IPV6, 1 if ":" in self._host else 0)
                if self._guard is not None:
                    self._guard.secure(sock)
                sock.bind(f"tcp://{self._host}:{port}")
        except zmq.ZMQError as error:
            for sock in sockets:
                sock.close()
            self._end()
            raise RpcFailed(peer=f"{self._host}:{self._ports}", reason=f"cannot listen: {error}") from error
        self._thread = threading.Thread(target=self._run, args=sockets, name="kv-events", daemon=True)
        self._thread.start()

    def publish(self, batches: list[Batch]) -> None:
        """Never waits: what doesn't fit is dropped, and its number with it."""
        for batch in batches:
            try:
                self._queue.put_nowait((self._number, batch))
            except queue.Full:
                self.dropped += 1
            self._number += 1

    def close(self) -> None:
        """What is queued is not sent any more."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(CLOSE_WAIT_S)
            self._end()

    def _end(self) -> None:
        if self._guard is not None:
            self._guard.close()
        self._context.term()

    def _run(self, events: Any, replay: Any) -> None:
        kept: deque[Frames] = deque()
        kept_bytes = 0
        try:
            while not self._stop.is_set():
                try:
                    number, batch = self._queue.get(timeout=POLL_MS / 1000)
                except queue.Empty:
                    pass
                else:
                    payload = msgspec.msgpack.encode((time.time(), batch.events))
                    frames = (batch.topic.encode(), number.to_bytes(8, "big"), payload)
                    events.send_multipart(frames)
                    kept.append(frames)
                    kept_bytes += len(payload)
                    while len(kept) > KEPT_MAX or kept_bytes > KEPT_BYTES_MAX:
                        kept_bytes -= len(kept.popleft()[2])
                while replay.poll(0):
                    self._replay(replay, kept)
        except Exception:
            log.exception("KV events ended")
        finally:
            events.close()
            replay.close()

    def _replay(self, replay: Any, kept: deque[Frames]) -> None:
        frames = replay.recv_multipart()
        if len(frames) != 3 or frames[1]:
            return
        client, _, asked = frames
        if asked == RESYNC:
            self._on_resync()
        elif len(asked) == 8:
            first = int.from_bytes(asked, "big")
            for topic, number, payload in list(kept):
                if int.from_bytes(number, "big") >= first:
                    replay.send_multipart((client, b"", topic, number, payload))
        replay.send_multipart((client, b"", b"", END, b""))


class KvEvents:
    """A core's feed, handed to a publisher a few times a second. To be used in the master's event loop."""

    def __init__(self, core: MasterCore, feed: KvFeed, clock: Clock) -> None:
        self._core = core
        self._feed = feed
        self._clock = clock
        self._publisher: KvPublisher | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, host: str, port: int, guard: CurveGuard | None = None) -> None:
        """Raises RpcFailed where the ports can't be had."""
        loop = asyncio.get_running_loop()

        def resync() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._feed.resync)

        publisher = KvPublisher(host, port, port + 1, resync, guard)
        publisher.start()
        self._publisher = publisher
        self._task = loop.create_task(self._run(publisher))
        guarded = "with CURVE" if guard is not None else "as plain text"
        log.info("KV events at tcp://%s:%d %s, replays at %d", host, port, guarded, port + 1)

    async def _run(self, publisher: KvPublisher) -> None:
        while True:
            tables = [table for _, table in self._core.look.tables() if table.feed is not None]
            publisher.publish(self._feed.take(tables, self._clock.now_s()))
            await asyncio.sleep(TICK_S)

    async def close(self) -> None:
        """Ends both."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._publisher is not None:
            await asyncio.to_thread(self._publisher.close)
