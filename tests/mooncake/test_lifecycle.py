"""Setup in both forms, close, health, segments."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.mooncake_pools import SEGMENT_BYTES, Pool

INVALID_PARAMS = -600


def test_setup_by_dict(own_pool: Pool) -> None:
    store = own_pool.module.MooncakeDistributedStore()
    config: dict[str, object] = {"metadata_server": "P2PHANDSHAKE"}
    assert store.setup(config) == INVALID_PARAMS
    config |= {"local_hostname": "127.0.0.1", "master_server_addr": own_pool.master.address}
    config |= {"global_segment_size": str(SEGMENT_BYTES), "local_buffer_size": 1 << 24, "protocol": "tcp"}
    assert store.setup(config) == 0
    try:
        assert store.put("key", b"value") == 0
        assert store.get("key") == b"value"
    finally:
        assert store.close() == 0


def test_two_stores_share_a_pool(own_pool: Pool) -> None:
    one, two = own_pool.store(), own_pool.store(0)
    assert one.put("key", b"value") == 0
    assert two.get("key") == b"value"
    assert two.put("other", b"value") == 0
    assert one.get("other") == b"value"
    assert one.get_hostname().startswith("127.0.0.1")


def test_close_and_open_again(own_pool: Pool) -> None:
    store = own_pool.module.MooncakeDistributedStore()
    assert store.health_check() == 1
    assert store.get("key") == b""
    assert store.close() == 0
    for _ in range(2):
        assert store.setup(*own_pool.setup_arguments()) == 0
        assert store.health_check() == 0
        assert store.put("key", b"value") == 0
        assert store.close() == 0
        assert store.close() == 0
        assert store.health_check() == 1
        assert store.get("key") == b""


CALLS = [
    ("put", ("key", b"value"), INVALID_PARAMS),
    ("put_parts", ("key", b"value"), INVALID_PARAMS),
    ("put_batch", (["key"], [b"value"]), INVALID_PARAMS),
    ("put_from", ("key", 4096, 1), INVALID_PARAMS),
    ("batch_put_from", (["key"], [4096], [1]), [INVALID_PARAMS]),
    ("batch_put_from_multi_buffers", (["key"], [[4096]], [[1]]), [INVALID_PARAMS]),
    ("upsert", ("key", b"value"), INVALID_PARAMS),
    ("get", ("key",), b""),
    ("get_batch", (["key"],), [b""]),
    ("get_buffer", ("key",), None),
    ("batch_get_buffer", (["key"],), [None]),
    ("get_into", ("key", 4096, 1), INVALID_PARAMS),
    ("batch_get_into", (["key"], [4096], [1]), [INVALID_PARAMS]),
    ("batch_get_into_multi_buffers", (["key"], [[4096]], [[1]]), [INVALID_PARAMS]),
    ("get_into_ranges", ([4096], [["key"]], [[[0]]], [[[0]]], [[[1]]]), [[[INVALID_PARAMS]]]),
    ("is_exist", ("key",), INVALID_PARAMS),
    ("batch_is_exist", (["key"],), [INVALID_PARAMS]),
    ("get_size", ("key",), INVALID_PARAMS),
    ("remove", ("key",), INVALID_PARAMS),
    ("batch_remove", (["key"],), [INVALID_PARAMS]),
    ("remove_by_regex", ("key",), INVALID_PARAMS),
    ("remove_all", (), INVALID_PARAMS),
    ("get_replica_desc", ("key",), []),
    ("batch_get_replica_desc", (["key"],), {}),
    ("register_buffer", (4096, 4096), INVALID_PARAMS),
    ("unregister_buffer", (4096,), INVALID_PARAMS),
    ("batch_get_session_start", (["key"],), [INVALID_PARAMS]),
    ("batch_put_session_start", (["key"], [1]), [INVALID_PARAMS]),
    ("get_tensor", ("key",), None),
    ("get_hostname", (), ""),
    ("mount_segment", ("nowhere", 1 << 20), {"ret": -1, "segment_ids": []}),
    ("unmount_segment", (["segment"],), -1),
]


@pytest.mark.parametrize("closed", [False, True], ids=["before setup", "after close"])
def test_use_without_setup_is_an_answer(closed: bool) -> None:
    """Only ours: Mooncake's library ends the process with SIGSEGV in most of these."""
    with Pool("moonpool") as pool:
        store = pool.store(0) if closed else pool.module.MooncakeDistributedStore()
        store.close()
        for name, arguments, answer in CALLS:
            expected = pool.expected("use-without-setup", mooncake=None, moonpool=answer)
            assert getattr(store, name)(*arguments) == expected, name


def test_segments(pool: Pool, store: Any) -> None:
    outcome = store.allocate_and_mount_segment(1 << 24)
    assert (outcome["ret"], outcome["allocated_size"]) == (0, 1 << 24)
    (segment,) = outcome["segment_ids"]
    assert store.unmount_and_free_segment([segment]) == 0
    assert store.unmount_and_free_segment([segment]) == -1
    assert store.unmount_segment(["abc"]) == -1
    assert store.unmount_segment([]) == 0
    assert store.mount_segment("/dev/shm/there-is-no-such-file", 1 << 24)["ret"] == -1
    assert store.allocate_and_mount_segment(0)["ret"] == -1
    assert store.unmount_local_disk_segment() == 0


def test_a_segment_in_a_file(pool: Pool, store: Any) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        file = Path(folder, "segment")
        file.touch()
        os.truncate(file, 1 << 24)
        outcome = store.mount_segment(str(file), 1 << 24)
        assert outcome["ret"] == 0
        files = len(list(Path(folder).iterdir()))
        assert files == pool.expected("mounted-file", mooncake=1, moonpool=2)
        assert store.unmount_segment(outcome["segment_ids"]) == 0
        assert list(Path(folder).iterdir()) == [file]


def test_the_hosts_node_serves_clients_without_a_segment(own_pool: Pool) -> None:
    owner = own_pool.store()
    if not own_pool.ours:
        return  # needs mooncake_client, a second server; see setup_dummy in the compatibility page
    attached = own_pool.module.MooncakeDistributedStore()
    assert attached.setup_dummy(1 << 20, 1 << 20, own_pool.master.address) == 0
    try:
        assert attached.put("key", b"value") == 0
        assert owner.get("key") == b"value"
        assert attached.alloc_from_mem_pool(4096) > 0
    finally:
        attached.close()
