"""The few loops that hold back everything else: in C where the build had a compiler (hot*.c), else here in Python.

Both do the same, and the same tests ask both. `HOT` says which one runs.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.keyspace import HASH_SIZES
from moonpool.schemas.messages import Status
from moonpool.schemas.packed import I64, U8, U32, U64
from moonpool.store_client.chain_points import python_probe_points
from moonpool.store_client.fragments import Fragments

log = logging.getLogger(__name__)

FORMAT = 18
"""HOT_FORMAT of hot.h that this file was written for."""

try:
    from moonpool.store_client import _hot
except ImportError:
    HOT = False
else:
    HOT = os.environ.get("MOONPOOL_NATIVE", "1") != "0"
    if HOT and getattr(_hot, "FORMAT", 0) != FORMAT:
        # A checkout that was updated and not built again. Its calls would take columns for other ones.
        log.warning("the loops in C are of another version and not used: run `make setup` or install again")
        HOT = False

NameLists = tuple[list[dict[bytes, int]], list[bytearray]]
"""Of the index: dicts from hash to row, by the first byte of a hash, and the filters before them, or none: see FilteredMap."""

FlatColumns = tuple[NameLists, int, int, Any, Any, Any, Any, Any, Any, Any]
"""Of a flat table: its names, bytes of a hash, ranks, and its columns: see FlatTable.native."""

FlatCells = tuple[int, Any, Any, Any, Any, Any, Any, Any, Any, Any]
"""Of a flat table: ranks, and the columns that a new row fills: see FlatTable.cells."""

NewItems = tuple[Any, Any, Any, Any]
"""Ranks (u16), slots (u32), generations and lengths (u64) of new rows, as bytes or arrays."""

KEY_HASH_BYTES = 16

_ITEM_TYPES = ("<u2", "<u4", "<u8", "<u8")

_MISSING, _CORRUPT = int(Status.MISSING), int(Status.CORRUPT)

_HASHES = {size: np.dtype(f"S{size}") for size in HASH_SIZES}
"""Made once: numpy takes as long to make one as for the view."""

PIECES_MAX = 64
"""Of objects that `gather` takes."""

COPY_THREADS = min(4, os.cpu_count() or 1)
"""Of one large copy. Two cores reach the memory's speed together, and get a busy machine's time twice as often."""


def hash_keys(keys: Sequence[str], bytes_max: int) -> bytes | int:
    """Packed row names of key texts (schemas/keyspace.py: object_hash); where one isn't text of 1 to `bytes_max`
    bytes of UTF-8, the index of the first such key instead."""
    if HOT:
        return _hot.hash_keys(keys if isinstance(keys, list) else list(keys), bytes_max)
    return python_hash_keys(keys, bytes_max)


def probe_points(
    hashes: Sequence[bytes], hash_bytes: int, sample_mask: int, runs: list[tuple[int, int, int]]
) -> tuple[bytes, ...] | None:
    """Of a chain: names (the first 8 bytes, packed) of those hashes whose name has none of the bits of `sample_mask` (below 0:
    none), then each run's (first, count, stride) stride-th hashes and its last one, packed. None where one that is looked at (for
    names: all) isn't `hash_bytes` long. Raises ValueError for runs beyond the chain."""
    if HOT:
        chained, mask = hashes if isinstance(hashes, list) else list(hashes), sample_mask % (1 << 64)
        return _hot.probe_points(chained, hash_bytes, mask, sample_mask >= 0, runs)
    return python_probe_points(hashes, hash_bytes, sample_mask, runs)


