"""Copies between real processes: as many as are wanted, on hosts of their own, also after one of those is gone."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from replicas.pool import BLOCK_BYTES, OBJECTS, QUICK, Chain, ReplicaPool
from support.guarded import write_tokens
from support.waiting import wait_until

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.keyspace import object_hash
from moonpool.schemas.messages import Status
from moonpool.store_client import StoreClient


def test_a_lost_node_is_survived_and_its_copies_are_made_anew() -> None:
    with ReplicaPool("a", "b", "c") as pool:
        chain = Chain("repaired", 40)
        chain.put(pool.client)
        assert pool.client.admin.set_replicas(chain.keyspace, 2)
        assert not pool.client.admin.set_replicas(chain.keyspace, 2)
        wait_until(lambda: all(len(pool.holders(chain.keyspace, h)) == 2 for h in chain.hashes))
        gone = pool.holders(chain.keyspace, chain.hashes[0])[0]
        pool.nodes[gone].kill()
        assert chain.get(pool.client) == 40  # some after a second look
        left = sorted({"a", "b", "c"} - {gone})
        wait_until(lambda: all(pool.holders(chain.keyspace, h) == left for h in chain.hashes))
        assert chain.get(pool.client) == 40


def test_objects_keep_their_names() -> None:
    with ReplicaPool("a", "b") as pool:
        keys = [f"object {number}" for number in range(20)]
        values = [key.encode() * 100 for key in keys]
        assert pool.client.batch_put(keys, values) == [Status.OK] * 20
        pool.client.admin.set_replicas(OBJECTS, 2)
        wait_until(lambda: all(pool.holders(OBJECTS, object_hash(key)) == ["a", "b"] for key in keys))
        pool.nodes["a"].kill()
        wait_until(lambda: pool.live() == {"b"})
        assert pool.client.batch_get(keys) == values


def test_guarded_nodes_copy_with_their_own_token_also_ahead_of_use(tmp_path: Path) -> None:
    tokens = str(write_tokens(tmp_path / "tokens.json"))
    master = [*QUICK, "--tokens-file", tokens]
    with ReplicaPool("a", "b", master=master, token="admin", tokens_file=tokens) as pool:
        chain = Chain("guarded", 3)
        chain.put(pool.client)
        pool.client.admin.set_replicas(chain.keyspace, 2)
        wait_until(lambda: pool.holders(chain.keyspace, chain.hashes[2]) == ["a", "b"])
        warmed = Chain("warmed", 5)
        warmed.put(pool.client)
        (first,) = pool.holders(warmed.keyspace, warmed.hashes[4])
        (other,) = {"a", "b"} - {first}
        ordered = pool.client.admin.warm(warmed.keyspace, warmed.hashes[4:], with_prefix=True, node=other)
        assert (ordered.copies, ordered.size_bytes) == (5, 5 * BLOCK_BYTES)
        wait_until(lambda: all(pool.holders(warmed.keyspace, h) == ["a", "b"] for h in warmed.hashes))
        assert not pool.client.admin.warm(warmed.keyspace, node=other).copies, "they are there"


def test_a_reader_who_cannot_reach_one_node_reads_the_other_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a firewall: the node lives, and the master names it as often as the other."""
    with ReplicaPool("a", "b") as pool:
        chain = Chain("walled", 40)
        chain.put(pool.client)
        pool.client.admin.set_replicas(chain.keyspace, 2)
        keys = [f"object {number}" for number in range(40)]
        values = [key.encode() * 100 for key in keys]
        assert pool.client.batch_put(keys, values) == [Status.OK] * 40
        pool.client.admin.set_replicas(OBJECTS, 2)
        wait_until(lambda: all(pool.holders(chain.keyspace, h) == ["a", "b"] for h in chain.hashes))
        wait_until(lambda: all(pool.holders(OBJECTS, object_hash(key)) == ["a", "b"] for key in keys))
        nodes = pool.client.cluster_map().nodes
        (walled,) = [
            int(node.info.data_address.rpartition(":")[2]) for node in nodes if node.info.node == "b"
        ]
        connect = socket.socket.connect

        def refuse(self: socket.socket, address: Any) -> None:
            if isinstance(address, tuple) and address[1] == walled:
                raise ConnectionRefusedError
            connect(self, address)

        monkeypatch.setattr(socket.socket, "connect", refuse)
        settings = ClientSettings(master=pool.master.address, transport="tcp", timeout_s=30.0)
        with StoreClient(settings) as client:
            client.register_keyspace(chain.spec)
            for _ in range(3):  # the master names the copies in turns
                assert chain.get(client) == 40
                assert client.batch_get(keys) == values
                assert [client.get(key) for key in keys[:4]] == values[:4]
