"""Every metric that a master and a node export: the one table that pages, dashboards, alerts and docs are checked by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from moonpool.schemas.histogram import Log2Histogram


class MetricKind(StrEnum):
    """As Prometheus has them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table. A counter's name ends in _total."""

    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()


def _counter(text: str, *labels: str) -> Metric:
    return Metric(MetricKind.COUNTER, text, labels)


def _gauge(text: str, *labels: str) -> Metric:
    return Metric(MetricKind.GAUGE, text, labels)


def _histogram(text: str, *labels: str) -> Metric:
    return Metric(MetricKind.HISTOGRAM, text, labels)


MASTER_METRICS: dict[str, Metric] = {
    "moonpool_master_rpc_seconds": _histogram("time in which a call was answered", "call"),
    "moonpool_master_rpc_failures_total": _counter("calls that were answered by an error", "call"),
    "moonpool_master_connections": _gauge("connections of clients and nodes"),
    "moonpool_master_epoch": _gauge("the master's epoch"),
    "moonpool_master_shards": _gauge("shards of the index"),
    "moonpool_master_nodes": _gauge("nodes by state", "state"),
    "moonpool_master_node_up": _gauge("1 while the node may be read and written", "node"),
    "moonpool_master_node_capacity_bytes": _gauge("size of the node's segment", "node"),
    "moonpool_master_node_free_bytes": _gauge("free bytes of the node's segment, as last heard", "node"),
    "moonpool_master_keyspaces": _gauge("keyspaces known"),
    "moonpool_master_blocks": _gauge("blocks in the index, those that are only written in part too"),
    "moonpool_master_copies": _gauge("copies of blocks' shards in the index"),
    "moonpool_master_index_bytes": _gauge("memory of the index, without hashes"),
    "moonpool_master_put_answers_total": _counter("blocks that writers asked about, by answer", "answer"),
    "moonpool_master_removals_total": _counter("Remove and Clear calls"),
    "moonpool_master_needs_total": _counter("calls of nodes for room"),
}

NODE_METRICS: dict[str, Metric] = {
    "moonpool_node_rpc_seconds": _histogram("time in which a call was answered", "call", "door"),
    "moonpool_node_rpc_failures_total": _counter("calls that were answered by an error", "call", "door"),
    "moonpool_node_capacity_bytes": _gauge("size of the segment"),
    "moonpool_node_used_bytes": _gauge("bytes of slots in use"),
    "moonpool_node_free_bytes": _gauge("bytes that may still be written"),
    "moonpool_node_high_watermark_bytes": _gauge("used bytes at which eviction starts"),
    "moonpool_node_low_watermark_bytes": _gauge("used bytes down to which it goes"),
}


@dataclass(slots=True)
class Samples:
    """Values of one moment, by metric and labels. `table`: the metrics that there may be."""

    table: Mapping[str, Metric]
    values: dict[str, list[tuple[tuple[str, ...], float]]] = field(default_factory=dict)
    histograms: dict[str, list[tuple[tuple[str, ...], Log2Histogram]]] = field(default_factory=dict)

    def add(self, name: str, value: float, *labels: str) -> None:
        """One value, and one text for each label of the metric."""
        metric = self.table[name]
        assert metric.kind is not MetricKind.HISTOGRAM and len(labels) == len(metric.labels), name
        self.values.setdefault(name, []).append((labels, value))

    def add_histogram(self, name: str, histogram: Log2Histogram, *labels: str) -> None:
        """The same of a histogram, as it is now."""
        metric = self.table[name]
        assert metric.kind is MetricKind.HISTOGRAM and len(labels) == len(metric.labels), name
        self.histograms.setdefault(name, []).append((labels, histogram.copy()))

    def names(self) -> set[str]:
        """Of what was added."""
        return self.values.keys() | self.histograms.keys()
