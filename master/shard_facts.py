"""What a shard counts, for people and metrics."""

from __future__ import annotations

from collections.abc import Collection

from moonpool.master.bad_reports import BadReports
from moonpool.master.promises import Promises
from moonpool.master.sweeps import Sweeps
from moonpool.master.table import Table

SUMS = (
    "rows",
    "copies",
    "pins",
    "asked_blocks",
    "hit_blocks",
    "promises",
    "checks_waiting",
    "doubted_blocks",
    "doomed_blocks",
    "sweeps_waiting",
    "swept_lost_copies",
    "swept_unnamed_copies",
    "index_bytes",
)
"""Facts that are there with no shard too."""


def shard_facts(
    tables: Collection[Table], promises: Promises, bad_reports: BadReports, sweeps: Sweeps
) -> dict[str, int]:
    """Sizes and counters of one shard."""
    return {
        "rows": sum(map(len, tables)),
        "copies": sum(sum(table.copies.values()) for table in tables),
        "pins": sum(len(table.pins) for table in tables),
        "asked_blocks": sum(table.traffic.asked_blocks for table in tables),
        "hit_blocks": sum(table.traffic.hit_blocks for table in tables),
        "promises": len(promises),
        "checks_waiting": len(bad_reports),
        "doubted_blocks": sum(len(table.doubted) for table in tables),
        "doomed_blocks": sum(len(table.doomed) for table in tables),
        "sweeps_waiting": len(sweeps),
        "swept_lost_copies": sweeps.lost_copies,
        "swept_unnamed_copies": sweeps.unnamed_copies,
        "index_bytes": sum(table.columns.size_bytes() + table.rows.size_bytes() for table in tables),
    }
