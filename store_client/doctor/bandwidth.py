"""What can be read from a node a second, and whether that beats computing.

The rule: sharing pays where tokens arrive faster than an engine computes them again,

    bytes read a second / bytes of KV a token  >  tokens of prefill a second

Bytes a token are those of the pool's own keyspaces. How fast an engine prefills is not ours to measure: it is given, or
assumed and said so.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from moonpool.schemas.errors import MoonpoolError, TransferFailed
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import BeginItem, NodeInfo, Status
from moonpool.schemas.packed import join_hashes, pack_u64
from moonpool.schemas.units import format_size
from moonpool.store_client.blocks import BlockGet
from moonpool.store_client.client import StoreClient
from moonpool.store_client.doctor.findings import Finding, ok, warning
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.transports.base import WriteBatch
from moonpool.store_client.transports.shm import same_host

PREFILL_TOKENS_S = 10_000.0
"""Assumed of one engine where nobody says it: an 8B model in 16 bits on one large GPU, or so."""

EXAMPLE_TOKEN_BYTES = 128 << 10
"""Where the pool holds no blocks yet: 32 layers, 8 KV heads of 128, keys and values, 16 bits."""

PROBE_BYTES = 64 << 20
BLOCKS = 16
ROUNDS = 3
TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Rate:
    """What reading from one node gave. `bytes_s` 0: `failure` says why."""

    node: str
    transport: str
    bytes_s: float = 0.0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class TokenSize:
    """KV bytes of one token of some model; all ranks, all groups."""

    model: str
    size_bytes: float


def token_sizes(specs: Iterable[KeyspaceSpec]) -> list[TokenSize]:
    """Of every model whose blocks the pool knows, largest first. Groups of one model add up."""
    sizes: dict[tuple[str, str, str], float] = {}
    for spec in specs:
        if spec.kind is Kind.CHAINED and spec.block_tokens:
            facts = dict(spec.identity)
            model = (spec.name, facts.get("weights", ""), facts.get("adapter", ""))
            sizes[model] = sizes.get(model, 0.0) + sum(spec.shard_bytes) / spec.block_tokens
    found = {name: size for (name, _, _), size in sorted(sizes.items(), key=lambda item: item[1])}
    return sorted((TokenSize(*item) for item in found.items()), key=lambda size: -size.size_bytes)


def judge(
    rates: Sequence[Rate], sizes: Sequence[TokenSize], prefill_tokens_s: float, given: bool
) -> list[Finding]:
    """The rule, for each node and the model whose tokens are largest."""
    if not rates:
        return [ok("bandwidth", "no node to read from")]
    size = (
        sizes[0]
        if sizes
        else TokenSize("a typical 8B model (the pool has no blocks yet)", EXAMPLE_TOKEN_BYTES)
    )
    found = []
    for rate in rates:
        if not rate.bytes_s:
            advice = "look at that node's log; `moonpool doctor --no-bandwidth` leaves this out"
            found.append(
                warning("bandwidth", f"nothing could be read from {rate.node}: {rate.failure}", advice)
            )
            continue
        tokens_s = rate.bytes_s / size.size_bytes
        what = (
            f"{rate.node} over {rate.transport}: {format_size(rate.bytes_s)}/s = {tokens_s:,.0f} tokens/s of "
            f"{size.model} ({format_size(size.size_bytes)} a token), against {prefill_tokens_s:,.0f} tokens/s of prefill"
            f"{'' if given else ' (assumed: --prefill-rate says yours)'}"
        )
        if tokens_s > prefill_tokens_s:
            found.append(ok("bandwidth", f"sharing pays: {what}"))
        else:
            advice = "a faster network, RDMA (docs/rdma.md) or more lanes; until then load from nodes of the same host"
            found.append(warning("bandwidth", f"sharing does not pay: {what}", advice))
    return found


def measure(client: StoreClient, infos: Sequence[NodeInfo]) -> list[Rate]:
    """Writes some blocks to each node, reads them as an engine would, and removes them."""
    rates = []
    for info in infos:
        try:
            rates.append(_measure(client, info))
        except MoonpoolError as error:
            rates.append(Rate(info.node, "", failure=str(error)))
    return rates


def _measure(client: StoreClient, info: NodeInfo) -> Rate:
    block_bytes = (
        min(PROBE_BYTES, info.capacity_bytes // 8, info.page_bytes * BLOCKS) // BLOCKS // 4096 * 4096
    )
    if block_bytes <= 0:
        raise TransferFailed(peer=info.node, reason="its segment is too small for a measurement")
    spec = KeyspaceSpec(
        kind=Kind.FLAT, name="doctor", shard_bytes=(block_bytes,), tenant=client.settings.tenant
    )
    keyspace = client.register_keyspace(spec)
    hashes = [secrets.token_bytes(spec.hash_bytes) for _ in range(BLOCKS)]
    memory = np.random.default_rng(0).integers(0, 256, BLOCKS * block_bytes, dtype=np.uint8)
    starts = memory.ctypes.data + np.arange(BLOCKS, dtype=np.uint64)[:, None] * np.uint64(block_bytes)
    blocks = Fragments.grid(starts.astype(np.uint64), np.array([[block_bytes]], np.uint64))
    try:
        _write(client, info, spec, hashes, blocks)
        best_s = float("inf")
        for _ in range(ROUNDS):
            start_s = time.monotonic()
            statuses = client.get_blocks(BlockGet(keyspace, 0, hashes, 0, blocks), timeout_s=TIMEOUT_S)
            best_s = min(best_s, time.monotonic() - start_s)
            if (statuses != Status.OK).any():
                raise TransferFailed(peer=info.node, reason="not everything that was written could be read")
    finally:
        client.remove(keyspace, hashes, force=True)
    near = client.settings.transport in ("auto", "shm") and same_host(info)
    return Rate(info.node, "shm" if near else "tcp", BLOCKS * block_bytes / best_s)


def _write(
    client: StoreClient, info: NodeInfo, spec: KeyspaceSpec, hashes: list[bytes], blocks: Fragments
) -> None:
    """To this node, which the master would not have chosen: over tcp, as from another host."""
    lengths = np.full(BLOCKS, spec.shard_bytes[0], dtype=np.uint64)
    item = BeginItem(spec.digest(), 0, 0, b"", join_hashes(hashes), pack_u64(lengths.tolist()))
    transport = client.admin.lanes_to(info, spec)
    try:
        batch = WriteBatch(item, lengths, blocks, visible=True)
        statuses = transport.write([batch], time.monotonic() + TIMEOUT_S)[0]
    finally:
        transport.close()
    if (statuses != Status.OK).any():
        names = ", ".join(sorted({Status(status).name for status in statuses.tolist()} - {"OK"}))
        raise TransferFailed(
            peer=info.node, reason=f"{names} on writing {BLOCKS} blocks of {lengths[0]} bytes"
        )
