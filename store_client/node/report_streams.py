"""The report streams of one segment, one a shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from moonpool.store_client.node.inventory import Inventory
from moonpool.store_client.node.obeyed import Order
from moonpool.store_client.node.reports import WINDOW, ReportStream, Surplus

WINDOWS = 64
"""Messages of all streams that may be on their way, where there are many."""


class Visible(Protocol):
    """By shard a serial of its stream -> done once the shards' masters have those: what they had no use for. `unbroken`:
    see ReportStream.wait."""

    def __call__(self, serials: Mapping[int, int], *, unbroken: bool = False) -> Future[Surplus]: ...


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
            )
        return stream

    @property
    def opening(self) -> bool:
        """Whether the first message of any stream is not acknowledged."""
        return any(stream.opening for stream in self._streams.values())

    def settled(self, shards: Iterable[int]) -> bool:
        """Whether the masters of these shards know all that the segment holds."""
        return all(self.of(shard).settled for shard in shards)

    def wait(self, serials: Mapping[int, int], *, unbroken: bool = False) -> Future[Surplus]:
        """See Visible, and ReportStream.wait. Whoever waits bounds the wait and cancels the future. Raises Unavailable."""
        waits = [self.of(shard).wait(serial, unbroken=unbroken) for shard, serial in serials.items()]
        return waits[0] if len(waits) == 1 else _all(waits)

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


def _all(waits: list[Future[Surplus]]) -> Future[Surplus]:
    """Done when all are, or one has failed; cancelled with it, they make room for others."""
    whole: Future[Surplus] = Future()
    left = len(waits)
    surplus: dict[int, int] = {}
    if not left:
        whole.set_result(surplus)

    def one_is_done(wait: Future[Surplus]) -> None:
        nonlocal left
        left -= 1  # under the node's lock, as all that ends a wait
        if wait.cancelled() or whole.done():
            return
        error = wait.exception()
        if error is None:
            surplus.update(wait.result())
        if (error is not None or not left) and whole.set_running_or_notify_cancel():
            if error is not None:
                whole.set_exception(error)
            else:
                whole.set_result(surplus)

    def cancel_all(ended: Future[Surplus]) -> None:
        if ended.cancelled():
            for wait in waits:
                wait.cancel()

    whole.add_done_callback(cancel_all)
    for wait in waits:
        wait.add_done_callback(one_is_done)
    return whole