def find_rows(lists: NameLists, packed: bytes, hash_bytes: int) -> I64:
    """What the dict at [first byte of the hash % number of dicts] says of each packed hash; -1 where nothing."""
    if HOT:
        rows: I64 = np.empty(len(packed) // hash_bytes, dtype=np.int64)
        _hot.find_rows(lists, packed, hash_bytes, rows)
        return rows
    return python_find_rows(lists, packed, hash_bytes)


def set_name(lists: NameLists, block_hash: bytes, row: int) -> None:
    """Names a row, in dict and filter. Only where HOT, as all filters."""
    _hot.set_name(lists, block_hash, row)


def remove_name(lists: NameLists, block_hash: bytes) -> None:
    """Forgets a name that is there, in dict and filter. Only where HOT. Raises KeyError."""
    _hot.remove_name(lists, block_hash)


def name_rows(lists: NameLists, names: list[bytes], packed: bytes, hash_bytes: int, rows: list[int]) -> bool:
    """Names a row after each packed hash, in the dicts (see find_rows) and in `names`, the hash of each row. False, and nothing
    is changed, where one of them is a row's name already, or named twice."""
    if HOT:
        return _hot.name_rows(lists, names, packed, hash_bytes, rows)
    return python_name_rows(lists, names, packed, hash_bytes, rows)


def forget_rows(lists: NameLists, names: list[bytes], hash_bytes: int, rows: list[int]) -> bytes:
    """Takes the names of these rows, each of which has one; packed, in their order."""
    if HOT:
        return _hot.forget_rows(lists, names, hash_bytes, rows)
    return python_forget_rows(lists, names, hash_bytes, rows)


def fill_rows(columns: FlatCells, rows: list[int], items: NewItems, segment: int, now_s: float) -> int:
    """Makes free rows of a table complete with their only copies, which lie on a segment and are used as of now, once.
    Returns the sum of their lengths."""
    if HOT:
        return _hot.fill_rows(columns, rows, items, segment, now_s)
    return python_fill_rows(columns, rows, items, segment, now_s)


def take_ghosts(ghosts: Any, packed: bytes, hash_bytes: int) -> bytes:
    """Uses of each packed hash, whose ghosts are gone then; empty where all are 0. Only where HOT: Ghosts has the same in
    Python."""
    return _hot.take_ghosts(ghosts, packed, hash_bytes)


def find_present(
    columns: FlatColumns, packed: bytes, rank: int, usable: NDArray[np.bool_] | None, until_s: float
) -> bytes:
    """One byte a packed hash: whether that rank of its row (below 0: the row as a whole) is there, on a usable segment where
    those are given. Leases the rows that are until then. Only where HOT: FlatTable has the same in Python."""
    return _hot.find_present(columns, packed, rank, usable, until_s)


def find_places(
    columns: FlatColumns, packed: bytes, rank: int, usable: NDArray[np.bool_], fixed_length: int
) -> tuple[bytes, bytes, bytes, bytes, bytes] | None:
    """Where that rank of each packed hash lies: numbers of segments (u16), and the columns of Located, zeros where it isn't on
    a usable segment. `fixed_length`: where the table has no lengths. None where the answer would name very many segments.
    Only where HOT: lookups.locate has the same in Python."""
    return _hot.find_places(columns, packed, rank, usable, fixed_length)


def pieces(addresses: Sequence[Sequence[Any]], sizes: Sequence[Sequence[Any]]) -> Fragments | None:
    """Lists of addresses and sizes, one of each an object, as columns; None where the lists differ in length, some are
    no lists, some values are no plain u64, or a piece lies at 0 or beyond the end of memory."""
    if not HOT:
        return python_pieces(addresses, sizes)
    packed = _hot.pieces(addresses, sizes)
    return None if packed is None else unpacked_pieces(*packed)


def unpacked_pieces(addresses: bytes, sizes: bytes, offsets: bytes, lengths: bytes) -> Fragments:
    """What `packed_pieces` returns, as `pieces` does."""
    return Fragments(
        np.frombuffer(addresses, np.uint64),
        np.frombuffer(sizes, np.uint64),
        np.frombuffer(offsets, np.int64),
        np.frombuffer(lengths, np.uint64),
    )


def packed_pieces(
    addresses: Sequence[Sequence[Any]], sizes: Sequence[Sequence[Any]]
) -> tuple[bytes, bytes, bytes, bytes] | None:
    """`pieces` as packed columns: addresses, sizes, offsets, lengths. None also where not HOT."""
    return _hot.pieces(addresses, sizes) if HOT else None


def gather(
    addresses: Sequence[Sequence[Any]], sizes: Sequence[Sequence[Any]], bytes_max: int
) -> tuple[bytes, bytes] | None:
    """Bytes of a few objects, back to back, and how many each has (u64); None as `pieces`, and where they are more than
    `bytes_max` or lie in more than PIECES_MAX pieces."""
    if HOT:
        return _hot.gather(addresses, sizes, bytes_max)
    return python_gather(addresses, sizes, bytes_max)


def copy_pieces(to: U64, source: U64, sizes: U64) -> None:
    """Copies memory, piece by piece; without the interpreter lock, and in several threads, where it is much. Only
    where HOT."""
    columns = (np.ascontiguousarray(to), np.ascontiguousarray(source), np.ascontiguousarray(sizes))
    _hot.copy_pieces(*columns, COPY_THREADS)


def read_slots(
    layout: U64,
    slots: U32,
    generations: U64,
    lengths: U64,
    hashes: NDArray[np.bytes_],
    keyspace: int,
    rank: int,
    into: Fragments,
    verify: bool,
) -> U8:
    """Copies objects from their slots, then reads the headers (I3). A Status an object: OK where its header holds what was asked
    for, else MISSING. Where `verify`, and the header named a checksum before as well, CORRUPT where what was copied has another.
    `layout`: see MappedSegment; `hashes` are S32, or of fewer bytes. Only where HOT: SegmentReads has the same in Python.
    Raises ValueError."""
    columns = (layout, slots, lengths, into.addresses, into.sizes, into.offsets, generations, hashes)
    found = _hot.read_slots(columns, keyspace, rank, COPY_THREADS, verify, _MISSING, _CORRUPT)
    return np.frombuffer(found, np.uint8)


def read_packed(layout: U64, columns: Sequence[Any], keyspace: int, rank: int, verify: bool) -> bytearray:
    """`read_slots` with columns that are packed: slots, lengths, addresses, sizes, offsets, generations, and hashes of one
    size. The same, packed."""
    slots, *others, packed = columns
    hashes = np.frombuffer(packed, _HASHES[4 * len(packed) // len(slots)])
    return _hot.read_slots(
        (layout, slots, *others, hashes), keyspace, rank, COPY_THREADS, verify, _MISSING, _CORRUPT
    )


def fill_slots(layout: U64, slots: U32, lengths: U64, source: Fragments) -> bool:
    """Copies objects into their slots; False, and nothing is copied, where one doesn't lie inside its page. Only where
    HOT."""
    pieces = (source.addresses, source.sizes, source.offsets)
    return _hot.fill_slots((layout, slots, lengths, *pieces), COPY_THREADS)


def exchange(
    fd: int, request_id: int, body: bytes, deadline_s: float, limit_bytes: int
) -> tuple[int, bytes] | bytes:
    """Sends a frame over a plain socket (no body: none), and returns what came: id and body of one whole frame, of at most
    `limit_bytes`. Else bytes as they are: several frames, what can't be one, what comes before the end of the connection, which
    is empty itself, and for a limit of 0 any. Only where HOT: rpc/wire.py has the same in Python. Raises OSError."""
    return _hot.exchange(fd, request_id, body, deadline_s, limit_bytes)


def send(fd: int, request_id: int, body: bytes, deadline_s: float) -> None:
    """Sends a whole frame. Only where HOT. Raises OSError."""
    _hot.send(fd, request_id, body, deadline_s)


def name_slots(
    layout: U64,
    slots: U32 | bytes,
    header: bytes,
    generation: int,
    slot_bytes: int,
    lengths: bytes,
    hashes: bytes = b"",
    parent: bytes = b"",
    keys: list[bytes] | None = None,
    *,
    by_class: bool = False,
) -> int:
    """Writes the headers of the first slots, one for each of `lengths` (u64): `header`, with hash, length and key text of each
    object, the generations ascending, their words last; and the key texts behind the payloads. `parent`: of the first one,
    where they are a chain. Returns the sum of the lengths; -1, and nothing is written, where an object doesn't fit its slot, or
    where, `by_class`, one would have got a slot of another class. `layout`: see MappedSegment. Only where HOT: node/naming.py
    has the same in Python. Raises ValueError."""
    columns = (layout, slots, header, lengths)
    return _hot.name_slots(columns, generation, slot_bytes, by_class, hashes, parent, keys)


def sweep(layout: U64, pages: range, keyspace: int, shard: int, before: int, hashes: bytes | None) -> U32:
    """Slots of those pages that are WRITING or COMMITTED in that keyspace and shard, with one of the hashes (32 bytes each,
    ascending; None: any), of a generation below `before` (0: any). Only where HOT: node/drops.py has the same in Python.
    Raises ValueError."""
    found = _hot.sweep(layout, pages.start, pages.stop, keyspace, before, shard, hashes)
    return np.frombuffer(found, dtype=np.uint32)


def python_hash_keys(keys: Sequence[str], bytes_max: int) -> bytes | int:
    """hash_keys without C."""
    sha256 = hashlib.sha256
    digests = []
    for index, key in enumerate(keys):
        try:
            text = key.encode()
        except (AttributeError, UnicodeEncodeError):
            return index
        if not 0 < len(text) <= bytes_max:
            return index
        digests.append(sha256(text).digest()[:KEY_HASH_BYTES])
    return b"".join(digests)


def python_pieces(addresses: Sequence[Sequence[Any]], sizes: Sequence[Sequence[Any]]) -> Fragments | None:
    """pieces without C."""
    if not set(map(type, (addresses, sizes, *addresses, *sizes))) <= {list}:
        return None
    if list(map(len, addresses)) != list(map(len, sizes)):
        return None
    columns = []
    for lists in (addresses, sizes):
        values = list(chain.from_iterable(lists))
        if not set(map(type, values)) <= {int}:
            return None
        try:
            columns.append(np.array(values, dtype=np.uint64))
        except OverflowError:
            return None
    starts, lengths = columns
    if ((starts > ~lengths) | ((lengths > 0) & (starts == 0))).any():
        return None
    offsets = np.zeros(len(addresses) + 1, dtype=np.int64)
    np.cumsum(list(map(len, addresses)), out=offsets[1:])
    return Fragments(starts, lengths, offsets)


def python_gather(
    addresses: Sequence[Sequence[Any]], sizes: Sequence[Sequence[Any]], bytes_max: int
) -> tuple[bytes, bytes] | None:
    """gather without C."""
    found = python_pieces(addresses, sizes)
    if found is None or len(found.sizes) > PIECES_MAX or found.count > PIECES_MAX:
        return None
    lengths: list[int] = found.sizes.tolist()
    if sum(lengths) > bytes_max:
        return None
    parts = map(ctypes.string_at, found.addresses.tolist(), lengths)
    return b"".join(parts), found.lengths().astype("<u8").tobytes()


def python_find_rows(lists: NameLists, packed: bytes, hash_bytes: int) -> I64:
    """find_rows without C."""
    parts, _ = lists
    hashes = [packed[at : at + hash_bytes] for at in range(0, len(packed), hash_bytes)]
    count = len(parts)
    return np.array([parts[h[0] % count].get(h, -1) for h in hashes], dtype=np.int64)


def python_name_rows(
    lists: NameLists, names: list[bytes], packed: bytes, hash_bytes: int, rows: list[int]
) -> bool:
    """name_rows without C."""
    parts, filters = lists
    assert not filters, "filters, which only C keeps"
    hashes = [packed[at : at + hash_bytes] for at in range(0, len(packed), hash_bytes)]
    count = len(parts)
    if len(set(hashes)) < len(hashes) or any(one in parts[one[0] % count] for one in hashes):
        return False
    for one, row in zip(hashes, rows, strict=True):
        names[row] = one
        parts[one[0] % count][one] = row
    return True


def python_forget_rows(lists: NameLists, names: list[bytes], hash_bytes: int, rows: list[int]) -> bytes:
    """forget_rows without C."""
    parts, filters = lists
    assert not filters, "filters, which only C keeps"
    hashes = [names[row] for row in rows]
    for one, row in zip(hashes, rows, strict=True):
        del parts[one[0] % len(parts)][one]
        names[row] = b""
    return b"".join(hashes)


def python_fill_rows(columns: FlatCells, rows: list[int], items: NewItems, segment: int, now_s: float) -> int:
    """fill_rows without C."""
    world, ready, uses, committed, last_use_s, unready_since_s, which, slots, generations, lengths = columns
    values = [np.frombuffer(item, dtype).tolist() for item, dtype in zip(items, _ITEM_TYPES, strict=True)]
    for row, rank, slot, generation, length in zip(rows, *values, strict=True):
        cell = row * world + rank
        which[cell], slots[cell], generations[cell] = segment, slot, generation
        if lengths is not None:
            lengths[cell] = length
        committed[row] = 1 << rank
        last_use_s[row] = unready_since_s[row] = now_s
        uses[row] = ready[row] = 1
    return sum(values[3])
