"""What was asked of one keyspace and what was there, in plain ints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from moonpool.schemas.messages import ProbedRun


@dataclass(slots=True)
class Traffic:
    """Counters of one keyspace's table, which lives on when the table is cleared."""

    requests: int = 0
    asked_blocks: int = 0
    hit_blocks: int = 0
    evicted_blocks: int = 0

    def asked(self, runs: Sequence[ProbedRun], ready: Sequence[int]) -> None:
        """A request for these runs, of which so many blocks from the first on are ready. What comes after a gap is no
        hit: nobody can use it. Other shards' runs of the same request are not seen here."""
        self.requests += bool(runs) and runs[0].first == 0
        counts = [run.count for run in runs]
        self.asked_blocks += sum(counts)
        for count, found in zip(counts, ready, strict=True):
            self.hit_blocks += found
            if found != count:
                return

    def add(self, other: Traffic) -> None:
        """Of another shard."""
        for counter in fields(self):
            setattr(self, counter.name, getattr(self, counter.name) + getattr(other, counter.name))
