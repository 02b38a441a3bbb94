"""What several of the node's tests start from."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.lane_server import Served

from moonpool.store_client import native

needs_c = pytest.mark.skipif(not native.HOT, reason="built without a compiler")


@pytest.fixture
def shm() -> Iterator[Path]:
    """A folder on tmpfs for segment files of this test alone."""
    folder = tempfile.mkdtemp(prefix="moonpool-test-", dir="/dev/shm")
    yield Path(folder)
    shutil.rmtree(folder)


@pytest.fixture(params=[pytest.param(True, marks=needs_c), False], ids=["c", "python"])
def served(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A data port whose lanes answer reads in C, or in Python."""
    monkeypatch.setattr(native, "HOT", request.param)
    made = Served()
    yield made
    made.server.close()
    made.core.validate()
    assert not made.core.slots.writing.any()
