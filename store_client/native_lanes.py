"""Exchanges on data lanes without the interpreter's lock: on the reader's side, and on the node's. Only where native.HOT; what
each does in Python is named beside it.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.messages import Status
from moonpool.schemas.packed import I64, U8, U32, U64

with suppress(ImportError):
    from moonpool.store_client import _hot

LaneExchange = tuple[int, bool, bytes, bytes, int, int]
"""One lane's part of `exchange_lanes`: descriptor of its socket, whether it lay idle before, the request, the answer's
frame as far as its statuses (empty: the objects' bytes are sent behind the request), first object, how many."""

ReadColumns = tuple[U32, U64, U64, NDArray[np.bytes_], I64, U64, U64]
"""Of the objects that are read: slots, generations, lengths and hashes (S32, or of fewer bytes); offsets, addresses and sizes
of their pieces."""

LANE_OTHER = -1
"""Something else was answered, and lies behind what was taken of it."""
LANE_STALE = -2
"""It was closed while it lay idle; nothing was sent."""

LANE_PYTHONS = -1
"""A request has come that is no plain LaneRead. It is still in the socket."""
LANE_IDLE = -2
"""No request came in time."""
LANE_RETIRED = -3
"""It was ended while it was idle."""

_MISSING = int(Status.MISSING)


def exchange_lanes(
    columns: tuple[I64, U64, U64, U8, U8], lanes: list[LaneExchange], deadline_s: float
) -> list[tuple[int, bool, bytes]]:
    """Exchanges on several plain lanes at once, without the interpreter lock: on each a request is sent, and what answers
    it comes in. `columns` are of all lanes' objects: offsets, addresses and sizes of their pieces, and for reads the
    statuses and the room for a header each; those of a lane's objects that came lie one after the other from its first
    on. Returns for each lane how it ended (0, errno or one of LANE_), whether a byte of an answer had come, and the
    reply so far where it is LANE_OTHER. In Python: Lane. Raises ValueError."""
    return _hot.exchange_lanes(columns, lanes, deadline_s)


def read_lane(
    fd: int,
    idle: bool,
    frame: bytes,
    columns: ReadColumns,
    keyspace: bytes,
    rank: int,
    deadline_s: float,
) -> tuple[int, bool, bytes, U8, U64 | None]:
    """Reads objects by one exchange on a plain lane: as `exchange_lanes` of one, from the request to what their headers say.
    `frame`: the request, where it isn't just a LaneRead. Returns how it ended, whether a byte of an answer had come and the
    reply where it is LANE_OTHER; where it ended with 0, a Status an object: OK only where its header, which came behind the
    payload, holds what was asked for (I3), MISSING where it doesn't, else what the node said; and where a header of those that
    are OK names one, the checksum of each object, 0 where none is known. In Python: LaneReads.
    Raises ValueError."""
    code, started, taken, found, told = _hot.read_lane(
        fd, idle, frame, columns, keyspace, rank, _MISSING, deadline_s
    )
    checksums = None if told is None else np.frombuffer(told, np.uint64)
    return code, started, taken, np.frombuffer(found, np.uint8), checksums


def serve_reads(
    fd: int,
    layout: U64,
    cells: U64,
    bytes_max: int,
    idle_s: float,
    stall_s: float,
    bytes_a_second: int,
    until_s: float,
) -> int:
    """Answers LaneReads on a plain lane, without the interpreter lock, until there is something else to do: errno of
    what broke, or one of LANE_. `cells`: see Turn. In Python: node/lane.py."""
    return _hot.serve_reads(fd, layout, cells, bytes_max, idle_s, stall_s, bytes_a_second, until_s)


def swap(cells: U64, expected: int, value: int) -> bool:
    """Sets the first cell where it has the expected value; whether it had. At once for C as well. In Python: Turn."""
    return _hot.swap(cells, expected, value)
