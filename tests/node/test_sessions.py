"""Sessions end with their process, and with nothing less."""

from __future__ import annotations

import fcntl
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import lock_holder
from support.freezing import freeze

from moonpool.schemas.errors import InvalidParams, Overloaded
from moonpool.store_client.node.annex import SessionRecord
from moonpool.store_client.node.sessions import DEVICE_PAUSE_S, Sessions


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A real process with the lock."""
    assert lock_holder.__file__ is not None
    command = [sys.executable, lock_holder.__file__, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "locked\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def sessions() -> Iterator[Sessions]:
    made = Sessions(4)
    yield made
    made.close()


def test_a_killed_writer_is_dead_after_a_pause_for_its_device(sessions: Sessions, tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with holder(path) as process:
        sessions.open(1, str(path))
        assert sessions.poll(100.0) == []
        process.kill()
        process.wait()
    assert sessions.poll(101.0) == []
    assert sessions.poll(101.0 + DEVICE_PAUSE_S - 0.01) == []
    assert sessions.poll(101.0 + DEVICE_PAUSE_S) == [1]
    assert sessions.poll(200.0) == [] and len(sessions) == 0
    assert not path.exists()


def test_a_stopped_writer_is_alive_however_long(sessions: Sessions, tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with holder(path) as process:
        sessions.open(1, str(path))
        freeze(process.pid)
        assert [sessions.poll(now_s) for now_s in (0.0, 10.0, 1e6)] == [[], [], []]
        process.kill()  # ends a stopped process too
        process.wait()
    assert sessions.poll(2e6) == [] and sessions.poll(3e6) == [1]


def test_a_session_needs_a_lock_that_is_held(sessions: Sessions, tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    path.touch()
    with pytest.raises(InvalidParams, match="flock"):
        sessions.open(1, str(path))
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        sessions.open(1, str(path))
        sessions.open(1, str(path))
        with pytest.raises(InvalidParams):
            sessions.open(1, str(tmp_path / "b.lock"))
    assert len(sessions) == 1


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo", "link", "relative", "long", "empty"])
def test_a_lock_is_a_regular_file_of_ours(sessions: Sessions, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    text = str(path)
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        (tmp_path / "target").touch()
        path.symlink_to(tmp_path / "target")
    elif kind == "relative":
        text = "x"
    elif kind == "long":
        text = "/" + "x" * 200
    elif kind == "empty":
        text = ""
    with pytest.raises(InvalidParams) as caught:
        sessions.open(1, text)
    assert caught.value.facts["field"] == "lock_path"
    assert len(sessions) == 0


@pytest.mark.parametrize("session", [0, -1, 1 << 63])
def test_session_ids_have_a_range(sessions: Sessions, tmp_path: Path, session: int) -> None:
    with pytest.raises(InvalidParams, match="session"):
        sessions.open(session, str(tmp_path / "x"))


def test_sessions_are_bounded(sessions: Sessions, tmp_path: Path) -> None:
    files = [(tmp_path / f"{number}").open("w") for number in range(5)]
    for number, file in enumerate(files):
        fcntl.flock(file, fcntl.LOCK_EX)
        if number < 4:
            sessions.open(number + 1, file.name)
    with pytest.raises(Overloaded):
        sessions.open(5, files[4].name)
    assert sessions.adopt(record_of(5, Path(files[4].name)), False), (
        "it was let in before, and may be writing"
    )
    assert len(sessions) == 5 and sessions.poll(1.0) == []
    for file in files:
        file.close()


def record_of(session: int, path: Path) -> SessionRecord:
    """As a node kept it that was killed since."""
    status = path.stat()
    return SessionRecord(session, str(path), status.st_dev, status.st_ino)


def test_a_writer_that_died_while_no_node_looked_gets_its_pause(sessions: Sessions, tmp_path: Path) -> None:
    """Its device may still be copying."""
    path = tmp_path / "a.lock"
    path.touch()
    assert sessions.adopt(record_of(1, path), True)
    assert sessions.poll(100.0) == []
    assert sessions.poll(100.0 + DEVICE_PAUSE_S) == [1]
    assert len(sessions) == 0


def test_a_lock_file_that_is_gone_proves_nothing(sessions: Sessions, tmp_path: Path) -> None:
    """Somebody tidied up; the writer holds its lock on the unlinked inode, and writes."""
    path = tmp_path / "a.lock"
    with holder(path):
        record = sessions.open(1, str(path))
        assert record == record_of(1, path)
        sessions.close()  # the node is killed
        path.unlink()
        assert not sessions.adopt(record, False), "without a grant there is nothing to keep"
        assert sessions.adopt(record, True)
        assert [sessions.poll(now_s) for now_s in (0.0, 10.0, 1e6)] == [[], [], []]
        path.touch()  # nobody locks this one, and it says nothing of the other
        assert [sessions.poll(now_s) for now_s in (2e6, 3e6)] == [[], []]
    assert sessions.poll(4e6) == [] and len(sessions) == 1, "dead, but nobody can tell"


def test_no_descriptor_to_be_had_proves_nothing(sessions: Sessions, tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with holder(path) as process:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            assert sessions.adopt(record_of(1, path), True)
            assert sessions.poll(1.0) == []
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert [sessions.poll(now_s) for now_s in (10.0, 1e6)] == [[], []]
        process.kill()
        process.wait()
    assert sessions.poll(2e6) == []
    assert sessions.poll(3e6) == [1], "once the file could be opened its lock proved it"
