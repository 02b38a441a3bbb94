"""What `moonpool top` shows: two looks at a pool in, rates and rows out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moonpool.schemas.keyspace import KeyspaceSpec
from moonpool.schemas.messages import ClusterMap, KeyspaceFacts, NodeEntry
from moonpool.schemas.units import format_size
from moonpool.store_client.cli.keys import DIGITS
from moonpool.store_client.cli.status import state_text
from moonpool.store_client.node.metrics import MOVED_BYTES

Facts = Mapping[str, int | float | str]

READ_FACTS, WRITTEN_FACTS = (
    tuple(name for (_, direction), name in MOVED_BYTES.items() if direction == wanted)
    for wanted in ("read", "write")
)
"""Counters of a node."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look. `nodes`: counters by segment, of those that could be asked."""

    at_s: float
    cluster: ClusterMap
    master: Facts
    nodes: Mapping[bytes, Facts]
    keyspaces: tuple[tuple[KeyspaceSpec, KeyspaceFacts], ...]


def rate(now: float, before: float, seconds: float) -> float:
    """A second; 0 where the counter began anew: its process was started again."""
    return (now - before) / seconds if seconds > 0 and now >= before else 0.0


def ratio_text(part: float, whole: float) -> str:
    """A share; a dash where there is nothing to share."""
    return f"{part / whole:.1%}" if whole else "-"


def number(facts: Facts, name: str) -> float:
    """A counter that may not be there (yet)."""
    value = facts.get(name, 0)
    return value if isinstance(value, (int, float)) else 0


def traffic_bytes_s(segment: bytes, names: tuple[str, ...], now: Sample, before: Sample) -> float:
    """A node's bytes a second, over all these counters."""
    facts, earlier = now.nodes.get(segment), before.nodes.get(segment)
    if facts is None or earlier is None:
        return 0.0
    seconds = now.at_s - before.at_s
    return sum(rate(number(facts, name), number(earlier, name), seconds) for name in names)


def document(now: Sample, before: Sample) -> dict[str, Any]:
    """Everything, as JSON."""
    seconds = now.at_s - before.at_s
    asked, hit = (number(now.master, name) for name in ("asked_blocks", "hit_blocks"))
    asked_s, hit_s = (
        rate(number(now.master, name), number(before.master, name), seconds)
        for name in ("asked_blocks", "hit_blocks")
    )
    segments = [entry.info.segment for entry in now.cluster.nodes]
    return {
        **_space(now.master),
        "blocks": number(now.master, "rows"),
        "pins": number(now.master, "pins"),
        "asked_blocks_s": asked_s,
        "hit_ratio": hit_s / asked_s if asked_s else None,
        "hit_ratio_total": hit / asked if asked else None,
        "read_bytes_s": sum(traffic_bytes_s(segment, READ_FACTS, now, before) for segment in segments),
        "written_bytes_s": sum(traffic_bytes_s(segment, WRITTEN_FACTS, now, before) for segment in segments),
        "evicted_blocks_s": rate(
            number(now.master, "evicted_rows"), number(before.master, "evicted_rows"), seconds
        ),
        "nodes": [
            {
                "name": entry.info.node,
                "state": state_text(entry),
                "capacity_bytes": entry.info.capacity_bytes,
                "used_bytes": _used_bytes(entry),
                "objects": number(now.nodes.get(entry.info.segment, {}), "objects"),
                "read_bytes_s": traffic_bytes_s(entry.info.segment, READ_FACTS, now, before),
                "written_bytes_s": traffic_bytes_s(entry.info.segment, WRITTEN_FACTS, now, before),
                "reachable": entry.info.segment in now.nodes,
            }
            for entry in now.cluster.nodes
        ],
        "keyspaces": [_keyspace(spec, facts, before, seconds) for spec, facts in now.keyspaces],
    }


def _space(facts: Facts) -> dict[str, float | None]:
    """Of the pool; a tenant is told of its own, and of no capacity but its quota (None: it has none)."""
    if "tenant" in facts:
        quota_bytes = number(facts, "quota_bytes")
        return {"capacity_bytes": quota_bytes or None, "used_bytes": number(facts, "used_bytes")}
    capacity_bytes = number(facts, "capacity_bytes")
    return {"capacity_bytes": capacity_bytes, "used_bytes": capacity_bytes - number(facts, "free_bytes")}


def _used_bytes(entry: NodeEntry) -> int | None:
    """None: a tenant isn't told."""
    return entry.info.capacity_bytes - entry.free_bytes if entry.free_bytes >= 0 else None


def _keyspace(spec: KeyspaceSpec, facts: KeyspaceFacts, before: Sample, seconds: float) -> dict[str, Any]:
    digest = spec.digest()
    earlier = next((old for other, old in before.keyspaces if other.digest() == digest), facts)
    return {
        "keyspace": digest.hex(),
        "name": spec.name,
        "blocks": facts.rows,
        "payload_bytes": facts.payload_bytes,
        "requests_s": rate(facts.requests, earlier.requests, seconds),
        "hit_ratio_total": facts.hit_blocks / facts.asked_blocks if facts.asked_blocks else None,
    }


def summary(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The pool at a glance, as names and texts."""
    used, capacity = found["used_bytes"], found["capacity_bytes"]
    total = found["hit_ratio_total"]
    of = "" if capacity is None else f" of {format_size(capacity)} ({ratio_text(used, capacity)})"
    return [
        ("used", f"{format_size(used)}{of}"),
        ("blocks", f"{found['blocks']:,} ({found['pins']:,} pinned)"),
        (
            "hits",
            f"{_percent(found['hit_ratio'])} now, {_percent(total)} in all; {found['asked_blocks_s']:,.0f} blocks asked/s",
        ),
        (
            "traffic",
            f"{format_size(found['read_bytes_s'])}/s read, {format_size(found['written_bytes_s'])}/s written",
        ),
        ("evicted", f"{found['evicted_blocks_s']:,.0f} blocks/s"),
    ]


NODE_COLUMNS = ("node", "state", "used", "of", "objects", "read/s", "written/s")
KEYSPACE_COLUMNS = ("keyspace", "name", "blocks", "size", "requests/s", "hits in all")


def node_rows(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Fullest first."""
    nodes = sorted(found["nodes"], key=lambda node: -(node["used_bytes"] or 0))
    return [
        (
            node["name"],
            node["state"] if node["reachable"] else f"{node['state']}, not reached",
            "-" if node["used_bytes"] is None else ratio_text(node["used_bytes"], node["capacity_bytes"]),
            format_size(node["capacity_bytes"]),
            f"{node['objects']:,}",
            format_size(node["read_bytes_s"]),
            format_size(node["written_bytes_s"]),
        )
        for node in nodes
    ]


def keyspace_rows(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Busiest first, then largest."""
    keyspaces = sorted(found["keyspaces"], key=lambda one: (-one["requests_s"], -one["payload_bytes"]))
    return [
        (
            one["keyspace"][:DIGITS],
            one["name"],
            f"{one['blocks']:,}",
            format_size(one["payload_bytes"]),
            f"{one['requests_s']:,.1f}",
            _percent(one["hit_ratio_total"]),
        )
        for one in keyspaces
    ]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
