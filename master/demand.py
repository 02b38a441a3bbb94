"""What one shard is asked for: how much an infinite pool would have had, and with what most prompts begin."""

from __future__ import annotations

from moonpool.master.ceiling import Ceiling
from moonpool.master.table import Table
from moonpool.master.top_prefixes import TopPrefixes
from moonpool.schemas.messages import Probe, Probed


class Demand:
    """To be told of every lookup."""

    def __init__(self) -> None:
        self.ceiling = Ceiling()
        self.top = TopPrefixes()

    def probed(self, table: Table, message: Probe, reply: Probed, now_s: float) -> None:
        """A lookup was answered."""
        table.traffic.asked(message.runs, reply.ready)
        if message.sample_mask >= 0:
            self.ceiling.asked(message.sample, message.sample_mask, table.keyspace)
        if message.runs and message.runs[0].first == 0:
            first_block = message.runs[0].hashes[: table.spec.hash_bytes]
            self.top.asked(table.keyspace, first_block, found=reply.ready[0] > 0, now_s=now_s)

    def validate(self) -> None:
        """Asserts the parts' own."""
        self.ceiling.validate()
        self.top.validate()
