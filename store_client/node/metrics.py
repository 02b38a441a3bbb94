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
}
"""Metrics that are one number of the node's each."""


def node_samples(numbers: Mapping[str, int | float], doors: Mapping[str, CallTimings]) -> Samples:
    """Everything in NODE_METRICS. `doors`: calls by where they come from, tcp or unix."""
    samples = Samples(NODE_METRICS)
    for name, number in _NUMBERS.items():
        samples.add(name, numbers.get(number, 0))
    for door, timings in doors.items():
        for call, histogram in timings.by_call.items():
            samples.add_histogram("moonpool_node_rpc_seconds", histogram, call, door)
            samples.add("moonpool_node_rpc_failures_total", timings.failures.get(call, 0), call, door)
    return samples
