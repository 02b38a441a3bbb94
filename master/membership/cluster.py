"""What a cluster is made of, as its first master wrote it down: all others must agree."""

from __future__ import annotations

from moonpool.master.membership.records import CLUSTER_KEY, ClusterRecord, decode, encode
from moonpool.master.store.base import Condition, MetadataStore, Put
from moonpool.schemas.errors import ConfigError
from moonpool.schemas.runs import FIRST_BOUNDARY, STRIDE

SHARDS_DEFAULT = 16
"""Of a cluster in etcd, whose settings name no number."""


async def agree(store: MetadataStore, shards: int, timeout_s: float) -> int:
    """How many shards the cluster has; `shards` of the settings, 0: whatever it has. Raises ConfigError where the
    settings, or where this version begins runs, differ from it."""
    wanted = ClusterRecord(shards or SHARDS_DEFAULT, FIRST_BOUNDARY, STRIDE)
    put = Put(CLUSTER_KEY, encode(wanted))
    if await store.commit([put], conditions=[Condition(CLUSTER_KEY)], timeout_s=timeout_s) is not None:
        return wanted.shards
    page = await store.read(CLUSTER_KEY, timeout_s=timeout_s)
    found = decode(CLUSTER_KEY, page.records[0].value)
    if not isinstance(found, ClusterRecord):
        raise ConfigError(source="the metadata store", field="cluster", problem="is no record of a cluster")
    if shards and found.shards != shards:
        problem = f"is {shards}, but this cluster was made with {found.shards}, and that can't change"
        raise ConfigError(source="settings", field="shards", problem=problem)
    if (found.first_boundary, found.stride) != (wanted.first_boundary, wanted.stride):
        problem = (
            f"begins runs at {found.first_boundary} and every {found.stride} blocks, this version at "
            f"{wanted.first_boundary} and every {wanted.stride}; use another cluster name"
        )
        raise ConfigError(source="the metadata store", field="cluster", problem=problem)
    return found.shards
