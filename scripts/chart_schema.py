"""Writes the settings into the chart's values.schema.json, so that `master.settings` and `node.settings` take what a
process takes, and nothing else. `make docs` runs it; a test checks it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from moonpool.schemas.config_load import KINDS

SCHEMA = Path(__file__).resolve().parent.parent / "helm" / "moonpool" / "values.schema.json"
OF_THE_CHART = {
    "master": {
        "host": "always 0.0.0.0",
        "port": "master.port",
        "advertise": "the pod's name",
        "http_host": "always 0.0.0.0",
        "events_host": "always 0.0.0.0",
        "events_port": "master.events",
        "events_key": "master.events",
        "events_clients": "master.events",
        "tracing": "tracing",
        "http_port": "master.httpPort",
        "store": "etcd, or master.persistence",
        "cluster": "cluster",
        "etcd_user": "etcd.user",
        "etcd_password_file": "etcd.passwordSecret",
        "etcd_ca": "etcd.tlsSecret",
        "etcd_cert": "etcd.tlsSecret",
        "etcd_key": "etcd.tlsSecret",
        "tokens_file": "access.tokens",
        "tls_cert": "access.tls",
        "tls_key": "access.tls",
        "tls_ca": "access.tls",
        "insecure": "access.insecure",
    },
    "node": {
        "host": "always 0.0.0.0",
        "port": "node.port",
        "data_port": "node.dataPort",
        "metrics_host": "always 0.0.0.0",
        "metrics_port": "node.metricsPort",
        "tracing": "tracing",
        "master": "the Service",
        "name": "the host's",
        "advertise": "the pod's address",
        "size": "node.size",
        "segment_dir": "node.memory",
        "run_dir": "node.memory",
        "engine_protocol": "node.rdma",
        "engine_devices": "node.rdma",
        "tokens_file": "access.tokens",
        "token_file": "access.tokens",
        "token": "access.tokens",
        "tls_cert": "access.tls",
        "tls_key": "access.tls",
        "tls_ca": "access.tls",
        "tls_verify_host": "access.tls",
        "insecure": "access.insecure",
    },
}
"""Settings that the chart itself makes, and what makes them: giving them twice would contradict."""
KEPT = (
    "type",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "pattern",
    "enum",
    "anyOf",
    "description",
)


def settings_schema(kind: str) -> dict[str, Any]:
    """JSON schema of `<kind>.settings`."""
    model = KINDS[kind]
    fields = model.model_json_schema()["properties"]
    chosen = {name: field for name, field in sorted(fields.items()) if name not in OF_THE_CHART[kind]}
    properties = {name: {key: field[key] for key in KEPT if key in field} for name, field in chosen.items()}
    for name, field in properties.items():
        if name.endswith(("size", "_bytes")) and field.get("type") == "integer":  # bytes, or "64MiB"
            field["type"] = ["integer", "string"]
    return {"type": "object", "additionalProperties": False, "properties": properties}


def refreshed(text: str) -> str:
    """The schema with its settings made anew."""
    schema = json.loads(text)
    for kind in OF_THE_CHART:
        schema["$defs"][f"{kind}Settings"] = settings_schema(kind)
    return json.dumps(schema, indent=2) + "\n"
