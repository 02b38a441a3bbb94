"""/metrics of master and node: all that the table lists, and nothing else."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.processes import MasterProcess, NodeProcess
from support.rest_master import RestMaster

from moonpool.schemas.config import ClientSettings
from moonpool.schemas.histogram import Log2Histogram
from moonpool.schemas.metrics import MASTER_METRICS, NODE_METRICS, Metric, MetricKind, Samples
from moonpool.store_client import StoreClient
from moonpool.store_client.cli.serve import port_to_serve
from moonpool.store_client.exposition import render

OTHERS = ("process_", "python_")


def values(page: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """(sample, label values) -> value. Fails on a page that Prometheus would refuse."""
    found: dict[tuple[str, tuple[str, ...]], float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            key = sample.name, tuple(sample.labels.values())
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


def test_a_node_exports_its_table() -> None:
    port = port_to_serve("127.0.0.1", 0)
    with MasterProcess() as master, NodeProcess(master, metrics_port=port) as node:
        with StoreClient(ClientSettings(master=master.address, run_dir=node.run_dir)) as client:
            end_s = time.monotonic() + 20
            while not client.put("key", b"value"):
                assert time.monotonic() < end_s
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            page = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20)
    assert_page(page, NODE_METRICS)
    found = values(page)
    assert found["moonpool_node_capacity_bytes", ()] >= 64 << 20
    assert found["moonpool_node_rpc_seconds_count", ("Begin", "unix")] >= 1
