"""A data connection to a node: frames, and raw payload between them."""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl

import numpy as np

from moonpool.schemas.errors import ProtocolError, from_wire
from moonpool.schemas.framing import FRAME_BYTES_MAX, PREFIX, check_length, encode_frame, with_trace
from moonpool.schemas.header import HEADER_BYTES, HEADER_DTYPE, Headers
from moonpool.schemas.messages import (
    Failed,
    Granted,
    Hello,
    LaneData,
    LaneKeys,
    LaneKeyTexts,
    LaneRead,
    LaneReply,
    LaneWrite,
    Message,
    RegisterKeyspace,
    Status,
    Welcome,
    decode_lane_reply,
    encode,
)
from moonpool.schemas.packed import U8, U64
from moonpool.store_client import native, native_lanes
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.raw_memory import address_of
from moonpool.store_client.rpc.address import Address, dial
from moonpool.store_client.rpc.credentials import NO_CREDENTIALS, Credentials
from moonpool.store_client.rpc.tls import cut, explain_end
from moonpool.store_client.tracing import traceparent
from moonpool.store_client.transports.iovec import receive_pieces, send_pieces, set_timeout
from moonpool.store_client.transports.pieces import coalesce

BUFFER_BYTES = 4 << 20
"""Asked for in each direction; the kernel may give less."""

_OK = np.uint8(Status.OK)
"""Compared with arrays of statuses: a fifth of an enum's time."""


