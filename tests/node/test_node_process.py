"""Real node processes: killed, stopped, started again; real writers that die or stand still."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from support import local_writer
from support.freezing import freeze
from support.lane_peer import LanePeer
from support.local_writer import BLOCK_BYTES, DIGEST, SPEC, LocalWriter, hashes_of
from support.processes import NodeProcess
from support.waiting import soon, wait_until

from moonpool.schemas.errors import DeadlineExceeded, Forbidden, NotFound
from moonpool.schemas.framing import PROTOCOL_VERSION
from moonpool.schemas.header import SlotState, holds, keyspace_word, state_of
from moonpool.schemas.messages import (
    Begin,
    Done,
    GetStatus,
    Granted,
    Hello,
    RegisterKeyspace,
    SessionHeartbeat,
    StatusReport,
    decode_from_node,
)
from moonpool.schemas.packed import u32s, u64s
from moonpool.store_client.rpc.connection import RpcConnection

NOWHERE = "127.0.0.1:9"


@pytest.fixture
def node() -> Iterator[NodeProcess]:
    with NodeProcess(NOWHERE, size=16 << 20) as made:
        yield made


def writer_of(node: NodeProcess, session: int = 0) -> LocalWriter:
    return LocalWriter(node.info.unix_path, node.run_dir, session)


@contextmanager
def writer_process(node: NodeProcess, blocks: int) -> Iterator[subprocess.Popen[str]]:
    """A process with an open grant."""
    assert local_writer.__file__ is not None
    root = Path(local_writer.__file__).parent.parent
    command = [sys.executable, local_writer.__file__, node.info.unix_path, node.run_dir, str(blocks)]
    environment = os.environ | {"PYTHONPATH": str(root)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "granted\n"
            yield process
        finally:
            process.kill()


def test_what_a_writer_commits_is_proven_by_the_header(node: NodeProcess) -> None:
    with writer_of(node) as writer:
        granted = writer.begin(8)
        slots, generations = u32s(granted.slots), u64s(granted.generations)
        for index, slot in enumerate(slots):
            writer.write(int(slot), bytes([index]) * BLOCK_BYTES)
        hashes = np.frombuffer(hashes_of(writer.session + 1, 8), dtype="S32")
        wanted = (keyspace_word(DIGEST), 0, hashes, np.full(8, BLOCK_BYTES, dtype=np.uint64))
        assert not holds(writer.headers(slots), generations, *wanted).any()
        assert writer.commit(granted.put_id) == bytes(8)
        assert holds(writer.headers(slots), generations, *wanted).all()
        node.wait_for("checksums_computed", 8)
        assert (writer.headers(slots)["checksum"] != 0).all()


def test_a_commit_travels_with_the_next_begin(node: NodeProcess) -> None:
    with writer_of(node) as writer:
        first = writer.begin(2)
        request = writer.request(3)
        second = writer.call(Begin(request.session, request.put_id, request.items, [first.put_id]))
        assert isinstance(second, Granted) and second.statuses == bytes(3)
        states = [state_of(word) for word in writer.headers(u32s(first.slots))["word"].tolist()]
        assert states == [SlotState.COMMITTED] * 2


def test_the_door_is_only_for_this_user(node: NodeProcess) -> None:
    path = Path(node.info.unix_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(Path(node.info.segment_path).stat().st_mode) == 0o600


def test_writers_of_other_hosts_may_only_look(node: NodeProcess) -> None:
    connection = RpcConnection(node.address, Hello(PROTOCOL_VERSION, "client", "far"), decode_from_node)
    assert isinstance(connection.call(GetStatus(), soon()), StatusReport)
    connection.call(RegisterKeyspace(SPEC), soon())
    with pytest.raises(Forbidden):
        connection.call(Begin(1, 1, []), soon())
    connection.close()


def test_lost_answers_leak_nothing(node: NodeProcess) -> None:
    with writer_of(node) as writer:
        kept = writer.begin(3)
        for _ in range(5):
            request = writer.request(4)
            with pytest.raises(DeadlineExceeded):
                writer.call(request, timeout_s=1e-6)  # the connection is closed, the answer is lost
            again = writer.call(request)
            assert isinstance(again, Granted) and again == writer.call(request)
        node.wait_for("objects_writing", 3 + 5 * 4)
        answer = writer.call(SessionHeartbeat(writer.session, [kept.put_id], writer.puts))
        assert answer == Done(5)
        node.wait_for("objects_writing", 3)
        assert writer.commit(kept.put_id) == bytes(3)


def test_a_killed_writer_gives_its_slots_back(node: NodeProcess) -> None:
    with writer_process(node, 6) as process:
        node.wait_for("objects_writing", 6)
        process.kill()
        process.wait()
        node.wait_for("objects_writing", 0)
    assert node.status()["used_bytes"] == 0
    assert node.status()["sessions"] == 0


def test_a_stopped_writer_keeps_its_slots(node: NodeProcess) -> None:
    with writer_process(node, 6) as process:
        freeze(process.pid)
        time.sleep(1.8)  # longer than polls and pause together
        assert node.status()["objects_writing"] == 6
        process.kill()
        process.wait()
        node.wait_for("objects_writing", 0)


def test_a_closed_connection_proves_nothing(node: NodeProcess) -> None:
    with writer_of(node) as writer:
        granted = writer.begin(2)
        writer.connection.close()
        time.sleep(1.5)
        assert node.status()["objects_writing"] == 2
        assert writer.commit(granted.put_id) == bytes(2)


def test_a_killed_node_is_adopted_with_all_that_was_committed(node: NodeProcess) -> None:
    with writer_of(node) as writer, writer_process(node, 5) as doomed:
        committed = writer.put(10)
        before = writer.headers(u32s(committed.slots))
        open_put = writer.begin(4)
        segment = node.info.segment
        doomed.kill()
        doomed.wait()
        node.kill()
        writer.connection.close()
        writer.write(int(u32s(open_put.slots)[0]), b"late" * (BLOCK_BYTES // 4))
        node.start()
        assert node.info.segment == segment
        node.wait_for("objects_writing", 4)
        status = node.status()
        assert (status["objects"], status["keyspaces"]) == (10, 1)
        after = writer.headers(u32s(committed.slots))
        for name in ("word", "block_hash", "parent_hash", "length", "position"):
            assert (before[name] == after[name]).all()
        assert writer.read(int(u32s(committed.slots)[3])) == bytes([3]) * BLOCK_BYTES
        # The put that was open still is: its writer holds the lock and has to do nothing but go on.
        again = writer.call(Begin(writer.session, open_put.put_id, []))
        assert again == open_put
        assert writer.commit(open_put.put_id) == bytes(4)
        assert writer.read(int(u32s(open_put.slots)[0]))[:4] == b"late"
        fresh = writer.begin(3)
        used = max(u64s(committed.generations).max(), u64s(open_put.generations).max())
        assert (u64s(fresh.generations) > used).all()


def test_a_writer_whose_lock_file_was_tidied_away_keeps_its_slots(node: NodeProcess) -> None:
    """I4: killed, the node must find the file again to see whether the writer lives; it is gone, the writer isn't."""
    with writer_of(node) as writer:
        granted = writer.begin(4)
        node.kill()
        writer.connection.close()
        writer.lock_path.unlink()
        node.start()
        time.sleep(1.8)  # longer than polls and pause together
        assert node.status()["objects_writing"] == 4
        for slot in u32s(granted.slots):
            writer.write(int(slot), b"late" * (BLOCK_BYTES // 4))
        assert writer.commit(granted.put_id) == bytes(4)
    # Killed once more, it has no grant to keep for a session that nobody can watch.
    node.kill()
    node.start()
    assert node.status()["sessions"] == 0 and node.status()["objects"] == 4


def test_generations_are_never_used_twice_whatever_kills_the_node(node: NodeProcess) -> None:
    seen: set[int] = set()
    for _ in range(4):
        with writer_of(node) as writer:
            for _ in range(3):
                generations = u64s(writer.begin(20).generations).tolist()
                assert not seen & set(generations)
                seen.update(generations)
        node.kill()
        node.start()
    node.wait_for("objects_writing", 0)


def test_a_clean_stop_leaves_the_segment_to_the_next_start(node: NodeProcess) -> None:
    with writer_of(node) as writer:
        writer.put(7)
    assert node.stop() == 0
    assert not Path(node.info.unix_path).exists()
    node.start()
    assert node.status()["objects"] == 7


def test_a_node_whose_size_changed_starts_empty(node: NodeProcess) -> None:
    with writer_of(node) as writer:
        writer.put(7)
    path = Path(node.info.segment_path)
    node.stop()
    node._settings["size"] = 32 << 20
    node.start()
    assert node.status()["objects"] == 0 and not path.exists()


def test_an_unknown_session_is_told_so(node: NodeProcess) -> None:
    with writer_of(node) as writer:
        request = writer.request(1)
        with pytest.raises(NotFound, match="session"):
            writer.call(Begin(12345, 1, request.items))


def test_two_nodes_of_one_name_do_not_run(node: NodeProcess) -> None:
    found = subprocess.run(
        [sys.executable, *node.arguments()], capture_output=True, text=True, timeout=120, check=False
    )
    assert found.returncode == 1
    assert "is running on this host" in found.stderr
    assert node.status()["node"] == "node"


def test_a_setting_that_is_wrong_is_named(node: NodeProcess) -> None:
    found = subprocess.run(
        [sys.executable, *node.arguments(), "--page-size=1000", "--name=other"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 1
    assert "page_size" in found.stderr and "Traceback" not in found.stderr


def test_a_forgetful_node_takes_its_segment_along() -> None:
    with NodeProcess(NOWHERE, size=16 << 20) as node:
        path = Path(node.info.segment_path)
        node.stop()
        assert path.exists()
        node._arguments = ["--forget"]
        node.start()
        node.stop()
        assert not path.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_that_is_stopped_while_it_lays_out_memory_leaves_nothing(
    shm: Path, tmp_path: Path, number: signal.Signals
) -> None:
    flags = ["--size=1GB", f"--segment-dir={shm}", f"--run-dir={tmp_path}", "--master", NOWHERE, "--forget"]
    command = [sys.executable, "-m", "moonpool.store_client.node", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: any(shm.iterdir()))
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0 and "Traceback" not in said
    assert not list(shm.iterdir())


def test_a_visible_commit_without_a_master_is_told_in_time(node: NodeProcess) -> None:
    with writer_of(node) as writer:
        granted = writer.begin(1)
        started_s = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            writer.commit(granted.put_id, visible=True)
        assert time.monotonic() - started_s < 20
        assert node.status()["objects"] == 1


def test_the_data_port_reads_what_local_writers_wrote(node: NodeProcess) -> None:
    with writer_of(node) as writer:
        granted = writer.put(5)
    port = int(node.info.data_address.rpartition(":")[2])
    with LanePeer(port) as peer:
        statuses, payload, trailer = peer.read(granted.slots, granted.generations, [BLOCK_BYTES] * 5)
    assert statuses == bytes(5)
    assert payload == b"".join(bytes([index]) * BLOCK_BYTES for index in range(5))
    assert [state_of(word) for word in trailer["word"].tolist()] == [SlotState.COMMITTED] * 5


def test_nothing_is_left_open(node: NodeProcess) -> None:
    with writer_of(node) as writer:
        writer.put(3)
    node.wait_for("sessions", 0)
    descriptors = node.descriptors()
    port = int(node.info.data_address.rpartition(":")[2])
    for _ in range(20):
        with writer_of(node) as writer, LanePeer(port):
            writer.put(1)
    node.wait_for("sessions", 0)
    node.wait_for("lanes", 0)
    assert node.descriptors() <= descriptors + 1
