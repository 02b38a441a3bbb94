"""How fast StoreClient moves KV blocks between the pool and a GPU, beside one large pinned copy.

Usage: copy_rate.py MASTER. 2,048 blocks of 16 layers x 64 KiB, in random order on the GPU: 2 GiB.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.store_client import BlockGet, BlockPut, StoreClient
from moonpool.store_client.copiers.cuda import CudaCopier
from moonpool.store_client.fragments import Fragments

BLOCKS, LAYERS, PIECE = 2048, 16, 64 << 10
TOTAL = BLOCKS * LAYERS * PIECE


def rate(what: str, work: Callable[[], object], rounds: int = 5) -> None:
    """Prints GB/s, median and best."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    middle = sorted(seconds)[rounds // 2]
    print(
        f"{what:28} {TOTAL / middle / 1e9:6.1f} GB/s median, {TOTAL / min(seconds) / 1e9:6.1f} best",
        flush=True,
    )


def print_limits() -> None:
    """What one large copy between pinned memory and the GPU reaches."""
    pinned = torch.empty(TOTAL, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(TOTAL, dtype=torch.uint8, device="cuda")
    rate("limit: one copy to the GPU", lambda: device.copy_(pinned))
    rate("limit: one copy from it", lambda: pinned.copy_(device))


def main() -> None:
    """Puts once, gets five times, compares every byte."""
    torch.manual_seed(3)
    layers = [torch.randint(0, 255, (BLOCKS, PIECE), dtype=torch.uint8, device="cuda") for _ in range(LAYERS)]
    before = [layer.clone() for layer in layers]
    order = np.random.default_rng(1).permutation(BLOCKS)
    bases = np.array([layer.data_ptr() for layer in layers], dtype=np.uint64)
    addresses = bases[None, :] + order.astype(np.uint64)[:, None] * np.uint64(PIECE)
    where = Fragments.grid(addresses, np.array([PIECE], dtype=np.uint64))
    chain = [hashlib.sha256(i.to_bytes(4, "little")).digest() for i in range(BLOCKS)]
    spec = KeyspaceSpec(kind=Kind.CHAINED, name="copy-rate", shard_bytes=(LAYERS * PIECE,))

    print_limits()
    copier = CudaCopier(0)
    with StoreClient(ClientSettings(master=sys.argv[1], timeout_s=60.0), copier=copier) as client:
        keyspace = client.register_keyspace(spec)
        start = time.perf_counter()
        (put,) = client.put_blocks([BlockPut(keyspace, 0, chain, 0, where)])
        print(f"first put, with pinning: {time.perf_counter() - start:.2f} s, statuses {np.unique(put)}")
        while client.match(keyspace, chain) < BLOCKS:
            time.sleep(0.01)
        get = BlockGet(keyspace, 0, chain, 0, where)
        for layer in layers:
            layer.zero_()
        torch.cuda.synchronize()
        statuses = client.get_blocks(get)
        same = all(bool((a == b).all()) for a, b in zip(layers, before, strict=True))
        print(f"get: statuses {np.unique(statuses)}, contents equal: {same}")
        rate("get_blocks", lambda: client.get_blocks(get))
        for index in range(3):
            client.clear(keyspace)
            start = time.perf_counter()
            client.put_blocks([BlockPut(keyspace, 0, chain, 0, where)])
            print(f"put_blocks {index}: {TOTAL / (time.perf_counter() - start) / 1e9:.1f} GB/s")
        client.clear(keyspace)


if __name__ == "__main__":
    main()
