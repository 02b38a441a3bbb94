"""Progress of a run on stderr: one line that changes on a terminal, one a group elsewhere."""

from __future__ import annotations

import sys
import time

WIDTH = 78


class Progress:
    """`group` and `step` say what is done now."""

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self._live = sys.stderr.isatty()
        self._group = ""

    def group(self, name: str) -> None:
        """A group begins."""
        self._group = name
        self._line(f"{name} ...", end="\n")

    def step(self, what: str) -> None:
        """A case begins."""
        if self._live:
            self._line(f"{self._group}: {what}", end="")

    def done(self) -> None:
        """Nothing more comes."""
        self._line("done", end="\n")

    def _line(self, text: str, end: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._start_s), 60)
        start = "\r\x1b[K" if self._live else ""
        print(f"{start}{minutes:3d}:{seconds:02d} {text}"[:WIDTH], end=end, file=sys.stderr, flush=True)
