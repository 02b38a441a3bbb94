"""A node that was started again listens on other ports: its clients hear of it from the master, within the call that fails."""

from __future__ import annotations

import pytest
from client.pool import MakeClient, Pool
from support.waiting import wait_until

from moonpool.schemas.messages import Status
from moonpool.store_client import StoreClient, nodes

VALUES = [bytes([i]) * size for i, size in enumerate((100, 4096, 300_000), 1)]
KEYS = [f"before {i}" for i in range(len(VALUES))]


def restart(pool: Pool, witness: StoreClient) -> None:
    """Returns once the master sends clients to the new ports, and knows what the node holds."""
    before = pool.node.info
    pool.node.kill()
    pool.node.start()
    assert pool.node.info != before
    wait_until(lambda: [entry.info for entry in witness.cluster_map().nodes] == [pool.node.info])
    wait_until(lambda: all(witness.batch_is_exist(KEYS)))


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """The map may be asked for as often as it is needed."""
    monkeypatch.setattr(nodes, "REFRESH_PAUSE_S", 0.0)


def test_the_first_get_and_the_first_puts_after_it(pool: Pool, make_client: MakeClient) -> None:
    witness, client = make_client(pool, transport="tcp"), make_client(pool, transport="tcp")
    assert client.batch_put(KEYS, VALUES) == [Status.OK] * len(KEYS)
    assert client.batch_get(KEYS) == VALUES
    restart(pool, witness)
    assert client.batch_get(KEYS) == VALUES
    for size in (10, 20_000, 300_000):  # a few small ones, over a lane, in batches
        restart(pool, witness)
        assert client.put(f"after {size}", bytes(size)) == Status.OK, size
        assert client.get(f"after {size}") == bytes(size)
    restart(pool, witness)
    many = [f"many {i}" for i in range(200)]
    assert set(client.batch_put(many, [b"x" * 1000] * 200)) == {Status.OK}


def test_a_node_that_is_gone_fails_what_it_held_alone(pool: Pool, make_client: MakeClient) -> None:
    client = make_client(pool, transport="tcp")
    assert client.batch_put(KEYS, VALUES) == [Status.OK] * len(KEYS)
    pool.node.kill()

    assert client.batch_get(KEYS) == [None] * len(KEYS)
    assert client.put("after", b"x") in (Status.FAILED, Status.NO_SPACE)
