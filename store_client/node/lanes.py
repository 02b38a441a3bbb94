"""The tcp data server: accepts connections and gives each a thread."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from operator import itemgetter

from moonpool.schemas.errors import Overloaded, RpcFailed
from moonpool.schemas.framing import encode_frame
from moonpool.schemas.messages import Failed, encode
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.lane import Lane
from moonpool.store_client.node.lane_writes import LaneHooks
from moonpool.store_client.rpc.access import Access
from moonpool.store_client.rpc.address import resolve, set_tcp_options
from moonpool.store_client.rpc.tls import ServerTls

logger = logging.getLogger(__name__)

BACKLOG = 128
SLOW_HANDSHAKE_S = 0.5
"""Whoever takes longer to say who they are gives way where lanes are short."""
RETIRE_WAIT_S = 1.0
"""How long a new lane waits for the thread of the idle one that makes room for it."""


class LaneServer:
    """Listens from `start` on; `close` ends all lanes and waits for their threads.

    Clients keep idle lanes, so one that comes when all are taken gets the place of the one that was idle longest.
    """

    def __init__(
        self,
        core: NodeCore,
        hooks: LaneHooks,
        lanes_max: int,
        access: Access | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self._core = core
        self._hooks = hooks
        self._access = access or Access()
        self._tls = tls
        self._lanes_max = lanes_max
        self._changed = threading.Condition()
        self._lanes: dict[Lane, threading.Thread] = {}
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._closing = False
        self._bytes_read = 0
        self._bytes_written = 0
        self.refused = 0
        self.retired = 0

    def start(self, host: str, port: int) -> int:
        """Listens and returns the port. Raises RpcFailed."""
        try:
            info = resolve(host, port, socket.AI_PASSIVE)[0]
            listener = socket.socket(info[0], socket.SOCK_STREAM)
            try:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(info[4])
                listener.listen(BACKLOG)
            except BaseException:
                listener.close()
                raise
        except OSError as error:
            raise RpcFailed(peer=f"{host}:{port}", reason=f"cannot listen: {error}") from error
        self._listener = listener
        self._acceptor = threading.Thread(target=self._accept, args=(listener,), name="lanes", daemon=True)
        self._acceptor.start()
        actual: int = listener.getsockname()[1]
        return actual

    def facts(self) -> dict[str, int]:
        """Counters."""
        with self._changed:
            lanes = list(self._lanes)
            return {
                "lanes": len(lanes),
                "lanes_refused": self.refused,
                "lanes_retired": self.retired,
                "lane_bytes_read": self._bytes_read + sum(lane.bytes_read for lane in lanes),
                "lane_bytes_written": self._bytes_written + sum(lane.bytes_written for lane in lanes),
            }

    def close(self) -> None:
        """Ends everything. A write under way is revoked by its thread."""
        with self._changed:
            self._closing = True
            lanes = list(self._lanes.items())
        if self._listener is not None:
            # shutdown wakes the thread that blocks in accept; close alone would not.
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for lane, _ in lanes:
            lane.cut()
        if self._acceptor is not None:
            self._acceptor.join()
        for _, thread in lanes:
            thread.join()

    def _accept(self, listener: socket.socket) -> None:
        while not self._closing:
            try:
                sock, address = listener.accept()
            except OSError as error:
                if self._closing:
                    return
                logger.error("data port: accept failed: %s", error)
                threading.Event().wait(0.1)  # out of descriptors: let some close
                continue
            with contextlib.suppress(OSError):
                set_tcp_options(sock)
            self._admit(sock, f"{address[0]}:{address[1]}")

    def _admit(self, sock: socket.socket, peer: str) -> None:
        lane = Lane(sock, peer, self._core, self._hooks, self._access, self._tls)
        thread = threading.Thread(target=self._serve, args=(lane,), name=f"lane {peer}", daemon=True)
        with self._changed:
            room = self._make_room() and not self._closing
            if room:
                self._lanes[lane] = thread
                # Under the lock: close() must not find a thread that can't be joined yet.
                thread.start()
            else:
                self.refused += 1
        if not room:
            error = Overloaded(what="the data port", limit=f"{self._lanes_max} lanes")
            with contextlib.suppress(OSError):
                sock.settimeout(0.1)
                sock.sendall(encode_frame(0, encode(Failed(error.code, str(error)))))
            sock.close()

    def _make_room(self) -> bool:
        """Whether another lane may be had, if need be once the longest idle one has ended, or one that has been let in
        by nobody yet and takes its time. Under the lock."""
        if len(self._lanes) < self._lanes_max:
            return True
        idle = [(lane.idle_since_s, lane) for lane in self._lanes]
        by_age = sorted(((since_s, lane) for since_s, lane in idle if since_s is not None), key=itemgetter(0))
        slow_s = time.monotonic() - SLOW_HANDSHAKE_S
        strangers = [lane for lane in self._lanes if not lane.admitted and lane.opened_s < slow_s]
        if not any(lane.retire() for _, lane in by_age):
            if not strangers:
                return False
            strangers[0].cut()  # the oldest
        self.retired += 1
        return self._changed.wait_for(lambda: len(self._lanes) < self._lanes_max, RETIRE_WAIT_S)

    def _serve(self, lane: Lane) -> None:
        try:
            lane.run()
        except Exception:
            logger.exception("a data lane failed")
        finally:
            with self._changed:
                del self._lanes[lane]
                self._bytes_read += lane.bytes_read
                self._bytes_written += lane.bytes_written
                self._changed.notify_all()
            lane.close()
