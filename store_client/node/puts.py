"""Open grants: what each writer may fill, by (session, put id), and how its last puts ended."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.errors import NotFound, Overloaded
from moonpool.schemas.messages import BeginItem, Granted, Status
from moonpool.schemas.packed import U8, U32, U64

PUTS_MAX = 4096
FINISHED_KEPT = 1024
OK = np.uint8(Status.OK)
"""Compared with arrays of statuses: a fifth of an enum's time."""

LANES = 0
"""The session of the node's own threads, which write what arrives over tcp."""


@dataclass(slots=True, eq=False)
class Put:
    """One Begin. Columns have one entry a block; slot and generation count where the status is OK."""

    session: int
    put_id: int
    statuses: U8
    slots: U32
    generations: U64
    doomed: NDArray[np.bool_]
    ahead_bytes: int = 0
    """Of each slot, where they were granted ahead and have no names."""
    larger: bool = False
    """Whether some of its slots are larger than their objects want: see Allocator.take_larger."""
    item: BeginItem | None = None
    """What the headers of all its slots were made of, where that was one item of rows that stand alone."""

    def granted(self) -> Granted:
        """The answer to its Begin."""
        return Granted(self.put_id, self.statuses.tobytes(), self.slots.tobytes(), self.generations.tobytes())

    def open_blocks(self) -> NDArray[np.intp]:
        """Indices of the blocks that got a slot."""
        return np.flatnonzero(self.statuses == OK)


@dataclass(slots=True, eq=False)
class Writer:
    """One session's puts. The answers of the last ones are kept, so that a repeated call gets the same."""

    session: int
    puts: dict[int, Put] = field(default_factory=dict)
    finished: OrderedDict[int, bytes] = field(default_factory=OrderedDict)
    ahead_slots: int = 0
    ahead_bytes: int = 0
    """Granted ahead, and not named yet."""

    def open(self, put: Put) -> None:
        """Adds a put."""
        self.puts[put.put_id] = put
        if put.ahead_bytes:
            self._count_ahead(put, 1)

    def _count_ahead(self, put: Put, step: int) -> None:
        self.ahead_slots += step * len(put.slots)
        self.ahead_bytes += step * len(put.slots) * put.ahead_bytes

    def close(self, put: Put, statuses: bytes) -> None:
        """Its writer has committed, revoked or died."""
        del self.puts[put.put_id]
        if put.ahead_bytes:
            self._count_ahead(put, -1)
        self.finished[put.put_id] = statuses
        if len(self.finished) > FINISHED_KEPT:
            self.finished.popitem(last=False)

    def answer(self, put_id: int) -> Granted | None:
        """What a Begin that came before was told. A finished one is GONE: nobody writes there any more."""
        if put_id in self.puts:
            return self.puts[put_id].granted()
        if put_id in self.finished:
            count = len(self.finished[put_id])
            return Granted(put_id, bytes([Status.GONE]) * count, bytes(4 * count), bytes(8 * count))
        return None

    def check_room(self) -> None:
        """Raises Overloaded."""
        if len(self.puts) >= PUTS_MAX:
            raise Overloaded(what=f"session {self.session:x}", limit=f"{PUTS_MAX} open puts")


class Writers:
    """All sessions."""

    def __init__(self) -> None:
        self._writers = {LANES: Writer(LANES)}

    def add(self, session: int) -> None:
        """Idempotent."""
        self._writers.setdefault(session, Writer(session))

    def remove(self, session: int) -> None:
        """One without open puts."""
        assert not self._writers[session].puts
        del self._writers[session]

    def get(self, session: int) -> Writer:
        """Raises NotFound: the session was never opened here, or its lock was free."""
        found = self._writers.get(session)
        if found is None:
            raise NotFound(key=f"session {session:x}")
        return found

    def find_put(self, session: int, put_id: int) -> Put | None:
        """An open put."""
        writer = self._writers.get(session)
        return writer.puts.get(put_id) if writer else None

    def __len__(self) -> int:
        return len(self._writers)

    @property
    def ahead_bytes(self) -> int:
        """Granted ahead to all sessions, and not named yet."""
        return sum([writer.ahead_bytes for writer in self._writers.values()])

    def __contains__(self, session: int) -> bool:
        return session in self._writers

    def all_puts(self) -> list[Put]:
        """Every open put, for tests and status."""
        return [put for writer in self._writers.values() for put in writer.puts.values()]

    @property
    def sessions(self) -> list[int]:
        """Session ids, the lanes' own included."""
        return list(self._writers)
