"""The disk under the file store is full: pins are refused and say why, everything else goes on, nothing is lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from client.pool import wait_for_nodes
from support.processes import MasterProcess, NodeProcess
from support.waiting import wait_until

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import StoreFailed
from moonpool.schemas.keyspace import objects_keyspace
from moonpool.schemas.messages import Status
from moonpool.store_client import StoreClient
from moonpool.store_client.objects import hashes_of

KEYS = [f"object {number}" for number in range(400)]
VALUES = [key.encode() * 20 for key in KEYS]
OBJECTS = objects_keyspace().digest()
PINNED_AT_ONCE = 20
ROOM_BYTES = 16 << 10


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "moonpool-test", str(folder)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("no root: nothing can be mounted")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path) -> None:
    """Writes until there is no room, then gives ROOM_BYTES back."""
    with open(path, "wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(4096))
    os.truncate(path, path.stat().st_size - ROOM_BYTES)


def pin_until_refused(client: StoreClient) -> list[str]:
    """Returns what was acknowledged."""
    acknowledged: list[str] = []
    for first in range(0, len(KEYS), PINNED_AT_ONCE):
        some = KEYS[first : first + PINNED_AT_ONCE]
        try:
            assert client.pin(OBJECTS, hashes_of(some)) == PINNED_AT_ONCE
        except StoreFailed as error:
            assert "No space left" in str(error)
            return acknowledged
        acknowledged += some
    raise AssertionError("the disk never got full")


def pinned(client: StoreClient) -> list[str]:
    """Whose pins hold."""
    return [key for key in KEYS if client.describe(OBJECTS, hashes_of([key])[0]).pinned]


def test_pins_are_refused_and_everything_else_goes_on(disk: Path) -> None:
    with (
        MasterProcess(["--store", f"file:{disk}/hard-state"]) as master,
        NodeProcess(master, prefault=False) as node,
        StoreClient(ClientSettings(master=master.address, timeout_s=20.0)) as client,
    ):
        wait_for_nodes(client)
        assert set(client.batch_put(KEYS, VALUES)) == {Status.OK}
        fill(disk / "filler")
        acknowledged = pin_until_refused(client)
        assert acknowledged
        assert pinned(client) == acknowledged, "what was refused holds nothing"
        assert client.put("one more", b"value") is Status.OK
        assert client.batch_get(KEYS) == VALUES
        # Killed while it is full: what was acknowledged is there.
        master.kill()
        master.start()
        wait_until(lambda: client.batch_is_exist(KEYS) == [True] * len(KEYS))
        assert pinned(client) == acknowledged
        (disk / "filler").unlink()
        rest = [key for key in KEYS if key not in acknowledged]
        assert client.pin(OBJECTS, hashes_of(rest)) == len(rest)
        assert pinned(client) == KEYS
        assert node.alive
