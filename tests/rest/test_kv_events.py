"""KV events as a router reads them: decoded by vLLM's own classes, lost, replayed and said anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq
from support.ports import free_pair
from support.report_node import KEYSPACE, SPEC, entries_of
from support.rest_master import HASHES, RestMaster, real_chain
from support.waiting import wait_until

from moonpool.master.chained import ChainedTable
from moonpool.master.kv_events import END, QUEUE_MAX, RESYNC, KvPublisher
from moonpool.master.kv_feed import (
    WAITING_MAX,
    AllBlocksCleared,
    Batch,
    BlockRemoved,
    BlockStored,
    KvFeed,
)
from moonpool.master.policy_adaptive import AdaptiveCredit
from moonpool.schemas.config import ClientSettings, MasterSettings
from moonpool.store_client import StoreClient

TIMEOUT_MS = 20_000
DECODER = msgspec.msgpack.Decoder(tuple[float, list[BlockStored | BlockRemoved | AllBlocksCleared]])


class Router:
    """Subscribes, and knows by its numbers what it has missed."""

    def __init__(self, port: int) -> None:
        self._context = zmq.Context()
        self._events = self._context.socket(zmq.SUB)
        self._events.connect(f"tcp://127.0.0.1:{port}")
        self._events.setsockopt(zmq.SUBSCRIBE, b"kv@")
        self._events.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
        self._events.setsockopt(zmq.LINGER, 0)
        self._replay = f"tcp://127.0.0.1:{port + 1}"

    def receive(self) -> tuple[bytes, int, bytes]:
        topic, number, payload = self._events.recv_multipart()
        return topic, int.from_bytes(number, "big"), payload

    def ask(self, question: bytes) -> list[tuple[int, bytes]]:
        """What is still kept, from a number on."""
        # A DEALER that sends an empty frame first is a REQ that takes many answers.
        with self._context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(self._replay)
            dealer.send_multipart((b"", question))
            found = []
            while True:
                _, _, number, payload = dealer.recv_multipart()
                if number == END:
                    return found
                found.append((int.from_bytes(number, "big"), payload))

    def close(self) -> None:
        self._events.close()
        self._context.term()


@pytest.fixture
def port() -> int:
    """A free one, and so is the next."""
    return free_pair()


@pytest.fixture
def master(port: int) -> Iterator[RestMaster]:
    settings = MasterSettings(port=0, suspect_after_s=60.0, events_port=port, events_int_hashes=False)
    with RestMaster(settings=settings) as running:
        yield running


@pytest.fixture
def router(port: int) -> Iterator[Router]:
    running = Router(port)
    yield running
    running.close()


def applied(payloads: list[bytes]) -> set[Any]:
    """The blocks that are there by these events."""
    there: set[Any] = set()
    for payload in payloads:
        for event in DECODER.decode(payload)[1]:
            if isinstance(event, BlockStored):
                there |= set(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                there -= set(event.block_hashes)
            else:
                there = set()
    return there


def until(router: Router, wanted: set[bytes], first: int = 0) -> list[tuple[int, bytes]]:
    """All that is kept, as soon as it says what is wanted."""
    kept: list[tuple[int, bytes]] = []

    def said() -> bool:
        kept[:] = router.ask(first.to_bytes(8, "big"))
        return applied([payload for _, payload in kept]) == wanted

    wait_until(said)
    return kept


def remove(master: RestMaster, block_hash: bytes) -> None:
    with StoreClient(ClientSettings(master=master.address, timeout_s=20)) as client:
        client.register_keyspace(SPEC)
        client.remove(KEYSPACE, [block_hash])


def test_a_router_that_came_late_has_it_replayed(master: RestMaster, router: Router) -> None:
    kept = until(router, set(HASHES))
    assert [number for number, _ in kept] == list(range(len(kept)))
    (stored,) = DECODER.decode(kept[0][1])[1]
    assert isinstance(stored, BlockStored)
    assert (stored.block_hashes, stored.parent_block_hash, stored.medium) == (HASHES, None, "CPU")


def test_a_router_notices_what_it_lost_and_asks_for_it(master: RestMaster, router: Router) -> None:
    newest = until(router, set(HASHES))[-1][0]
    remove(master, HASHES[7])
    until(router, set(HASHES[:7]))
    remove(master, HASHES[4])
    until(router, set(HASHES[:4]))
    lost = router.ask((newest + 1).to_bytes(8, "big"))
    assert [number for number, _ in lost] == list(range(newest + 1, newest + 1 + len(lost)))
    removed = [event for _, payload in lost for event in DECODER.decode(payload)[1]]
    assert all(isinstance(event, BlockRemoved) for event in removed)
    assert {name for event in removed for name in event.block_hashes} == set(HASHES[4:])


def test_events_come_as_they_happen_and_are_said_anew(master: RestMaster, router: Router) -> None:
    until(router, set(HASHES))
    more = real_chain(6, "more")
    master.run(master.node.report([entries_of(more)]))
    until(router, set(HASHES) | set(more))
    router.ask(RESYNC)
    payloads: list[bytes] = []
    numbers: list[int] = []
    while not payloads or applied(payloads) != set(HASHES) | set(more) or b"Cleared" not in payloads[0]:
        topic, number, payload = router.receive()
        assert topic == b"kv@moonpool@model"
        numbers.append(number)
        payloads = [payload] if b"AllBlocksCleared" in payload else [*payloads, payload]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")  # of what vLLM imports
def test_vllm_decodes_them(master: RestMaster, router: Router) -> None:
    from vllm.distributed import kv_events as theirs

    kept = until(router, set(HASHES))
    batch = msgspec.msgpack.Decoder(theirs.KVEventBatch).decode(kept[0][1])
    (stored,) = batch.events
    assert isinstance(stored, theirs.BlockStored)
    assert stored.block_hashes == HASHES and stored.medium == theirs.MEDIUM_CPU
    assert theirs.ZmqEventPublisher.END_SEQ == END


def test_the_feed_is_bounded_and_says_all_anew_where_it_forgot() -> None:
    feed, table = KvFeed(int_hashes=True), ChainedTable(SPEC, AdaptiveCredit())
    table.feed = feed
    for block_hash in HASHES:
        row = table.make_row(block_hash, 0.0)
        table.ready[row] = 1
        feed.stored(table, row)
    feed.validate()
    (batch,) = feed.take([table], 0.0)
    numbers = [int.from_bytes(one, "big") & ((1 << 64) - 1) for one in HASHES]
    assert [name for event in batch.events for name in event.block_hashes] == numbers  # type: ignore[union-attr]
    for _ in range(WAITING_MAX + 1):
        feed.removed(table, 0)
    assert feed.forgotten == WAITING_MAX + 1
    (batch,) = feed.take([table], 1.0)
    assert isinstance(batch.events[0], AllBlocksCleared)
    said = [name for event in batch.events[1:] for name in event.block_hashes]  # type: ignore[union-attr]
    assert sorted(said) == sorted(numbers)
    feed.resync()
    assert feed.take([table], 2.0) == [], "not again so soon"


def test_numbers_go_on_where_batches_were_dropped() -> None:
    publisher = KvPublisher("127.0.0.1", 0, 0, lambda: None)
    publisher.publish([Batch("t", [])] * (QUEUE_MAX + 5))
    assert publisher.dropped == 5


def test_prefixes_and_routes(master: RestMaster) -> None:
    client = master.client()
    asked = [*HASHES[:6], *real_chain(2, "unknown")]
    body = {"hashes": [one.hex() for one in asked]}
    (found,) = client.post("/api/v1/prefixes", json=body).json()["items"]
    assert (found["blocks"], found["asked_blocks"], found["keyspace"]) == (6, 8, KEYSPACE.hex())
    assert [(node["node"], node["score"]) for node in found["nodes"]] == [("n1", 0.75)]
    with StoreClient(ClientSettings(master=master.address, timeout_s=20)) as engine:
        engine.cluster_map()
        routed = client.get("/api/v1/route", params={"hashes": ",".join(body["hashes"])}).json()["items"]
    assert routed[0]["blocks"] == 6 and len(routed[0]["engines"]) == 1
    assert client.post("/api/v1/prefixes", json={"hashes": [HASHES[1].hex()]}).json()["items"] != [], (
        "blocks are looked up as they are named"
    )
    assert client.post("/api/v1/prefixes", json={"hashes": ["00" * 16]}).json()["items"] == []
    # Nothing was leased by looking: they may all go.
    done = client.post("/api/v1/delete", json={"selection": {"keyspace": KEYSPACE.hex()}, "dry_run": True})
    assert done.json()["skipped"] == 0
