"""`moonpool status`: who serves what, and how full it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moonpool.store_client.cli.options import AsJson, ConfigFile, Master, loaded

if TYPE_CHECKING:
    from moonpool.schemas.messages import ClusterMap, NodeEntry


def status(master: Master = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show the cluster: its nodes and the master's counters."""
    from moonpool.schemas.config import ClientSettings
    from moonpool.store_client import StoreClient
    from moonpool.store_client.cli.output import print_json

    settings = loaded(ClientSettings, file=config, flags={"master": master}).settings
    with StoreClient(settings) as client:
        cluster, facts = client.cluster_map(), client.status()
    if as_json:
        print_json(document(cluster, facts))
    else:
        show(cluster, facts)


def document(cluster: ClusterMap, facts: dict[str, Any]) -> dict[str, Any]:
    """What --json prints."""
    return {
        "epoch": cluster.epoch,
        "shards": cluster.shards,
        "masters": cluster.masters,
        "nodes": [
            {
                "name": entry.info.node,
                "state": entry.state.name.lower(),
                "capacity_bytes": entry.info.capacity_bytes,
                "free_bytes": entry.free_bytes,
                "rpc": entry.info.rpc_address,
                "data": entry.info.data_address,
                "segment": entry.info.segment.hex(),
            }
            for entry in cluster.nodes
        ],
        "counters": facts,
    }


def show(cluster: ClusterMap, facts: dict[str, Any]) -> None:
    """The same as tables."""
    from moonpool.store_client.cli.output import print_table

    title = f"Nodes (masters: {', '.join(cluster.masters)}; {cluster.shards} shard(s); epoch {cluster.epoch})"
    print_table(title, ("node", "state", "size", "used", "rpc", "data"), [_row(e) for e in cluster.nodes])
    print_table("Master", ("counter", "value"), sorted(facts.items()))


def _row(entry: NodeEntry) -> tuple[str, ...]:
    from moonpool.schemas.units import format_size

    size_bytes = entry.info.capacity_bytes
    used_bytes = size_bytes - entry.free_bytes
    share = f"{used_bytes / size_bytes:.0%}" if size_bytes else "-"
    return (
        entry.info.node,
        entry.state.name.lower(),
        format_size(size_bytes),
        f"{format_size(used_bytes)} ({share})",
        entry.info.rpc_address,
        entry.info.data_address,
    )
