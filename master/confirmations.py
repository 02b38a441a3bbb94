"""Requests that wait until nodes have confirmed their drops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

DropKey = tuple[bytes, int]
"""(segment, drop id)."""


class Confirmations:
    """Who waits for which drops. Each wait ends by its own timer, whether anybody still awaits it or not."""

    def __init__(self) -> None:
        self._waits: dict[DropKey, list[_Wait]] = {}

    def expect(self, drops: Iterable[DropKey], timeout_s: float) -> asyncio.Future[list[DropKey]]:
        """A future of the drops that are not confirmed in time, in the order given."""
        wait = _Wait(drops)
        if not wait.open:
            wait.end()
            return wait.future
        for key in wait.open:
            self._waits.setdefault(key, []).append(wait)
        asyncio.get_running_loop().call_later(timeout_s, self._expire, wait)
        return wait.future

    def confirm(self, drops: Iterable[DropKey]) -> None:
        """These are done. Unknown ones, and those that were late, are no matter."""
        for key in drops:
            for wait in self._waits.pop(key, ()):
                del wait.open[key]
                if not wait.open:
                    wait.end()

    def validate(self) -> None:
        """Raises AssertionError where a wait and its keys don't name each other."""
        for key, waits in self._waits.items():
            assert waits, key
            assert all(key in wait.open for wait in waits), key

    def __len__(self) -> int:
        return len(self._waits)

    def _expire(self, wait: _Wait) -> None:
        for key in wait.open:
            waits = self._waits[key]
            waits.remove(wait)
            if not waits:
                del self._waits[key]
        wait.end()


class _Wait:
    def __init__(self, drops: Iterable[DropKey]) -> None:
        self.open = dict.fromkeys(drops)
        self.future: asyncio.Future[list[DropKey]] = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        if not self.future.done():
            self.future.set_result(list(self.open))
