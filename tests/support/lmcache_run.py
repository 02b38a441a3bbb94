"""LMCache's own Mooncake connector: `python lmcache_run.py KIND MASTER`. Prints one line of JSON for each way of storing.

LMCache must be on the path; its log goes to stderr.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

CHUNKS = 5


async def use(config: Any, backend: Any, first_hash: int) -> dict[str, Any]:
    """Puts chunks and gets them."""
    import torch
    from lmcache.utils import CacheEngineKey
    from lmcache.v1.memory_management import MemoryFormat
    from lmcache.v1.storage_backend.connector.mooncakestore_connector import MooncakestoreConnector

    connector = MooncakestoreConnector(asyncio.get_running_loop(), backend, config)
    keys = [CacheEngineKey("m", 1, 0, first_hash + i, torch.bfloat16) for i in range(CHUNKS)]
    objects = []
    for i in range(CHUNKS):
        objects.append(backend.allocate(torch.Size((2, 2, 16, 128)), torch.bfloat16, MemoryFormat.KV_2LTD))
        objects[-1].tensor.fill_(i + 1)
    before = [int(await connector.exists(key)) for key in keys]
    await connector.batched_put(keys, objects)
    got = await connector.batched_get(keys)
    outcome = {
        "before": before,
        "after": [int(await connector.exists(key)) for key in keys],
        "contained": await connector.batched_async_contains("lookup", keys),
        "right": [chunk is not None and bool((chunk.tensor == i + 1).all()) for i, chunk in enumerate(got)],
    }
    await connector.close()
    return outcome


def main(kind: str, master: str) -> None:
    """Without and with metadata beside the data: batch_put_from and put_parts."""
    if kind == "moonpool":
        from moonpool.as_mooncake import install

        install()
    import torch
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.metadata import LMCacheMetadata
    from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend

    for metadata_beside in (False, True):
        extra = {
            "save_chunk_meta": metadata_beside,
            "transfer_timeout": 10,
            "mooncake_local_hostname": "127.0.0.1",
            "mooncake_metadata_server": "P2PHANDSHAKE",
            "mooncake_global_segment_size": 64 << 20,
            "mooncake_local_buffer_size": 16 << 20,
            "mooncake_protocol": "tcp",
            "mooncake_master_server_addr": master,
            "mooncake_prefer_local_alloc": True,
        }
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=16, local_cpu=False, max_local_cpu_size=0.1, extra_config=extra
        )
        shape = (2, 2, 16, 2, 64)
        metadata = LMCacheMetadata("m", 1, 1, 0, 0, torch.bfloat16, shape)
        backend = LocalCPUBackend(config, metadata)
        outcome = asyncio.run(use(config, backend, 1000 * (1 + metadata_beside)))
        print(json.dumps(outcome), flush=True)
    os._exit(0)  # its threads don't end by themselves


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
