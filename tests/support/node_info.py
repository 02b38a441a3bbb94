"""A node's announcement of itself, for tests that name few of its fields."""

from __future__ import annotations

from typing import Any

from moonpool.schemas.messages import NodeInfo

NOWHERE = {"rpc_address": "", "data_address": "", "unix_path": "", "segment_path": ""}


def node_info(name: str = "node", **fields: Any) -> NodeInfo:
    """Of 1 GiB in pages of 1 MiB, on a host of its own, with no door open, but for `fields`."""
    sizes = {"capacity_bytes": 1 << 30, "page_bytes": 1 << 20}
    known = {"segment": name.encode().ljust(16, b"\0"), "host": f"host-{name}", **NOWHERE, **sizes}
    return NodeInfo(node=name, **(known | fields))
