"""Spans of a client's calls for OpenTelemetry, where the settings ask for them. Nothing of it is imported where they don't.

A call's span is named to masters and nodes that make spans too (`traceparent`): theirs become its children.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Protocol

log = logging.getLogger(__name__)

EXPORT_TIMEOUT_S = 2.0
"""A collector that is away must not keep a process from ending."""

SERVICE_NAMES = ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES")
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

traceparent: ContextVar[str] = ContextVar("traceparent", default="")
"""Of the span that the calling thread's requests belong to, as W3C writes it; empty: of none."""

_NOTHING = nullcontext()


class Spans(Protocol):
    """Makes the span of a call."""

    def __call__(
        self, name: str, keyspace: bytes, blocks: int, request_id: str = ""
    ) -> AbstractContextManager[object]:
        """Around the call: its name, keyspace (empty: several), how many blocks it is about, and whose they are."""
        ...


def no_spans(name: str, keyspace: bytes, blocks: int, request_id: str = "") -> AbstractContextManager[object]:
    """Off."""
    return _NOTHING


def spans(*, wanted: bool) -> Spans:
    """Spans go to the tracer provider that the process has set up, and are children of the calling thread's span, if any.
    Where it has none, and OpenTelemetry's environment variables name a collector, they go there. Off, with a line in the
    log, where OpenTelemetry is not installed."""
    if not wanted:
        return no_spans
    trace = _opentelemetry()
    if trace is None:
        return no_spans
    if any(map(os.environ.get, ENDPOINTS)) and isinstance(
        trace.get_tracer_provider(), trace.ProxyTracerProvider
    ):
        export_spans("moonpool-client")
    tracer = trace.get_tracer("moonpool")

    @contextmanager
    def span(name: str, keyspace: bytes, blocks: int, request_id: str = "") -> Iterator[None]:
        facts: dict[str, str | int] = {"moonpool.blocks": blocks}
        if keyspace:
            facts["moonpool.keyspace"] = keyspace.hex()
        if request_id:
            facts["moonpool.request_id"] = request_id
        with tracer.start_as_current_span(f"moonpool.{name}", attributes=facts) as made:
            token = traceparent.set(_traceparent_of(made.get_span_context()))
            try:
                yield
            finally:
                traceparent.reset(token)

    return span


def export_spans(service: str) -> Callable[[], None]:
    """Has this process send its spans to a collector, over OTLP with HTTP, where OpenTelemetry's environment variables say
    (else to port 4318 of this host). Returns what sends the last ones. Does nothing, with a line in the log, where
    OpenTelemetry is not installed."""
    trace = _opentelemetry("opentelemetry.exporter.otlp.proto.http")
    if trace is None:
        return lambda: None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = any(map(os.environ.get, SERVICE_NAMES))
    provider = TracerProvider(resource=Resource.create({} if named else {"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=EXPORT_TIMEOUT_S)))
    trace.set_tracer_provider(provider)
    log.info("spans go to OpenTelemetry's collector")
    done: Callable[[], None] = provider.shutdown
    return done


def _opentelemetry(needed: str = "opentelemetry") -> Any:
    """Its module `trace`; None, with a line in the log, where it or `needed` isn't installed."""
    try:
        trace = importlib.import_module("opentelemetry.trace")
        importlib.import_module(needed)
    except ImportError:
        log.warning("no traces: opentelemetry is not installed (extra `otel`)")
        return None
    return trace


def _traceparent_of(context: Any) -> str:
    if not (context.is_valid and context.trace_flags.sampled):
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-01"
