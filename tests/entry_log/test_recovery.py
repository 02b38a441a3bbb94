"""A master that starts again answers from its entry log, as soon as a node is there and before it has said a block."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from entry_log.lives import T_S, Life
from support.etcd_server import EtcdServer
from support.report_node import KEYSPACE, SPEC, ReportNode, chain
from support.waiting import at_most

from moonpool.master import hard_requests
from moonpool.master.entry_log.logs import FLUSH_S
from moonpool.master.membership.records import owner_key
from moonpool.master.server import MasterServer
from moonpool.master.store.base import Put, Write
from moonpool.master.store.memory import MemoryStore
from moonpool.schemas.errors import DeadlineExceeded
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.messages import (
    Hello,
    Pin,
    RegisterKeyspace,
    decode_from_master,
)
from moonpool.store_client.rpc.async_connection import AsyncRpcConnection

HASHES = chain(3000)
ROWS, TURNS = (50_000, 200) if os.environ.get("MOONPOOL_SOAK") == "1" else (10_000, 12)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


async def test_a_restarted_master_answers_from_its_log(tmp_path: Path) -> None:
    node = ReportNode()
    life = Life(f"file:{tmp_path}/hard-state")
    await life.start()
    await life.client.call(RegisterKeyspace(SPEC), T_S)
    await node.join(life.address, HASHES)
    await life.until(lambda facts: int(facts["log_records_behind"]) > 0)  # a pass has written
    await node.close()
    await life.close()

    life = Life(f"file:{tmp_path}/hard-state")
    await life.start()
    await life.until(lambda facts: facts["log_hints"] == len(HASHES))
    facts = await life.facts()
    assert (facts["rows"], facts["nodes_suspect"], facts["shards_recovering"]) == (3000, 1, 1)
    assert await life.ready() == 0, "its node isn't known to live"
    await node.connect(life.address)
    await node.announce()
    assert await life.ready() == 64, "though it has not said a block"
    await node.start_stream(HASHES[:2000])  # the rest had gone meanwhile
    await life.until(lambda facts: facts["rows"] == 2000 and facts["shards_recovering"] == 0)
    assert await life.ready() == 64
    await node.close()
    await life.close()


async def test_a_pin_waits_until_its_node_obeys_the_new_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that was deposed could still have the row dropped (I7)."""
    node, away = ReportNode(), ReportNode("n2")
    life = Life(f"file:{tmp_path}/hard-state")
    await life.start()
    await life.client.call(RegisterKeyspace(SPEC), T_S)
    await node.join(life.address, HASHES[:100])
    await life.close()
    await node.close()
    await life.start()
    await life.until(lambda facts: facts["log_hints"] == 100)
    await node.connect(life.address)
    await node.announce()
    await away.join(life.address, [])  # holds nothing of it, and is waited for by nobody
    assert await life.ready() == 64
    pin = Pin(KEYSPACE, HASHES[3])
    with pytest.raises(DeadlineExceeded, match="node n1 did not answer the new owner of shard 0"):
        await life.client.call(pin, T_S)
    facts = await life.facts()
    assert (facts["pins"], facts["recorded_pins"]) == (0, 0)
    monkeypatch.setattr(hard_requests, "OBEDIENCE_S", 10.0)
    waiting = asyncio.create_task(life.client.call(pin, T_S))
    await life.until(lambda facts: facts["pins"] == 1)
    assert (await life.facts())["recorded_pins"] == 0
    await node.start_stream(HASHES[:100])
    assert (await waiting).count == 1  # type: ignore[attr-defined]
    assert (await life.facts())["recorded_pins"] == 1
    for one in (node, away):
        await one.close()
    await life.close()


