"""Whether saving is worth a try: after the pool had no space, or nobody answered, only small probes go out."""

from __future__ import annotations

OPEN_BLOCKS = 4096
PROBE_BLOCKS = 16
PAUSE_FIRST_S = 0.5
PAUSE_MAX_S = 8.0


class SaveGate:
    """Open until a job fails; then one probe a pause, the pauses growing, until one gets through."""

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._probe_at_s = 0.0

    @property
    def open(self) -> bool:
        """Whether jobs of any size may go out."""
        return self._pause_s == 0.0

    def budget(self, now_s: float) -> int:
        """Blocks that one job may have now."""
        if self.open:
            return OPEN_BLOCKS
        return PROBE_BLOCKS if now_s >= self._probe_at_s else 0

    def sent(self, now_s: float) -> None:
        """A job went out: while closed, the next probe waits for its outcome or a pause."""
        if not self.open:
            self._probe_at_s = now_s + self._pause_s

    def succeeded(self) -> None:
        """The pool took blocks."""
        self._pause_s = 0.0

    def failed(self, now_s: float, *, probe: bool) -> None:
        """The pool took nothing, for want of space or of an answer. `probe`: the job went out while closed;
        only those make the pauses grow, or the jobs under way at the first failure would all add to it."""
        if self.open:
            self._pause_s = PAUSE_FIRST_S
        elif probe:
            self._pause_s = min(PAUSE_MAX_S, 2 * self._pause_s)
        else:
            return
        self._probe_at_s = now_s + self._pause_s

    def validate(self) -> None:
        """Pauses are bounded."""
        assert 0.0 <= self._pause_s <= PAUSE_MAX_S
