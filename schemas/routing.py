"""Requests that concern several shards: cut into parts, and their answers put together again.

A client cuts a request into one part a master, a master cuts that into one part a shard: `place_of` says where a shard's
items go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.messages import (
    Done,
    KeyspaceFacts,
    Locate,
    Located,
    Match,
    Matched,
    Message,
    Presence,
    Present,
    Probe,
    Probed,
    ProbedRun,
    PutStart,
    PutStarted,
    Removed,
    Renew,
    Renewed,
)
from moonpool.schemas.packed import I64, count_of, u16s

Index = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What one place is asked. `index`: which of the request's items these are, in their order; None: all, of a request
    that goes to every place."""

    place: int
    message: Message
    index: Index | None


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """`of_shard`: the place of each shard. `all`: where a request goes that names no shard. `keep`: whether parts still
    say which shards they concern. `hash_bytes` of a keyspace may raise."""

    of_shard: I64
    all: Sequence[int]
    keep: bool
    hash_bytes: Callable[[bytes], int]


def parts_of(message: Message, places: Places) -> list[Part]:
    """The parts of a request, one a place. Raises InvalidParams."""
    if isinstance(message, PutStart) and message.items:
        numbers = [_check(item.shard, places) for item in message.items]
        return [
            Part(place, msgspec.structs.replace(message, items=[message.items[i] for i in index]), index)
            for place, index in _groups(places.of_shard[numbers])
        ]
    shard: int = getattr(message, "shard", -1)
    if shard >= 0:
        return [Part(int(places.of_shard[_check(shard, places)]), message, None)]
    packed: bytes = getattr(message, "shards", b"")
    if not packed:
        if isinstance(message, (Probe, Match, Locate, PutStart)):
            if not isinstance(message, PutStart) and (
                message.runs or (isinstance(message, Locate) and message.hashes)
            ):
                raise InvalidParams(field="shards", value="missing", allowed="one for each run or hash")
            return [Part(place, message, None) for place in places.all[:1]]
        return [Part(place, message, None) for place in places.all]
    count_of(packed, 2, "shards")
    shards = u16s(packed)
    _check(int(shards.max()), places)
    size = places.hash_bytes(message.keyspace)  # type: ignore[attr-defined]
    items = _items_of(message, size)
    if len(items) != len(shards):
        raise InvalidParams(field="shards", value=len(shards), allowed=f"{len(items)}, one an item")
    return [
        Part(place, _take(message, items, index, shards[index].tobytes() if places.keep else b""), index)
        for place, index in _groups(places.of_shard[shards])
    ]


