"""Spans of a server's calls: children of the spans that clients name with their requests. Requests that name none get none."""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger(__name__)


class CallSpan:
    """Of one call, from its request to its reply."""

    def __init__(self, span: Any) -> None:
        self._span = span

    def end(self, failure: str | None = None) -> None:
        """The reply has been written; `failure`: what it says went wrong."""
        if failure is not None:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_status(Status(StatusCode.ERROR, failure))
        self._span.end()


class ServerSpans:
    """Of one server. Thread-safe."""

    def __init__(self, server: str) -> None:
        """`server`: master or node, which spans' names begin with. OpenTelemetry must be installed."""
        from opentelemetry import trace

        self._trace = trace
        self._tracer = trace.get_tracer("moonpool")
        self._server = server

    @classmethod
    def of(cls, server: str, *, wanted: bool) -> ServerSpans | None:
        """None where they aren't wanted, or OpenTelemetry is not installed (export_spans has said so)."""
        if not wanted:
            return None
        try:
            return cls(server)
        except ImportError:
            return None

    def begin(self, call: str, parent: str, peer: str) -> CallSpan:
        """`parent`: a traceparent (schemas/framing.py); where it is of zeros the span begins a trace."""
        _, trace_id, span_id, flags = parent.split("-")
        trace = self._trace
        context = trace.SpanContext(
            int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=trace.TraceFlags(int(flags, 16))
        )
        span = self._tracer.start_span(
            f"moonpool.{self._server}.{call}",
            context=trace.set_span_in_context(trace.NonRecordingSpan(context)),
            kind=trace.SpanKind.SERVER,
            attributes={"moonpool.peer": peer},
        )
        return CallSpan(span)
