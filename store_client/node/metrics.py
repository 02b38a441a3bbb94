"""A node's metrics, read from its numbers when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping

from moonpool.schemas.metrics import NODE_METRICS, Samples
from moonpool.store_client.rpc.timings import CallTimings

_NUMBERS = {
    "moonpool_node_capacity_bytes": "capacity_bytes",
    "moonpool_node_used_bytes": "used_bytes",
    "moonpool_node_free_bytes": "free_bytes",
    "moonpool_node_high_watermark_bytes": "high_watermark_bytes",
    "moonpool_node_low_watermark_bytes": "low_watermark_bytes",
    "moonpool_node_committed_blocks_total": "blocks_committed",
    "moonpool_node_revoked_puts_total": "puts_revoked",
    "moonpool_node_evicted_bytes_total": "evicted_bytes",
    "moonpool_node_waited_begins_total": "begins_waited",
    "moonpool_node_emptied_pages_total": "pages_emptied",
    "moonpool_node_sessions": "sessions",
    "moonpool_node_lanes": "lanes",
    "moonpool_node_refused_lanes_total": "lanes_refused",
    "moonpool_node_quarantined_blocks": "pull_blocks_given_up",
    "moonpool_node_report_streams_total": "streams_started",
    "moonpool_node_master_connected": "master_connected",
    "moonpool_node_master_hears_first": "master_hears_first",
    "moonpool_node_stale_orders_total": "stale_pushes",
    "moonpool_node_copied_bytes_total": "copied_bytes",
}
"""Metrics that are one number of the node's each; 0 where a part that counts it isn't there."""

MOVED_BYTES = {
    ("shm", "write"): "local_bytes",
    ("tcp", "write"): "tcp_bytes_written",
    ("tcp", "read"): "tcp_bytes_read",
    ("mooncake", "write"): "pull_bytes",
}
"""Numbers of payload by transport and direction. Other reads pass no node: nobody but the reader knows of them."""

_LABELLED: dict[str, dict[tuple[str, ...], str]] = {
    "moonpool_node_objects": {("committed",): "objects", ("writing",): "objects_writing"},
    "moonpool_node_dropped_blocks_total": {("no_space",): "no_space", ("gone",): "blocks_gone"},
    "moonpool_node_queue_length": {
        ("report_rows",): "report_rows_queued",
        ("checksums",): "checksums_queued",
        ("copy_orders",): "copy_orders_waiting",
    },
    "moonpool_node_copies_total": {("done",): "copies_done", ("failed",): "copies_failed"},
    "moonpool_node_checksums_total": {("computed",): "checksums_computed", ("skipped",): "checksums_skipped"},
}


def node_samples(numbers: Mapping[str, int | float], doors: Mapping[str, CallTimings]) -> Samples:
    """Everything in NODE_METRICS. `doors`: calls by where they come from, tcp or unix."""
    samples = Samples(NODE_METRICS)
    for name, number in _NUMBERS.items():
        samples.add(name, numbers.get(number, 0))
    for name, by_labels in _LABELLED.items():
        for labels, number in by_labels.items():
            samples.add(name, numbers.get(number, 0), *labels)
    for way, number in MOVED_BYTES.items():
        samples.add("moonpool_node_transfer_bytes_total", numbers.get(number, 0), *way)
    free = numbers["pages_free"]
    samples.add("moonpool_node_pages", free, "free")
    samples.add("moonpool_node_pages", numbers["pages"] - free, "used")
    for door, timings in doors.items():
        for call, histogram in timings.by_call.items():
            samples.add_histogram("moonpool_node_rpc_seconds", histogram, call, door)
            samples.add("moonpool_node_rpc_failures_total", timings.failures.get(call, 0), call, door)
    return samples
