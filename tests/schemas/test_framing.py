"""Frames: however the stream is cut, the same frames come out; garbage is a ProtocolError and holds no memory."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moonpool.schemas.errors import ProtocolError
from moonpool.schemas.framing import (
    FRAME_BYTES_MAX,
    HANDSHAKE_BYTES_MAX,
    PREFIX,
    FrameReader,
    encode_frame,
    split_trace,
    with_trace,
)
from moonpool.schemas.messages import (
    BeginItem,
    GetStatus,
    PutSmall,
    decode_master_request,
    decode_node_request,
    encode,
)

FRAMES = st.lists(st.tuples(st.integers(0, 2**32 - 1), st.binary(min_size=1, max_size=50)), max_size=8)


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(bounds)]


@settings(derandomize=True, deadline=None)
@given(frames=FRAMES, places=st.lists(st.integers(0, 10_000), max_size=20))
def test_any_cut_gives_the_same_frames(frames: list[tuple[int, bytes]], places: list[int]) -> None:
    stream = b"".join(encode_frame(request_id, body) for request_id, body in frames)
    reader = FrameReader("peer")
    found = [frame for piece in cut(stream, places) for frame in reader.feed(piece)]
    assert found == frames
    assert not reader.pending


@settings(derandomize=True, deadline=None)
@given(st.binary(max_size=300), st.integers(5, 100))
def test_garbage_never_holds_more_than_one_frame(data: bytes, limit_bytes: int) -> None:
    reader = FrameReader("peer", limit_bytes)
    try:
        for _, body in reader.feed(data):
            assert 0 < len(body) <= limit_bytes - 4
    except ProtocolError as error:
        assert "peer" in str(error)
    else:
        assert len(reader.pending) < limit_bytes + 4


def test_a_payload_is_read_where_it_came() -> None:
    put = PutSmall(BeginItem(b"k" * 16, 0, 0, b"", b"h" * 16), b"payload")
    data = encode_frame(7, encode(put))
    frame = FrameReader("peer").whole(data)
    assert frame is not None and frame[0] == 7
    came = decode_node_request(frame[1])
    assert came == put and isinstance(came, PutSmall)
    assert isinstance(came.payload, memoryview) and came.payload.obj is data


@pytest.mark.parametrize("length", [0, 4, HANDSHAKE_BYTES_MAX + 1, 2**32 - 1])
def test_an_impossible_length_is_refused_before_its_bytes_come(length: int) -> None:
    with pytest.raises(ProtocolError, match=f"frame of {length} bytes"):
        list(FrameReader("peer").feed(PREFIX.pack(length, 1)))


def test_the_limit_may_be_raised_between_two_frames() -> None:
    big = b"x" * (HANDSHAKE_BYTES_MAX + 1)
    reader = FrameReader("peer")
    frames = reader.feed(encode_frame(1, b"hello") + encode_frame(2, big))
    assert next(frames) == (1, b"hello")
    reader.limit_bytes = FRAME_BYTES_MAX
    assert next(frames) == (2, big)


def test_an_abandoned_iteration_loses_no_frame() -> None:
    reader = FrameReader("peer")
    frames = reader.feed(encode_frame(1, b"a") + encode_frame(2, b"b"))
    assert next(frames) == (1, b"a")
    frames.close()  # type: ignore[attr-defined]
    assert list(reader.feed(b"")) == [(2, b"b")]


PARENT = f"00-{'ab' * 16}-{'cd' * 8}-01"


def test_a_body_may_name_the_span_it_belongs_to() -> None:
    body = encode(GetStatus())
    assert with_trace("", body) is body, "nothing is on the wire where there is no span"
    assert split_trace(body) == ("", body)
    assert split_trace(with_trace(PARENT, body)) == (PARENT, body)
    for bad in (b"\xc1", b"\xc1" + PARENT[:-1].encode(), b"\xc1" + PARENT.upper().encode() + body):
        with pytest.raises(ValueError, match="traceparent"):
            split_trace(bad)


def test_no_message_begins_with_the_mark() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_master_request(with_trace(PARENT, encode(GetStatus())))
