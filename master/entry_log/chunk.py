"""One record of the entry log: the rows of a stretch of a table, as a few bytes each.

A hash is told once. Parents are mostly the row before; slots, generations and positions are mostly the one before
plus something constant, so columns of differences pack to almost nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from moonpool.master.chained import ChainedTable
from moonpool.master.columns import NO_SEGMENT, view
from moonpool.master.table import Table
from moonpool.schemas.errors import CorruptStore
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import Entries
from moonpool.schemas.packed import U8, pack_u16, pack_u32, pack_u64

CELLS_MAX = 1024
"""Cells (ranks of rows) of a chunk: half a millisecond of work, some 36 KB in the store."""

NO_PARENT, ROW_BEFORE, NAMED = 0, 1, 2
I64s = NDArray[np.int64]


class Chunk(msgspec.Struct, frozen=True, array_like=True, tag="chunk/1"):
    """`columns`: each compressed. `parents`: of those rows whose parent isn't the row before."""

    segments: list[bytes]
    nodes: list[str]
    hashes: bytes
    parents: bytes
    columns: list[bytes]


@dataclass(frozen=True, slots=True)
class SegmentEntries:
    """What a chunk says of one segment."""

    segment: bytes
    node: str
    entries: Entries


_decoder = msgspec.msgpack.Decoder(Chunk)


def rows_a_chunk(table: Table) -> int:
    """How many rows one chunk of this table spans."""
    return max(CELLS_MAX // table.world, 16)


def encode_chunk(table: Table, chunk: int, name_of: Callable[[int], tuple[bytes, str]]) -> bytes:
    """The rows of a stretch; b"" where there are none. `name_of`: a segment's id and node by its index."""
    size = rows_a_chunk(table)
    committed = view(table.committed)[chunk * size : (chunk + 1) * size]
    rows = np.flatnonzero(committed).astype(np.int64) + chunk * size
    if not len(rows):
        return b""
    which = view(table.which).reshape(-1, table.world)[rows]
    indices = np.unique(which[which != NO_SEGMENT])
    local = np.where(which == NO_SEGMENT, -1, np.searchsorted(indices, which))
    names = [name_of(int(index)) for index in indices]
    columns: list[NDArray[np.generic]] = [
        local.ravel(),
        view(table.slots).reshape(-1, table.world)[rows].T.ravel(),
        view(table.generations).reshape(-1, table.world)[rows].T.ravel(),
    ]
    if table.lengths is not None:
        columns.append(view(table.lengths).reshape(-1, table.world)[rows].T.ravel())
    parents = b""
    if isinstance(table, ChainedTable):
        above = view(table.parent)[rows].astype(np.int64)
        before = np.concatenate([[-1], rows[:-1]])
        kinds = np.where(above < 0, NO_PARENT, np.where(above == before, ROW_BEFORE, NAMED))
        parents = b"".join([table.hashes[row] for row in above[kinds == NAMED].tolist()])
        columns += [kinds, view(table.positions)[rows]]
    hashes = b"".join([table.hashes[row] for row in rows.tolist()])
    packed = [_pack(column) for column in columns]
    segments, nodes = [segment for segment, _ in names], [node for _, node in names]
    return msgspec.msgpack.encode(Chunk(segments, nodes, hashes, parents, packed))


def decode_chunk(data: bytes, spec: KeyspaceSpec) -> list[SegmentEntries]:
    """What it says, by segment, rows in the order of the table. Raises CorruptStore."""
    try:
        chunk = _decoder.decode(data)
        return _decode(chunk, spec)
    except (msgspec.MsgspecError, UnicodeDecodeError, zlib.error, ValueError, IndexError) as error:
        raise CorruptStore(path="the entry log", offset=spec.digest().hex(), reason=str(error)) from None


def _decode(chunk: Chunk, spec: KeyspaceSpec) -> list[SegmentEntries]:
    size = spec.hash_bytes
    hashes = np.frombuffer(chunk.hashes, dtype=np.uint8).reshape(-1, size)
    count, cells = len(hashes), len(hashes) * spec.world
    columns = iter(chunk.columns)
    local = _unpack(next(columns), cells).reshape(count, spec.world)
    slots = _unpack(next(columns), cells).reshape(spec.world, count).T
    generations = _unpack(next(columns), cells).reshape(spec.world, count).T
    fixed = np.tile(np.array(spec.shard_bytes, dtype=np.int64), (count, 1))
    lengths = _unpack(next(columns), cells).reshape(spec.world, count).T if spec.variable_size else fixed
    parents = np.zeros_like(hashes)
    positions = np.zeros(count, dtype=np.int64)
    if spec.kind is Kind.CHAINED:
        kinds = _unpack(next(columns), count)
        positions = _unpack(next(columns), count)
        parents[1:][kinds[1:] == ROW_BEFORE] = hashes[:-1][kinds[1:] == ROW_BEFORE]
        parents[kinds == NAMED] = np.frombuffer(chunk.parents, dtype=np.uint8).reshape(-1, size)
    if len(chunk.segments) != len(chunk.nodes) or local.max(initial=-1) >= len(chunk.segments):
        raise ValueError("segments without names")
    found = []
    for index, (segment, node) in enumerate(zip(chunk.segments, chunk.nodes, strict=True)):
        rows, ranks = np.nonzero(local == index)
        entries = Entries(
            spec.digest(),
            pack_u16(ranks),
            pack_u32(positions[rows]) if spec.kind is Kind.CHAINED else b"",
            hashes[rows].tobytes(),
            parents[rows].tobytes() if spec.kind is Kind.CHAINED else b"",
            pack_u32(slots[rows, ranks]),
            pack_u64(generations[rows, ranks]),
            pack_u64(lengths[rows, ranks]),
        )
        found.append(SegmentEntries(segment, node, entries))
    return found


def _pack(column: NDArray[np.generic]) -> bytes:
    differences: I64s = np.diff(column.astype(np.int64), prepend=0)
    # Byte planes: the upper bytes of small differences are zeros or ones by the thousand.
    planes: U8 = differences.view(np.uint8).reshape(-1, 8).T
    return zlib.compress(planes.tobytes(), 1)


def _unpack(data: bytes, count: int) -> I64s:
    inflater = zlib.decompressobj()
    planes = inflater.decompress(data, count * 8 + 1)
    if len(planes) != count * 8:
        raise ValueError(f"a column of {len(planes)} bytes, not {count * 8}")
    differences = np.frombuffer(planes, dtype=np.uint8).reshape(8, count).T.copy().view(np.int64)
    return np.cumsum(differences.ravel())
