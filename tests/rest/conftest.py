"""One master for all tests of a file, and one cluster for those that need several masters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from support.rest_cluster import Cluster
from support.rest_master import RestMaster


@pytest.fixture(scope="module")
def master() -> Iterator[RestMaster]:
    with RestMaster() as running:
        yield running


@pytest.fixture(scope="module")  # tests evict and delete: files may come in any order
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack, tmp_path_factory.mktemp("etcd"))
