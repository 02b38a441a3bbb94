"""The chart, and the values that its ci folder holds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml
from support.chart import VALUES, Chart, Manifest, Manifests


@pytest.fixture(scope="session")
def chart() -> Iterator[Chart]:
    with Chart() as chart:
        yield chart


@pytest.fixture(params=VALUES)
def values(request: pytest.FixtureRequest) -> Manifest:
    """One file of ci/ after the other."""
    values: Manifest = yaml.safe_load(VALUES[request.param].read_text())
    return values


@pytest.fixture
def rendered(chart: Chart, values: Manifest) -> Manifests:
    return chart.render(values)
