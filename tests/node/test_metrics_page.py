"""A node's /metrics while other visitors hang: Prometheus is answered all the same."""

from __future__ import annotations

import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.guarded import Certificates
from support.waiting import at_most, wait_until

from moonpool.schemas.metrics import NODE_METRICS, Samples
from moonpool.store_client.node.metrics_page import VISITORS_MAX, MetricsPage
from moonpool.store_client.rpc.tls import ServerTls

NOTHING = Samples(NODE_METRICS)
HANGING = (b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\nx-slow: ")


@pytest.fixture(params=["http", "https"])
def page(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[MetricsPage, Callable[[], int]]]:
    """With what a scrape is answered by."""
    certificates = Certificates(tmp_path)
    secure = request.param == "https"
    pair = certificates.mutual
    tls = ServerTls.of(pair["tls_cert"], pair["tls_key"], "") if secure else None
    made = MetricsPage("127.0.0.1", 0, lambda: NOTHING, tls=tls)
    trust = ssl.create_default_context(cafile=certificates.ca) if secure else None

    def scrape() -> int:
        url = f"{request.param}://127.0.0.1:{made.port}/metrics"
        with urllib.request.urlopen(url, timeout=60, context=trust) as answer:
            status: int = answer.status
        return status

    yield made, scrape
    made.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "metrics"]


def test_visitors_that_hang_stop_nobody(page: tuple[MetricsPage, Callable[[], int]]) -> None:
    made, scrape = page
    with ExitStack() as stack:
        for number in range(3 * VISITORS_MAX):
            hanging = stack.enter_context(socket.create_connection(("127.0.0.1", made.port), timeout=60))
            hanging.sendall(HANGING[number % len(HANGING)])
            if number % VISITORS_MAX == VISITORS_MAX - 1:
                assert scrape() == 200
        threads = [thread for thread in threading.enumerate() if thread.name == "metrics"]
        assert len(threads) <= VISITORS_MAX + 1


def test_closing_ends_those_that_hang(page: tuple[MetricsPage, Callable[[], int]]) -> None:
    made, _ = page
    with socket.create_connection(("127.0.0.1", made.port), timeout=60):
        wait_until(lambda: sum(thread.name == "metrics" for thread in threading.enumerate()) > 1)
        start_s = time.monotonic()
        made.close()
        assert time.monotonic() - start_s < at_most(1)
