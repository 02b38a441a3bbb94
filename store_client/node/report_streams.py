"""The report streams of one segment, one a shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import NamedTuple

from moonpool.store_client.node.inventory import Inventory
from moonpool.store_client.node.obeyed import Order
from moonpool.store_client.node.reports import WINDOW, ReportStream

WINDOWS = 64
"""Messages of all streams that may be on their way, where there are many."""

Visible = Callable[[Mapping[int, int]], Future[None]]
"""By shard a serial of its stream -> done once the shards' masters have those."""


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

    def wait(self, serials: Mapping[int, int]) -> Future[None]:
        """See Visible. Whoever waits bounds the wait and cancels the future. Raises Unavailable."""
        waits = [self.of(shard).wait(serial) for shard, serial in serials.items()]
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


def _all(waits: list[Future[None]]) -> Future[None]:
    """Done when all are; cancelled with it, they make room for others."""
    whole: Future[None] = Future()
    left = len(waits)
    if not left:
        whole.set_result(None)

    def one_is_done(wait: Future[None]) -> None:
        nonlocal left
        left -= 1  # under the node's lock, as all that ends a wait
        if not left and not wait.cancelled() and whole.set_running_or_notify_cancel():
            whole.set_result(None)

    def cancel_all(ended: Future[None]) -> None:
        if ended.cancelled():
            for wait in waits:
                wait.cancel()

    whole.add_done_callback(cancel_all)
    for wait in waits:
        wait.add_done_callback(one_is_done)
    return whole
