"""Generated requests against the OpenAPI: no crash, no answer that it doesn't describe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance
from support.rest_master import BASE_URL, RestMaster
from support.soak import SOAK

from moonpool.master.rest.app import rest_routes

EXAMPLES = 5 * SOAK
ADMIN = {"Authorization": "Bearer admin"}
ENDLESS = "/api/v1/events/stream"

ENDPOINTS = sorted(
    (method, route.path) for route in rest_routes() for method in route.methods or () if route.path != ENDLESS
)


@pytest.fixture(scope="module")
def operations() -> Iterator[dict[tuple[str, str], Any]]:
    with RestMaster() as running:
        schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", running.app(tokens=True))
        found = [operation.ok() for operation in schema.get_all_operations()]
        yield {(operation.method.upper(), operation.path): operation for operation in found}


@pytest.mark.parametrize(("method", "path"), ENDPOINTS)
def test_an_endpoint_keeps_its_word(operations: dict[tuple[str, str], Any], method: str, path: str) -> None:
    # What a selection means depends on the pool, and on which of its fields is there: no schema can say it.
    unchecked = [positive_data_acceptance] if method == "POST" else []

    @given(case=operations[method, path].as_strategy())
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def keeps_it(case: schemathesis.Case) -> None:
        case.call_and_validate(base_url=BASE_URL, headers=ADMIN, excluded_checks=unchecked)

    keeps_it()
