"""One data lane: a connection that asks for payloads, or brings them, one exchange at a time."""

from __future__ import annotations

import errno
import logging
import os
import socket
import ssl
import threading
import time

import msgspec
import numpy as np

from moonpool.schemas.errors import (
    DeadlineExceeded,
    InvalidParams,
    MoonpoolError,
    ProtocolError,
    RpcFailed,
    TooLarge,
    Unauthorized,
    VersionMismatch,
)
from moonpool.schemas.framing import HANDSHAKE_BYTES_MAX, PROTOCOL_VERSION, Body, encode_frame, split_trace
from moonpool.schemas.header import SlotState
from moonpool.schemas.messages import (
    Failed,
    Hello,
    KeyspaceRegistered,
    LaneData,
    LaneKeys,
    LaneKeyTexts,
    LaneRead,
    LaneWrite,
    Message,
    RegisterKeyspace,
    Status,
    Welcome,
    decode_lane_request,
    encode,
)
from moonpool.schemas.packed import U32, U64, count_of, u32s, u64s
from moonpool.store_client import native, native_lanes
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.headers import words_of
from moonpool.store_client.node.items import BLOCKS_MAX
from moonpool.store_client.node.keyspaces import check_registering
from moonpool.store_client.node.lane_io import has_bytes, receive_frame, send, set_pause, shake_hands
from moonpool.store_client.node.lane_limits import (
    BYTES_A_SECOND_MIN,
    BYTES_MAX,
    STALL_S,
    deadline_of,
    total_of,
)
from moonpool.store_client.node.lane_places import payloads
from moonpool.store_client.node.lane_turn import Turn
from moonpool.store_client.node.lane_writes import LaneHooks, LaneWrites
from moonpool.store_client.node.listing import key_texts
from moonpool.store_client.node.scoped_reads import checked_pieces, own_headers
from moonpool.store_client.raw_memory import address_of
from moonpool.store_client.rpc.access import NOBODY, WITHDRAWN, Access, Admission, check_role, forbidden
from moonpool.store_client.rpc.tls import ServerTls, cut

logger = logging.getLogger(__name__)

FRAME_BYTES_MAX = 2 << 20
HANDSHAKE_S = 5.0
IDLE_S = 600.0


