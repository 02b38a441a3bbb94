"""What one shard is asked for: how much an infinite pool would have had, and with what most prompts begin."""

from __future__ import annotations

from random import Random

from moonpool.master.ceiling import Ceiling
from moonpool.master.table import Table
from moonpool.master.top_prefixes import TopPrefixes
from moonpool.schemas.messages import Probe, Probed


class Demand:
    """To be told of every lookup."""

    def __init__(self) -> None:
        self.ceiling = Ceiling()
        self.top = TopPrefixes()
        """By their first block."""
        self.later = TopPrefixes()
        """Runs further on, by the first block of them that a lookup names."""
        self._random = Random(0)

    def probed(self, table: Table, message: Probe, reply: Probed, now_s: float) -> None:
        """A lookup was answered."""
        table.traffic.asked(message.runs, reply.ready)
        if message.sample_mask >= 0:
            self.ceiling.asked(message.sample, message.sample_mask, table.keyspace)
        begins = bool(message.runs) and message.runs[0].first == 0
        if begins:
            first_block = message.runs[0].hashes[: table.spec.hash_bytes]
            self.top.asked(table.keyspace, first_block, found=reply.ready[0] > 0, now_s=now_s)
        if len(message.runs) > begins:
            self._count_later(table, message, reply, int(begins), now_s)

    def _count_later(self, table: Table, message: Probe, reply: Probed, first: int, now_s: float) -> None:
        """One of the runs from `first` on stands for all of them: a long prompt costs no more than a short one."""
        runs = len(message.runs) - first
        index = first + int(self._random.random() * runs)
        run = message.runs[index]
        name, found = run.hashes[: table.spec.hash_bytes], reply.ready[index] >= min(run.stride, run.count)
        self.later.asked(table.keyspace, name, found=found, now_s=now_s, weight=runs)

    def hits(self, least: float) -> dict[tuple[bytes, bytes], float]:
        """How often lookups found a run, by (keyspace, the first block of it that they named), of `least` times on."""
        return self.later.hits(least) | self.top.hits(least)

    def validate(self) -> None:
        """Asserts the parts' own."""
        self.ceiling.validate()
        self.top.validate()
        self.later.validate()
