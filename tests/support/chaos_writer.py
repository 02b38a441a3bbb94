"""A writer process for the chaos test: puts random chains until it is killed. Arguments: master port, seed."""

from __future__ import annotations

import random
import sys

import numpy as np

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import MoonpoolError
from moonpool.store_client import BlockPut, StoreClient
from moonpool.store_client.fragments import Fragments
from support.payloads import chain_hashes, payload
from support.workload import BLOCK_BYTES, CHAINS, SPEC, chain_length


def main() -> None:
    """Writes for ever."""
    port, seed = int(sys.argv[1]), int(sys.argv[2])
    rng = random.Random(seed)
    with StoreClient(ClientSettings(master=f"127.0.0.1:{port}", timeout_s=2.0)) as client:
        print("ready", flush=True)
        while True:
            write_chain(client, rng.randrange(CHAINS))


def write_chain(client: StoreClient, chain: int) -> int:
    """Puts what the pool lacks of one chain; returns how many blocks were written."""
    hashes = chain_hashes(f"chain-{chain}", chain_length(chain))
    buffer = np.concatenate([payload(block_hash, 0, BLOCK_BYTES) for block_hash in hashes])
    addresses = np.uint64(buffer.ctypes.data) + np.arange(len(hashes), dtype=np.uint64) * np.uint64(
        BLOCK_BYTES
    )
    source = Fragments.grid(addresses.reshape(-1, 1), np.array([BLOCK_BYTES], dtype=np.uint64))
    try:
        keyspace = client.register_keyspace(SPEC)
        (statuses,) = client.put_blocks([BlockPut(keyspace, 0, hashes, 0, source)])
    except MoonpoolError:
        return 0
    return int((statuses == 0).sum())


if __name__ == "__main__":
    main()
