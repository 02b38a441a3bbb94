"""Spans of a client's calls for OpenTelemetry, where the settings ask for them. Nothing of it is imported where they don't."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

log = logging.getLogger(__name__)

Spans = Callable[[str, bytes, int], AbstractContextManager[object]]
"""Around a call: its name, keyspace and how many blocks it is about."""

_NOTHING = nullcontext()


def no_spans(name: str, keyspace: bytes, blocks: int) -> AbstractContextManager[object]:
    """Off."""
    return _NOTHING


def spans(*, wanted: bool) -> Spans:
    """Spans go to the tracer provider that the process has set up, and are children of the calling thread's span, if any.
    Off, with a line in the log, where OpenTelemetry is not installed."""
    if not wanted:
        return no_spans
    try:
        from opentelemetry import trace
    except ImportError:
        log.warning("no traces: opentelemetry is not installed (extra `otel`)")
        return no_spans
    tracer = trace.get_tracer("moonpool")

    def span(name: str, keyspace: bytes, blocks: int) -> AbstractContextManager[object]:
        facts: dict[str, str | int] = {"moonpool.keyspace": keyspace.hex(), "moonpool.blocks": blocks}
        made: AbstractContextManager[object] = tracer.start_as_current_span(
            f"moonpool.{name}", attributes=facts
        )
        return made

    return span
