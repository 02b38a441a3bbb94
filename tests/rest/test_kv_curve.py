"""KV events for those alone whose CURVE key the master knows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq
from support.ports import free_pair
from support.rest_master import RestMaster
from support.waiting import wait_until
from typer.testing import CliRunner

from moonpool.master.kv_curve import CurveGuard, read_public_keys
from moonpool.master.kv_events import END
from moonpool.schemas.config import MasterSettings
from moonpool.schemas.errors import ConfigError
from moonpool.store_client.cli.main import app
from moonpool.store_client.rpc.access import check_bare

SILENCE_MS = 700
"""Long enough for a handshake that is refused: it must stay silent."""


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str, bytes, tuple[bytes, bytes]]:
    """(secret key's file, clients' file, the master's public key, a client's pair)."""
    made = CliRunner().invoke(app, ["events-key", str(tmp_path / "events.key")])
    assert made.exit_code == 0 and (tmp_path / "events.key").stat().st_mode & 0o777 == 0o600
    client = zmq.curve_keypair()
    clients = tmp_path / "clients"
    clients.write_text(f"# routers\n\n{client[0].decode()} router-1\n")
    return str(tmp_path / "events.key"), str(clients), made.stdout.strip().encode(), client


@contextmanager
def reader(port: int, server: bytes, pair: tuple[bytes, bytes] | None, timeout_ms: int) -> Iterator[Any]:
    """Asks for replays."""
    context = zmq.Context()
    sock = context.socket(zmq.DEALER)
    sock.setsockopt(zmq.LINGER, 0)
    sock.setsockopt(zmq.RCVTIMEO, timeout_ms)
    sock.setsockopt(zmq.SNDTIMEO, timeout_ms)  # one that was refused already can't even send
    if pair is not None:
        sock.curve_serverkey = server
        sock.curve_publickey, sock.curve_secretkey = pair
    try:
        sock.connect(f"tcp://127.0.0.1:{port}")
        yield sock
    finally:
        sock.close()
        context.term()


def answers(port: int, server: bytes, pair: tuple[bytes, bytes] | None, timeout_ms: int = SILENCE_MS) -> bool:
    with reader(port, server, pair, timeout_ms) as sock:
        try:
            sock.send_multipart((b"", (0).to_bytes(8, "big")))
            while sock.recv_multipart()[2] != END:
                pass
        except zmq.Again:
            return False
    return True


def test_only_known_keys_are_let_in(files: tuple[str, str, bytes, tuple[bytes, bytes]]) -> None:
    key, clients, server, pair = files
    port = free_pair()
    settings = MasterSettings(port=0, events_port=port, events_key=key, events_clients=clients)
    stranger = zmq.curve_keypair()
    with RestMaster(settings=settings):
        assert answers(port + 1, server, pair, 60_000)
        assert not answers(port + 1, server, stranger), "its key is not in the file"
        assert not answers(port + 1, server, None), "plain text"
        assert not answers(port + 1, zmq.curve_keypair()[0], pair), "another server's key"
        with Path(clients).open("a") as stream:
            stream.write(stranger[0].decode() + "\n")
        wait_until(lambda: answers(port + 1, server, stranger, 2000))


def test_files_that_can_t_be_used_are_named(
    files: tuple[str, str, bytes, tuple[bytes, bytes]], tmp_path: Path
) -> None:
    key, clients, server, _ = files
    os.chmod(key, 0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        CurveGuard(key, clients)
    os.chmod(key, 0o600)
    bad = tmp_path / "bad"
    bad.write_text("short router-1\n")
    with pytest.raises(ConfigError, match="line 1"):
        read_public_keys(bad)
    bad.chmod(0o600)
    with pytest.raises(ConfigError, match="events-key"):
        CurveGuard(str(bad), clients)
    with pytest.raises(ConfigError, match="can't be read"):
        CurveGuard(key, str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="line 1"):
        CurveGuard(key, key.replace("events.key", "bad"))
    again = CliRunner().invoke(app, ["events-key", key])
    assert isinstance(again.exception, ConfigError), "no key is written over"
    assert read_public_keys(Path(clients)) and server


def test_events_with_keys_may_be_published_anywhere() -> None:
    both = {"events_key": "k", "events_clients": "c"}
    check_bare("0.0.0.0", MasterSettings(**both))
    check_bare("0.0.0.0", MasterSettings(tokens_file="t", **both))
    for name in both:
        with pytest.raises(ConfigError, match="go together"):
            check_bare("127.0.0.1", MasterSettings(**{name: "x"}))
