"""What a server answers where a request raised."""

from __future__ import annotations

import logging

from moonpool.schemas.errors import InternalError, MoonpoolError
from moonpool.schemas.messages import Failed, Message

log = logging.getLogger(__name__)


def failed(server: str, message: Message, peer: str, error: Exception) -> Failed:
    """The reply. What is no refusal is a bug of ours, and logged."""
    if not isinstance(error, MoonpoolError):
        what = type(message).__name__
        log.error("%s failed on %s of %s", server, what, peer, exc_info=error)
        error = InternalError(detail=f"{server} failed on {what}: {error!r}")
    return Failed(error.code, str(error))
