"""Answers that wait for something else too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from moonpool.schemas.messages import Message


async def after(first: Awaitable[None], reply: Message) -> Message:
    """The reply, once that is done."""
    await first
    return reply


async def both(first: Awaitable[None], answer: Awaitable[Message]) -> Message:
    """The answer, once both are there."""
    return (await asyncio.gather(first, answer))[1]
