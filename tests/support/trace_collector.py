"""An OpenTelemetry collector in small: takes spans over OTLP with HTTP, and keeps them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Seen(NamedTuple):
    """A span. Ids in hex; `parent` is empty where it has none."""

    service: str
    name: str
    trace: str
    span: str
    parent: str
    failed: bool
    facts: dict[str, str]


class TraceCollector:
    """Listens by `with`. `environment`: of processes that are to send their spans here, soon after they end."""

    def __enter__(self) -> Self:
        self.spans: list[Seen] = []
        spans = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = ExportTraceServiceRequest()
                request.ParseFromString(self.rfile.read(int(self.headers["content-length"])))
                spans.extend(_spans(request.resource_spans))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Keeps quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="collector")
        self._thread.start()
        port = self._server.server_address[1]
        self.environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _spans(resources: Iterable[Any]) -> Iterable[Seen]:
    for resource in resources:
        about = {one.key: one.value.string_value for one in resource.resource.attributes}
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Seen(
                    about["service.name"],
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.status.code == 2,
                    {one.key: one.value.string_value for one in span.attributes},
                )
