"""What a writer's session leaves for its node to see: one lock, however its calls end."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from support.node_info import node_info
from support.waiting import wait_until

from moonpool.schemas.errors import DeadlineExceeded, TransferFailed
from moonpool.schemas.messages import Done, Granted, Message, OpenSession, SessionHeartbeat, SessionOpened
from moonpool.store_client.rpc.connection_pool import ConnectionPool
from moonpool.store_client.transports import ahead
from moonpool.store_client.transports import session as session_module
from moonpool.store_client.transports.session import Session

INFO = node_info()


class Node:
    """Hears every call; loses the answers that it is told to lose."""

    address = "unix:/nowhere"

    def __init__(self) -> None:
        self.lost = 0
        self.deaf = False
        self.seen: list[tuple[str, int]] = []

    def call(self, message: Message, deadline_s: float) -> Message:
        if isinstance(message, SessionHeartbeat):
            if self.deaf:
                raise DeadlineExceeded(peer=self.address, what="SessionHeartbeat", timeout_s=0.1)
            return Done(0)
        assert isinstance(message, OpenSession)
        self.seen.append((message.lock_path, os.stat(message.lock_path).st_ino))
        if len(self.seen) <= self.lost:
            raise DeadlineExceeded(peer=self.address, what="OpenSession", timeout_s=0.1)
        return SessionOpened(INFO, 0, 0, 0)


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def session(node: Node, tmp_path: Path) -> Iterator[Session]:
    made = Session(cast(ConnectionPool, node), str(tmp_path))
    yield made
    made.close()


def is_held(path: str) -> bool:
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_an_answer_that_was_lost_costs_no_lock(session: Session, node: Node) -> None:
    """The node may have heard it, and would take the first file's free lock for our death."""
    node.lost = 2
    for _ in range(2):
        with pytest.raises(DeadlineExceeded):
            session.open(time.monotonic() + 1)
        assert is_held(node.seen[-1][0])
    session.open(time.monotonic() + 1)
    session.open(time.monotonic() + 1)
    assert len(node.seen) == 3 and len(set(node.seen)) == 1


@pytest.mark.parametrize("deaf", [True, False])
def test_the_file_stays_where_the_node_holds_slots_for_us(
    session: Session, node: Node, monkeypatch: pytest.MonkeyPatch, deaf: bool
) -> None:
    """One that dies meanwhile adopts them, and without the file could never tell that their writer is gone."""
    monkeypatch.setattr(session_module, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(ahead, "KEPT_S", 0.0)
    node.deaf = deaf
    session.open(time.monotonic() + 1)
    put_id = session.ask_ahead()
    session.keep_ahead(session.id, put_id, Granted(put_id, bytes(1), bytes(4), bytes(8)), 4096)
    wait_until(lambda: not len(session._ahead))
    session.close()
    assert os.path.exists(node.seen[0][0]) is deaf


def test_the_file_stays_with_slots_that_were_granted_in_vain(session: Session, node: Node) -> None:
    session.open(time.monotonic() + 1)
    put_id = session.ask_ahead()
    session.keep_ahead(session.id, put_id, Granted(put_id, bytes(2), bytes(4), bytes(8)), 4096)
    session.close()
    assert os.path.exists(node.seen[0][0])


def test_the_file_goes_with_a_session_whose_puts_have_ended(session: Session, node: Node) -> None:
    session.open(time.monotonic() + 1)
    with session.put():
        pass
    path = node.seen[0][0]
    assert is_held(path)
    session.close()
    assert not os.path.exists(path)


def test_the_file_stays_for_a_node_that_may_have_an_open_put(session: Session, node: Node) -> None:
    """Started again, it can only tell by the file that this writer is gone."""
    session.open(time.monotonic() + 1)
    with pytest.raises(TransferFailed), session.put():
        raise TransferFailed(peer="node", reason="it was killed")
    session.close()
    assert not is_held(node.seen[0][0])


def test_a_file_that_was_tidied_away_costs_a_new_id_at_the_next_start_of_the_node(
    session: Session, node: Node
) -> None:
    """That node can't watch the old one. It may keep grants under it all the same, so the old lock stays held."""
    session.open(time.monotonic() + 1)
    session.reopen(time.monotonic() + 1)
    assert node.seen[1] == node.seen[0]
    before = session.id
    with open(node.seen[0][0]) as old:
        os.unlink(old.name)
        session.reopen(time.monotonic() + 1)
        session.reopen(time.monotonic() + 1)
        assert session.id != before
        assert node.seen[3] == node.seen[2] != node.seen[0] and is_held(node.seen[2][0])
        with pytest.raises(BlockingIOError):
            fcntl.flock(old, fcntl.LOCK_EX | fcntl.LOCK_NB)
        session.close()
        fcntl.flock(old, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not os.path.exists(node.seen[2][0])


def test_a_run_dir_that_cannot_be_made_fails_the_transfer(node: Node, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    refused = Session(cast(ConnectionPool, node), str(file))
    with pytest.raises(TransferFailed, match=r"cannot make the session's lock file: .*run_dir"):
        refused.open(time.monotonic() + 1)
    refused.close()
    assert node.seen == []
