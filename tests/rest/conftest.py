"""One master for all tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.rest_master import RestMaster


@pytest.fixture(scope="module")
def master() -> Iterator[RestMaster]:
    with RestMaster() as running:
        yield running
