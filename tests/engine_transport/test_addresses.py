"""Addresses of engines, knocking at them, and memory that is given up."""

from __future__ import annotations

import mmap
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from support.waiting import at_most, soon

from moonpool.schemas.errors import DeadlineExceeded, InvalidParams, TransferFailed
from moonpool.store_client.copiers.host import HostCopier
from moonpool.store_client.raw_memory import address_of, bytes_at
from moonpool.store_client.transports.engine.address import EngineAddress, host_towards
from moonpool.store_client.transports.engine.engine import open_engine
from moonpool.store_client.transports.engine.fake import FakeEngine
from moonpool.store_client.transports.engine.knock import Awake, answers
from moonpool.store_client.transports.engine.landing import BLOCK_BYTES, Landing


@pytest.mark.parametrize(
    "text", ["rdma://10.0.0.7:15428", "tcp://host-7.pool:1", "ascend_x1://[fe80::1]:65535"]
)
def test_addresses_survive_a_round_trip(text: str) -> None:
    address = EngineAddress.parse(text)
    assert str(address) == text
    assert address.session == text.partition("://")[2]


@pytest.mark.parametrize(
    "text",
    ["", "10.0.0.7:15428", "rdma://10.0.0.7", "rdma://:1", "RDMA://a:1", "rdma://a:1/x", "rdma://a b:1"],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidParams):
        EngineAddress.parse(text)


def test_a_host_is_named_as_its_peer_sees_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert host_towards(f"127.0.0.1:{listener.getsockname()[1]}") == "127.0.0.1"


def test_who_is_frozen_or_gone_does_not_answer_a_knock() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # accepts, as a frozen process's kernel does
        session = f"127.0.0.1:{listener.getsockname()[1]}"
        start_s = time.monotonic()
        assert not answers(session, 0.2)
        assert time.monotonic() - start_s < at_most(0.2)
    assert not answers(session, 0.2)
    assert not answers("no.such.host.invalid:1", 0.2)


def test_a_peer_is_knocked_at_once_and_after_each_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        session = f"127.0.0.1:{listener.getsockname()[1]}"
        knocks = 0

        def serve() -> None:
            nonlocal knocks
            for _ in range(2):
                listener.accept()[0].close()
                knocks += 1

        server = threading.Thread(target=serve)
        server.start()
        awake = Awake()
        assert awake.may_be_called(session)
        awake.called(session, True)
        assert awake.may_be_called(session)
        awake.called(session, False)
        assert awake.may_be_called(session)
        server.join(60)
        assert knocks == 2


def test_lost_blocks_free_their_memory_and_keep_their_addresses() -> None:
    engine = FakeEngine()
    landing = Landing(engine, HostCopier(), 1)
    taken = []
    for _ in range(5):
        with landing.block(soon()) as block:
            block.view(block.address, 4096)[:] = 1
            block.lost = True
        taken.append(block.address)
    assert engine.ranges == {}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"late")
        with pytest.raises(OSError, match="Bad address"):
            ours.recv_into(bytes_at(taken[0], 4).data)
    others = [mmap.mmap(-1, BLOCK_BYTES) for _ in range(5)]
    starts = [address_of(np.frombuffer(other, dtype=np.uint8)) for other in others]
    for start in starts:
        assert all(start + BLOCK_BYTES <= lost or lost + BLOCK_BYTES <= start for lost in taken)
    landing.close()


def test_blocks_are_bounded_and_waited_for() -> None:
    landing = Landing(FakeEngine(), HostCopier(), 1)
    with landing.block(soon()) as first:
        with pytest.raises(DeadlineExceeded), landing.block(time.monotonic() + 0.05):
            pass
        address = first.address
    with landing.block(soon()) as again:
        assert again.address == address
    landing.close()


@pytest.mark.mooncake
@pytest.mark.parametrize(
    ("there", "asked", "said"),
    [([], "", "has none"), (["mlx5_0"], "mlx5_0,mlx5_7", "no RDMA device mlx5_7: .* has mlx5_0")],
)
def test_rdma_without_its_devices_is_no_silent_tcp(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, there: list[str], asked: str, said: str
) -> None:
    for name in there:
        (tmp_path / name).mkdir()
    monkeypatch.setattr("moonpool.store_client.transports.engine.engine._opened", None)
    monkeypatch.setattr("moonpool.store_client.transports.engine.engine.DEVICES_FOLDER", str(tmp_path))
    with pytest.raises(TransferFailed, match=said):
        open_engine("rdma", "127.0.0.1", asked)


@pytest.mark.mooncake
def test_a_process_has_one_engine() -> None:
    engine = open_engine("tcp", "127.0.0.1", "")
    assert open_engine("tcp", "somewhere else", "mlx5_0") is engine
    with pytest.raises(TransferFailed, match="a process has one engine"):
        open_engine("rdma", "127.0.0.1", "")