class Lane:
    """One exchange at a time. After any error but an answered one it is of no use: close it."""

    def __init__(
        self, address: str, hello: Hello, deadline_s: float, credentials: Credentials = NO_CREDENTIALS
    ) -> None:
        """Connects and shakes hands. Raises OSError, TimeoutError, MoonpoolError."""
        self.peer = address
        self.traces = False
        """Whether the node takes traces with requests."""
        self.started = False
        """Whether a byte of the answer to the exchange under way has come."""
        target = Address.parse(address)
        self._sock = credentials.secure(dial(target, deadline_s), target, deadline_s)
        try:
            self._sock.settimeout(None)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            reply = self._greet(credentials.sign(hello), deadline_s)
            if not isinstance(reply, Welcome):
                raise ProtocolError(peer=address, reason=f"{type(reply).__name__} in answer to Hello")
        except BaseException:
            self._sock.close()
            raise
        self.traces = reply.traces

    @property
    def stale(self) -> bool:
        """Whether the node closed it, or said something unasked, while it lay idle."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0))

    def read(self, request: LaneRead, into: Fragments, deadline_s: float) -> tuple[U8, Headers]:
        """Statuses of all objects, and the headers of those that are OK, whose pieces have been filled."""
        return self._take_data(
            self._exchange(request, deadline_s, _data_frame_bytes(into.count)), into, deadline_s
        )

    def finish_read(self, taken: bytes, into: Fragments, deadline_s: float) -> tuple[U8, Headers]:
        """The same where the request has been sent, and so much of its answer has been taken."""
        return self._take_data(self._reply(deadline_s, taken=taken), into, deadline_s)

    def _take_data(self, reply: LaneReply, into: Fragments, deadline_s: float) -> tuple[U8, Headers]:
        if not isinstance(reply, LaneData) or len(reply.statuses) != into.count:
            raise ProtocolError(peer=self.peer, reason=f"{type(reply).__name__} in answer to LaneRead")
        statuses = np.frombuffer(reply.statuses, dtype=np.uint8).copy()
        sent = np.flatnonzero(statuses == _OK)
        pieces = into if len(sent) == into.count else into.take(sent)
        raw = np.zeros(
            len(sent) * HEADER_BYTES, dtype=np.uint8
        )  # whose address is had at a tenth of the cost
        headers: Headers = raw.view(HEADER_DTYPE)
        trailer = np.array([address_of(raw)], dtype=np.uint64)
        addresses = np.concatenate((pieces.addresses, trailer))
        sizes = np.concatenate((pieces.sizes, np.array([headers.nbytes], dtype=np.uint64)))
        self._receive(addresses, sizes, deadline_s)
        return statuses, headers

    def write(self, request: LaneWrite, source: Fragments, deadline_s: float) -> Granted:
        """Sends the payload behind the request. Raises what the node answers with Failed."""
        if native.HOT and not isinstance(self._sock, ssl.SSLSocket):
            taken = self._send_natively(self.frame(request), source, deadline_s)
            return self._take_granted(self._reply(deadline_s, taken=taken), source.count)
        self.started = False
        frame = np.frombuffer(self.frame(request), dtype=np.uint8)
        head = np.array([address_of(frame)], dtype=np.uint64)
        addresses = np.concatenate((head, source.addresses))
        sizes = np.concatenate((np.array([frame.nbytes], dtype=np.uint64), source.sizes))
        addresses, _, sizes = coalesce(addresses, addresses, sizes)
        send_pieces(self._sock, addresses, sizes, deadline_s)
        return self._take_granted(self._reply(deadline_s), source.count)

    def _send_natively(self, frame: bytes, source: Fragments, deadline_s: float) -> bytes:
        """Sends a request and its payload, and waits for the answer: the first bytes of that."""
        unused: U8 = np.empty((1 + HEADER_BYTES) * source.count, dtype=np.uint8)
        columns = (
            source.offsets,
            source.addresses,
            source.sizes,
            unused[: source.count],
            unused[source.count :],
        )
        exchange = (self._sock.fileno(), False, frame, b"", 0, source.count)
        code, self.started, taken = native_lanes.exchange_lanes(columns, [exchange], deadline_s)[0]
        if code != native_lanes.LANE_OTHER:
            check_outcome(code)
        return taken

    def _take_granted(self, reply: LaneReply, count: int) -> Granted:
        if not isinstance(reply, Granted) or len(reply.statuses) != count:
            raise ProtocolError(peer=self.peer, reason=f"{type(reply).__name__} in answer to LaneWrite")
        return reply

    def register(self, request: RegisterKeyspace, deadline_s: float) -> None:
        """Makes a keyspace known to the node."""
        self._exchange(request, deadline_s)

    def key_texts(self, request: LaneKeys, deadline_s: float) -> list[str]:
        """One for each slot."""
        reply = self._exchange(request, deadline_s)
        if not isinstance(reply, LaneKeyTexts) or 4 * len(reply.keys) != len(request.slots):
            raise ProtocolError(peer=self.peer, reason=f"{type(reply).__name__} in answer to LaneKeys")
        return reply.keys

    def interrupt(self) -> None:
        """Makes an exchange that another thread has under way fail soon."""
        cut(self._sock)

    def close(self) -> None:
        """Closes the socket: nothing lands in anybody's memory after this."""
        self._sock.close()

    def _greet(self, hello: Hello, deadline_s: float) -> LaneReply:
        try:
            return self._exchange(hello, deadline_s)
        except (ssl.SSLError, ConnectionError) as error:
            if not isinstance(self._sock, ssl.SSLSocket):
                raise
            raise explain_end(error, self.peer) from error

    def _exchange(self, request: Message, deadline_s: float, likely_bytes: int = PREFIX.size) -> LaneReply:
        self.started = False
        self._send(self.frame(request), deadline_s)
        return self._reply(deadline_s, likely_bytes)

    def frame(self, request: Message) -> bytes:
        """A request as it is sent."""
        body = encode(request)
        if self.traces:
            body = with_trace(traceparent.get(), body)
        return encode_frame(1, body)

    def fileno(self) -> int:
        """Of its socket, which has no TLS where there is no ClientTls."""
        return self._sock.fileno()

    def _send(self, frame: bytes, deadline_s: float) -> None:
        set_timeout(self._sock, socket.SO_SNDTIMEO, deadline_s)
        try:
            self._sock.sendall(frame)
        except BlockingIOError as error:
            raise TimeoutError("deadline") from error

    def _reply(self, deadline_s: float, likely_bytes: int = PREFIX.size, taken: bytes = b"") -> LaneReply:
        """The next frame, of which so much was `taken` before. `likely_bytes`: of the whole frame, where that can be told;
        what is behind it stays in the socket. Raises what it says where it is Failed."""
        if len(taken) < PREFIX.size:
            taken += self._take(PREFIX.size - len(taken), deadline_s, likely_bytes)
        length, _ = PREFIX.unpack_from(taken)
        check_length(length, FRAME_BYTES_MAX, self.peer)
        rest = length + 4 - len(taken)
        if rest < 0:
            raise ProtocolError(peer=self.peer, reason=f"{-rest} bytes behind its reply")
        body = taken[PREFIX.size :] + (self._take(rest, deadline_s) if rest else b"")
        try:
            reply: LaneReply = decode_lane_reply(body)
        except Exception as error:  # strange bytes make a decoder raise many things
            raise ProtocolError(peer=self.peer, reason=f"a reply that isn't one: {error}") from error
        if isinstance(reply, Failed):
            raise from_wire(reply.code, reply.message)
        return reply

    def _take(self, count: int, deadline_s: float, count_max: int = 0) -> bytes:
        """`count` bytes, or more, up to `count_max`, where they are there."""
        taken = b""
        while len(taken) < count:
            set_timeout(self._sock, socket.SO_RCVTIMEO, deadline_s)
            try:
                part = self._sock.recv(max(count, count_max) - len(taken))
            except BlockingIOError as error:
                raise TimeoutError("deadline") from error
            if not part:
                raise ConnectionResetError("the node closed the lane")
            self.started = True
            taken += part
        return taken

    def _receive(self, addresses: U64, sizes: U64, deadline_s: float) -> None:
        addresses, _, sizes = coalesce(addresses, addresses, sizes)
        receive_pieces(self._sock, addresses, sizes, deadline_s)


def _data_frame_bytes(count: int) -> int:
    """Of a LaneData about so many objects."""
    return PREFIX.size + len(encode(LaneData(bytes(count))))


def check_outcome(code: int) -> None:
    """Raises OSError where a lane ended as exchange_lanes says."""
    if code == errno.ETIMEDOUT:
        raise TimeoutError("deadline")
    if code == native_lanes.LANE_STALE:
        raise BrokenPipeError(errno.EPIPE, "the node has closed the lane")
    if code:
        raise OSError(code, os.strerror(code))
