"""What several of the node's tests start from."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.lane_server import Served


@pytest.fixture
def shm() -> Iterator[Path]:
    """A folder on tmpfs for segment files of this test alone."""
    folder = tempfile.mkdtemp(prefix="moonpool-test-", dir="/dev/shm")
    yield Path(folder)
    shutil.rmtree(folder)


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.server.close()
    made.core.validate()
    assert not made.core.slots.writing.any()
