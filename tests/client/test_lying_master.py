"""A master that says what can't be: calls fail or miss, and nothing is raised, or taken for true."""

from __future__ import annotations

from typing import Any

import pytest
from client.pool import MakeClient, Pool
from client.test_shm import SPEC
from msgspec.structs import replace

from moonpool.schemas.messages import ClusterMap, Located, Matched, Message, Probed, PutStarted, Status
from moonpool.schemas.packed import pack_u64
from moonpool.store_client import StoreClient


def lie(client: StoreClient, monkeypatch: pytest.MonkeyPatch, kind: type[Message], **fields: Any) -> None:
    """Replaces fields of answers of that kind."""
    ask = client._cluster.ask

    def asked(request: Message, expected: type[Message], deadline_s: float) -> Any:
        answer = ask(request, expected, deadline_s)
        return replace(answer, **fields) if isinstance(answer, kind) else answer

    monkeypatch.setattr(client._cluster, "ask", asked)


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("size_bytes", [100, 100_000])
def test_segments_for_other_puts(
    shared_pool: Pool, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, count: int, size_bytes: int
) -> None:
    client = make_client(shared_pool)
    lie(client, monkeypatch, PutStarted, segments=[bytes(16)] * count)
    assert client.batch_put(["lie", "lie"], [bytes(size_bytes)] * 2) == [Status.FAILED] * 2


@pytest.mark.parametrize("length", [(1 << 64) - 1, 1 << 50])
def test_an_object_larger_than_any(
    shared_pool: Pool, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    client = make_client(shared_pool)
    assert client.put("large lie", b"value") in (Status.OK, Status.EXISTS)
    assert client.get("large lie") == b"value"
    lie(client, monkeypatch, Located, lengths=pack_u64([length]))
    assert client.get("large lie") is None


@pytest.mark.parametrize("ready", [-1, -(1 << 40), 1 << 40])
@pytest.mark.parametrize("kind", [Probed, Matched])
def test_a_prefix_longer_than_the_chain_or_shorter_than_nothing(
    shared_pool: Pool,
    make_client: MakeClient,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Message],
    ready: int,
) -> None:
    client = make_client(shared_pool)
    keyspace = client.register_keyspace(SPEC)
    hashes = [bytes([7, i]) * 16 for i in range(100)]
    lie(client, monkeypatch, kind, ready=[ready])
    assert 0 <= client.match(keyspace, hashes) <= len(hashes)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_node_at_what_can_be_no_host(
    shared_pool: Pool, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    client = make_client(shared_pool, transport=transport)
    (entry,) = client.cluster_map().nodes
    info = replace(entry.info, rpc_address="a..b:1", data_address="a..b:2", host="elsewhere")
    lie(client, monkeypatch, ClusterMap, nodes=[replace(entry, info=info)])
    assert client.put("at no host", b"value") == Status.FAILED
    assert make_client(shared_pool).put("at some host", b"value") in (Status.OK, Status.EXISTS)
    assert client.get("at some host") is None
