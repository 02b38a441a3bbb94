"""Reports of bad copies: which ones are believed at once, and which wait for their node's answer.

A reader that lies or errs must not be able to un-ready the pool: a block that was found good is not doubted
again for a while, and only so many are doubted at once and in a second.
"""

from __future__ import annotations

from collections import deque

AGAIN_S = 10.0
ANSWER_S = 30.0
WAITING_MAX = 1024
A_SECOND_MAX = 64

Key = tuple[bytes, int, bytes]
"""(keyspace, rank, block hash)."""


class BadReports:
    """Checks under way, and blocks that were checked lately."""

    def __init__(self) -> None:
        self._waiting: dict[Key, float] = {}  # in the order in which they were asked
        self._recent: dict[Key, float] = {}  # the same of answers
        self._asked: deque[float] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def admit(self, key: Key, now_s: float) -> bool:
        """Whether this report is to be acted on; if so, a check is under way."""
        while self._asked and self._asked[0] + 1.0 <= now_s:
            self._asked.popleft()
        if (
            key in self._waiting
            or now_s < self._recent.get(key, -AGAIN_S) + AGAIN_S
            or len(self._waiting) >= WAITING_MAX
            or len(self._asked) >= A_SECOND_MAX
        ):
            return False
        self._waiting[key] = now_s
        self._asked.append(now_s)
        return True

    def answered(self, key: Key, now_s: float) -> None:
        """The node has answered, or the copy is gone."""
        self._waiting.pop(key, None)
        self._recent.pop(key, None)
        self._recent[key] = now_s
        if len(self._recent) > WAITING_MAX:
            del self._recent[next(iter(self._recent))]

    def overdue(self, now_s: float) -> list[Key]:
        """Takes out the checks that nobody has answered in time."""
        late: list[Key] = []
        for key, asked_s in self._waiting.items():
            if asked_s + ANSWER_S > now_s:
                break
            late.append(key)
        for key in late:
            self.answered(key, now_s)
        return late
