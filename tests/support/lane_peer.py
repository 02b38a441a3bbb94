"""A data lane's client, frame by frame, for tests that send what a good client would not."""

from __future__ import annotations

import socket
from typing import Self

import numpy as np

from moonpool.schemas.framing import PREFIX, PROTOCOL_VERSION, encode_frame
from moonpool.schemas.header import HEADER_BYTES, HEADER_DTYPE, Headers
from moonpool.schemas.messages import (
    BeginItem,
    Hello,
    LaneData,
    LaneRead,
    LaneWrite,
    Message,
    Status,
    decode_lane_reply,
    encode,
)

HELLO = Hello(PROTOCOL_VERSION, "data", "test")


class LanePeer:
    """One connection. `with` closes it."""

    def __init__(
        self, port: int, *, greet: bool = True, receive_bytes: int = 0, timeout_s: float = 30
    ) -> None:
        self.sock = socket.socket()
        if receive_bytes:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.sock.settimeout(timeout_s)
        self.sock.connect(("127.0.0.1", port))
        if greet:
            self.call(HELLO)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, message: Message) -> None:
        """One frame."""
        self.sock.sendall(encode_frame(1, encode(message)))

    def call(self, message: Message) -> Message:
        """One frame each way."""
        self.send(message)
        return self.reply()

    def reply(self) -> Message:
        """The next frame. Raises EOFError where the node closed."""
        length, _ = PREFIX.unpack(self.take(PREFIX.size))
        return decode_lane_reply(self.take(length - 4))

    def take(self, size_bytes: int) -> bytes:
        """Exactly so many bytes."""
        taken = bytearray()
        while len(taken) < size_bytes:
            try:
                piece = self.sock.recv(min(1 << 20, size_bytes - len(taken)))
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise EOFError
            taken += piece
        return bytes(taken)

    def write(self, item: BeginItem, payload: bytes, *, visible: bool = False) -> Message:
        """One LaneWrite."""
        self.send(LaneWrite(9, item, visible))
        self.sock.sendall(payload)
        return self.reply()

    def read(self, slots: bytes, generations: bytes, lengths: list[int]) -> tuple[bytes, bytes, Headers]:
        """(statuses, payload, trailer) of one LaneRead."""
        data = self.call(LaneRead(slots, generations, np.array(lengths, dtype="<u8").tobytes()))
        assert isinstance(data, LaneData)
        good = [length for length, status in zip(lengths, data.statuses, strict=True) if status == Status.OK]
        payload = self.take(sum(good))
        return data.statuses, payload, np.frombuffer(self.take(HEADER_BYTES * len(good)), dtype=HEADER_DTYPE)

    def is_closed(self) -> bool:
        """Whether the node ends the connection (waits for that, up to the timeout)."""
        try:
            while self.sock.recv(1 << 16):
                pass
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        return True
