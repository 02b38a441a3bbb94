"""Every metric that a master, a node and an engine export: the one table that pages, dashboards, alerts and docs are checked by."""

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


_KEYSPACE = ("tenant", "keyspace", "model")

MASTER_METRICS: dict[str, Metric] = {
    # calls
    "moonpool_master_rpc_seconds": _histogram("time in which a call was answered", "call"),
    "moonpool_master_rpc_failures_total": _counter("calls that were answered by an error", "call"),
    "moonpool_master_connections": _gauge("connections of clients and nodes"),
    "moonpool_master_queue_length": _gauge("what waits in the master's own queues", "queue"),
    "moonpool_master_epoch": _gauge("the master's epoch"),
    # hits
    "moonpool_master_match_requests_total": _counter("lookups of prefixes", *_KEYSPACE),
    "moonpool_master_asked_blocks_total": _counter("blocks that lookups asked for", *_KEYSPACE),
    "moonpool_master_hit_blocks_total": _counter("blocks that were there, with all before them", *_KEYSPACE),
    "moonpool_master_asked_tokens_total": _counter("tokens in the blocks asked for", *_KEYSPACE),
    "moonpool_master_hit_tokens_total": _counter("tokens in the blocks that were there", *_KEYSPACE),
    "moonpool_master_ceiling_asked_blocks_total": _counter("blocks asked for, in the ceiling's sample"),
    "moonpool_master_ceiling_distinct_blocks_total": _counter("how many of those were distinct, estimated"),
    "moonpool_master_ceiling_ratio": _gauge("hit ratio that an infinite pool would have had since the start"),
    # nodes
    "moonpool_master_nodes": _gauge("nodes by state", "state"),
    "moonpool_master_node_up": _gauge("1 while the node may be read and written", "node"),
    "moonpool_master_node_capacity_bytes": _gauge("size of the node's segment", "node"),
    "moonpool_master_node_free_bytes": _gauge("free bytes of the node's segment, as last heard", "node"),
    "moonpool_master_node_watermark_bytes": _gauge(
        "used bytes at which eviction starts (high) and down to which it goes (low)", "node", "watermark"
    ),
    "moonpool_master_node_silence_seconds": _gauge("time since the node was heard", "node"),
    "moonpool_master_recovery_ratio": _gauge("share of nodes, but lost ones, whose inventory is complete"),
    # the index
    "moonpool_master_shards": _gauge("shards of the index"),
    "moonpool_master_keyspaces": _gauge("keyspaces known"),
    "moonpool_master_keyspace_blocks": _gauge("blocks of the keyspace in the index", *_KEYSPACE),
    "moonpool_master_keyspace_bytes": _gauge("payload bytes of the keyspace; 0 where sizes vary", *_KEYSPACE),
    "moonpool_master_blocks": _gauge("blocks in the index, those that are only written in part too"),
    "moonpool_master_copies": _gauge("copies of blocks' shards in the index"),
    "moonpool_master_index_bytes": _gauge("memory of the index, without hashes"),
    "moonpool_master_leased_blocks": _gauge(
        "blocks whose own lease runs (a sample, where there are many blocks)"
    ),
    "moonpool_master_pinned_blocks": _gauge("pinned blocks"),
    "moonpool_master_quarantined_blocks": _gauge(
        "blocks of which a copy was reported bad and is being checked"
    ),
    # hard state, entry log, recovery
    "moonpool_master_store_seconds": _histogram("time of a read or commit of the metadata store", "call"),
    "moonpool_master_store_failures_total": _counter(
        "reads and commits that the metadata store refused, or didn't answer", "call"
    ),
    "moonpool_master_log_lag_seconds": _gauge("age of the entry log of the shard where it is oldest"),
    "moonpool_master_log_records_behind": _gauge("records of the entry log that a pass has yet to write"),
    "moonpool_master_log_failures_total": _counter("passes of the entry log that failed"),
    "moonpool_master_shards_recovering": _gauge("shards whose log or inventories are not all there yet"),
    # what leaves
    "moonpool_master_evicted_blocks_total": _counter("blocks that made room", "reason"),
    "moonpool_master_evicted_age_seconds": _histogram("time since the last use of blocks that made room"),
    # copies that masters order
    "moonpool_master_copies_total": _counter(
        "copies of blocks that nodes were told to make: ordered, done and failed", "reason", "outcome"
    ),
    "moonpool_master_copied_bytes_total": _counter("payload of the copies that were made", "reason"),
    "moonpool_master_hot_prefixes": _gauge(
        "runs that many prompts share and that have one more copy for as long as many ask"
    ),
    "moonpool_master_copies_coming_bytes": _gauge(
        "payload of copies that nodes were told to make and have yet to"
    ),
    "moonpool_master_removed_blocks_total": _counter("blocks that somebody removed"),
    "moonpool_master_lost_copies_total": _counter(
        "copies that went with their node, or were not found", "reason"
    ),
    "moonpool_master_removals_total": _counter("Remove and Clear calls"),
    "moonpool_master_needs_total": _counter("calls of nodes for room"),
    # what comes
    "moonpool_master_put_answers_total": _counter("blocks that writers asked about, by answer", "answer"),
}

