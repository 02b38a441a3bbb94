"""The report streams of one segment, one a shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple, Protocol

from moonpool.schemas.errors import Unavailable
from moonpool.store_client.node.inventory import Inventory
from moonpool.store_client.node.obeyed import Order
from moonpool.store_client.node.reports import WINDOW, ReportStream, Seen, Surplus, Wait, as_future

WINDOWS = 64
"""Messages of all streams that may be on their way, where there are many."""


class Visible(Protocol):
    """By shard a serial of its stream -> done once the shards' masters have those: what they had no use for. `unbroken`:
    see ReportStream.wait."""

    def __call__(self, serials: Mapping[int, int], *, unbroken: bool = False) -> Future[Surplus]: ...


class Watch(Protocol):
    """The same, told at once to who asks."""

    def __call__(self, serials: Mapping[int, int], seen: Seen, *, unbroken: bool = False) -> Wait: ...


class ReportStreams:
    """Each shard's stream is made when first needed. All calls under the node's lock."""

    def __init__(
        self,
        segment: bytes,
        open_inventory: Callable[[int], Inventory],
        new_stream: Callable[[], int],
        obeyed: Callable[[int], list[Order]],
        next_generation: Callable[[], int],
    ) -> None:
        self._segment = segment
        self._open_inventory = open_inventory
        self._new_stream = new_stream
        self._obeyed = obeyed
        self._next_generation = next_generation
        self._streams: dict[int, ReportStream] = {}
        self._window = WINDOW
        self.news: set[int] = set()
        """Shards that have something to tell: to be read without the lock, before it is asked for."""

    def use_shards(self, shards: int) -> None:
        """How many the cluster has: they share the window."""
        self._window = max(2, min(WINDOW, WINDOWS // shards))

    def of(self, shard: int) -> ReportStream:
        """The stream of a shard."""
        stream = self._streams.get(shard)
        if stream is None:
            stream = self._streams[shard] = ReportStream(
                self._segment,
                lambda: self._open_inventory(shard),
                self._new_stream,
                shard=shard,
                window=self._window,
                obeyed=lambda: self._obeyed(shard),
                next_generation=self._next_generation,
                news=self.news,
            )
        return stream

    @property
    def opening(self) -> bool:
        """Whether the first message of any stream is not acknowledged."""
        return any(stream.opening for stream in self._streams.values())

    def settled(self, shard: int) -> bool:
        """Whether the master of the shard knows all that the segment holds."""
        stream = self._streams.get(shard)
        return stream is not None and stream.settled

    def watch(self, serials: Mapping[int, int], seen: Seen, *, unbroken: bool = False) -> Wait:
        """See Watch, and ReportStream.watch. Raises Unavailable."""
        if len(serials) == 1:  # the usual case
            for shard, serial in serials.items():
                return self.of(shard).watch(serial, seen, unbroken=unbroken)
        watches = [
            partial(self.of(shard).watch, serial, unbroken=unbroken) for shard, serial in serials.items()
        ]
        return _all(watches, seen)

    def wait(self, serials: Mapping[int, int], *, unbroken: bool = False) -> Future[Surplus]:
        """See Visible. Whoever waits bounds the wait and cancels the future. Raises Unavailable."""
        return as_future(lambda seen: self.watch(serials, seen, unbroken=unbroken))

    @property
    def facts(self) -> Facts:
        """Of all streams together."""
        streams = self._streams.values()
        return Facts(
            sum(stream.streams_started for stream in streams), sum(stream.queued_rows for stream in streams)
        )


class Facts(NamedTuple):
    """Numbers for people and tests."""

    streams_started: int
    queued_rows: int


def _all(watches: Sequence[Callable[[Seen], Wait]], seen: Seen) -> Wait:
    """Waits of several shards as one: told when all have been, or one has failed."""
    whole = Wait(None, seen, unbroken=False)
    left = len(watches)
    surplus: dict[int, int] = {}

    def told(outcome: Surplus | Unavailable) -> None:
        nonlocal left
        left -= 1  # under the node's lock, as all that ends a wait
        if isinstance(outcome, Unavailable):
            whole.end(outcome)
            return
        surplus.update(outcome)
        if not left:
            whole.end(surplus)

    if not watches:
        whole.end(surplus)
    try:
        for watch in watches:
            whole.parts.append(watch(told))
    except Unavailable:
        whole.leave()
        raise
    return whole
