"""Blocks found and deleted by the request or session that wrote them."""

from __future__ import annotations

from support.report_node import KEYSPACE, entries_of
from support.rest_master import HASHES, RestMaster, real_chain

from moonpool.master.tags import Tags
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.messages import Hello, PutItem, PutStart, PutStarted, decode_from_master
from moonpool.schemas.packed import join_hashes
from moonpool.store_client.rpc.async_connection import AsyncRpcConnection

FRESH = real_chain(4, "fresh")


async def put_start(address: str, request: str, session: str, hashes: list[bytes]) -> PutStarted:
    hello = Hello(PROTOCOL_VERSION, role="client", client="engine")
    connection = await AsyncRpcConnection.connect(address, hello, decode_from_master, timeout_s=30)
    item = PutItem(KEYSPACE, 0, 0, b"", join_hashes(hashes), 4096, 0, request, session)
    reply = await connection.call(PutStart([item]), 5)
    await connection.close()
    assert isinstance(reply, PutStarted)
    return reply


def test_a_request_s_blocks_are_found_and_deleted() -> None:
    with RestMaster(hashes=[]) as master:
        client = master.client()
        master.run(put_start(master.address, "cmpl-1", "chat-9", HASHES[:6]))
        master.run(put_start(master.address, "cmpl-2", "chat-9", FRESH))
        master.run(master.node.report([entries_of(HASHES[:6])]))
        master.run(master.node.report([entries_of(FRESH)]))
        for selection, count in (({"request_id": "cmpl-1"}, 6), ({"session_id": "chat-9"}, 10)):
            found = client.post("/api/v1/query", json=selection).json()["items"]
            assert len(found) == count, selection
        done = client.post("/api/v1/delete", json={"selection": {"request_id": "cmpl-1"}, "wait_ms": 5000})
        assert done.json()["count"] == 6
        assert len(client.post("/api/v1/query", json={"session_id": "chat-9"}).json()["items"]) == 4
        assert client.post("/api/v1/query", json={"request_id": "cmpl-3"}).status_code == 404


def test_tags_are_bounded_and_a_tenant_s_own() -> None:
    tags = Tags(tags_max=3, bytes_max=10 * 16)
    for number in range(5):
        tags.add("request", "a", f"r{number}", b"k", [bytes([number]) * 16])
        tags.validate()
    assert len(tags) == 3 and tags.find("request", "r0", lambda _: True) == {}
    assert tags.find("request", "r4", lambda tenant: tenant == "a") == {b"k": [bytes([4]) * 16]}
    assert tags.find("request", "r4", lambda tenant: tenant == "b") == {}
    tags.add("request", "a", "big", b"k", [bytes([n]) * 16 for n in range(9)])
    tags.validate()
    assert len(tags) == 2
