"""The sink of a running node: reports go to the streams, fresh objects to the checksum thread."""

from __future__ import annotations

from collections.abc import Callable

from moonpool.schemas.messages import Entries, Moved, Op, View
from moonpool.schemas.packed import U32, U64
from moonpool.store_client.checksums import checksum_of
from moonpool.store_client.node.checksums import Checksums
from moonpool.store_client.node.names import Names
from moonpool.store_client.node.report_streams import ReportStreams


class Outlets:
    """Called under the node's lock, from any thread. What is told while no message is on its way goes at once, if `send` can
    send it; else `kick` is called once for all ops until `kicked` is unset, so that they go together."""

    def __init__(self, streams: ReportStreams, checksums: Checksums | None) -> None:
        self._streams = streams
        self._checksums = checksums
        self.names: Names | None = None
        """Tells what is new, where a node is alone in its pool."""
        self.send: Callable[[int], bool] = lambda shard: False
        self.kick: Callable[[], object] | None = None
        self.kicked = False

    def naming(self, shard: int) -> bool:
        """See Sink."""
        return self._streams.of(shard).naming

    def opening(self) -> bool:
        """See Sink."""
        return self._streams.opening

    def emit(self, op: Op, shard: int) -> int:
        """See Sink."""
        stream = self._streams.of(shard)
        new = self.names is not None and isinstance(op, (Entries, Moved)) and self.names.take(op)
        serial = stream.emit(op, new=new)
        if self.kicked or not stream.connected or (stream.idle and self.send(shard)):
            return serial
        if self.kick is not None:
            self.kicked = True
            self.kick()
        return serial

    def checksum(self, payload: View) -> int:
        """See Sink."""
        if self._checksums is None:
            return 0
        self._checksums.computed_at_once += 1
        return checksum_of(payload)

    def written(self, slots: U32, generations: U64) -> None:
        """See Sink."""
        if self._checksums is not None:
            self._checksums.push(slots, generations)