NODE_METRICS: dict[str, Metric] = {
    "moonpool_node_rpc_seconds": _histogram("time in which a call was answered", "call", "door"),
    "moonpool_node_rpc_failures_total": _counter("calls that were answered by an error", "call", "door"),
    "moonpool_node_capacity_bytes": _gauge("size of the segment"),
    "moonpool_node_used_bytes": _gauge("bytes of slots in use"),
    "moonpool_node_free_bytes": _gauge("bytes that may still be written"),
    "moonpool_node_high_watermark_bytes": _gauge("used bytes at which eviction starts"),
    "moonpool_node_low_watermark_bytes": _gauge("used bytes down to which it goes"),
    "moonpool_node_pages": _gauge("pages, free ones and those that serve a slot size", "state"),
    "moonpool_node_objects": _gauge("slots that hold an object, or are being written", "state"),
    "moonpool_node_transfer_bytes_total": _counter(
        "payload bytes; reads through shared memory are seen by their clients alone", "transport", "direction"
    ),
    "moonpool_node_committed_blocks_total": _counter("blocks written"),
    "moonpool_node_dropped_blocks_total": _counter(
        "blocks not kept: no space, removed while they were written (gone)", "reason"
    ),
    "moonpool_node_revoked_puts_total": _counter("puts given up by their writers"),
    "moonpool_node_evicted_bytes_total": _counter("bytes freed by the master's victims"),
    "moonpool_node_waited_begins_total": _counter("puts that had to wait for space"),
    "moonpool_node_emptied_pages_total": _counter("pages emptied for another slot size"),
    "moonpool_node_sessions": _gauge("local writers"),
    "moonpool_node_lanes": _gauge("tcp data connections"),
    "moonpool_node_refused_lanes_total": _counter("tcp data connections refused: too many"),
    "moonpool_node_quarantined_blocks": _gauge(
        "landing blocks of failed transfers, not used again for a while"
    ),
    "moonpool_node_queue_length": _gauge("what waits in the node's own queues", "queue"),
    "moonpool_node_checksums_total": _counter(
        "checksums computed, or skipped as there were too many", "outcome"
    ),
    "moonpool_node_report_streams_total": _counter("report streams begun: each is a full inventory"),
    "moonpool_node_master_connected": _gauge("1 while a master takes this node's reports"),
    "moonpool_node_master_hears_first": _gauge(
        "1 while puts of new plain objects wait for no master: the node is alone in its pool, on its master's own host"
    ),
    "moonpool_node_stale_orders_total": _counter("orders of deposed masters, refused"),
    "moonpool_node_copies_total": _counter("copies of other nodes' blocks that masters ordered", "outcome"),
    "moonpool_node_copied_bytes_total": _counter("payload of those that were made"),
}


ENGINE_PREFIX = "vllm:moonpool_"
"""Engines export through vLLM's registry, with vLLM's labels before ours."""

ENGINE_METRICS: dict[str, Metric] = {
    # lookups
    "vllm:moonpool_match_requests_total": _counter("requests that asked the pool"),
    "vllm:moonpool_match_hit_tokens_total": _counter("tokens that the pool offered and the engine took"),
    "vllm:moonpool_match_timeouts_total": _counter("requests that gave up waiting for the pool's answer"),
    "vllm:moonpool_match_failures_total": _counter("questions that no master answered"),
    "vllm:moonpool_match_dropped_total": _counter("questions dropped because the queue was full"),
    "vllm:moonpool_renewals_total": _counter("lease renewals sent"),
    # loads
    "vllm:moonpool_load_requests_total": _counter("requests that loaded blocks"),
    "vllm:moonpool_load_blocks_total": _counter("blocks loaded"),
    "vllm:moonpool_load_failed_blocks_total": _counter(
        "blocks that were to be loaded and were computed instead"
    ),
    "vllm:moonpool_load_bytes_total": _counter("bytes loaded"),
    "vllm:moonpool_load_seconds_total": _counter("time spent loading"),
    # saves
    "vllm:moonpool_save_jobs_total": _counter("save jobs done"),
    "vllm:moonpool_save_blocks_total": _counter("blocks written to the pool"),
    "vllm:moonpool_save_known_blocks_total": _counter("blocks that the pool had already"),
    "vllm:moonpool_save_bytes_total": _counter("bytes written to the pool"),
    "vllm:moonpool_save_seconds_total": _counter("time spent saving"),
    "vllm:moonpool_save_failed_blocks_total": _counter("blocks that the pool did not take", "reason"),
    "vllm:moonpool_save_dropped_blocks_total": _counter(
        "blocks never offered: a worker's queue was full (queue), or no job had room before their request was over "
        "(late)",
        "reason",
    ),
    # between the engine and nodes
    "vllm:moonpool_transfer_seconds": _histogram(
        "time of one call to a node that moved blocks", "transport", "direction"
    ),
    "vllm:moonpool_transfer_bytes_total": _counter(
        "payload bytes between the engine and nodes", "transport", "direction"
    ),
    "vllm:moonpool_transfer_failures_total": _counter(
        "calls to a node through which nothing went", "transport", "direction"
    ),
    "vllm:moonpool_open_breakers": _gauge(
        "masters or nodes that failed lately and are not asked for the moment", "side", "peer"
    ),
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
