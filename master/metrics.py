"""A master's metrics, read from its parts when they are asked for."""

from __future__ import annotations

from moonpool.master.core import MasterCore
from moonpool.master.rest.parts import MasterParts
from moonpool.schemas.messages import NodeState, PutAnswer
from moonpool.schemas.metrics import MASTER_METRICS, Samples
from moonpool.store_client.rpc.timings import CallTimings

_FACTS = {
    "moonpool_master_epoch": "epoch",
    "moonpool_master_shards": "shards",
    "moonpool_master_keyspaces": "keyspaces",
    "moonpool_master_blocks": "rows",
    "moonpool_master_copies": "copies",
    "moonpool_master_index_bytes": "index_bytes",
    "moonpool_master_removals_total": "removals",
    "moonpool_master_needs_total": "needs",
}
"""Metrics that are facts of the core's status."""


def master_samples(parts: MasterParts) -> Samples:
    """Everything in MASTER_METRICS. To be called in the master's event loop; some 100 us."""
    samples = Samples(MASTER_METRICS)
    core, now_s = parts.core, parts.clock.now_s()
    facts = core.status(now_s)
    for name, fact in _FACTS.items():
        samples.add(name, float(facts.get(fact, 0)))
    samples.add("moonpool_master_connections", parts.handler.connections)
    for answer in PutAnswer:
        count = float(facts.get(f"put_{answer.name.lower()}", 0))
        samples.add("moonpool_master_put_answers_total", count, answer.name.lower())
    _add_nodes(samples, core)
    _add_calls(samples, parts.timings)
    return samples


def _add_nodes(samples: Samples, core: MasterCore) -> None:
    nodes = core.nodes()
    for state in NodeState:
        count = sum(node.state is state for node in nodes)
        samples.add("moonpool_master_nodes", count, state.name.lower())
    # A node that came back with another segment is named twice until the earlier one is forgotten.
    latest = {node.info.node: node for node in sorted(nodes, key=lambda node: node.heard_s)}
    for node in latest.values():
        name, up = node.info.node, node.state in (NodeState.JOINING, NodeState.LIVE)
        samples.add("moonpool_master_node_up", up, name)
        samples.add("moonpool_master_node_capacity_bytes", node.info.capacity_bytes, name)
        samples.add("moonpool_master_node_free_bytes", node.free_bytes, name)


def _add_calls(samples: Samples, timings: CallTimings) -> None:
    for call, histogram in timings.by_call.items():
        samples.add_histogram("moonpool_master_rpc_seconds", histogram, call)
        samples.add("moonpool_master_rpc_failures_total", timings.failures.get(call, 0), call)
