"""The calls of SGLang HiCache's and LMCache's backends, in their order and with their expectations."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from support.mooncake_pools import SEGMENT_BYTES, Memory, Pool

PAGE_BYTES = 4096


def test_sglang_hicache(own_pool: Pool) -> None:
    """Warm-up, then pages of a registered host pool: K and V of a page under two keys."""
    store = own_pool.module.MooncakeDistributedStore()
    arguments = own_pool.setup_arguments()
    assert store.setup(*arguments, None) == 0  # the engine is shared where there is one
    try:
        assert store.put("sglang-warmup", bytes(4096)) == 0
        assert store.is_exist("sglang-warmup") == 1
        assert store.get("sglang-warmup") == bytes(4096)
        memory = Memory(1 << 20)
        assert store.register_buffer(memory.address, 1 << 20) == 0
        hashes = [f"{i:064x}" for i in range(16)]
        keys = [f"{page}_0_{part}" for page in hashes for part in "kv"]
        places = [memory.address + i * PAGE_BYTES for i in range(len(keys))]
        sizes = [PAGE_BYTES] * len(keys)
        assert set(store.batch_is_exist(keys)) == {0}
        assert store.batch_put_from(keys, places, sizes) == [0] * len(keys)
        # A prefix is as long as its pages are there in both halves.
        found = store.batch_is_exist([*keys, "missing_0_k", "missing_0_v"])
        assert found == [1] * len(keys) + [0, 0]
        into = [place + (1 << 19) for place in places]
        assert store.batch_get_into(keys, into, sizes) == sizes
        assert memory.at(1 << 19, len(keys) * PAGE_BYTES) == memory.at(0, len(keys) * PAGE_BYTES)
        layers = [[place, place + 2048] for place in places]
        halves = [[2048, 2048]] * len(keys)
        more = [f"multi-{key}" for key in keys]
        assert store.batch_put_from_multi_buffers(more, layers, halves) == [0] * len(keys)
        assert store.batch_get_into_multi_buffers(more, layers, halves) == sizes
        assert store.remove_all() >= 0
    finally:
        store.close()


def test_sglang_falls_back_where_an_argument_is_unknown(own_pool: Pool) -> None:
    """It drops the keyword that a TypeError names, and tries again."""
    store = own_pool.module.MooncakeDistributedStore()
    with pytest.raises(TypeError):
        store.setup(*own_pool.setup_arguments(), there_is_no_such_option=True)
    assert store.setup(*own_pool.setup_arguments(), tenant_id="default") == 0
    store.close()


def test_lmcache(own_pool: Pool) -> None:
    """setup by dict, puts in threads under a deadline, metadata and data as parts, zero-copy gets."""
    store = own_pool.module.MooncakeDistributedStore()
    config = {
        "local_hostname": "127.0.0.1",
        "metadata_server": "P2PHANDSHAKE",
        "global_segment_size": str(SEGMENT_BYTES),
        "local_buffer_size": str(1 << 24),
        "protocol": "tcp",
        "rdma_devices": "",
        "master_server_addr": own_pool.master.address,
    }
    assert store.setup(config) == 0
    memory = Memory(1 << 20)

    async def use() -> None:
        async def within(call: Any, *arguments: Any) -> Any:
            return await asyncio.wait_for(asyncio.to_thread(call, *arguments), 60)

        keys = [f"vllm@model@1@0@{i:x}@half" for i in range(8)]
        assert store.register_buffer(memory.address, 1 << 20) == 0
        places = [memory.address + i * PAGE_BYTES for i in range(8)]
        codes = await within(store.batch_put_from, keys, places, [PAGE_BYTES] * 8)
        assert codes == [0] * 8
        assert await within(store.put_parts, "with-metadata", b"header", memory.at(0, 100)) == 0
        assert await within(store.is_exist, keys[0]) == 1
        assert await within(store.batch_is_exist, [keys[0], "no"]) == [1, 0]
        into = [place + (1 << 19) for place in places]
        assert await within(store.batch_get_into, keys, into, [PAGE_BYTES] * 8) == [PAGE_BYTES] * 8
        handles = await within(store.batch_get_buffer, [keys[3], "no", "with-metadata"])
        assert handles[1] is None
        assert bytes(memoryview(handles[0])) == memory.at(3 * PAGE_BYTES, PAGE_BYTES)
        assert np.asarray(handles[2])[:6].tobytes() == b"header"
        assert await within(store.put_from, "one", memory.address, 100) == 0
        assert store.unregister_buffer(memory.address) == 0
        assert ":" in store.get_hostname()

    try:
        asyncio.run(use())
    finally:
        assert store.close() == 0