def slices_of(message: Message, blocks: int, hash_bytes: Callable[[bytes], int]) -> list[Part]:
    """A request cut in time: parts of about so many blocks each, to be asked one after the other. An item of a PutStart is
    never cut. [] where there is nothing to cut. Raises what `hash_bytes` raises, and InvalidParams."""
    if isinstance(message, PutStart):
        counts = [len(item.hashes) // hash_bytes(item.keyspace) for item in message.items]
        if sum(counts) <= blocks:  # the usual case
            return []
        ends = np.cumsum(counts, dtype=np.int64)
        numbers = np.maximum(ends - 1, 0) // blocks
        return [
            Part(0, msgspec.structs.replace(message, items=[message.items[i] for i in index]), index)
            for _, index in _groups(numbers)
        ]
    if not isinstance(message, (Presence, Renew, Locate)) or not message.hashes:
        return []
    size = hash_bytes(message.keyspace)
    count = len(message.runs) if isinstance(message, Locate) and message.runs else 0
    count = count or count_of(message.hashes, size, "hashes")
    if len(message.shards) not in (0, 2 * count):
        raise InvalidParams(field="shards", value=len(message.shards) // 2, allowed=f"{count}, one an item")
    if count <= blocks:  # the usual case
        return []
    items, shards = _items_of(message, size), u16s(message.shards)
    cuts = [np.arange(at, min(at + blocks, len(items))) for at in range(0, len(items), blocks)]
    return [
        Part(0, _take(message, items, index, shards[index[0] : index[-1] + 1].tobytes()), index)
        for index in cuts
    ]


def _check(shard: int, places: Places) -> int:
    if not 0 <= shard < len(places.of_shard):
        raise InvalidParams(field="shard", value=shard, allowed=f"0 to {len(places.of_shard) - 1}")
    return shard


def _groups(places: I64) -> list[tuple[int, Index]]:
    if not len(places):
        return []
    if (places == places[0]).all():
        return [(int(places[0]), np.arange(len(places)))]
    order = np.argsort(places, kind="stable")
    cuts = np.flatnonzero(np.diff(places[order])) + 1
    return [(int(places[index[0]]), index) for index in np.split(order, cuts)]


def _items_of(message: Message, hash_bytes: int) -> Sequence[Any]:
    if isinstance(message, (Probe, Match)) or (isinstance(message, Locate) and message.runs):
        return message.runs
    packed: bytes = message.hashes  # type: ignore[attr-defined]
    count_of(packed, hash_bytes, "hashes")
    # One array item a hash: taking any of them, in any order, is one step.
    items: Sequence[Any] = np.frombuffer(packed, dtype=f"V{hash_bytes}")  # type: ignore[assignment]
    return items


def _take(message: Message, items: Sequence[Any], index: Index, shards: bytes) -> Message:
    if isinstance(items, np.ndarray):
        return msgspec.structs.replace(message, hashes=items[index].tobytes(), shards=shards)
    part = msgspec.structs.replace(message, runs=[items[i] for i in index], shards=shards)
    if isinstance(part, Probe) and index[0] != 0:
        # Whole samples to where chains begin: each place sees as large a part of the requests as it has of the runs.
        return msgspec.structs.replace(part, sample=b"", sample_mask=-1)
    return part


# ---------------------------------------------------------------- answers


def merged(message: Message, parts: Sequence[Part], replies: Sequence[Message]) -> Message:
    """One answer from those of all parts, in the order of the request's items."""
    if len(replies) == 1 and (parts[0].index is None or _in_order(parts[0].index)):
        return replies[0]
    if isinstance(message, Probe):
        ready = _in_place(parts, [reply.ready for reply in replies])  # type: ignore[attr-defined]
        first = next(i for i, part in enumerate(parts) if part.index is not None and part.index[0] == 0)
        return Probed(_unbroken(message.runs, ready), replies[first].sample_mask)  # type: ignore[attr-defined]
    if isinstance(message, Match):
        return Matched(_in_place(parts, [reply.ready for reply in replies]))  # type: ignore[attr-defined]
    if isinstance(message, PutStart) and message.items:
        answers = _in_place(parts, [reply.answers for reply in replies])  # type: ignore[attr-defined]
        segments = _in_place(parts, [reply.segments for reply in replies])  # type: ignore[attr-defined]
        direct = [reply.direct_ms or [0] * len(reply.segments) for reply in replies]  # type: ignore[attr-defined]
        direct_ms = _in_place(parts, direct) if any(map(any, direct)) else []
        direct_bytes = min(reply.direct_bytes for reply in replies)  # type: ignore[attr-defined]
        return PutStarted(answers, segments, direct_ms, direct_bytes)
    if isinstance(message, Presence):
        return Present(_bits(parts, replies))
    if isinstance(message, Renew):
        return Renewed(_bits(parts, replies))
    if isinstance(message, Locate):
        return _located(message, parts, replies)
    if replies and isinstance(replies[0], Removed):
        return Removed(
            sum(reply.count for reply in replies),  # type: ignore[attr-defined]
            sum(reply.skipped for reply in replies),  # type: ignore[attr-defined]
            sorted({node for reply in replies for node in reply.pending}),  # type: ignore[attr-defined]
        )
    if replies and isinstance(replies[0], KeyspaceFacts):
        columns = [msgspec.structs.astuple(reply) for reply in replies]
        whole = KeyspaceFacts(*map(sum, zip(*columns, strict=True)))
        return msgspec.structs.replace(whole, replicas=max(reply.replicas for reply in replies))  # type: ignore[attr-defined]
    return Done(sum(reply.count for reply in replies))  # type: ignore[attr-defined]


def _in_order(index: Index) -> bool:
    return bool((np.diff(index) == 1).all())


def _in_place(parts: Sequence[Part], columns: Sequence[Sequence[Any]]) -> list[Any]:
    found: list[Any] = [None] * sum(map(len, columns))
    for part, column in zip(parts, columns, strict=True):
        assert part.index is not None
        for at, value in zip(part.index.tolist(), column, strict=True):
            found[at] = value
    return found


def _bits(parts: Sequence[Part], replies: Sequence[Message]) -> bytes:
    """One a hash; of a request that went to every shard, whether any of them has it."""
    columns = [np.frombuffer(reply.bits, dtype=np.uint8) for reply in replies]  # type: ignore[attr-defined]
    bits = np.zeros(sum(map(len, columns)) if _split(parts) else max(map(len, columns), default=0), np.uint8)
    for part, column in zip(parts, columns, strict=True):
        bits[slice(None) if part.index is None else part.index] |= column
    return bits.tobytes()


def _split(parts: Sequence[Part]) -> bool:
    return any(part.index is not None for part in parts)


def _located(message: Locate, parts: Sequence[Part], replies: Sequence[Message]) -> Located:
    """Columns have one entry a block: each of a run's, or of a hash's one."""
    places = [_blocks_of(message, part) for part in parts]
    count = sum(map(len, places))
    which, slots = np.zeros(count, "<u2"), np.zeros(count, "<u4")
    generations, lengths = np.zeros(count, "<u8"), np.zeros(count, "<u8")
    segments: dict[bytes, int] = {}
    for blocks, reply in zip(places, replies, strict=True):
        assert isinstance(reply, Located)
        numbers = [segments.setdefault(name, len(segments)) for name in reply.segments] or [0]
        which[blocks] = np.array(numbers, "<u2")[np.frombuffer(reply.which, "<u2")]
        slots[blocks] = np.frombuffer(reply.slots, "<u4")
        generations[blocks] = np.frombuffer(reply.generations, "<u8")
        lengths[blocks] = np.frombuffer(reply.lengths, "<u8")
    return Located(list(segments), which.tobytes(), slots.tobytes(), generations.tobytes(), lengths.tobytes())


def _blocks_of(message: Locate, part: Part) -> Index:
    assert part.index is not None
    if not message.runs:
        return part.index
    counts = np.array([run.count for run in message.runs])
    starts = np.cumsum(counts) - counts
    runs = [np.arange(starts[i], starts[i] + counts[i]) for i in part.index]
    return np.concatenate(runs) if runs else np.zeros(0, dtype=np.intp)


FAILED = 255
"""In place of a PutAnswer: nobody could be asked."""


def _unbroken(runs: Sequence[ProbedRun], ready: list[int]) -> list[int]:
    """Nothing behind the first run that isn't all ready, which may be another part's."""
    for index, run in enumerate(runs):
        if ready[index] < run.count:
            return [*ready[: index + 1], *[0] * (len(runs) - index - 1)]
    return ready


def missed(message: Message, hash_bytes: Callable[[bytes], int]) -> Message | None:
    """What stands for the answer of a master that can't be asked: it counts as having nothing. None: who asked this must
    know."""
    match message:
        case Probe():
            return Probed([0] * len(message.runs), message.sample_mask)
        case Match():
            return Matched([0] * len(message.runs))
        case PutStart():
            counts = [len(item.hashes) // hash_bytes(item.keyspace) for item in message.items]
            return PutStarted([bytes([FAILED]) * count for count in counts], [b""] * len(counts))
        case Presence():
            return Present(bytes(len(message.hashes) // hash_bytes(message.keyspace)))
        case Renew():
            return Renewed(bytes(len(message.hashes) // hash_bytes(message.keyspace)))
        case Locate():
            count = sum(run.count for run in message.runs)
            count += len(message.hashes) // hash_bytes(message.keyspace)
            return Located([], bytes(2 * count), bytes(4 * count), bytes(8 * count), bytes(8 * count))
    return None
