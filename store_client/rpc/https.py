"""TLS of pages that browsers, Prometheus and probes read: the REST interface and a node's /metrics."""

from __future__ import annotations

import json

from moonpool.schemas.config import MasterSettings, NodeSettings
from moonpool.schemas.errors import Unauthorized
from moonpool.store_client.rpc.tls import ServerTls


def page_tls(settings: MasterSettings | NodeSettings) -> ServerTls | None:
    """None where there is no certificate. Raises ConfigError.

    Where tokens say who may come in, nobody is asked for a certificate: browsers and Kubernetes' probes have none.
    Without tokens `tls_ca` is all that guards the page, so it wants one then.
    """
    if settings.tls_cert and settings.tls_ca and not settings.tokens_file:
        return ServerTls(settings.tls_cert, settings.tls_key, settings.tls_ca, at_once=True)
    return ServerTls.of(settings.tls_cert, settings.tls_key, "")


def refusal_of_plain_http() -> bytes:
    """The answer to somebody who comes without TLS: as all failures of the REST interface."""
    error = Unauthorized(detail="this port speaks TLS: its address begins with https://")
    facts = {
        "code": error.code,
        "name": type(error).__name__,
        "message": str(error),
        "details": error.facts,
    }
    body = json.dumps({"error": facts}).encode()
    return (
        b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )
