"""Gets: ask the master where blocks lie, read them there, once more where they have moved meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.errors import MoonpoolError, ProtocolError
from moonpool.schemas.messages import AVOID_MAX, Done, Locate, Located, ReportBad, Status
from moonpool.schemas.packed import (
    U8,
    U16,
    U32,
    U64,
    PackedHashes,
    all_zero,
    u16s,
    u32s,
    u64s,
)
from moonpool.store_client.cluster import Cluster
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.nodes import Nodes
from moonpool.store_client.transports.base import ReadBatch
from moonpool.store_client.workers import Workers

log = logging.getLogger(__name__)

REPORTS_PER_CALL = 32
REPORTED_KEPT = 1024

_OK, _MISSING, _GONE = np.uint8(Status.OK), np.uint8(Status.MISSING), np.uint8(Status.GONE)
_CORRUPT, _FAILED = np.uint8(Status.CORRUPT), np.uint8(Status.FAILED)
"""Compared with arrays of statuses: a fifth of an enum's time."""


class Places:
    """Where objects lie, one entry each; a generation of 0: nowhere. Columns become arrays when they are asked for: few
    readers need more than `together`."""

    __slots__ = ("located", "segments")

    def __init__(self, located: Located, count: int, peer: str) -> None:
        """Raises ProtocolError where the columns don't fit."""
        sizes = (len(located.which), len(located.slots), len(located.generations), len(located.lengths))
        if sizes != (2 * count, 4 * count, 8 * count, 8 * count):
            raise ProtocolError(peer=peer, reason=f"locations of another size than {count}")
        self.segments = located.segments
        self.located = located
        if located.segments and located.which == bytes(2 * count):  # all in the first one: the usual case
            return
        nowhere = self.which >= len(located.segments)
        if nowhere.any() and (self.generations[nowhere] != 0).any():
            raise ProtocolError(peer=peer, reason="a location in no segment")

    @property
    def which(self) -> U16:
        """Index into `segments`."""
        return u16s(self.located.which)

    @property
    def slots(self) -> U32:
        """In those."""
        return u32s(self.located.slots)

    @property
    def generations(self) -> U64:
        """0: nowhere."""
        return u64s(self.located.generations)

    @property
    def lengths(self) -> U64:
        """Payload bytes."""
        return u64s(self.located.lengths)

    @staticmethod
    def join(parts: Sequence[Places]) -> Places:
        """The places of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        segments = [segment for part in parts for segment in part.segments]
        first = np.cumsum([0, *(len(part.segments) for part in parts)])
        which = [part.which.astype(np.int64) + at for part, at in zip(parts, first[:-1], strict=True)]
        columns = [(one.slots, one.generations, one.lengths) for one in (part.located for part in parts)]
        packed = [b"".join(column) for column in zip(*columns, strict=True)]
        located = Located(segments, np.concatenate(which).astype("<u2").tobytes(), *packed)
        return Places(located, sum(map(len, which)), "several masters")

    def take(self, objects: NDArray[np.intp]) -> Places:
        """The places of some of the objects."""
        columns = (self.which, self.slots, self.generations, self.lengths)
        located = Located(list(self.segments), *(column[objects].tobytes() for column in columns))
        return Places(located, len(objects), "")

    def together(self, lengths: bytes) -> bool:
        """Whether all lie in one segment, as far as they are anywhere, and are so long: u64 each."""
        located = self.located
        return (
            len(self.segments) == 1
            and located.lengths == lengths
            and located.which == bytes(len(located.which))
        )

    def moved(self, before: Places) -> NDArray[np.bool_]:
        """Which objects lie somewhere else now, and as long as before."""
        names, old = np.array([*self.segments, b""]), np.array([*before.segments, b""])
        same = (
            (self.slots == before.slots)
            & (self.generations == before.generations)
            & (
                names[np.minimum(self.which, len(self.segments))]
                == old[np.minimum(before.which, len(old) - 1)]
            )
        )
        result: NDArray[np.bool_] = (self.generations != 0) & ~same & (self.lengths == before.lengths)
        return result


class Wanted(msgspec.Struct, frozen=True, eq=False):
    """Objects of one keyspace and rank, and where their bytes go: one entry of each column an object."""

    keyspace: bytes
    rank: int
    hashes: Sequence[bytes]
    into: Fragments
    lengths: U64

    def padded(self) -> NDArray[np.bytes_]:
        """Hashes as headers are compared with."""
        if isinstance(self.hashes, PackedHashes):
            return self.hashes.padded()
        return np.array(self.hashes, dtype="S32")


Locator = Callable[[Sequence[bytes]], Places]
"""Locates the same objects (once more), if it can not in these segments. May raise."""


class Getter:
    """Locates and reads."""

    def __init__(self, cluster: Cluster, nodes: Nodes, workers: Workers, verify: bool) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._workers = workers
        self._verify = verify
        self._reported: OrderedDict[tuple[bytes, int, int], None] = OrderedDict()
        self._lock = threading.Lock()

    def locate(self, request: Locate, count: int, deadline_s: float) -> Places:
        """Raises what the call raises."""
        located = self._cluster.ask(request, Located, deadline_s)
        return Places(located, count, self._cluster.name)

    def get(self, wanted: Wanted, locate: Locator, deadline_s: float) -> U8:
        """Locates and reads. A Status an object; raises nothing: an unreachable master gives FAILED."""
        try:
            places = locate(())
        except MoonpoolError as error:
            log.debug("could not locate: %s", error)
            return np.full(len(wanted.hashes), Status.FAILED, dtype=np.uint8)
        return self.read(wanted, places, locate, deadline_s)

    def read(self, wanted: Wanted, places: Places, again: Locator, deadline_s: float) -> U8:
        """A Status an object. `again` locates the same objects once more; it may raise. Raises nothing."""
        if places.together(wanted.lengths.tobytes()):  # the usual case
            return self.read_together(wanted, places, again, deadline_s)
        there = places.generations != 0
        statuses = np.where(there, _CORRUPT, _MISSING)
        good = there & (places.lengths == wanted.lengths)
        self._read(wanted, places, good, statuses, deadline_s)
        self._mend(wanted, places, there, statuses, again, deadline_s)
        return statuses

    def read_together(self, wanted: Wanted, places: Places, again: Locator, deadline_s: float) -> U8:
        """The same of `places` that are `together` with the wanted lengths."""
        statuses = self._read_segment(places.segments[0], wanted, places, deadline_s)
        if not all_zero(statuses):
            self._mend(wanted, places, places.generations != 0, statuses, again, deadline_s)
        return statuses

    def _mend(
        self,
        wanted: Wanted,
        places: Places,
        there: NDArray[np.bool_],
        statuses: U8,
        again: Locator,
        deadline_s: float,
    ) -> None:
        """Reads once more what has moved meanwhile, and other copies of what could not be read; and reports what isn't
        what it should be."""
        self._report(wanted, places, statuses == _CORRUPT, deadline_s)
        gone = there & ((statuses == _MISSING) | (statuses == _GONE))
        failed = there & (statuses == _FAILED) & (time.monotonic() < deadline_s)
        if not (gone | failed).any():
            return
        statuses[gone] = _MISSING
        avoid = [places.segments[number] for number in np.unique(places.which[failed]).tolist()]
        try:
            places_now = again(avoid[:AVOID_MAX])
        except MoonpoolError as error:
            log.debug("could not locate again: %s", error)
            return
        moved = (gone | failed) & places_now.moved(places)
        self._read(wanted, places_now, moved, statuses, deadline_s)
        self._report(wanted, places_now, moved & (statuses == _CORRUPT), deadline_s)
        # Twice the same place, and not there: the index is wrong, and should hear of it.
        self._report(wanted, places, gone & ~moved & (places_now.generations != 0), deadline_s)

    def _read(
        self, wanted: Wanted, places: Places, good: NDArray[np.bool_], statuses: U8, deadline_s: float
    ) -> None:
        """Those that are `good`."""

        def read_some(mine: NDArray[np.intp], segment: bytes) -> None:
            part = Wanted(
                wanted.keyspace,
                wanted.rank,
                [wanted.hashes[i] for i in mine.tolist()],
                wanted.into if len(mine) == wanted.into.count else wanted.into.take(mine),
                wanted.lengths[mine],
            )
            statuses[mine] = self._read_segment(segment, part, places.take(mine), deadline_s)

        index = np.flatnonzero(good)  # in order: all of them are read into the memory as it is
        statuses[index] = _FAILED
        which = places.which[index]
        tasks = [
            partial(read_some, index[which == number], places.segments[number])
            for number in np.unique(which).tolist()
        ]
        self._workers.run(tasks, deadline_s)

    def _read_segment(self, segment: bytes, wanted: Wanted, places: Places, deadline_s: float) -> U8:
        """All of what is wanted, from one segment."""
        link = self._nodes.find(segment, deadline_s)
        if link is None:
            return np.full(len(places.slots), _FAILED)
        columns = (wanted.padded(), places.slots, places.generations, places.lengths)
        batch = ReadBatch(wanted.keyspace, wanted.rank, *columns, wanted.into, self._verify)
        statuses = link.read(batch, deadline_s)
        now = self._nodes.started_anew(segment, link, [statuses], deadline_s)
        return statuses if now is None else now.read(batch, deadline_s)

    def _report(self, wanted: Wanted, places: Places, bad: NDArray[np.bool_], deadline_s: float) -> None:
        """Says once of each place that it doesn't hold what it should."""
        for i in np.flatnonzero(bad)[:REPORTS_PER_CALL].tolist():
            place = (places.segments[places.which[i]], int(places.slots[i]), int(places.generations[i]))
            with self._lock:
                if place in self._reported:
                    continue
                self._reported[place] = None
                if len(self._reported) > REPORTED_KEPT:
                    self._reported.popitem(last=False)
            segment, slot, generation = place
            block_hash = wanted.hashes[i]
            report = ReportBad(wanted.keyspace, wanted.rank, block_hash, segment, slot, generation)
            log.warning("block %s is bad in segment %s slot %d", block_hash.hex(), segment.hex(), slot)
            try:
                self._cluster.ask(report, Done, deadline_s)
            except MoonpoolError as error:
                log.debug("bad block not reported: %s", error)
                return
