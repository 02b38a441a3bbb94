"""`moonpool status`: who serves what, and how full it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moonpool.store_client.cli.options import AsJson, Assignments, ConfigFile, Master, open_pool

if TYPE_CHECKING:
    from moonpool.schemas.messages import ClusterMap, NodeEntry

Facts = dict[str, int | float | str]

NODE_COLUMNS = ("node", "state", "size", "used", "rpc", "data")


def status(
    master: Master = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Show the cluster: whether it is well, its nodes, and the master's counters."""
    from moonpool.store_client.cli.output import print_json, progress

    with (
        open_pool(master=master, config=config, assignments=assignments) as client,
        progress("asking the master"),
    ):
        cluster, facts = client.cluster_map(), client.status()
    if as_json:
        print_json(document(cluster, facts))
    else:
        show(cluster, facts)


def complaints(cluster: ClusterMap) -> list[str]:
    """What somebody should look after; nothing where all is well."""
    from moonpool.schemas.messages import NodeState

    found = []
    if not cluster.nodes:
        found.append("there is no node: nothing can be stored; `moonpool node --master ...` starts one")
    for entry in cluster.nodes:
        if entry.state in (NodeState.SUSPECT, NodeState.LOST):
            found.append(f"node {entry.info.node} is {entry.state.name.lower()}: look at its log")
    if cluster.nodes and not any(
        entry.state <= NodeState.LIVE and not entry.draining for entry in cluster.nodes
    ):
        found.append("no node takes new puts")
    return found


def document(cluster: ClusterMap, facts: Facts) -> dict[str, Any]:
    """What --json prints."""
    return {
        "epoch": cluster.epoch,
        "shards": cluster.shards,
        "masters": cluster.masters,
        "complaints": complaints(cluster),
        "nodes": [node_document(entry) for entry in cluster.nodes],
        "counters": facts,
    }


def show(cluster: ClusterMap, facts: Facts) -> None:
    """The same as tables."""
    from moonpool.schemas.units import format_size
    from moonpool.store_client.cli.output import print_table, say

    title = f"Nodes (masters: {', '.join(cluster.masters)}; {cluster.shards} shard(s); epoch {cluster.epoch})"
    print_table(title, NODE_COLUMNS, [node_row(entry) for entry in cluster.nodes])
    rows = [
        (name, format_size(value) if name.endswith("_bytes") and isinstance(value, int) else shown(value))
        for name, value in sorted(facts.items())
    ]
    print_table("Master", ("counter", "value"), rows)
    for complaint in complaints(cluster):
        say(f"look: {complaint}")


def shown(value: float | str) -> str:
    """A counter for people."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def state_text(entry: NodeEntry) -> str:
    """What the master thinks of a node."""
    return entry.state.name.lower() + (", draining" if entry.draining else "")


def node_document(entry: NodeEntry) -> dict[str, Any]:
    """A node as JSON."""
    return {
        "name": entry.info.node,
        "state": entry.state.name.lower(),
        "draining": entry.draining,
        "capacity_bytes": entry.info.capacity_bytes,
        "free_bytes": entry.free_bytes if entry.free_bytes >= 0 else None,
        "rpc": entry.info.rpc_address,
        "data": entry.info.data_address,
        "segment": entry.info.segment.hex(),
    }


def node_row(entry: NodeEntry) -> tuple[str, ...]:
    """A node's cells, under NODE_COLUMNS."""
    from moonpool.schemas.units import format_size

    size_bytes = entry.info.capacity_bytes
    used_bytes = size_bytes - entry.free_bytes
    share = f"{used_bytes / size_bytes:.0%}" if size_bytes else "-"
    used = f"{format_size(used_bytes)} ({share})" if entry.free_bytes >= 0 else "not told to a tenant"
    return (
        entry.info.node,
        state_text(entry),
        format_size(size_bytes),
        used,
        entry.info.rpc_address,
        entry.info.data_address,
    )
