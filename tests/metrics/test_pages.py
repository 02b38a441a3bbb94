"""/metrics of master and node: all that the table lists, and nothing else."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.ports import free_ports
from support.processes import MasterProcess, NodeProcess
from support.report_node import KEYSPACE, SPEC
from support.rest_master import HASHES, RestMaster, real_chain
from support.waiting import wait_until

from moonpool.master.metrics import KEYSPACES_MAX
from moonpool.master.store.base import Condition, Write
from moonpool.master.store.memory import MemoryStore
from moonpool.master.store.timed import TimedStore
from moonpool.master.traffic import Traffic
from moonpool.schemas.config import ClientSettings, MasterSettings
from moonpool.schemas.errors import StoreFailed
from moonpool.schemas.histogram import Log2Histogram
from moonpool.schemas.keyspace import KeyspaceSpec, Kind
from moonpool.schemas.messages import SMALL_BYTES, Need, ProbedRun, Status, Victims
from moonpool.schemas.metrics import MASTER_METRICS, NODE_METRICS, Metric, MetricKind, Samples
from moonpool.store_client import StoreClient
from moonpool.store_client.exposition import render

OTHERS = ("process_", "python_")


def values(page: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """(sample, label values in the order of labels' names) -> value. Fails on a page that Prometheus would refuse."""
    found: dict[tuple[str, tuple[str, ...]], float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            key = sample.name, tuple(value for _, value in sorted(sample.labels.items()))
            assert key not in found, f"{key} twice"
            found[key] = sample.value
    return found


def assert_page(page: str, table: Mapping[str, Metric]) -> None:
    """Every metric of the table has its type on the page, and there is no other."""
    kinds = dict(line.split()[2:4] for line in page.splitlines() if line.startswith("# TYPE"))
    kinds = {name: kind for name, kind in kinds.items() if not name.startswith(OTHERS)}
    assert kinds == {name: metric.kind for name, metric in table.items()}


@pytest.mark.parametrize("table", [MASTER_METRICS, NODE_METRICS])
def test_names_are_prometheus_own(table: Mapping[str, Metric]) -> None:
    for name, metric in table.items():
        assert (metric.kind is MetricKind.COUNTER) == name.endswith("_total"), name
        assert metric.help and not metric.help.endswith("."), name
        if metric.kind is MetricKind.HISTOGRAM:
            assert name.endswith("_seconds"), name


def test_histograms_count_what_they_should() -> None:
    histogram = Log2Histogram(unit=1.0, buckets=4)
    for value in (0.0, 0.5, 1.0, 1.9, 3.0, 4.0, 100.0):
        histogram.add(value)
    assert histogram.bounds() == [1.0, 2.0, 4.0]
    assert histogram.counts == [2, 2, 1, 2] and histogram.count == 7
    samples = Samples({"x_seconds": Metric(MetricKind.HISTOGRAM, "x", ("a",))})
    samples.add_histogram("x_seconds", histogram, "b")
    found = values(render(samples)[0].decode())
    assert [found["x_seconds_bucket", ("b", bound)] for bound in ("1.0", "2.0", "4.0", "+Inf")] == [
        2,
        4,
        5,
        7,
    ]
    assert found["x_seconds_count", ("b",)] == 7 and found["x_seconds_sum", ("b",)] == histogram.sum


def test_a_master_exports_its_table() -> None:
    with RestMaster() as master:
        answer = master.client().get("/metrics")
        openmetrics = master.client().get("/metrics", headers={"accept": "application/openmetrics-text"})
    assert answer.headers["content-type"].startswith("text/plain")
    assert openmetrics.text.endswith("# EOF\n")
    assert_page(answer.text, MASTER_METRICS)
    found = values(answer.text)
    assert found["moonpool_master_node_up", ("n1",)] == 1
    assert found["moonpool_master_blocks", ()] == 10
    assert found["moonpool_master_rpc_seconds_count", ("Announce",)] == 1


MATCHES = (10, 10, 5)
"""Blocks asked for, one match each; 10 are there."""


def test_hits_and_their_ceiling() -> None:
    with RestMaster() as master:
        with StoreClient(ClientSettings(master=master.address, timeout_s=20)) as client:
            client.register_keyspace(SPEC)
            for count in MATCHES:
                assert client.match(KEYSPACE, HASHES[:count]) == count
            assert client.match(KEYSPACE, real_chain(4, "other")) == 0

        def studied() -> dict[tuple[str, tuple[str, ...]], float]:
            return values(master.client().get("/metrics").text)

        wait_until(lambda: studied()["moonpool_master_ceiling_asked_blocks_total", ()] >= 29)
        found = studied()
    labels = (KEYSPACE.hex()[:12], "model", "default")
    assert found["moonpool_master_match_requests_total", labels] == 4
    assert found["moonpool_master_asked_blocks_total", labels] == 29
    assert found["moonpool_master_hit_blocks_total", labels] == 25
    assert found["moonpool_master_ceiling_distinct_blocks_total", ()] == pytest.approx(14, abs=0.1)
    assert found["moonpool_master_ceiling_ratio", ()] == pytest.approx(15 / 29, abs=0.01)
    assert found["moonpool_master_leased_blocks", ()] >= 1


def test_a_gap_ends_what_counts_as_hits() -> None:
    traffic = Traffic()
    runs = [ProbedRun(first, count, 32, b"") for first, count in ((0, 64), (64, 448), (512, 10))]
    traffic.asked(runs, [64, 100, 10])
    assert (traffic.asked_blocks, traffic.hit_blocks, traffic.requests) == (522, 164, 1)


def test_many_keyspaces_are_summed_up() -> None:
    with RestMaster() as master:
        with StoreClient(ClientSettings(master=master.address, timeout_s=20)) as client:
            for index in range(KEYSPACES_MAX + 5):
                client.register_keyspace(KeyspaceSpec(kind=Kind.CHAINED, name=f"m{index}", shard_bytes=(1,)))
        found = values(master.client().get("/metrics").text)
    requests = [labels for name, labels in found if name == "moonpool_master_match_requests_total"]
    assert len(requests) == KEYSPACES_MAX + 1
    assert found["moonpool_master_keyspaces", ()] == KEYSPACES_MAX + 6


def test_evictions_are_counted_with_reason_and_age() -> None:
    with RestMaster() as master:
        need = Need(master.node.segment, master.node.epoch, 2 * 4096)
        answer = master.run(master.node.connection.call(need, 30))
        assert isinstance(answer, Victims) and answer.freed_bytes == 2 * 4096
        found = values(master.client().get("/metrics").text)
    assert found["moonpool_master_evicted_blocks_total", ("leaf",)] == 2
    assert found["moonpool_master_evicted_age_seconds_count", ()] == 2


def test_a_node_exports_its_table() -> None:
    (port,) = free_ports(1)
    with MasterProcess() as master, NodeProcess(master, metrics_port=port) as node:
        with StoreClient(ClientSettings(master=master.address, run_dir=node.run_dir, timeout_s=20)) as client:
            wait_until(lambda: client.put("key", b"value") in (Status.OK, Status.EXISTS))
            # One that begins and then commits.
            assert client.put("large", bytes(SMALL_BYTES + 1)) == Status.OK
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            page = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60)
    assert_page(page, NODE_METRICS)
    found = values(page)
    assert found["moonpool_node_capacity_bytes", ()] >= 64 << 20
    assert found["moonpool_node_rpc_seconds_count", ("Begin", "unix")] >= 1
    assert found["moonpool_node_transfer_bytes_total", ("write", "shm")] > SMALL_BYTES + len(b"value")


def test_the_store_and_its_log_are_told(tmp_path: Path) -> None:
    settings = MasterSettings(port=0, suspect_after_s=60.0, store=f"file:{tmp_path}/state", log_every_s=0.05)
    with RestMaster(settings=settings) as master:
        with StoreClient(ClientSettings(master=master.address, timeout_s=20)) as client:
            client.register_keyspace(KeyspaceSpec(kind=Kind.CHAINED, name="m", shard_bytes=(1,)))

        def found() -> dict[tuple[str, tuple[str, ...]], float]:
            return values(master.client().get("/metrics").text)

        assert found()["moonpool_master_store_seconds_count", ("commit",)] >= 1
        wait_until(lambda: not found()["moonpool_master_shards_recovering", ()])
        now = found()
        assert now["moonpool_master_log_failures_total", ()] == 0
        assert now["moonpool_master_store_failures_total", ("commit",)] == 0


class FullStore(MemoryStore):
    """Takes nothing."""

    async def commit(
        self, writes: Sequence[Write], *, conditions: Sequence[Condition] = (), timeout_s: float
    ) -> int | None:
        raise StoreFailed(store="this one", reason="no space")


async def test_a_store_that_fails_is_counted() -> None:
    store = TimedStore(FullStore())
    with pytest.raises(StoreFailed):
        await store.commit([], timeout_s=1)
    await store.read(b"", timeout_s=1)
    assert store.failures == {"read": 0, "commit": 1}
    assert [store.times[call].count for call in ("read", "commit")] == [1, 1]
    await store.close()
