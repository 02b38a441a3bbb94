"""Fixtures of the RPC tests: a server in a thread, and what must be gone after each test."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest
import uvloop
from support.echo_server import ECHO_SERVER, ThreadedServer
from support.processes import ServerProcess
from support.waiting import wait_until

uvloop.run(asyncio.sleep(0))  # its first loop opens descriptors that stay


@pytest.fixture
def server() -> Iterator[ThreadedServer]:
    """A server with the default limits."""
    with ThreadedServer() as running:
        yield running


@pytest.fixture
def process() -> Iterator[ServerProcess]:
    """A server in a process of its own, whose memory can be measured."""
    with ServerProcess([ECHO_SERVER]) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    """As many threads and file descriptors after the test as before it."""
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    yield
    wait_until(lambda: threading.active_count() == threads)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)
