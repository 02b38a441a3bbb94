"""Blocks of chained and flat keyspaces: match, presence, renew, put, get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from moonpool.schemas.errors import InvalidParams
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import (
    Locate,
    Matched,
    Presence,
    Present,
    Probed,
    Renew,
    Renewed,
    RunSlice,
)
from moonpool.schemas.packed import U8, U64, join_hashes
from moonpool.schemas.runs import run_start, split_runs
from moonpool.store_client.cluster import Cluster
from moonpool.store_client.fragments import Fragments
from moonpool.store_client.gets import Getter, Places, Wanted
from moonpool.store_client.keyspaces import KeyspaceBook
from moonpool.store_client.prefix import PrefixSearch
from moonpool.store_client.puts import PutPart, Putter


@dataclass(frozen=True, slots=True, eq=False)
class BlockPut:
    """Blocks first .. first + source.count of a chain, one rank's shards. `chain` holds ALL block hashes from position
    0 up to the last block here at least, so that parents and runs follow from it. May cross run boundaries.
    In flat keyspaces `chain` is just the hashes and `first` is 0. `request_id`, `session_id`: in whose name, for those
    who look for or delete what a request has written."""

    keyspace: bytes
    rank: int
    chain: Sequence[bytes]
    first: int
    source: Fragments
    request_id: str = ""
    session_id: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class BlockGet:
    """Blocks first .. first + into.count of a chain, one rank's shards. `chain` as in BlockPut."""

    keyspace: bytes
    rank: int
    chain: Sequence[bytes]
    first: int
    into: Fragments


