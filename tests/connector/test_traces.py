"""One trace from the connector to masters and nodes, as a real collector gets it from real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from support.payloads import chain_hashes
from support.processes import MasterProcess, NodeProcess
from support.trace_collector import Seen, TraceCollector
from support.waiting import wait_until

from moonpool.connector.counters import Counters
from moonpool.connector.groups import Group, GroupKind, GroupPlan
from moonpool.connector.identity import Identity
from moonpool.connector.layout import GroupLayout, TensorView
from moonpool.connector.lookups import PoolLookups, Question
from moonpool.connector.mover import Place
from moonpool.connector.records import ChainPart, RankFacts, SaveJob, StepMeta, Transfer
from moonpool.connector.records import Span as Blocks
from moonpool.connector.worker_half import WorkerHalf
from moonpool.schemas.config import ClientSettings, ConnectorSettings
from moonpool.schemas.errors import KeyspaceUnknown
from moonpool.schemas.packed import join_hashes
from moonpool.store_client import StoreClient, native
from moonpool.store_client.tracing import spans

BLOCK_BYTES = 4096
READ = "moonpool.node.LaneRead" if native.HOT else "moonpool.node.GetSmall"
"""How a few small blocks are read."""

CHAIN = chain_hashes("traced", 8)
FACTS = RankFacts(1, 0, (BLOCK_BYTES,), ("l",), "w")
PLAN = GroupPlan((Group(0, GroupKind.FULL, 16),), 16)
IDENTITY = Identity("m", "default", 32, PLAN, {}, (FACTS,))
(SPEC,) = IDENTITY.specs()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[TraceCollector]:
    """Gets this process's spans too, whose provider is no other test's."""
    with TraceCollector() as running:
        provider = TracerProvider(resource=Resource.create({"service.name": "engine"}))
        endpoint = f"{running.environment['OTEL_EXPORTER_OTLP_ENDPOINT']}/v1/traces"
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint, timeout=30)))
        monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
        yield running
        provider.shutdown()


class Traced:
    """Both halves of the connector over a traced pool."""

    def __init__(self, stack: ExitStack, collector: TraceCollector, transport: str) -> None:
        master = MasterProcess(["--tracing", "true"])
        master.environment = collector.environment
        stack.enter_context(master)
        node = NodeProcess(master, tracing=True, prefault=False)
        node.environment = collector.environment
        stack.enter_context(node)
        settings = ClientSettings(
            master=master.address, run_dir=node.run_dir, tracing=True, timeout_s=30, transport=transport
        )
        make = spans(wanted=True)
        self.client = StoreClient(settings)
        self._lookups = PoolLookups(
            self.client, Counters(), timeout_s=30, adapter_digest=lambda _: None, spans=make
        )
        stack.callback(self._lookups.close)
        memory = np.ones((len(CHAIN), BLOCK_BYTES), np.uint8)
        self._memory = memory
        view = TensorView("layer", memory.ctypes.data, memory.shape, (BLOCK_BYTES, 1), 1, "uint8")
        self._worker = WorkerHalf(
            PLAN,
            ConnectorSettings(load_timeout_s=30, save_timeout_s=30),
            StoreClient(settings),
            Place(0, 0),
            [GroupLayout([view], len(CHAIN))],
            lambda _: FACTS,
            spans=make,
        )
        stack.callback(self._worker.close)

    def match(self, request: str) -> int:
        """Blocks that are ready."""
        assert self._lookups.ask(Question(request, 1, IDENTITY, CHAIN, None, True))
        found: list[int] = []

        def answered() -> bool:
            found.extend(int(answer.ready[0]) for answer in self._lookups.take() if answer.ready)  # type: ignore[arg-type]
            return bool(found)

        wait_until(answered)
        return found[0]

    def _transfer(self, request: str) -> tuple[Transfer, ChainPart]:
        span = Blocks(0, SPEC.digest(), 0, list(range(len(CHAIN))))
        return Transfer(request, [span]), ChainPart(request, 0, join_hashes(CHAIN), 32)

    def save(self, request: str) -> None:
        transfer, part = self._transfer(request)
        self._worker.step(StepMeta(specs=[SPEC], chains=[part], job=SaveJob(1, [transfer])))
        self._worker.start_saves(lambda: lambda: None)
        wait_until(lambda: self._worker.take_report() is not None)

    def load(self, request: str) -> None:
        transfer, part = self._transfer(request)
        self._worker.step(StepMeta(chains=[part], loads=[transfer]))
        self._worker.start_loads(lambda: lambda: None)
        wait_until(lambda: self._worker.take_loads().finished == {request})


def tree(collector: TraceCollector, request: str, wanted: set[str]) -> dict[str, Seen]:
    """By name, of the one trace whose root names a request, once all wanted spans have come."""
    found: dict[str, Seen] = {}

    def complete() -> bool:
        spans = list(collector.spans)
        roots = [one for one in spans if one.facts.get("moonpool.request_id") == request]
        found.update({one.name: one for one in spans for root in roots if one.trace == root.trace})
        return found.keys() >= wanted

    wait_until(complete)
    return found


def above(found: dict[str, Seen], name: str) -> list[str]:
    """Names from a span to its root."""
    by_id = {one.span: one for one in found.values()}
    names, at = [], by_id.get(found[name].span)
    while at is not None:
        names.append(at.name)
        at = by_id.get(at.parent)
    return names


def wait_for_pool(pool: Traced, save: Callable[[str], None]) -> None:
    def saved() -> bool:
        save("warm")
        return pool.client.match(SPEC.digest(), CHAIN) == len(CHAIN)

    wait_until(saved)


def test_from_the_connector_to_the_node(collector: TraceCollector) -> None:
    with ExitStack() as stack:
        pool = Traced(stack, collector, "tcp")
        pool.match("first")  # registers the keyspace
        wait_for_pool(pool, pool.save)
        assert pool.match("cmpl-1") == len(CHAIN)
        pool.load("cmpl-2")
        with pytest.raises(KeyspaceUnknown):
            pool.client.match(bytes(16), CHAIN)
        match = tree(collector, "cmpl-1", {"moonpool.master.Probe"})
        assert above(match, "moonpool.master.Probe") == [
            "moonpool.master.Probe",
            "moonpool.match",
            "moonpool.connector.match",
        ]
        load = tree(collector, "cmpl-2", {"moonpool.master.Locate", READ})
        for name in ("moonpool.master.Locate", READ):
            assert above(load, name) == [name, "moonpool.load", "moonpool.connector.load"]
        services = {one.name: one.service for one in load.values()}
        assert services[READ] == "moonpool-node"
        assert services["moonpool.master.Locate"] == "moonpool-master"
        assert services["moonpool.load"] == "engine"
        save = tree(collector, "warm", {"moonpool.master.PutStart", "moonpool.node.PutSmall"})
        for name in ("moonpool.master.PutStart", "moonpool.node.PutSmall"):
            assert above(save, name) == [name, "moonpool.save", "moonpool.connector.save"]
        wait_until(lambda: any(one.failed and one.name == "moonpool.match" for one in collector.spans))
    names = {one.name for one in collector.spans if not one.parent}
    assert not [name for name in names if ".master." in name or ".node." in name], (
        "no trace begins at a server"
    )


def test_a_writer_of_the_same_host_has_its_node_s_spans(collector: TraceCollector) -> None:
    with ExitStack() as stack:
        pool = Traced(stack, collector, "shm")
        pool.match("first")
        wait_for_pool(pool, pool.save)
        found = tree(collector, "warm", {"moonpool.node.Begin", "moonpool.node.Commit"})
        for name in ("moonpool.node.Begin", "moonpool.node.Commit"):
            assert above(found, name) == [name, "moonpool.save", "moonpool.connector.save"]
