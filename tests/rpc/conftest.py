"""Fixtures of the RPC tests: a server in a thread, and what must be gone after each test."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator

import pytest
import uvloop
from support.echo_server import ThreadedServer

uvloop.run(asyncio.sleep(0))  # its first loop opens descriptors that stay


@pytest.fixture
def server() -> Iterator[ThreadedServer]:
    """A server with the default limits."""
    with ThreadedServer() as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    """As many threads and file descriptors after the test as before it."""
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    yield
    end_s = time.monotonic() + 2
    while len(os.listdir("/proc/self/fd")) > descriptors and time.monotonic() < end_s:
        time.sleep(0.01)
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) <= descriptors