class Lane:
    """Serves one connected socket in a thread of its own. Whatever its peer sends, only this lane ends."""

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        core: NodeCore,
        hooks: LaneHooks,
        access: Access,
        tls: ServerTls | None = None,
    ) -> None:
        self._sock = sock
        self._access = access
        self._tls = tls
        self._certificate: object = None
        self._admission = Admission(NOBODY, b"", 0)
        self.opened_s = time.monotonic()
        self.admitted = False
        """Whether its peer has said who it is."""
        self._peer = peer
        self._core = core
        self._hooks = hooks
        self._memory = core.slots.data.data  # a memoryview: slices of it cost no copy
        self._writes = LaneWrites(core, hooks, peer)
        self._parent = ""
        """The traceparent of the exchange under way."""
        self._turn = Turn()
        self._lock = threading.Lock()  # of the socket, which TLS wraps in another one
        self._layout = core.slots.layout.native(address_of(core.slots.data)) if native.HOT else None

    @property
    def idle_since_s(self) -> float | None:
        """See Turn."""
        return self._turn.idle_since_s

    @property
    def bytes_read(self) -> int:
        """See Turn."""
        return self._turn.bytes_read

    @property
    def bytes_written(self) -> int:
        """Payload that was brought."""
        return self._writes.size_bytes

    def retire(self) -> bool:
        """Ends a lane that is idle. False where it isn't, or where a request has arrived. One that is on its way still
        finds a closed lane, not a byte of it is taken, and its client repeats it on a fresh one."""
        with self._lock:
            if self.idle_since_s is None or has_bytes(self._sock) or not self._turn.retire():
                return False
            cut(self._sock)
            return True

    def cut(self) -> None:
        """Makes `run` end soon."""
        with self._lock:
            cut(self._sock)

    def close(self) -> None:
        """After `run`."""
        self._sock.close()

    def run(self) -> None:
        """Returns once the connection is over."""
        request_id = 0
        try:
            set_pause(self._sock, HANDSHAKE_S)
            if self._tls is not None:
                self._secure(self._tls)
            request_id = self._shake_hands()
            set_pause(self._sock, STALL_S)
            while True:
                request_id = 0  # of what can't be told apart from noise
                if not self._serve_reads():
                    self._turn.rest()
                request_id, message = self._next(FRAME_BYTES_MAX, STALL_S, IDLE_S)
                if self._parent:
                    self._answer_traced(request_id, message)
                else:
                    self._answer(request_id, message)
        except (ProtocolError, VersionMismatch, TooLarge, InvalidParams, Unauthorized) as error:
            logger.info("data lane of %s closed: %s", self._peer, error)
            self._say_failed(request_id, error)
        except MoonpoolError:
            pass  # the peer went away or stood still

    def _secure(self, tls: ServerTls) -> None:
        """The TLS handshake. Raises MoonpoolError."""
        with self._lock:
            self._sock = tls.wrap(self._sock)
        shake_hands(self._sock, time.monotonic() + HANDSHAKE_S, self._peer)
        set_pause(self._sock, HANDSHAKE_S)
        assert isinstance(self._sock, ssl.SSLSocket)
        self._certificate = self._sock.getpeercert()

    def _shake_hands(self) -> int:
        request_id, message = self._next(HANDSHAKE_BYTES_MAX, HANDSHAKE_S)
        if not isinstance(message, Hello):
            raise ProtocolError(peer=self._peer, reason="its first frame is no Hello")
        if message.protocol != PROTOCOL_VERSION:
            raise VersionMismatch(ours=PROTOCOL_VERSION, theirs=message.protocol)
        if self._tls is not None:
            self._tls.check_peer(self._certificate)
        self._admission = self._access.admit(message)
        self.admitted = True
        self._reply(request_id, self._welcome())
        return request_id

    def _welcome(self) -> Welcome:
        return Welcome(PROTOCOL_VERSION, "node", 0, FRAME_BYTES_MAX, traces=self._hooks.spans is not None)

    def _serve_reads(self) -> bool:
        """Answers reads without the interpreter, where they are such that it may, until another request has come, which
        begins with this. False where it may not. Raises MoonpoolError."""
        until_s = self._access.certain_until_s()
        identity = self._admission.identity
        plain = self._tls is None and identity.sees_all and identity.may(LaneRead)
        if self._layout is None or not plain or not self._access.holds(self._admission):
            return False
        limits = (BYTES_MAX, IDLE_S, STALL_S, BYTES_A_SECOND_MIN, until_s)
        code = native_lanes.serve_reads(self._sock.fileno(), self._layout, self._turn.cells, *limits)
        if code == native_lanes.LANE_PYTHONS:
            return True
        if code in (native_lanes.LANE_IDLE, errno.EAGAIN, errno.ETIMEDOUT):
            what = "with a request" if code == native_lanes.LANE_IDLE else "by reading"
            raise DeadlineExceeded(peer=self._peer, what=what, timeout_s=STALL_S)
        reason = "retired" if code == native_lanes.LANE_RETIRED else os.strerror(code)
        raise RpcFailed(peer=self._peer, reason=reason)

    def _next(self, limit_bytes: int, timeout_s: float, idle_s: float = 0.0) -> tuple[int, Message]:
        def begun() -> None:
            if not self._turn.begin():
                raise RpcFailed(peer=self._peer, reason="retired")

        body: Body
        request_id, body = receive_frame(self._sock, limit_bytes, timeout_s, self._peer, begun, idle_s)
        try:
            if self._hooks.spans is not None:
                self._parent, body = split_trace(body)
            message: Message = decode_lane_request(body)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise ProtocolError(peer=self._peer, reason=f"not a request: {error}") from error
        return request_id, message

    def _answer_traced(self, request_id: int, message: Message) -> None:
        assert self._hooks.spans is not None
        span = self._hooks.spans.begin(type(message).__name__, self._parent, self._peer)
        failure: str | None = None
        try:
            self._answer(request_id, message)
        except BaseException as error:
            failure = str(error)
            raise
        finally:
            span.end(failure)

    def _answer(self, request_id: int, message: Message) -> None:
        if not self._access.holds(self._admission):
            raise Unauthorized(detail=WITHDRAWN)
        if isinstance(message, LaneRead):
            if self._admission.identity.may(LaneRead):
                self._read(request_id, message)
            else:
                self._say_failed(request_id, forbidden(self._admission.identity, LaneRead))
        elif isinstance(message, LaneWrite):
            left = self._writes.take(self._sock, request_id, message, self._admission.identity)
            if left:
                send(self._sock, [left], time.monotonic() + STALL_S, self._peer)
        elif isinstance(message, LaneKeys):
            self._tell_keys(request_id, message)
        elif isinstance(message, RegisterKeyspace):
            try:
                check_role(self._admission.identity, RegisterKeyspace)
                check_registering(message.spec, self._admission.identity)
                digest = self._hooks.register(message.spec)
            except MoonpoolError as error:
                self._say_failed(request_id, error)
            else:
                self._reply(request_id, KeyspaceRegistered(digest, 1))
        else:
            raise ProtocolError(peer=self._peer, reason="a second Hello")

    # ------------------------------------------------------------ read

    def _read(self, request_id: int, message: LaneRead) -> None:
        """Statuses, payloads, then the headers as they are once the last payload byte was copied out (I3)."""
        slots, generations, lengths = _columns(message)
        core, identity = self._core, self._admission.identity
        with core.lock:
            own = None if identity.sees_all else core.keyspaces.words_of(identity.tenant)
            offsets, good = core.slots.layout.find(slots, lengths, core.slots.allocator.slot_bytes)
            rows = core.slots.rows(slots[good])
            headers = core.slots.headers.snapshot(rows)
        there = (headers["word"] == words_of(SlotState.COMMITTED, generations[good])) & (
            headers["length"] == lengths[good]
        )
        if own is not None:
            there &= np.isin(headers["keyspace"], own)
        good[good] = there
        rows = rows[there]
        total = total_of(lengths[good].tolist())
        statuses = np.where(good, Status.OK, Status.MISSING).astype(np.uint8)
        deadline_s = deadline_of(total)
        frame = encode_frame(request_id, encode(LaneData(statuses.tobytes())))
        sizes = lengths[good].astype(np.int64)
        if own is None:
            payload = payloads(self._memory, offsets[good], sizes)
            send(self._sock, [frame, *payload], deadline_s, self._peer, more=bool(payload))
        else:
            send(self._sock, [frame], deadline_s, self._peer)
            words = words_of(SlotState.COMMITTED, generations[good])
            words_at = core.slots.headers.words.__getitem__
            for piece in checked_pieces(self._memory, offsets[good], sizes, rows, words, words_at):
                send(self._sock, [piece], deadline_s, self._peer)
        trailer = core.slots.headers.proof(rows)
        if own is not None:
            trailer = own_headers(trailer, own)
        send(self._sock, [trailer.tobytes()] if len(rows) else [], deadline_s, self._peer)
        self._turn.count(total)

    def _tell_keys(self, request_id: int, message: LaneKeys) -> None:
        if self._admission.identity.may(LaneKeys):
            with self._core.lock:
                keys = key_texts(self._core.slots, message)
            self._reply(request_id, LaneKeyTexts(keys))
        else:
            self._say_failed(request_id, forbidden(self._admission.identity, LaneKeys))

    # ------------------------------------------------------------ answers

    def _reply(self, request_id: int, message: Message) -> None:
        deadline_s = time.monotonic() + STALL_S
        send(self._sock, [encode_frame(request_id, encode(message))], deadline_s, self._peer)

    def _say_failed(self, request_id: int, error: MoonpoolError) -> None:
        try:
            self._reply(request_id, Failed(error.code, str(error)))
        except MoonpoolError:
            logger.debug("%s did not take the answer", self._peer)


def _columns(message: LaneRead) -> tuple[U32, U64, U64]:
    """Slots, generations, lengths. Raises InvalidParams."""
    count = count_of(message.slots, 4, "read.slots")
    if count > BLOCKS_MAX or not 8 * count == len(message.generations) == len(message.lengths):
        allowed = f"columns of equal length, {BLOCKS_MAX} slots at most"
        raise InvalidParams(field="read.slots", value=f"{count} slots", allowed=allowed)
    return u32s(message.slots), u64s(message.generations), u64s(message.lengths)
