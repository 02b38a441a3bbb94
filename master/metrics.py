"""A master's metrics, read from its parts when they are asked for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from moonpool.master.columns import view
from moonpool.master.core import MasterCore
from moonpool.master.evictions import Evictions, Reason
from moonpool.master.replicas.planner import Reason as Why
from moonpool.master.rest.parts import MasterParts
from moonpool.master.table import Table
from moonpool.master.traffic import Traffic
from moonpool.schemas.messages import NodeState, PutAnswer
from moonpool.schemas.metrics import MASTER_METRICS, Samples
from moonpool.store_client.rpc.timings import CallTimings

KEYSPACES_MAX = 100
"""Keyspaces with labels of their own, the busiest; the others are summed up as "other"."""

LEASES_SAMPLED_MAX = 1 << 18
"""Rows whose leases are looked at: a millisecond's work."""

_FACTS = {
    "moonpool_master_epoch": "epoch",
    "moonpool_master_shards": "shards",
    "moonpool_master_keyspaces": "keyspaces",
    "moonpool_master_blocks": "rows",
    "moonpool_master_copies": "copies",
    "moonpool_master_index_bytes": "index_bytes",
    "moonpool_master_pinned_blocks": "pins",
    "moonpool_master_quarantined_blocks": "doubted_blocks",
    "moonpool_master_copies_coming_bytes": "copies_coming_bytes",
    "moonpool_master_hot_prefixes": "hot_prefixes",
    "moonpool_master_removed_blocks_total": "removed_blocks",
    "moonpool_master_removals_total": "removals",
    "moonpool_master_needs_total": "needs",
}
"""Metrics that are facts of the core's status."""

_HARD_FACTS = {
    "moonpool_master_log_lag_seconds": "log_lag_s",
    "moonpool_master_log_records_behind": "log_records_behind",
    "moonpool_master_log_failures_total": "log_failures",
    "moonpool_master_shards_recovering": "shards_recovering",
}
"""Metrics that are facts of hard state and the entry log; 0 where the store outlives nothing."""

_QUEUES = ("promises", "checks_waiting", "doomed_blocks", "sweeps_waiting")


def master_samples(parts: MasterParts) -> Samples:
    """Everything in MASTER_METRICS. To be called in the master's event loop; a millisecond or two."""
    samples = Samples(MASTER_METRICS)
    core, now_s = parts.core, parts.clock.now_s()
    facts = core.status(now_s)
    for name, fact in _FACTS.items():
        samples.add(name, float(facts.get(fact, 0)))
    hard_facts = parts.hard_facts()
    for name, fact in _HARD_FACTS.items():
        samples.add(name, float(hard_facts.get(fact, 0)))
    for call, times in parts.store.times.items():
        samples.add_histogram("moonpool_master_store_seconds", times, call)
        samples.add("moonpool_master_store_failures_total", parts.store.failures[call], call)
    for queue in _QUEUES:
        samples.add("moonpool_master_queue_length", float(facts[queue]), queue.removesuffix("_waiting"))
    samples.add("moonpool_master_queue_length", parts.handler.confirmations, "confirmations")
    samples.add("moonpool_master_connections", parts.handler.connections)
    for answer in PutAnswer:
        count = float(facts.get(f"put_{answer.name.lower()}", 0))
        samples.add("moonpool_master_put_answers_total", count, answer.name.lower())
    for kind in ("lost", "unnamed"):
        samples.add("moonpool_master_lost_copies_total", float(facts[f"swept_{kind}_copies"]), kind)
    _add_nodes(samples, core, now_s)
    _add_keyspaces(samples, core)
    _add_ceiling(samples, core)
    _add_evictions(samples, core.look.evictions)
    _add_copies(samples, core)
    samples.add(
        "moonpool_master_leased_blocks", leased_rows([table for _, table in core.look.tables()], now_s)
    )
    _add_calls(samples, parts.timings)
    return samples


