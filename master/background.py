"""Parts of a master that go on in the background for as long as it lives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

RETRY_S = 1.0


async def lasting(what: str, part: Callable[[], Awaitable[None]], retry_s: float = RETRY_S) -> None:
    """Runs a part to its end. A fault in the program must not end it in silence: it is logged, and the part begins
    again."""
    while True:
        try:
            await part()
            return
        except Exception:
            log.exception("%s: a fault in the program; it begins again", what)
        await asyncio.sleep(retry_s)
