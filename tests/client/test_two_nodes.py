"""Two nodes: a call that concerns both, and what is left of it when one dies."""

from __future__ import annotations

import time

import pytest
from client.pool import SIZE_BYTES, MakeClient, Pool, wait_for_nodes
from support.processes import NodeProcess
from support.waiting import at_most

from moonpool.schemas.keyspace import object_hash, objects_keyspace
from moonpool.schemas.messages import Status


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_dead_node_takes_only_its_own_with_it(pool: Pool, make_client: MakeClient, transport: str) -> None:
    client = make_client(pool, transport=transport)
    with NodeProcess(pool.master, name="second", size=SIZE_BYTES, prefault=False) as second:
        wait_for_nodes(client, 2)
        keys = [f"object {i}" for i in range(120)]
        values = [key.encode() * 20_000 for key in keys]
        for first in range(0, len(keys), 10):  # the emptier node is chosen each time
            part = slice(first, first + 10)
            assert client.batch_put(keys[part], values[part]) == [Status.OK] * 10
        assert client.batch_get(keys) == values
        keyspace = objects_keyspace().digest()
        there = {client.describe(keyspace, object_hash(key)).copies[0].segment for key in keys}
        assert len(there) == 2
        second.kill()
        start_s = time.monotonic()
        found = client.batch_get(keys)
        assert time.monotonic() - start_s < at_most(1)
        for value, was in zip(found, values, strict=True):
            assert value in (None, was)
        if transport == "tcp":
            assert 0 < sum(value is None for value in found) < len(keys)
