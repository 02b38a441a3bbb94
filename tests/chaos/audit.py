"""What must hold when everything runs again: masters, etcd and the headers of all nodes tell the same story."""

from __future__ import annotations

import mmap
import time
from base64 import b64decode, b64encode

import numpy as np
from chaos.client import value_of
from chaos.cluster import SHARDS, Cluster, quietly
from support.waiting import soon
from support.workload import SPEC

from moonpool.schemas.errors import NotFound
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.header import GENERATION_BITS, GENERATION_MASK, HEADER_DTYPE, SlotState, keyspace_word
from moonpool.schemas.keyspace import objects_keyspace
from moonpool.schemas.messages import GetStatus, Hello, StatusReport, decode_from_master
from moonpool.store_client.node.layout import HEAD_BYTES, Head
from moonpool.store_client.objects import hashes_of
from moonpool.store_client.rpc.connection import RpcConnection

AGREE_TIMEOUT_S = 120.0
PREFIX = "/moonpool/default/"
SPECS = {spec.digest(): spec for spec in (SPEC, objects_keyspace())}


def headers_of(path: str) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """All headers of a segment that are not free, with their segment's id."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
        head = Head.read(memory[:HEAD_BYTES])
        assert head is not None
        layout = head.layout
        region = memory[layout.header_offset : layout.data_offset]
    count = layout.page_count * layout.headers_per_page
    headers = np.frombuffer(region, dtype=HEADER_DTYPE, count=count)
    return headers[headers["word"] >> GENERATION_BITS != SlotState.FREE]


def copies_of_masters(cluster: Cluster) -> int:
    """Of all rows of all shards."""
    total = 0
    for master in cluster.masters.values():
        hello = Hello(PROTOCOL_VERSION, "client", "audit")
        connection = RpcConnection(master.address, hello, decode_from_master)
        try:
            reply = connection.call(GetStatus(), soon())
        finally:
            connection.close()
        assert isinstance(reply, StatusReport)
        total += int(reply.facts["copies"])
    return total


def assert_space_is_whole(cluster: Cluster) -> None:
    """Every slot in use is committed, and is the one that the index names for that block. No row names another."""
    end_s = time.monotonic() + AGREE_TIMEOUT_S
    while True:
        headers = {name: headers_of(node.segment_file) for name, node in cluster.nodes.items()}
        states = np.concatenate([found["word"] for found in headers.values()]) >> np.uint64(GENERATION_BITS)
        writing = int((states != SlotState.COMMITTED).sum())
        objects = sum(int(node.status()["objects"]) for node in cluster.nodes.values())
        rows = copies_of_masters(cluster)
        if states.size == objects == rows and writing == 0:
            break
        assert time.monotonic() < end_s, (
            f"{states.size} slots in use ({writing} being written), {objects} objects of nodes, {rows} copies indexed"
        )
        time.sleep(0.3)
    assert rows > 0
    assert_same_places(cluster, headers)


def assert_same_places(
    cluster: Cluster, headers: dict[str, np.ndarray[tuple[int], np.dtype[np.void]]]
) -> None:
    """Block by block, by generation: one is never given twice."""
    digests = {keyspace_word(digest): digest for digest in SPECS}
    in_nodes: dict[tuple[bytes, bytes], list[tuple[bytes, int]]] = {}
    for name, found in headers.items():
        segment = cluster.nodes[name].info.segment
        for header in found:
            digest = digests[int(header["keyspace"])]
            block_hash = bytes(header["block_hash"]).ljust(SPECS[digest].hash_bytes, b"\0")
            place = (segment, int(header["word"]) & GENERATION_MASK)
            in_nodes.setdefault((digest, block_hash), []).append(place)
    wrong = []
    for (digest, block_hash), places in in_nodes.items():
        try:
            copies = cluster.auditor.describe(digest, block_hash).copies
        except NotFound:
            copies = []
        if sorted((copy.segment, copy.generation) for copy in copies) != sorted(places):
            wrong.append((SPECS[digest].name, block_hash.hex(), places, copies))
    assert not wrong, f"{len(wrong)} of {len(in_nodes)} blocks: {wrong[:5]}"


def keys_in_etcd(cluster: Cluster, prefix: str) -> list[str]:
    """Without what all keys begin with."""
    first = (PREFIX + prefix).encode()
    end = first[:-1] + bytes([first[-1] + 1])
    wanted = {"key": b64encode(first).decode(), "range_end": b64encode(end).decode(), "keys_only": True}
    found = cluster.etcds["e0"].ask("kv/range", **wanted).get("kvs", [])
    return [b64decode(one["key"]).decode().removeprefix(PREFIX) for one in found]


def assert_pins_are_kept(cluster: Cluster) -> tuple[int, int]:
    """Acknowledged pins are recorded and hold, acknowledged unpins are not. Returns how many there were of each."""
    said = [line for client in cluster.clients.values() for line in client.said()]
    pinned = {line["pinned"] for line in said if "pinned" in line}
    unpinning = {line["unpinning"] for line in said if "unpinning" in line}
    unpinned = {line["unpinned"] for line in said if "unpinned" in line}
    recorded = {key.split("/")[3] for key in keys_in_etcd(cluster, "pins/")}

    def names(keys: set[str]) -> dict[str, str]:
        ordered = sorted(keys)
        return {one.hex(): key for one, key in zip(hashes_of(ordered), ordered, strict=True)}

    kept = names(pinned - unpinning)
    lost = [key for name, key in kept.items() if name not in recorded]
    assert not lost, f"{len(lost)} of {len(kept)} acknowledged pins are not in etcd: {lost[:5]}"
    back = [key for name, key in names(unpinned).items() if name in recorded]
    assert not back, f"{len(back)} acknowledged unpins came undone: {back[:5]}"
    gone = [key for key in kept.values() if cluster.auditor.get(key) != value_of(key)]
    assert not gone, f"{len(gone)} of {len(kept)} pinned objects are gone: {gone[:5]}"
    for name, key in kept.items():
        assert cluster.auditor.describe(objects_keyspace().digest(), bytes.fromhex(name)).pinned, key
    return len(pinned), len(unpinned)


def assert_removals_hold(cluster: Cluster) -> int:
    """Nothing that was acknowledged to be removed is there. Returns how many there were."""
    said = [line for client in cluster.clients.values() for line in client.said()]
    removed = [line["removed"] for line in said if "removed" in line]
    there = cluster.auditor.batch_is_exist(removed)
    back = [key for key, found in zip(removed, there, strict=True) if found]
    assert not back, f"{len(back)} of {len(removed)} removed objects are back: {back[:5]}"
    return len(removed)


def assert_all_space_comes_back(cluster: Cluster) -> None:
    """With every row removed, every node has all its memory again, and etcd holds no promise about any of it."""
    owners = keys_in_etcd(cluster, "shards/")
    assert sum(key.endswith("/owner") for key in owners) == SHARDS
    end_s = time.monotonic() + AGREE_TIMEOUT_S
    used = dict.fromkeys(cluster.nodes, 1)
    while True:
        for digest in SPECS if any(used.values()) else ():  # a removal may leave a promise for a moment
            quietly(lambda digest=digest: bool(cluster.auditor.clear(digest)))  # type: ignore[misc]
        used = {name: int(node.status()["used_bytes"]) for name, node in cluster.nodes.items()}
        left = keys_in_etcd(cluster, "removals/")
        if not any(used.values()) and not left:
            return
        assert time.monotonic() < end_s, f"{used} bytes of slots are lost, or removals are left: {left[:5]}"
        time.sleep(0.3)
