"""The master as a process: start, stop, restart, freeze."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from support.processes import MasterProcess
from support.raw_peer import RawPeer
from support.report_node import KEYSPACE, ReportNode, chain
from support.waiting import at_most, soon

from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.messages import (
    ClusterMap,
    GetClusterMap,
    Hello,
    Match,
    Matched,
    NodeState,
    decode_from_master,
)
from moonpool.schemas.packed import join_hashes
from moonpool.store_client.rpc.connection_pool import ConnectionPool

HASHES = chain(10)
MATCH = Match(KEYSPACE, [(0, join_hashes(HASHES))])
HELLO = Hello(PROTOCOL_VERSION, role="client", client="test")


@pytest.fixture
def process() -> Iterator[MasterProcess]:
    with MasterProcess() as running:
        yield running


def test_it_stops_cleanly_with_clients_connected(process: MasterProcess) -> None:
    with RawPeer(process.address) as peer:
        peer.greet()
        start_s = time.monotonic()
        assert process.stop() == 0
        assert time.monotonic() - start_s < at_most(3)
        assert peer.is_closed()
    assert "Traceback" not in process.output()


def test_a_port_in_use_is_one_clear_line(process: MasterProcess) -> None:
    port = process.address.rpartition(":")[2]
    second = subprocess.run(
        [sys.executable, "-m", "moonpool.master", "--port", port],
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )
    assert second.returncode == 1
    assert "cannot listen" in second.stderr
    assert "Traceback" not in second.stderr


def test_a_restarted_master_has_a_greater_epoch_and_the_same_port(process: MasterProcess) -> None:
    pool = ConnectionPool(process.address, HELLO, decode_from_master)
    epochs = []
    for how in (signal.SIGTERM, signal.SIGKILL, None):
        reply = pool.call(GetClusterMap(), soon())
        assert isinstance(reply, ClusterMap)
        epochs.append(reply.epoch)
        assert reply.masters == [process.address]
        if how is not None:
            (process.stop if how is signal.SIGTERM else process.kill)()
            process.start()
    assert epochs == sorted(set(epochs))
    pool.close()


async def test_nodes_outlive_a_freeze_of_the_master(process: MasterProcess) -> None:
    """Frozen for longer than suspect_after_s: their heartbeats wait in its sockets, and nobody was silent."""
    node = ReportNode()
    await node.join(process.address, HASHES)
    pool = ConnectionPool(process.address, HELLO, decode_from_master)
    process.freeze()
    heartbeat = asyncio.create_task(node.heartbeat())
    await asyncio.sleep(3.5)
    process.thaw()
    states = []
    for _ in range(20):
        reply = await asyncio.to_thread(pool.call, GetClusterMap(), soon())
        assert isinstance(reply, ClusterMap)
        states.append(reply.nodes[0].state)
        await asyncio.sleep(0.01)
    await heartbeat
    assert set(states) == {NodeState.LIVE}
    assert await asyncio.to_thread(pool.call, MATCH, soon()) == Matched([10])
    pool.close()
    await node.close()
