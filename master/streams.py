"""The one ordered stream between a segment and a shard, as the shard's master sees it."""

from __future__ import annotations

from moonpool.schemas.errors import StreamGap


class ReportStream:
    """Knows which message comes next. Sequence 0 begins a new stream at any time."""

    def __init__(self) -> None:
        self._stream: int | None = None
        self._next = 0

    def check(self, stream: int, sequence: int) -> None:
        """Raises StreamGap where this is not the next message."""
        if sequence == 0:
            return
        if stream != self._stream or sequence != self._next:
            raise StreamGap(expected=self._next if stream == self._stream else 0, got=sequence)

    def advance(self, stream: int, sequence: int) -> None:
        """The message has been applied."""
        self._stream, self._next = stream, sequence + 1