async def test_without_a_node_the_rows_of_the_log_go(tmp_path: Path) -> None:
    node = ReportNode()
    life = Life(f"file:{tmp_path}/hard-state")
    await life.start()
    await life.client.call(RegisterKeyspace(SPEC), T_S)
    await node.join(life.address, HASHES[:100])
    await life.until(lambda facts: int(facts["log_records_behind"]) > 0)  # a pass has written
    await node.close()
    await life.close()
    life._settings = life._settings.model_copy(update={"suspect_after_s": 0.1, "lost_after_s": 0.3})
    await life.start()
    await life.until(lambda facts: facts["rows"] == 0 and facts["nodes_lost"] == 1)
    await life.close()


async def test_a_master_that_ends_in_order_leaves_a_log_that_is_up_to_date(tmp_path: Path) -> None:
    """Though its next pass would have been in an hour."""
    node = ReportNode()
    life = Life(f"file:{tmp_path}/hard-state", log_every_s=3600)
    await life.start()
    await life.client.call(RegisterKeyspace(SPEC), T_S)
    await node.join(life.address, HASHES)
    await life.close()
    await node.close()
    await life.start()
    await life.until(lambda facts: facts["log_hints"] == len(HASHES))
    await life.close()


class Shared(MemoryStore):
    """One after the other uses it. `stuck`: it does not answer to what is written to the log."""

    stuck = False

    async def commit(self, writes: Sequence[Write], **more: Any) -> int | None:
        if self.stuck and any(isinstance(one, Put) and one.key.startswith(b"log/") for one in writes):
            await asyncio.sleep(600)
        return await super().commit(writes, **more)

    async def close(self) -> None:
        pass


async def test_shards_are_given_away_with_their_log() -> None:
    node, store = ReportNode(), Shared()
    life = Life("etcd://nowhere", log_every_s=3600)
    await life.start(store)
    await life.until(lambda facts: facts["shards_owned"] == 4 and facts["log_shards_unwritten"] == 4)
    await life.client.call(RegisterKeyspace(SPEC), T_S)
    await node.join(life.address, HASHES)
    await life.close()
    await node.close()
    await life.start(store)
    await life.until(lambda facts: facts["log_hints"] == len(HASHES))
    await node.join(life.address, HASHES[:2000])
    store.stuck, start_s = True, time.monotonic()
    await life.close()
    await node.close()
    assert FLUSH_S <= time.monotonic() - start_s < at_most(FLUSH_S), "it waits, but not for long"
    assert not (await store.read(owner_key(0), timeout_s=T_S)).records, "and gives its shards away"
    await MemoryStore.close(store)


@pytest.mark.etcd
@pytest.mark.timeout(1500)
async def test_etcd_stays_as_large_as_the_index(etcd: EtcdServer) -> None:
    """Ten times as many puts as there is room for."""
    node = ReportNode()
    settings_store = f"etcd://{etcd.endpoint}"
    life = Life(settings_store)
    life.server = server = MasterServer(life._settings)
    assert server._logs is not None
    server._logs._history_s = 0.3
    life.address = await server.start()
    hello = Hello(PROTOCOL_VERSION, role="client", client="test")
    life.client = await AsyncRpcConnection.connect(life.address, hello, decode_from_master, timeout_s=T_S)
    await life.client.call(RegisterKeyspace(SPEC), T_S)
    await node.connect(life.address)
    await node.announce()
    sizes = []
    for turn in range(TURNS):
        await node.start_stream(chain(ROWS, turn))  # all others are gone
        await life.until(lambda facts: facts["rows"] == ROWS)
        written = server._logs._shards[0].written_s
        await life.until(lambda facts: server._logs._shards[0].written_s != written)  # noqa: B023
        await life.until(lambda facts: facts["log_records_behind"] == 0)
        sizes.append(etcd.size_bytes()[1])
    print(f"{ROWS * TURNS} puts of {ROWS} rows: {min(sizes)} to {max(sizes)} bytes, at last {sizes[-1]}")
    # A turn writes as much again, which nothing would ever remove but compaction.
    assert max(sizes[TURNS // 2 :]) < 1.5 * max(sizes[2 : TURNS // 2]), sizes
    await node.close()
    await life.close()