class Blocks:
    """The block calls of a StoreClient."""

    def __init__(self, cluster: Cluster, book: KeyspaceBook, putter: Putter, getter: Getter) -> None:
        self._cluster = cluster
        self._book = book
        self._putter = putter
        self._getter = getter
        self._sample_mask = 0  # all, until the master has said what it wants

    def match(self, keyspace: bytes, hashes: Sequence[bytes], deadline_s: float) -> int:
        """Longest ready prefix in blocks. Raises what the call raises."""
        spec = self._book.get(keyspace)
        if not hashes:
            return 0
        search = PrefixSearch(spec, hashes)
        shards = b""
        if self._cluster.shards(deadline_s) > 1:
            roots = [hashes[at] for at, _ in split_runs(0, len(hashes))]
            shards = self._cluster.column(keyspace, roots, deadline_s)
        probe = search.probe(self._sample_mask, shards)
        probed = self._cluster.ask(probe, Probed, deadline_s)
        self._sample_mask = probed.sample_mask
        total, gap = search.gap(probed)
        if gap is not None:
            shards = self._cluster.column(keyspace, [hashes[run_start(total)]], deadline_s)
            gap = msgspec.structs.replace(gap, shards=shards) if shards else gap
            total += sum(self._cluster.ask(gap, Matched, deadline_s).ready)
        return max(0, min(total, len(hashes)))

    def presence(self, keyspace: bytes, hashes: Sequence[bytes], rank: int, deadline_s: float) -> list[bool]:
        """Which rows of a flat keyspace are there. Raises what the call raises."""
        _check_hashes(self._book.get(keyspace), hashes)
        if not hashes:
            return []
        shards = self._cluster.column(keyspace, hashes, deadline_s)
        request = Presence(keyspace, join_hashes(hashes), rank, shards=shards)
        return [bit == 1 for bit in self._cluster.ask(request, Present, deadline_s).bits]

    def renew(self, keyspace: bytes, hashes: Sequence[bytes], deadline_s: float) -> list[bool]:
        """Whether each run (flat: each row) is still there. Raises what the call raises."""
        spec = self._book.get(keyspace)
        _check_hashes(spec, hashes)
        roots = hashes
        if spec.kind is Kind.CHAINED:
            runs = list(split_runs(0, len(hashes)))
            roots = [hashes[at] for at, _ in runs]
            hashes = [hashes[at + count - 1] for at, count in runs]
        if not hashes:
            return []
        shards = self._cluster.column(keyspace, roots, deadline_s)
        reply = self._cluster.ask(Renew(keyspace, join_hashes(hashes), shards=shards), Renewed, deadline_s)
        return [bit == 1 for bit in reply.bits]

    def put(self, puts: Sequence[BlockPut], deadline_s: float) -> list[U8]:
        """A Status array a put. Raises only what is wrong with the arguments."""
        parts: list[PutPart] = []
        owners: list[int] = []
        for i, put in enumerate(puts):
            mine = self._parts_of(put, f"puts[{i}]")
            parts += mine
            owners += [i] * len(mine)
        outcomes = self._putter.put(parts, deadline_s)
        statuses: list[list[U8]] = [[] for _ in puts]
        for owner, outcome in zip(owners, outcomes, strict=True):
            statuses[owner].append(outcome)
        return [np.concatenate(found) if found else np.zeros(0, dtype=np.uint8) for found in statuses]

    def get(self, get: BlockGet, deadline_s: float) -> U8:
        """A Status a block. Raises only what is wrong with the arguments."""
        spec = self._book.get(get.keyspace)
        lengths = _check_blocks(spec, get.rank, get.chain, get.first, get.into, "get")
        count = get.into.count
        if not count:
            return np.zeros(0, dtype=np.uint8)
        hashes = get.chain[get.first : get.first + count]
        if spec.kind is Kind.CHAINED:
            cuts = list(split_runs(get.first, count))
            roots = [get.chain[run_start(at)] for at, _ in cuts]
            runs = [RunSlice(get.chain[at + length - 1], at, length) for at, length in cuts]
            request = Locate(get.keyspace, get.rank, runs=runs)
        else:
            roots = list(hashes)
            request = Locate(get.keyspace, get.rank, hashes=join_hashes(hashes))

        def locate(avoid: Sequence[bytes]) -> Places:
            shards = self._cluster.column(get.keyspace, roots, deadline_s)
            asked = request
            if shards or avoid:
                asked = msgspec.structs.replace(request, shards=shards, avoid=list(avoid))
            return self._getter.locate(asked, count, deadline_s)

        return self._getter.get(Wanted(get.keyspace, get.rank, hashes, get.into, lengths), locate, deadline_s)

    def _parts_of(self, put: BlockPut, what: str) -> list[PutPart]:
        spec = self._book.get(put.keyspace)
        lengths = _check_blocks(spec, put.rank, put.chain, put.first, put.source, what)
        chained = spec.kind is Kind.CHAINED
        count = put.source.count
        cuts = list(split_runs(put.first, count)) if chained else [(put.first, count)] if count else []
        parts = []
        for at, length in cuts:
            index = slice(at - put.first, at - put.first + length)
            whole = length == count
            parts.append(
                PutPart(
                    keyspace=put.keyspace,
                    kind=spec.kind,
                    rank=put.rank,
                    position=at if chained else 0,
                    parent=put.chain[at - 1] if chained and at else b"",
                    hashes=put.chain[at : at + length],
                    run_root=put.chain[run_start(at)] if chained else b"",
                    lengths=lengths[index],
                    source=put.source if whole else put.source.take(np.arange(index.start, index.stop)),
                    request_id=put.request_id,
                    session_id=put.session_id,
                )
            )
        return parts


def _check_hashes(spec: KeyspaceSpec, hashes: Sequence[bytes]) -> None:
    if not set(map(len, hashes)) <= {spec.hash_bytes}:
        raise InvalidParams(field="hashes", value="another size", allowed=f"{spec.hash_bytes} bytes each")


def _check_blocks(
    spec: KeyspaceSpec, rank: int, chain: Sequence[bytes], first: int, memory: Fragments, what: str
) -> U64:
    """Bytes of each block. Raises InvalidParams."""
    if not 0 <= rank < spec.world:
        raise InvalidParams(field=f"{what}.rank", value=rank, allowed=f"0 to {spec.world - 1}")
    if not 0 <= first <= len(chain) - memory.count:
        allowed = f"0 to {len(chain) - memory.count}: {memory.count} blocks in a chain of {len(chain)}"
        raise InvalidParams(field=f"{what}.first", value=first, allowed=allowed)
    _check_hashes(spec, chain)
    lengths = memory.lengths()
    if not spec.variable_size and not (lengths == spec.shard_bytes[rank]).all():
        wrong = lengths[lengths != spec.shard_bytes[rank]][0]
        raise InvalidParams(
            field=f"{what}: bytes of a block",
            value=int(wrong),
            allowed=f"{spec.shard_bytes[rank]}, as its keyspace says for rank {rank}",
        )
    return lengths
