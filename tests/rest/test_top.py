"""Top prefixes and pins over REST."""

from __future__ import annotations

from support.report_node import KEYSPACE, SPEC
from support.rest_master import HASHES, RestMaster, real_chain

from moonpool.schemas.config import ClientSettings
from moonpool.store_client import StoreClient


def test_what_prompts_begin_with() -> None:
    absent = real_chain(4, "absent")
    with RestMaster() as master:
        with StoreClient(ClientSettings(master=master.address, timeout_s=20)) as client:
            client.register_keyspace(SPEC)
            for count in (10, 7, 1):
                client.match(KEYSPACE, HASHES[:count])
            client.match(KEYSPACE, absent)
        answer = master.client().get("/api/v1/top-prefixes").json()
        assert answer["missed_max"] == 0
        first, second = answer["items"]
        assert first["key"] == f"{KEYSPACE.hex()}/{HASHES[0].hex()}"
        assert (first["requests"], first["found"], first["ready"]) == (3, 3, True)
        assert (first["shared_blocks"], first["shared_tokens"]) == (10, 10 * SPEC.block_tokens)
        assert second["key"].endswith(absent[0].hex())
        assert (second["requests"], second["found"], second["ready"]) == (1, 0, False)
        assert len(master.client().get("/api/v1/top-prefixes?limit=1").json()["items"]) == 1
        other = {"Authorization": "Bearer other"}
        assert master.client(tokens=True).get("/api/v1/top-prefixes", headers=other).json()["items"] == []


def test_pins_are_listed_in_pages() -> None:
    with RestMaster() as master:
        with StoreClient(ClientSettings(master=master.address, timeout_s=20)) as client:
            client.register_keyspace(SPEC)
            assert client.pin(KEYSPACE, HASHES[:2]) == 2
            assert client.pin(KEYSPACE, HASHES[5:6], ttl_s=60) == 1
        rest = master.client()
        found, cursor = [], None
        while not found or cursor:
            page = rest.get(
                "/api/v1/pins", params={"limit": 2, **({"cursor": cursor} if cursor else {})}
            ).json()
            assert len(page["items"]) <= 2
            found += page["items"]
            cursor = page["next_cursor"]
        assert {one["hash"] for one in found} == {one.hex() for one in (*HASHES[:2], HASHES[5])}
        ends = {one["hash"]: one["pin_ms"] for one in found}
        assert ends[HASHES[0].hex()] is None and 0 < ends[HASHES[5].hex()] <= 60_000
        other = {"Authorization": "Bearer other"}
        assert master.client(tokens=True).get("/api/v1/pins", headers=other).json()["items"] == []