def _add_nodes(samples: Samples, core: MasterCore, now_s: float) -> None:
    nodes = core.look.nodes()
    for state in NodeState:
        count = sum(node.state is state for node in nodes)
        samples.add("moonpool_master_nodes", count, state.name.lower())
    here = [node for node in nodes if node.state is not NodeState.LOST]
    complete = sum(node.complete for node in here)
    samples.add("moonpool_master_recovery_ratio", complete / len(here) if here else 1.0)
    # A node that came back with another segment is named twice until the earlier one is forgotten.
    latest = {node.info.node: node for node in sorted(nodes, key=lambda node: node.heard_s)}
    for node in latest.values():
        name, up = node.info.node, node.state in (NodeState.JOINING, NodeState.LIVE)
        samples.add("moonpool_master_node_up", up, name)
        samples.add("moonpool_master_node_capacity_bytes", node.info.capacity_bytes, name)
        samples.add("moonpool_master_node_free_bytes", node.free_bytes, name)
        samples.add("moonpool_master_node_silence_seconds", max(0.0, now_s - node.heard_s), name)
        for watermark in ("high", "low"):
            size_bytes = node.facts.get(f"{watermark}_watermark_bytes", 0)
            samples.add("moonpool_master_node_watermark_bytes", size_bytes, name, watermark)


class _Keyspace(NamedTuple):
    """A keyspace's sums over all shards."""

    labels: tuple[str, str, str]
    traffic: Traffic
    tokens: int
    blocks: int
    size_bytes: int


def _add_keyspaces(samples: Samples, core: MasterCore) -> None:
    found: dict[tuple[str, str, str], _Keyspace] = {}
    for _, table in core.look.tables():
        spec = table.spec
        labels = (spec.tenant, table.keyspace.hex()[:12], spec.name)
        before = found.get(labels)
        traffic = before.traffic if before is not None else Traffic()
        traffic.add(table.traffic)
        blocks = len(table) + (before.blocks if before is not None else 0)
        size_bytes = blocks * sum(spec.shard_bytes)
        found[labels] = _Keyspace(labels, traffic, spec.block_tokens, blocks, size_bytes)
    busiest = sorted(found.values(), key=lambda one: (-one.traffic.asked_blocks, -one.blocks, one.labels))
    for one in busiest[:KEYSPACES_MAX]:
        _add_keyspace(samples, one.labels, [one])
    if busiest[KEYSPACES_MAX:]:
        _add_keyspace(samples, ("other", "other", "other"), busiest[KEYSPACES_MAX:])


def _add_keyspace(samples: Samples, labels: tuple[str, str, str], parts: list[_Keyspace]) -> None:
    sums = {
        "match_requests_total": sum(part.traffic.requests for part in parts),
        "asked_blocks_total": sum(part.traffic.asked_blocks for part in parts),
        "hit_blocks_total": sum(part.traffic.hit_blocks for part in parts),
        "asked_tokens_total": sum(part.traffic.asked_blocks * part.tokens for part in parts),
        "hit_tokens_total": sum(part.traffic.hit_blocks * part.tokens for part in parts),
        "keyspace_blocks": sum(part.blocks for part in parts),
        "keyspace_bytes": sum(part.size_bytes for part in parts),
    }
    for name, value in sums.items():
        samples.add(f"moonpool_master_{name}", value, *labels)


def _add_ceiling(samples: Samples, core: MasterCore) -> None:
    ceiling = core.look.ceiling()
    samples.add("moonpool_master_ceiling_asked_blocks_total", ceiling.asked)
    samples.add("moonpool_master_ceiling_distinct_blocks_total", ceiling.distinct)
    samples.add("moonpool_master_ceiling_ratio", ceiling.hit_ratio)


def _add_evictions(samples: Samples, evictions: Evictions) -> None:
    for reason in Reason:
        count = evictions.by_reason[reason]
        samples.add("moonpool_master_evicted_blocks_total", count, reason.name.lower())
    samples.add_histogram("moonpool_master_evicted_age_seconds", evictions.ages)


def _add_copies(samples: Samples, core: MasterCore) -> None:
    counts = core.replication.counts
    for reason in Why:
        for outcome in ("ordered", "done", "failed"):
            samples.add("moonpool_master_copies_total", counts[outcome, reason], reason.value, outcome)
        samples.add("moonpool_master_copied_bytes_total", counts["bytes", reason], reason.value)


def leased_rows(tables: list[Table], now_s: float) -> int:
    """Rows whose own lease runs; where there are very many rows, as each n-th of them tells."""
    step = -(-sum(table.columns.count for table in tables) // LEASES_SAMPLED_MAX) or 1
    return step * sum(
        int(np.count_nonzero(view(table.leased_until_s)[::step] > now_s)) for table in tables if len(table)
    )


def _add_calls(samples: Samples, timings: CallTimings) -> None:
    for call, histogram in timings.by_call.items():
        samples.add_histogram("moonpool_master_rpc_seconds", histogram, call)
        samples.add("moonpool_master_rpc_failures_total", timings.failures.get(call, 0), call)
