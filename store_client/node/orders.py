"""What masters push to a node, carried out: removals, and checks of slots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from moonpool.schemas.errors import KeyspaceUnknown
from moonpool.schemas.messages import Check, Checked, Drop, DropDone, NodeInfo
from moonpool.store_client.node.checksums import verify
from moonpool.store_client.node.copies import Copies
from moonpool.store_client.node.core import NodeCore
from moonpool.store_client.node.drops import SWEEP_PAGES, hash_set
from moonpool.store_client.node.fences import Fences
from moonpool.store_client.node.outlets import Outlets
from moonpool.store_client.node.report_streams import ReportStreams
from moonpool.store_client.rpc.credentials import NO_CREDENTIALS, Credentials


@dataclass(frozen=True, slots=True)
class Reporter:
    """What the links to all masters share. `heard` is told the addresses of masters that one of them names; `want_names` whether the
    master of that address takes in reports before it answers anybody, so that it matters which names are new."""

    info: NodeInfo
    core: NodeCore
    streams: ReportStreams
    outlets: Outlets
    fences: Fences
    facts: Callable[[], dict[str, int | float]]
    copies: Copies
    heard: Callable[[list[str]], None] = lambda masters: None
    want_names: Callable[[str, bool], None] = lambda address, yes: None
    credentials: Credentials = NO_CREDENTIALS


async def obey_check(check: Check, node: Reporter) -> None:
    """Answers for the place where the object lies now: what moves it says so on the stream before we do."""
    place = (check.slot, check.generation)
    while True:
        with node.core.lock:
            slot, generation = place = node.core.drops.follow(place)
        now = msgspec.structs.replace(check, slot=slot, generation=generation)
        good = await asyncio.to_thread(verify, node.core, now)
        with node.core.lock:
            if node.core.drops.follow(place) == place:
                found = Checked(check.keyspace, check.rank, check.block_hash, slot, generation, good)
                node.outlets.emit(found, check.shard)
                return


async def obey_drop(drop: Drop, node: Reporter) -> None:
    """Flips headers, page by page where the drop is a predicate, then confirms."""
    obeyed = node.core.drops.obeyed
    with node.core.lock:
        if drop.keyspace:
            node.copies.cancel(drop.shard, drop.keyspace)
        node.core.drops.exact(drop.drops)
        again = (drop.shard, drop.order) in obeyed
    if again:
        pass  # what it would find now was put since
    elif drop.whole_keyspace:
        await _sweep(drop, None, node.core)
    elif drop.hashes:
        try:
            hash_bytes = node.core.keyspaces.spec(drop.keyspace).hash_bytes
        except KeyspaceUnknown:
            pass  # nothing here can be of that keyspace
        else:
            await _sweep(drop, hash_set(drop.hashes, hash_bytes), node.core)
    with node.core.lock:
        if drop.keyspace:
            obeyed.add(drop.shard, drop.order)
        if not node.fences.fresh(drop.shard, drop.epoch):
            return  # asked by an earlier owner, and in this one's numbers it would confirm another drop
        node.outlets.emit(DropDone(drop.drop_id), drop.shard)


async def _sweep(drop: Drop, hashes: NDArray[np.bytes_] | None, core: NodeCore) -> None:
    drops = core.drops
    drops.sweeps += 1
    try:
        for page in range(0, core.head.layout.page_count, SWEEP_PAGES):
            with core.lock:
                drops.sweep(drop.keyspace, hashes, page, drop.shard, drop.before)
            await asyncio.sleep(0)
    finally:
        drops.sweeps -= 1
