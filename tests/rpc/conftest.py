"""Fixtures of the RPC tests: a server in a thread, and what must be gone after each test."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import uvloop
from support.echo_server import ECHO_SERVER, ThreadedServer
from support.leaks import no_descriptor_left, no_thread_left
from support.processes import ServerProcess

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
    """No thread and no file descriptor of the test is left after it."""
    with no_descriptor_left(), no_thread_left():
        yield
