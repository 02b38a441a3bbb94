"""One pool with a dashboard, and one browser, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright
from support.dashboard_pool import DashboardPool

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

NOT_OURS = "net::ERR_NETWORK_CHANGED"
"""Some program of this machine, tests/chaos for one, has made or removed a network interface, and Chromium gave up what it was loading."""
LOADS_MAX = 5


@dataclass
class Visit:
    """A page of the browser, and everything in it that should not have happened."""

    page: Page
    base: str
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._disturbed = False
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", self._see)

    def _hear(self, said: ConsoleMessage) -> None:
        if said.type != "error":
            return
        if NOT_OURS in said.text:
            self._disturbed = True
        else:
            self.faults.append(said.text)

    def _see(self, request: Request) -> None:
        if not request.url.startswith((self.base, self.base.replace("http", "ws", 1), "data:", "blob:")):
            self.faults.append(f"asked somebody else: {request.url}")

    def open(self, path: str) -> Page:
        """Goes there."""
        for _ in range(LOADS_MAX):
            self._disturbed = False
            self.page.goto(self.base + path, wait_until="load")
            if not self._disturbed:
                break
        return self.page


@pytest.fixture(scope="module")
def pool() -> Iterator[DashboardPool]:
    with DashboardPool() as running:
        running.fill()
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def visit(pool: DashboardPool, browser: Browser) -> Iterator[Visit]:
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        visit = Visit(context.new_page(), pool.url)
        yield visit
    assert not visit.faults, visit.faults
