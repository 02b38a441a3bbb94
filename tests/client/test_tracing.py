"""Spans of a client's calls against real processes; nothing is imported where they are off."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from client.chains import all_ok, chained, get_chain, put_chain
from support.payloads import chain_hashes
from support.processes import MasterProcess, NodeProcess
from support.waiting import wait_until

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.errors import KeyspaceUnknown
from moonpool.store_client import StoreClient
from moonpool.store_client.tracing import no_spans, spans

trace = pytest.importorskip("opentelemetry.trace")
sdk = pytest.importorskip("opentelemetry.sdk.trace")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")

BLOCK_BYTES = 4096


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    made = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(made))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield made
    provider.shutdown()


def test_match_load_and_save_are_spans(exporter) -> None:  # type: ignore[no-untyped-def]
    with MasterProcess() as master, NodeProcess(master) as node:
        settings = ClientSettings(master=master.address, run_dir=node.run_dir, tracing=True, timeout_s=20)
        with StoreClient(settings) as client:
            keyspace = client.register_keyspace(chained("traced", BLOCK_BYTES))
            chain = chain_hashes("prompt", 10)
            wait_until(lambda: all_ok(put_chain(client, keyspace, chain, BLOCK_BYTES)))
            wait_until(lambda: client.match(keyspace, chain) == 10)
            assert all_ok(get_chain(client, keyspace, chain, BLOCK_BYTES))
            with pytest.raises(KeyspaceUnknown):
                client.match(b"unknown", chain)
    found = exporter.get_finished_spans()
    assert {span.name for span in found} == {"moonpool.save", "moonpool.match", "moonpool.load"}
    facts = {"moonpool.keyspace": keyspace.hex(), "moonpool.blocks": 10}
    assert all(dict(span.attributes) == facts for span in found[:-1])
    assert [span.status.is_ok for span in found] == [True] * (len(found) - 1) + [False]


def test_nothing_is_imported_where_it_is_off() -> None:
    code = (
        "import sys; from moonpool.store_client import StoreClient; StoreClient().close();"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert spans(wanted=False) is no_spans


def test_a_missing_library_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert spans(wanted=True) is no_spans
    assert "opentelemetry is not installed" in caplog.text
