"""Parts of a transfer, each tried by itself: one that fails, or is never begun, leaves its objects at FAILED."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from moonpool.schemas.errors import MoonpoolError
from moonpool.store_client.workers import Workers

log = logging.getLogger(__name__)


def attempt(peer: str, task: Callable[[], None]) -> None:
    """Does it; a failure is a line in the log."""
    try:
        task()
    except MoonpoolError as error:
        failed(peer, error)


def attempt_all(workers: Workers, peer: str, tasks: Sequence[Callable[[], None]], deadline_s: float) -> None:
    """Does all of them, the first one in this thread."""
    workers.run([partial(attempt, peer, task) for task in tasks], deadline_s)


def failed(peer: str, error: MoonpoolError) -> None:
    """The line."""
    log.warning("transfer with %s failed: %s", peer, error)
